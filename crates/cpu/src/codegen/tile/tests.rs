//! Register tiles on their own: a tile is filled or loaded, multiplied, and stored, by code that
//! runs in this process, and compared with a float64 product.

use half::{bf16, f16};
use iced_x86::code_asm::*;
use memmap2::MmapMut;
use tilewright_ir::DType;
use tilewright_ir::program::MapOp;
use tilewright_plan::mapping::CpuIsa;

use super::{Loc, MAX_TEMPS, Tile, TileArg, TileContext, TileOp, TileView, emit, temps};
use crate::error::CpuError;

/// Where the operands of a test are: constants, registers, or stack slots.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Placing {
    Const,
    Reg,
    Slot,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    isa: CpuIsa,
    dtype: DType,
    operand: DType,
    rows: u32,
    vectors: u32,
    cols: Option<i64>,
    depth: i64,
    a_transposed: bool,
    placing: Placing,
    stream: bool,
    load: bool,
}

impl Case {
    fn lanes(&self) -> u32 {
        (self.isa.vector_bytes() / self.dtype.bytes()) as u32
    }
}

fn supported(isa: CpuIsa) -> bool {
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    match isa {
        CpuIsa::Portable => false,
        CpuIsa::Avx2 => avx2,
        CpuIsa::Avx512 => {
            avx2 && is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("bmi2")
        }
    }
}

/// A generator of full-mantissa numbers in (−1, 1).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}

/// A buffer of elements of a type whose first element is 64-byte aligned.
struct Elements {
    dtype: DType,
    bytes: MmapMut,
}

impl Elements {
    fn new(dtype: DType, len: usize) -> Elements {
        let bytes = MmapMut::map_anon(len * dtype.bytes() as usize + 64).expect("test memory");
        Elements { dtype, bytes }
    }

    fn set(&mut self, at: usize, value: f64) {
        let size = self.dtype.bytes() as usize;
        let to = &mut self.bytes[at * size..(at + 1) * size];
        match self.dtype {
            DType::F32 => to.copy_from_slice(&(value as f32).to_le_bytes()),
            DType::F64 => to.copy_from_slice(&value.to_le_bytes()),
            DType::F16 => to.copy_from_slice(&f16::from_f64(value).to_le_bytes()),
            DType::BF16 => to.copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
            DType::I32 | DType::Bool => unreachable!("tests use float types"),
        }
    }

    fn get(&self, at: usize) -> f64 {
        let size = self.dtype.bytes() as usize;
        let from = &self.bytes[at * size..(at + 1) * size];
        match self.dtype {
            DType::F32 => f64::from(f32::from_le_bytes(from.try_into().expect("4 bytes"))),
            DType::F64 => f64::from_le_bytes(from.try_into().expect("8 bytes")),
            DType::F16 => f16::from_le_bytes(from.try_into().expect("2 bytes")).to_f64(),
            DType::BF16 => bf16::from_le_bytes(from.try_into().expect("2 bytes")).to_f64(),
            DType::I32 | DType::Bool => unreachable!("tests use float types"),
        }
    }
}

/// Argument numbers of the code under test.
const ARGS: usize = 8;

