//! The inputs of the `whole-launch` model on every kind of target: what changes between two
//! candidates shows in them, and nothing in them is negative or infinite.

mod common;

use std::sync::Mutex;

use common::*;
use tilewright_plan::mapping::{CpuIsa, Mapping};
use tilewright_plan::policy::whole_launch::{
    Confidence, Family, FamilyFit, Inputs, Model, WeightedTerm, WholeLaunch,
};
use tilewright_plan::policy::{CandidateView, Policy, PolicyError, Score, Unit};
use tilewright_plan::target::CpuFacts;
use tilewright_plan::{Ranking, SpaceOptions, Target};

/// A policy that notes the inputs of every candidate that it is asked for.
#[derive(Default)]
struct Probe(Mutex<Vec<(Mapping, Family, Inputs)>>);

impl Policy for Probe {
    fn name(&self) -> &str {
        "probe"
    }

    fn unit(&self) -> Unit {
        Unit::Microseconds
    }

    fn parameters(&self) -> String {
        String::new()
    }

    fn score(&self, view: &CandidateView<'_>) -> Result<Score, PolicyError> {
        let (family, inputs) = Family::of(view)?;
        self.0.lock().unwrap().push((*view.mapping, family, inputs));
        Ok(Score { program: 1.0, waves: 1.0, kernel: 1.0 })
    }
}

fn inputs(
    target: &Target,
    op: &str,
    shape: &[u64],
    threads: Option<u32>,
) -> Vec<(Mapping, Family, Inputs)> {
    inputs_of(target, op, shape, threads, None)
}

/// With vectors of some numbers of lanes.
fn inputs_of(
    target: &Target,
    op: &str,
    shape: &[u64],
    cpu_threads: Option<u32>,
    threads: Option<Vec<u32>>,
) -> Vec<(Mapping, Family, Inputs)> {
    let probe = Probe::default();
    let options = SpaceOptions { cpu_threads, threads, ..SpaceOptions::default() };
    ranked_on(target, op, shape, &probe, options);
    let seen = probe.0.into_inner().unwrap();
    for (mapping, family, inputs) in &seen {
        let used = &inputs[..family.inputs().len()];
        assert!(used.iter().all(|v| v.is_finite() && *v >= 0.0), "{mapping:?}: {inputs:?}");
        for term in 0..family.terms().len() {
            let capacity = family.terms()[term].saturates.then_some(512);
            let value = family.value(term, capacity, inputs);
            assert!(value.is_finite() && value >= 0.0, "{mapping:?}: {value}");
        }
    }
    seen
}

fn cpu(cores: u32) -> Target {
    Target::cpu(CpuFacts::modest(CpuIsa::Avx512, cores))
}

fn input(family: Family, inputs: &Inputs, name: &str) -> f64 {
    inputs[family.inputs().iter().position(|n| *n == name).unwrap()]
}

#[test]
fn gpu_rows_count_bytes_once_and_again() {
    let target = Target::apple_m1_max();
    for (mapping, family, inputs) in inputs(&target, "softmax", &[128, 2048], None) {
        let Mapping::Rows(m) = mapping else { panic!("rows") };
        assert_eq!(family, Family::GpuRows);
        // x is read and the result written, 4 bytes each; reload reads x once more.
        let distinct = input(family, &inputs, "distinct_bytes");
        assert_eq!(distinct, (128 * 2048 * 8) as f64);
        let global = input(family, &inputs, "global_bytes");
        assert_eq!(global - distinct, if m.cache { 0.0 } else { (128 * 2048 * 4) as f64 });
    }
}

