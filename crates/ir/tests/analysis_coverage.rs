//! The coverage and bounds proofs against brute force: whatever is proved is true.

use tilewright_ir::builder::ProgramBuilder;
use tilewright_ir::facts::{Fact, Family};
use tilewright_ir::program::*;
use tilewright_ir::{DType, analysis};

/// Numbers below a bound from a fixed seed (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

struct Case {
    program: Program,
    /// (extent, step) of each grid index.
    grid: Vec<(u64, u64)>,
    /// Extent of each axis.
    axes: Vec<u64>,
    shape: Vec<u64>,
    coords: Vec<Coord>,
}

/// A program that fills a tensor at random affine coordinates. Most numbers are drawn so that
/// they fit together now and then.
fn draw(random: &mut Random) -> Case {
    let mut b = ProgramBuilder::new("drawn");
    let rank = 1 + random.below(2) as usize;
    let mut grid = Vec::new();
    let mut axes = Vec::new();
    let mut axis_ids = Vec::new();
    let mut shape = Vec::new();
    let mut coords = Vec::new();
    for dim in 0..rank {
        let axis = if random.below(3) > 0 {
            let extent = random.below(4);
            axes.push(extent);
            let id = b.axis(&format!("a{dim}"), Extent::Const(extent));
            axis_ids.push(id);
            Some(id)
        } else {
            None
        };
        let mut span = axis.map_or(1, |_| axes.last().copied().unwrap_or(1));
        let mut terms = Vec::new();
        for digit in 0..random.below(3) {
            let coefficient = 1 + random.below(5) / 3;
            // Usually the step that continues the digits, sometimes another.
            let step = match random.below(6) {
                0 => 1 + random.below(4),
                _ => (span / coefficient).max(1),
            };
            let extent = random.below(8);
            let name = format!("g{dim}{digit}");
            let index = b.grid(&name, Extent::Const(extent), Extent::Const(step));
            grid.push((extent, step));
            terms.push((index, coefficient as i64));
            span = extent * coefficient;
        }
        let constant = if random.below(12) == 0 { 1 } else { 0 };
        let mut origin = Origin { constant, terms };
        if random.below(2) == 0 {
            origin.terms.reverse();
        }
        coords.push(Coord { origin, axis, gather: None });
        shape.push(match random.below(4) {
            0 => random.below(10),
            1 => span.saturating_sub(1),
            _ => span,
        });
    }
    if random.below(6) == 0 {
        // An index that no coordinate uses.
        let (extent, step) = (random.below(3), 1 + random.below(2));
        b.grid("spare", Extent::Const(extent), Extent::Const(step));
        grid.push((extent, step));
    }
    let sizes: Vec<Extent> = shape.iter().map(|n| Extent::Const(*n)).collect();
    let y = b.tensor("y", Access::Out, DType::F32, &sizes);
    let bounds = if random.below(2) == 0 { Bounds::Assume } else { Bounds::Fill(0.0) };
    let value = b.fill(0.0, DType::F32, &axis_ids);
    b.store(y, coords.clone(), value, bounds);
    Case { program: b.finish(), grid, axes, shape, coords }
}

/// Every combination of numbers below the bounds, by the given steps.
fn combinations(ranges: &[(u64, u64)]) -> Vec<Vec<u64>> {
    ranges.iter().fold(vec![Vec::new()], |all, (extent, step)| {
        all.iter()
            .flat_map(|head| {
                (0..*extent).step_by(*step as usize).map(move |n| {
                    let mut next = head.clone();
                    next.push(n);
                    next
                })
            })
            .collect()
    })
}

/// How often each element is written, and how many positions lie outside the tensor.
fn brute_force(case: &Case) -> (Vec<u32>, u64) {
    let count = case.shape.iter().product::<u64>() as usize;
    let mut writes = vec![0; count];
    let mut outside = 0;
    let axes: Vec<(u64, u64)> = case.axes.iter().map(|n| (*n, 1)).collect();
    let order: Vec<AxisId> = case.program.axes.ids().collect();
    for point in combinations(&case.grid) {
        for lane in combinations(&axes) {
            let mut offset = Some(0i64);
            for (coord, size) in case.coords.iter().zip(&case.shape) {
                let mut at = coord.origin.constant;
                for (index, coefficient) in &coord.origin.terms {
                    let position = case.program.grid.iter().position(|g| g == index).unwrap();
                    at += coefficient * point[position] as i64;
                }
                if let Some(axis) = coord.axis {
                    at += lane[order.iter().position(|a| *a == axis).unwrap()] as i64;
                }
                let inside = (0..*size as i64).contains(&at);
                offset = offset.filter(|_| inside).map(|o| o * *size as i64 + at);
            }
            match offset {
                Some(offset) => writes[offset as usize] += 1,
                None => outside += 1,
            }
        }
    }
    (writes, outside)
}

#[test]
fn proved_coverage_is_true() {
    let mut random = Random(7);
    let mut proved = 0;
    let mut missed = 0;
    for _ in 0..20_000 {
        let case = draw(&mut random);
        let facts = analysis::facts(&case.program);
        let (writes, outside) = brute_force(&case);
        let exact = writes.iter().all(|n| *n == 1);
        match &facts.coverage[0].1 {
            Fact::Proved(coverage) => {
                proved += 1;
                assert!(exact, "{:?}: writes {writes:?}", case.program);
                assert!(coverage.clipped || outside == 0, "{:?}", case.program);
                if let Family::Rows(rows) = &facts.family {
                    assert!(rows.reload.payload.is_proved());
                }
            }
            Fact::Unknown(_) => {
                assert!(matches!(facts.family, Family::Other(_)));
                missed += u32::from(exact && outside == 0 && !writes.is_empty());
            }
        }
    }
    // Neither side of the implication is empty, and little that is true goes unproved.
    assert!(proved > 2_000, "only {proved} proved");
    assert!(missed * 5 < proved, "{missed} exact covers unproved, {proved} proved");
}