/// Assembles the statements with their operands at `args[i]`: registers of their own, or stack
/// slots. `make` gets the location of each argument.
fn assemble(
    case: &Case,
    values: &[i64; ARGS],
    make: impl Fn(&dyn Fn(usize) -> Loc) -> Vec<TileOp>,
) -> Result<Vec<u8>, CpuError> {
    let saved = [rbx, rbp, r12, r13, r14, r15];
    let mut asm = CodeAssembler::new(64)?;
    asm.set_prefer_vex(false);
    for register in saved {
        asm.push(register)?;
    }
    asm.sub(rsp, 128)?;
    // Pointers in registers or slots; the rest as the case says.
    let registers = [rsi, rdx, rcx, r8, r9];
    let location = |arg: usize| match case.placing {
        Placing::Slot => Loc::Slot(8 * arg as i32),
        Placing::Reg if arg < registers.len() => Loc::Reg(registers[arg]),
        Placing::Const if arg < 3 => Loc::Reg(registers[arg]),
        Placing::Reg => Loc::Slot(8 * arg as i32),
        Placing::Const => Loc::Const(values[arg]),
    };
    for arg in 0..ARGS {
        asm.mov(rax, qword_ptr(rdi + 8 * arg as i32))?;
        asm.mov(qword_ptr(rsp + 8 * arg as i32), rax)?;
        if let Some(register) = registers.get(arg) {
            asm.mov(*register, rax)?;
        }
    }
    let all = [rax, rdi, r10, r11, rbx, rbp, r12, r13, r14, r15];
    assert_eq!(all.len(), MAX_TEMPS);
    for op in make(&location) {
        let context = TileContext { isa: case.isa, lanes: case.lanes(), temps: &all[..temps(&op)] };
        assert!(temps(&op) <= MAX_TEMPS, "{op:?}");
        emit(&op, &context, &mut asm)?;
    }
    asm.sfence()?;
    asm.vzeroupper()?;
    asm.add(rsp, 128)?;
    for register in saved.iter().rev() {
        asm.pop(*register)?;
    }
    asm.ret()?;
    Ok(asm.assemble(0)?)
}

fn run(code: &[u8], args: &[i64; ARGS]) {
    let mut memory = MmapMut::map_anon(code.len()).expect("code memory");
    memory[..code.len()].copy_from_slice(code);
    let memory = memory.make_exec().expect("executable memory");
    // SAFETY: the bytes are a function of the System V ABI, assembled above, which reads `ARGS`
    // integers from its argument and touches the buffers they point to within their extents.
    unsafe {
        let function: extern "sysv64" fn(*const i64) = std::mem::transmute(memory.as_ptr());
        function(args.as_ptr());
    }
}

fn check(case: Case) {
    if !supported(case.isa) {
        return;
    }
    let lanes = case.lanes() as usize;
    let (rows, width) = (case.rows as usize, case.vectors as usize * lanes);
    let depth = case.depth as usize;
    let cols = case.cols.map_or(width, |c| c.clamp(0, width as i64) as usize);
    let mut random = Random(0x1234_5678_9abc_def1);
    let (a_row, a_step) = if case.a_transposed { (1, rows + 3) } else { (depth + 5, 1) };
    // Rows of C are aligned, so that streaming stores may be taken.
    let (ldb, ldc) = (width + 7, width + 2 * lanes);
    let (a_len, b_len) = (rows * depth.max(1) + 8 * (rows + depth), (depth + 1) * ldb);
    let mut a = Elements::new(case.operand, a_len);
    let mut b = Elements::new(case.operand, b_len);
    let mut c = Elements::new(case.dtype, (rows + 1) * ldc);
    for i in 0..a_len {
        a.set(i, random.next());
    }
    for i in 0..b_len {
        b.set(i, random.next());
    }
    for i in 0..(rows + 1) * ldc {
        c.set(i, random.next());
    }
    let before: Vec<f64> = (0..(rows + 1) * ldc).map(|i| c.get(i)).collect();
    let args = [
        a.bytes.as_ptr() as i64,
        b.bytes.as_ptr() as i64,
        c.bytes.as_mut_ptr() as i64,
        if case.a_transposed { a_step as i64 } else { a_row as i64 },
        ldb as i64,
        case.depth,
        ldc as i64,
        case.cols.unwrap_or(width as i64),
    ];
    let acc = Tile { slot: 0, rows: case.rows, vectors: case.vectors, dtype: case.dtype };
    let code = assemble(&case, &args, |at| {
        let view = |pointer: usize, dtype: DType| TileView {
            pointer: at(pointer),
            offset: 0,
            dtype,
            base: Loc::Const(0),
            row_stride: Loc::Const(1),
            col_stride: Loc::Const(1),
            rows: None,
            cols: None,
        };
        let a = if case.a_transposed {
            TileView { col_stride: at(3), ..view(0, case.operand) }
        } else {
            TileView { row_stride: at(3), ..view(0, case.operand) }
        };
        let limit = case.cols.map(|_| at(7));
        let b = TileView { row_stride: at(4), cols: limit, ..view(1, case.operand) };
        let c = TileView { row_stride: at(6), cols: limit, ..view(2, case.dtype) };
        let first = if case.load {
            TileOp::Load { to: acc, view: c }
        } else {
            TileOp::Fill { to: acc, value: 0.0 }
        };
        vec![
            first,
            TileOp::Mma { acc, a, b, depth: at(5) },
            TileOp::Store { from: acc, view: c, stream: case.stream },
        ]
    })
    .unwrap_or_else(|e| panic!("{case:?}: {e}"));
    run(&code, &args);
    let u = case.dtype.unit_roundoff();
    for (i, before) in before.iter().enumerate() {
        let (row, col) = (i / ldc, i % ldc);
        if row >= rows || col >= cols {
            assert_eq!(c.get(i).to_bits(), before.to_bits(), "{case:?}: wrote at {row}, {col}");
            continue;
        }
        let start = if case.load { *before } else { 0.0 };
        let (mut sum, mut size) = (start, start.abs());
        for k in 0..depth {
            let product = a.get(row * a_row + k * a_step) * b.get(k * ldb + col);
            sum += product;
            size += product.abs();
        }
        let bound = (8.0 + (depth as f64).sqrt()) * u * size;
        let error = (c.get(i) - sum).abs();
        assert!(error <= bound, "{case:?}: {} for {sum} at {row}, {col}", c.get(i));
    }
}