#[test]
fn cpu_rows_show_what_a_mapping_changes() {
    let seen = inputs(&cpu(2), "softmax", &[64, 4096], Some(2));
    assert!(seen.len() >= 40);
    let find = |wanted: &dyn Fn(&tilewright_plan::mapping::RowMapping) -> bool| {
        let hit = seen.iter().find_map(|(m, family, inputs)| match m {
            Mapping::Rows(m) if wanted(m) => Some((*family, *inputs)),
            _ => None,
        });
        hit.unwrap()
    };
    let base = |m: &tilewright_plan::mapping::RowMapping| !m.cache && !m.fuse;
    let (family, one) = find(&|m| base(m) && m.unroll == 4 && m.accumulators == 1);
    assert_eq!(family, Family::CpuRows);
    let (_, four) = find(&|m| base(m) && m.unroll == 4 && m.accumulators == 4);
    assert!(input(family, &four, "chain") < input(family, &one, "chain"));
    // Two threads share caches and power: the work of 32 rows counts a twentieth more.
    let rows = 1.05 * 32.0;
    // Three operations join two maxima, one joins two sums: (4 − 1)·(3 + 1) a row.
    assert!(close(input(family, &four, "combines"), rows * 12.0, 1e-12));
    assert_eq!(input(family, &one, "combines"), 0.0);
    // Sixteen lanes take four steps: of a shuffle (4 cycles) and a maximum (5) or a sum (3).
    assert!(close(input(family, &one, "collectives"), rows * 4.0 * (9.0 + 7.0), 1e-12));
    // A maximum, a difference with its exponential, a sum of what is kept, a load and a store beside
    // the division: each is counted once. Four loops have 64 trips of a twentieth of a cycle each.
    let arithmetic = rows * (256.0 * (1.5 + 5.5 + 0.5 + 1.0) + 0.05 * 4.0 * 64.0);
    assert!(close(input(family, &one, "arithmetic"), arithmetic, 1e-12));
    // Of the exponential's five cycles half are its chain, which a vector taken in halves has once.
    let wide = arithmetic - rows * 256.0 * 2.5;
    assert!(close(input(family, &one, "wide_arithmetic"), wide, 1e-12));
    // A divider takes half of 64 bytes at once.
    assert!(close(input(family, &one, "divisions"), rows * 256.0 * 2.0, 1e-12));
    let (_, narrow) = find(&|m| base(m) && m.unroll == 1 && m.accumulators == 1);
    assert!(input(family, &narrow, "arithmetic") > input(family, &one, "arithmetic"));
    let (_, fused) = find(&|m| !m.cache && m.fuse && m.unroll == 4 && m.accumulators == 1);
    assert!(input(family, &fused, "arithmetic") < input(family, &one, "arithmetic"));
    let (_, copied) = find(&|m| m.cache && !m.fuse && m.unroll == 4 && m.accumulators == 1);
    // One stripe of 4096/16 vectors a row, or two.
    assert!(close(input(family, &one, "stripe_vectors"), rows * 256.0, 1e-12));
    assert!(close(input(family, &copied, "stripe_vectors"), 2.0 * rows * 256.0, 1e-12));
    // Rows one by one are taken in four chunks a thread; a thread's share in one task is taken at once,
    // but nobody helps with it, and a single task stays on one thread.
    let threads = |i: &Inputs| (input(family, i, "other_threads"), input(family, i, "chunks"));
    let same = |m: &tilewright_plan::mapping::RowMapping, pack| {
        base(m) && m.unroll == 4 && m.accumulators == 1 && m.pack == pack
    };
    assert_eq!(threads(&one), (1.0, 4.0));
    let (_, shares) = find(&|m| same(m, 32));
    assert_eq!(threads(&shares), (1.0, 0.0));
    let unhelped = 1.02 * input(family, &one, "arithmetic");
    assert!(close(input(family, &shares, "arithmetic"), unhelped, 1e-12));
    let (_, alone) = find(&|m| same(m, 64));
    assert_eq!(threads(&alone), (0.0, 0.0));
    let twice = 2.0 * input(family, &one, "arithmetic") / 1.05;
    assert!(close(input(family, &alone, "arithmetic"), twice, 1e-12));
    let single = inputs(&cpu(2), "softmax", &[64, 4096], Some(1));
    assert_eq!(threads(&single[0].2), (0.0, 0.0));
    // Vectors of half a register are taken whole everywhere, and fold in a step less.
    let halves = inputs_of(&cpu(2), "softmax", &[64, 4096], Some(2), Some(vec![8]));
    let same = |m: &Mapping| matches!(m, Mapping::Rows(m) if base(m) && m.unroll == 4 && m.accumulators == 1);
    let (_, _, half) = halves.iter().find(|(m, ..)| same(m)).unwrap();
    assert_eq!(input(family, half, "wide_arithmetic"), 0.0);
    assert!(close(input(family, half, "arithmetic"), 2.0 * arithmetic, 1e-12));
    assert_eq!(input(family, half, "divisions"), input(family, &one, "divisions"));
    assert!(close(input(family, half, "collectives"), rows * 3.0 * (9.0 + 7.0), 1e-12));
    // A row that ends within a vector has one more in each of its three loops.
    let even = inputs(&cpu(2), "softmax", &[2, 4096], Some(1));
    let ragged = inputs(&cpu(2), "softmax", &[2, 4097], Some(1));
    let vectors = |i: &Inputs| input(family, i, "arithmetic");
    let more = vectors(&ragged[0].2) - vectors(&even[0].2);
    assert!(close(more, 2.0 * (1.5 + 5.5 + 0.5 + 1.0), 1e-9));
}

