//! The matrix family with subgroup fragments (reference system, 1.4 and 2).
//!
//! A group computes one BM×BN block of the output. Its gm×gn subgroups hold rm×rn atoms of 8×8
//! each; atom (i, j) belongs to subgroup ⌊i/rm⌋·gn + ⌊j/rn⌋. Operands that aren't forwarded are
//! copied to shared memory, zeros where the block sticks out; the result goes to the output from
//! fragments, or through a shared block where the output is ragged or an epilogue follows.
//!
//! Barriers, per K iteration: staged operands need one before and one after the products (with
//! two stages only the first, because the next copy goes to the other buffer); an accumulator
//! that isn't persistent needs two whether or not operands are staged. After the loop one more,
//! before a persistent result is read back from its shared block.

mod elements;
mod operand;

use tilewright_ir::Program;
use tilewright_ir::facts::{MatrixDim, MatrixFacts};
use tilewright_ir::program as ir;
use tilewright_ir::program::{AxisId, DimKind, Extent, MapOp};
use tilewright_plan::mapping::{MatrixBasis, MatrixMapping};
use tilewright_plan::matrix;
use tilewright_plan::problem::MatrixProblem;

use super::access::{Frame, Pos};
use super::{Context, LowerError, Rule, Source, check_closed_form};
use crate::builder::KernelBuilder;
use crate::kernel::*;
use operand::Staged;

/// Rows and columns of an atom.
const ATOM: u64 = 8;
/// Lanes of a subgroup.
const LANES: u32 = 32;

/// A matrix lowering in progress.
struct Matrix<'a> {
    cx: Context<'a>,
    facts: &'a MatrixFacts,
    mapping: MatrixMapping,
    /// Axes of rows, columns and depth.
    axes: [AxisId; 3],
    /// First row and column of the subgroup's part of the block.
    corner: [ValueId; 2],
    a: Staged,
    b: Staged,
    barrier: Option<BarrierId>,
}

/// The program with the mapping's blocks in place of its block dimensions.
pub(super) fn bind_blocks(
    program: &Program,
    facts: &MatrixFacts,
    block: [u64; 3],
) -> Result<Program, LowerError> {
    let mut bound = program.clone();
    for (extent, size) in facts.block.iter().zip(block) {
        if let Extent::Dim(dim) = extent
            && let DimKind::Block { .. } = bound.dims[*dim].kind
        {
            bound.dims[*dim].kind = DimKind::Static(size);
        }
        if bound.known(*extent) != Some(size) {
            return Err(LowerError {
                program: program.name.clone(),
                rule: Rule::ExactCover,
                detail: format!("the program's block isn't {size} as the mapping's is"),
            });
        }
    }
    Ok(bound)
}

