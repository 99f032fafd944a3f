//! Products on a device: inputs, a float64 reference that a plain kernel computes there, and a
//! comparison of every element with it. The reference is itself checked on a few elements.

use std::fmt::Write as _;
use std::sync::Arc;

use tilewright_cuda::codegen::grid;
use tilewright_cuda::driver::{Context, CudaError, DeviceBuffer, Function};
use tilewright_cuda::{Ptx, PtxTarget};
use tilewright_ir::ops::Trans;
use tilewright_ir::program::Program;
use tilewright_kernel::kernel::{ArgSource, Kernel};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// A small generator of full-mantissa values in [-1, 1).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) as f64 / (1u64 << 23) as f64 - 1.0) as f32
    }
}

pub fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// One launch of a mapping that is ready to go.
pub struct Launch {
    pub function: Function,
    pub grid: [u32; 3],
    pub words: Vec<u64>,
}

/// The launches of a mapping and the scratch between them.
pub struct Ready {
    pub launches: Vec<Launch>,
    _scratch: Option<DeviceBuffer>,
}

impl Ready {
    /// Launches without scratch between them.
    #[allow(dead_code)]
    pub fn new(launches: Vec<Launch>) -> Ready {
        Ready { launches, _scratch: None }
    }

    /// Launches one after another.
    pub fn run(&mut self) -> Result<(), CudaError> {
        for launch in &mut self.launches {
            // SAFETY: buffers were sized for the kernels and live as long as the device state.
            unsafe { launch.function.launch(launch.grid, &mut launch.words)? };
        }
        Ok(())
    }
}

/// Inputs, output and reference of a case on the device.
pub struct State {
    a: DeviceBuffer,
    b: DeviceBuffer,
    pub c: DeviceBuffer,
    reference: DeviceBuffer,
    magnitude: DeviceBuffer,
    worst: DeviceBuffer,
    compare: Function,
    size: [u64; 3],
}

/// The strides of A's rows and K, and of B's K and columns.
fn strides(trans: Trans, [m, n, k]: [u64; 3]) -> [u64; 4] {
    let [am, ak] = if trans.a() { [1, m] } else { [k, 1] };
    let [bk, bn] = if trans.b() { [1, k] } else { [n, 1] };
    [am, ak, bk, bn]
}

fn module(entry: &str, params: &str, threads: u32, body: &str) -> Ptx {
    let text = format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n\n.visible .entry {entry}({params})\n\
         .maxntid {threads}, 1, 1\n{{\n    .reg .pred %p<8>;\n    .reg .b32 %r<16>;\n    \
         .reg .f32 %f<8>;\n    .reg .b64 %rd<32>;\n    .reg .f64 %fd<16>;\n{body}    ret;\n}}\n"
    );
    Ptx {
        text,
        target: PtxTarget::BASE,
        entry: entry.to_string(),
        threads,
        shared_bytes: 0,
        cluster: 1,
        dependent: false,
    }
}