/// Where vectors come from beyond the first level no faster than one a cycle, a chain of less than
/// that is hidden.
#[test]
fn what_comes_from_afar_hides_a_short_chain() {
    let chain = |columns: u64| {
        let seen = inputs(&cpu(1), "rmsnorm", &[1, columns], Some(1));
        let four = |m: &Mapping| matches!(m, Mapping::Rows(m) if !m.cache && m.accumulators == 4);
        let (.., inputs) = seen.iter().find(|(m, ..)| four(m)).unwrap();
        input(Family::CpuRows, inputs, "chain")
    };
    // A product is added every 4 cycles, in four sums, beside half a cycle of loads; 12 bytes a
    // column are within half of the first level, or not.
    assert_eq!(chain(1024), 64.0 * 0.5);
    assert_eq!(chain(4096), 0.0);
}

/// Without AVX-512 an exponential takes about twice the operations, and a maximum is back sooner.
#[test]
fn functions_and_maxima_have_a_price_for_each_instruction_set() {
    let plain = |m: &Mapping| {
        matches!(m, Mapping::Rows(m)
            if !m.cache && !m.fuse && m.pack == 1 && m.unroll == 8 && m.accumulators == 1)
    };
    let of = |isa: CpuIsa| {
        let target = Target::cpu(CpuFacts::modest(isa, 1));
        let seen = inputs_of(&target, "softmax", &[1, 4096], Some(1), Some(vec![8]));
        let (.., inputs) = seen.iter().find(|(m, ..)| plain(m)).unwrap();
        ["arithmetic", "chain"].map(|name| input(Family::CpuRows, inputs, name))
    };
    let (half, whole) = (of(CpuIsa::Avx512), of(CpuIsa::Avx2));
    // 512 vectors; the sums' chain is 2.5 cycles either way.
    assert!(close(whole[0] - half[0], 512.0 * 5.0, 1e-9));
    assert!(close(half[1] - whole[1], 512.0 * 2.0, 1e-9));
}

/// A core that takes a full vector in halves has twice the time for what it waits for, and starts
/// half as many products.
#[test]
fn vectors_taken_in_halves_hide_more_of_a_chain() {
    let halves = Target::cpu(CpuFacts { fma_per_cycle: 1, ..CpuFacts::modest(CpuIsa::Avx512, 1) });
    let plain = |m: &Mapping| {
        matches!(m, Mapping::Rows(m)
            if !m.cache && !m.fuse && m.pack == 1 && m.unroll == 4 && m.accumulators == 1)
    };
    let chain = |target: &Target, lanes: u32| {
        let seen = inputs_of(target, "softmax", &[1, 4096], Some(1), Some(vec![lanes]));
        let (.., inputs) = seen.iter().find(|(m, ..)| plain(m)).unwrap();
        input(Family::CpuRows, inputs, "chain")
    };
    // A maximum every 5 cycles and a sum every 3, less 1.5 and 0.5 of arithmetic, or twice that.
    assert_eq!(chain(&cpu(1), 16), 256.0 * (3.5 + 2.5));
    assert_eq!(chain(&halves, 16), 256.0 * (2.0 + 2.0));
    assert_eq!(chain(&halves, 8), chain(&cpu(1), 8));
    let products = |target: &Target| {
        let seen = inputs(target, "gemm", &[512, 512, 512], Some(1));
        seen.iter().map(|(_, f, i)| input(*f, i, "products")).collect::<Vec<_>>()
    };
    let double: Vec<f64> = products(&cpu(1)).iter().map(|p| 2.0 * p).collect();
    assert_eq!(products(&halves), double);
}

