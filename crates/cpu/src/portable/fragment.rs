//! Fragments and matrix atoms, each held whole and row-major.

use std::rc::Rc;

use tilewright_ir::DType;
use tilewright_ir::interp::scalar;
use tilewright_ir::program::MapOp;
use tilewright_kernel::flat::{FragmentArg, Multiply, Shape, Source, Window};
use tilewright_kernel::kernel::{Atom, FragmentRole};

use super::exec::{Machine, Stop, Subgroup};
use super::memory::{Element, for_dtype};

/// The elements of a fragment, row-major.
#[derive(Clone, Debug)]
pub enum Fragment {
    /// Of f32, f16 and bf16.
    Single(Rc<Vec<f32>>),
    /// Of f64.
    Double(Rc<Vec<f64>>),
}

impl Default for Fragment {
    fn default() -> Self {
        Fragment::Single(Rc::default())
    }
}

/// What a fragment's elements are computed in.
trait Number: Copy + Default + std::ops::Mul<Output = Self> + std::ops::AddAssign {
    fn of(value: f64) -> Self;
    fn get(self) -> f64;
    fn data(fragment: &Fragment) -> Rc<Vec<Self>>;
    fn fragment(data: Vec<Self>) -> Fragment;
}

impl Number for f32 {
    fn of(value: f64) -> Self {
        value as f32
    }
    fn get(self) -> f64 {
        f64::from(self)
    }
    fn data(fragment: &Fragment) -> Rc<Vec<f32>> {
        match fragment {
            Fragment::Single(data) => Rc::clone(data),
            // Types agree in a valid kernel.
            Fragment::Double(data) => Rc::new(data.iter().map(|&x| x as f32).collect()),
        }
    }
    fn fragment(data: Vec<f32>) -> Fragment {
        Fragment::Single(Rc::new(data))
    }
}

impl Number for f64 {
    fn of(value: f64) -> Self {
        value
    }
    fn get(self) -> f64 {
        self
    }
    fn data(fragment: &Fragment) -> Rc<Vec<f64>> {
        match fragment {
            Fragment::Double(data) => Rc::clone(data),
            Fragment::Single(data) => Rc::new(data.iter().map(|&x| f64::from(x)).collect()),
        }
    }
    fn fragment(data: Vec<f64>) -> Fragment {
        Fragment::Double(Rc::new(data))
    }
}

/// Slots of registers as fragment elements.
trait Widen {
    fn widen(self) -> f64;
}
impl Widen for f32 {
    fn widen(self) -> f64 {
        f64::from(self)
    }
}
impl Widen for f64 {
    fn widen(self) -> f64 {
        self
    }
}
impl Widen for i64 {
    fn widen(self) -> f64 {
        self as f64
    }
}

/// Rows and columns of a fragment.
fn extents(shape: Shape, lanes: usize) -> (usize, usize) {
    let (m, n) = shape.atom.accumulator(lanes as u32);
    let k = depth(shape.atom);
    match shape.role {
        FragmentRole::A => (m as usize, k),
        FragmentRole::B => (k, n as usize),
        FragmentRole::Accumulator => (m as usize, n as usize),
    }
}

/// K of an atom; 0 for those that take any.
fn depth(atom: Atom) -> usize {
    match atom {
        Atom::Simdgroup8x8 => 8,
        Atom::OuterProduct { .. } | Atom::Mpp { .. } => 0,
        Atom::MmaSync { k, .. } | Atom::Wgmma { k, .. } => k as usize,
    }
}

fn is_double(dtype: DType) -> bool {
    dtype == DType::F64
}

impl Subgroup {
    pub fn fragment_fill(&mut self, machine: &Machine<'_>, dst: u32, shape: Shape, value: f64) {
        let (rows, cols) = extents(shape, machine.lanes);
        self.fragments[dst as usize] = if is_double(shape.dtype) {
            f64::fragment(vec![value; rows * cols])
        } else {
            f32::fragment(vec![value as f32; rows * cols])
        };
    }

