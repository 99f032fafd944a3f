//! A case: its program, candidates and data.

use std::sync::Arc;

use serde_json::Value;
use tilewright_cuda::driver::{Context, Function};
use tilewright_ir::facts::{Facts, Family};
use tilewright_ir::ops::Trans;
use tilewright_ir::ops::catalog::{OpRequest, build};
use tilewright_ir::program::Program;
use tilewright_ir::{DType, analysis};
use tilewright_kernel::kernel::Kernel;
use tilewright_plan::mapping::Mapping;
use tilewright_plan::policy::gpu::Gpu;
use tilewright_plan::policy::gpu_matrix::shortlist;
use tilewright_plan::problem::MatrixProblem;
use tilewright_plan::{Request, Target, plan};

use crate::Error;
use crate::product::{Ready, State};
use crate::rows::RowState;

/// What every tensor is aligned to: the allocator gives 256 bytes.
const ALIGN: u64 = 16;

/// One case with its legal candidates in the order of the space, and others that were asked for.
pub struct Case {
    pub id: String,
    pub op: String,
    pub shape: Vec<u64>,
    pub dtype: DType,
    pub set: String,
    pub program: Program,
    pub facts: Facts,
    pub mappings: Vec<Mapping>,
    /// How many of the mappings come from the space; others come after them.
    pub legal: usize,
    /// Candidates of the space, legal or not.
    pub space: usize,
}

impl Case {
    /// Plans a case.
    pub fn new(request: &Value, target: &Target) -> Result<Case, Error> {
        let text = |name: &str| {
            request[name].as_str().map(str::to_string).ok_or(format!("`{name}` is missing"))
        };
        let (op, set) = (text("op")?, text("set")?);
        let dtype: DType = text("dtype")?.parse()?;
        let shape: Vec<u64> = serde_json::from_value(request["shape"].clone())?;
        let mut program = build(&op, &OpRequest::shaped(dtype, &shape))?;
        let ids: Vec<_> = program.tensors.iter().map(|(id, _)| id).collect();
        ids.into_iter().for_each(|id| program.tensors[id].align = ALIGN);
        let facts = analysis::facts(&program);
        let ranking = plan(&Request::new(&program, &facts), target, &Gpu)?;
        let legal = ranking.candidates.iter().filter(|c| c.verdict.is_ok());
        let mut mappings: Vec<Mapping> = legal.map(|c| c.mapping).collect();
        let legal = mappings.len();
        let extra = request["extra"].as_u64().unwrap_or(0) as usize;
        if let (Family::Matrix(found), Some(gpu)) = (&facts.family, target.gpu_facts()) {
            let problem = MatrixProblem::new(&Request::new(&program, &facts), found)?;
            for (_, mapping) in shortlist(&problem, gpu, problem.copies, extra) {
                let mapping = Mapping::GpuMatrix(mapping);
                if !mappings.contains(&mapping) {
                    mappings.push(mapping);
                }
            }
        }
        let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
        let id = format!("{op}-{}-{}", dtype.name(), sizes.join("x"));
        let space = ranking.candidates.len();
        Ok(Case { id, op, shape, dtype, set, program, facts, mappings, legal, space })
    }
}

/// Data of a case on the device, with what its outputs should be.
pub enum Inputs {
    /// A product.
    Product(Box<State>),
    /// Rows.
    Rows(Box<RowState>),
}

impl Inputs {
    /// Allocates and fills the inputs.
    pub fn new(context: &Arc<Context>, case: &Case) -> Result<Inputs, Error> {
        match case.shape.as_slice() {
            &[m, n, k] => {
                let state = State::new(context, [m, n, k], Trans::Nn)?;
                Ok(Inputs::Product(Box::new(state)))
            }
            &[rows, columns] => {
                Ok(Inputs::Rows(Box::new(RowState::new(context, case, rows, columns)?)))
            }
            other => Err(format!("a shape of {} numbers", other.len()).into()),
        }
    }

    /// Arguments and grids of a candidate's launches.
    pub fn ready(
        &self,
        context: &Arc<Context>,
        program: &Program,
        kernels: Vec<(Kernel, Function)>,
    ) -> Result<Ready, Error> {
        match self {
            Inputs::Product(state) => state.ready(context, program, kernels),
            Inputs::Rows(state) => state.ready(kernels),
        }
    }

    /// Fills the outputs with NaN.
    pub fn poison(&self) -> Result<(), Error> {
        match self {
            Inputs::Product(state) => Ok(state.c.fill(0xff)?),
            Inputs::Rows(state) => state.poison(),
        }
    }

    /// The largest error over its bound.
    pub fn error(&self, context: &Arc<Context>) -> Result<f64, Error> {
        match self {
            Inputs::Product(state) => state.error(context),
            Inputs::Rows(state) => state.error(),
        }
    }
}
