//! How the grid of a kernel becomes the grid of a launch.
//!
//! A launch has at most 2^31 − 1 groups along x and 65,535 along y and z (CUDA programming guide,
//! technical specifications per compute capability). The innermost dimension of a kernel's grid is
//! x, the next y, then z. Where an outer dimension may be longer than y and z allow, the grid is
//! folded: all groups lie along x, and the kernel splits its number again.

use tilewright_kernel::kernel::{GridDim, Size};

/// Most groups of a launch along x.
pub const MOST_X: u64 = (1 << 31) - 1;
/// Most groups of a launch along y, and along z.
pub const MOST_YZ: u64 = 65_535;

/// Whether all dimensions of a grid (outermost first) are folded into x: an outer one has more
/// groups than y and z allow, or a number that only a launch knows.
pub fn is_folded(grid: &[GridDim]) -> bool {
    let outer = &grid[..grid.len().saturating_sub(1)];
    outer.iter().any(|dim| match dim.size {
        Size::Const(size) => size.div_ceil(dim.step.max(1)) > MOST_YZ,
        Size::Arg(_) => true,
    })
}

/// The groups along each dimension, outermost first; `None` where one is known at launch only.
pub fn known(grid: &[GridDim]) -> Option<Vec<u64>> {
    grid.iter()
        .map(|dim| match dim.size {
            Size::Const(size) => Some(size.div_ceil(dim.step.max(1))),
            Size::Arg(_) => None,
        })
        .collect()
}

/// More groups than a launch can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{groups} groups; a launch has at most {limit}")]
pub struct TooManyGroups {
    /// Groups of the kernel, or as many as can be counted.
    pub groups: u64,
    /// Most that there may be.
    pub limit: u64,
}

/// The launch's x, y and z for the number of groups along each dimension of a kernel's grid,
/// outermost first; `None` where there are no groups.
///
/// # Errors
/// More groups than a launch can have.
pub fn launch(grid: &[GridDim], groups: &[u64]) -> Result<Option<[u32; 3]>, TooManyGroups> {
    if groups.contains(&0) {
        return Ok(None);
    }
    let mut extents = [1u32; 3];
    if is_folded(grid) {
        let all = groups.iter().fold(1u64, |all, n| all.saturating_mul(*n));
        if all > MOST_X {
            return Err(TooManyGroups { groups: all, limit: MOST_X });
        }
        extents[0] = all as u32;
        return Ok(Some(extents));
    }
    for (d, &groups) in groups.iter().rev().enumerate() {
        let limit = if d == 0 { MOST_X } else { MOST_YZ };
        match extents.get_mut(d) {
            Some(extent) if groups <= limit => *extent = groups as u32,
            _ => return Err(TooManyGroups { groups, limit }),
        }
    }
    Ok(Some(extents))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tilewright_ir::entity::Id;
    use tilewright_kernel::kernel::ArgId;

    fn known_dim(size: u64, step: u64) -> GridDim {
        GridDim { size: Size::Const(size), step }
    }

    #[test]
    fn long_or_unknown_outer_dimensions_are_folded_into_x() {
        let plain = [known_dim(65_535, 1), known_dim(1 << 40, 1 << 10)];
        assert!(!is_folded(&plain) && !is_folded(&[known_dim(1 << 30, 1)]) && !is_folded(&[]));
        assert_eq!(launch(&plain, &[65_535, 1 << 30]), Ok(Some([1 << 30, 65_535, 1])));
        let long = [known_dim(65_536, 1), known_dim(8, 1)];
        assert!(is_folded(&long));
        assert_eq!(launch(&long, &[65_536, 8]), Ok(Some([1 << 19, 1, 1])));
        assert!(is_folded(&[known_dim(65_536 * 3, 2), known_dim(8, 1)]));
        let open = [GridDim { size: Size::Arg(ArgId::from_index(0)), step: 1 }, known_dim(8, 1)];
        assert!(is_folded(&open) && known(&open).is_none());
        assert_eq!(known(&[known_dim(9, 4), known_dim(8, 0)]), Some(vec![3, 8]));
        assert_eq!(launch(&open, &[3, 8]), Ok(Some([24, 1, 1])));
    }

    #[test]
    fn the_last_grid_that_fits_is_launched_and_the_first_that_does_not_is_refused() {
        let one = [known_dim(1 << 31, 1)];
        assert_eq!(launch(&one, &[MOST_X]), Ok(Some([MOST_X as u32, 1, 1])));
        let error = launch(&one, &[MOST_X + 1]).unwrap_err();
        assert_eq!(error.to_string(), "2147483648 groups; a launch has at most 2147483647");
        let folded = [known_dim(1 << 20, 1), known_dim(1 << 11, 1)];
        assert_eq!(launch(&folded, &[1 << 20, 1 << 11]).unwrap_err().groups, 1 << 31);
        assert_eq!(launch(&folded, &[u64::MAX, 3]).unwrap_err().groups, u64::MAX);
        assert_eq!(launch(&folded, &[0, u64::MAX]), Ok(None), "no groups, no launch");
    }
}