    /// Valid rows and columns of a window, at most those given.
    fn valid(&self, window: &Window, rows: usize, cols: usize) -> (usize, usize) {
        let limit = |reg: Option<tilewright_kernel::flat::Reg>, n: usize| {
            reg.map_or(n, |reg| self.int(reg).clamp(0, n as i64) as usize)
        };
        (limit(window.rows, rows), limit(window.cols, cols))
    }

    fn window_element(&self, window: &Window, row: usize, col: usize) -> i64 {
        let down = self.int(window.row_stride).saturating_mul(row as i64);
        let across = self.int(window.col_stride).saturating_mul(col as i64);
        self.int(window.base).saturating_add(down).saturating_add(across)
    }

    /// The elements of a window, zeros where it isn't valid.
    ///
    /// # Safety
    /// The memory is readable for its bytes and nobody writes what is read.
    unsafe fn window<T: Number>(
        &self,
        machine: &mut Machine<'_>,
        window: &Window,
        (rows, cols): (usize, usize),
    ) -> Result<Vec<T>, Stop> {
        // SAFETY: as promised by the caller.
        unsafe {
            for_dtype!(window.dtype, E => self.window_as::<E, T>(machine, window, (rows, cols)))
        }
    }

    unsafe fn window_as<E: Element, T: Number>(
        &self,
        machine: &mut Machine<'_>,
        window: &Window,
        (rows, cols): (usize, usize),
    ) -> Result<Vec<T>, Stop>
    where
        E::Slot: Widen,
    {
        let region = machine.region(window.memory);
        let (valid_rows, valid_cols) = self.valid(window, rows, cols);
        let mut data = vec![T::default(); rows * cols];
        for row in 0..valid_rows {
            for col in 0..valid_cols {
                let element = self.window_element(window, row, col);
                let at = machine.address::<E>(region, window.memory, element)?;
                // SAFETY: the address is checked.
                data[row * cols + col] = T::of(unsafe { E::read(at) }.widen());
            }
        }
        Ok(data)
    }

    /// # Safety
    /// The memory is readable for its bytes and nobody writes what is read.
    pub unsafe fn fragment_load(
        &mut self,
        machine: &mut Machine<'_>,
        dst: u32,
        shape: Shape,
        window: &Window,
    ) -> Result<(), Stop> {
        let extents = extents(shape, machine.lanes);
        // SAFETY: as promised by the caller.
        self.fragments[dst as usize] = if is_double(shape.dtype) {
            f64::fragment(unsafe { self.window(machine, window, extents) }?)
        } else {
            f32::fragment(unsafe { self.window(machine, window, extents) }?)
        };
        Ok(())
    }

    /// # Safety
    /// The memory is writable for its bytes and nobody else touches what is written.
    pub unsafe fn fragment_store(
        &mut self,
        machine: &mut Machine<'_>,
        src: u32,
        shape: Shape,
        window: &Window,
    ) -> Result<(), Stop> {
        let (rows, cols) = extents(shape, machine.lanes);
        let (valid_rows, valid_cols) = self.valid(window, rows, cols);
        let region = machine.region(window.memory);
        for row in 0..valid_rows {
            for col in 0..valid_cols {
                let element = self.window_element(window, row, col);
                let value = match &self.fragments[src as usize] {
                    Fragment::Single(data) => f64::from(data[row * cols + col]),
                    Fragment::Double(data) => data[row * cols + col],
                };
                for_dtype!(window.dtype, E => {
                    let at = machine.address::<E>(region, window.memory, element)?;
                    // SAFETY: the address is checked.
                    unsafe { E::write(at, E::of(value)) };
                });
            }
        }
        Ok(())
    }

    pub fn fragment_map(&mut self, op: MapOp, dst: u32, shape: Shape, args: &[FragmentArg]) {
        self.fragments[dst as usize] = if is_double(shape.dtype) {
            self.mapped::<f64>(op, shape.dtype, args)
        } else {
            self.mapped::<f32>(op, shape.dtype, args)
        };
    }

