//! A case with everything that follows from it without measuring: its program, the ranking of its
//! candidates, the model's inputs of each, its tensors.

use crate::case::{Case, CaseFamily};
use crate::error::StudyError;
use crate::spec::{Space, Widths};
use std::collections::BTreeMap;
use std::str::FromStr;
use tilewright_engine::check::LaunchValues;
use tilewright_engine::{Plan, PlanOptions, Resources, Signature};
use tilewright_ir::facts::Family as IrFamily;
use tilewright_ir::oracle::{self, Data};
use tilewright_ir::program::Access;
use tilewright_ir::{DType, Program};
use tilewright_plan::mapping::Mapping;
use tilewright_plan::policy::CandidateView;
use tilewright_plan::policy::whole_launch::{Family, Inputs};
use tilewright_plan::problem::{MatrixProblem, Problem, RowProblem};
use tilewright_plan::{Request, SpaceOptions, Target};
use tilewright_runtime::Buffer;

/// More candidates than any space of a study has; the planner's own budget is for interactive use.
const MAX_CANDIDATES: usize = 1 << 16;

/// Value of the scalar that the `scale` epilogue takes.
const SCALE: f64 = 0.5;

/// A case, planned.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The case.
    pub case: Case,
    /// Its plan under the target's default policy, which is the incumbent.
    pub plan: Plan,
    /// Sizes and scalars of a launch.
    pub values: LaunchValues,
    /// Its contract.
    pub signature: Signature,
}

/// A legal candidate.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// Index in the space.
    pub plan: usize,
    /// How it runs.
    pub mapping: Mapping,
    /// What the model sees of it.
    pub inputs: Vec<f64>,
    /// The incumbent policy's score.
    pub score: f64,
}

/// The measured candidates of a case.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidates {
    /// The model family.
    pub family: Family,
    /// In the order of the space.
    pub list: Vec<Candidate>,
    /// Position of the incumbent.
    pub incumbent: usize,
}

impl Subject {
    /// Plans a case for a target.
    ///
    /// # Errors
    /// The case has no program, or planning fails.
    pub fn new(case: &Case, target: &Target, space: &Space) -> Result<Self, StudyError> {
        let fault = |message: String| StudyError::Case { case: case.id.clone(), message };
        let program = case.program().map_err(fault)?;
        let options = PlanOptions {
            space: space_options(case, target, space),
            resources: Resources::shipped(target, None),
            ..PlanOptions::default()
        };
        let plan = Plan::new(&program, target, &options)?;
        plan.ranking.winner().map_err(|e| fault(e.to_string()))?;
        let scalars = program.scalars.iter().map(|(_, s)| (s.name.clone(), SCALE)).collect();
        let values = LaunchValues { dims: Vec::new(), scalars };
        let signature = Signature::of(&program)
            .map_err(|e| StudyError::Engine(tilewright_engine::EngineError::Launch(e)))?;
        Ok(Subject { case: case.clone(), plan, values, signature })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.plan.program
    }

    /// Number of legal candidates.
    pub fn legal(&self) -> usize {
        self.plan.ranking.order.len()
    }

    /// The incumbent policy's score of a candidate of the space; it alone orders them.
    pub fn score(&self, plan: usize) -> f64 {
        let candidate = self.plan.ranking.candidates.get(plan);
        candidate.and_then(|c| c.verdict.as_ref().ok()).map_or(f64::MAX, |s| s.kernel)
    }

    /// Candidates to measure: every legal one; with `cap` as many, spread evenly over the order of
    /// the space; with `top` the policy's first `top`. The incumbent and those in `also`
    /// (indices in the space) are always among them.
    ///
    /// # Errors
    /// The model has no inputs for a candidate.
    pub fn candidates(
        &self,
        target: &Target,
        space: &Space,
        also: &[usize],
    ) -> Result<Candidates, StudyError> {
        let order = &self.plan.ranking.order;
        let incumbent = order.first().copied().unwrap_or(0);
        let mut legal = order.clone();
        legal.sort_unstable();
        let mut chosen: Vec<usize> = match (space.top, space.cap) {
            (Some(top), _) => order.iter().take(top.max(1)).copied().collect(),
            (None, Some(cap)) if cap < legal.len() => {
                (0..cap).filter_map(|i| legal.get(i * legal.len() / cap).copied()).collect()
            }
            _ => legal,
        };
        chosen.push(incumbent);
        chosen.extend(also);
        chosen.sort_unstable();
        chosen.dedup();
        let mut family = None;
        let mut list = Vec::with_capacity(chosen.len());
        for (plan, (of, inputs)) in chosen.iter().zip(self.inputs(target, space, &chosen)?) {
            family = Some(of);
            let candidate = &self.plan.ranking.candidates[*plan];
            list.push(Candidate {
                plan: *plan,
                mapping: candidate.mapping,
                inputs: inputs[..of.inputs().len()].to_vec(),
                score: self.score(*plan),
            });
        }
        let fault = || StudyError::Case {
            case: self.case.id.clone(),
            message: "no legal candidate".to_string(),
        };
        let family = family.ok_or_else(fault)?;
        let incumbent = list.iter().position(|c| c.plan == incumbent).ok_or_else(fault)?;
        Ok(Candidates { family, list, incumbent })
    }

