//! Planner contracts of the reference system (2.1) on one and several matrix products.

use tilewright_plan::coupled::{
    CoupledMatrix, CoupledOptions, CoupledPlan, CoupledProgram, Distribution, plan_coupled,
};
use tilewright_plan::mapping::MatrixBasis;
use tilewright_plan::target::GpuFacts;
use tilewright_plan::{PlanError, Rule, Target};

fn gpu(max_threads: u32, shared_bytes: u64) -> GpuFacts {
    let facts = Target::apple_m1_max();
    GpuFacts { max_threads, shared_bytes, ..facts.gpu_facts().expect("a GPU").clone() }
}

/// Staged operands and C, D buffers of f32.
fn shared(block: [u64; 3]) -> u64 {
    let [bm, bn, bk] = block;
    4 * (bm * bk + bk * bn) + 8 * bm * bn
}

fn one(matrix: CoupledMatrix, programs: u64) -> CoupledProgram {
    CoupledProgram {
        matrices: vec![matrix],
        programs,
        shared_bytes: shared(matrix.block),
        independent_elements: 0,
    }
}

fn simdgroup() -> CoupledOptions {
    CoupledOptions::new(MatrixBasis::Simdgroup)
}

fn mpp(threads: Option<u32>) -> CoupledOptions {
    CoupledOptions { threads, ..CoupledOptions::new(MatrixBasis::Mpp) }
}

fn program_score(plan: &CoupledPlan) -> f64 {
    plan.score.expect("optimized").program
}

fn kernel_score(plan: &CoupledPlan) -> f64 {
    plan.score.expect("optimized").kernel
}

fn rule(result: Result<CoupledPlan, PlanError>) -> Rule {
    match result {
        Err(PlanError::Illegal(rejection)) => rejection.rule,
        other => panic!("not rejected: {other:?}"),
    }
}

#[test]
fn the_best_width_is_no_worse_than_any_forced_one_and_covers_every_atom_once() {
    let gpu = gpu(256, 1 << 20);
    for bm in [8, 16, 24, 32, 64] {
        for bn in [8, 16, 24, 32, 64] {
            let matrix = CoupledMatrix::new([bm, bn, 32], 7);
            let program = one(matrix, 64);
            let best = plan_coupled(&program, &gpu, &simdgroup()).expect("fits");
            for subgroups in 1..=8 {
                let options = CoupledOptions { threads: Some(32 * subgroups), ..simdgroup() };
                let forced = plan_coupled(&program, &gpu, &options).expect("fits");
                assert_eq!(forced.threads, 32 * subgroups);
                assert!(kernel_score(&best) <= kernel_score(&forced), "{bm}x{bn}");
            }
            let distribution = best.distributions[0];
            assert_eq!(distribution.verify(&matrix), Ok(()));
            if let Distribution::Rectangular { subgroups, atoms, .. } = distribution {
                let mut owners: Vec<_> = (0..bm / 8)
                    .flat_map(|i| (0..bn / 8).filter_map(move |j| distribution.owner(i, j)))
                    .collect();
                owners.sort();
                let expected: Vec<_> = (0..subgroups[0] * subgroups[1])
                    .flat_map(|g| (0..atoms[0] * atoms[1]).map(move |slot| (g, slot)))
                    .collect();
                assert_eq!(owners, expected);
            }
        }
    }
}

#[test]
fn the_automatic_width_of_the_documented_block() {
    let program = one(CoupledMatrix::new([32, 64, 32], 7), 64);
    let plan = plan_coupled(&program, &gpu(256, 32768), &simdgroup()).expect("fits");
    assert_eq!(plan.threads, 128);
    let Distribution::Rectangular { atoms, .. } = plan.distributions[0] else { panic!("{plan:?}") };
    assert_eq!(atoms[0] * atoms[1], 8);
    assert_eq!(2 * (atoms[0] * atoms[1] + atoms[0] + atoms[1]), 28);
    // 8 widths: one reference realisation each, and 1+2+2+3+2+4+2+4 grids.
    assert_eq!(plan.considered, 8 + 20);
}

