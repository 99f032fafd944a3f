//! What plans and compilations do with what compilers report of kernels.

use std::sync::Arc;
use tilewright_engine::resources::{CLOSED_FORM, kernel_hash};
use tilewright_engine::{Engine, Plan, PlanOptions, Resources};
use tilewright_ir::ops::{OpRequest, build};
use tilewright_ir::{DType, Program};
use tilewright_kernel::kernel::Kernel;
use tilewright_plan::resources::Row;
use tilewright_plan::{KernelResources, ResourceTable, Rule, Target};
use tilewright_runtime::{
    ArgValue, Capabilities, CompilerReport, Device, Executable, ResourceReport, Roofline,
    RuntimeError,
};

const COMPILER: &str = "assembler 1.0 sm_90";

fn uses(registers: u64, spilled_bytes: u64) -> KernelResources {
    KernelResources { threads: 256, registers, spilled_bytes, shared_bytes: 0 }
}

/// A device whose compiler spills in the kernels that a rule names, and launches nothing.
struct Spilling {
    capabilities: Capabilities,
    target: Target,
    spills: fn(usize) -> bool,
    compiled: std::sync::atomic::AtomicUsize,
}

struct Code(CompilerReport);

impl Executable for Code {
    unsafe fn launch(&self, _: &[ArgValue]) -> Result<(), RuntimeError> {
        Ok(())
    }
    fn disassembly(&self) -> String {
        String::new()
    }
    fn report(&self) -> ResourceReport {
        ResourceReport::default()
    }
    fn compiler_report(&self) -> Option<CompilerReport> {
        Some(self.0.clone())
    }
}

impl Device for Spilling {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn compiler(&self) -> Option<String> {
        Some(COMPILER.to_string())
    }
    fn compile(&self, launches: &[Kernel]) -> Result<Box<dyn Executable>, RuntimeError> {
        let number = self.compiled.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let spilled = if (self.spills)(number) { 65 } else { 64 };
        let kernels = launches.iter().map(|_| uses(40, spilled)).collect();
        Ok(Box::new(Code(CompilerReport { compiler: COMPILER.to_string(), kernels })))
    }
    fn roofline(&self, _: DType, _: usize) -> Option<Roofline> {
        None
    }
}

fn engine(spills: fn(usize) -> bool) -> Engine {
    let capabilities = Capabilities {
        name: "spilling".to_string(),
        model: String::new(),
        isa: String::new(),
        threads: 1,
        memory_bytes: None,
        notes: vec![],
    };
    let (target, compiled) = (Target::nvidia_h200(), Default::default());
    Engine::new(Arc::new(Spilling { capabilities, target, spills, compiled }))
}

fn softmax() -> Program {
    build("softmax", &OpRequest::shaped(DType::F32, &[37, 1537])).unwrap()
}

fn plan_with(table: ResourceTable) -> Plan {
    let resources =
        Some(Resources { table: Arc::new(table), compiler: Some(COMPILER.to_string()) });
    let options = PlanOptions { resources, ..PlanOptions::default() };
    Plan::new(&softmax(), &Target::nvidia_h200(), &options).unwrap()
}

/// A table in which each of the first plans in rank has a row.
fn table(plan: &Plan, rows: &[KernelResources]) -> ResourceTable {
    let mut table = ResourceTable::default();
    for (candidate, resources) in plan.ranking.order.iter().zip(rows) {
        for kernel in plan.lower(*candidate).unwrap().launches {
            let row = Row { resources: *resources, name: String::new() };
            table.insert(kernel_hash(&kernel), COMPILER, row);
        }
    }
    table
}

#[test]
fn a_row_rejects_and_never_reorders() {
    let plain = plan_with(ResourceTable::default());
    let order = plain.ranking.order.clone();
    // The first spills, the second doesn't fit a core, the third is good.
    let reported = plan_with(table(&plain, &[uses(40, 65), uses(257, 0), uses(32, 64)]));
    assert_eq!(reported.ranking.order, order[2..]);
    let rule = |candidate: usize| {
        let verdict = &reported.ranking.candidates[candidate].verdict;
        verdict.as_ref().map(|_| ()).map_err(|rejection| rejection.rule)
    };
    assert_eq!(rule(order[0]), Err(Rule::ResourceSpills));
    assert_eq!(rule(order[1]), Err(Rule::RegisterBudget));
    let used = reported.uses(order[2]).unwrap();
    assert_eq!((used.registers, used.spilled_bytes, used.groups_per_core), (32, Some(64), 8));
    // Without a row the closed form stands, which promises no spills.
    assert_eq!(plain.uses(order[0]), None);
    let bound = plain.bound(order[0]).unwrap();
    assert_eq!((bound.compiler.as_str(), bound.spilled_bytes), (CLOSED_FORM, None));
    assert!(bound.registers >= 24 && bound.groups_per_core >= 1, "{bound}");
    assert_eq!(reported.resources_object().unwrap().source, COMPILER);
    assert_eq!(plain.resources_object().unwrap().source, CLOSED_FORM);
}

#[test]
fn where_all_of_the_first_spill_the_ranking_stays() {
    let plain = plan_with(ResourceTable::default());
    let four = plan_with(table(&plain, &[uses(40, 65); 4]));
    assert_eq!(four.ranking.order, plain.ranking.order);
    let three = plan_with(table(&plain, &[uses(40, 65); 3]));
    assert_eq!(three.ranking.order, plain.ranking.order[3..]);
}

#[test]
fn the_table_is_part_of_the_key() {
    let plain = plan_with(ResourceTable::default());
    let one = plan_with(table(&plain, &[uses(40, 0)]));
    assert_eq!(one.ranking.order, plain.ranking.order);
    assert_ne!(one.key(), plain.key());
    assert_eq!(one.key(), plan_with(table(&plain, &[uses(40, 0)])).key());
    assert_ne!(one.key(), plan_with(table(&plain, &[uses(48, 0)])).key());
    let without = Plan::new(&softmax(), &Target::nvidia_h200(), &PlanOptions::default()).unwrap();
    assert_ne!(without.key(), plain.key(), "an empty table is a table");
}

#[test]
fn a_compilation_that_spills_gives_way_and_is_reported() {
    // Which candidates spill, which one is chosen, how many are rejected.
    type Case = (fn(usize) -> bool, usize, usize);
    let cases: [Case; 3] = [(|_| false, 0, 0), (|n| n < 2, 2, 2), (|_| true, 0, 0)];
    for (spills, chosen, rejected) in cases {
        let engine = engine(spills);
        let plan = engine.plan(&softmax(), &PlanOptions::default()).unwrap();
        let compiled = engine.compile(&plan).unwrap();
        assert_eq!(compiled.chosen(), Some(plan.ranking.order[chosen]));
        assert_eq!(compiled.rejected().len(), rejected);
        assert!(compiled.rejected().iter().all(|r| r.rule == "resource-spills"));
        // What was compiled is a row for the next planning, of that compiler.
        let reports = engine.reports();
        for kernel in compiled.launches() {
            let (by, found) = reports.get(kernel_hash(kernel), None).unwrap();
            assert_eq!((by, found.registers), (COMPILER, 40));
        }
    }
}
