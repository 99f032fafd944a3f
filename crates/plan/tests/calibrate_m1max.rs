//! The reference's calibration, re-derived from its raw trials, against its published record.

use serde_json::Value;
use tilewright_plan::calibrate::service::{CAPACITIES, RowCounts, designs};
use tilewright_plan::calibrate::{
    Dataset, Pick, Sample, Split, Strategy, fit, leave_one_out, mean, nested, picks, select,
};

fn read(name: &str) -> Value {
    let path = format!("{}/tests/data/m1max/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn u(v: &Value, key: &str) -> u64 {
    v[key].as_u64().unwrap()
}

/// The 101 valid trials; `(threads, cache)` of each in step with the samples.
fn rows(capacities: &[u64]) -> (Dataset, Vec<(u64, bool)>) {
    let record = read("reduction_search.json");
    let valid: Vec<&Value> = record["trials"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|t| t["valid"].as_bool().unwrap())
        .collect();
    assert_eq!(valid.len(), 101);
    let samples = valid
        .iter()
        .map(|t| Sample {
            case: t["case"].as_str().unwrap().to_string(),
            // Zero-padded so that text order is the record's (rows, columns) order.
            shape: format!("{:08}x{:08}", u(t, "m"), u(t, "n")),
            operator: t["op"].as_str().unwrap().to_string(),
            label: t["control_p50_us"].as_f64().unwrap(),
            ..Sample::default()
        })
        .collect();
    let counts: Vec<RowCounts> = valid
        .iter()
        .map(|t| RowCounts {
            rounds: u(t, "scalar_rounds"),
            reductions: u(t, "reduction_operations"),
            subgroups: u(t, "subgroups_per_program"),
            groups: u(t, "threadgroups"),
            programs: u(t, "programs"),
            pack: 1,
            program_global: u(t, "global_read_bytes_program") + u(t, "global_write_bytes_program"),
            worker_global: u(t, "global_read_bytes_worker") + u(t, "global_write_bytes_worker"),
            worker_private: u(t, "private_read_bytes_worker") + u(t, "private_write_bytes_worker"),
        })
        .collect();
    let keys = valid.iter().map(|t| (u(t, "threads"), t["cache"].as_bool().unwrap())).collect();
    (Dataset::new(samples, designs(&counts, capacities)).unwrap(), keys)
}

fn close(found: f64, expected: f64, relative: f64, what: &str) {
    assert!(
        (found - expected).abs() <= relative * expected.abs(),
        "{what}: {found} where the record has {expected}"
    );
}

fn check_picks(found: &[Pick], expected: &Value, keys: &[(u64, bool)], prediction: f64) {
    let expected = expected.as_array().unwrap();
    assert_eq!(found.len(), expected.len());
    for (pick, want) in found.iter().zip(expected) {
        let case = want["case"].as_str().unwrap();
        assert_eq!(pick.case, case);
        assert_eq!(keys[pick.row], (u(want, "threads"), want["cache"].as_bool().unwrap()));
        close(pick.prediction, want["prediction_us"].as_f64().unwrap(), prediction, case);
        close(pick.label, want["measured_us"].as_f64().unwrap(), 1e-12, case);
        close(pick.best, want["best_measured_us"].as_f64().unwrap(), 1e-12, case);
        assert!((pick.regret() - want["regret"].as_f64().unwrap()).abs() < 1e-12, "{case}");
    }
}

#[test]
fn every_capacity_reproduces_the_published_fit_and_folds() {
    let (data, keys) = rows(&CAPACITIES);
    let record = read("calibration_record.json");
    for (design, want) in record["candidates"].as_array().unwrap().iter().enumerate() {
        assert_eq!(u(want, "capacity"), CAPACITIES[design]);
        let fitted = fit(&data, design, &data.all()).unwrap();
        for (found, want) in
            fitted.coefficients.iter().zip(want["coefficients"].as_array().unwrap())
        {
            close(*found, want.as_f64().unwrap(), 1e-9, "coefficient");
        }
        close(
            fitted.relative_rmse,
            want["training_relative_rmse"].as_f64().unwrap(),
            1e-9,
            "training error",
        );
        let folds = leave_one_out(&data, design, &data.all(), Split::Shape).unwrap();
        check_picks(&folds, &want["folds"], &keys, 1e-9);
        let regrets: Vec<f64> = folds.iter().map(Pick::regret).collect();
        close(
            mean(regrets.iter().copied()),
            want["cv_mean_regret"].as_f64().unwrap(),
            1e-12,
            "mean regret",
        );
        close(
            regrets.iter().copied().fold(0.0, f64::max),
            want["cv_max_regret"].as_f64().unwrap(),
            1e-12,
            "largest regret",
        );
        check_picks(&picks(&data, &[fitted], &data.all()), &want["training_picks"], &keys, 1e-9);
    }
}

#[test]
fn regret_selects_capacity_512() {
    let (data, _) = rows(&CAPACITIES);
    let chosen = select(&data, &data.all(), Split::Shape).unwrap();
    assert_eq!(CAPACITIES[chosen], 512);
    let record = read("calibration_record.json");
    assert_eq!(u(&record, "selected_capacity"), 512);
}

/// With the choice of capacity inside each outer fold the reference procedure is worth less than
/// its own figure says: 7.28 % instead of 4.81 %.
#[test]
fn nested_selection_of_the_reference_features() {
    let (data, _) = rows(&CAPACITIES);
    let folds = nested(&data, Split::Shape, Strategy::Select).unwrap();
    let all: Vec<&Pick> = folds.iter().flat_map(|f| &f.picks).collect();
    assert_eq!(all.len(), 12);
    let regret = mean(all.iter().map(|p| p.regret()));
    assert!((regret - 0.0728).abs() < 5e-5, "{regret}");
    let largest = all.iter().map(|p| p.regret()).fold(0.0, f64::max);
    assert!((largest - 0.297).abs() < 5e-4, "{largest}");
}
