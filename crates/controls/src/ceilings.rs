//! Measured limits of the machine: multiply-adds in registers, and bytes from each level of
//! memory. The fastest of several patterns counts, since a limit that is too low would refuse
//! honest times.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Limits with a number of threads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Threads.
    pub threads: usize,
    /// Single-precision operations per second; a multiply-add counts as two.
    pub f32_per_second: f64,
    /// Double-precision operations per second.
    pub f64_per_second: f64,
    /// Bytes per second, read plus written, of the three caches and memory; `None` where there is
    /// no such level.
    pub bytes_per_second: [Option<f64>; 4],
}

impl Limits {
    /// The larger of each limit.
    pub fn max(self, other: Limits) -> Limits {
        let mut bytes_per_second = self.bytes_per_second;
        for (own, other) in bytes_per_second.iter_mut().zip(other.bytes_per_second) {
            *own = own.zip(other).map(|(a, b)| a.max(b));
        }
        Limits {
            threads: self.threads,
            f32_per_second: self.f32_per_second.max(other.f32_per_second),
            f64_per_second: self.f64_per_second.max(other.f64_per_second),
            bytes_per_second,
        }
    }
}

/// How long each loop runs.
const TIME: Duration = Duration::from_millis(15);

/// Measures with that many threads. `caches` are the sizes of the first two levels of one core
/// and of the shared last level in bytes; 0 for a level that isn't there.
pub fn measure(threads: usize, caches: [u64; 3]) -> Limits {
    let threads = threads.max(1);
    let [l1, l2, l3] = caches;
    // Half a level, so that the arrays of a pattern fit it, and well beyond the one before.
    let cores = threads as u64;
    let sizes = [
        (l1 > 0).then_some(l1 / 2),
        (l2 > 0).then_some(l2 / 2),
        (l3 > 0).then(|| (l3 / 2 / cores).max(l2)),
        Some((4 * l3 / cores).clamp(64 << 20, 512 << 20)),
    ];
    Limits {
        threads,
        f32_per_second: multiply_adds::<f32>(threads),
        f64_per_second: multiply_adds::<f64>(threads),
        bytes_per_second: sizes.map(|size| size.map(|s| bytes(threads, s as usize))),
    }
}

/// Runs `work` on every thread for about [`TIME`] and adds up their rates. `work` returns how
/// many units it did.
fn rate(threads: usize, work: impl Fn() -> Box<dyn FnMut() -> f64> + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let one = || {
        let mut work = work();
        work();
        barrier.wait();
        let start = Instant::now();
        let mut best: f64 = 0.0;
        while start.elapsed() < TIME {
            let begin = Instant::now();
            let units = work();
            best = best.max(units / begin.elapsed().as_secs_f64().max(1e-9));
        }
        // The others still need their share of the machine measured under load.
        barrier.wait();
        best
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(one)).collect();
        let own = one();
        others.into_iter().filter_map(|t| t.join().ok()).sum::<f64>() + own
    })
}

/// A float with which multiply-adds are timed.
trait Float: Copy + Send + Sync + 'static {
    const ONE: Self;
    const SMALL: Self;
    fn multiply_add(self, a: Self, b: Self) -> Self;
}

impl Float for f32 {
    const ONE: f32 = 1.0;
    const SMALL: f32 = 1e-9;
    #[inline(always)]
    fn multiply_add(self, a: f32, b: f32) -> f32 {
        self.mul_add(a, b)
    }
}

impl Float for f64 {
    const ONE: f64 = 1.0;
    const SMALL: f64 = 1e-9;
    #[inline(always)]
    fn multiply_add(self, a: f64, b: f64) -> f64 {
        self.mul_add(a, b)
    }
}

/// Bytes of the accumulators: enough independent chains of the widest vectors.
const ACCUMULATORS: usize = 20 * 64;

fn multiply_adds<T: Float>(threads: usize) -> f64 {
    let widths = [ACCUMULATORS, ACCUMULATORS / 2, ACCUMULATORS / 4];
    let mut best: f64 = 0.0;
    // Narrower sets of accumulators suit machines with fewer registers.
    for width in widths {
        best = best.max(rate(threads, || {
            Box::new(move || match width {
                ACCUMULATORS => chains::<T, 20>(),
                w if w == ACCUMULATORS / 2 => chains::<T, 10>(),
                _ => chains::<T, 5>(),
            })
        }));
    }
    best
}

const TRIPS: usize = 20_000;

