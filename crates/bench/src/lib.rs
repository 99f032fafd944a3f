//! Benchmarks of Tilewright against CPU libraries. What is measured is in `benches/`; the library
//! holds what the benchmarks share.

pub mod libraries;
pub mod process;
pub mod stats;

/// Page-aligned floats.
#[derive(Debug)]
pub struct Floats {
    memory: Vec<f32>,
    start: usize,
    len: usize,
}

impl Floats {
    /// That many zeros.
    pub fn zeros(len: usize) -> Floats {
        const PAGE: usize = 4096;
        let memory = vec![0.0; len + PAGE / 4];
        let start = memory.as_ptr().align_offset(PAGE).min(PAGE / 4);
        Floats { memory, start, len }
    }

    /// Full-mantissa numbers in (−1, 1) from a seed.
    pub fn random(len: usize, seed: u64) -> Floats {
        let mut floats = Floats::zeros(len);
        let mut state = seed;
        for value in floats.as_mut_slice() {
            // splitmix64.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            *value = ((z >> 11) as f64 / (1_u64 << 52) as f64 - 1.0) as f32;
        }
        floats
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[f32] {
        &self.memory[self.start..self.start + self.len]
    }

    /// The numbers, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
