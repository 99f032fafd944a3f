//! Turns a bound program into steps whose strides, lengths and slots are numbers.

use crate::entity::Id;
use crate::interp::bind::Launch;
use crate::interp::error::Place;
use crate::interp::walk::{Walk, row_major};
use crate::interp::{InterpError, Options};
use crate::program::{
    Access as Direction, AxisId, Block, Bounds, Coord, IndexId, Loc, MapOp, Op, OpData, Program,
    ReduceOp, TensorId, TileType, ValueId,
};
use crate::types::DType;

/// Most elements of a tile.
const MAX_TILE: u64 = 1 << 28;
/// Most program instances: owners of in-out elements are numbered in 32 bits.
const MAX_INSTANCES: u64 = u32::MAX as u64 - 1;
/// Cost of a step beside its elements, in element operations.
const STEP_COST: u128 = 32;

/// A program ready to run. Slots are arena indices of values and index variables.
pub struct Code {
    /// Grid axes, outermost first: slot, number of values, step.
    pub grid: Vec<(usize, u64, i64)>,
    /// Number of program instances.
    pub instances: u64,
    /// What each instance runs.
    pub body: Vec<Step>,
    /// Estimated element operations of the whole run.
    pub work: u128,
}

/// An operand: slot of its tile, and how to walk it in the order of the result.
pub type Operand = (usize, Walk);

/// An origin: constant and slots with coefficients.
pub struct Origin {
    /// Constant term.
    pub constant: i128,
    /// Slot and coefficient.
    pub terms: Vec<(usize, i128)>,
}

/// A coordinate of an access.
pub struct Dim {
    /// Size of the tensor's dimension.
    pub size: u64,
    /// Its stride.
    pub stride: usize,
    /// Where the tile starts.
    pub origin: Origin,
    /// Position of the tile axis that runs along it.
    pub axis: Option<usize>,
    /// Tile of gathered indices.
    pub gather: Option<Operand>,
}

/// A load or store.
pub struct Access {
    /// Which tensor.
    pub tensor: usize,
    /// Its coordinates.
    pub dims: Vec<Dim>,
    /// Sizes of the tile.
    pub shape: Vec<usize>,
    /// Row-major strides of the tile.
    pub tile_strides: Vec<usize>,
    /// Tensor stride of each tile axis.
    pub strides: Vec<usize>,
    /// The whole tile, walked in the tensor.
    pub full: Walk,
    /// Whether some coordinate is gathered.
    pub gathers: bool,
    /// Value outside the tensor; `None` where there must be no outside.
    pub fill: Option<f64>,
    /// For messages.
    pub place: Place,
}

/// A matrix product: operands as batch×m×k, batch×k×n and batch×m×n.
pub struct Product {
    /// Number of products.
    pub batch: usize,
    /// Rows, columns, depth.
    pub size: (usize, usize, usize),
    /// Accumulator.
    pub c: Operand,
    /// From batch×m×n to the result's order of axes.
    pub back: Walk,
}

/// A loop of loads and one product, as one product of panels.
pub struct Fused {
    /// Left panel, batch×m×k.
    pub a: Access,
    /// Right panel, batch×k×n.
    pub b: Access,
    /// The product; its accumulator is the loop's initial value.
    pub product: Product,
    /// Result slot.
    pub to: usize,
}

/// A carried value.
pub struct Carry {
    pub init: usize,
    pub inner: usize,
    /// The next value in the order of axes of the carried one.
    pub next: Operand,
    /// The body computes `next` afresh for this carry alone, so that it may be swapped in.
    pub swap: bool,
    pub result: usize,
}

/// One operation.
pub enum Step {
    Const {
        to: usize,
        value: f64,
    },
    Index {
        to: usize,
        origin: Origin,
        len: usize,
    },
    Load {
        to: usize,
        access: Access,
    },
    Store {
        from: usize,
        access: Access,
    },
    Map {
        to: usize,
        op: MapOp,
        dtype: DType,
        args: Vec<Operand>,
        result: DType,
    },
    /// Broadcast, reindex and cast (which converts).
    Copy {
        to: usize,
        from: Operand,
        convert: Option<DType>,
    },
    Reduce {
        to: usize,
        op: ReduceOp,
        dtype: DType,
        from: Operand,
        len: usize,
        count: usize,
    },
    Mma {
        to: usize,
        a: Operand,
        b: Operand,
        product: Product,
        dtype: DType,
    },
    Loop {
        index: usize,
        trips: u64,
        step: i64,
        carries: Vec<Carry>,
        body: Vec<Step>,
    },
    Fused(Box<Fused>),
}