/// One output per thread: the product and the sum of magnitudes in f64.
pub fn reference_kernel() -> Ptx {
    let names = ["a", "b", "c", "g", "m", "n", "k", "am", "ak", "bk", "bn"];
    let params: Vec<String> = names.iter().map(|n| format!(".param .u64 p_{n}")).collect();
    let mut body = String::new();
    for (i, name) in names.iter().enumerate() {
        let _ = writeln!(body, "    ld.param.u64 %rd{i}, [p_{name}];");
    }
    body += "    mov.u32 %r0, %tid.x;
    and.b32 %r1, %r0, 31;
    shr.u32 %r2, %r0, 5;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ctaid.y;
    mad.lo.u32 %r5, %r3, 32, %r1;
    mad.lo.u32 %r6, %r4, 8, %r2;
    cvt.u64.u32 %rd11, %r5;
    cvt.u64.u32 %rd12, %r6;
    setp.ge.u64 %p0, %rd11, %rd5;
    setp.ge.u64 %p1, %rd12, %rd4;
    or.pred %p2, %p0, %p1;
    @%p2 ret;
    mul.lo.u64 %rd13, %rd12, %rd7;
    shl.b64 %rd13, %rd13, 2;
    add.u64 %rd13, %rd13, %rd0;
    mul.lo.u64 %rd14, %rd11, %rd10;
    shl.b64 %rd14, %rd14, 2;
    add.u64 %rd14, %rd14, %rd1;
    shl.b64 %rd15, %rd8, 2;
    shl.b64 %rd16, %rd9, 2;
    mov.u64 %rd17, 0;
    mov.f64 %fd0, 0d0000000000000000;
    mov.f64 %fd1, 0d0000000000000000;
$again:
    setp.ge.u64 %p3, %rd17, %rd6;
    @%p3 bra $done;
    ld.global.f32 %f0, [%rd13];
    ld.global.f32 %f1, [%rd14];
    cvt.f64.f32 %fd2, %f0;
    cvt.f64.f32 %fd3, %f1;
    fma.rn.f64 %fd0, %fd2, %fd3, %fd0;
    abs.f64 %fd2, %fd2;
    abs.f64 %fd3, %fd3;
    fma.rn.f64 %fd1, %fd2, %fd3, %fd1;
    add.u64 %rd13, %rd13, %rd15;
    add.u64 %rd14, %rd14, %rd16;
    add.u64 %rd17, %rd17, 1;
    bra $again;
$done:
    mul.lo.u64 %rd18, %rd12, %rd5;
    add.u64 %rd18, %rd18, %rd11;
    shl.b64 %rd18, %rd18, 3;
    add.u64 %rd19, %rd18, %rd2;
    add.u64 %rd20, %rd18, %rd3;
    st.global.f64 [%rd19], %fd0;
    st.global.f64 [%rd20], %fd1;
";
    module("reference", &params.join(", "), 256, &body)
}

/// The largest error over its bound: factor·magnitude + u·|reference|. Anything that isn't a
/// number is infinitely wrong. The bits of a positive float order as integers do.
pub fn compare_kernel() -> Ptx {
    let params = ".param .u64 p_c, .param .u64 p_r, .param .u64 p_g, .param .u64 p_w, \
                  .param .u64 p_n, .param .f64 p_f";
    let body = "    ld.param.u64 %rd0, [p_c];
    ld.param.u64 %rd1, [p_r];
    ld.param.u64 %rd2, [p_g];
    ld.param.u64 %rd3, [p_w];
    ld.param.u64 %rd4, [p_n];
    ld.param.f64 %fd0, [p_f];
    mov.u32 %r0, %tid.x;
    mov.u32 %r1, %ctaid.x;
    cvt.u64.u32 %rd5, %r0;
    mul.wide.u32 %rd6, %r1, 256;
    add.u64 %rd5, %rd5, %rd6;
    setp.ge.u64 %p0, %rd5, %rd4;
    @%p0 ret;
    shl.b64 %rd6, %rd5, 2;
    shl.b64 %rd7, %rd5, 3;
    add.u64 %rd6, %rd6, %rd0;
    add.u64 %rd8, %rd7, %rd1;
    add.u64 %rd9, %rd7, %rd2;
    ld.global.f32 %f0, [%rd6];
    ld.global.f64 %fd1, [%rd8];
    ld.global.f64 %fd2, [%rd9];
    cvt.f64.f32 %fd3, %f0;
    sub.f64 %fd4, %fd3, %fd1;
    abs.f64 %fd4, %fd4;
    abs.f64 %fd5, %fd1;
    mul.f64 %fd6, %fd0, %fd2;
    fma.rn.f64 %fd6, %fd5, 0d3E70000000000000, %fd6;
    add.f64 %fd6, %fd6, 0d3810000000000000;
    div.rn.f64 %fd7, %fd4, %fd6;
    mov.f64 %fd8, 0d7FF0000000000000;
    setp.le.f64 %p1, %fd7, 0d46293E5939A08CEA;
    selp.f64 %fd7, %fd7, %fd8, %p1;
    cvt.rn.f32.f64 %f1, %fd7;
    mov.b32 %r2, %f1;
    red.global.max.u32 [%rd3], %r2;
";
    module("compare", params, 256, body)
}

