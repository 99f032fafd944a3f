//! Addresses and guards of loads and stores at a position of a tile.
//!
//! A [`Frame`] says where along each axis the lanes stand. A coordinate then splits into a part
//! that is the same for the subgroup (the base of a place), a constant distance per lane, and
//! what differs from lane to lane (the index of a place).

use std::collections::HashMap;

use tilewright_ir::program as ir;
use tilewright_ir::program::{AxisId, MapOp, TensorId};

use super::args::stride_divisor;
use super::bounds;
use super::{Context, LowerError, Rule};
use crate::kernel::*;

/// Position along one axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pos {
    /// The same for all lanes.
    Uniform(ValueId),
    /// Lane `l`, vector element `v` is at this plus `l·V + v`. At most one axis of a frame.
    Lanes(ValueId),
    /// A lane-varying index, the same for all vector elements.
    PerLane(ValueId),
    /// Vector element `v` is at this lane-varying multiple of V plus `v`. At most one axis of a frame.
    Piece(ValueId),
}

/// Where the lanes stand while an expression is evaluated.
#[derive(Debug)]
pub(super) struct Frame {
    /// Position along each axis.
    pub axes: Vec<(AxisId, Pos)>,
    /// Elements per lane (V).
    pub vector: u32,
    /// Lane `l`, vector element `v` is inside the tile iff `l·V + v` is below this.
    pub limit: Option<ValueId>,
    /// The limit is a multiple of V: of a lane's elements all are inside or none is.
    pub together: bool,
    /// Lanes inside the tile, for [`Pos::PerLane`] positions.
    pub mask: Option<ValueId>,
    /// First slot of the lane's elements in stripes.
    pub slot: Option<ValueId>,
    /// Every position (below the limit) is inside the dimension that the coordinate's index
    /// variable runs over.
    pub inside: bool,
    /// Values evaluated so far: one (uniform over V) or V each.
    pub memo: HashMap<ir::ValueId, Vec<ValueId>>,
}

impl Frame {
    /// A frame without positions: only scalars can be evaluated.
    pub fn scalar() -> Frame {
        Frame::at(Vec::new(), 1)
    }

    /// A frame at positions, everything inside.
    pub fn at(axes: Vec<(AxisId, Pos)>, vector: u32) -> Frame {
        Frame {
            axes,
            vector,
            limit: None,
            together: false,
            mask: None,
            slot: None,
            inside: false,
            memo: HashMap::new(),
        }
    }

    /// Position along an axis.
    pub fn pos(&self, axis: AxisId) -> Option<Pos> {
        self.axes.iter().find(|(a, _)| *a == axis).map(|(_, p)| *p)
    }
}

/// One dimension of an access.
#[derive(Debug)]
pub(super) struct Dim {
    /// Elements from one coordinate to the next.
    pub stride: ValueId,
    /// A divisor of the stride.
    pub stride_divisor: u64,
    /// Part of the coordinate that is the same for the subgroup.
    pub uniform: ValueId,
    /// A divisor of that part (0: it is 0).
    pub uniform_divisor: u64,
    /// Whether the lanes run along this dimension.
    pub lanes: bool,
    /// Whether the elements of a lane's vector alone do.
    pub piece: bool,
    /// Lane-varying part, one or V values.
    pub varying: Vec<ValueId>,
    /// The size, where the coordinate may reach it.
    pub upper: Option<ValueId>,
    /// Whether the coordinate may be negative.
    pub lower: bool,
}

