//! What compilers report of kernels: what a plan does with it, and what a compilation adds.

use crate::plan::Plan;
use std::sync::Arc;
use tilewright_ir::facts::Family;
use tilewright_kernel::kernel::Kernel;
use tilewright_kernel::text;
use tilewright_plan::json::ResourcesObject;
use tilewright_plan::legality::Rejection;
use tilewright_plan::mapping::Mapping;
use tilewright_plan::policy::{CandidateFacts, gpu_rows};
use tilewright_plan::problem::RowProblem;
use tilewright_plan::resources::Row;
use tilewright_plan::target::GpuFacts;
use tilewright_plan::{Hash256, KernelResources, Request, ResourceTable, Rule, Target};
use tilewright_runtime::CompilerReport;

/// Candidates in rank order that are looked up, or compiled, for one that doesn't spill.
pub(crate) const TRIES: usize = 4;

/// Most bytes of spilled registers of a thread that are let pass. Of 250 cases whose candidates were
/// all measured on an NVIDIA H200 (`benches/cuda/labels`) the best spills in one, 24 bytes; of the
/// 600 candidates that spill more than 64 bytes two are within 5 % of the best of their case.
pub(crate) const SPILLS: u64 = 64;

/// A table, and whose rows come first.
#[derive(Clone, Debug)]
pub struct Resources {
    /// The rows.
    pub table: Arc<ResourceTable>,
    /// The compiler whose rows come first: the device's.
    pub compiler: Option<String>,
}

impl Resources {
    /// The table that is shipped for a target, if there is one.
    pub fn shipped(target: &Target, compiler: Option<String>) -> Option<Resources> {
        let table = Arc::new(ResourceTable::shipped(target)?);
        Some(Resources { table, compiler })
    }
}

/// Who says so where no compiler does.
pub const CLOSED_FORM: &str = "closed form";

/// What the kernels of one plan use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Use {
    /// Who reported it: a compiler, or [`CLOSED_FORM`].
    pub compiler: String,
    /// Most registers of a thread.
    pub registers: u64,
    /// Most bytes of spilled registers of a thread; `None` where nobody says.
    pub spilled_bytes: Option<u64>,
    /// Most bytes of shared memory of a group.
    pub shared_bytes: u64,
    /// Fewest groups that a core holds at the same time.
    pub groups_per_core: u64,
}

/// The key of a kernel in a resource table.
pub fn kernel_hash(kernel: &Kernel) -> Hash256 {
    Hash256::of(text::print(kernel).as_bytes())
}

/// Adds a compiler's report of a plan's kernels to a table; `name` is for people.
pub fn add_report(
    table: &mut ResourceTable,
    launches: &[Kernel],
    report: &CompilerReport,
    name: &str,
) {
    for (kernel, resources) in launches.iter().zip(&report.kernels) {
        let row = Row { resources: *resources, name: format!("{}: {name}", kernel.name) };
        table.insert(kernel_hash(kernel), &report.compiler, row);
    }
}

/// Whether what kernels use lets them run as they should.
///
/// # Errors
/// [`Rule::ResourceSpills`], or [`Rule::RegisterBudget`] where a core doesn't hold one group.
fn judge(gpu: &GpuFacts, kernels: &[KernelResources]) -> Result<(), Rejection> {
    for kernel in kernels {
        if kernel.groups_per_core(gpu) == Some(0) {
            let detail = format!(
                "as compiled, a group of {} threads with {} registers each and {} bytes of shared \
                 memory doesn't fit a core",
                kernel.threads, kernel.registers, kernel.shared_bytes
            );
            return Err(Rejection::new(Rule::RegisterBudget, detail));
        }
        if kernel.spilled_bytes > SPILLS {
            let detail = format!("as compiled, a thread spills {} bytes", kernel.spilled_bytes);
            return Err(Rejection::new(Rule::ResourceSpills, detail));
        }
    }
    Ok(())
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Use { compiler, registers, shared_bytes, groups_per_core, .. } = self;
        match self.spilled_bytes {
            None => write!(f, "at most {registers} registers a thread")?,
            Some(bytes) => write!(f, "{registers} registers a thread, {bytes} bytes spilled")?,
        }
        write!(f, ", {shared_bytes} bytes of shared memory, {groups_per_core} groups a core")?;
        write!(f, " ({compiler})")
    }
}

