//! The emulator's own tests: four hand-written kernels give the right results, and every fault
//! that is planted in them is found by the part of the emulator that is there for it.

use std::path::Path;

use half::f16;

use crate::address;
use crate::build::{Build, clang, compiler, program};
use crate::launch::{Bound, HIGHEST, LOWEST, Launch, SHUFFLED, run};
use crate::source::{self, Named};

/// What a launch binds, and its groups.
type Memory = (Vec<Bound>, [u64; 3]);

/// A kernel of `emulator/kernels`, and how to launch and judge it.
pub struct Example {
    pub name: &'static str,
    pub text: &'static str,
    threads: u32,
    shapes: &'static [[u64; 3]],
    /// Buffers and groups of a shape.
    launch: fn([u64; 3]) -> Memory,
    /// The output as f64, what it should be, and how far off it may be.
    expected: fn([u64; 3], &[Bound]) -> Vec<f64>,
    tolerance: f64,
    output: usize,
}

fn values(count: u64, seed: u64) -> Vec<f32> {
    (0..count).map(|i| ((i * (seed + 5) + 17 * seed) % 127) as f32 / 64.0 - 1.0).collect()
}

fn floats(data: &[f32]) -> Vec<u8> {
    data.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn halves(data: &[f32]) -> Vec<u8> {
    data.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect()
}

fn from_floats(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
}

fn from_halves(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
}

fn bound(index: u32, bytes: Vec<u8>, align: u64) -> Bound {
    Bound { index, bytes, align }
}

fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| (*n as u32).to_le_bytes()).collect()
}

fn softmax_launch([rows, columns, _]: [u64; 3]) -> Memory {
    let x = floats(&values(rows * columns, 1));
    let y = vec![0xff; x.len()];
    (vec![bound(0, x, 4), bound(1, y, 4), bound(2, words(&[columns]), 4)], [rows, 1, 1])
}

fn softmax_expected([_, columns, _]: [u64; 3], buffers: &[Bound]) -> Vec<f64> {
    let x = from_floats(&buffers[0].bytes);
    x.chunks(columns as usize)
        .flat_map(|row| {
            let max = row.iter().copied().fold(f64::MIN, f64::max);
            let e: Vec<f64> = row.iter().map(|v| (v - max).exp()).collect();
            let sum: f64 = e.iter().sum();
            e.into_iter().map(move |v| v / sum)
        })
        .collect()
}

fn layernorm_launch([rows, columns, _]: [u64; 3]) -> Memory {
    // Not about 0: an element too many in a sum shows.
    let x: Vec<f32> = values(rows * columns, 2).iter().map(|x| x + 1.0).collect();
    let x = halves(&x);
    let y = vec![0xff; x.len()];
    (vec![bound(0, x, 16), bound(1, y, 2), bound(2, words(&[columns]), 4)], [rows, 1, 1])
}

fn layernorm_expected([_, columns, _]: [u64; 3], buffers: &[Bound]) -> Vec<f64> {
    let x = from_halves(&buffers[0].bytes);
    x.chunks(columns as usize)
        .flat_map(|row| {
            let n = row.len() as f64;
            let mean = row.iter().sum::<f64>() / n;
            let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
            row.iter().map(move |v| (v - mean) / (variance + 1e-5).sqrt()).collect::<Vec<_>>()
        })
        .collect()
}

fn gemm_launch([m, n, k]: [u64; 3]) -> Memory {
    let (a, b) = (halves(&values(m * k, 3)), halves(&values(k * n, 4)));
    let c = vec![0xff; (m * n * 4) as usize];
    let buffers =
        vec![bound(0, a, 2), bound(1, b, 2), bound(2, c, 4), bound(3, words(&[m, n, k]), 4)];
    (buffers, [n.div_ceil(32), m.div_ceil(32), 1])
}

fn gemm_expected([m, n, k]: [u64; 3], buffers: &[Bound]) -> Vec<f64> {
    let (a, b) = (from_halves(&buffers[0].bytes), from_halves(&buffers[1].bytes));
    let at =
        |r: u64, s: u64| (0..k).map(|d| a[(r * k + d) as usize] * b[(d * n + s) as usize]).sum();
    (0..m * n).map(|i| at(i / n, i % n)).collect()
}