#[test]
fn requests_that_fail_or_stay_plain() {
    let program = one(CoupledMatrix::new([32, 64, 32], 7), 64);
    let full = gpu(256, 32768);
    let with = |edit: fn(&mut CoupledOptions)| {
        let mut options = simdgroup();
        edit(&mut options);
        options
    };
    let plan = plan_coupled(&program, &full, &with(|o| o.optimize = false)).expect("plain");
    assert_eq!((plan.threads, plan.optimized), (256, false));
    assert_eq!(plan.distributions, [Distribution::Reference]);
    let plan = plan_coupled(&program, &full, &with(|o| o.threads = Some(48))).expect("plain");
    assert_eq!((plan.threads, plan.optimized), (48, false));
    let plan = plan_coupled(&program, &gpu(31, 32768), &simdgroup()).expect("plain");
    assert_eq!((plan.threads, plan.optimized), (31, false));
    let refused = plan_coupled(&program, &full, &with(|o| o.threads = Some(257)));
    assert_eq!(rule(refused), Rule::ThreadsLimit);
    // The choice that releases most needs this much; one byte less fits none.
    let least = program.shared_bytes - 4 * 32 * 64;
    assert!(plan_coupled(&program, &gpu(256, least), &simdgroup()).is_ok());
    assert_eq!(
        rule(plan_coupled(&program, &gpu(256, least - 1), &simdgroup())),
        Rule::SharedMemory
    );
    // A target without a thread limit has too many widths, but an exact one is fine.
    let endless = gpu(u32::MAX, 32768);
    assert_eq!(rule(plan_coupled(&program, &endless, &simdgroup())), Rule::SearchBudget);
    let exact = with(|o| o.threads = Some(1 << 29));
    assert_eq!(plan_coupled(&program, &endless, &exact).map(|p| p.threads), Ok(1 << 29));
    for (options, expected) in [
        (with(|o| o.max_thread_candidates = 0), Rule::SearchBudget),
        (with(|o| o.max_copy_batch = 0), Rule::CopyBatch),
        (with(|o| o.max_copy_batch = 17), Rule::CopyBatch),
    ] {
        assert_eq!(rule(plan_coupled(&program, &full, &options)), expected);
    }
    let ragged = one(CoupledMatrix::new([31, 64, 32], 7), 64);
    assert_eq!(rule(plan_coupled(&ragged, &full, &simdgroup())), Rule::BlockMultiple);
    for options in [
        with(|o| o.simdgroup.matrix_issue = f64::NAN),
        with(|o| o.simdgroup.subgroup_setup = -1.0),
        with(|o| o.simdgroup.independent_element = f64::INFINITY),
        with(|o| o.simdgroup.preferred_subgroups = 0.0),
        with(|o| o.simdgroup.preferred_fragment_scalars = 0.0),
        with(|o| o.simdgroup.preferred_programs = 0.0),
    ] {
        let refused = plan_coupled(&program, &full, &options);
        assert!(matches!(refused, Err(PlanError::Policy(_))), "{refused:?}");
    }
}

/// Fragment pressure is made so dear that the resident choice is the slower one.
fn dear_fragments() -> CoupledOptions {
    let mut options = simdgroup();
    options.simdgroup.preferred_fragment_scalars = 1.0;
    options
}

#[test]
fn capacity_that_only_the_slower_resident_choice_meets_is_solved() {
    for count in [1, 2] {
        let matrix = CoupledMatrix::new([32, 32, 32], 4);
        let program = CoupledProgram {
            matrices: vec![matrix; count],
            programs: 64,
            shared_bytes: shared(matrix.block) * count as u64,
            independent_elements: 0,
        };
        let options = dear_fragments();
        let roomy = plan_coupled(&program, &gpu(256, 1 << 20), &options).expect("fits");
        assert_eq!(roomy.distributions, vec![Distribution::Reference; count]);
        let released = |resident: usize| program.shared_bytes - 4 * 32 * 32 * resident as u64;
        for resident in 1..=count {
            let tight = gpu(256, released(resident));
            let plan = plan_coupled(&program, &tight, &options).expect("a resident choice fits");
            assert_eq!(plan.shared_bytes, released(resident));
            assert!(kernel_score(&plan) > kernel_score(&roomy));
            let kept = plan.distributions.iter().filter(|d| **d != Distribution::Reference);
            assert_eq!(kept.count(), resident, "no more is given up than needed");
            let without = CoupledOptions { retain_accumulators: false, ..options.clone() };
            assert_eq!(rule(plan_coupled(&program, &tight, &without)), Rule::SharedMemory);
        }
    }
}