fn check(
    program: &Program,
    facts: &MatrixFacts,
    mapping: &MatrixMapping,
) -> Result<(), LowerError> {
    let fail =
        |rule, detail: String| Err(LowerError { program: program.name.clone(), rule, detail });
    let MatrixMapping { block, subgroups: [gm, gn], atoms: [rm, rn], .. } = *mapping;
    let threads = u64::from(mapping.threads);
    if threads == 0 || threads != gm.saturating_mul(gn).saturating_mul(u64::from(LANES)) {
        let detail = format!("{threads} threads for {gm}x{gn} subgroups of {LANES} lanes");
        return fail(Rule::MappingRange, detail);
    }
    let covers = |block: u64, groups: u64, atoms: u64| {
        atoms > 0 && groups.checked_mul(atoms).and_then(|n| n.checked_mul(ATOM)) == Some(block)
    };
    if !covers(block[0], gm, rm)
        || !covers(block[1], gn, rn)
        || block[2] == 0
        || !block[2].is_multiple_of(ATOM)
    {
        let detail = format!("block {block:?} isn't {gm}x{gn} subgroups of {rm}x{rn} atoms");
        return fail(Rule::ExactCover, detail);
    }
    if !(1..=2).contains(&mapping.stages) {
        return fail(Rule::MappingRange, format!("{} stages", mapping.stages));
    }
    if facts.accumulator != tilewright_ir::DType::F32 {
        let detail = format!("8x8 atoms don't accumulate {}", facts.accumulator);
        return fail(Rule::AtomType, detail);
    }
    if !facts.reassociable {
        let detail = "atoms sum products in an order of their own".to_string();
        return fail(Rule::UnorderedReduction, detail);
    }
    let divides = |dims: &[MatrixDim]| {
        dims.iter().all(|d| {
            let i = *d as usize;
            program.divisor(facts.size[i]).is_multiple_of(block[i])
        })
    };
    let mut unproved = Vec::new();
    if mapping.forward_a && !facts.a.forward.proved().is_some_and(|d| divides(d)) {
        unproved.push("reading A in place");
    }
    if mapping.forward_b && !facts.b.forward.proved().is_some_and(|d| divides(d)) {
        unproved.push("reading B in place");
    }
    if mapping.persistent && !facts.recurrence.is_proved() {
        unproved.push("a persistent accumulator");
    }
    if mapping.direct
        && !(mapping.persistent && facts.direct_output.proved().is_some_and(|d| divides(d)))
    {
        unproved.push("direct output");
    }
    let one_trip = program.known(facts.size[2]).is_some_and(|k| k > 0 && k <= block[2]);
    if mapping.overwrite && !(mapping.direct && facts.zero_init.is_proved() && one_trip) {
        unproved.push("overwriting");
    }
    if !unproved.is_empty() {
        return fail(Rule::UnprovedFact, format!("{} isn't proved", unproved.join(", ")));
    }
    Ok(())
}

/// Lowers a matrix program whose blocks are bound (see [`bind_blocks`]).
///
/// # Errors
/// The mapping breaks a rule, or relies on what isn't proved.
pub(super) fn lower(
    program: &Program,
    facts: &MatrixFacts,
    mapping: &MatrixMapping,
) -> Result<Kernel, LowerError> {
    check(program, facts, mapping)?;
    let groups = mapping.threads / LANES;
    let mut b = KernelBuilder::new(&program.name, LANES, groups);
    let subgroup = b.subgroup_id();
    let [gm, gn] = mapping.subgroups;
    let across = b.int(gn as i64);
    let (row, column) = (b.div(subgroup, across), b.rem(subgroup, across));
    // Exact where gn covers all subgroups.
    let row = if gm == 1 { b.int(0) } else { row };
    let column = if gm == 1 { subgroup } else { column };
    let corner = [
        b.mul_int(row, (mapping.atoms[0] * ATOM) as i64),
        b.mul_int(column, (mapping.atoms[1] * ATOM) as i64),
    ];
    let mut cx = Context::new(program, b);
    let axes = axes(&cx, facts)?;
    let stages = u64::from(mapping.stages);
    let a = Staged::declare(&mut cx, "a", &facts.a, [axes[0], axes[2]], stages, mapping.forward_a)?;
    let b = Staged::declare(&mut cx, "b", &facts.b, [axes[2], axes[1]], stages, mapping.forward_b)?;
    let origins = cx.grid(1)?;
    for (index, origin) in program.grid.iter().zip(&origins) {
        cx.indices.insert(*index, *origin);
    }
    let mut matrix = Matrix { cx, facts, mapping: *mapping, axes, corner, a, b, barrier: None };
    let start = matrix.start()?;
    if mapping.persistent {
        matrix.persistent(start)?;
    } else {
        matrix.through_shared(start)?;
    }
    Ok(matrix.cx.b.finish())
}

/// The axes of rows, columns and depth.
fn axes(cx: &Context<'_>, facts: &MatrixFacts) -> Result<[AxisId; 3], LowerError> {
    let coords_of = |op: ir::OpId| match &cx.program.ops[op].op {
        ir::Op::Load { coords, .. } | ir::Op::Store { coords, .. } => coords.as_slice(),
        _ => &[],
    };
    let last_two = |op: ir::OpId| match coords_of(op) {
        [.., first, second] => first.axis.zip(second.axis),
        _ => None,
    };
    let depth = last_two(facts.a.load)
        .map(|(first, second)| if facts.a.transposed { first } else { second });
    match (last_two(facts.store), depth) {
        (Some((m, n)), Some(k)) => Ok([m, n, k]),
        _ => Err(cx.error(Rule::Operation, "the store or an operand has no two tile axes")),
    }
}

