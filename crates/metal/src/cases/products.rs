//! Products: whole and ragged blocks in each dimension, operands in place and staged, accumulators
//! kept and not, epilogues, factors, batches, and sizes and strides that a launch states.

use std::collections::HashSet;

use tilewright_ir::DType;
use tilewright_ir::ops::{EpilogueStep, Trans};

use super::{DTYPES, FRAGMENTS, TENSORS, Wish};

pub(super) fn product(
    op: &'static str,
    dtype: DType,
    shape: &[u64],
    policy: &'static str,
    block: [u64; 3],
    threads: u32,
) -> Wish {
    let mut wish = Wish::new(op, dtype, shape, policy);
    wish.space.blocks = Some(vec![block]);
    wish.space.threads = Some(vec![threads]);
    let [m, n, k] = block;
    let way = if policy == FRAGMENTS { "fragments" } else { "tensors" };
    wish.tag = format!("{way}-b{m}x{n}x{k}-t{threads}");
    wish
}

/// Shape, block and threads of a product.
type ProductShape = ([u64; 3], [u64; 3], u32);

const PRODUCT_SHAPES: [ProductShape; 12] = [
    ([33, 65, 61], [32, 32, 32], 64),
    ([64, 64, 64], [32, 32, 32], 64),
    ([1, 1, 1], [32, 32, 32], 128),
    ([64, 96, 32], [32, 32, 32], 64),
    ([31, 64, 32], [32, 64, 32], 64),
    ([32, 63, 96], [32, 64, 32], 128),
    ([64, 64, 33], [64, 64, 32], 128),
    ([65, 64, 31], [64, 64, 32], 256),
    ([128, 64, 128], [128, 32, 128], 256),
    ([64, 128, 128], [64, 64, 128], 128),
    ([33, 65, 64], [32, 32, 32], 64),
    ([64, 33, 61], [32, 32, 32], 64),
];

pub(super) fn products(wishes: &mut Vec<Wish>) {
    for policy in [FRAGMENTS, TENSORS] {
        proofs(wishes, policy);
        for (d, dtype) in DTYPES.into_iter().enumerate() {
            for (s, (shape, block, threads)) in PRODUCT_SHAPES.into_iter().enumerate() {
                // Blocks of K = 128 in f32 pass the limit of threadgroup memory unless they are
                // read in place.
                let mut wish = product("gemm", dtype, &shape, policy, block, threads);
                wish.brief = s == d || s == d + 1;
                wishes.push(wish);
            }
            // Without what proofs permit: staged operands, accumulators through memory.
            for (tag, retain, direct, forward) in [
                ("staged", true, true, false),
                ("indirect", true, false, true),
                ("unretained", false, false, true),
                ("plain", false, false, false),
            ] {
                let mut wish = product("gemm", dtype, &[64, 64, 64], policy, [32, 32, 32], 64);
                wish.space.retain_accumulators = retain;
                wish.space.direct_output = direct;
                wish.space.forward_operands = forward;
                wish.tag += "-";
                wish.tag += tag;
                wish.brief = dtype == DType::F16 && !retain;
                wishes.push(wish);
            }
            let mut double = product("gemm", dtype, &[40, 64, 96], policy, [32, 32, 32], 64);
            double.space.stages = Some(vec![2]);
            double.tag += "-s2";
            wishes.push(double);
            for trans in [Trans::Nt, Trans::Tn, Trans::Tt] {
                for (s, shape) in [[64, 64, 64], [33, 40, 50]].into_iter().enumerate() {
                    let mut wish = product("gemm", dtype, &shape, policy, [32, 32, 32], 64);
                    wish.request.trans = trans;
                    wish.tag += "-";
                    wish.tag += trans.name();
                    wish.brief = trans == Trans::Nt && s == d % 2;
                    wishes.push(wish);
                }
            }
        }
        use EpilogueStep::{Bias, Gelu, Relu, Residual, Scale, Silu};
        let epilogues: [(&str, &[EpilogueStep]); 4] = [
            ("bias-relu", &[Bias, Relu]),
            ("scale-residual", &[Scale, Residual]),
            ("bias-gelu", &[Bias, Gelu]),
            ("silu", &[Silu]),
        ];
        for (e, (tag, steps)) in epilogues.into_iter().enumerate() {
            for (s, shape) in [[64, 64, 64], [33, 65, 40]].into_iter().enumerate() {
                let dtype = DTYPES[(e + s) % 3];
                let mut wish = product("gemm", dtype, &shape, policy, [32, 32, 32], 64);
                wish.request.epilogue = steps.to_vec();
                wish.tag += "-";
                wish.tag += tag;
                wish.brief = e == 0;
                wishes.push(wish);
            }
        }
        for (tag, alpha, beta) in [("alpha", 0.5, 0.0), ("beta", 1.0, 1.0), ("both", 2.0, 0.5)] {
            for shape in [[64, 64, 64], [33, 65, 40]] {
                let mut wish = product("gemm", DType::F32, &shape, policy, [32, 32, 32], 64);
                (wish.request.alpha, wish.request.beta) = (alpha, beta);
                wish.tag += "-";
                wish.tag += tag;
                wish.brief = tag == "both";
                wishes.push(wish);
            }
        }
        for shape in [[2, 32, 32, 32], [3, 33, 40, 20]] {
            wishes.push(product("bgemm", DType::F32, &shape, policy, [32, 32, 32], 64));
        }
        for (tag, dynamic, strided, pad) in
            [("dynamic", true, false, 0), ("strided", false, true, 8), ("apart", true, true, 3)]
        {
            for shape in [[64, 64, 64], [33, 65, 40]] {
                let mut wish = product("gemm", DType::F16, &shape, policy, [32, 32, 32], 64);
                wish.request.dynamic = dynamic;
                wish.request.strided = strided;
                wish.request.output = Some(DType::F32);
                wish.pad = pad;
                wish.tag += "-";
                wish.tag += tag;
                wishes.push(wish);
            }
        }
    }
}