    /// Model family and inputs of candidates, by their indices in the space.
    fn inputs(
        &self,
        target: &Target,
        space: &Space,
        plans: &[usize],
    ) -> Result<Vec<(Family, Inputs)>, StudyError> {
        let fault = |message: String| StudyError::Case { case: self.case.id.clone(), message };
        let options = space_options(&self.case, target, space);
        let request = Request::new(&self.plan.program, &self.plan.facts).options(options);
        let (rows, matrix);
        let problem = match &self.plan.facts.family {
            IrFamily::Rows(facts) => {
                rows = RowProblem::new(&request, facts).map_err(|e| fault(e.to_string()))?;
                Problem::Rows(&rows)
            }
            IrFamily::Matrix(facts) => {
                matrix = MatrixProblem::new(&request, facts).map_err(|e| fault(e.to_string()))?;
                Problem::Matrix(&matrix)
            }
            IrFamily::Other(reason) => return Err(fault(reason.clone())),
        };
        plans
            .iter()
            .map(|plan| {
                let candidate = &self.plan.ranking.candidates[*plan];
                let view = CandidateView {
                    target,
                    problem,
                    mapping: &candidate.mapping,
                    facts: &candidate.facts,
                    cpu_threads: threads(&self.case, target),
                };
                Family::of(&view).map_err(|e| fault(e.to_string()))
            })
            .collect()
    }

    /// Rejected candidates of the space, by rule.
    pub fn rejected(&self) -> BTreeMap<String, usize> {
        self.plan.ranking.rejections().into_iter().map(|(r, n)| (r.to_string(), n)).collect()
    }

    /// Contents of the tensors that are read, in order.
    ///
    /// # Errors
    /// Memory is short.
    pub fn inputs_data(&self, data: Data, seed: u64) -> Result<Vec<Buffer>, StudyError> {
        let engine = |e: tilewright_engine::EngineError| StudyError::Engine(e);
        let dims = self.values.dims.iter().cloned().collect();
        let all = oracle::inputs(&self.plan.program, &dims, data, seed)
            .map_err(|e| engine(tilewright_engine::EngineError::Oracle(e.to_string())))?;
        let mut buffers = Vec::new();
        for (_, tensor) in self.plan.program.tensors.iter() {
            match (tensor.access, all.get(&tensor.name)) {
                (Access::In, Some(values)) => buffers.push(
                    Buffer::from_f64(tensor.dtype, values)
                        .map_err(|e| engine(tilewright_engine::EngineError::Runtime(e)))?,
                ),
                (Access::In, None) => {}
                (Access::Out, _) => {}
                (Access::InOut, _) => {
                    return Err(StudyError::Case {
                        case: self.case.id.clone(),
                        message: format!("tensor `{}` is read and written", tensor.name),
                    });
                }
            }
        }
        Ok(buffers)
    }

    /// Poisoned outputs, in order.
    ///
    /// # Errors
    /// Memory is short.
    pub fn outputs(&self) -> Result<Vec<Buffer>, StudyError> {
        let runtime = |e| StudyError::Engine(tilewright_engine::EngineError::Runtime(e));
        let sizes = self.values.sizes(&self.signature)?;
        let mut buffers = Vec::new();
        for (i, tensor) in self.signature.tensors.iter().enumerate() {
            if tensor.access == Access::Out {
                let span = self.signature.span(i, &sizes) as usize;
                let mut buffer = Buffer::zeros(tensor.dtype, span).map_err(runtime)?;
                buffer.poison();
                buffers.push(buffer);
            }
        }
        Ok(buffers)
    }

    /// Bytes of all tensors, each once.
    ///
    /// # Errors
    /// A size is unknown.
    pub fn bytes(&self) -> Result<u64, StudyError> {
        let sizes = self.values.sizes(&self.signature)?;
        let tensors = self.signature.tensors.iter().enumerate();
        Ok(tensors.map(|(i, t)| self.signature.span(i, &sizes) * t.dtype.bytes()).sum())
    }
}

fn threads(case: &Case, target: &Target) -> u32 {
    target.cpu_facts().map_or(1, |cpu| case.threads.min(cpu.cores).max(1))
}

/// The widths of rows that the space states without naming them.
fn widths(case: &Case, target: &Target, space: &Space) -> Option<Vec<u32>> {
    let (Widths::All, cpu) = (space.widths?, target.cpu_facts()?);
    // Columns are computed in the type that accumulates them.
    let compute = DType::from_str(&case.dtype).ok()?.accumulator();
    (case.family == CaseFamily::Rows).then(|| cpu.widths(compute.bytes()))
}