/// An access with its address and guards worked out.
#[derive(Debug)]
pub(super) struct Access {
    memory: Memory,
    base: ValueId,
    lane_stride: i64,
    /// Lane-varying offsets, none, one or V.
    index: Vec<ValueId>,
    /// Offset of vector element `v`: `v` times this.
    element: ValueId,
    /// Whether the address differs from lane to lane.
    pub varying: bool,
    /// V consecutive elements may go as one access.
    whole: bool,
    vector: u32,
    count: Option<ValueId>,
    uniform: Option<ValueId>,
    masks: Vec<ValueId>,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Context<'_> {
    /// Uniform value of an origin, and a divisor of it.
    fn origin(&mut self, origin: &ir::Origin) -> Result<(ValueId, u64), LowerError> {
        let mut sum = self.b.int(origin.constant);
        let mut divisor = origin.constant.unsigned_abs();
        for (index, coefficient) in &origin.terms {
            let value = self.index(*index)?;
            let term = self.b.mul_int(value, *coefficient);
            sum = self.b.add(sum, term);
            let step = self.program.divisor(self.program.indices[*index].step);
            divisor = gcd(divisor, coefficient.unsigned_abs().saturating_mul(step));
        }
        Ok((sum, divisor))
    }

    /// Origin plus position along an axis, as one or V index values.
    pub(super) fn position(
        &mut self,
        frame: &Frame,
        origin: &ir::Origin,
        axis: Option<AxisId>,
    ) -> Result<Vec<ValueId>, LowerError> {
        let (base, _) = self.origin(origin)?;
        let Some(axis) = axis else { return Ok(vec![base]) };
        match self.axis_pos(frame, axis)? {
            Pos::Uniform(p) | Pos::PerLane(p) => Ok(vec![self.b.add(base, p)]),
            Pos::Piece(p) => {
                let base = self.b.add(base, p);
                Ok((0..i64::from(frame.vector)).map(|v| self.b.add_int(base, v)).collect())
            }
            Pos::Lanes(p) => {
                let base = self.b.add(base, p);
                let lane = self.b.lane();
                let lane = self.b.mul_int(lane, i64::from(frame.vector));
                Ok((0..i64::from(frame.vector))
                    .map(|v| {
                        let base = self.b.add_int(base, v);
                        self.b.add(base, lane)
                    })
                    .collect())
            }
        }
    }

    fn axis_pos(&self, frame: &Frame, axis: AxisId) -> Result<Pos, LowerError> {
        frame.pos(axis).ok_or_else(|| {
            let name = &self.program.axes[axis].name;
            self.error(Rule::Axis, format!("axis `{name}` isn't distributed here"))
        })
    }

    /// The dimensions of an access to a tensor of the program.
    pub(super) fn tensor_dims(
        &mut self,
        frame: &mut Frame,
        tensor: TensorId,
        coords: &[ir::Coord],
        bounds: ir::Bounds,
    ) -> Result<Vec<Dim>, LowerError> {
        let mut dims = Vec::new();
        for (d, coord) in coords.iter().enumerate() {
            let (mut uniform, mut divisor) = self.origin(&coord.origin)?;
            let (mut lanes, mut piece) = (false, false);
            let mut varying: Vec<ValueId> = Vec::new();
            match coord.axis.map(|a| self.axis_pos(frame, a)).transpose()? {
                None => {}
                Some(Pos::Uniform(p)) => {
                    uniform = self.b.add(uniform, p);
                    divisor = gcd(divisor, self.b.known(p).map_or(1, i64::unsigned_abs));
                }
                Some(Pos::Lanes(p)) => {
                    uniform = self.b.add(uniform, p);
                    divisor = gcd(divisor, u64::from(frame.vector));
                    lanes = true;
                }
                Some(Pos::PerLane(p)) => varying.push(p),
                Some(Pos::Piece(p)) => {
                    varying.push(p);
                    piece = true;
                }
            }
            if let Some(gather) = coord.gather {
                let values = self.eval(gather, frame)?;
                let values: Vec<ValueId> =
                    values.iter().map(|v| self.b.cast(*v, Elem::Index)).collect();
                divisor = 1;
                if self.b.scope(values[0]) >= Scope::Subgroup {
                    uniform = self.b.add(uniform, values[0]);
                } else if varying.is_empty() {
                    varying = values;
                } else {
                    varying = values.iter().map(|v| self.b.add(*v, varying[0])).collect();
                }
            }
            let proved = match bounds {
                // What is gathered depends on data, which no precondition can vouch for.
                ir::Bounds::Assume if coord.gather.is_none() => {
                    bounds::Proved { lower: true, upper: true }
                }
                ir::Bounds::Fill(_)
                    if frame.inside && bounds::spans(self.program, tensor, d, coord) =>
                {
                    bounds::Proved { lower: true, upper: true }
                }
                _ => bounds::proved(self.program, tensor, d, coord),
            };
            let size = self.program.tensors[tensor].shape[d];
            let upper = (!proved.upper).then(|| self.extent(size));
            dims.push(Dim {
                stride: self.args.stride(&mut self.b, self.program, tensor, d),
                stride_divisor: stride_divisor(self.program, tensor, d),
                uniform,
                uniform_divisor: divisor,
                lanes,
                piece,
                varying,
                upper,
                lower: !proved.lower,
            });
        }
        Ok(dims)
    }