/// A case of every combination of what proofs permit and what is done with it: operands in place,
/// accumulators kept, stored directly, overwritten; one pipeline stage and two; one step of K and
/// several. In f32, and in the 16-bit types in turn.
fn proofs(wishes: &mut Vec<Wish>, policy: &'static str) {
    const BLOCK: u64 = 32;
    let mut seen = HashSet::new();
    for bits in 0..8u64 {
        for k in [BLOCK, 3 * BLOCK] {
            let ragged = [bits & 1, bits >> 1 & 1, bits >> 2];
            let shape = [2 * BLOCK - ragged[0], 2 * BLOCK - ragged[1], k - ragged[2]];
            for choice in 0..16u32 {
                let on = |bit: u32| choice >> bit & 1 == 0;
                let (retain, output, forward) = (on(0), on(1), on(2));
                // What the planner makes of it (reference 1.4, rules 3 to 6).
                let whole = ragged.map(|r| r == 0);
                let direct = output && whole[0] && whole[1];
                let class = (
                    forward && whole[0] && whole[2],
                    forward && whole[1] && whole[2],
                    retain || direct,
                    direct,
                    k == BLOCK,
                    choice >> 3,
                );
                if !seen.insert(class) {
                    continue;
                }
                let dtypes = [DType::F32, [DType::F16, DType::BF16][seen.len() % 2]];
                for dtype in dtypes {
                    let block = [BLOCK; 3];
                    let mut wish = product("gemm", dtype, &shape, policy, block, 64);
                    wish.space.retain_accumulators = retain;
                    wish.space.direct_output = output;
                    wish.space.forward_operands = forward;
                    wish.space.stages = Some(vec![1 + (choice >> 3)]);
                    wish.tag += &format!(
                        "-r{}d{}f{}s{}",
                        u8::from(retain),
                        u8::from(output),
                        u8::from(forward),
                        1 + (choice >> 3)
                    );
                    wishes.push(wish);
                }
            }
        }
    }
}