const BASE: Case = Case {
    isa: CpuIsa::Avx512,
    dtype: DType::F32,
    operand: DType::F32,
    rows: 8,
    vectors: 3,
    cols: None,
    depth: 33,
    a_transposed: false,
    placing: Placing::Const,
    stream: false,
    load: false,
};

fn shapes(isa: CpuIsa) -> &'static [(u32, u32)] {
    match isa {
        CpuIsa::Avx512 => &[(1, 1), (1, 16), (1, 28), (2, 3), (6, 4), (8, 3), (14, 2), (16, 1)],
        _ => &[(1, 1), (1, 8), (3, 3), (4, 3), (5, 2), (6, 2), (12, 1)],
    }
}

#[test]
fn products_over_shapes_depths_and_placings() {
    for isa in [CpuIsa::Avx512, CpuIsa::Avx2] {
        for &(rows, vectors) in shapes(isa) {
            for depth in [0, 1, 3, 4, 5, 8, 31, 64] {
                for placing in [Placing::Const, Placing::Reg, Placing::Slot] {
                    for a_transposed in [false, true] {
                        for load in [false, true] {
                            check(Case {
                                isa,
                                rows,
                                vectors,
                                depth,
                                placing,
                                a_transposed,
                                load,
                                ..BASE
                            });
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn partial_columns() {
    for isa in [CpuIsa::Avx512, CpuIsa::Avx2] {
        let lanes = (isa.vector_bytes() / 4) as i64;
        for placing in [Placing::Const, Placing::Reg, Placing::Slot] {
            for cols in [-1, 0, 1, lanes - 1, lanes, lanes + 1, 2 * lanes - 1, 2 * lanes, 1000] {
                let vectors = 2;
                for rows in [1, 4] {
                    for load in [false, true] {
                        let cols = Some(cols);
                        check(Case { isa, rows, vectors, cols, placing, load, ..BASE });
                    }
                }
            }
        }
    }
}

#[test]
fn element_types() {
    for isa in [CpuIsa::Avx512, CpuIsa::Avx2] {
        for (dtype, operand) in
            [(DType::F64, DType::F64), (DType::F32, DType::F16), (DType::F32, DType::BF16)]
        {
            for rows in [1, 4] {
                for a_transposed in [false, true] {
                    let case = Case { isa, dtype, operand, rows, vectors: 2, a_transposed, ..BASE };
                    check(case);
                    if isa == CpuIsa::Avx512 || dtype == DType::F64 {
                        check(Case { cols: Some(i64::from(case.lanes()) + 3), ..case });
                    }
                }
            }
        }
    }
}

#[test]
fn streaming_stores() {
    for isa in [CpuIsa::Avx512, CpuIsa::Avx2] {
        for cols in [None, Some(5)] {
            check(Case { isa, rows: 4, vectors: 2, stream: true, cols, ..BASE });
        }
    }
}

#[test]
fn fills_and_maps() {
    for isa in [CpuIsa::Avx512, CpuIsa::Avx2].into_iter().filter(|isa| supported(*isa)) {
        for dtype in [DType::F32, DType::F64] {
            let case = Case { isa, dtype, operand: dtype, rows: 2, vectors: 2, ..BASE };
            let width = 2 * case.lanes() as usize;
            let mut c = Elements::new(dtype, 2 * width);
            let mut args = [0; ARGS];
            args[2] = c.bytes.as_mut_ptr() as i64;
            args[7] = match dtype {
                DType::F64 => 3.5_f64.to_bits() as i64,
                _ => i64::from(3.5_f32.to_bits()),
            };
            let tile = |slot| Tile { slot, rows: 2, vectors: 2, dtype };
            let code = assemble(&case, &args, |at| {
                let view = TileView {
                    pointer: at(2),
                    offset: 0,
                    dtype,
                    base: Loc::Const(0),
                    row_stride: Loc::Const(width as i64),
                    col_stride: Loc::Const(1),
                    rows: None,
                    cols: None,
                };
                let (x, y) = (TileArg::Tile(tile(0)), TileArg::Tile(tile(1)));
                vec![
                    TileOp::Fill { to: tile(0), value: 2.25 },
                    TileOp::Fill { to: tile(1), value: -1.0 },
                    TileOp::Map { op: MapOp::Sub, to: tile(0), args: vec![x, y] },
                    TileOp::Map { op: MapOp::Mul, to: tile(0), args: vec![x, TileArg::Slot(56)] },
                    TileOp::Map { op: MapOp::Div, to: tile(1), args: vec![x, y] },
                    TileOp::Map { op: MapOp::Add, to: tile(0), args: vec![x, y] },
                    TileOp::Map { op: MapOp::Sub, to: tile(0), args: vec![TileArg::Slot(56), x] },
                    TileOp::Store { from: tile(0), view, stream: false },
                ]
            })
            .expect("supported statements");
            run(&code, &args);
            let x = (2.25 + 1.0) * 3.5;
            for i in 0..2 * width {
                assert_eq!(c.get(i), 3.5 - (x + x / -1.0), "{case:?} at {i}");
            }
        }
    }
}

#[test]
fn what_tiles_do_not_have_is_refused() {
    let case = BASE;
    let tile = Tile { slot: 0, rows: 8, vectors: 4, dtype: DType::F32 };
    let view = TileView {
        pointer: Loc::Reg(rsi),
        offset: 0,
        dtype: DType::F32,
        base: Loc::Const(0),
        row_stride: Loc::Const(64),
        col_stride: Loc::Const(1),
        rows: None,
        cols: None,
    };
    let refused = |op: TileOp| {
        assemble(&case, &[0; ARGS], |_| vec![op.clone()]).expect_err("refused").to_string()
    };
    let depth = Loc::Const(4);
    let whole = refused(TileOp::Mma { acc: tile, a: view, b: view, depth });
    assert!(whole.contains("vector registers"), "{whole}");
    let strided = TileView { col_stride: Loc::Const(2), ..view };
    let strided = refused(TileOp::Load { to: Tile { rows: 2, ..tile }, view: strided });
    assert!(strided.contains("consecutive"), "{strided}");
    let half = Tile { dtype: DType::F16, rows: 2, ..tile };
    let half = refused(TileOp::Fill { to: half, value: 0.0 });
    assert!(half.contains("f16"), "{half}");
    let op = MapOp::Exp;
    let exp = refused(TileOp::Map { op, to: tile, args: vec![TileArg::Tile(tile)] });
    assert!(exp.contains("exp"), "{exp}");
}