impl Matrix<'_> {
    /// The literal at which the accumulator starts.
    fn start(&self) -> Result<f64, LowerError> {
        let program = self.cx.program;
        let ir::Op::Loop { carries, .. } = &program.ops[self.facts.k_loop].op else {
            return Err(self.cx.error(Rule::Operation, "the loop over K is no loop"));
        };
        let mut value = carries.first().map(|c| c.init);
        while let Some(v) = value {
            value = match self.cx.definitions.get(&v).map(|op| &program.ops[*op].op) {
                Some(ir::Op::Const { value }) => return Ok(*value),
                Some(ir::Op::Broadcast(inner)) => Some(*inner),
                _ => None,
            };
        }
        Err(self.cx.error(Rule::Operation, "the accumulator doesn't start at a literal"))
    }

    fn barrier(&mut self) {
        // A single subgroup runs in order with itself, but its lanes may not: it waits too.
        let barrier = match self.barrier {
            Some(barrier) => barrier,
            None => self.cx.b.group_barrier("all"),
        };
        self.barrier = Some(barrier);
        self.cx.b.barrier(barrier);
    }

    fn staged(&self) -> bool {
        !self.mapping.forward_a || !self.mapping.forward_b
    }

    /// The accumulators' type.
    fn accumulator(&self) -> Type {
        let [rm, rn] = self.mapping.atoms;
        let atom = match self.mapping.basis {
            MatrixBasis::Simdgroup => Atom::Simdgroup8x8,
            MatrixBasis::Mpp => Atom::Mpp { rows: (rm * ATOM) as u32, cols: (rn * ATOM) as u32 },
        };
        Type::fragment(atom, FragmentRole::Accumulator, self.facts.accumulator)
    }

    /// Row and column, within the block, of every accumulator fragment of the subgroup.
    fn fragments(&mut self) -> Vec<[ValueId; 2]> {
        let [rm, rn] = match self.mapping.basis {
            MatrixBasis::Simdgroup => self.mapping.atoms,
            MatrixBasis::Mpp => [1, 1],
        };
        let [row, column] = self.corner;
        let mut places = Vec::new();
        for i in 0..rm {
            for j in 0..rn {
                let b = &mut self.cx.b;
                places.push([
                    b.add_int(row, (i * ATOM) as i64),
                    b.add_int(column, (j * ATOM) as i64),
                ]);
            }
        }
        places
    }

    /// Sets the loop's index variable.
    fn at_depth(&mut self, depth: ValueId) -> Result<(), LowerError> {
        let ir::Op::Loop { index, .. } = &self.cx.program.ops[self.facts.k_loop].op else {
            return Err(self.cx.error(Rule::Operation, "the loop over K is no loop"));
        };
        self.cx.indices.insert(*index, depth);
        Ok(())
    }

    /// Copies what isn't forwarded of one K block to a stage of the shared buffers.
    fn stage(&mut self, depth: ValueId, stage: ValueId) -> Result<(), LowerError> {
        self.at_depth(depth)?;
        let (a, b) = (self.a.clone(), self.b.clone());
        for operand in [a, b] {
            self.copy(&operand, stage)?;
        }
        Ok(())
    }

    /// Before the loop: with two stages, the copy of the first K block.
    fn first_stage(&mut self) -> Result<(), LowerError> {
        if self.mapping.stages < 2 || !self.staged() {
            return Ok(());
        }
        let zero = self.cx.b.int(0);
        let size = self.cx.extent(self.facts.size[2]);
        let any = self.cx.b.compare(MapOp::Lt, zero, size);
        match self.cx.b.known(any) {
            Some(0) => Ok(()),
            Some(_) => self.stage(zero, zero),
            None => {
                let open = self.cx.b.begin_if(any);
                self.stage(zero, zero)?;
                self.cx.b.end_if(open, &[]);
                Ok(())
            }
        }
    }

    /// The copies of an iteration, up to the point where this block's operands are ready.
    /// Returns the stage to read.
    fn ready(&mut self, depth: ValueId) -> Result<ValueId, LowerError> {
        let zero = self.cx.b.int(0);
        if !self.staged() {
            self.at_depth(depth)?;
            return Ok(zero);
        }
        if self.mapping.stages < 2 {
            self.stage(depth, zero)?;
            self.barrier();
            return Ok(zero);
        }
        self.barrier();
        let b = &mut self.cx.b;
        let (step, two) = (b.int(self.mapping.block[2] as i64), b.int(2));
        let trip = b.div(depth, step);
        let now = b.rem(trip, two);
        let one = b.int(1);
        let other = b.sub(one, now);
        let next = b.add(depth, step);
        let size = self.cx.extent(self.facts.size[2]);
        let more = self.cx.b.compare(MapOp::Lt, next, size);
        match self.cx.b.known(more) {
            Some(0) => {}
            Some(_) => self.stage(next, other)?,
            None => {
                let open = self.cx.b.begin_if(more);
                self.stage(next, other)?;
                self.cx.b.end_if(open, &[]);
            }
        }
        self.at_depth(depth)?;
        Ok(now)
    }

    /// The accumulators stay in fragments over the whole loop.
    fn persistent(&mut self, start: f64) -> Result<(), LowerError> {
        let ty = self.accumulator();
        let places = self.fragments();
        let fill = self.cx.b.fragment_fill(ty, start);
        let init = vec![fill; places.len()];
        let zero = self.cx.b.int(0);
        let size = self.cx.extent(self.facts.size[2]);
        self.first_stage()?;
        let trips = self.cx.begin((zero, size, self.mapping.block[2]), 1, &init);
        let mut next = Vec::new();
        if !trips.is_never() {
            let stage = self.ready(trips.index)?;
            next = self.products(stage, &trips.inner)?;
            if self.staged() && self.mapping.stages < 2 {
                self.barrier();
            }
        }
        let results = self.cx.end(trips, next);
        if self.mapping.direct {
            return self.store_fragments(&places, &results);
        }
        let shared = self.result_block("d");
        self.store_block(shared, &places, &results);
        self.barrier();
        self.store_elements(shared)
    }

    /// The accumulators pass through shared memory in every iteration: C is read from one block,
    /// D written to another and copied back. Filling, copying and storing give every element to
    /// the same lane, so no barrier stands between them.
    fn through_shared(&mut self, start: f64) -> Result<(), LowerError> {
        let ty = self.accumulator();
        let places = self.fragments();
        let (c, d) = (self.result_block("c"), self.result_block("d"));
        let literal = self.cx.b.literal(start, self.facts.accumulator);
        self.each_result_element(|this, frame| this.cx.write_tile(c, frame, &[literal]))?;
        self.first_stage()?;
        let zero = self.cx.b.int(0);
        let size = self.cx.extent(self.facts.size[2]);
        let trips = self.cx.begin((zero, size, self.mapping.block[2]), 1, &[]);
        if !trips.is_never() {
            let stage = self.ready(trips.index)?;
            if !self.staged() {
                self.barrier();
            }
            let mut init = Vec::new();
            for place in &places {
                let view = self.result_view(c, *place);
                init.push(self.cx.b.fragment_load(ty, view));
            }
            let results = self.products(stage, &init)?;
            self.store_block(d, &places, &results);
            self.barrier();
            self.each_result_element(|this, frame| {
                let values = this.cx.read_tile(d, frame)?;
                this.cx.write_tile(c, frame, &values)
            })?;
        }
        self.cx.end(trips, Vec::new());
        self.store_elements(c)
    }
}

/// Checks the kernel against the planner's closed forms.
///
/// # Errors
/// They differ.
pub(super) fn check_planned(
    program: &Program,
    facts: &MatrixFacts,
    mapping: &MatrixMapping,
    kernel: &Kernel,
) -> Result<(), LowerError> {
    let mut problem = MatrixProblem::plain(1, 1, program.known(facts.size[2]).unwrap_or(1));
    problem.operand = facts.dtype;
    problem.accumulator = facts.accumulator;
    let planned =
        (matrix::shared_bytes(&problem, mapping), matrix::barrier_sites(&problem, mapping));
    check_closed_form(program, kernel, planned)
}
