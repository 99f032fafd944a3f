//! The object that `plan --json` prints. Numbers have full precision.

use serde::{Deserialize, Serialize};
use tilewright_ir::facts::Payload;

use crate::mapping::Mapping;
use crate::policy::CandidateFacts;
use crate::policy::whole_launch::advice::Guard;
use crate::profile::Standing;
use crate::ranking::{Candidate, Ranking, describe};

/// The `schema` of the object.
pub const SCHEMA: &str = "tilewright-plan-v1";

/// A ranking in JSON.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PlanObject {
    /// [`SCHEMA`].
    pub schema: String,
    /// The operation's name.
    pub op: String,
    /// The shape as on the command line: `ROWSxCOLUMNS` or `MxNxK`.
    pub shape: String,
    /// Element type of the inputs.
    pub dtype: String,
    /// Name of the target.
    pub target: String,
    /// SHA-256 of the target's facts.
    pub target_hash: String,
    /// Name of the policy.
    pub policy: String,
    /// Unit of the scores.
    pub unit: String,
    /// SHA-256 of everything that the ranking depends on.
    pub key: String,
    /// Index of the winner in `candidates`, or null.
    pub chosen: Option<usize>,
    /// Where the coefficients come from, or null if they are built in.
    pub profile: Option<ProfileObject>,
    /// What the policy says about its own trust in the winner, or null if it can't say.
    pub advice: Option<AdviceObject>,
    /// The model's winner beside the plan of the target's default policy, or null without a model.
    pub guard: Option<GuardObject>,
    /// What the winner's kernels use, or null where that isn't known before they are compiled.
    pub resources: Option<ResourcesObject>,
    /// Candidates: all in the order of the space, or the best ones in rank order.
    pub candidates: Vec<CandidateObject>,
}

/// Whether a profile is a default, and why.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ProfileObject {
    /// Whether it may be used where none is asked for; it is opt-in otherwise.
    pub default: bool,
    /// Why.
    pub reason: String,
}

impl From<&Standing> for ProfileObject {
    fn from(standing: &Standing) -> Self {
        ProfileObject { default: standing.default, reason: standing.reason.clone() }
    }
}

/// A policy's advice on a ranking.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct AdviceObject {
    /// Predicted microseconds of the winner.
    pub prediction_us: f64,
    /// Interval that is to hold the winner's time.
    pub interval_us: [f64; 2],
    /// Share of times that it is to hold.
    pub level: f64,
    /// How many of the best-ranked candidates are worth measuring.
    pub shortlist: usize,
    /// Why the winner shouldn't be trusted without measuring ("measure this one"), or null.
    pub abstains: Option<String>,
}

/// The model's winner beside the incumbent.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct GuardObject {
    /// The incumbent's mapping in words.
    pub incumbent: String,
    /// Its rank by the model, 1 for the winner.
    pub rank: usize,
    /// Its predicted microseconds.
    pub prediction_us: f64,
    /// Its prediction / the winner's.
    pub predicted_gain: f64,
    /// What the gain must exceed.
    pub margin: f64,
    /// Whether the winner replaces the incumbent.
    pub accepted: bool,
}

impl From<&Guard> for GuardObject {
    fn from(guard: &Guard) -> Self {
        GuardObject {
            incumbent: describe(&guard.incumbent),
            rank: guard.rank + 1,
            prediction_us: guard.prediction,
            predicted_gain: guard.gain,
            margin: guard.margin,
            accepted: guard.accepted,
        }
    }
}

/// What the kernels of a plan use: the most of any of them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ResourcesObject {
    /// Who says so: a compiler, by a resource table, or `closed form`: upper bounds.
    pub source: String,
    /// SHA-256 of the resource table that the plan was made with, or null without one.
    pub table_sha256: Option<String>,
    /// Registers of a thread.
    pub registers: u64,
    /// Bytes of spilled registers of a thread, or null where nobody says.
    pub spilled_bytes: Option<u64>,
    /// Bytes of shared memory of a group.
    pub shared_bytes: u64,
    /// Groups that a core holds at the same time.
    pub groups_per_core: u64,
}

/// One candidate.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CandidateObject {
    /// Whether it may run.
    pub legal: bool,
    /// Name of the rule that rejects it, or null.
    pub rule: Option<String>,
    /// The numbers that break the rule, or null.
    pub detail: Option<String>,
    /// Cost of one program (for `reduction-service` the local term), null when illegal.
    pub program_score: Option<f64>,
    /// Waves, null when illegal.
    pub waves: Option<f64>,
    /// Cost of the launch, null when illegal.
    pub kernel_score: Option<f64>,
    /// Facts of the mapping.
    #[serde(flatten)]
    pub facts: FactsObject,
}

/// Facts of a candidate, by family.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum FactsObject {
    /// Rows.
    Rows(RowObject),
    /// Subgroup fragments.
    Matrix(MatrixObject),
    /// CPU register tiles.
    CpuMatrix(CpuMatrixObject),
    /// GPU register tiles.
    GpuMatrix(GpuMatrixObject),
}