/// The frontier gives what trying every pair of distributions gives.
#[test]
fn two_matrices_agree_with_exhaustive_search() {
    let shapes = [[32, 32, 32], [16, 64, 32], [64, 32, 8]];
    for a in shapes {
        for b in shapes {
            let pair = [CoupledMatrix::new(a, 3), CoupledMatrix::new(b, 5)];
            let total = shared(a) + shared(b);
            for limit in [total, total - 4 * a[0] * a[1], total - 4 * (a[0] * a[1] + b[0] * b[1])] {
                for options in [simdgroup(), dear_fragments()] {
                    let program = CoupledProgram {
                        matrices: pair.to_vec(),
                        programs: 100,
                        shared_bytes: total,
                        independent_elements: 500,
                    };
                    let found = plan_coupled(&program, &gpu(256, limit), &options);
                    let best = exhaustive(&program, limit, &options);
                    match (found, best) {
                        (Ok(plan), Some(best)) => {
                            let score = kernel_score(&plan);
                            assert!((score - best).abs() <= 1e-12 * best, "{score} {best}");
                        }
                        (Err(_), None) => {}
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
    }
}

/// Shares of single matrices, taken from plans of single matrices, summed over every pair.
fn exhaustive(program: &CoupledProgram, limit: u64, options: &CoupledOptions) -> Option<f64> {
    let mut best: Option<f64> = None;
    for subgroups in 1..=8u64 {
        let s = &options.simdgroup;
        let share = |matrix: &CoupledMatrix, grid: Option<[u64; 2]>| {
            let [u, v, q] = matrix.block.map(|b| b as f64 / 8.0);
            let (e, g) = (matrix.executions as f64, subgroups as f64);
            let parallel = (s.preferred_subgroups.min(u * v) / g).max(1.0);
            let price = |transfers: f64, scalars: f64| {
                let work = s.matrix_issue * u * v * q * e + s.shared_fragment_transfer * transfers;
                work * (scalars / s.preferred_fragment_scalars).max(1.0) * parallel
            };
            match grid {
                None => Some((price(2.0 * u * v * q * e + 2.0 * u * v * e, 6.0), 0)),
                Some([gm, gn]) => {
                    let [ua, va] = [matrix.block[0] / 8, matrix.block[1] / 8];
                    if ua % gm != 0 || va % gn != 0 {
                        return None;
                    }
                    let (rm, rn) = ((ua / gm) as f64, (va / gn) as f64);
                    let fragments = rm * rn + rm + rn;
                    (fragments <= 32.0).then(|| {
                        let transfers = g * (rm + rn) * q * e + 2.0 * u * v;
                        (price(transfers, 2.0 * fragments), 4 * matrix.block[0] * matrix.block[1])
                    })
                }
            }
        };
        let grids: Vec<Option<[u64; 2]>> = std::iter::once(None)
            .chain((1..=subgroups).filter(|g| subgroups % g == 0).map(|g| Some([g, subgroups / g])))
            .collect();
        for &x in &grids {
            for &y in &grids {
                let (Some((a, ra)), Some((b, rb))) =
                    (share(&program.matrices[0], x), share(&program.matrices[1], y))
                else {
                    continue;
                };
                if program.shared_bytes - ra - rb > limit {
                    continue;
                }
                let once = s.independent_element * program.independent_elements as f64
                    + s.subgroup_setup * subgroups as f64;
                let waves = (program.programs as f64 / s.preferred_programs).max(1.0);
                let score = (a + b + once) * waves;
                best = Some(best.map_or(score, |least| least.min(score)));
            }
        }
    }
    best
}

#[test]
fn direct_output_releases_both_buffers_and_needs_its_proof() {
    let matrix = CoupledMatrix { direct: true, ..CoupledMatrix::new([64, 64, 32], 4) };
    let program = one(matrix, 64);
    let plan = plan_coupled(&program, &gpu(256, 32768), &simdgroup()).expect("fits");
    assert_eq!(plan.shared_bytes, 16384);
    assert_eq!(program.shared_bytes - plan.shared_bytes, 32768);
    let distribution = plan.distributions[0];
    let Distribution::Rectangular { subgroups, atoms, .. } = distribution else {
        panic!("{plan:?}")
    };
    // Every atom is stored once: 64 direct stores.
    assert_eq!(subgroups[0] * subgroups[1] * atoms[0] * atoms[1], 64);
    assert_eq!(distribution.verify(&matrix), Ok(()));
    let unproved = CoupledMatrix { direct: false, ..matrix };
    let refused = distribution.verify(&unproved).map_err(|r| r.rule);
    assert_eq!(refused, Err(Rule::UnprovedRealisation));
    let open = CoupledMatrix { recurrence: false, ..matrix };
    assert_eq!(distribution.verify(&open).map_err(|r| r.rule), Err(Rule::UnprovedRealisation));
    let other = CoupledMatrix { block: [64, 72, 32], ..matrix };
    assert_eq!(distribution.verify(&other).map_err(|r| r.rule), Err(Rule::SubgroupCover));
}

#[test]
fn published_mpp_crossovers() {
    let score = |block: [u64; 3], overwrite: bool| {
        let matrix = CoupledMatrix { direct: true, overwrite, ..CoupledMatrix::new(block, 1) };
        let program = CoupledProgram {
            matrices: vec![matrix],
            programs: 64,
            // Operands are read in place; C and D are released.
            shared_bytes: 8 * block[0] * block[1],
            independent_elements: 0,
        };
        let plan = plan_coupled(&program, &gpu(1024, 32768), &mpp(Some(128))).expect("fits");
        program_score(&plan)
    };
    assert_eq!(score([64, 64, 512], true), 1632.0);
    assert_eq!(score([128, 32, 512], true), 1633.0);
    assert_eq!(score([128, 32, 1024], true), 3225.0);
    assert_eq!(score([64, 64, 1024], true), 3232.0);
    assert_eq!(score([64, 64, 1024], false), 3248.0);
}

#[test]
fn published_mpp_width_scores() {
    let plan = |threads: Option<u32>, programs: u64, block: [u64; 3]| {
        let matrix =
            CoupledMatrix { direct: true, overwrite: true, ..CoupledMatrix::new(block, 1) };
        let program = CoupledProgram {
            matrices: vec![matrix],
            programs,
            shared_bytes: 8 * block[0] * block[1],
            independent_elements: 1024,
        };
        plan_coupled(&program, &gpu(256, 32768), &mpp(threads)).expect("fits")
    };
    assert_eq!(program_score(&plan(Some(64), 1, [32, 32, 32])), 104.0);
    assert_eq!(program_score(&plan(Some(256), 1, [32, 32, 32])), 44.0);
    assert_eq!(kernel_score(&plan(Some(64), 1024, [32, 32, 32])), 416.0);
    assert_eq!(kernel_score(&plan(Some(256), 1024, [32, 32, 32])), 704.0);
    // All local matrices of 256 threads over 32x16 would be 8x8.
    assert_ne!(plan(None, 1, [32, 16, 32]).threads, 256);
}

#[test]
fn mpp_has_no_plain_realisation() {
    let program = one(CoupledMatrix::new([32, 32, 32], 1), 1);
    let refused = plan_coupled(&program, &gpu(256, 32768), &mpp(Some(48)));
    assert_eq!(rule(refused), Rule::SubgroupCover);
}
