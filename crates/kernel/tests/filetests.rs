//! Kernels in `tests/filetests/kernel/*.kernel` of the workspace, with what is expected of them
//! beside each (`.expected`): the canonical text, the validator's word, and a run in every order.
//!
//! Lines that start with `//!` direct the run: `arg index N`, `arg number X`, `arg input DTYPE N`
//! (seeded values), `arg output DTYPE N` (poisoned), `arg map DTYPE ROWS COLS`, `max_steps N`.
//! TILEWRIGHT_BLESS=1 rewrites the expected files.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tilewright_ir::DType;
use tilewright_kernel::sim::{FaultKind, Order, SimArg, SimError, SimOptions, run};
use tilewright_kernel::text::parse;
use tilewright_kernel::validate::validate;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/kernel")
}

/// Values in [−1, 1) with a full mantissa, rounded to the type.
fn seeded(dtype: DType, n: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            dtype.round((state >> 11) as f64 * f64::powi(2.0, -52) - 1.0)
        })
        .collect()
}

struct Directions {
    args: Vec<SimArg>,
    options: SimOptions,
}

fn directions(source: &str) -> Directions {
    let mut found = Directions { args: Vec::new(), options: SimOptions::default() };
    for line in source.lines().filter_map(|l| l.strip_prefix("//!")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let dtype = |at: usize| words[at].parse::<DType>().expect("a dtype");
        let number = |at: usize| words[at].parse::<usize>().expect("a number");
        let seed = found.args.len() as u64 + 1;
        match words[..2.min(words.len())] {
            ["arg", "index"] => found.args.push(SimArg::Index(number(2) as i64)),
            ["arg", "number"] => {
                found.args.push(SimArg::Number(words[2].parse().expect("a number")));
            }
            ["arg", "input"] => {
                let data = seeded(dtype(2), number(3), seed);
                found.args.push(SimArg::buffer(dtype(2), data));
            }
            ["arg", "output"] => found.args.push(SimArg::output(dtype(2), number(3))),
            ["arg", "map"] => {
                let (rows, cols) = (number(3), number(4));
                found.args.push(SimArg::TensorMap {
                    dtype: dtype(2),
                    data: seeded(dtype(2), rows * cols, seed),
                    dims: vec![rows as u64, cols as u64],
                    strides: vec![cols as u64, 1],
                });
            }
            ["max_steps", _] => found.options.max_steps = number(1) as u64,
            _ => panic!("unknown direction `{line}`"),
        }
    }
    found
}

/// FNV-1a over the bits, so that a change of any element shows.
fn digest(data: &[f64]) -> u64 {
    let bytes = data.iter().flat_map(|x| x.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What is expected of a kernel, and the fault that its runs end in.
fn observe(source: &str) -> (String, Option<FaultKind>) {
    let mut out = String::new();
    let kernel = match parse(source) {
        Ok(kernel) => kernel,
        Err(error) => return (format!("parse: {error}\n"), None),
    };
    let text = kernel.to_string();
    assert_eq!(parse(&text).as_ref(), Ok(&kernel), "the text doesn't round-trip");
    writeln!(out, "{text}").unwrap();
    if let Err(errors) = validate(&kernel) {
        for error in errors {
            writeln!(out, "validate: {error}").unwrap();
        }
        return (out, None);
    }
    let Directions { args, options } = directions(source);
    let mut kinds = BTreeSet::new();
    let mut results = BTreeSet::new();
    for order in Order::ALL {
        let mut args = args.clone();
        match run(&kernel, &mut args, &SimOptions { order, ..options }) {
            Ok(report) => {
                kinds.insert(None);
                let digests: Vec<u64> = args.iter().map(|a| digest(a.data())).collect();
                if results.insert((digests.clone(), format!("{:?}", report.unwritten))) {
                    writeln!(out, "run: {report:?}").unwrap();
                    for (i, digest) in digests.iter().enumerate() {
                        if !args[i].data().is_empty() {
                            writeln!(out, "argument {i}: {digest:016x}").unwrap();
                        }
                    }
                }
            }
            Err(SimError::Fault(fault)) => {
                writeln!(out, "{order:?}: {fault}").unwrap();
                kinds.insert(Some(fault.kind));
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(results.len() <= 1, "orders give different results:\n{out}");
    assert_eq!(kinds.len(), 1, "orders end differently:\n{out}");
    (out, kinds.into_iter().next().flatten())
}

#[test]
fn kernels_are_as_expected() {
    let bless = std::env::var_os("TILEWRIGHT_BLESS").is_some_and(|v| v == "1");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder())
        .expect("the folder of kernels")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "kernel"))
        .collect();
    files.sort();
    let mut faults = BTreeSet::new();
    let mut wrong = String::new();
    for path in files {
        let source = std::fs::read_to_string(&path).expect("a kernel");
        let (found, fault) = observe(&source);
        faults.extend(fault);
        // A file named after a fault ends in it.
        let name =
            path.file_stem().map(|s| s.to_string_lossy().replace('_', "-")).unwrap_or_default();
        if let Some(named) = name.strip_prefix("fault-")
            && fault.map(FaultKind::name) != Some(named)
        {
            wrong += &format!("{name} ends in {fault:?}:\n{found}\n");
        }
        let expected = path.with_extension("expected");
        if bless {
            std::fs::write(&expected, &found).expect("the expected text is written");
        }
        let kept = std::fs::read_to_string(&expected).unwrap_or_default();
        if kept != found {
            wrong += &format!("{} has changed; found:\n{found}\n", expected.display());
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let all: BTreeSet<FaultKind> = FaultKind::ALL.iter().copied().collect();
    let missing: Vec<_> = all.difference(&faults).collect();
    assert!(missing.is_empty(), "no kernel ends in {missing:?}");
}