/// Payload bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct PayloadObject {
    pub global_read: u64,
    pub global_write: u64,
    pub private_read: u64,
    pub private_write: u64,
}

impl From<Payload> for PayloadObject {
    fn from(p: Payload) -> Self {
        PayloadObject {
            global_read: p.global_read,
            global_write: p.global_write,
            private_read: p.private_read,
            private_write: p.private_write,
        }
    }
}

/// Facts of a row candidate. Names as in the reference; see [`crate::rows::RowCounts`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RowObject {
    pub threads: u64,
    pub lanes: u32,
    pub subgroups: u32,
    pub cluster: u32,
    pub split: u32,
    pub cache: bool,
    pub ahead: bool,
    pub vector: u32,
    pub unroll: u32,
    pub accumulators: u32,
    pub pack: u32,
    pub fuse: bool,
    pub slots: u64,
    pub private_scalars: u64,
    pub scalar_rounds: u64,
    pub reductions: u64,
    pub programs: u64,
    pub groups: u64,
    pub lane_utilization: f64,
    pub shared_bytes: u64,
    pub barriers: u64,
    pub program_bytes: Option<PayloadObject>,
    pub worker_bytes: Option<PayloadObject>,
}

/// Facts of a matrix candidate; features are null where no distribution covers the block.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct MatrixObject {
    pub block: [u64; 3],
    pub threads: u32,
    pub stages: u32,
    /// gm, gn, rm, rn.
    pub distribution: Option<[u64; 4]>,
    pub forward_a: bool,
    pub forward_b: bool,
    pub persistent: bool,
    pub direct: bool,
    pub overwrite: bool,
    pub programs: u64,
    pub executions: u64,
    pub independent_elements: u64,
    pub shared_bytes: u64,
    pub barriers: u64,
    pub fragment_scalars_per_lane: Option<u64>,
    pub matrix_issues: Option<f64>,
    pub shared_fragment_transfers: Option<f64>,
    pub direct_fragment_stores: Option<f64>,
    pub metal_mpp_operations: Option<f64>,
    pub memory_fragment_reads: Option<f64>,
    pub lhs_footprint_fragments: Option<f64>,
    pub rhs_footprint_fragments: Option<f64>,
    pub accumulator_initializations: Option<f64>,
    pub tile_aspect_fragments: Option<f64>,
    pub local_row_aspect_issues: Option<f64>,
    pub local_column_aspect_issues: Option<f64>,
}

/// Facts of a CPU matrix candidate; see [`crate::mapping::CpuMatrixMapping`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct CpuMatrixObject {
    pub lanes: u32,
    pub group: [u64; 2],
    pub tile: [u32; 2],
    pub depth: u64,
    pub columns: u64,
    pub pack_a: bool,
    pub pack_b: bool,
    pub stream: bool,
    pub cpu_threads: u32,
    pub groups: u64,
    pub steps: u64,
    pub scratch_bytes: u64,
}

/// Facts of a GPU register-tile candidate; see [`crate::mapping::GpuMatrixMapping`] and
/// [`crate::policy::gpu_matrix::GpuMatrixCounts`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct GpuMatrixObject {
    /// BM, BN, elements of K per step.
    pub block: [u64; 3],
    pub threads: u64,
    pub warps: [u32; 3],
    pub lane_grid: [u32; 2],
    pub lane_tile: [u32; 2],
    pub stages: u32,
    pub unroll: u32,
    pub slices: u32,
    pub copy: [u32; 2],
    pub groups: u64,
    pub steps: u64,
    pub registers: u64,
    pub shared_bytes: u64,
    pub resident: u64,
    pub scratch_bytes: u64,
}

