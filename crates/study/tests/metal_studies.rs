//! The shipped studies for Apple GPUs, planned for an M1 Max without one: every case has the
//! candidates that the reference searched.

use std::path::Path;
use tilewright_plan::Target;
use tilewright_plan::mapping::Mapping;
use tilewright_study::case::CaseSet;
use tilewright_study::spec::{Metric, Study};
use tilewright_study::subject::Subject;

fn study(name: &str, quick: bool) -> Study {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../studies").join(name);
    Study::read(&path, quick).unwrap()
}

fn subjects(study: &Study, set: CaseSet) -> Vec<Subject> {
    let target = Target::apple_m1_max();
    study.set(set).map(|case| Subject::new(case, &target, &study.space).unwrap()).collect()
}

#[test]
fn products_have_the_legal_candidates_of_the_reference() {
    let study = study("metal-gemm.toml", false);
    assert_eq!(study.metric, Metric::Device);
    assert_eq!(study.controls, ["mps", "mpp"]);
    let held_out = subjects(&study, CaseSet::Holdout);
    let all: Vec<usize> = held_out.iter().map(|s| s.plan.ranking.candidates.len()).collect();
    assert_eq!(all, [45; 8]);
    let legal: Vec<usize> = held_out.iter().map(Subject::legal).collect();
    assert_eq!(legal, [11, 17, 28, 34, 17, 22, 8, 8]);
    for subject in subjects(&study, CaseSet::Training) {
        assert!(subject.legal() >= 2, "{}", subject.case.id);
    }
}

#[test]
fn rows_have_every_width_with_both_kinds_of_reuse() {
    let study = study("metal-rows.toml", false);
    let target = Target::apple_m1_max();
    for set in [CaseSet::Training, CaseSet::Holdout] {
        let subjects = subjects(&study, set);
        assert_eq!(subjects.len(), 12);
        for subject in subjects {
            assert_eq!(subject.plan.ranking.candidates.len(), 64, "{}", subject.case.id);
            let measured = subject.candidates(&target, &study.space, &[]).unwrap();
            assert_eq!(measured.list.len(), subject.legal(), "{}", subject.case.id);
            assert!(subject.legal() > 8, "{}", subject.case.id);
        }
    }
}

#[test]
fn the_ablation_has_four_cells_of_each_op() {
    let study = study("metal-width-reuse.toml", false);
    let subjects = subjects(&study, CaseSet::Training);
    assert_eq!(subjects.len(), 3);
    for subject in subjects {
        let mut cells: Vec<(u32, bool)> = subject
            .plan
            .ranking
            .order
            .iter()
            .filter_map(|i| match subject.plan.ranking.candidates[*i].mapping {
                Mapping::Rows(m) => Some((32 * m.subgroups, m.cache)),
                _ => None,
            })
            .collect();
        cells.sort_unstable();
        let expected = [(192, false), (192, true), (416, false), (416, true)];
        assert_eq!(cells, expected, "{}", subject.case.id);
    }
}

#[test]
fn quick_runs_are_smaller() {
    for name in ["metal-gemm.toml", "metal-rows.toml"] {
        assert!(study(name, true).cases.len() < study(name, false).cases.len(), "{name}");
    }
}