#[test]
fn a_byte_from_memory_counts_as_three_of_the_last_level() {
    let target = cpu(1);
    let facts = target.cpu_facts().unwrap();
    let far = |rows: u64| {
        let seen = inputs(&target, "softmax", &[rows, 1024], Some(1));
        input(Family::CpuRows, &seen[0].2, "far_bytes")
    };
    // 8 bytes an element; half a second level holds everything.
    assert_eq!(far(facts.l2_bytes / 2 / 8192), 0.0);
    // A set of four times the last level: a quarter of its bytes, less the second level, come from
    // there, the others from memory.
    let rows = 4 * facts.l3_bytes / 8192;
    let (set, l2, l3) = (
        4.0 * facts.l3_bytes as f64,
        0.9 * facts.l2_bytes as f64 / (4.0 * facts.l3_bytes as f64),
        0.9 * facts.l3_bytes as f64 / (4.0 * facts.l3_bytes as f64),
    );
    let expected = set * ((l3 - l2) + 3.0 * (1.0 - l3));
    assert!((far(rows) / expected - 1.0).abs() < 1e-12, "{} {expected}", far(rows));
}

/// Rows of 513 floats start anywhere in a line: 15 of 16 loads of B cross one, unless B is packed.
#[test]
fn loads_that_cross_a_line_count_twice() {
    let loads = |columns: u64| {
        let seen = inputs(&cpu(1), "gemm", &[512, columns, 512], Some(1));
        let plain = seen.into_iter().filter_map(|(m, f, i)| match m {
            Mapping::CpuMatrix(m) if !m.pack_a && m.tile == [8, 3] => {
                Some((m.pack_b, input(f, &i, "loads")))
            }
            _ => None,
        });
        plain.collect::<Vec<_>>()
    };
    let least = |columns: u64, packed: bool| {
        let own = loads(columns).into_iter().filter(|l| l.0 == packed).map(|l| l.1);
        own.fold(f64::INFINITY, f64::min)
    };
    // 480 columns are ten tiles of three vectors and 64 strips of eight rows; a load of A for each
    // row and one of B for each vector.
    let tiles = 512.0 * 64.0 * 10.0;
    assert_eq!(least(480, false), tiles * (8.0 + 3.0));
    // 481 columns: a narrow tile more, and B from lines that don't begin with its rows, of which a
    // tile's row touches one more than it fills in 15 of 16 cases: three quarters of a load.
    let partial = 0.75 * 15.0 / 16.0;
    let (crossed, whole) = (3.0 * (1.0 + 15.0 / 16.0) + partial, 1.0 + 15.0 / 16.0 + partial);
    let narrow = 512.0 * 64.0;
    assert_eq!(least(481, false), tiles * (8.0 + crossed) + narrow * (8.0 + whole));
    assert_eq!(least(481, true), tiles * (8.0 + 3.0) + narrow * (8.0 + 1.0));
}

/// Two threads start with two neighbours each of four groups. Where rows are split unevenly, one
/// has both of the taller ones, and is past helping when the other is done.
#[test]
fn groups_are_dealt_as_neighbours() {
    let [m, n, k] = [57u64, 96, 517];
    let mut found = 0;
    for (mapping, family, inputs) in inputs(&cpu(2), "gemm", &[m, n, k], Some(2)) {
        let Mapping::CpuMatrix(mapping) = mapping else { panic!("a CPU product") };
        let [gm, gn] = mapping.group;
        if mapping.threads != 2 || m.div_ceil(gm) != 2 || gn != n / 2 {
            continue;
        }
        found += 1;
        // Multiply-adds of 16 lanes, two a cycle.
        let tall = 1.05 * (2 * gm.max(m - gm) * (gn / 16) * k) as f64 / 2.0;
        assert!(close(input(family, &inputs, "products"), tall, 1e-12), "{mapping:?}");
    }
    assert!(found > 0);
}

