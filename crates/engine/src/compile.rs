//! From a plan to compiled code: the best candidate that lowering and the device accept.

use crate::bound::Bound;
use crate::error::{EngineError, RejectedPlan};
use crate::handle::{Handle, LaunchOptions};
use crate::launch_error::LaunchError;
use crate::plan::{Plan, PlanOptions};
use crate::resources::{Resources, SPILLS, TRIES, add_report};
use crate::tensor::{Input, Output};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tilewright_ir::Program;
use tilewright_kernel::kernel::Kernel;
use tilewright_kernel::lower::Rule;
use tilewright_plan::{Hash256, ResourceTable, Rule as PlanRule, Target};
use tilewright_runtime::{Device, Executable, RuntimeError};

/// A device with the programs that were compiled for it. Clones share both.
#[derive(Clone)]
pub struct Engine {
    device: Arc<dyn Device>,
    cache: Arc<Mutex<HashMap<Hash256, Compiled>>>,
    /// What the device's compiler reported of what was compiled here.
    reports: Arc<Mutex<ResourceTable>>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("device", self.device.capabilities()).finish()
    }
}

impl Engine {
    /// An engine on a device.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Engine { device, cache: Arc::default(), reports: Arc::default() }
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// What the planner knows of the device.
    pub fn target(&self) -> &Target {
        self.device.target()
    }

