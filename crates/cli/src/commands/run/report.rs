//! What `run` prints.

use crate::request::Request;
use crate::table::{digits, rate, time};
use crate::work::{Limit, Work};
use serde::Serialize;
use std::path::PathBuf;
use tilewright_engine::check::CheckReport;
use tilewright_engine::timing::Timing;
use tilewright_engine::{Compiled, Plan};
use tilewright_ir::facts::Family;
use tilewright_plan::json::CandidateObject;
use tilewright_runtime::{Capabilities, ResourceReport, Roofline};

/// Candidates that are shown beside the winner.
const TOP: usize = 3;

/// Everything that a run found out.
pub struct Outcome<'a> {
    pub request: &'a Request,
    pub capabilities: &'a Capabilities,
    pub threads: usize,
    pub plan: &'a Plan,
    pub compiled: &'a Compiled,
    pub check: CheckReport,
    pub random_seed: Option<u64>,
    pub work: Work,
    pub roofline: Option<Roofline>,
    pub timing: Option<Timing>,
    pub written: &'a [PathBuf],
}

/// The object that `run --json` prints.
#[derive(Serialize)]
pub struct Report {
    schema: &'static str,
    op: String,
    shape: String,
    dtype: &'static str,
    device: DeviceObject,
    plan: PlanSummary,
    resources: ResourceReport,
    check: CheckObject,
    time: Option<TimeObject>,
    outputs: Vec<String>,
    #[serde(skip)]
    explanation: String,
    /// Whether it is a matrix product.
    #[serde(skip)]
    product: bool,
    /// Bytes of the last-level cache; 0 where unknown.
    #[serde(skip)]
    cache_bytes: f64,
}

#[derive(Serialize)]
struct DeviceObject {
    name: String,
    model: String,
    isa: String,
    threads: usize,
}

#[derive(Serialize)]
struct PlanSummary {
    /// The mapping in one line.
    mapping: String,
    policy: String,
    unit: String,
    key: String,
    candidates: usize,
    legal: usize,
    /// Best first; the compiled one is the first that isn't in `rejected`.
    top: Vec<CandidateObject>,
    rejected: Vec<RejectedObject>,
}

#[derive(Serialize)]
struct RejectedObject {
    mapping: String,
    rule: String,
    detail: String,
}

#[derive(Serialize)]
struct CheckObject {
    passed: bool,
    complaint: Option<String>,
    /// Seed of random inputs; null where files were read.
    seed: Option<u64>,
    outputs: Vec<OutputObject>,
    broken_guards: Vec<String>,
    changed_inputs: Vec<String>,
    written_gaps: Vec<String>,
}

#[derive(Serialize)]
struct OutputObject {
    tensor: String,
    elements: u64,
    failures: u64,
    max_error: f64,
    /// The bound at the element of the largest error.
    bound: f64,
    /// Largest error relative to its own bound.
    worst_ratio: f64,
}

#[derive(Serialize)]
struct TimeObject {
    /// `host` or `device`: whose clock timed the batches.
    clock: &'static str,
    cold_us: f64,
    median_us: f64,
    p10_us: f64,
    p90_us: f64,
    spread: f64,
    repetitions: u64,
    samples_us: Vec<f64>,
    flops: f64,
    bytes: f64,
    flops_per_second: f64,
    bytes_per_second: f64,
    roofline: Option<Roofline>,
    /// `arithmetic` or `memory`: which ceiling is nearer.
    limit: Option<&'static str>,
    /// Shortest time under the ceilings over the median; null without a measured roofline.
    roofline_fraction: Option<f64>,
}

/// Operations per byte in words.
fn intensity(flops: f64, bytes: f64) -> String {
    match flops > 0.0 && bytes > 0.0 {
        true => format!("{} FLOP a byte", digits(flops / bytes, 3)),
        false => "no arithmetic".to_string(),
    }
}