/// Rows of B that are a large power of two apart share few sets, so that less of a panel stays near
/// than of one whose rows begin anywhere.
#[test]
fn rows_of_b_that_share_sets_do_not_stay_near() {
    let least = |columns: u64, name: &str| {
        let seen = inputs(&cpu(1), "gemm", &[64, columns, 512], Some(1));
        let own = seen.into_iter().filter_map(|(m, f, i)| match m {
            Mapping::CpuMatrix(m) if !m.pack_b && m.tile == [8, 2] && m.columns == 64 => {
                Some(input(f, &i, name))
            }
            _ => None,
        });
        own.fold(f64::INFINITY, f64::min)
    };
    // 1024 and 1040 columns are 16 blocks of 64 and a narrower one more.
    let (shared, free) = (least(1024, "far_rows"), least(1040, "far_rows"));
    assert!(shared > 2.0 * free, "{shared} {free}");
}

/// A tile that goes down 2000 rows of B, a page each, has lost the translations of most when the next
/// one comes; of 64 rows none.
#[test]
fn tiles_that_visit_many_pages_look_up_translations() {
    let seen = inputs(&cpu(1), "gemm", &[8, 1024, 2000], Some(1));
    let lost = |pages: f64| 0.15 * (1.0 - 64.0 / pages) + (1.0 - 512.0 / pages);
    // Rows of A take 8·2000·4 bytes more.
    let first = lost(2000.0 + 64_000.0 / 4096.0);
    let mut found = 0;
    for (mapping, family, inputs) in seen {
        let Mapping::CpuMatrix(m) = mapping else { panic!("a CPU product") };
        let width = u64::from(m.tile[1] * m.lanes);
        if m.pack_b || m.tile[0] != 8 || m.columns < 1024 || !1024u64.is_multiple_of(width) {
            continue;
        }
        let translations = input(family, &inputs, "translations");
        if m.depth >= 2000 {
            found += 1;
            let expected = 2000.0 * (first + (1024 / width - 1) as f64 * lost(2000.0));
            assert!(close(translations, expected, 1e-12), "{m:?}: {translations} {expected}");
        } else if 2000u64.is_multiple_of(m.depth) && m.depth <= 64 {
            assert!(close(translations, 2000.0 * first, 1e-12), "{m:?}: {translations}");
        }
    }
    assert!(found > 0);
}

/// Rows of B whose ends share lines come from the second level more slowly, unless they are packed.
#[test]
fn parts_of_lines_from_the_second_level_are_waited_for() {
    let least = |columns: u64, packed: bool| {
        let seen = inputs(&cpu(1), "gemm", &[40, columns, 900], Some(1));
        let own = seen.into_iter().filter_map(|(m, f, i)| match m {
            Mapping::CpuMatrix(m) if m.pack_b == packed && m.tile == [8, 1] && m.depth == 900 => {
                Some(input(f, &i, "stalls") / input(f, &i, "products"))
            }
            _ => None,
        });
        own.fold(f64::INFINITY, f64::min)
    };
    assert!(least(250, false) > 1.2 * least(256, false));
    assert!(least(250, true) < 1.2 * least(256, true));
}

#[test]
fn cpu_products_show_what_a_mapping_changes() {
    let seen = inputs(&cpu(2), "gemm", &[512, 512, 512], Some(1));
    let family = Family::CpuMatrix;
    assert!(seen.len() > 20);
    for (mapping, found, inputs) in &seen {
        let Mapping::CpuMatrix(m) = mapping else { panic!("a CPU product") };
        assert_eq!(*found, family);
        let packed = input(family, inputs, "copied_vectors");
        assert_eq!(packed > 0.0, m.pack_a || m.pack_b, "{m:?}");
        // Each vector of results is written once a step and read back in all but the first.
        let (rows, width) = (u64::from(m.tile[0]), u64::from(m.tile[1]) * 16);
        if 512 % rows == 0 && 512 % width == 0 && m.columns % width == 0 {
            let steps = 512u64.div_ceil(m.depth) as f64;
            let results = 512.0 * 512.0 / 16.0 * (2.0 * steps - 1.0);
            assert_eq!(input(family, inputs, "results"), results, "{m:?}");
        }
        let loads = input(family, inputs, "loads");
        assert!(loads >= 512f64.powi(3) / 16.0 * (1.0 / 16.0 + 1.0 / 5.0) / 2.0, "{m:?}");
        // No mapping does less than the product: 512³ multiply-adds, 16 lanes, 2 a cycle.
        assert!(input(family, inputs, "products") >= 512f64.powi(3) / 32.0, "{m:?}");
    }
    let two = inputs(&cpu(2), "gemm", &[512, 512, 512], Some(2));
    let most = |list: &[(Mapping, Family, Inputs)]| {
        list.iter().map(|(_, f, i)| input(*f, i, "products")).fold(f64::INFINITY, f64::min)
    };
    assert!(most(&two) < most(&seen));
}