struct Compiler<'a> {
    launch: &'a Launch<'a>,
    fuse: bool,
}

/// Compiles a launch.
///
/// # Errors
/// A tile or the whole run is over its limit.
pub fn compile(launch: &Launch<'_>, options: &Options) -> Result<Code, InterpError> {
    let program = &launch.program;
    // Rounded, each iteration's sum would be rounded; plain, nothing is fused.
    let fuse = !options.plain && options.mode == crate::interp::Mode::Oracle;
    let compiler = Compiler { launch, fuse };
    for (_, value) in program.values.iter() {
        let shape = compiler.shape(&value.ty.axes);
        let elements = shape.iter().fold(1u128, |n, s| n.saturating_mul(*s as u128));
        if elements > MAX_TILE as u128 {
            let what = format!("the number of elements of tile `%{}`", value.name);
            return Err(InterpError::TooLarge { what, amount: elements, limit: MAX_TILE });
        }
    }
    let mut instances = 1u128;
    let mut grid = Vec::new();
    for index in &program.grid {
        let (trips, step) = compiler.trips(*index);
        instances = instances.saturating_mul(trips as u128);
        grid.push((index.index(), trips, step));
    }
    let (body, work) = compiler.block(&program.body);
    let work = instances.saturating_mul(work.saturating_add(STEP_COST));
    let limit = options.work_limit;
    if work > limit as u128 {
        let what = "the number of element operations".to_string();
        return Err(InterpError::TooLarge { what, amount: work, limit });
    }
    if instances > MAX_INSTANCES as u128 {
        let what = "the number of program instances".to_string();
        return Err(InterpError::TooLarge { what, amount: instances, limit: MAX_INSTANCES });
    }
    Ok(Code { grid, instances: instances as u64, body, work })
}