impl Report {
    /// `notes` are lines about the profile of the plan.
    pub fn new(outcome: Outcome<'_>, notes: &str) -> Self {
        let ranking = &outcome.plan.ranking;
        let (capabilities, work) = (outcome.capabilities, outcome.work);
        let time = outcome.timing.as_ref().map(|timing| {
            let median = timing.median_us();
            let floor = outcome.roofline.map(|roofline| work.floor_us(&roofline));
            TimeObject {
                clock: timing.clock.name(),
                cold_us: timing.cold_us,
                median_us: median,
                p10_us: timing.quantile_us(0.1),
                p90_us: timing.quantile_us(0.9),
                spread: timing.spread(),
                repetitions: timing.repetitions,
                samples_us: timing.samples_us.clone(),
                flops: work.flops,
                bytes: work.bytes,
                flops_per_second: work.flops / median * 1e6,
                bytes_per_second: work.bytes / median * 1e6,
                roofline: outcome.roofline,
                limit: floor.map(|(_, limit)| match limit {
                    Limit::Arithmetic => "arithmetic",
                    Limit::Memory => "memory",
                }),
                roofline_fraction: floor.map(|(floor, _)| floor / median),
            }
        });
        let check = CheckObject {
            passed: outcome.check.passed(),
            complaint: outcome.check.complaint(),
            seed: outcome.random_seed,
            outputs: outcome
                .check
                .outputs
                .iter()
                .map(|o| OutputObject {
                    tensor: o.tensor.clone(),
                    elements: o.comparison.elements,
                    failures: o.comparison.failures,
                    max_error: o.comparison.max_error,
                    bound: o.comparison.bound_there,
                    worst_ratio: o.comparison.worst_ratio,
                })
                .collect(),
            broken_guards: outcome.check.broken_guards.clone(),
            changed_inputs: outcome.check.changed_inputs.clone(),
            written_gaps: outcome.check.written_gaps.clone(),
        };
        let written: &[PathBuf] = if check.passed { outcome.written } else { &[] };
        Report {
            schema: "tilewright-run-v1",
            op: outcome.request.op.clone(),
            shape: outcome.request.shape.clone(),
            dtype: outcome.request.dtype.name(),
            device: DeviceObject {
                name: capabilities.name.clone(),
                model: capabilities.model.clone(),
                isa: capabilities.isa.clone(),
                threads: outcome.threads,
            },
            plan: PlanSummary {
                mapping: outcome.compiled.describe(),
                policy: ranking.policy.clone(),
                unit: ranking.unit.name().to_string(),
                key: ranking.key.to_string(),
                candidates: ranking.candidates.len(),
                legal: ranking.order.len(),
                top: ranking
                    .order
                    .iter()
                    .take(TOP)
                    .filter_map(|i| ranking.candidates.get(*i))
                    .filter_map(CandidateObject::new)
                    .collect(),
                rejected: outcome
                    .compiled
                    .rejected()
                    .iter()
                    .map(|r| RejectedObject {
                        mapping: r.plan.clone(),
                        rule: r.rule.clone(),
                        detail: r.detail.clone(),
                    })
                    .collect(),
            },
            resources: outcome.compiled.handle().executable().report(),
            check,
            time,
            outputs: written.iter().map(|p| p.display().to_string()).collect(),
            explanation: outcome.plan.explain(TOP) + notes,
            product: matches!(outcome.plan.facts.family, Family::Matrix(_)),
            cache_bytes: outcome.plan.target.cpu_facts().map_or(0.0, |cpu| cpu.l3_bytes as f64),
        }
    }

    /// The text for people: the answer first.
    pub fn text(&self) -> String {
        let mut out = format!("{} {} {}", self.op, self.shape, self.dtype);
        if let Some(time_object) = &self.time {
            out.push_str(&format!(": {}", self.speed(time_object)));
        }
        out.push('\n');
        let device = &self.device;
        let threads = if device.threads == 1 { "thread" } else { "threads" };
        let mut line = |label: &str, text: &str| out.push_str(&format!("  {label:<8} {text}\n"));
        line(
            "device",
            &format!(
                "{} ({}), {}, {} {threads}",
                device.name, device.model, device.isa, device.threads
            ),
        );
        line("plan", &self.plan.mapping);
        for rejected in &self.plan.rejected {
            line(
                "",
                &format!(
                    "after rejecting {} ({}: {})",
                    rejected.mapping, rejected.rule, rejected.detail
                ),
            );
        }
        let data = match self.check.seed {
            Some(seed) => format!("random inputs, seed {seed}"),
            None => "inputs from files".to_string(),
        };
        for output in &self.check.outputs {
            let verdict = if output.failures == 0 { "ok" } else { "WRONG" };
            line(
                "check",
                &format!(
                    "{verdict}: {} elements of `{}` against the float64 oracle; largest error {} \
                 (bound {} there), {}",
                    output.elements,
                    output.tensor,
                    digits(output.max_error, 3),
                    digits(output.bound, 3),
                    data
                ),
            );
        }
        if let Some(t) = &self.time {
            line(
                "work",
                &format!(
                    "{} FLOP, {} bytes at least, {}",
                    digits(t.flops, 4),
                    digits(t.bytes, 4),
                    intensity(t.flops, t.bytes)
                ),
            );
            line(
                "time",
                &format!(
                    "median {} ± {} %, first call {} ({} batches of {}{})",
                    time(t.median_us),
                    digits(t.spread * 100.0, 2),
                    time(t.cold_us),
                    t.samples_us.len(),
                    t.repetitions,
                    if t.clock == "device" { ", the device's clock" } else { "" }
                ),
            );
            if let Some(roofline) = &t.roofline {
                line(
                    "machine",
                    &format!(
                        "measured {} and {} copy with {} {threads}",
                        rate(roofline.flops_per_second, "FLOP/s"),
                        rate(roofline.bytes_per_second, "B/s"),
                        device.threads
                    ),
                );
            }
        }
        for path in &self.outputs {
            line("wrote", path);
        }
        out.push_str(&format!("\nWhy this plan: {}", self.explanation));
        out
    }

    fn speed(&self, t: &TimeObject) -> String {
        // The rate that the nearer ceiling bounds; of a product always its arithmetic.
        let memory = t.limit == Some("memory") && !self.product || t.flops == 0.0;
        let rate = if memory {
            rate(t.bytes_per_second, "B/s")
        } else {
            rate(t.flops_per_second, "FLOP/s")
        };
        let roof = match (t.roofline_fraction, t.limit) {
            (Some(fraction), Some(limit)) => {
                let cached = fraction > 1.0 && limit == "memory" && t.bytes <= self.cache_bytes;
                let note = if cached { ": the data fits the caches" } else { "" };
                format!(", {} % of the {limit} roofline{note}", digits(fraction * 100.0, 3))
            }
            _ => String::new(),
        };
        format!("{}, {rate}{roof}", time(t.median_us))
    }
}
