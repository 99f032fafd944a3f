//! Fragments: filling, loading, storing, elementwise operations.
//!
//! A fragment of a subgroup is held whole, row-major. Of an atom of four subgroups each holds its
//! quarter of the rows, which is how `wgmma` spreads A and the accumulator over the warps.

use super::error::{FaultKind, Step, trap};
use super::exec::{Shared, Subgroup};
use super::memory::{Kind, Who};
use crate::flat::{FragmentArg, Shape, Window};
use crate::kernel::{Atom, FragmentRole};
use std::rc::Rc;
use tilewright_ir::DType;
use tilewright_ir::interp::scalar;
use tilewright_ir::program::MapOp;

/// The value of a fragment.
#[derive(Clone, Debug, Default)]
pub(super) struct Fragment {
    pub data: Rc<Vec<f64>>,
    /// The asynchronous atom (its number) that computes it; 0: none.
    pub atom: u32,
    /// An asynchronous atom took it over.
    pub taken: bool,
}

impl Fragment {
    pub fn new(data: Vec<f64>) -> Self {
        Fragment { data: Rc::new(data), atom: 0, taken: false }
    }
}

/// Rows, columns and depth of an atom.
pub(super) fn extents(atom: Atom, lanes: u32) -> (usize, usize, usize) {
    let (rows, cols) = atom.accumulator(lanes);
    let depth = match atom {
        Atom::Simdgroup8x8 => 8,
        Atom::OuterProduct { .. } | Atom::Mpp { .. } => 0,
        Atom::MmaSync { k, .. } | Atom::Wgmma { k, .. } => k,
    };
    (rows as usize, cols as usize, depth as usize)
}

/// The part of a fragment that a subgroup holds: first row, rows, columns.
pub(super) fn part(shape: Shape, lanes: u32, subgroup: u32) -> (usize, usize, usize) {
    let (m, n, k) = extents(shape.atom, lanes);
    let (rows, cols) = match shape.role {
        FragmentRole::A => (m, k),
        FragmentRole::B => (k, n),
        FragmentRole::Accumulator => (m, n),
    };
    match (shape.atom, shape.role) {
        (Atom::Wgmma { .. }, FragmentRole::A | FragmentRole::Accumulator) => {
            let rows = rows / 4;
            (subgroup as usize % 4 * rows, rows, cols)
        }
        _ => (0, rows, cols),
    }
}

/// The lane that holds an element, as far as it is known: a number that is the same for one
/// element of fragments of one kind.
fn holder(shape: Shape, row: usize, col: usize) -> u16 {
    let kind = match shape.atom {
        Atom::Simdgroup8x8 => 1,
        Atom::OuterProduct { rows, vectors } => 2 + rows * 64 + vectors,
        Atom::Mpp { rows, cols } => 3 + rows * 512 + cols,
        Atom::MmaSync { m, n, k } => 5 + m * 999 + n * 77 + k,
        Atom::Wgmma { n, .. } => 7 + n * 13,
    } as usize
        + shape.role as usize * 7919;
    0x8000 | ((kind * 4099 + row * 131 + col) % 0x7fff) as u16
}

impl Subgroup {
    /// A fragment that may be read now.
    pub fn fragment(&self, at: u32) -> Step<&Fragment> {
        let fragment = &self.fragments[at as usize];
        let finished = self.view.clock.get(2 * self.view.subgroups + self.view.thread);
        if fragment.atom > finished.copied().unwrap_or(0) {
            return trap(FaultKind::InFlight, "an asynchronous atom is computing the fragment");
        }
        if fragment.taken {
            return trap(FaultKind::InFlight, "an asynchronous atom took over the fragment");
        }
        Ok(fragment)
    }

    pub fn fragment_fill(&mut self, dst: u32, shape: Shape, lanes: u32, value: f64) {
        let (_, rows, cols) = part(shape, lanes, self.number);
        self.fragments[dst as usize] = Fragment::new(vec![value; rows * cols]);
    }

    /// The valid rows and columns of a window, at most `rows` and `cols`.
    pub fn valid(&self, window: &Window, rows: usize, cols: usize) -> (usize, usize) {
        let clamp = |limit: Option<crate::flat::Reg>, n: usize| {
            limit.map_or(n, |reg| self.index(reg).clamp(0, n as i64) as usize)
        };
        (clamp(window.rows, rows), clamp(window.cols, cols))
    }