const SOFTMAX: Example = Example {
    name: "softmax",
    text: include_str!("../../emulator/kernels/softmax.metal"),
    threads: 128,
    shapes: &[[2, 1, 0], [1, 511, 0], [2, 512, 0], [3, 1030, 0]],
    launch: softmax_launch,
    expected: softmax_expected,
    tolerance: 1e-6,
    output: 1,
};

pub const LAYERNORM: Example = Example {
    name: "layernorm",
    text: include_str!("../../emulator/kernels/layernorm.metal"),
    threads: 64,
    shapes: &[[2, 1, 0], [3, 253, 0], [2, 256, 0], [2, 509, 0], [2, 512, 0]],
    launch: layernorm_launch,
    expected: layernorm_expected,
    tolerance: 1e-3,
    output: 1,
};

const GEMM_SIMDGROUP: Example = Example {
    name: "gemm_simdgroup",
    text: include_str!("../../emulator/kernels/gemm_simdgroup.metal"),
    threads: 128,
    shapes: &[[32, 32, 32], [33, 47, 19], [1, 1, 1], [64, 31, 40]],
    launch: gemm_launch,
    expected: gemm_expected,
    tolerance: 1e-4,
    output: 2,
};

fn relu_expected(shape: [u64; 3], buffers: &[Bound]) -> Vec<f64> {
    gemm_expected(shape, buffers).into_iter().map(|v| v.max(0.0)).collect()
}

const GEMM_MPP: Example = Example {
    name: "gemm_mpp",
    text: include_str!("../../emulator/kernels/gemm_mpp.metal"),
    threads: 64,
    shapes: &[[32, 32, 32], [33, 47, 19], [1, 1, 1], [64, 31, 70]],
    launch: gemm_launch,
    expected: relu_expected,
    tolerance: 1e-4,
    output: 2,
};