impl Compiler<'_> {
    fn program(&self) -> &Program {
        &self.launch.program
    }

    fn extent(&self, axis: AxisId) -> usize {
        self.launch.size(self.program().axes[axis].extent) as usize
    }

    fn shape(&self, axes: &[AxisId]) -> Vec<usize> {
        axes.iter().map(|a| self.extent(*a)).collect()
    }

    fn ty(&self, value: ValueId) -> &TileType {
        &self.program().values[value].ty
    }

    /// Number of values of an index variable, and its step.
    fn trips(&self, index: IndexId) -> (u64, i64) {
        let var = &self.program().indices[index];
        let (extent, step) = (self.launch.size(var.extent), self.launch.size(var.step).max(1));
        (extent.div_ceil(step), step as i64)
    }

    /// A value walked over `axes`; 0 strides along those that it lacks.
    fn operand(&self, value: ValueId, axes: &[AxisId]) -> Operand {
        (value.index(), self.walk(&self.ty(value).axes, axes))
    }

    /// A tile over axes `from` walked in the order of `to`.
    fn walk(&self, from: &[AxisId], to: &[AxisId]) -> Walk {
        let own = row_major(&self.shape(from));
        let stride = |axis: &AxisId| match from.iter().position(|a| a == axis) {
            Some(at) => own[at],
            None => 0,
        };
        let strides: Vec<usize> = to.iter().map(stride).collect();
        Walk::new(&self.shape(to), &strides)
    }

    fn origin(&self, origin: &crate::program::Origin) -> Origin {
        Origin {
            constant: origin.constant as i128,
            terms: origin.terms.iter().map(|(i, c)| (i.index(), *c as i128)).collect(),
        }
    }

    fn elements(&self, value: ValueId) -> u128 {
        self.shape(&self.ty(value).axes).iter().map(|n| *n as u128).product()
    }

    /// Steps of a block and their estimated cost.
    fn block(&self, block: &Block) -> (Vec<Step>, u128) {
        let mut steps = Vec::new();
        let mut work = 0u128;
        for id in &block.ops {
            let data = &self.program().ops[*id];
            let (step, cost) = self.op(data);
            steps.push(step);
            work = work.saturating_add(cost).saturating_add(STEP_COST);
        }
        (steps, work)
    }

    fn op(&self, data: &OpData) -> (Step, u128) {
        // A verified operation has as many results as its kind defines.
        let result = data.results.first().copied();
        let to = result.map_or(0, |r| r.index());
        let axes: &[AxisId] = result.map_or(&[], |r| &self.ty(r).axes);
        let dtype = result.map_or(DType::F32, |r| self.ty(r).dtype);
        let cost = result.map_or(0, |r| self.elements(r));
        let place = Place { line: data.loc.line, column: data.loc.column };
        let step = match &data.op {
            Op::Const { value } => Step::Const { to, value: *value },
            Op::Scalar(s) => Step::Const { to, value: self.launch.scalars[s.index()] },
            Op::Size(e) => Step::Const { to, value: self.launch.size(*e) as f64 },
            Op::Index { origin, axis } => {
                let len = axis.map_or(1, |a| self.extent(a));
                Step::Index { to, origin: self.origin(origin), len }
            }
            Op::Load { tensor, coords, bounds } => {
                let sizes: Vec<(AxisId, usize)> =
                    axes.iter().map(|a| (*a, self.extent(*a))).collect();
                Step::Load { to, access: self.access(*tensor, coords, &sizes, *bounds, place) }
            }
            Op::Store { tensor, coords, value, bounds } => {
                let axes = &self.ty(*value).axes;
                let sizes: Vec<(AxisId, usize)> =
                    axes.iter().map(|a| (*a, self.extent(*a))).collect();
                let access = self.access(*tensor, coords, &sizes, *bounds, place);
                return (Step::Store { from: value.index(), access }, self.elements(*value));
            }
            Op::Map { op, args } => Step::Map {
                to,
                op: *op,
                dtype: args.last().map_or(dtype, |v| self.ty(*v).dtype),
                args: args.iter().map(|v| self.operand(*v, axes)).collect(),
                result: dtype,
            },
            Op::Cast(v) => Step::Copy { to, from: self.operand(*v, axes), convert: Some(dtype) },
            Op::Broadcast(v) => Step::Copy { to, from: self.operand(*v, axes), convert: None },
            Op::Reindex { value, axes: renames } => {
                // The same elements under new names: give the source the new names first.
                let rename = |axis: &AxisId| {
                    renames.iter().find(|(old, _)| old == axis).map_or(*axis, |(_, new)| *new)
                };
                let from: Vec<AxisId> = self.ty(*value).axes.iter().map(rename).collect();
                let walk = self.walk(&from, axes);
                Step::Copy { to, from: (value.index(), walk), convert: None }
            }
            Op::Reduce { op, value, axis, .. } => {
                let mut order = axes.to_vec();
                order.push(*axis);
                let step = Step::Reduce {
                    to,
                    op: *op,
                    dtype,
                    from: self.operand(*value, &order),
                    len: self.extent(*axis),
                    count: self.shape(axes).iter().product(),
                };
                return (step, self.elements(*value));
            }
            Op::Mma { a, b, c, .. } => {
                let roles = self.roles(*a, *b, axes);
                let depth = self.shape(&roles.contracted).iter().product();
                let product = self.product(&roles, *c, axes, depth);
                let (m, n, k) = product.size;
                let cost = product.batch as u128 * m as u128 * n as u128 * k as u128;
                let (a, b) = (self.operand(*a, &roles.left()), self.operand(*b, &roles.right()));
                return (Step::Mma { to, a, b, product, dtype }, cost);
            }
            Op::Loop { index, carries, body, .. } => {
                return self.repeat(data, *index, carries, body);
            }
        };
        (step, cost)
    }

    fn access(
        &self,
        tensor: TensorId,
        coords: &[Coord],
        axes: &[(AxisId, usize)],
        bounds: Bounds,
        place: Place,
    ) -> Access {
        let layout = &self.launch.layouts[tensor.index()];
        let order: Vec<AxisId> = axes.iter().map(|(a, _)| *a).collect();
        let shape: Vec<usize> = axes.iter().map(|(_, n)| *n).collect();
        let mut strides = vec![0; axes.len()];
        let mut dims = Vec::new();
        for ((coord, size), stride) in coords.iter().zip(&layout.shape).zip(&layout.strides) {
            let stride = *stride as usize;
            let axis = coord.axis.and_then(|axis| order.iter().position(|a| *a == axis));
            if let Some(at) = axis {
                strides[at] += stride;
            }
            dims.push(Dim {
                size: *size,
                stride,
                origin: self.origin(&coord.origin),
                axis,
                gather: coord.gather.map(|v| self.operand(v, &order)),
            });
        }
        Access {
            tensor: tensor.index(),
            gathers: dims.iter().any(|d| d.gather.is_some()),
            dims,
            tile_strides: row_major(&shape),
            full: Walk::new(&shape, &strides),
            strides,
            shape,
            fill: match bounds {
                Bounds::Assume => None,
                Bounds::Fill(value) => Some(value),
            },
            place,
        }
    }

    /// Axes of a product by role: see the verifier's rule `mma-axes`.
    fn roles(&self, a: ValueId, b: ValueId, c: &[AxisId]) -> Roles {
        let (a, b) = (&self.ty(a).axes, &self.ty(b).axes);
        let pick = |keep: &dyn Fn(&AxisId) -> bool| c.iter().copied().filter(|x| keep(x)).collect();
        Roles {
            batch: pick(&|x| a.contains(x) && b.contains(x)),
            rows: pick(&|x| a.contains(x) && !b.contains(x)),
            columns: pick(&|x| !a.contains(x)),
            contracted: a.iter().copied().filter(|x| !c.contains(x)).collect(),
        }
    }

    fn product(&self, roles: &Roles, c: ValueId, axes: &[AxisId], k: usize) -> Product {
        let order = roles.result();
        let size = |axes: &[AxisId]| self.shape(axes).iter().product::<usize>();
        Product {
            batch: size(&roles.batch),
            size: (size(&roles.rows), size(&roles.columns), k),
            c: self.operand(c, &order),
            back: self.walk(&order, axes),
        }
    }

    fn repeat(
        &self,
        data: &OpData,
        index: IndexId,
        carries: &[crate::program::Carry],
        body: &Block,
    ) -> (Step, u128) {
        if self.fuse
            && let Some(fused) = self.fused(data, index, carries, body)
        {
            let (m, n, k) = fused.product.size;
            let work = fused.product.batch as u128 * m as u128 * n as u128 * k as u128;
            return (Step::Fused(Box::new(fused)), work);
        }
        let (trips, step) = self.trips(index);
        let defined =
            |v: ValueId| body.ops.iter().any(|op| self.program().ops[*op].results.contains(&v));
        let plans = carries.iter().zip(&data.results).map(|(carry, result)| Carry {
            init: carry.init.index(),
            inner: carry.inner.index(),
            next: self.operand(carry.next, &self.ty(carry.inner).axes),
            swap: defined(carry.next)
                && carries.iter().filter(|c| c.next == carry.next).count() == 1
                && self.walk(&self.ty(carry.next).axes, &self.ty(carry.inner).axes).is_straight(),
            result: result.index(),
        });
        let carries: Vec<Carry> = plans.collect();
        let (body, work) = self.block(body);
        let step = Step::Loop { index: index.index(), trips, step, carries, body };
        (step, work.saturating_add(STEP_COST).saturating_mul(trips as u128))
    }

    /// The loop as one product, if it is two loads of inputs and their product into the one carry,
    /// with the counter running along the contracted axis of both in steps of its length.
    fn fused(
        &self,
        data: &OpData,
        index: IndexId,
        carries: &[crate::program::Carry],
        body: &Block,
    ) -> Option<Fused> {
        let p = self.program();
        let [carry] = carries else { return None };
        let [first, second, third] = &body.ops[..] else { return None };
        let Op::Mma { a, b, c, .. } = p.ops[*third].op else { return None };
        if c != carry.inner || p.ops[*third].results[..] != [carry.next] {
            return None;
        }
        let load = |value: ValueId| {
            let id = [first, second].into_iter().find(|op| p.ops[**op].results[..] == [value])?;
            match &p.ops[*id].op {
                Op::Load { tensor, coords, bounds }
                    if p.tensors[*tensor].access == Direction::In =>
                {
                    Some((*tensor, coords, *bounds, p.ops[*id].loc))
                }
                _ => None,
            }
        };
        if a == b {
            return None;
        }
        let ((ta, ca, ba, la), (tb, cb, bb, lb)) = (load(a)?, load(b)?);
        let result = *data.results.first()?;
        let axes = &self.ty(result).axes;
        let roles = self.roles(a, b, axes);
        let [k] = roles.contracted[..] else { return None };
        let (trips, step) = self.trips(index);
        if self.extent(k) as i64 != step {
            return None;
        }
        let mut depth = u64::try_from(step).ok()?.checked_mul(trips)?;
        // Where both loads are filled with 0 beyond the tensor, the product is 0 there and may be
        // left out; with one of them filled it isn't (0 times infinity).
        let along = |coords: &[Coord]| along_index(coords, index, k);
        let (da, db) = (along(ca)?, along(cb)?);
        let zero = |bounds: Bounds| matches!(bounds, Bounds::Fill(f) if f == 0.0);
        if zero(ba) && zero(bb) {
            let size = |t: TensorId, d: usize| self.launch.layouts[t.index()].shape[d];
            depth = depth.min(size(ta, da).max(size(tb, db)));
        }
        let depth = usize::try_from(depth).ok()?;
        let sized = |axes: Vec<AxisId>| -> Vec<(AxisId, usize)> {
            axes.into_iter().map(|x| (x, if x == k { depth } else { self.extent(x) })).collect()
        };
        let (left, right) = (sized(roles.left()), sized(roles.right()));
        let small = |axes: &[(AxisId, usize)]| {
            axes.iter().fold(1u128, |n, (_, s)| n.saturating_mul(*s as u128)) <= MAX_TILE as u128
        };
        if !small(&left) || !small(&right) {
            return None;
        }
        let place = |loc: Loc| Place { line: loc.line, column: loc.column };
        Some(Fused {
            a: self.access(ta, &without(ca, index), &left, ba, place(la)),
            b: self.access(tb, &without(cb, index), &right, bb, place(lb)),
            product: self.product(&roles, carry.init, axes, depth),
            to: result.index(),
        })
    }
}