    /// Plans a program for the device; without a resource table with the one that is shipped for
    /// its target, if there is one.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn plan(&self, program: &Program, options: &PlanOptions) -> Result<Plan, EngineError> {
        let mut options = options.clone();
        if options.resources.is_none() {
            options.resources = Resources::shipped(self.target(), self.device.compiler());
        }
        Plan::new(program, self.target(), &options)
    }

    /// What the device's compiler reported of what was compiled here: rows for the next planning.
    pub fn reports(&self) -> ResourceTable {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Compiles the best candidate that lowering and the device accept. A plan that was compiled
    /// before is taken from the cache; its key covers the program, its sizes, the target, the
    /// policy with its coefficients, and the space.
    ///
    /// # Errors
    /// No candidate is legal; every legal one was rejected; or something failed that must not be
    /// passed over: the device, or a rule by which Tilewright contradicts itself.
    pub fn compile(&self, plan: &Plan) -> Result<Compiled, EngineError> {
        let key = plan.key();
        let cached = |cache: &HashMap<Hash256, Compiled>| cache.get(&key).cloned();
        if let Some(compiled) = cached(&self.cache.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(compiled);
        }
        let compiled = compile(plan, self.device.as_ref())?;
        if let Some(report) = compiled.handle().executable().compiler_report() {
            let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
            add_report(&mut reports, compiled.launches(), &report, &compiled.describe());
        }
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        // Where two threads compiled one plan, the first one's code is kept.
        Ok(cache.entry(key).or_insert(compiled).clone())
    }

    /// Compiles kernels that were made for a program elsewhere, such as those of a published list.
    /// They have no ranking; `text` says where they come from. Nothing is cached.
    ///
    /// # Errors
    /// The program is invalid, the kernels' arguments come from nothing in it, or the device
    /// refuses a kernel or fails.
    pub fn compile_stated(
        &self,
        program: &Program,
        launches: Vec<Kernel>,
        text: &str,
    ) -> Result<Compiled, EngineError> {
        let plan = Plan::stated(program, self.target(), text)?;
        let executable = self.device.compile(&launches).map_err(|e| e.under_plan(text))?;
        join(&plan, None, text, Vec::new(), launches, executable)
    }

    /// Number of compiled plans in the cache.
    pub fn cached(&self) -> usize {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// A compiled program: the launch handle, and how it came about. Clones share the code.
#[derive(Clone, Debug)]
pub struct Compiled {
    handle: Handle,
    origin: Arc<Origin>,
}

#[derive(Debug)]
struct Origin {
    plan: Plan,
    /// The compiled plan in one line.
    text: String,
    chosen: Option<usize>,
    rejected: Vec<RejectedPlan>,
    launches: Vec<Kernel>,
}

impl Compiled {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.origin.plan
    }

    /// Index of the compiled candidate in the ranking; `None` for the general lowering.
    pub fn chosen(&self) -> Option<usize> {
        self.origin.chosen
    }

    /// The compiled plan in one line.
    pub fn describe(&self) -> String {
        self.origin.text.clone()
    }

    /// Candidates that ranked higher and were rejected after planning.
    pub fn rejected(&self) -> &[RejectedPlan] {
        &self.origin.rejected
    }

    /// The kernels, in launch order.
    pub fn launches(&self) -> &[Kernel] {
        &self.origin.launches
    }

    /// The launch handle.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Sets the value that a run-time scalar has unless a launch states another.
    ///
    /// # Errors
    /// As [`Handle::set_scalar`].
    pub fn set_scalar(&mut self, name: &str, value: f64) -> Result<(), LaunchError> {
        self.handle.set_scalar(name, value)
    }

    /// Runs once with one output; see [`Handle::run`].
    ///
    /// # Errors
    /// A broken precondition or a failed launch.
    pub fn run(&self, inputs: &[&dyn Input], output: &mut dyn Output) -> Result<(), LaunchError> {
        self.handle.run(inputs, output)
    }

    /// Runs once with stated sizes and scalars; see [`Handle::run_with`].
    ///
    /// # Errors
    /// A broken precondition or a failed launch.
    pub fn run_with(
        &self,
        options: &LaunchOptions,
        inputs: &[&dyn Input],
        outputs: &mut [&mut dyn Output],
    ) -> Result<(), LaunchError> {
        self.handle.run_with(options, inputs, outputs)
    }

    /// Checks everything once, for repeated launches; see [`Handle::bind`].
    ///
    /// # Errors
    /// A broken precondition.
    pub fn bind<'a, const N: usize>(
        &'a self,
        options: &LaunchOptions,
        inputs: &[&'a dyn Input],
        outputs: [&'a mut dyn Output; N],
    ) -> Result<Bound<'a>, LaunchError> {
        self.handle.bind(options, inputs, outputs)
    }

    /// As [`Compiled::bind`], for any number of outputs.
    ///
    /// # Errors
    /// A broken precondition.
    pub fn bind_all<'a>(
        &'a self,
        options: &LaunchOptions,
        inputs: &[&'a dyn Input],
        outputs: &mut [&'a mut dyn Output],
    ) -> Result<Bound<'a>, LaunchError> {
        self.handle.bind_all(options, inputs, outputs)
    }
}

/// How a plan without candidates is described.
const GENERAL: &str = "general lowering, slow";

/// The first candidate in rank whose code spills, for the case that the next ones spill too.
struct Spilling {
    candidate: usize,
    launches: Vec<Kernel>,
    executable: Box<dyn Executable>,
    /// How many candidates had been rejected before it.
    before: usize,
}

fn compile(plan: &Plan, device: &dyn Device) -> Result<Compiled, EngineError> {
    plan.require()?;
    if plan.general.is_some() {
        let lowered = plan.lower_general()?;
        let executable = device.compile(&lowered.launches);
        let executable = executable.map_err(|e| e.under_plan(GENERAL))?;
        return join(plan, None, GENERAL, Vec::new(), lowered.launches, executable);
    }
    let mut rejected: Vec<RejectedPlan> = Vec::new();
    let mut spilling: Option<Spilling> = None;
    let mut spilled = 0;
    for &candidate in &plan.ranking.order {
        if spilled == TRIES {
            break;
        }
        let before = rejected.len();
        let mut reject = |rule: String, detail: String| {
            let plan = plan.describe(candidate);
            rejected.push(RejectedPlan { candidate, plan, rule, detail });
        };
        let lowered = match plan.lower(candidate) {
            Ok(lowered) => lowered,
            Err(error) if matches!(error.rule, Rule::ClosedForm | Rule::Invalid) => {
                return Err(error.into());
            }
            Err(error) => {
                reject(error.rule.name().to_string(), error.detail);
                continue;
            }
        };
        let executable = match device.compile(&lowered.launches) {
            Ok(executable) => executable,
            Err(RuntimeError::Unsupported { rule, failure }) => {
                reject(rule, failure.detail);
                continue;
            }
            Err(error) => return Err(error.under_plan(&plan.describe(candidate)).into()),
        };
        let spills = executable
            .compiler_report()
            .map_or(0, |report| report.kernels.iter().map(|k| k.spilled_bytes).max().unwrap_or(0));
        if spills > SPILLS {
            let detail = format!("as compiled, a thread spills {spills} bytes");
            reject(PlanRule::ResourceSpills.name().to_string(), detail);
            spilled += 1;
            let launches = lowered.launches;
            spilling.get_or_insert(Spilling { candidate, launches, executable, before });
            continue;
        }
        return join(plan, Some(candidate), GENERAL, rejected, lowered.launches, executable);
    }
    if let Some(Spilling { candidate, launches, executable, before }) = spilling {
        rejected.truncate(before);
        return join(plan, Some(candidate), GENERAL, rejected, launches, executable);
    }
    Err(EngineError::Rejected { program: plan.program.name.clone(), rejected })
}

/// Joins code with its program; `unranked` is what a plan without candidates is called.
fn join(
    plan: &Plan,
    chosen: Option<usize>,
    unranked: &str,
    rejected: Vec<RejectedPlan>,
    launches: Vec<Kernel>,
    executable: Box<dyn Executable>,
) -> Result<Compiled, EngineError> {
    let text = chosen.map_or_else(|| unranked.to_string(), |c| plan.describe(c));
    let handle = Handle::of_plan(&plan.program, &launches, executable, text.clone())?;
    let origin = Origin { plan: plan.clone(), text, chosen, rejected, launches };
    Ok(Compiled { handle, origin: Arc::new(origin) })
}
