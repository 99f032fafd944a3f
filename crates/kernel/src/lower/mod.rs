//! Lowering: from a program and a mapping to a kernel.
//!
//! `rows.rs` lowers the row family, `matrix.rs` the matrix family with subgroup fragments,
//! `cpu_matrix.rs` and `gpu_matrix.rs` the matrix family with register tiles, and `fallback.rs` everything else.
//! All evaluate tile expressions with `eval.rs` (what one lane computes for its elements) and
//! reach memory with `access.rs` (addresses and guards).

mod access;
mod args;
mod bounds;
mod cpu_matrix;
mod error;
mod eval;
mod fallback;
mod gpu_matrix;
mod matrix;
mod options;
mod precondition;
mod rows;
mod tile;

pub use error::{LowerError, Rule};
pub use options::resident;
pub use precondition::{OutOfBounds, Precondition, preconditions};
pub use rows::blocks::BLOCK as SUM_BLOCK;

use std::collections::HashMap;

use tilewright_ir::Program;
use tilewright_ir::entity::Arena;
use tilewright_ir::facts::{Facts, Family};
use tilewright_ir::program as ir;
use tilewright_ir::program::{Extent, IndexId};
use tilewright_plan::mapping::Mapping;

use crate::builder::{KernelBuilder, OpenLoop};
use crate::kernel::*;
use args::Args;
use tile::{Tile, TileId};

/// What a lowering may assume of the target beside the mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Most bytes of shared memory that a group may declare.
    pub shared_limit: u64,
    /// How the subgroups of a row join their partial results.
    pub join: Join,
    /// How the last, partial chunk of a row is written.
    pub tail: Tail,
    /// How a group of rows takes its programs.
    pub pack: Pack,
    /// How a lane sums its elements of a long row.
    pub sums: Sums,
}

/// How a lane sums its elements of a long row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sums {
    /// One after another, which is enough where a row has many lanes.
    #[default]
    Running,
    /// In blocks of [`SUM_BLOCK`] terms an accumulator, whose sums are summed.
    Blocks,
}

/// How a group takes its P programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pack {
    /// Side by side, each with a subgroup of its own.
    #[default]
    Beside,
    /// One after another by the same subgroup, as on a CPU, where a group is a thread's task.
    InTurn,
}

/// How every lane comes to have the fold of the subgroups' partial results, after they were
/// written to shared memory. Shared bytes and barriers are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Join {
    /// Lane `l` reads partial `l`, then a collective folds the lanes (reference 5.1).
    #[default]
    Collective,
    /// Every lane reads all partials, four at a time, and folds them by a tree: a few broadcast
    /// reads instead of a chain of lane exchanges.
    Lane,
}

/// How the last, partial chunk of a row is written. The elements of every lane are the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Tail {
    /// The code of a whole chunk with every access guarded by count: masks of vectors.
    #[default]
    Guards,
    /// Branches, where the number of columns is known: lanes with a whole pack, the lane with a
    /// part of one, the others. No access has a guard of its own.
    Packs,
}

impl Default for Options {
    /// No limit that a program could reach.
    fn default() -> Self {
        let (join, tail, pack) = (Join::default(), Tail::default(), Pack::default());
        Options { shared_limit: 1 << 30, join, tail, pack, sums: Sums::default() }
    }
}

/// Kernels to launch one after another. Scratch between them is declared as arguments with
/// [`ArgSource::Scratch`].
#[derive(Clone, PartialEq, Debug)]
pub struct Lowered {
    /// The launches in order.
    pub launches: Vec<Kernel>,
}

