//! What the tests share: a simulator in Rust whose every fault can be switched
//! on, a plain loop that says what a rollout means, and bits to compare.

/// The Rust example of the README, which `cargo test` compiles and runs.
#[doc = include_str!("../../README.md")]
#[cfg(doctest)]
pub struct Readme;

pub mod header;
pub mod reference;
pub mod toy;
pub mod waiting;

/// The system's name of the calling thread.
pub fn thread_name() -> String {
    let name = std::fs::read_to_string("/proc/thread-self/comm").expect("/proc is there");
    name.trim_end().to_owned()
}

/// Numbers as bits: equal only if really equal, NaN included.
pub fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// A small generator of numbers for test inputs (splitmix64): the same on every
/// machine.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in [-1, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// `count` numbers in [-1, 1).
    pub fn units(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.unit()).collect()
    }
}