fn space_options(case: &Case, target: &Target, space: &Space) -> SpaceOptions {
    SpaceOptions {
        blocks: space.blocks.clone(),
        threads: space.threads.clone().or_else(|| widths(case, target, space)),
        vector: space.vector.clone(),
        unroll: space.unroll.clone(),
        pack: space.pack.clone(),
        cpu_threads: target.cpu_facts().map(|_| threads(case, target)),
        max_candidates: MAX_CANDIDATES,
        max_thread_candidates: MAX_CANDIDATES,
        ..SpaceOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::CaseSet;
    use tilewright_plan::mapping::CpuIsa;
    use tilewright_plan::target::CpuFacts;

    fn subject(op: &str, shape: &str) -> (Subject, Target) {
        let target = Target::cpu(CpuFacts::modest(CpuIsa::Avx2, 2));
        let case = Case::new(op, "f32", shape, CaseSet::Training, 2).unwrap();
        (Subject::new(&case, &target, &Space::default()).unwrap(), target)
    }

    #[test]
    fn every_legal_candidate_has_its_inputs_and_the_incumbent_is_the_policys_first() {
        for (op, shape) in [("softmax", "37x1537"), ("gemm", "127x193x61")] {
            let (subject, target) = subject(op, shape);
            let all = subject.candidates(&target, &Space::default(), &[]).unwrap();
            assert_eq!(all.list.len(), subject.legal());
            assert!(all.list.windows(2).all(|w| w[0].plan < w[1].plan));
            let incumbent = &all.list[all.incumbent];
            assert!(all.list.iter().all(|c| c.score >= incumbent.score));
            assert!(all.list.iter().all(|c| c.inputs.iter().all(|x| x.is_finite())));
            let capped = Space { cap: Some(7), ..Space::default() };
            let last = all.list[all.list.len() - 1].plan;
            let few = subject.candidates(&target, &capped, &[last]).unwrap();
            assert!((7..=9).contains(&few.list.len()));
            assert_eq!(few.list[few.incumbent].plan, incumbent.plan);
            assert!(few.list.iter().any(|c| c.plan == last));
            let top = Space { top: Some(3), ..Space::default() };
            assert_eq!(subject.candidates(&target, &top, &[]).unwrap().list.len(), 3);
        }
    }

    /// A study of a GPU needs no GPU up to its first measurement.
    #[test]
    fn every_case_of_the_rows_of_a_gpu_has_thirty_candidates() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let study =
            crate::spec::Study::read(&path.join("../../studies/cuda-rows.toml"), false).unwrap();
        let target = Target::by_name("nvidia-h200").unwrap();
        for case in &study.cases {
            let subject = Subject::new(case, &target, &study.space).unwrap();
            let candidates = subject.candidates(&target, &study.space, &[]).unwrap();
            assert!(candidates.list.len() >= 30, "{}: {}", case.id, candidates.list.len());
            let inputs = candidates.list.iter().flat_map(|c| &c.inputs);
            assert!(inputs.into_iter().all(|x| x.is_finite()), "{}", case.id);
        }
    }

    #[test]
    fn all_widths_are_those_of_the_machine() {
        for (isa, dtype, due) in [
            (CpuIsa::Avx512, "f32", vec![16, 8]),
            (CpuIsa::Avx512, "bf16", vec![16, 8]),
            (CpuIsa::Avx512, "f64", vec![8, 4]),
            (CpuIsa::Avx2, "f32", CpuFacts::modest(CpuIsa::Avx2, 2).widths(4)),
        ] {
            let target = Target::cpu(CpuFacts::modest(isa, 2));
            let space = Space { widths: Some(Widths::All), ..Space::default() };
            let lanes = |op: &str, shape: &str| {
                let case = Case::new(op, dtype, shape, CaseSet::Training, 2).unwrap();
                let subject = Subject::new(&case, &target, &space).unwrap();
                let all = subject.candidates(&target, &space, &[]).unwrap();
                let mut lanes: Vec<u32> = Vec::new();
                for candidate in all.list {
                    if let Mapping::Rows(m) = candidate.mapping
                        && !lanes.contains(&m.lanes)
                    {
                        lanes.push(m.lanes);
                    }
                }
                lanes
            };
            assert_eq!(lanes("softmax", "37x1537"), due, "{isa:?} {dtype}");
            // Products have register tiles, whose widths the space itself decides.
            assert!(lanes("gemm", "40x50x60").is_empty());
        }
        // A GPU's own default stays.
        let gpu = Target::by_name("nvidia-h200").unwrap();
        let case = Case::new("softmax", "f32", "8x1024", CaseSet::Training, 2).unwrap();
        let space = Space { widths: Some(Widths::All), ..Space::default() };
        assert_eq!(space_options(&case, &gpu, &space).threads, None);
    }

    #[test]
    fn tensors_are_counted_and_filled() {
        let (subject, _) = subject("layernorm", "3x8");
        assert_eq!(subject.bytes().unwrap(), 4 * (24 + 8 + 8 + 24));
        let inputs = subject.inputs_data(Data::Random, 5).unwrap();
        assert_eq!(inputs.iter().map(Buffer::len).collect::<Vec<_>>(), [24, 8, 8]);
        let outputs = subject.outputs().unwrap();
        assert!(outputs[0].to_f64().iter().all(|x| x.is_nan()));
    }
}
