//! What the tests of emitted text share: kernels of the op library for the M1 Max.
#![allow(dead_code)]

pub mod constructs;

use tilewright_ir::analysis;
use tilewright_ir::ops::{self, OpRequest};
use tilewright_ir::{DType, Program};
use tilewright_kernel::kernel::Kernel;
use tilewright_kernel::lower::{self, lower, lower_any};
use tilewright_metal::{Module, Options, emit};
use tilewright_plan::mapping::Mapping;
use tilewright_plan::{Candidate, Ranking, Request, SpaceOptions, Target, plan, policy};

/// A library program of a shape, as it is planned for a GPU.
pub fn program(op: &str, shape: &[u64], dtype: DType) -> Program {
    let request = OpRequest::shaped(dtype, shape);
    let program = ops::build(op, &request).unwrap_or_else(|e| panic!("{op} {shape:?}: {e}"));
    lower::resident(&program, &Target::apple_m1_max())
}

/// Ranks a program on the M1 Max.
pub fn ranked(program: &Program, policy: &str, options: SpaceOptions) -> Ranking {
    let facts = analysis::facts(program);
    let request = Request::new(program, &facts).options(options);
    let policy = policy::by_name(policy, None).unwrap_or_else(|e| panic!("{e}"));
    plan(&request, &Target::apple_m1_max(), policy.as_ref())
        .unwrap_or_else(|e| panic!("{}: {e}", program.name))
}

fn lowering() -> lower::Options {
    lower::Options::for_target(&Target::apple_m1_max())
}

/// The kernel of a mapping.
pub fn kernel(program: &Program, mapping: &Mapping) -> Kernel {
    let facts = analysis::facts(program);
    let lowered = lower(program, &facts, mapping, &lowering());
    let lowered = lowered.unwrap_or_else(|e| panic!("{mapping:?}: {e}"));
    let [kernel] = lowered.launches.as_slice() else { panic!("not one launch") };
    kernel.clone()
}

/// The kernel of a candidate.
pub fn candidate_kernel(program: &Program, candidate: &Candidate) -> Kernel {
    kernel(program, &candidate.mapping)
}

/// The kernel of the general lowering.
pub fn general(program: &Program) -> Kernel {
    let lowered = lower_any(program, 32, &lowering()).unwrap_or_else(|e| panic!("{e}"));
    let [kernel] = lowered.launches.as_slice() else { panic!("not one launch") };
    kernel.clone()
}

/// A kernel as MSL.
pub fn module(kernel: &Kernel) -> Module {
    emit(kernel, &Options::default())
        .unwrap_or_else(|e| panic!("{e}\n{}", tilewright_kernel::text::print(kernel)))
}