    /// The logical element of a window's (row, column).
    pub fn window_element(&self, window: &Window, row: usize, col: usize) -> i64 {
        let down = self.index(window.row_stride).saturating_mul(row as i64);
        let across = self.index(window.col_stride).saturating_mul(col as i64);
        self.index(window.base).saturating_add(down).saturating_add(across)
    }

    fn holder(&self, shared: &Shared<'_>, shape: Shape, row: usize, col: usize) -> u16 {
        // With one lane, or all in step, there is only one holder.
        if shared.lanes(shared.full()) == 0 { 0 } else { holder(shape, row, col) }
    }

    pub fn fragment_load(
        &mut self,
        shared: &mut Shared<'_>,
        dst: u32,
        shape: Shape,
        window: &Window,
    ) -> Step<()> {
        let kernel = shared.kernel;
        let (first, rows, cols) = part(shape, kernel.lanes, self.number);
        let (valid_rows, valid_cols) = self.valid(window, first + rows, cols);
        let mut data = vec![0.0; rows * cols];
        let mut count = 0;
        for row in first..valid_rows {
            for col in 0..valid_cols {
                let element = self.window_element(window, row, col);
                let lane = self.holder(shared, shape, row, col);
                let who = Who::own(&self.view, lane);
                data[(row - first) * cols + col] = shared
                    .position(window.memory, element)
                    .and_then(|p| shared.read(&who, self.rank, window.memory, p))
                    .map_err(|t| t.locate(kernel, window.memory, element, None))?;
                count += window.dtype.bytes();
            }
        }
        shared.count_read(window.memory, count);
        self.fragments[dst as usize] = Fragment::new(data);
        Ok(())
    }

    pub fn fragment_store(
        &mut self,
        shared: &mut Shared<'_>,
        src: u32,
        shape: Shape,
        window: &Window,
    ) -> Step<()> {
        let kernel = shared.kernel;
        let data = Rc::clone(&self.fragment(src)?.data);
        let (first, rows, cols) = part(shape, kernel.lanes, self.number);
        let (valid_rows, valid_cols) = self.valid(window, first + rows, cols);
        let mut count = 0;
        for row in first..valid_rows {
            for col in 0..valid_cols {
                let element = self.window_element(window, row, col);
                let lane = self.holder(shared, shape, row, col);
                let who = Who::own(&self.view, lane);
                let value = data[(row - first) * cols + col];
                shared
                    .position(window.memory, element)
                    .and_then(|p| {
                        let write = (value, Kind::Plain, false);
                        shared.write(&who, self.rank, window.memory, p, write)
                    })
                    .map_err(|t| t.locate(kernel, window.memory, element, None))?;
                count += window.dtype.bytes();
            }
        }
        shared.count_write(window.memory, count);
        Ok(())
    }

    pub fn fragment_map(
        &mut self,
        shared: &mut Shared<'_>,
        op: MapOp,
        dst: u32,
        shape: Shape,
        args: &[FragmentArg],
    ) -> Step<()> {
        let (_, rows, cols) = part(shape, shared.kernel.lanes, self.number);
        let mut sources = Vec::with_capacity(args.len());
        for arg in args {
            sources.push(match arg {
                FragmentArg::Fragment(at) => Ok(Rc::clone(&self.fragment(*at)?.data)),
                FragmentArg::Element(reg) => Err(f64::from_bits(self.regs[reg.at as usize])),
            });
        }
        let mut values = [0.0; 3];
        let data = (0..rows * cols).map(|i| {
            for (value, source) in values.iter_mut().zip(&sources) {
                *value = match source {
                    Ok(data) => data[i],
                    Err(uniform) => *uniform,
                };
            }
            shape.dtype.round(scalar::map(op, shape.dtype, &values[..sources.len().min(3)]))
        });
        let data: Vec<f64> = data.collect();
        shared.report.flops += data.len() as u64;
        self.fragments[dst as usize] = Fragment::new(data);
        Ok(())
    }

    pub fn fragment_cast(&mut self, dst: u32, src: u32, dtype: DType) -> Step<()> {
        let data = self.fragment(src)?.data.iter().map(|&x| dtype.round(x)).collect();
        self.fragments[dst as usize] = Fragment::new(data);
        Ok(())
    }
}