    /// Works out address and guards. `alignment` is the base alignment in elements.
    pub(super) fn access(
        &mut self,
        frame: &Frame,
        memory: Memory,
        dims: &[Dim],
        alignment: u64,
    ) -> Access {
        let vector = frame.vector;
        let wide = i64::from(vector);
        let b = &mut self.b;
        let zero = b.int(0);
        let (mut base, mut element) = (zero, zero);
        let mut index: Vec<ValueId> = Vec::new();
        let mut aligned = alignment.is_multiple_of(u64::from(vector));
        for dim in dims {
            let offset = b.mul(dim.uniform, dim.stride);
            base = b.add(base, offset);
            if dim.lanes || dim.piece {
                element = b.add(element, dim.stride);
            }
            if !dim.varying.is_empty() {
                let width = index.len().max(dim.varying.len());
                index = (0..width)
                    .map(|v| {
                        let part = dim.varying[v.min(dim.varying.len() - 1)];
                        let part = b.mul(part, dim.stride);
                        match index.get(v.min(index.len().saturating_sub(1))) {
                            Some(sum) => b.add(*sum, part),
                            None => part,
                        }
                    })
                    .collect();
            }
            let divisor = dim.uniform_divisor.saturating_mul(dim.stride_divisor);
            aligned &= divisor.is_multiple_of(u64::from(vector));
            // A piece starts at a multiple of V; other offsets of a lane are multiples of the stride.
            let own = dim.varying.is_empty() || dim.piece;
            aligned &= own || dim.stride_divisor.is_multiple_of(u64::from(vector));
        }
        let lanes = dims.iter().any(|d| d.lanes);
        let varying = lanes || !index.is_empty();
        let lane_stride = match b.known(element) {
            _ if !lanes => 0,
            Some(n) => n * wide,
            None => {
                // A stride that is known at launch only: every lane works out its own offset.
                let lane = b.lane();
                let lane = b.mul_int(lane, wide);
                let offset = b.mul(lane, element);
                if index.is_empty() {
                    index.push(offset);
                } else {
                    index = index.iter().map(|i| b.add(*i, offset)).collect();
                }
                0
            }
        };
        let unit = b.known(element) == Some(1);
        // One offset a lane, of its whole piece.
        let piece = dims.iter().any(|d| d.piece) && index.len() == 1;
        let mut access = Access {
            memory,
            base,
            lane_stride,
            whole: vector == 1 || (unit && aligned && (index.is_empty() || piece)),
            index,
            element,
            varying,
            vector,
            count: if varying { frame.limit } else { None },
            uniform: None,
            masks: Vec::new(),
        };
        self.guards(frame, dims, &mut access);
        access
    }