/// Lowers a program with a mapping.
///
/// `facts` are those of the program with the mapping's blocks bound.
///
/// # Errors
/// The mapping doesn't fit the program's family, or breaks a rule of the family.
pub fn lower(
    program: &Program,
    facts: &Facts,
    mapping: &Mapping,
    options: &Options,
) -> Result<Lowered, LowerError> {
    let kernel = match (mapping, &facts.family) {
        (Mapping::GpuMatrix(mapping), Family::Matrix(matrix)) => {
            let mut launches = Vec::new();
            for kernel in gpu_matrix::lower(program, matrix, mapping)? {
                launches.extend(finish(program, kernel, options)?.launches);
            }
            return Ok(Lowered { launches });
        }
        (Mapping::Rows(mapping), Family::Rows(rows)) => {
            let mut launches = Vec::new();
            for kernel in rows::lower(program, rows, mapping, options)? {
                launches.extend(finish(program, kernel, options)?.launches);
            }
            return Ok(Lowered { launches });
        }
        (Mapping::Matrix(mapping), Family::Matrix(facts)) => {
            let bound = matrix::bind_blocks(program, facts, mapping.block)?;
            let kernel = matrix::lower(&bound, facts, mapping)?;
            matrix::check_planned(&bound, facts, mapping, &kernel)?;
            kernel
        }
        (Mapping::CpuMatrix(mapping), Family::Matrix(matrix)) => {
            cpu_matrix::lower(program, matrix, mapping)?
        }
        (mapping, family) => {
            let family = match family {
                Family::Rows(_) => "rows".to_string(),
                Family::Matrix(_) => "matrix".to_string(),
                Family::Other(reason) => format!("neither rows nor matrix ({reason})"),
            };
            return Err(LowerError {
                program: program.name.clone(),
                rule: Rule::Family,
                detail: format!("the program's family is {family}, the mapping is {mapping:?}"),
            });
        }
    };
    finish(program, kernel, options)
}

/// Lowers any verified program, slowly, with one subgroup of `lanes` lanes per program instance.
/// Blocks take their defaults.
///
/// # Errors
/// A tile has no usable bound of its size, or its storage is over the limit.
pub fn lower_any(program: &Program, lanes: u32, options: &Options) -> Result<Lowered, LowerError> {
    finish(program, fallback::lower(program, lanes)?, options)
}

/// Checks bytes of shared memory and barriers in the kernel's text against what the planner
/// counts.
fn check_closed_form(
    program: &Program,
    kernel: &Kernel,
    planned: (u64, u64),
) -> Result<(), LowerError> {
    let mut barriers = 0;
    kernel.body.walk(&mut |stmt| {
        barriers += match stmt.op {
            // Nobody waits there for another subgroup.
            Op::Barrier(id) => u64::from(kernel.barriers[id].scope != Scope::Subgroup),
            Op::BarrierWait(_) => 1,
            _ => 0,
        };
    });
    let found = (kernel.shared_bytes(), barriers);
    if found == planned {
        return Ok(());
    }
    Err(LowerError {
        program: program.name.clone(),
        rule: Rule::ClosedForm,
        detail: format!(
            "{} bytes of shared memory and {} barriers where the plan counts {} and {}",
            found.0, found.1, planned.0, planned.1
        ),
    })
}

/// The checks that every lowering ends with.
fn finish(program: &Program, kernel: Kernel, options: &Options) -> Result<Lowered, LowerError> {
    let bytes = kernel.shared_bytes();
    if bytes > options.shared_limit {
        return Err(LowerError {
            program: program.name.clone(),
            rule: Rule::SharedLimit,
            detail: format!(
                "{bytes} bytes of shared memory are over the limit of {}",
                options.shared_limit
            ),
        });
    }
    if cfg!(debug_assertions)
        && let Err(errors) = crate::validate::validate(&kernel)
    {
        let first = errors.first().map(ToString::to_string).unwrap_or_default();
        return Err(LowerError {
            program: program.name.clone(),
            rule: Rule::Invalid,
            detail: format!("the kernel breaks {} rules, first {first}", errors.len()),
        });
    }
    Ok(Lowered { launches: vec![kernel] })
}

/// Where a value that was computed before is found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Source {
    /// In the lanes' private arrays, at the slot of the frame.
    Stripe(PrivateId),
    /// In a shared buffer, at the frame's positions.
    Tile(TileId),
    /// In a shared buffer, where the lane's own copies put them: at the slot of the frame.
    Staged(Staged),
}

/// A row's part that a group staged in shared memory. Element `v` of a lane's pack in chunk `c` is
/// at `first + c·W·V + worker·V + v`, W workers of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Staged {
    shared: SharedId,
    /// First element of the row in the buffer.
    first: u64,
    /// Elements of a chunk, W·V.
    chunk: u64,
    /// V.
    vector: u32,
    /// First element of the subgroup in a chunk.
    own: ValueId,
}

/// A lowering in progress.
struct Context<'a> {
    program: &'a Program,
    args: Args,
    b: KernelBuilder,
    /// Index variables that have a value now.
    indices: HashMap<IndexId, ValueId>,
    /// Tiles without axes, evaluated where everything that follows can use them.
    scalars: HashMap<ir::ValueId, ValueId>,
    /// Tiles that were stored.
    sources: HashMap<ir::ValueId, Source>,
    tiles: Arena<TileId, Tile>,
    /// The operation that defines each value.
    definitions: HashMap<ir::ValueId, ir::OpId>,
}