impl Example {
    /// Runs a kernel of a program as this one; the first complaint of anything.
    pub fn check(&self, id: &str, program: &Path, build: Build) -> Result<(), String> {
        for &shape in self.shapes {
            let (buffers, groups) = (self.launch)(shape);
            let expected = (self.expected)(shape, &buffers);
            let launch = Launch {
                kernel: id.to_string(),
                groups,
                threads: self.threads,
                buffers,
                only: vec![],
                limit: 20,
            };
            let orders: &[_] = match build {
                Build::Plain => &[LOWEST, HIGHEST, SHUFFLED],
                Build::Checked | Build::Races => &[LOWEST],
            };
            let results = run(program, build, &launch, orders).map_err(|e| e.to_string())?;
            for (order, buffers) in orders.iter().zip(results) {
                let output = &buffers[self.output];
                let found = match launch.buffers[self.output].align {
                    2 => from_halves(output),
                    _ => from_floats(output),
                };
                for (i, (x, y)) in found.iter().zip(&expected).enumerate() {
                    let near = (x - y).abs() <= self.tolerance * (1.0 + y.abs());
                    if !near {
                        return Err(format!(
                            "{shape:?}, {}: element {i} is {x}, not {y}",
                            order.name
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Builds and runs a text as an example's kernel.
fn judge(example: &Example, text: &str, builds: &[Build]) -> Result<(), String> {
    let Some(tool) = compiler() else { return Ok(()) };
    let unit = source::unit(&[Named { id: example.name.to_string(), text }])?;
    for &build in builds {
        example.check(example.name, &program(tool, &unit, build)?, build)?;
    }
    Ok(())
}

#[test]
fn hand_written_kernels_are_right() {
    for example in [SOFTMAX, LAYERNORM, GEMM_SIMDGROUP, GEMM_MPP] {
        if let Err(e) = judge(&example, example.text, &Build::ALL) {
            panic!("{}: {e}", example.name);
        }
        if let Some(clang) = clang()
            && let Err(e) = address::check(clang, example.text)
        {
            panic!("{}: {e}", example.name);
        }
    }
}

/// A fault, and the sentence that finds it.
struct Fault {
    example: Example,
    from: &'static str,
    to: &'static str,
    build: Build,
    says: &'static str,
}

fn planted() -> Vec<Fault> {
    let fault = |example, from, to, build, says| Fault { example, from, to, build, says };
    let barrier = "threadgroup_barrier(mem_flags::mem_threadgroup);";
    use Build::*;
    vec![
        // Barriers.
        fault(SOFTMAX, barrier, "", Races, "data race"),
        fault(
            SOFTMAX,
            "    sum = simd_sum(sum);\n    if (lane == 0u) {\n        partial[simdgroup] = sum;\n    }\n    threadgroup_barrier(mem_flags::mem_threadgroup);",
            "    sum = simd_sum(sum);\n    if (lane == 0u) {\n        partial[simdgroup] = sum;\n    }",
            Plain,
            "element",
        ),
        fault(SOFTMAX, barrier, "threadgroup_barrier(mem_flags::mem_none);", Races, "data race"),
        fault(
            SOFTMAX,
            barrier,
            "simdgroup_barrier(mem_flags::mem_threadgroup);",
            Races,
            "data race",
        ),
        fault(
            SOFTMAX,
            barrier,
            "if (simdgroup < 3u) { threadgroup_barrier(mem_flags::mem_threadgroup); }",
            Plain,
            "threadgroup_barrier",
        ),
        fault(
            SOFTMAX,
            "    const ulong row",
            "    if (thread_number >= columns) { return; }\n    const ulong row",
            Plain,
            "returned",
        ),
        fault(
            SOFTMAX,
            "largest = simd_max(largest);",
            "if (lane < 16u) { largest = simd_max(largest); }",
            Plain,
            "simd_max",
        ),
        // Collectives: the first of all simdgroups reads what the last has overwritten.
        fault(
            SOFTMAX,
            "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    float sum",
            "    float sum",
            Races,
            "data race",
        ),
        fault(LAYERNORM, "mask > 0; mask /= 2", "mask > 1; mask /= 2", Plain, "element"),
        fault(LAYERNORM, "mask = 16", "mask = 32", Plain, "lane 32"),
        // Memory.
        fault(
            SOFTMAX,
            "if (at + i < columns) {\n                y[",
            "if (at + i <= columns) {\n                y[",
            Checked,
            "heap-buffer-overflow",
        ),
        fault(
            SOFTMAX,
            "partial[simdgroup] = sum",
            "partial[simdgroup + 1u] = sum",
            Checked,
            "out of bounds",
        ),
        fault(LAYERNORM, "columns % 4u == 0u && ", "", Checked, "misaligned"),
        fault(LAYERNORM, "float own[8]", "float own[7]", Checked, "out of bounds"),
        fault(
            GEMM_SIMDGROUP,
            "threadgroup half left[32 * 16]",
            "threadgroup half left[31 * 16]",
            Checked,
            "use-after-poison",
        ),
        fault(
            GEMM_SIMDGROUP,
            "simdgroup_store(sums[i][j], result +",
            "simdgroup_store(sums[i][j], result + 32 +",
            Checked,
            "use-after-poison",
        ),
        fault(
            LAYERNORM,
            "threadgroup float shared_mean[1];",
            "threadgroup float shared_mean[8191];",
            Plain,
            "threadgroup memory",
        ),
        // Values.
        fault(
            GEMM_SIMDGROUP,
            "            sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);",
            "",
            Plain,
            "element",
        ),
        fault(
            GEMM_SIMDGROUP,
            "make_filled_simdgroup_matrix<float, 8, 8>(0.0f)",
            "simdgroup_float8x8(1.0f)",
            Plain,
            "element",
        ),
        fault(
            GEMM_SIMDGROUP,
            "r < sizes.m && d < sizes.k ? a[ulong(r) * ulong(sizes.k) + d] : half(0.0f)",
            "a[ulong(r) * ulong(sizes.k) + d]",
            Checked,
            "heap-buffer-overflow",
        ),
        fault(
            GEMM_SIMDGROUP,
            "left + (row + i * 8u)",
            "left + (row + i * 8u + thread_number)",
            Plain,
            "differ",
        ),
        fault(
            GEMM_SIMDGROUP,
            "mem_threadgroup);\n    }\n",
            "mem_none);\n    }\n",
            Races,
            "data race",
        ),
        // Tensors.
        fault(GEMM_MPP, "multiply_accumulate", "multiply", Plain, "element"),
        fault(GEMM_MPP, "            sums[i] = 0.0f;", "", Plain, "element"),
        fault(
            GEMM_MPP,
            "execution_simdgroups<2>",
            "execution_simdgroups<4>",
            Plain,
            "4 simdgroups in a group of 2",
        ),
        fault(GEMM_MPP, "execution_simdgroups<2>", "execution_simdgroup", Races, "data race"),
        fault(GEMM_MPP, "static_cast<int>(dynamic_extent)", "32", Plain, "static K of 32"),
        fault(GEMM_MPP, "static_cast<int>(dynamic_extent)", "8", Plain, "multiple of 16"),
        fault(
            GEMM_MPP,
            "matmul2d_descriptor(32, 32",
            "matmul2d_descriptor(8, 8",
            Plain,
            "one of them of 16",
        ),
        fault(
            GEMM_MPP,
            "dextents<int, 2>(depth, rows)",
            "dextents<int, 2>(rows, depth)",
            Plain,
            "overlap",
        ),
        fault(
            GEMM_MPP,
            "int depth = min(32, int(sizes.k) - k)",
            "int depth = 32",
            Plain,
            "overlap",
        ),
        fault(GEMM_MPP, "device half* a", "device const half* a", Plain, "no matching function"),
        fault(
            GEMM_MPP,
            "using Tile = tensor<device half",
            "using Tile = tensor<device const half",
            Plain,
            "can't be const",
        ),
        fault(
            GEMM_MPP,
            "array<int, 2>{1, int(sizes.k)}",
            "array<int, 2>{int(sizes.k), 1}",
            Plain,
            "stride",
        ),
        fault(GEMM_MPP, "sums.is_valid_element(i)", "sums.get_mask(i)", Plain, "get_mask"),
        fault(
            GEMM_MPP,
            "i < sums.get_capacity(); i++) {\n        if (sums.is_valid_element(i)) {\n            sums[i] = max",
            "i <= sums.get_capacity(); i++) {\n        if (true) {\n            sums[i] = max",
            Plain,
            "cooperative tensor",
        ),
        // Language.
        fault(SOFTMAX, "float sum = 0.0f", "double sum = 0.0", Plain, "poisoned"),
        fault(LAYERNORM, "fma(own[i]", "erf(own[i]", Plain, "erf"),
        fault(LAYERNORM, "float partial[2]", "bfloat partial[2]", Plain, "bfloat"),
        fault(
            SOFTMAX,
            "constant uint& columns [[buffer(2)]]",
            "constant uint& columns [[buffer(3)]]",
            Plain,
            "nothing is bound",
        ),
        fault(
            SOFTMAX,
            "max_total_threads_per_threadgroup(128)",
            "max_total_threads_per_threadgroup(64)",
            Plain,
            "launched with 128",
        ),
    ]
}

/// What only the check of address spaces finds.
#[test]
fn wrong_address_spaces_are_found() {
    let Some(clang) = clang() else { return };
    let (layernorm, gemm, mpp) = (LAYERNORM.text, GEMM_SIMDGROUP.text, GEMM_MPP.text);
    for (text, from, to, says) in [
        (
            layernorm,
            "reinterpret_cast<device const half4*>",
            "reinterpret_cast<const half4*>",
            "cast",
        ),
        (layernorm, "device const half* row = x", "const half* row = x", "cannot initialize"),
        (layernorm, "device const half* x [[", "const half* x [[", "names no address space"),
        (layernorm, "constant uint& columns", "const uint& columns", "names no address space"),
        (gemm, "simdgroup_half8x8 l[2]", "simdgroup_float8x8 l[2]", "no matching function"),
        (gemm, "device const half* a", "threadgroup const half* a", "no buffer's"),
        (mpp, "using Tile = tensor<device half", "using Tile = tensor<half", "address space"),
        (
            mpp,
            "using Tile = tensor<device half",
            "using Tile = tensor<threadgroup half",
            "no matching",
        ),
        (mpp, "device half* a", "device const half* a", "no matching"),
        (mpp, "sums.is_valid_element(i)", "sums.get_mask(i)", "get_mask"),
    ] {
        assert!(text.contains(from), "no `{from}`");
        match address::check(clang, &text.replacen(from, to, 1)) {
            Err(e) if e.contains(says) => {}
            other => panic!("`{to}` should say `{says}`: {other:?}"),
        }
    }
}

#[test]
fn planted_faults_are_found() {
    if compiler().is_none() {
        return;
    }
    let mut missed = Vec::new();
    for Fault { example, from, to, build, says } in planted() {
        assert!(example.text.contains(from), "{}: no `{from}`", example.name);
        let text = example.text.replacen(from, to, 1);
        match judge(&example, &text, &[build]) {
            Err(e) if e.contains(says) => {}
            other => missed.push(format!(
                "{}: `{from}` as `{to}` in the {build:?} build should say `{says}`: {}",
                example.name,
                other.err().unwrap_or_else(|| "nothing".to_string())
            )),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
