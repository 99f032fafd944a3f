//! A blocked matrix product in binary64, the oracle's only hot loop.
//!
//! Panels of A and B are packed so that the register tile reads them in order; the tile is written
//! so that a compiler keeps it in vector registers. Where the processor has AVX2 and FMA the same
//! code is compiled for them, so that last bits may differ between machines; each product has an
//! error of at most about 256 unit roundoffs of binary64 per block of K, far below what it judges.

/// Rows of the register tile.
const MR: usize = 6;
/// Columns of the register tile.
const NR: usize = 8;
/// Depth of a packed panel: a column of B panels and a row of A panels stay in cache.
const KC: usize = 256;
/// Rows of A packed at once.
const MC: usize = 96;
/// Columns of B packed at once.
const NC: usize = 1024;
/// Products from which a second thread is worth its start.
const PARALLEL: usize = 1 << 22;

/// `c += a·b` for row-major `a` (m×k), `b` (k×n) and `c` (m×n), on up to `threads` threads.
///
/// Slices shorter than their shapes are a bug of the caller: the product then covers only the
/// elements that exist, and in debug builds it panics.
pub fn accumulate(
    (m, n, k): (usize, usize, usize),
    a: &[f64],
    b: &[f64],
    c: &mut [f64],
    threads: usize,
) {
    debug_assert!(a.len() >= m * k && b.len() >= k * n && c.len() >= m * n);
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    let work = m.saturating_mul(n).saturating_mul(k);
    let parts = if work >= PARALLEL { threads.clamp(1, m) } else { 1 };
    if parts == 1 {
        return serial(n, k, a, b, &mut c[..m * n]);
    }
    // Rows are independent, so the split changes no result.
    let rows = m.div_ceil(parts).next_multiple_of(MR);
    std::thread::scope(|scope| {
        for (a, c) in a.chunks(rows * k).zip(c[..m * n].chunks_mut(rows * n)) {
            scope.spawn(move || serial(n, k, a, b, c));
        }
    });
}

/// One thread's share: all rows of `c`.
fn serial(n: usize, k: usize, a: &[f64], b: &[f64], c: &mut [f64]) {
    let m = c.len() / n;
    let mut packed_a = vec![0.0; MC.min(m).next_multiple_of(MR) * KC.min(k)];
    let mut packed_b = vec![0.0; NC.min(n).next_multiple_of(NR) * KC.min(k)];
    for j0 in (0..n).step_by(NC) {
        let nc = NC.min(n - j0);
        for p0 in (0..k).step_by(KC) {
            let kc = KC.min(k - p0);
            pack_b(&b[p0 * n + j0..], n, (kc, nc), &mut packed_b);
            for i0 in (0..m).step_by(MC) {
                let mc = MC.min(m - i0);
                pack_a(&a[i0 * k + p0..], k, (mc, kc), &mut packed_a);
                let block = Block { mc, nc, kc, packed_a: &packed_a, packed_b: &packed_b };
                multiply(&block, &mut c[i0 * n + j0..], n);
            }
        }
    }
}

/// Panels of MR rows, each column by column; missing rows are 0.
fn pack_a(a: &[f64], stride: usize, (mc, kc): (usize, usize), out: &mut [f64]) {
    for (i, panel) in (0..mc).step_by(MR).zip(out.chunks_mut(MR * kc)) {
        for r in 0..MR {
            if i + r < mc {
                let row = &a[(i + r) * stride..][..kc];
                for (p, value) in row.iter().enumerate() {
                    panel[p * MR + r] = *value;
                }
            } else {
                panel.iter_mut().skip(r).step_by(MR).for_each(|x| *x = 0.0);
            }
        }
    }
}

/// Panels of NR columns, each row by row; missing columns are 0.
fn pack_b(b: &[f64], stride: usize, (kc, nc): (usize, usize), out: &mut [f64]) {
    for (j, panel) in (0..nc).step_by(NR).zip(out.chunks_mut(NR * kc)) {
        let width = NR.min(nc - j);
        for (p, to) in panel.chunks_mut(NR).enumerate() {
            to[..width].copy_from_slice(&b[p * stride + j..][..width]);
            to[width..].fill(0.0);
        }
    }
}

struct Block<'a> {
    mc: usize,
    nc: usize,
    kc: usize,
    packed_a: &'a [f64],
    packed_b: &'a [f64],
}

/// The register tile's rows; kept in memory between calls, so that a compiler sees whole vectors
/// stored and holds vectors in registers inside [`tile_with`].
type Tile = [[f64; NR]; MR];

fn multiply(block: &Block<'_>, c: &mut [f64], stride: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        multiply_with(block, c, stride, |a, b, out| {
            // SAFETY: the function only needs AVX2 and FMA, and the processor has both.
            unsafe { tile_avx2(a, b, out) }
        });
        return;
    }
    multiply_with(block, c, stride, tile_portable);
}