    /// Adds what keeps an access inside its buffer and its tile.
    fn guards(&mut self, frame: &Frame, dims: &[Dim], access: &mut Access) {
        let wide = i64::from(access.vector);
        let mut lane_tests: Vec<Vec<ValueId>> = Vec::new();
        if let (Some(mask), true) = (frame.mask, access.varying) {
            lane_tests.push(vec![mask]);
        }
        for dim in dims {
            let b = &mut self.b;
            let zero = b.int(0);
            if dim.varying.is_empty() && !(dim.lanes && dim.lower) {
                if let Some(size) = dim.upper {
                    if dim.lanes {
                        let rest = b.sub(size, dim.uniform);
                        access.count = Some(access.count.map_or(rest, |count| b.min(count, rest)));
                    } else {
                        let test = b.compare(MapOp::Lt, dim.uniform, size);
                        access.uniform = b.both(access.uniform, Some(test));
                    }
                }
                if dim.lower && !dim.lanes {
                    let test = b.compare(MapOp::Ge, dim.uniform, zero);
                    access.uniform = b.both(access.uniform, Some(test));
                }
                continue;
            }
            if dim.upper.is_none() && !dim.lower {
                continue;
            }
            let each = dim.lanes || dim.piece;
            let width = if each { access.vector as usize } else { dim.varying.len() };
            let tests = (0..width)
                .filter_map(|v| {
                    let mut at = dim.uniform;
                    if let Some(part) = dim.varying.get(v.min(dim.varying.len().max(1) - 1)) {
                        at = b.add(at, *part);
                    }
                    if dim.lanes {
                        let lane = b.lane();
                        let lane = b.mul_int(lane, wide);
                        let lane = b.add_int(lane, v as i64);
                        at = b.add(at, lane);
                    } else if dim.piece {
                        at = b.add_int(at, v as i64);
                    }
                    let below = dim.upper.map(|size| b.compare(MapOp::Lt, at, size));
                    let above = dim.lower.then(|| b.compare(MapOp::Ge, at, zero));
                    b.both(below, above)
                })
                .collect();
            lane_tests.push(tests);
        }
        if access.uniform.is_some() && access.count.is_some() {
            access.whole = access.vector == 1;
        }
        if lane_tests.is_empty() {
            return;
        }
        // Masks hold for a single element per access, but that of the frame for all of a lane's.
        let together = lane_tests.iter().all(|tests| tests.len() == 1);
        let piece = together && dims.iter().any(|d| d.piece) && access.count.is_none();
        access.whole &= access.vector == 1 || piece;
        access.masks = (0..access.vector as usize)
            .filter_map(|v| {
                let tests = lane_tests
                    .iter()
                    .filter_map(|t| t.get(v.min(t.len().saturating_sub(1))).copied());
                tests
                    .collect::<Vec<_>>()
                    .into_iter()
                    .fold(None, |all, test| self.b.both(all, Some(test)))
            })
            .collect();
    }

    /// `l·V + v < limit`, per lane.
    pub(super) fn below(&mut self, vector: u32, v: u32, limit: ValueId) -> ValueId {
        let lane = self.b.lane();
        let lane = self.b.mul_int(lane, i64::from(vector));
        let lane = self.b.add_int(lane, i64::from(v));
        self.b.compare(MapOp::Lt, lane, limit)
    }

    /// Guard of vector element `v`, or of the whole access.
    fn guard(&mut self, access: &Access, v: Option<u32>) -> Option<GuardTest> {
        if let Some(mask) = access.masks.get(v.unwrap_or(0) as usize).copied() {
            let count = access.count.map(|c| self.below(access.vector, v.unwrap_or(0), c));
            let mask = self.b.both(Some(mask), count);
            return self.b.both(mask, access.uniform).map(GuardTest::Mask);
        }
        let Some(mut count) = access.count else {
            return access.uniform.map(GuardTest::Mask);
        };
        if let Some(v) = v {
            // l·V + v < count  ⇔  l < ⌈(count − v)/V⌉; a quotient below 0 stays at most 0.
            let wide = i64::from(access.vector);
            count = self.b.add_int(count, wide - 1 - i64::from(v));
            let wide = self.b.int(wide);
            count = self.b.div(count, wide);
        }
        match access.uniform {
            None => Some(GuardTest::Count(count)),
            Some(test) => {
                // Such an access goes element by element (see `guards`).
                let inside = self.below(1, 0, count);
                self.b.both(Some(inside), Some(test)).map(GuardTest::Mask)
            }
        }
    }

