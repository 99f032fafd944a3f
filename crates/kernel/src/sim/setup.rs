//! Checks the arguments, lays out the launch and runs its clusters.

use super::agents::Map;
use super::clock::View;
use super::error::SimError;
use super::exec::{PrivateArray, Shared, Status, Subgroup};
use super::fragment::Fragment;
use super::memory::{Buffer, Cell, Reads};
use super::sync::{Group, Syncs, mbarriers};
use super::{Order, SimArg, SimOptions, SimReport, schedule};
use crate::flat::{Code, flatten};
use crate::kernel::{Arg, ArgKind, Elem, Kernel, Op, Size};
use crate::validate::validate;
use tilewright_ir::DType;
use tilewright_ir::entity::Id;
use tilewright_ir::program::Access;

/// A small generator (splitmix64).
pub(super) struct Random(pub u64);

impl Random {
    /// A number below `n` (0 for 0).
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}

/// Runs a kernel on arguments given in launch order. Buffers are changed in place, also where the
/// run ends with a fault.
///
/// # Errors
/// The kernel isn't valid, the arguments or the grid don't fit it, or a fault happened.
pub fn run(
    kernel: &Kernel,
    args: &mut [SimArg],
    options: &SimOptions,
) -> Result<SimReport, SimError> {
    validate(kernel).map_err(SimError::Invalid)?;
    let numbers = check_args(kernel, args)?;
    let (extents, groups) = grid(kernel, &numbers)?;
    // One file of 64-bit slots.
    let code = flatten(kernel, |_| 0);
    let mut shared = Shared {
        kernel,
        code: &code,
        numbers,
        lane_order: options.lanes,
        globals: Vec::new(),
        maps: Vec::new(),
        groups: (0..kernel.cluster).map(|_| Group::new(kernel)).collect(),
        reads: Reads::default(),
        syncs: Syncs::default(),
        report: SimReport { groups, ..SimReport::default() },
        reverse_lanes: options.order == Order::Reverse,
    };
    take(kernel, args, &mut shared);
    let result = clusters(kernel, &code, &mut shared, options, extents, groups);
    let report = give_back(kernel, args, shared);
    result.map(|()| report)
}

fn argument(index: usize, arg: &Arg, message: impl Into<String>) -> SimError {
    SimError::Argument { index, name: arg.name.clone(), message: message.into() }
}

/// Checks kinds, types and sizes; gives the bits of the numbers.
fn check_args(kernel: &Kernel, args: &[SimArg]) -> Result<Vec<u64>, SimError> {
    let mut numbers = vec![0; kernel.args.len()];
    for (id, arg) in kernel.args.iter() {
        let index = id.index();
        let Some(given) = args.get(index) else {
            return Err(argument(index, arg, "it is missing"));
        };
        match (arg.kind, given) {
            (ArgKind::Buffer { dtype, .. }, SimArg::Buffer { dtype: given, data, .. }) => {
                if dtype != *given {
                    let message = format!("a buffer of {given}, not {dtype}");
                    return Err(argument(index, arg, message));
                }
                representable(index, arg, dtype, data)?;
            }
            (ArgKind::Number(Elem::Index), SimArg::Index(n)) => numbers[index] = *n as u64,
            (ArgKind::Number(Elem::Data(DType::I32)), SimArg::Number(x)) => {
                representable(index, arg, DType::I32, &[*x])?;
                numbers[index] = *x as i64 as u64;
            }
            (ArgKind::Number(Elem::Data(dtype)), SimArg::Number(x)) => {
                representable(index, arg, dtype, &[*x])?;
                numbers[index] = x.to_bits();
            }
            (
                ArgKind::TensorMap { dtype, .. },
                SimArg::TensorMap { dtype: given, data, dims, strides },
            ) => {
                if dtype != *given {
                    let message = format!("a tensor of {given}, not {dtype}");
                    return Err(argument(index, arg, message));
                }
                representable(index, arg, dtype, data)?;
                let last = (dims.iter().zip(strides)).try_fold(0u64, |at, (&d, &s)| {
                    at.checked_add(d.checked_sub(1)?.checked_mul(s)?)
                });
                let inside = last.is_none_or(|last| last < data.len() as u64);
                if dims.len() != strides.len() || dims.is_empty() || !inside {
                    return Err(argument(index, arg, "sizes and strides don't fit the data"));
                }
            }
            _ => return Err(argument(index, arg, "it is of another kind")),
        }
    }
    if let Some(extra) = args.len().checked_sub(kernel.args.len() + 1) {
        let message = format!("{} arguments too many", extra + 1);
        let name = kernel.name.clone();
        return Err(SimError::Argument { index: kernel.args.len(), name, message });
    }
    Ok(numbers)
}

