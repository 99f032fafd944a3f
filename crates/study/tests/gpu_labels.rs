//! The default ranking of GPU schedules against the labels of an H200: what its picks lose.

use flate2::read::GzDecoder;
use serde_json::Value;
use std::collections::HashMap;
use std::io::Read;
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::{DType, analysis};
use tilewright_plan::mapping::{Mapping, Residency, RowMapping};
use tilewright_plan::policy::gpu::Gpu;
use tilewright_plan::{Request, Target, plan};

/// What every tensor is aligned to.
const ALIGN: u64 = 16;

fn median(values: &Value) -> Option<f64> {
    let mut numbers: Vec<f64> = values.as_array()?.iter().filter_map(Value::as_f64).collect();
    numbers.sort_by(f64::total_cmp);
    let (low, high) = (numbers.len().checked_sub(1)? / 2, numbers.len() / 2);
    Some((numbers.get(low)? + numbers.get(high)?) / 2.0)
}

/// Labels of a case by mapping.
fn labels(case: &Value) -> HashMap<Mapping, f64> {
    let candidates = case["candidates"].as_array().into_iter().flatten();
    candidates
        .filter_map(|c| {
            let mapping = serde_json::from_value(c["mapping"].clone()).ok()?;
            Some((mapping, median(&c["us"])?))
        })
        .collect()
}

/// A mapping as it was labelled: without hints to the second-level cache.
fn unhinted(mapping: Mapping) -> Mapping {
    match mapping {
        Mapping::Rows(m) => Mapping::Rows(RowMapping { residency: Residency::Normal, ..m }),
        other => other,
    }
}

/// What the best-ranked of the labelled candidates loses against the best label.
fn regret(case: &Value) -> f64 {
    let dtype: DType = case["dtype"].as_str().unwrap().parse().unwrap();
    let shape: Vec<u64> = serde_json::from_value(case["shape"].clone()).unwrap();
    let op = case["op"].as_str().unwrap();
    let mut program = build(op, &OpRequest::shaped(dtype, &shape)).unwrap();
    let ids: Vec<_> = program.tensors.iter().map(|(id, _)| id).collect();
    ids.into_iter().for_each(|id| program.tensors[id].align = ALIGN);
    let facts = analysis::facts(&program);
    let ranking = plan(&Request::new(&program, &facts), &Target::nvidia_h200(), &Gpu).unwrap();
    let labels = labels(case);
    let ranked = || ranking.order.iter().filter_map(|i| ranking.candidates.get(*i));
    let known = || ranked().filter_map(|c| labels.get(&unhinted(c.mapping)).copied());
    let pick = known().next().unwrap();
    pick / known().fold(f64::INFINITY, f64::min) - 1.0
}

/// A wrong price, or an input that counts otherwise than when the prices were fitted, costs more.
/// Candidates of later spaces have no labels and don't count.
#[test]
fn picks_lose_little_by_the_labels() {
    // As seen: 5.68 % of rows of the present kernels, and 3.08 % of products.
    for (name, rows, count, limit) in
        [("h200-rows", true, 141, 0.058), ("h200-hold-out", false, 14, 0.032)]
    {
        let path =
            format!("{}/../../benches/cuda/labels/{name}.jsonl.gz", env!("CARGO_MANIFEST_DIR"));
        let mut text = String::new();
        GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut text).unwrap();
        let cases: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = cases.iter().filter(|c| (c["op"] != "gemm") == rows);
        let regrets: Vec<f64> = of.map(regret).collect();
        let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
        let most = regrets.iter().copied().fold(0.0, f64::max);
        println!("{name}: {} cases, mean {mean:.4}, largest {most:.4}", regrets.len());
        assert_eq!(regrets.len(), count);
        assert!(mean <= limit, "{name}: mean regret {mean}");
    }
}