    fn place(&mut self, access: &Access, v: u32) -> Place {
        let offset = self.b.mul_int(access.element, i64::from(v));
        let base = self.b.add(access.base, offset);
        let last = access.index.len().saturating_sub(1);
        Place {
            memory: access.memory,
            base,
            lane_stride: access.lane_stride,
            index: access.index.get(last.min(v as usize)).copied(),
        }
    }

    /// Reads one value (where no lane differs) or V.
    pub(super) fn read(&mut self, access: &Access, fill: f64) -> Vec<ValueId> {
        if !access.varying || access.vector == 1 {
            let place = self.place(access, 0);
            let test = self.guard(access, None);
            return vec![self.b.load1(place, test.map(|test| Guard { test, fill }))];
        }
        if access.whole {
            let place = self.place(access, 0);
            let test = self.guard(access, None);
            let guard = test.map(|test| Guard { test, fill });
            return self.b.load(place, access.vector, guard);
        }
        (0..access.vector)
            .map(|v| {
                let place = self.place(access, v);
                let test = self.guard(access, Some(v));
                self.b.load1(place, test.map(|test| Guard { test, fill }))
            })
            .collect()
    }

    /// Copies the lanes' elements to shared memory asynchronously: the token, or none where they
    /// don't go as one access each.
    pub(super) fn copy(&mut self, access: &Access, to: Place) -> Option<ValueId> {
        if !access.whole || !access.varying {
            return None;
        }
        let from = self.place(access, 0);
        let guard = self.guard(access, None).map(|test| Guard { test, fill: 0.0 });
        Some(self.b.copy_async(to, from, access.vector, guard))
    }

    /// Writes one value or V. Where no lane differs, lane 0 writes.
    pub(super) fn write(&mut self, access: &mut Access, values: &[ValueId]) {
        let guarded = |test| Guard { test, fill: 0.0 };
        if !access.varying {
            let one = self.b.int(1);
            let place = self.place(access, 0);
            access.count = Some(one);
            access.vector = 1;
            let test = self.guard(access, None);
            self.b.store(place, &values[..1], test.map(guarded));
            return;
        }
        let value = |v: u32| values[(v as usize).min(values.len() - 1)];
        if access.whole {
            let place = self.place(access, 0);
            let test = self.guard(access, None);
            let values: Vec<ValueId> = (0..access.vector).map(value).collect();
            self.b.store(place, &values, test.map(guarded));
            return;
        }
        for v in 0..access.vector {
            let place = self.place(access, v);
            let test = self.guard(access, Some(v));
            self.b.store(place, &[value(v)], test.map(guarded));
        }
    }

    /// Writes one value or V to a tensor at the frame's positions.
    pub(super) fn write_tensor(
        &mut self,
        frame: &mut Frame,
        tensor: TensorId,
        coords: &[ir::Coord],
        bounds: ir::Bounds,
        values: &[ValueId],
    ) -> Result<(), LowerError> {
        let dims = self.tensor_dims(frame, tensor, coords, bounds)?;
        let t = &self.program.tensors[tensor];
        let alignment = t.align / t.dtype.bytes().max(1);
        let memory = Memory::Global(self.args.tensor(tensor));
        let mut access = self.access(frame, memory, &dims, alignment);
        self.write(&mut access, values);
        Ok(())
    }
}