impl FactsObject {
    fn new(candidate: &Candidate) -> Option<FactsObject> {
        Some(match (&candidate.mapping, &candidate.facts) {
            (Mapping::Rows(m), CandidateFacts::Rows(c)) => FactsObject::Rows(RowObject {
                threads: c.threads,
                lanes: m.lanes,
                subgroups: m.subgroups,
                cluster: m.cluster,
                split: m.split,
                cache: m.cache,
                ahead: m.ahead,
                vector: m.vector,
                unroll: m.unroll,
                accumulators: m.accumulators,
                pack: m.pack,
                fuse: m.fuse,
                slots: c.slots,
                private_scalars: c.private_scalars,
                scalar_rounds: c.scalar_rounds,
                reductions: c.reductions,
                programs: c.programs,
                groups: c.groups,
                lane_utilization: c.lane_utilization,
                shared_bytes: c.shared_bytes,
                barriers: c.barriers,
                program_bytes: c.program_bytes.map(PayloadObject::from),
                worker_bytes: c.worker_bytes.map(PayloadObject::from),
            }),
            (Mapping::Matrix(m), CandidateFacts::Matrix(c)) => {
                let [gm, gn] = m.subgroups;
                let [rm, rn] = m.atoms;
                // Without an exact cover there are no atoms and so no features.
                let covered = rm > 0 && rn > 0;
                let feature = |value: f64| covered.then_some(value);
                let f = &c.features;
                FactsObject::Matrix(MatrixObject {
                    block: m.block,
                    threads: m.threads,
                    stages: m.stages,
                    distribution: covered.then_some([gm, gn, rm, rn]),
                    forward_a: m.forward_a,
                    forward_b: m.forward_b,
                    persistent: m.persistent,
                    direct: m.direct,
                    overwrite: m.overwrite,
                    programs: c.programs,
                    executions: c.executions,
                    independent_elements: c.independent_elements,
                    shared_bytes: c.shared_bytes,
                    barriers: c.barriers,
                    fragment_scalars_per_lane: covered.then_some(c.fragment_scalars_per_lane),
                    matrix_issues: feature(f.matrix_issues),
                    shared_fragment_transfers: feature(f.shared_fragment_transfers),
                    direct_fragment_stores: feature(f.direct_fragment_stores),
                    metal_mpp_operations: feature(f.metal_mpp_operations),
                    memory_fragment_reads: feature(f.memory_fragment_reads),
                    lhs_footprint_fragments: feature(f.lhs_footprint_fragments),
                    rhs_footprint_fragments: feature(f.rhs_footprint_fragments),
                    accumulator_initializations: feature(f.accumulator_initializations),
                    tile_aspect_fragments: feature(f.tile_aspect_fragments),
                    local_row_aspect_issues: feature(f.local_row_aspect_issues),
                    local_column_aspect_issues: feature(f.local_column_aspect_issues),
                })
            }
            (Mapping::CpuMatrix(m), CandidateFacts::CpuMatrix(c)) => {
                FactsObject::CpuMatrix(CpuMatrixObject {
                    lanes: m.lanes,
                    group: m.group,
                    tile: m.tile,
                    depth: m.depth,
                    columns: m.columns,
                    pack_a: m.pack_a,
                    pack_b: m.pack_b,
                    stream: m.stream,
                    cpu_threads: m.threads,
                    groups: c.groups,
                    steps: c.steps,
                    scratch_bytes: c.scratch_bytes,
                })
            }
            (Mapping::GpuMatrix(m), CandidateFacts::GpuMatrix(c)) => {
                let [bm, bn] = m.block();
                FactsObject::GpuMatrix(GpuMatrixObject {
                    block: [bm, bn, m.depth.into()],
                    threads: c.threads,
                    warps: m.warps,
                    lane_grid: m.lanes,
                    lane_tile: m.tile,
                    stages: m.stages,
                    unroll: m.unroll,
                    slices: m.slices,
                    copy: m.copy,
                    groups: c.groups,
                    steps: c.steps,
                    registers: c.registers,
                    shared_bytes: c.shared_bytes,
                    resident: c.resident,
                    scratch_bytes: c.scratch_bytes,
                })
            }
            _ => return None,
        })
    }
}

impl CandidateObject {
    /// A candidate in JSON; `None` if its mapping and facts are of different families, which the
    /// planner never makes.
    pub fn new(candidate: &Candidate) -> Option<Self> {
        let score = candidate.verdict.as_ref().ok();
        let rejection = candidate.verdict.as_ref().err();
        Some(CandidateObject {
            legal: score.is_some(),
            rule: rejection.map(|r| r.rule.name().to_string()),
            detail: rejection.map(|r| r.detail.clone()),
            program_score: score.map(|s| s.program),
            waves: score.map(|s| s.waves),
            kernel_score: score.map(|s| s.kernel),
            facts: FactsObject::new(candidate)?,
        })
    }
}

impl PlanObject {
    /// A ranking in JSON: every candidate in the order of the space, or with `top` the best ones
    /// in rank order. `standing` is that of the profile, `guard` the winner beside the incumbent,
    /// where there is one. What the kernels use is left out.
    pub fn new(
        ranking: &Ranking,
        [op, shape, dtype]: [&str; 3],
        top: Option<usize>,
        standing: Option<&Standing>,
        guard: Option<&Guard>,
    ) -> Self {
        let (indices, chosen): (Vec<usize>, Option<usize>) = match top {
            None => ((0..ranking.candidates.len()).collect(), ranking.chosen()),
            Some(top) => {
                let best: Vec<usize> = ranking.order.iter().copied().take(top).collect();
                let chosen = (!best.is_empty()).then_some(0);
                (best, chosen)
            }
        };
        PlanObject {
            schema: SCHEMA.to_string(),
            op: op.to_string(),
            shape: shape.to_string(),
            dtype: dtype.to_string(),
            target: ranking.target.clone(),
            target_hash: ranking.target_hash.to_string(),
            policy: ranking.policy.clone(),
            unit: ranking.unit.name().to_string(),
            key: ranking.key.to_string(),
            chosen,
            profile: standing.map(ProfileObject::from),
            advice: ranking.advice.as_ref().map(|advice| AdviceObject {
                prediction_us: advice.prediction,
                interval_us: advice.interval,
                level: advice.level,
                shortlist: advice.shortlist,
                abstains: advice.abstention.as_ref().map(ToString::to_string),
            }),
            guard: guard.map(GuardObject::from),
            resources: None,
            candidates: indices
                .into_iter()
                .filter_map(|i| ranking.candidates.get(i))
                .filter_map(CandidateObject::new)
                .collect(),
        }
    }
}
