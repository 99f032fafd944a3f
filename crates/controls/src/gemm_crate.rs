//! The crate `gemm`.

use crate::{Control, ControlError, Prepared, Problem, check_lengths};

/// The crate `gemm` with its kernels for the machine at hand.
pub(crate) struct GemmCrate;

impl Control for GemmCrate {
    fn version(&self) -> Option<String> {
        Some("0.19".to_string())
    }

    fn prepare(&self, problem: &Problem) -> Result<Box<dyn Prepared>, ControlError> {
        let size = problem.product()?;
        Ok(Box::new(Product { size, transposed: problem.transposed, threads: problem.threads }))
    }
}

struct Product {
    size: [usize; 3],
    transposed: [bool; 2],
    threads: usize,
}

impl Prepared for Product {
    fn call(&mut self, inputs: &[&[f32]], output: &mut [f32]) -> Result<(), ControlError> {
        let [m, n, k] = self.size;
        check_lengths(inputs, &[m * k, k * n], output, m * n)?;
        let (a, b) = (inputs[0], inputs[1]);
        let strides = |rows: usize, cols: usize, transposed: bool| {
            // (column stride, row stride) of a rows×cols matrix.
            if transposed { (rows as isize, 1) } else { (1, cols as isize) }
        };
        let (a_cs, a_rs) = strides(m, k, self.transposed[0]);
        let (b_cs, b_rs) = strides(k, n, self.transposed[1]);
        let parallel = match self.threads {
            0 | 1 => gemm::Parallelism::None,
            threads => gemm::Parallelism::Rayon(threads),
        };
        // SAFETY: the slices hold matrices of these sizes and strides, as checked above; the
        // output is borrowed exclusively.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                output.as_mut_ptr(),
                1,
                n as isize,
                false,
                a.as_ptr(),
                a_cs,
                a_rs,
                b.as_ptr(),
                b_cs,
                b_rs,
                0.0,
                1.0,
                false,
                false,
                false,
                parallel,
            );
        }
        Ok(())
    }
}