fn representable(index: usize, arg: &Arg, dtype: DType, data: &[f64]) -> Result<(), SimError> {
    match data.iter().find(|&&x| !x.is_nan() && dtype.round(x) != x) {
        Some(x) => Err(argument(index, arg, format!("{x:?} is no {dtype}"))),
        None if dtype == DType::I32 && data.iter().any(|x| x.is_nan()) => {
            Err(argument(index, arg, "NaN is no i32"))
        }
        None => Ok(()),
    }
}

/// Extents of the grid, innermost last, and the number of groups.
fn grid(kernel: &Kernel, numbers: &[u64]) -> Result<(Vec<u64>, u64), SimError> {
    let mut extents = Vec::new();
    for dim in &kernel.grid {
        let size = match dim.size {
            Size::Const(n) => n,
            Size::Arg(id) => numbers[id.index()],
        };
        if i64::try_from(size).is_err() {
            return Err(SimError::Grid(format!("a size of {}", size as i64)));
        }
        extents.push(size.div_ceil(dim.step));
    }
    let total = extents.iter().try_fold(1u64, |n, &e| n.checked_mul(e));
    let Some(total) = total.filter(|&n| n < 1 << 40) else {
        return Err(SimError::Grid(format!("{extents:?} groups are too many")));
    };
    if !total.is_multiple_of(u64::from(kernel.cluster)) {
        let message = format!("{total} groups aren't whole clusters of {}", kernel.cluster);
        return Err(SimError::Grid(message));
    }
    Ok((extents, total))
}

/// Moves the buffers into the run.
fn take(kernel: &Kernel, args: &mut [SimArg], shared: &mut Shared<'_>) {
    for ((_, arg), given) in kernel.args.iter().zip(args) {
        let mut buffer = Buffer::default();
        let mut map = None;
        match given {
            SimArg::Buffer { data, poison, .. } => {
                buffer.data = std::mem::take(data);
                if let ArgKind::Buffer { access: Access::Out | Access::InOut, .. } = arg.kind {
                    buffer.cells = vec![Cell::new(!*poison); buffer.data.len()];
                }
            }
            SimArg::TensorMap { data, dims, strides, .. } => {
                map = Some(Map {
                    data: std::mem::take(data),
                    dims: dims.clone(),
                    strides: strides.clone(),
                });
            }
            SimArg::Index(_) | SimArg::Number(_) => {}
        }
        shared.globals.push(buffer);
        shared.maps.push(map);
    }
}

/// Moves the buffers back and looks for elements that nobody wrote.
fn give_back(kernel: &Kernel, args: &mut [SimArg], shared: Shared<'_>) -> SimReport {
    let Shared { globals, maps, mut report, .. } = shared;
    for ((((id, _), given), buffer), map) in kernel.args.iter().zip(args).zip(globals).zip(maps) {
        match given {
            SimArg::Buffer { data, poison, .. } => {
                *data = buffer.data;
                let mut holes = (buffer.cells.iter().enumerate())
                    .filter(|(_, cell)| *poison && !cell.defined)
                    .map(|(i, _)| i as u64);
                if let Some(first) = holes.next() {
                    report.unwritten.push((id, 1 + holes.count() as u64, first));
                }
            }
            SimArg::TensorMap { data, .. } => {
                if let Some(map) = map {
                    *data = map.data;
                }
            }
            SimArg::Index(_) | SimArg::Number(_) => {}
        }
    }
    report
}