fn fitted(family: Family, term: &str) -> FamilyFit {
    let index = family.term(term).unwrap();
    let capacity = family.terms()[index].saturates.then_some(512);
    let launch = WeightedTerm { term: 0, capacity: None, coefficient: 2.0 };
    let one = WeightedTerm { term: index, capacity, coefficient: 0.01 };
    FamilyFit {
        model: Model::new(family, vec![launch, one]).unwrap(),
        confidence: Confidence {
            level: 0.9,
            low: 0.5,
            high: 2.0,
            slack: 1.05,
            margin: 1.2,
            ranges: vec![[0.0, 1e12]; family.inputs().len()],
            rows: 1,
            cases: 1,
            shapes: 1,
        },
    }
}

#[test]
fn a_fit_ranks_and_advises() {
    let target = Target::apple_m1_max();
    let policy = WholeLaunch::new("apple-m1-max", vec![fitted(Family::GpuRows, "rounds")]);
    let ranking: Ranking =
        ranked_on(&target, "softmax", &[128, 2048], &policy, SpaceOptions::default());
    let advice = ranking.advice.clone().unwrap();
    let winner = kernel_score(ranking.winner().unwrap());
    assert_eq!(advice.prediction, winner);
    assert_eq!(advice.interval, [winner * 0.5, winner * 2.0]);
    let near =
        ranking.order.iter().filter(|i| kernel_score(&ranking.candidates[**i]) <= winner * 1.05);
    assert_eq!(advice.shortlist, near.count());
    assert!(ranking.explain(3).contains("predicted"));
    // The winner's addends sum up to its score.
    let terms: f64 = ranking.winner().unwrap().terms.iter().map(|t| t.value).sum();
    assert!(close(terms, winner, 1e-12));
    // What it has no fit of, and other targets, it doesn't price.
    let options = SpaceOptions::default();
    for (target, op, shape) in [
        (Target::apple_m1_max(), "gemm", &[64, 64, 64][..]),
        (Target::nvidia_h200(), "softmax", &[8, 64][..]),
    ] {
        let program = program(op, shape);
        let facts = tilewright_ir::analysis::facts(&program);
        let request = tilewright_plan::Request::new(&program, &facts).options(options.clone());
        assert!(tilewright_plan::plan(&request, &target, &policy).is_err(), "{op}");
    }
}

/// Candidates whose inputs are equal can't be told apart by any fit.
#[test]
fn few_candidates_coincide() {
    for (target, op, shape) in [
        (Target::apple_m1_max(), "softmax", &[128, 2048][..]),
        (Target::apple_m1_max(), "gemm", &[512, 512, 512][..]),
        (cpu(2), "softmax", &[64, 4096][..]),
        (cpu(2), "layernorm", &[37, 1537][..]),
        (cpu(2), "gemm", &[512, 512, 512][..]),
        (cpu(2), "gemm", &[127, 193, 61][..]),
    ] {
        let seen = inputs(&target, op, shape, None);
        let mut distinct: Vec<Vec<u64>> =
            seen.iter().map(|(_, _, i)| i.iter().map(|v| v.to_bits()).collect()).collect();
        distinct.sort();
        distinct.dedup();
        println!(
            "{op} {shape:?} on {}: {} of {} distinct",
            target.name,
            distinct.len(),
            seen.len()
        );
        assert!(distinct.len() * 2 > seen.len(), "{op} {shape:?}");
    }
}
