//! Planning a program for a target, and lowering any candidate of the plan.

use crate::error::EngineError;
use crate::resources::Resources;
use std::collections::BTreeMap;
use std::sync::Arc;
use tilewright_ir::Program;
use tilewright_ir::analysis;
use tilewright_ir::facts::{Facts, Family};
use tilewright_ir::program::Extent;
use tilewright_ir::verify::verify;
use tilewright_kernel::lower::{self, LowerError, Lowered};
use tilewright_plan::hash::Canonical;
use tilewright_plan::mapping::Mapping;
use tilewright_plan::ranking::{Ranking, describe};
use tilewright_plan::{Hash256, PlanError, Policy, Request, Rule, SpaceOptions, Target, policy};

/// What to plan with.
#[derive(Clone, Default)]
pub struct PlanOptions {
    /// Cost policy; the target's default if `None`.
    pub policy: Option<Arc<dyn Policy>>,
    /// Candidate space.
    pub space: SpaceOptions,
    /// Nominal sizes of symbolic dimensions, by name.
    pub sizes: BTreeMap<String, u64>,
    /// What compilers reported of kernels, where a plan is to use it.
    pub resources: Option<Resources>,
}

impl std::fmt::Debug for PlanOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanOptions")
            .field("policy", &self.policy.as_ref().map(|p| p.name().to_string()))
            .field("space", &self.space)
            .field("sizes", &self.sizes)
            .field("resources", &self.resources.as_ref().map(|r| r.table.hash()))
            .finish()
    }
}

/// A planned program: what is proved of it, and every candidate in rank order.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program, verified. Its blocks aren't bound.
    pub program: Program,
    /// What is proved of it.
    pub facts: Facts,
    /// The target.
    pub target: Target,
    /// The ranking. Without a candidate if the program is in no planned family.
    pub ranking: Ranking,
    /// Why the program is in no planned family, if it is in none. Such a program runs by a slow
    /// general lowering.
    pub general: Option<String>,
    /// Nominal sizes of symbolic dimensions, by name.
    pub sizes: BTreeMap<String, u64>,
    /// What compilers reported of kernels, as the plan was made with it.
    pub resources: Option<Resources>,
}

impl Plan {
    /// Verifies, analyses and plans a program. A pure function of its arguments.
    ///
    /// # Errors
    /// The program is invalid, or planning fails. A ranking without a legal candidate is no
    /// error here, so that it can be printed.
    pub fn new(
        program: &Program,
        target: &Target,
        options: &PlanOptions,
    ) -> Result<Self, EngineError> {
        verify(program).map_err(EngineError::Invalid)?;
        let program = &lower::resident(program, target);
        let facts = analysis::facts(program);
        let mut request = Request::new(program, &facts).options(options.space.clone());
        request.sizes = options.sizes.clone();
        let default;
        let policy: &dyn Policy = match &options.policy {
            Some(policy) => policy.as_ref(),
            None => {
                let rows = !matches!(facts.family, Family::Matrix(_));
                default = policy::by_name(policy::default_name(target, rows), None)?;
                default.as_ref()
            }
        };
        let (ranking, general) = match tilewright_plan::plan(&request, target, policy) {
            Ok(ranking) => {
                let reason = without_atoms(&ranking, target)
                    .or_else(|| without_room(&ranking, target, &options.space));
                (ranking, reason)
            }
            Err(PlanError::Family(reason)) => (unranked(program, target, policy), Some(reason)),
            Err(error) => return Err(error.into()),
        };
        let resources = options.resources.clone();
        let (program, target) = (program.clone(), target.clone());
        let sizes = options.sizes.clone();
        let mut plan = Plan { program, facts, target, ranking, general, sizes, resources };
        plan.reject_reported();
        Ok(plan)
    }

    /// What is known of a program whose kernels were made elsewhere: its facts, and no candidate.
    ///
    /// # Errors
    /// The program is invalid, or the target has no policy.
    pub fn stated(program: &Program, target: &Target, text: &str) -> Result<Self, EngineError> {
        verify(program).map_err(EngineError::Invalid)?;
        let facts = analysis::facts(program);
        let rows = !matches!(facts.family, Family::Matrix(_));
        let policy = policy::by_name(policy::default_name(target, rows), None)?;
        let ranking = unranked(program, target, policy.as_ref());
        let (program, target) = (program.clone(), target.clone());
        let general = Some(text.to_string());
        let sizes = BTreeMap::new();
        Ok(Plan { program, facts, target, ranking, general, sizes, resources: None })
    }

    /// Checks that there is something to compile: a legal candidate, or the general lowering.
    ///
    /// # Errors
    /// No candidate is legal.
    pub fn require(&self) -> Result<(), PlanError> {
        if self.general.is_none() {
            self.ranking.winner()?;
        }
        Ok(())
    }

