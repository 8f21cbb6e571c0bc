//! Compiles the trap, the one part of the library that must be C.

fn main() {
    // It reads the engine table by the header that hosts read it by.
    for file in ["src/trap.c", "../include/rollout.h", "build.rs"] {
        println!("cargo:rerun-if-changed={file}");
    }
    cc::Build::new()
        .file("src/trap.c")
        .include("../include")
        .std("gnu99")
        .extra_warnings(true)
        .flag("-fvisibility=hidden")
        // It is on the path of every step, in every profile.
        .opt_level(2)
        .compile("rollout_trap");
}
