//! Runs compiled steps, instance by instance, on several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::entity::Id;
use crate::interp::bind::Launch;
use crate::interp::cells::{Cells, Clash};
use crate::interp::compile::{Access, Code, Fused, Operand, Origin, Product, Step};
use crate::interp::{InterpError, Mode, Options, Output, Outputs, gemm, magnitude, scalar};
use crate::program::{Access as Direction, MapOp, ReduceOp};
use crate::types::DType;

/// Element operations from which a second thread is worth its start.
const PARALLEL: u128 = 1 << 17;

/// A tile in the row-major order of its type's axes.
#[derive(Clone, Default)]
struct Tile {
    data: Vec<f64>,
    /// Scales of errors, as long as the data, or empty where they aren't computed.
    scale: Vec<f64>,
}

/// Runs a launch.
///
/// # Errors
/// An access leaves its tensor, an output is written twice or not wholly, or an in-out element
/// is shared.
pub fn execute(
    launch: &Launch<'_>,
    code: &Code,
    options: &Options,
) -> Result<Outputs, InterpError> {
    let cells: Vec<Option<Cells>> = launch
        .program
        .tensors
        .iter()
        .map(|(id, tensor)| {
            let initial = match tensor.access {
                Direction::In => return None,
                Direction::Out => None,
                Direction::InOut => Some(launch.inputs[id.index()]),
            };
            let span = launch.layouts[id.index()].span() as usize;
            Some(Cells::new(span, initial, options.magnitude))
        })
        .collect();

    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let threads = if options.threads == 0 { cores } else { options.threads };
    let wanted = if code.work < PARALLEL { 1 } else { threads };
    let workers = wanted.min(usize::try_from(code.instances).unwrap_or(usize::MAX)).max(1);
    // A few stretches per worker even out instances of different cost.
    let stretch = code.instances.div_ceil(8 * workers as u64).max(1);
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let failure: Mutex<Option<(u64, InterpError)>> = Mutex::new(None);
    let work = || {
        let mut machine = Machine {
            launch,
            cells: &cells,
            options,
            threads: if workers == 1 { wanted } else { 1 },
            tiles: vec![Tile::default(); launch.program.values.len()],
            indices: vec![0; launch.program.indices.len()],
            instance: 0,
            scratch: Default::default(),
        };
        while !stop.load(Relaxed) {
            let first = next.fetch_add(stretch, Relaxed);
            if first >= code.instances {
                return;
            }
            for instance in first..(first + stretch).min(code.instances) {
                if let Err(error) = machine.instance(code, instance) {
                    stop.store(true, Relaxed);
                    let mut slot = failure.lock().unwrap_or_else(|e| e.into_inner());
                    if slot.as_ref().is_none_or(|(at, _)| instance < *at) {
                        *slot = Some((instance, error));
                    }
                    return;
                }
            }
        }
    };
    match workers {
        1 => work(),
        _ => std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(work);
            }
        }),
    }
    if let Some((_, error)) = failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        return Err(error);
    }
    collect(launch, cells)
}

/// Checks that outputs are whole and takes them out.
fn collect(launch: &Launch<'_>, cells: Vec<Option<Cells>>) -> Result<Outputs, InterpError> {
    let mut outputs = Vec::new();
    for ((id, tensor), cells) in launch.program.tensors.iter().zip(cells) {
        let Some(cells) = cells else { continue };
        let layout = launch.layouts[id.index()].clone();
        let count = layout.len() - cells.count_written().min(layout.len());
        if tensor.access == Direction::Out && count > 0 {
            let mut missing = (0..layout.len()).zip(layout.offsets());
            let first = missing.find(|(_, at)| !cells.is_written(*at)).map_or(0, |(n, _)| n);
            let index = layout.index(first);
            return Err(InterpError::Hole { tensor: tensor.name.clone(), count, index });
        }
        let (data, magnitude) = cells.into_parts();
        outputs.push(Output { tensor: id, name: tensor.name.clone(), layout, data, magnitude });
    }
    Ok(outputs)
}

/// One thread's state.
struct Machine<'a> {
    launch: &'a Launch<'a>,
    cells: &'a [Option<Cells>],
    options: &'a Options,
    /// Threads for one matrix product.
    threads: usize,
    tiles: Vec<Tile>,
    indices: Vec<i64>,
    instance: u32,
    /// Reused buffers for operands that need another order of axes.
    scratch: [Tile; 3],
}

