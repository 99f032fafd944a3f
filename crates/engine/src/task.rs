//! A program with what is needed to plan and launch it: `task.plan(&engine)?.compile()?`.

use crate::compile::{Compiled, Engine};
use crate::error::EngineError;
use crate::plan::{Plan, PlanOptions};
use std::sync::Arc;
use tilewright_ir::Program;
use tilewright_plan::{Policy, SpaceOptions};

/// A program, nominal sizes for its symbolic dimensions, values for its run-time scalars, and how
/// to choose its schedule.
#[derive(Clone, Debug)]
pub struct Task {
    program: Program,
    options: PlanOptions,
    scalars: Vec<(String, f64)>,
}

impl Task {
    /// A program to run. It is verified when it is planned.
    pub fn new(program: Program) -> Self {
        Task { program, options: PlanOptions::default(), scalars: Vec::new() }
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// States the size that a symbolic dimension usually has. The plan is chosen for it; the
    /// compiled code serves every size that the dimension allows.
    pub fn size(mut self, dim: &str, size: u64) -> Self {
        self.options.sizes.insert(dim.to_string(), size);
        self
    }

    /// States the value of a run-time scalar. A launch may state another.
    pub fn scalar(mut self, name: &str, value: f64) -> Self {
        self.scalars.push((name.to_string(), value));
        self
    }

    /// Ranks candidates with this policy instead of the target's default.
    pub fn policy(mut self, policy: Arc<dyn Policy>) -> Self {
        self.options.policy = Some(policy);
        self
    }

    /// Limits the candidate space.
    pub fn space(mut self, space: SpaceOptions) -> Self {
        self.options.space = space;
        self
    }

    /// Plans for the engine's device.
    ///
    /// # Errors
    /// The program is invalid, a size is missing, the request is illegal, the policy fails, or no
    /// candidate is legal.
    pub fn plan(&self, engine: &Engine) -> Result<Planned, EngineError> {
        let plan = engine.plan(&self.program, &self.options)?;
        plan.require().map_err(EngineError::Plan)?;
        Ok(Planned { engine: engine.clone(), plan, scalars: self.scalars.clone() })
    }
}

/// A planned task.
#[derive(Clone, Debug)]
pub struct Planned {
    engine: Engine,
    plan: Plan,
    scalars: Vec<(String, f64)>,
}

impl Planned {
    /// The plan: facts, candidates, ranking.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The top of the ranking in words.
    pub fn explain(&self) -> String {
        self.plan.explain(5)
    }

    /// Compiles the best candidate that lowering and the device accept.
    ///
    /// # Errors
    /// As [`Engine::compile`]; a scalar that the program doesn't have or that must not be zero.
    pub fn compile(&self) -> Result<Compiled, EngineError> {
        let mut compiled = self.engine.compile(&self.plan)?;
        for (name, value) in &self.scalars {
            compiled.set_scalar(name, *value)?;
        }
        Ok(compiled)
    }
}