/// Adds the products of all panels, a tile at a time.
fn multiply_with(
    block: &Block<'_>,
    c: &mut [f64],
    stride: usize,
    tile: impl Fn(&[f64], &[f64], &mut Tile),
) {
    let kc = block.kc;
    let mut out: Tile = [[0.0; NR]; MR];
    for (j, b) in (0..block.nc).step_by(NR).zip(block.packed_b.chunks(NR * kc)) {
        for (i, a) in (0..block.mc).step_by(MR).zip(block.packed_a.chunks(MR * kc)) {
            tile(a, b, &mut out);
            let width = NR.min(block.nc - j);
            for (r, row) in out.iter().enumerate().take(MR.min(block.mc - i)) {
                let to = &mut c[(i + r) * stride + j..][..width];
                to.iter_mut().zip(row).for_each(|(to, x)| *to += x);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn tile_avx2(a: &[f64], b: &[f64], out: &mut Tile) {
    tile_with(a, b, out, |a, b, c| a.mul_add(b, c));
}

#[inline(never)]
fn tile_portable(a: &[f64], b: &[f64], out: &mut Tile) {
    tile_with(a, b, out, |a, b, c| c + a * b);
}

/// The product of one panel of A and one of B, in the order of k.
#[inline(always)]
fn tile_with(a: &[f64], b: &[f64], out: &mut Tile, fma: impl Fn(f64, f64, f64) -> f64) {
    let mut acc: Tile = [[0.0; NR]; MR];
    let (a, _) = a.as_chunks::<MR>();
    let (b, _) = b.as_chunks::<NR>();
    for (a, b) in a.iter().zip(b) {
        for r in 0..MR {
            for s in 0..NR {
                acc[r][s] = fma(a[r], b[s], acc[r][s]);
            }
        }
    }
    *out = acc;
}

/// The textbook product, `c += a·b`, against which the blocked one is tested.
pub fn accumulate_plain((m, n, k): (usize, usize, usize), a: &[f64], b: &[f64], c: &mut [f64]) {
    for i in 0..m {
        for p in 0..k {
            for j in 0..n {
                c[i * n + j] += a[i * k + p] * b[p * n + j];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(len: usize, seed: u64) -> Vec<f64> {
        let mut state = seed;
        (0..len)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
            })
            .collect()
    }

    #[test]
    fn ragged_shapes_match_the_textbook_product() {
        let sizes = [1, 2, 5, 6, 7, 8, 9, 13];
        let mut shapes: Vec<(usize, usize, usize)> = Vec::new();
        for m in sizes {
            shapes.extend(sizes.iter().map(|n| (m, *n, 1 + (m * n) % 11)));
        }
        shapes.extend([
            (97, 9, 257),
            (7, 1030, 3),
            (101, 17, 513),
            (1, 1, 1000),
            (0, 3, 2),
            (3, 2, 0),
        ]);
        for (m, n, k) in shapes {
            let (a, b, c) = (data(m * k, 1), data(k * n, 2), data(m * n, 3));
            let (mut fast, mut plain) = (c.clone(), c);
            accumulate((m, n, k), &a, &b, &mut fast, 2);
            accumulate_plain((m, n, k), &a, &b, &mut plain);
            for (x, y) in fast.iter().zip(&plain) {
                let bound = 1e-15 * (k as f64 + 2.0);
                assert!((x - y).abs() <= bound, "{m}x{n}x{k}: {x} {y}");
            }
        }
    }

    #[test]
    fn threads_change_nothing() {
        let (m, n, k) = (173, 160, 170);
        let (a, b) = (data(m * k, 1), data(k * n, 2));
        let mut one = vec![0.0; m * n];
        let mut three = one.clone();
        accumulate((m, n, k), &a, &b, &mut one, 1);
        accumulate((m, n, k), &a, &b, &mut three, 3);
        assert_eq!(one, three);
    }

    #[test]
    fn the_portable_code_agrees() {
        let (m, n, k) = (13, 21, 300);
        let (a, b) = (data(m * k, 1), data(k * n, 2));
        let mut packed_a = vec![0.0; MC * KC];
        let mut packed_b = vec![0.0; NC * KC];
        let mut c = vec![0.0; m * n];
        for p0 in (0..k).step_by(KC) {
            let kc = KC.min(k - p0);
            pack_a(&a[p0..], k, (m, kc), &mut packed_a);
            pack_b(&b[p0 * n..], n, (kc, n), &mut packed_b);
            let block = Block { mc: m, nc: n, kc, packed_a: &packed_a, packed_b: &packed_b };
            multiply_with(&block, &mut c, n, tile_portable);
        }
        let mut plain = vec![0.0; m * n];
        accumulate_plain((m, n, k), &a, &b, &mut plain);
        assert!(c.iter().zip(&plain).all(|(x, y)| (x - y).abs() < 1e-12));
    }

    #[test]
    fn nan_and_infinity_pass_through() {
        let mut c = vec![0.0; 2];
        accumulate((1, 2, 2), &[f64::INFINITY, 0.0], &[1.0, 0.0, 5.0, 2.0], &mut c, 1);
        assert_eq!(c[0], f64::INFINITY);
        assert!(c[1].is_nan());
    }
}