fn clusters(
    kernel: &Kernel,
    code: &Code,
    shared: &mut Shared<'_>,
    options: &SimOptions,
    extents: Vec<u64>,
    groups: u64,
) -> Result<(), SimError> {
    let seed = match options.order {
        Order::Shuffled(seed) => seed,
        _ => 0,
    };
    let mut random = Random(seed);
    let per = u64::from(kernel.cluster);
    let count = groups / per;
    let mut subgroups = new_subgroups(kernel, code);
    let shuffled = match options.order {
        Order::Shuffled(_) => {
            let mut order: Vec<u64> = (0..count).collect();
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i as u64 + 1) as usize);
            }
            Some(order)
        }
        _ => None,
    };
    for i in 0..count {
        let cluster = match (&shuffled, options.order) {
            (Some(order), _) => order[i as usize],
            (None, Order::Reverse | Order::RunAheadLast) => count - 1 - i,
            (None, _) => i,
        };
        for (rank, group) in shared.groups.iter_mut().enumerate() {
            let linear = cluster * per + rank as u64;
            group.reset(linear, coordinates(linear, &extents));
        }
        for (thread, subgroup) in subgroups.iter_mut().enumerate() {
            reset(subgroup, kernel, cluster as u32, thread);
        }
        schedule::run(&mut subgroups, shared, options.order, &mut random, options.max_steps)?;
    }
    Ok(())
}

/// Coordinates of a group, outermost first, the last one running fastest.
fn coordinates(linear: u64, extents: &[u64]) -> [u64; 3] {
    let mut coords = [0; 3];
    let mut left = linear;
    for (i, &extent) in extents.iter().enumerate().rev() {
        coords[i] = left % extent;
        left /= extent;
    }
    coords
}

/// Threads of a cluster that clocks have entries for: agents only where there is asynchronous
/// work.
fn threads(kernel: &Kernel) -> usize {
    let subgroups = (kernel.cluster * kernel.subgroups) as usize;
    let mut tokens = false;
    kernel.body.walk(&mut |stmt| {
        tokens |= matches!(stmt.op, Op::MmaAsync { .. } | Op::CopyAsync { .. });
    });
    let bulk = kernel.cluster as usize * mbarriers(kernel);
    match (tokens, bulk) {
        (false, 0) => subgroups,
        _ => 3 * subgroups + bulk,
    }
}

fn new_subgroups(kernel: &Kernel, code: &Code) -> Vec<Subgroup> {
    let total = (kernel.cluster * kernel.subgroups) as usize;
    let threads = threads(kernel);
    (0..total)
        .map(|thread| Subgroup {
            rank: thread / kernel.subgroups as usize,
            number: thread as u32 % kernel.subgroups,
            regs: vec![0; code.registers[0]],
            tokens: vec![0; code.tokens],
            fragments: vec![Fragment::default(); code.fragments],
            private: (kernel.private.iter())
                .map(|(_, p)| {
                    let n = p.len as usize * kernel.lanes as usize;
                    PrivateArray { data: vec![0; n], defined: vec![false; n] }
                })
                .collect(),
            view: View {
                thread,
                subgroups: total,
                per_group: kernel.subgroups as usize,
                clock: vec![0; threads],
                fenced: vec![0; threads],
                ..View::default()
            },
            ..Subgroup::default()
        })
        .collect()
}

fn reset(subgroup: &mut Subgroup, kernel: &Kernel, cluster: u32, thread: usize) {
    subgroup.pc = 0;
    subgroup.status = Some(Status::Ready);
    subgroup.mask = u64::MAX >> (64 - kernel.lanes);
    subgroup.splits.clear();
    for array in &mut subgroup.private {
        array.defined.fill(false);
    }
    let view = &mut subgroup.view;
    view.cluster = cluster;
    view.clock.fill(0);
    view.clock[thread] = 1;
    view.fenced.fill(0);
    view.foreign = None;
    view.lane_floor = 1;
    view.copy_floor = 0;
    subgroup.arrival = None;
    (subgroup.copies, subgroup.atoms) = (0, 0);
    (subgroup.assembled, subgroup.tried) = (false, false);
}