impl<'a> Context<'a> {
    fn new(program: &'a Program, mut b: KernelBuilder) -> Self {
        let args = Args::declare(&mut b, program);
        let definitions = program
            .ops
            .iter()
            .flat_map(|(id, op)| op.results.iter().map(move |r| (*r, id)))
            .collect();
        Context {
            program,
            args,
            b,
            indices: HashMap::new(),
            scalars: HashMap::new(),
            sources: HashMap::new(),
            tiles: Arena::new(),
            definitions,
        }
    }

    fn error(&self, rule: Rule, detail: impl Into<String>) -> LowerError {
        LowerError { program: self.program.name.clone(), rule, detail: detail.into() }
    }

    /// The index value of a size.
    fn extent(&mut self, extent: Extent) -> ValueId {
        self.args.extent(&mut self.b, self.program, extent)
    }

    /// The present value of an index variable.
    fn index(&self, index: IndexId) -> Result<ValueId, LowerError> {
        self.indices.get(&index).copied().ok_or_else(|| {
            let name = &self.program.indices[index].name;
            self.error(Rule::Axis, format!("index `{name}` has no value here"))
        })
    }

    /// When the second-level cache gives up the lines of a tensor.
    fn evict(&mut self, tensor: ir::TensorId, priority: Evict) {
        let arg = self.args.tensor(tensor);
        if let ArgKind::Buffer { evict, .. } = &mut self.b.declarations().args[arg].kind {
            *evict = priority;
        }
    }

    /// Declares the grid: one group per `pack` instances of the innermost dimension. Returns per
    /// dimension the origin of the group's first instance.
    fn grid(&mut self, pack: u64) -> Result<Vec<ValueId>, LowerError> {
        let grid = &self.program.grid;
        if grid.len() > 3 {
            return Err(self.error(
                Rule::GridDimensions,
                format!("the grid has {} dimensions, a launch has three", grid.len()),
            ));
        }
        let mut origins = Vec::new();
        for (i, index) in grid.iter().enumerate() {
            let var = &self.program.indices[*index];
            let Some(step) = self.program.known(var.step) else {
                let detail = format!("the step of grid index `{}` isn't known", var.name);
                return Err(self.error(Rule::StepKnown, detail));
            };
            let step = if i + 1 == grid.len() { step.saturating_mul(pack) } else { step };
            let size = self.args.size(self.program, var.extent);
            let group = self.b.grid(size, step);
            origins.push(self.b.mul_int(group, step as i64));
        }
        if grid.is_empty() {
            self.b.grid(Size::Const(1), 1);
        }
        Ok(origins)
    }

    /// Opens a loop unless it surely has no trip or one trip.
    fn begin(
        &mut self,
        (lo, hi, step): (ValueId, ValueId, u64),
        unroll: u32,
        init: &[ValueId],
    ) -> Trips {
        let (index, inner) = (lo, init.to_vec());
        if let (Some(first), Some(end)) = (self.b.known(lo), self.b.known(hi)) {
            if first >= end {
                return Trips { index, inner, kind: TripKind::Never };
            }
            if end - first <= step as i64 {
                return Trips { index, inner, kind: TripKind::Once };
            }
        }
        let open = self.b.begin_for(lo, hi, step, unroll, init);
        Trips { index: open.index(), inner: open.inner().to_vec(), kind: TripKind::Loop(open) }
    }

    /// Closes a loop: the final values. Of one without a trip the body must not have been built.
    fn end(&mut self, trips: Trips, next: Vec<ValueId>) -> Vec<ValueId> {
        match trips.kind {
            TripKind::Never => trips.inner,
            TripKind::Once => next,
            TripKind::Loop(open) => self.b.end_for(open, &next),
        }
    }
}

/// A loop that is being built, or what is left of one with fewer than two trips.
struct Trips {
    index: ValueId,
    inner: Vec<ValueId>,
    kind: TripKind,
}

enum TripKind {
    Never,
    Once,
    Loop(OpenLoop),
}

impl Trips {
    /// Whether there is no body to build.
    fn is_never(&self) -> bool {
        matches!(self.kind, TripKind::Never)
    }
}
