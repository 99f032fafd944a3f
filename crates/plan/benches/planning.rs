//! Time of planning with a profile: one row shape, and a matrix space of 500 candidates.
//!
//! `cargo bench -p tilewright-plan --bench planning`. Prints medians over many repetitions; the
//! profile's coefficients are made up, since only their number matters here.

use std::hint::black_box;
use std::time::Instant;

use tilewright_ir::ops::{self, OpRequest};
use tilewright_ir::{DType, Program, analysis};
use tilewright_plan::calibrate::whole_launch;
use tilewright_plan::policy::reduction_service::ReductionService;
use tilewright_plan::policy::whole_launch::{
    Confidence, Family, FamilyFit, Model, WeightedTerm, WholeLaunch,
};
use tilewright_plan::{Policy, Request, SpaceOptions, Target, plan};

fn fit(family: Family) -> FamilyFit {
    let mut features: Vec<_> = whole_launch::features(family, 32).into_iter().flatten().collect();
    features.sort();
    features.dedup();
    let terms = features
        .into_iter()
        .map(|(term, capacity)| WeightedTerm { term, capacity, coefficient: 1e-3 })
        .collect();
    FamilyFit {
        model: Model::new(family, terms).expect("every term once"),
        confidence: Confidence {
            level: 0.9,
            low: 0.8,
            high: 1.25,
            slack: 1.1,
            margin: 1.1,
            ranges: vec![[0.0, 1e12]; family.inputs().len()],
            rows: 0,
            cases: 0,
            shapes: 0,
        },
    }
}

/// Median microseconds of a call.
fn median(mut call: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..301)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn measure(name: &str, limit: f64, program: &Program, options: &SpaceOptions, policy: &dyn Policy) {
    let target = Target::apple_m1_max();
    let facts = analysis::facts(program);
    let request = Request::new(program, &facts).options(options.clone());
    let ranking = plan(&request, &target, policy).expect("a plan");
    let us = median(|| {
        black_box(plan(black_box(&request), &target, policy).expect("a plan"));
    });
    let (legal, all) = (ranking.order.len(), ranking.candidates.len());
    println!(
        "{name:<44} {us:>9.1} us  ({legal} legal of {all} candidates; the aim is under {limit} us)"
    );
}

fn main() {
    let library = |op: &str, shape: &[u64]| {
        ops::build(op, &OpRequest::shaped(DType::F32, shape)).expect("a library op")
    };
    let whole =
        WholeLaunch::new("apple-m1-max", vec![fit(Family::GpuRows), fit(Family::GpuMatrix)]);
    let service = ReductionService::default();
    let rows = SpaceOptions::default();
    for (op, shape) in
        [("softmax", [1024, 4096]), ("rmsnorm", [37, 1537]), ("layernorm", [64, 769])]
    {
        let program = library(op, &shape);
        let name = format!("{op} {}x{}, whole-launch", shape[0], shape[1]);
        measure(&name, 50.0, &program, &rows, &whole);
        let name = format!("{op} {}x{}, reduction-service", shape[0], shape[1]);
        measure(&name, 50.0, &program, &rows, &service);
    }
    // 100 blocks × 5 widths.
    let mut blocks = Vec::new();
    for m in (16..=160).step_by(16) {
        for n in (16..=160).step_by(16) {
            blocks.push([m, n, 32]);
        }
    }
    let products = SpaceOptions {
        blocks: Some(blocks),
        threads: Some(vec![32, 64, 128, 256, 512]),
        max_candidates: 500,
        ..SpaceOptions::default()
    };
    let program = library("gemm", &[960, 960, 1024]);
    measure("gemm 960x960x1024, whole-launch", 1000.0, &program, &products, &whole);
}
