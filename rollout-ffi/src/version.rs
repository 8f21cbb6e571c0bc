//! Which library this is.

use std::ffi::c_char;

/// The version of the ABI that this header declares. A host that loads the
/// library at run time compares it with `rollout_abi_version()`.
pub const ROLLOUT_ABI_VERSION: u32 = 1;

/// The version of the ABI of the loaded library. It grows when a change would
/// break a host that was compiled earlier; new functions, and new fields at the
/// end of structs that begin with their size, do not change it.
#[unsafe(no_mangle)]
pub extern "C" fn rollout_abi_version() -> u32 {
    ROLLOUT_ABI_VERSION
}

/// The version of the loaded library as a text such as "0.1.0". Never NULL, and
/// valid for as long as the library is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn rollout_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