impl Plan {
    /// The reports of a candidate's kernels with who made them, where the table has all.
    fn reports(&self, candidate: usize) -> Option<(String, Vec<KernelResources>)> {
        let Resources { table, compiler } = self.resources.as_ref()?;
        let lowered = self.lower(candidate).ok()?;
        let mut found = Vec::new();
        let mut by = None;
        for kernel in &lowered.launches {
            let (compiler, resources) = table.get(kernel_hash(kernel), compiler.as_deref())?;
            by.get_or_insert_with(|| compiler.to_string());
            found.push(resources);
        }
        by.map(|by| (by, found))
    }

    /// What a candidate uses by the plan's resource table; `None` where that lacks a kernel of it.
    pub fn uses(&self, candidate: usize) -> Option<Use> {
        let gpu = self.target.gpu_facts()?;
        let (compiler, kernels) = self.reports(candidate)?;
        let most = |f: fn(&KernelResources) -> u64| kernels.iter().map(f).max().unwrap_or(0);
        Some(Use {
            compiler,
            registers: most(|k| k.registers),
            spilled_bytes: Some(most(|k| k.spilled_bytes)),
            shared_bytes: most(|k| k.shared_bytes),
            groups_per_core: kernels.iter().filter_map(|k| k.groups_per_core(gpu)).min()?,
        })
    }

    /// Upper bounds of what a candidate's main kernel uses, in closed form; `None` on targets that
    /// don't state their registers.
    pub fn bound(&self, candidate: usize) -> Option<Use> {
        let gpu = self.target.gpu_facts().filter(|gpu| gpu.states_registers())?;
        let candidate = self.ranking.candidates.get(candidate)?;
        let (registers, shared_bytes, groups_per_core) =
            match (&candidate.mapping, &candidate.facts, &self.facts.family) {
                (Mapping::Rows(m), CandidateFacts::Rows(counts), Family::Rows(facts)) => {
                    let mut request = Request::new(&self.program, &self.facts);
                    request.sizes = self.sizes.clone();
                    let problem = RowProblem::new(&request, facts).ok()?;
                    let registers = gpu_rows::registers(&problem, m, problem.columns);
                    let resident = gpu_rows::resident(gpu, &problem, m);
                    (registers, counts.shared_bytes, resident)
                }
                (_, CandidateFacts::GpuMatrix(counts), _) => {
                    (counts.registers, counts.shared_bytes, counts.resident)
                }
                _ => return None,
            };
        let compiler = CLOSED_FORM.to_string();
        Some(Use { compiler, registers, spilled_bytes: None, shared_bytes, groups_per_core })
    }

    /// What the winner uses, or bounds of it, for JSON.
    pub fn resources_object(&self) -> Option<ResourcesObject> {
        let winner = self.ranking.chosen()?;
        let found = self.uses(winner).or_else(|| self.bound(winner))?;
        Some(ResourcesObject {
            source: found.compiler,
            table_sha256: self.resources.as_ref().map(|r| r.table.hash().to_string()),
            registers: found.registers,
            spilled_bytes: found.spilled_bytes,
            shared_bytes: found.shared_bytes,
            groups_per_core: found.groups_per_core,
        })
    }

    /// Rejects the candidates before the first in rank that no report speaks against, as far as a
    /// few go; where each of those has a fault, the ranking stays as it is. The order of what is
    /// left never changes.
    pub(crate) fn reject_reported(&mut self) {
        let (Some(_), Some(gpu), None) = (&self.resources, self.target.gpu_facts(), &self.general)
        else {
            return;
        };
        let mut faults = Vec::new();
        let mut stands = false;
        for &candidate in self.ranking.order.iter().take(TRIES) {
            match self.reports(candidate).map(|(_, kernels)| judge(gpu, &kernels)) {
                Some(Err(fault)) => faults.push((candidate, fault)),
                Some(Ok(())) | None => {
                    stands = true;
                    break;
                }
            }
        }
        if !stands {
            return;
        }
        for (candidate, fault) in faults {
            if let Some(candidate) = self.ranking.candidates.get_mut(candidate) {
                candidate.verdict = Err(fault);
            }
            self.ranking.order.retain(|index| *index != candidate);
        }
    }
}
