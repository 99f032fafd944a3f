//! Matrix atoms.

use super::error::{FaultKind, Step, trap};
use super::exec::{Shared, Subgroup};
use super::fragment::{Fragment, extents, part};
use super::lanes::fma;
use super::memory::Who;
use crate::flat::{Multiply, Shape, Source, Window};
use crate::kernel::FragmentRole;
use std::rc::Rc;

impl Subgroup {
    /// What must be equal in the subgroups of a block that execute an atom together.
    pub fn operands(&self, multiply: &Multiply) -> Vec<i64> {
        let mut values = Vec::new();
        for source in [&multiply.a, &multiply.b] {
            if let Source::Window(w) = source {
                let regs = [Some(w.base), Some(w.row_stride), Some(w.col_stride), w.rows, w.cols];
                values.extend(regs.into_iter().flatten().map(|reg| self.index(reg)));
            }
        }
        values
    }

    /// `dst = a·b + c`.
    pub fn multiply(&mut self, shared: &mut Shared<'_>, multiply: &Multiply) -> Step<()> {
        let lanes = shared.kernel.lanes;
        let shape = multiply.shape;
        let (m, n, k) = extents(shape.atom, lanes);
        let depth = match multiply.depth {
            Some(reg) => self.index(reg).max(0) as usize,
            None => k,
        };
        let (first, rows, _) = part(shape, lanes, self.number);
        let asynchronous = multiply.token.is_some();
        if asynchronous {
            self.atoms += 1;
        }
        let role = |role| Shape { role, ..shape };
        let a = self.operand(
            shared,
            &multiply.a,
            role(FragmentRole::A),
            (first, rows, depth, m),
            asynchronous,
        )?;
        let b = self.operand(
            shared,
            &multiply.b,
            role(FragmentRole::B),
            (0, depth, n, depth),
            asynchronous,
        )?;
        let c = if asynchronous {
            // In order with the atom that computes it, so it may be in flight.
            let c = &mut self.fragments[multiply.c as usize];
            if c.taken {
                return trap(FaultKind::InFlight, "an asynchronous atom took over the fragment");
            }
            let data = Rc::clone(&c.data);
            c.taken = true;
            data
        } else {
            Rc::clone(&self.fragment(multiply.c)?.data)
        };
        let mut data = c.to_vec();
        for (row, out) in data.chunks_exact_mut(n.max(1)).enumerate() {
            for step in 0..depth {
                let a = a[row * depth + step];
                for (out, &b) in out.iter_mut().zip(&b[step * n..]) {
                    *out = fma(shape.dtype, a, b, *out);
                }
            }
        }
        shared.report.atoms += 1;
        shared.report.flops += 2 * (rows * n * depth) as u64;
        let atom = if asynchronous { self.atoms } else { 0 };
        self.fragments[multiply.dst as usize] =
            Fragment { data: Rc::new(data), atom, taken: false };
        if let Some(token) = multiply.token {
            self.tokens[token as usize] = super::agents::token(super::agents::Work::Atom, atom);
        }
        Ok(())
    }

    /// The elements of an operand: of `rows` × `cols` from row `first`, where the whole has
    /// `all` rows.
    fn operand(
        &self,
        shared: &mut Shared<'_>,
        source: &Source,
        shape: Shape,
        (first, rows, cols, all): (usize, usize, usize, usize),
        asynchronous: bool,
    ) -> Step<Rc<Vec<f64>>> {
        match source {
            Source::Fragment(at) => {
                let fragment = self.fragment(*at)?;
                let (_, rows, cols) = part(shape, shared.kernel.lanes, self.number);
                debug_assert_eq!(fragment.data.len(), rows * cols);
                Ok(Rc::clone(&fragment.data))
            }
            Source::Window(window) => {
                self.window(shared, window, (first, rows, cols, all), asynchronous).map(Rc::new)
            }
        }
    }

    fn window(
        &self,
        shared: &mut Shared<'_>,
        window: &Window,
        (first, rows, cols, all): (usize, usize, usize, usize),
        asynchronous: bool,
    ) -> Step<Vec<f64>> {
        let kernel = shared.kernel;
        let lane = shared.lanes(shared.full());
        let mut who = Who::own(&self.view, lane);
        if asynchronous {
            who.thread = (2 * self.view.subgroups + self.view.thread) as u16;
            who.epoch = self.atoms;
        }
        let (valid_rows, valid_cols) = self.valid(window, all, cols);
        let mut data = vec![0.0; rows * cols];
        let mut count = 0;
        for row in first..valid_rows.min(first + rows) {
            for col in 0..valid_cols {
                let element = self.window_element(window, row, col);
                let value = shared.position(window.memory, element).and_then(|p| {
                    if asynchronous {
                        shared.read_async(&who, self.rank, window.memory, p)
                    } else {
                        shared.read(&who, self.rank, window.memory, p)
                    }
                });
                data[(row - first) * cols + col] =
                    value.map_err(|t| t.locate(kernel, window.memory, element, None))?;
                count += window.dtype.bytes();
            }
        }
        shared.count_read(window.memory, count);
        Ok(data)
    }
}