/// The coordinate where a loop's counter runs, if it is exactly `counter:k`, the only mention of
/// either, and nothing is gathered.
fn along_index(coords: &[Coord], index: IndexId, k: AxisId) -> Option<usize> {
    let mentions = |c: &Coord| c.axis == Some(k) || c.origin.terms.iter().any(|(i, _)| *i == index);
    if coords.iter().any(|c| c.gather.is_some()) {
        return None;
    }
    let mut found = coords.iter().enumerate().filter(|(_, c)| mentions(c));
    let (at, coord) = found.next()?;
    let exact = *coord == Coord::tile(index, k);
    (exact && found.next().is_none()).then_some(at)
}

/// The coordinates with the counter at 0.
fn without(coords: &[Coord], index: IndexId) -> Vec<Coord> {
    let mut coords = coords.to_vec();
    for coord in &mut coords {
        coord.origin.terms.retain(|(i, _)| *i != index);
    }
    coords
}

struct Roles {
    batch: Vec<AxisId>,
    rows: Vec<AxisId>,
    columns: Vec<AxisId>,
    contracted: Vec<AxisId>,
}

impl Roles {
    fn left(&self) -> Vec<AxisId> {
        [&self.batch[..], &self.rows, &self.contracted].concat()
    }

    fn right(&self) -> Vec<AxisId> {
        [&self.batch[..], &self.contracted, &self.columns].concat()
    }

    fn result(&self) -> Vec<AxisId> {
        [&self.batch[..], &self.rows, &self.columns].concat()
    }
}
