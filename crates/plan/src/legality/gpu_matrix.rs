//! Legality of register-tile matrix mappings on GPUs.

use tilewright_ir::DType;

use super::{Rejection, Rule, check_groups, require};
use crate::mapping::GpuMatrixMapping;
use crate::policy::gpu_matrix::{copies_depth, registers, shared_bytes};
use crate::problem::MatrixProblem;
use crate::target::GpuFacts;

/// Checks a register-tile mapping, rules in this order: target-dtype, empty-tile, lane-width,
/// tile-multiple, stage-range, unroll-range, accumulator-order, unproved-realisation, threads-limit,
/// groups-limit, register-budget, shared-memory. `copies` are the copy widths of A and B that alignment proves.
///
/// # Errors
/// Names the first rule that the mapping breaks.
pub fn check(
    problem: &MatrixProblem,
    gpu: &GpuFacts,
    mapping: &GpuMatrixMapping,
    copies: [u32; 2],
) -> Result<(), Rejection> {
    let m = mapping;
    for dtype in [problem.operand, problem.accumulator] {
        require(dtype == DType::F32, Rule::TargetDtype, || {
            format!("register tiles multiply and accumulate f32, not {dtype}")
        })?;
    }
    let numbers = || m.warps.iter().chain(&m.lanes).chain(&m.tile).chain([&m.depth, &m.slices]);
    require(!numbers().any(|n| *n == 0), Rule::EmptyTile, || format!("{m:?} has a zero"))?;
    let in_place = m.stages == 1;
    let grid = u64::from(m.lanes[0]) * u64::from(m.lanes[1]);
    require(
        (grid == 32 || in_place && m.lanes == [1, 1]) && gpu.lanes == 32,
        Rule::LaneWidth,
        || format!("a grid of {:?} lanes, a subgroup has {}", m.lanes, gpu.lanes),
    )?;
    let powers = m.warps.iter().chain(&m.lanes).chain(&m.tile).chain([&m.depth]);
    require(
        powers.clone().all(|n| n.is_power_of_two()) && m.depth.is_multiple_of(m.warps[2]),
        Rule::TileMultiple,
        || format!("{m:?}: extents are powers of two, a step a multiple of the sets"),
    )?;
    require((1..=8).contains(&m.stages), Rule::StageRange, || {
        format!("{} stages: use 2 to 8, or 1 to read in place", m.stages)
    })?;
    let unroll = m.unroll == 1 || m.unroll.is_multiple_of(m.stages);
    require(unroll && (1..=16).contains(&m.unroll), Rule::UnrollRange, || {
        format!("{} steps per trip for {} stages", m.unroll, m.stages)
    })?;
    require(
        problem.reassociable || (m.warps[2] == 1 && m.slices == 1 && m.lanes != [1, 1]),
        Rule::AccumulatorOrder,
        || "the order of the sum is stated, and parts of K would be summed apart".to_string(),
    )?;
    let block = m.block();
    if in_place {
        check_in_place(problem, m, copies)?;
    }
    for i in (0..2).filter(|_| !in_place) {
        let depth = copies_depth(m, problem.transposed, i);
        let proved = if depth { problem.along[i] } else { copies[i] };
        let room = depth || block[i] >= 4;
        require(m.copy[i] == 1 || m.copy[i] == proved && room, Rule::UnprovedRealisation, || {
            format!("copies of {} elements where {proved} are proved aligned", m.copy[i])
        })?;
        let share = m.depth / m.warps[2].max(1);
        require(!depth || share.is_multiple_of(m.copy[i]), Rule::TileMultiple, || {
            format!("{share} elements of K a step for vectors of {} of them", m.copy[i])
        })?;
    }
    let sliced = problem.is_static[0] && problem.is_static[1];
    require(m.slices == 1 || sliced, Rule::UnprovedRealisation, || {
        "scratch of slices needs the sizes of the output".to_string()
    })?;
    require(m.threads() <= u64::from(gpu.max_threads), Rule::ThreadsLimit, || {
        format!("{} threads, at most {}", m.threads(), gpu.max_threads)
    })?;
    let [rows, columns] = [0, 1].map(|i| problem.size[i].div_ceil(block[i].max(1)));
    let all = [rows, columns, problem.batch, u64::from(m.slices)];
    check_groups(all.into_iter().fold(1, u64::saturating_mul))?;
    let needed = registers(m, problem.transposed);
    let most = gpu.registers_per_thread.unwrap_or(0);
    let all = gpu.registers_per_core.unwrap_or(0);
    let share = all.checked_div(m.threads() * u64::from(m.resident.max(1))).unwrap_or(0);
    require(needed <= most.min(share), Rule::RegisterBudget, || {
        format!("{needed} registers a thread, at most {}", most.min(share))
    })?;
    let bytes = shared_bytes(m, problem.transposed);
    require(bytes <= gpu.shared_bytes, Rule::SharedMemory, || {
        format!("{bytes} bytes, at most {}", gpu.shared_bytes)
    })
}

/// Whether operands may be read in place as a mapping says.
fn check_in_place(
    problem: &MatrixProblem,
    m: &GpuMatrixMapping,
    copies: [u32; 2],
) -> Result<(), Rejection> {
    let share = m.depth / m.warps[2].max(1);
    let side = match m.lanes {
        [1, 1] => None,
        [1, _] => Some(1),
        [_, 1] => Some(0),
        _ => {
            let detail = format!("{:?} lanes read in place: they lie along one side", m.lanes);
            return Err(Rejection::new(Rule::LaneWidth, detail));
        }
    };
    let numbers = match side {
        None => m.copy[0] == m.copy[1] && share.is_multiple_of(32 * m.copy[0].max(1)),
        Some(side) => m.tile[side] <= 4,
    };
    require(numbers && m.unroll == 1, Rule::TileMultiple, || {
        format!("{m:?}: a trip is whole vectors of all lanes, or a lane has at most 4 elements")
    })?;
    for (i, width) in m.copy.into_iter().enumerate() {
        let proved = if side == Some(i) { copies[i] } else { problem.along[i] };
        // One element needs no proof, unless lanes split K.
        let single = side.is_some() && width == 1;
        require(
            single || width > 0 && proved.is_multiple_of(width) && proved > 0,
            Rule::UnprovedRealisation,
            || format!("reads of {width} elements where {proved} are proved aligned"),
        )?;
    }
    Ok(())
}