impl Machine<'_> {
    fn instance(&mut self, code: &Code, instance: u64) -> Result<(), InterpError> {
        let mut rest = instance;
        for (slot, trips, step) in code.grid.iter().rev() {
            self.indices[*slot] = (rest % trips) as i64 * step;
            rest /= trips;
        }
        // The compiler bounds the number of instances.
        self.instance = instance as u32;
        self.block(&code.body)
    }

    fn block(&mut self, steps: &[Step]) -> Result<(), InterpError> {
        steps.iter().try_for_each(|step| self.step(step))
    }

    fn origin(&self, origin: &Origin) -> i128 {
        let term = |(slot, coefficient): &(usize, i128)| self.indices[*slot] as i128 * coefficient;
        origin.constant + origin.terms.iter().map(term).sum::<i128>()
    }

    /// Takes a tile's buffers for overwriting.
    fn take(&mut self, slot: usize) -> Tile {
        std::mem::take(&mut self.tiles[slot])
    }

    /// Puts a result in place, rounded if that is the mode, with scales if they are computed.
    fn put(&mut self, slot: usize, mut tile: Tile, dtype: DType) {
        if self.options.mode == Mode::Rounded && dtype != DType::F64 {
            tile.data.iter_mut().for_each(|x| *x = dtype.round(*x));
        }
        if self.options.magnitude {
            tile.scale.resize(tile.data.len(), 0.0);
        }
        self.tiles[slot] = tile;
    }

    /// Copies an operand in the result's order of axes.
    fn copy(&self, (from, walk): &Operand, to: &mut Tile) {
        let tile = &self.tiles[*from];
        walk.gather(&tile.data, &mut to.data);
        to.scale.clear();
        if self.options.magnitude {
            walk.gather(&tile.scale, &mut to.scale);
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), InterpError> {
        match step {
            Step::Const { to, value } => {
                let mut tile = self.take(*to);
                tile.data.clear();
                tile.data.push(*value);
                tile.scale.clear();
                self.put(*to, tile, DType::F64);
            }
            Step::Index { to, origin, len } => {
                let first = self.origin(origin);
                let mut tile = self.take(*to);
                tile.data.clear();
                // Indices wrap as every i32 does.
                tile.data.extend((0..*len).map(|n| (first + n as i128) as i32 as f64));
                tile.scale.clear();
                self.put(*to, tile, DType::I32);
            }
            Step::Load { to, access } => {
                let mut tile = self.take(*to);
                self.load(access, &mut tile)?;
                // Loaded values are the dtype's already.
                self.put(*to, tile, DType::F64);
            }
            Step::Store { from, access } => self.store(*from, access)?,
            Step::Map { to, op, dtype, args, result } => self.map(*to, *op, *dtype, args, *result),
            Step::Copy { to, from, convert } => {
                let mut tile = self.take(*to);
                self.copy(from, &mut tile);
                if let Some(dtype) = convert.filter(|d| !d.is_float()) {
                    tile.data.iter_mut().for_each(|x| *x = dtype.round(*x));
                    tile.scale.clear();
                }
                self.put(*to, tile, convert.unwrap_or(DType::F64));
            }
            Step::Reduce { to, op, dtype, from, len, count } => {
                self.reduce(*to, *op, *dtype, from, *len, *count);
            }
            Step::Mma { to, a, b, product, dtype } => {
                let mut scratch = std::mem::take(&mut self.scratch);
                let [left, right, sum] = &mut scratch;
                self.copy(a, left);
                self.copy(b, right);
                self.copy(&product.c, sum);
                self.multiply(product, left, right, sum);
                let mut tile = self.take(*to);
                back(product, sum, &mut tile);
                self.scratch = scratch;
                self.put(*to, tile, *dtype);
            }
            Step::Fused(fused) => self.fused(fused)?,
            Step::Loop { index, trips, step, carries, body } => {
                for carry in carries {
                    let mut tile = self.take(carry.inner);
                    tile.clone_from(&self.tiles[carry.init]);
                    self.tiles[carry.inner] = tile;
                }
                let mut next: Vec<Tile> = vec![Tile::default(); carries.len()];
                for trip in 0..*trips {
                    self.indices[*index] = trip as i64 * step;
                    self.block(body)?;
                    // All next values are read before any carried one changes.
                    for (carry, next) in carries.iter().zip(&mut next) {
                        if !carry.swap {
                            self.copy(&carry.next, next);
                        }
                    }
                    for (carry, next) in carries.iter().zip(&mut next) {
                        match carry.swap {
                            true => self.tiles.swap(carry.inner, carry.next.0),
                            false => std::mem::swap(&mut self.tiles[carry.inner], next),
                        }
                    }
                }
                for carry in carries {
                    self.tiles.swap(carry.result, carry.inner);
                }
            }
        }
        Ok(())
    }

    /// Where each coordinate of an access starts.
    fn origins(&self, access: &Access) -> Vec<i128> {
        access.dims.iter().map(|d| self.origin(&d.origin)).collect()
    }

    fn outside(&self, access: &Access, dim: usize, position: i128) -> InterpError {
        let id = crate::program::TensorId::from_index(access.tensor);
        InterpError::OutOfBounds {
            line: access.place,
            tensor: self.launch.program.tensors[id].name.clone(),
            dim,
            position,
            size: access.dims[dim].size,
        }
    }

    fn clash(&self, access: &Access, clash: Clash) -> InterpError {
        let id = crate::program::TensorId::from_index(access.tensor);
        let tensor = self.launch.program.tensors[id].name.clone();
        let index = |at: usize| self.launch.layouts[access.tensor].index_at(at as u64);
        let line = access.place;
        match clash {
            Clash::Twice(at) => InterpError::WrittenTwice { line, tensor, index: index(at) },
            Clash::Shared(at) => InterpError::Shared { line, tensor, index: index(at) },
        }
    }

    /// The part of the tile that is inside the tensor: `low..high` along each axis, or `None` if
    /// nothing is.
    fn inside(
        &self,
        access: &Access,
        origins: &[i128],
    ) -> Result<Option<Vec<(usize, usize)>>, InterpError> {
        let mut ranges: Vec<(usize, usize)> = access.shape.iter().map(|n| (0, *n)).collect();
        let mut any = !access.shape.contains(&0);
        if !any {
            return Ok(None);
        }
        for (at, (dim, origin)) in access.dims.iter().zip(origins).enumerate() {
            let len = dim.axis.map_or(1, |a| access.shape[a]);
            let low = (-origin).clamp(0, len as i128) as usize;
            let high = (dim.size as i128 - origin).clamp(low as i128, len as i128) as usize;
            if access.fill.is_none() && (low > 0 || high < len) {
                let wrong = if low > 0 { 0 } else { high };
                return Err(self.outside(access, at, origin + wrong as i128));
            }
            match dim.axis {
                Some(axis) => {
                    let (l, h) = &mut ranges[axis];
                    (*l, *h) = ((*l).max(low), (*h).min(high));
                    any &= *l < *h;
                }
                None => any &= low < high,
            }
        }
        Ok(any.then_some(ranges))
    }

    fn load(&self, access: &Access, tile: &mut Tile) -> Result<(), InterpError> {
        tile.data.clear();
        tile.scale.clear();
        let origins = self.origins(access);
        if access.gathers {
            return self.gather(access, &origins, tile);
        }
        let len: usize = access.shape.iter().product();
        let fill = access.fill.unwrap_or(0.0);
        let Some(ranges) = self.inside(access, &origins)? else {
            tile.data.resize(len, fill);
            return Ok(());
        };
        let whole = ranges.iter().zip(&access.shape).all(|((l, h), n)| *l == 0 && h == n);
        let cells = self.cells[access.tensor].as_ref();
        let base = offset(access, &origins);
        let input = self.launch.inputs[access.tensor];
        if whole && cells.is_none() {
            // Every coordinate is inside, so the base is, too.
            access.full.gather(&input[base as usize..], &mut tile.data);
            return Ok(());
        }
        tile.data.resize(len, fill);
        if cells.is_some() {
            tile.scale.resize(len, 0.0);
        }
        box_runs(access, &ranges, base, |at, from, len, stride| {
            match cells {
                None if stride == 1 => {
                    tile.data[at..at + len].copy_from_slice(&input[from..from + len]);
                }
                None => {
                    for n in 0..len {
                        tile.data[at + n] = input[from + n * stride];
                    }
                }
                Some(cells) => {
                    for n in 0..len {
                        let read = cells.read(from + n * stride, self.instance);
                        let (value, scale) = read.map_err(|c| self.clash(access, c))?;
                        tile.data[at + n] = value;
                        tile.scale[at + n] = scale;
                    }
                }
            }
            Ok(())
        })
    }

    /// A load with data-dependent coordinates, element by element.
    fn gather(
        &self,
        access: &Access,
        origins: &[i128],
        tile: &mut Tile,
    ) -> Result<(), InterpError> {
        let len: usize = access.shape.iter().product();
        let gathered: Vec<Option<Vec<f64>>> = access
            .dims
            .iter()
            .map(|dim| {
                dim.gather.as_ref().map(|(slot, walk)| {
                    let mut indices = Vec::new();
                    walk.gather(&self.tiles[*slot].data, &mut indices);
                    indices
                })
            })
            .collect();
        let cells = self.cells[access.tensor].as_ref();
        let input = self.launch.inputs[access.tensor];
        for n in 0..len {
            let mut at = 0usize;
            let mut inside = true;
            for (d, ((dim, origin), gather)) in
                access.dims.iter().zip(origins).zip(&gathered).enumerate()
            {
                let along =
                    dim.axis.map_or(0, |a| n / access.tile_strides[a] % access.shape[a].max(1));
                let index = gather.as_ref().map_or(0, |g| g[n] as i128);
                let position = origin + along as i128 + index;
                if position < 0 || position >= dim.size as i128 {
                    if access.fill.is_none() {
                        return Err(self.outside(access, d, position));
                    }
                    inside = false;
                    break;
                }
                at += position as usize * dim.stride;
            }
            let (value, scale) = match (inside, cells) {
                (false, _) => (access.fill.unwrap_or(0.0), 0.0),
                (true, None) => (input[at], 0.0),
                (true, Some(cells)) => {
                    cells.read(at, self.instance).map_err(|c| self.clash(access, c))?
                }
            };
            tile.data.push(value);
            tile.scale.push(scale);
        }
        Ok(())
    }

    fn store(&self, from: usize, access: &Access) -> Result<(), InterpError> {
        let origins = self.origins(access);
        let Some(ranges) = self.inside(access, &origins)? else { return Ok(()) };
        let Some(cells) = &self.cells[access.tensor] else { return Ok(()) };
        let tile = &self.tiles[from];
        box_runs(access, &ranges, offset(access, &origins), |at, to, len, stride| {
            let scale = tile.scale.get(at..at + len).unwrap_or(&[]);
            cells
                .write(to, stride, &tile.data[at..at + len], scale, self.instance)
                .map_err(|c| self.clash(access, c))
        })
    }

    fn map(&mut self, to: usize, op: MapOp, dtype: DType, args: &[Operand], result: DType) {
        let mut tile = self.take(to);
        let mut scratch = std::mem::take(&mut self.scratch);
        for (operand, spare) in args.iter().zip(&mut scratch) {
            if !operand.1.is_straight() {
                self.copy(operand, spare);
            }
        }
        let operand = |n: usize| match args.get(n) {
            Some((slot, walk)) if walk.is_straight() => &self.tiles[*slot],
            _ => &scratch[n.min(2)],
        };
        let out = &mut tile.data;
        out.clear();
        let x = &operand(0).data[..];
        match args.len() {
            1 if dtype.is_float() => out.extend(x.iter().map(|a| scalar::unary(op, *a))),
            1 => out.extend(x.iter().map(|a| scalar::map(op, dtype, &[*a]))),
            2 => {
                let pairs = x.iter().zip(&operand(1).data);
                match op {
                    _ if !dtype.is_float() || op.is_comparison() => {
                        out.extend(pairs.map(|(a, b)| scalar::map(op, dtype, &[*a, *b])));
                    }
                    MapOp::Add => out.extend(pairs.map(|(a, b)| a + b)),
                    MapOp::Sub => out.extend(pairs.map(|(a, b)| a - b)),
                    MapOp::Mul => out.extend(pairs.map(|(a, b)| a * b)),
                    MapOp::Div => out.extend(pairs.map(|(a, b)| a / b)),
                    _ => out.extend(pairs.map(|(a, b)| scalar::binary(op, *a, *b))),
                }
            }
            _ => {
                let rest = operand(1).data.iter().zip(&operand(2).data);
                let all = x.iter().zip(rest);
                out.extend(all.map(|(a, (b, c))| scalar::map(op, dtype, &[*a, *b, *c])));
            }
        }
        tile.scale.clear();
        if self.options.magnitude {
            let count = args.len().min(3);
            let (mut values, mut scales) = ([0.0; 3], [0.0; 3]);
            for (n, value) in tile.data.iter().enumerate() {
                for arg in 0..count {
                    values[arg] = operand(arg).data[n];
                    scales[arg] = operand(arg).scale[n];
                }
                let (x, e) = (&values[..count], &scales[..count]);
                tile.scale.push(magnitude::map(op, dtype, *value, x, e));
            }
        }
        self.scratch = scratch;
        self.put(to, tile, result);
    }

    fn reduce(
        &mut self,
        to: usize,
        op: ReduceOp,
        dtype: DType,
        from: &Operand,
        len: usize,
        count: usize,
    ) {
        let mut tile = self.take(to);
        let mut scratch = std::mem::take(&mut self.scratch);
        let source = if from.1.is_straight() {
            &self.tiles[from.0]
        } else {
            self.copy(from, &mut scratch[0]);
            &scratch[0]
        };
        tile.data.clear();
        tile.scale.clear();
        for n in 0..count {
            let row = n * len..(n + 1) * len;
            let values = &source.data[row.clone()];
            let value = scalar::reduce(op, dtype, values);
            tile.data.push(value);
            if self.options.magnitude {
                let scales = &source.scale[row];
                tile.scale.push(magnitude::reduce(op, dtype, value, values, scales));
            }
        }
        self.scratch = scratch;
        self.put(to, tile, dtype);
    }

    /// `sum += left·right` for every batch, with scales.
    fn multiply(&self, product: &Product, left: &mut Tile, right: &mut Tile, sum: &mut Tile) {
        self.accumulate(product, &left.data, &right.data, &mut sum.data);
        if self.options.magnitude {
            for tile in [&mut *left, &mut *right] {
                // |x| + E(x); a value that isn't finite has no scale.
                for (n, x) in tile.data.iter_mut().enumerate() {
                    let scale = tile.scale.get(n).copied().unwrap_or(0.0);
                    *x = if x.is_finite() { x.abs() + scale } else { 0.0 };
                }
            }
            self.accumulate(product, &left.data, &right.data, &mut sum.scale);
        }
    }

    fn accumulate(&self, product: &Product, a: &[f64], b: &[f64], c: &mut [f64]) {
        let size @ (m, n, k) = product.size;
        for batch in 0..product.batch {
            let a = &a[batch * m * k..(batch + 1) * m * k];
            let b = &b[batch * k * n..(batch + 1) * k * n];
            let c = &mut c[batch * m * n..(batch + 1) * m * n];
            match self.options.plain {
                true => gemm::accumulate_plain(size, a, b, c),
                false => gemm::accumulate(size, a, b, c, self.threads),
            }
        }
    }

    fn fused(&mut self, fused: &Fused) -> Result<(), InterpError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let [left, right, sum] = &mut scratch;
        self.load(&fused.a, left)?;
        self.load(&fused.b, right)?;
        self.copy(&fused.product.c, sum);
        self.multiply(&fused.product, left, right, sum);
        let mut tile = self.take(fused.to);
        back(&fused.product, sum, &mut tile);
        self.scratch = scratch;
        // Only the oracle fuses, and it doesn't round.
        self.put(fused.to, tile, DType::F64);
        Ok(())
    }
}