/// Multiply-adds on `VECTORS` vectors of 64 bytes. Returns operations.
fn chains<T: Float, const VECTORS: usize>() -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has the features.
            return unsafe { chains_avx512::<T, VECTORS>() };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the machine has the features.
            return unsafe { chains_avx2::<T, VECTORS>() };
        }
    }
    chains_generic::<T, VECTORS>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn chains_avx512<T: Float, const VECTORS: usize>() -> f64 {
    chains_generic::<T, VECTORS>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn chains_avx2<T: Float, const VECTORS: usize>() -> f64 {
    chains_generic::<T, VECTORS>()
}

#[inline(always)]
fn chains_generic<T: Float, const VECTORS: usize>() -> f64 {
    // Vectors of 16 or 8 elements fill 64 bytes.
    let lanes = 64 / size_of::<T>();
    let (a, b) = (black_box(T::ONE), black_box(T::SMALL));
    match lanes {
        16 => accumulate::<T, VECTORS, 16>(a, b),
        _ => accumulate::<T, VECTORS, 8>(a, b),
    }
    2.0 * (TRIPS * VECTORS * lanes) as f64
}

#[inline(always)]
fn accumulate<T: Float, const VECTORS: usize, const LANES: usize>(a: T, b: T) {
    let mut sums = [[b; LANES]; VECTORS];
    for _ in 0..TRIPS {
        for vector in &mut sums {
            for lane in vector.iter_mut() {
                *lane = lane.multiply_add(a, b);
            }
        }
    }
    black_box(sums);
}

/// Bytes per second on arrays that take `size` bytes of each thread in all.
fn bytes(threads: usize, size: usize) -> f64 {
    let patterns: [fn(&mut Arrays) -> f64; 3] = [Arrays::read, Arrays::copy, Arrays::add];
    let mut best: f64 = 0.0;
    for pattern in patterns {
        best = best.max(rate(threads, || {
            let mut arrays = Arrays::new(size);
            Box::new(move || {
                // Small arrays are passed over more often, so that the clock costs nothing.
                let passes = (1 << 20 >> size.ilog2().min(20)).max(1);
                (0..passes).map(|_| pattern(&mut arrays)).sum()
            })
        }));
    }
    best
}

/// 64 bytes of f32.
type Line = [f32; 16];

struct Arrays {
    a: Vec<Line>,
    b: Vec<Line>,
    c: Vec<Line>,
}

impl Arrays {
    fn new(size: usize) -> Self {
        let lines = (size / 3 / 64).max(4);
        Arrays { a: vec![[1.0; 16]; lines], b: vec![[2.0; 16]; lines], c: vec![[0.0; 16]; lines] }
    }

    /// Reads all three.
    fn read(&mut self) -> f64 {
        run(Pattern::Read, &self.a, &self.b, &mut self.c);
        (self.a.len() * 3 * 64) as f64
    }

    /// c = a.
    fn copy(&mut self) -> f64 {
        run(Pattern::Copy, &self.a, &self.b, &mut self.c);
        (self.a.len() * 2 * 64) as f64
    }

    /// c = a + b.
    fn add(&mut self) -> f64 {
        run(Pattern::Add, &self.a, &self.b, &mut self.c);
        (self.a.len() * 3 * 64) as f64
    }
}

#[derive(Clone, Copy)]
enum Pattern {
    Read,
    Copy,
    Add,
}

fn run(pattern: Pattern, a: &[Line], b: &[Line], c: &mut [Line]) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the machine has the features.
            return unsafe { run_avx512(pattern, a, b, c) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has the features.
            return unsafe { run_avx2(pattern, a, b, c) };
        }
    }
    run_generic(pattern, a, b, c)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2")]
unsafe fn run_avx512(pattern: Pattern, a: &[Line], b: &[Line], c: &mut [Line]) {
    run_generic(pattern, a, b, c)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn run_avx2(pattern: Pattern, a: &[Line], b: &[Line], c: &mut [Line]) {
    run_generic(pattern, a, b, c)
}

#[inline(always)]
fn run_generic(pattern: Pattern, a: &[Line], b: &[Line], c: &mut [Line]) {
    match pattern {
        Pattern::Copy => {
            for (c, a) in c.iter_mut().zip(a) {
                *c = *a;
            }
        }
        Pattern::Add => {
            for ((c, a), b) in c.iter_mut().zip(a).zip(b) {
                for i in 0..16 {
                    c[i] = a[i] + b[i];
                }
            }
        }
        Pattern::Read => {
            // Bitwise, since integer operations have no latency to hide.
            let mut sums = [[0u32; 16]; 4];
            for array in [a, b, &*c] {
                for lines in array.chunks_exact(4) {
                    for (sum, line) in sums.iter_mut().zip(lines) {
                        for i in 0..16 {
                            sum[i] ^= line[i].to_bits();
                        }
                    }
                }
            }
            black_box(sums);
        }
    }
    black_box(&c);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_rates_and_absent_levels_have_none() {
        let limits = measure(1, [32 << 10, 512 << 10, 0]);
        assert!(limits.f32_per_second > limits.f64_per_second * 0.5);
        assert!(limits.f64_per_second.is_finite() && limits.f64_per_second > 0.0);
        assert_eq!(limits.bytes_per_second[2], None);
        assert!(limits.bytes_per_second.iter().flatten().all(|b| b.is_finite() && *b > 0.0));
    }
}