impl State {
    /// Allocates and fills the inputs, and computes the reference.
    pub fn new(context: &Arc<Context>, size: [u64; 3], trans: Trans) -> Result<State, Error> {
        let [m, n, k] = size;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut input = |len: u64| -> Result<(DeviceBuffer, Vec<f32>), Error> {
            let values: Vec<f32> = (0..len).map(|_| random.next()).collect();
            let buffer = context.alloc(4 * len as usize)?;
            buffer.upload(&bytes_of(&values))?;
            Ok((buffer, values))
        };
        let (a, host_a) = input(m * k)?;
        let (b, host_b) = input(k * n)?;
        let c = context.alloc(4 * (m * n) as usize)?;
        let reference = context.alloc(8 * (m * n) as usize)?;
        let magnitude = context.alloc(8 * (m * n) as usize)?;
        let worst = context.alloc(4)?;
        let compare = context.load(&compare_kernel())?;
        let kernel = context.load(&reference_kernel())?;
        let steps = strides(trans, size);
        let pointers = [a.pointer(), b.pointer(), reference.pointer(), magnitude.pointer()];
        let mut words: Vec<u64> = pointers.into_iter().chain(size).chain(steps).collect();
        let grid = [n.div_ceil(32) as u32, m.div_ceil(8) as u32, 1];
        // SAFETY: all buffers have the sizes that the kernel is told.
        unsafe { kernel.launch(grid, &mut words)? };
        context.synchronize()?;
        // The device's reference is itself checked on a few elements.
        let mut found = vec![0u8; 8 * (m * n) as usize];
        reference.download(&mut found)?;
        let [am, ak, bk, bn] = steps;
        for i in 0..64u64 {
            let at = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (m * n).max(1);
            let (row, column) = (at / n, at % n);
            let want: f64 = (0..k)
                .map(|l| {
                    let a = host_a[(row * am + l * ak) as usize];
                    let b = host_b[(l * bk + column * bn) as usize];
                    f64::from(a) * f64::from(b)
                })
                .sum();
            let bytes = &found[8 * at as usize..8 * at as usize + 8];
            let got = f64::from_le_bytes(bytes.try_into()?);
            if (got - want).abs() > 1e-12 * k as f64 {
                return Err(format!("the reference is {got} at {row}, {column}: {want}").into());
            }
        }
        Ok(State { a, b, c, reference, magnitude, worst, compare, size })
    }

    /// The output's largest error over its bound, every element looked at.
    pub fn error(&self, context: &Arc<Context>) -> Result<f64, Error> {
        let [m, n, k] = self.size;
        self.worst.fill(0)?;
        let factor = (8.0 + (k as f64).sqrt()) * 2f64.powi(-24);
        let buffers = [&self.c, &self.reference, &self.magnitude, &self.worst];
        let mut words: Vec<u64> = buffers.iter().map(|b| b.pointer()).collect();
        words.extend([m * n, factor.to_bits()]);
        // SAFETY: all buffers have m·n elements.
        unsafe { self.compare.launch([(m * n).div_ceil(256) as u32, 1, 1], &mut words)? };
        context.synchronize()?;
        let mut bits = [0u8; 4];
        self.worst.download(&mut bits)?;
        Ok(f64::from(f32::from_le_bytes(bits)))
    }

    /// Argument words and grids of a mapping's launches.
    pub fn ready(
        &self,
        context: &Arc<Context>,
        program: &Program,
        kernels: Vec<(Kernel, Function)>,
    ) -> Result<Ready, Error> {
        let mut scratch: Option<DeviceBuffer> = None;
        let mut launches = Vec::new();
        for (kernel, function) in kernels {
            let mut words = Vec::new();
            for (_, arg) in kernel.args.iter() {
                words.push(match arg.source {
                    ArgSource::Tensor(id) => match program.tensors[id].name.as_str() {
                        "a" => &self.a,
                        "b" => &self.b,
                        _ => &self.c,
                    }
                    .pointer(),
                    ArgSource::Scratch(n) => {
                        if scratch.is_none() {
                            scratch = Some(context.alloc(4 * n as usize)?);
                        }
                        scratch.as_ref().map_or(0, DeviceBuffer::pointer)
                    }
                    other => return Err(format!("argument {} is {other:?}", arg.name).into()),
                });
            }
            let groups = grid::known(&kernel.grid).ok_or("a symbolic grid")?;
            let grid = grid::launch(&kernel.grid, &groups)?.ok_or("an empty grid")?;
            launches.push(Launch { function, grid, words });
        }
        Ok(Ready { launches, _scratch: scratch })
    }
}