/// A product in the result's order of axes.
fn back(product: &Product, sum: &Tile, tile: &mut Tile) {
    product.back.gather(&sum.data, &mut tile.data);
    tile.scale.clear();
    if !sum.scale.is_empty() {
        product.back.gather(&sum.scale, &mut tile.scale);
    }
}

/// Offset of the tile's first element in the tensor; it may lie outside.
fn offset(access: &Access, origins: &[i128]) -> i128 {
    access.dims.iter().zip(origins).map(|(d, o)| d.stride as i128 * o).sum()
}

/// Calls `run(offset in the tile, offset in the tensor, length, tensor stride)` for the stretches
/// of a box of the tile whose elements are all inside the tensor.
fn box_runs(
    access: &Access,
    ranges: &[(usize, usize)],
    base: i128,
    mut run: impl FnMut(usize, usize, usize, usize) -> Result<(), InterpError>,
) -> Result<(), InterpError> {
    // `inside` gave ranges that are not empty, so every offset below is an element's.
    let at = |index: &[usize]| {
        let tile: usize = index.iter().zip(&access.tile_strides).map(|(i, s)| i * s).sum();
        let tensor: usize = index.iter().zip(&access.strides).map(|(i, s)| i * s).sum();
        (tile, (base + tensor as i128) as usize)
    };
    let mut index: Vec<usize> = ranges.iter().map(|(low, _)| *low).collect();
    let Some(inner) = ranges.len().checked_sub(1) else {
        return run(0, base as usize, 1, 1);
    };
    let len = ranges[inner].1 - ranges[inner].0;
    loop {
        let (tile, tensor) = at(&index);
        run(tile, tensor, len, access.strides[inner])?;
        let mut axis = inner;
        loop {
            if axis == 0 {
                return Ok(());
            }
            axis -= 1;
            index[axis] += 1;
            if index[axis] < ranges[axis].1 {
                break;
            }
            index[axis] = ranges[axis].0;
        }
    }
}
