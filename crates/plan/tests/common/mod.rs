//! What the golden tests share: the published figures and rankings of the library's programs.
#![allow(dead_code)]

use serde_json::Value;
use tilewright_ir::ops::{self, OpRequest};
use tilewright_ir::{DType, Program, analysis};
use tilewright_plan::mapping::{Mapping, MatrixMapping, RowMapping};
use tilewright_plan::matrix::MatrixCounts;
use tilewright_plan::policy::CandidateFacts;
use tilewright_plan::rows::RowCounts;
use tilewright_plan::{Candidate, Policy, Ranking, Request, SpaceOptions, Target, plan};

pub fn data(name: &str) -> Value {
    let path = format!("{}/tests/data/m1max/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

pub fn list<'a>(value: &'a Value, key: &str) -> &'a Vec<Value> {
    value[key].as_array().unwrap_or_else(|| panic!("no list `{key}`"))
}

pub fn integer(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no integer `{key}` in {value}"))
}

pub fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or_else(|| panic!("no number `{key}` in {value}"))
}

pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("no text `{key}` in {value}"))
}

pub fn flag(value: &Value, key: &str) -> bool {
    value[key].as_bool().unwrap_or_else(|| panic!("no flag `{key}` in {value}"))
}

pub fn program(op: &str, shape: &[u64]) -> Program {
    let request = OpRequest::shaped(DType::F32, shape);
    ops::build(op, &request).unwrap_or_else(|e| panic!("{op}: {e}"))
}

/// Ranks a library program on the M1 Max.
pub fn ranked(op: &str, shape: &[u64], policy: &dyn Policy, options: SpaceOptions) -> Ranking {
    ranked_on(&Target::apple_m1_max(), op, shape, policy, options)
}

pub fn ranked_on(
    target: &Target,
    op: &str,
    shape: &[u64],
    policy: &dyn Policy,
    options: SpaceOptions,
) -> Ranking {
    let program = program(op, shape);
    let facts = analysis::facts(&program);
    let request = Request::new(&program, &facts).options(options);
    plan(&request, target, policy).unwrap_or_else(|e| panic!("{op} {shape:?}: {e}"))
}

pub fn rows(candidate: &Candidate) -> (&RowMapping, &RowCounts) {
    match (&candidate.mapping, &candidate.facts) {
        (Mapping::Rows(mapping), CandidateFacts::Rows(counts)) => (mapping, counts),
        other => panic!("not rows: {other:?}"),
    }
}

pub fn matrix(candidate: &Candidate) -> (&MatrixMapping, &MatrixCounts) {
    match (&candidate.mapping, &candidate.facts) {
        (Mapping::Matrix(mapping), CandidateFacts::Matrix(counts)) => (mapping, counts),
        other => panic!("not a matrix product: {other:?}"),
    }
}

/// The row candidate of that width and reuse choice.
pub fn row_candidate(ranking: &Ranking, threads: u64, cache: bool) -> &Candidate {
    let mut found = ranking.candidates.iter().filter(|c| {
        let (mapping, counts) = rows(c);
        counts.threads == threads && mapping.cache == cache
    });
    found.next().unwrap_or_else(|| panic!("no candidate of {threads} threads, cache {cache}"))
}

/// The matrix candidate of that block and width.
pub fn matrix_candidate(ranking: &Ranking, block: [u64; 3], threads: u32) -> &Candidate {
    let mut found = ranking.candidates.iter().filter(|c| {
        let (mapping, _) = matrix(c);
        mapping.block == block && mapping.threads == threads
    });
    found.next().unwrap_or_else(|| panic!("no candidate {block:?} of {threads} threads"))
}

pub fn kernel_score(candidate: &Candidate) -> f64 {
    match &candidate.verdict {
        Ok(score) => score.kernel,
        Err(rejection) => panic!("{rejection}"),
    }
}

pub fn close(a: f64, b: f64, relative: f64) -> bool {
    (a - b).abs() <= relative * b.abs()
}

/// A case name like `softmax_37x1537`.
pub fn case(name: &str) -> (String, [u64; 2]) {
    let (op, shape) = name.rsplit_once('_').unwrap_or_else(|| panic!("case {name}"));
    let (rows, columns) = shape.split_once('x').unwrap_or_else(|| panic!("case {name}"));
    let size = |text: &str| text.parse().unwrap_or_else(|_| panic!("case {name}"));
    (op.to_string(), [size(rows), size(columns)])
}