    fn mapped<T: Number>(&self, op: MapOp, dtype: DType, args: &[FragmentArg]) -> Fragment {
        let sources: Vec<Result<Rc<Vec<T>>, f64>> = args
            .iter()
            .map(|arg| match arg {
                FragmentArg::Fragment(at) => Ok(T::data(&self.fragments[*at as usize])),
                FragmentArg::Element(reg) if reg.file == super::SINGLES => {
                    Err(f64::from(self.files.singles[reg.at as usize]))
                }
                FragmentArg::Element(reg) => Err(self.files.doubles[reg.at as usize]),
            })
            .collect();
        let len = sources.iter().flatten().map(|data| data.len()).max().unwrap_or(0);
        let mut values = [0.0; 3];
        let data = (0..len).map(|i| {
            for (value, source) in values.iter_mut().zip(&sources) {
                *value = match source {
                    Ok(data) => data[i].get(),
                    Err(uniform) => *uniform,
                };
            }
            T::of(dtype.round(scalar::map(op, dtype, &values[..sources.len().min(3)])))
        });
        T::fragment(data.collect())
    }

    pub fn fragment_cast(&mut self, dst: u32, src: u32, dtype: DType) {
        let from = &self.fragments[src as usize];
        self.fragments[dst as usize] = match (from, is_double(dtype)) {
            (_, true) => f64::fragment(f64::data(from).to_vec()),
            (Fragment::Single(data), false) => {
                f32::fragment(data.iter().map(|&x| dtype.round(f64::from(x)) as f32).collect())
            }
            (Fragment::Double(data), false) => {
                f32::fragment(data.iter().map(|&x| dtype.round(x) as f32).collect())
            }
        };
    }

    /// `dst = a·b + c`.
    ///
    /// # Safety
    /// The memory of the operands is readable for its bytes and nobody writes what is read.
    pub unsafe fn multiply(
        &mut self,
        machine: &mut Machine<'_>,
        multiply: &Multiply,
    ) -> Result<(), Stop> {
        // SAFETY: as promised by the caller.
        let result = unsafe {
            if is_double(multiply.shape.dtype) {
                self.product::<f64>(machine, multiply)?
            } else {
                self.product::<f32>(machine, multiply)?
            }
        };
        self.fragments[multiply.dst as usize] = result;
        Ok(())
    }

    unsafe fn product<T: Number>(
        &self,
        machine: &mut Machine<'_>,
        multiply: &Multiply,
    ) -> Result<Fragment, Stop> {
        let (m, n) = extents(multiply.shape, machine.lanes);
        let k = match multiply.depth {
            Some(reg) => self.int(reg).max(0) as usize,
            None => depth(multiply.shape.atom),
        };
        // SAFETY: as promised by the caller.
        let (a, b) = unsafe {
            (
                self.operand::<T>(machine, &multiply.a, (m, k))?,
                self.operand::<T>(machine, &multiply.b, (k, n))?,
            )
        };
        let mut data = T::data(&self.fragments[multiply.c as usize]).to_vec();
        // Steps of K outside, so that a row of B stays in the nearest cache for all rows of A.
        for step in 0..k {
            let b = &b[step * n..(step + 1) * n];
            for (row, out) in data.chunks_exact_mut(n.max(1)).enumerate() {
                let a = a[row * k + step];
                for (out, &b) in out.iter_mut().zip(b) {
                    *out += a * b;
                }
            }
        }
        Ok(T::fragment(data))
    }

    unsafe fn operand<T: Number>(
        &self,
        machine: &mut Machine<'_>,
        source: &Source,
        extents: (usize, usize),
    ) -> Result<Rc<Vec<T>>, Stop> {
        match source {
            Source::Fragment(at) => Ok(T::data(&self.fragments[*at as usize])),
            // SAFETY: as promised by the caller.
            Source::Window(window) => unsafe { self.window(machine, window, extents) }.map(Rc::new),
        }
    }
}