    /// Hash of everything that the plan depends on.
    pub fn key(&self) -> Hash256 {
        let Some(Resources { table, compiler }) = &self.resources else { return self.ranking.key };
        let mut key = Canonical::new("plan with resources");
        key.text("ranking", &self.ranking.key.to_string())
            .text("table", &table.hash().to_string())
            .text("compiler", compiler.as_deref().unwrap_or(""));
        key.hash()
    }

    /// The program with the blocks of a mapping bound, ready for lowering.
    pub fn bound_program(&self, mapping: &Mapping) -> Program {
        let mut program = self.program.clone();
        if let (Mapping::Matrix(m), Family::Matrix(facts)) = (mapping, &self.facts.family) {
            for (extent, size) in facts.block.iter().zip(m.block) {
                if let Extent::Dim(d) = extent {
                    let name = program.dims[*d].name.clone();
                    // A block that the program fixes is rejected by the planner where it
                    // differs, so binding can't fail.
                    let _ = program.bind(&name, size);
                }
            }
        }
        program
    }

    /// Lowers the program without a plan, slowly.
    ///
    /// # Errors
    /// A tile has no usable bound of its size, or its storage is over the limit.
    pub fn lower_general(&self) -> Result<Lowered, LowerError> {
        let bytes = self.program.values.iter().map(|(_, v)| v.ty.dtype.bytes()).max();
        let lanes = match (self.target.cpu_facts(), self.target.gpu_facts()) {
            (Some(cpu), _) => cpu.lanes(bytes.unwrap_or(4).max(4)),
            (None, Some(gpu)) => gpu.lanes,
            (None, None) => 1,
        };
        lower::lower_any(&self.program, lanes, &self.lower_options())
    }

    fn lower_options(&self) -> lower::Options {
        lower::Options::for_target(&self.target)
    }

    /// Lowers a candidate by its index in the ranking.
    ///
    /// # Errors
    /// The candidate breaks a rule of lowering, or there is no such candidate.
    pub fn lower(&self, candidate: usize) -> Result<Lowered, LowerError> {
        let Some(candidate) = self.ranking.candidates.get(candidate) else {
            return Err(LowerError {
                program: self.program.name.clone(),
                rule: lower::Rule::MappingRange,
                detail: format!("there is no candidate {candidate}"),
            });
        };
        let mapping = &candidate.mapping;
        let program = self.bound_program(mapping);
        // Facts of the program as planned hold for it with its blocks bound; those that the
        // blocks decide are stronger now.
        let facts = analysis::facts(&program);
        lower::lower(&program, &facts, mapping, &self.lower_options())
    }

    /// The top of the ranking in words, or why there is none.
    pub fn explain(&self, top: usize) -> String {
        match &self.general {
            None => self.ranking.explain(top),
            Some(reason) => {
                format!("no planned family fits, so a slow general lowering is used: {reason}\n")
            }
        }
    }

    /// A candidate in one line.
    pub fn describe(&self, candidate: usize) -> String {
        self.ranking.candidates.get(candidate).map_or_else(String::new, |c| describe(&c.mapping))
    }
}

/// Whether a target is a GPU whose register file is known: an NVIDIA GPU.
fn states_registers(target: &Target) -> bool {
    target.gpu_facts().is_some_and(|gpu| gpu.registers_per_core.is_some())
}

/// Why a GPU has no way to multiply with the program's types, if it has none: then the program is
/// in no planned family there. A ranking in which anything else rejects a candidate is left alone.
fn without_atoms(ranking: &Ranking, target: &Target) -> Option<String> {
    target.gpu_facts()?;
    let mut reason = format!("target `{}` has no matrix space", target.name);
    for candidate in &ranking.candidates {
        match &candidate.verdict {
            Err(rejection) if matches!(rejection.rule, Rule::TargetDtype | Rule::MatrixAtom) => {
                reason = format!("on target `{}` {}", target.name, rejection.detail);
            }
            _ => return None,
        }
    }
    Some(reason)
}

/// Why no candidate of a whole space is legal on an NVIDIA GPU, if none is: its rows are too long
/// for every mapping. A space that the caller limited is left alone, and so is a ranking with
/// anything legal.
fn without_room(ranking: &Ranking, target: &Target, space: &SpaceOptions) -> Option<String> {
    if !states_registers(target) || !ranking.order.is_empty() || *space != SpaceOptions::default() {
        return None;
    }
    let rules: Vec<String> =
        ranking.rejections().iter().map(|(rule, n)| format!("{n} by {rule}")).collect();
    Some(format!(
        "none of {} candidates is legal on target `{}` ({})",
        ranking.candidates.len(),
        target.name,
        rules.join(", ")
    ))
}

/// The ranking of a program that has no candidates.
fn unranked(program: &Program, target: &Target, policy: &dyn Policy) -> Ranking {
    let mut key = Canonical::new("general");
    key.text("program", &format!("{program:?}")).text("target", &target.hash().to_string());
    Ranking {
        target: target.name.clone(),
        target_hash: target.hash(),
        policy: policy.name().to_string(),
        unit: policy.unit(),
        key: key.hash(),
        candidates: Vec::new(),
        order: Vec::new(),
        advice: None,
    }
}
