//! The launch contract: what a launch may bring, what it infers, and every refusal.

use std::sync::{Arc, Mutex};
use tilewright_engine::{Handle, LaunchError, LaunchOptions, View, ViewMut};
use tilewright_ir::DType;
use tilewright_ir::builder::ProgramBuilder;
use tilewright_ir::entity::Arena;
use tilewright_ir::program::{Access, DimId, DimKind, Extent, Program, ScalarId, TensorId};
use tilewright_kernel::kernel::{Arg, ArgKind, ArgSource, Block, Elem, Evict, Kernel};
use tilewright_runtime::{ArgValue, Buffer, Executable, ResourceReport, RuntimeError};

/// Code that does nothing but note its arguments.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Vec<ArgValue>>>>);

// SAFETY: the recorded addresses are compared, never followed.
unsafe impl Send for Recorder {}
// SAFETY: as above; the list is behind a lock.
unsafe impl Sync for Recorder {}

impl Executable for Recorder {
    unsafe fn launch(&self, args: &[ArgValue]) -> Result<(), RuntimeError> {
        self.0.lock().unwrap().push(args.to_vec());
        Ok(())
    }
    fn disassembly(&self) -> String {
        String::new()
    }
    fn report(&self) -> ResourceReport {
        ResourceReport::default()
    }
}

/// `y[rows, 4] = alpha · x[rows, 4]` with a row stride of x, as far as a launch can tell.
fn program() -> Program {
    let mut b = ProgramBuilder::new("scale");
    let rows = b.dim("rows", DimKind::Symbolic { divisor: 1, max: 100 });
    let ldx = b.dim("ldx", DimKind::Symbolic { divisor: 2, max: 1000 });
    let x = b.tensor("x", Access::In, DType::F32, &[rows, Extent::Const(4)]);
    b.strides(x, &[ldx, Extent::Const(1)]);
    b.tensor("y", Access::Out, DType::F32, &[rows, Extent::Const(4)]);
    b.scalar("alpha", DType::F32, true);
    b.finish()
}

fn kernel(program: &Program, scratch: Option<u64>) -> Kernel {
    let mut args = Arena::new();
    for (id, t) in program.tensors.iter() {
        args.push(Arg {
            name: t.name.clone(),
            kind: ArgKind::Buffer {
                dtype: t.dtype,
                access: t.access,
                align: 4,
                evict: Evict::Normal,
            },
            source: ArgSource::Tensor(id),
        });
    }
    for (id, d) in program.dims.iter() {
        args.push(Arg {
            name: d.name.clone(),
            kind: ArgKind::Number(Elem::Index),
            source: ArgSource::Dim(id),
        });
    }
    for (id, s) in program.scalars.iter() {
        args.push(Arg {
            name: s.name.clone(),
            kind: ArgKind::Number(Elem::Data(s.dtype)),
            source: ArgSource::Scalar(id),
        });
    }
    if let Some(elements) = scratch {
        args.push(Arg {
            name: "work".to_string(),
            kind: ArgKind::Buffer {
                dtype: DType::F32,
                access: Access::InOut,
                align: 64,
                evict: Evict::Normal,
            },
            source: ArgSource::Scratch(elements),
        });
    }
    Kernel {
        name: program.name.clone(),
        lanes: 1,
        subgroups: 1,
        cluster: 1,
        resident: 0,
        grid: vec![],
        args,
        shared: Arena::new(),
        private: Arena::new(),
        barriers: Arena::new(),
        mbarriers: Arena::new(),
        roles: Arena::new(),
        values: Arena::new(),
        body: Block::default(),
    }
}

fn handle() -> (Handle, Recorder) {
    let recorder = Recorder::default();
    let program = program();
    let mut handle =
        Handle::new(&program, &[kernel(&program, None)], Box::new(recorder.clone())).unwrap();
    handle.set_scalar("alpha", 2.0).unwrap();
    (handle, recorder)
}

fn numbers(recorder: &Recorder) -> Vec<ArgValue> {
    recorder.0.lock().unwrap().last().unwrap()[2..].to_vec()
}

#[test]
fn sizes_follow_from_slices() {
    let (handle, recorder) = handle();
    for rows in [0usize, 1, 37, 100] {
        let (x, mut y) = (vec![0f32; rows * 4], vec![0f32; rows * 4]);
        handle.run(&[&x], &mut y).unwrap();
        let expected = [ArgValue::Index(rows as i64), ArgValue::Index(4), ArgValue::Float(2.0)];
        assert_eq!(numbers(&recorder), expected);
    }
}

#[test]
fn tensors_without_elements_are_fine() {
    let mut b = ProgramBuilder::new("empty");
    let rows = b.dim("rows", DimKind::Symbolic { divisor: 1, max: 100 });
    b.tensor("y", Access::Out, DType::F32, &[rows, Extent::Const(0)]);
    let program = b.finish();
    let recorder = Recorder::default();
    let handle =
        Handle::new(&program, &[kernel(&program, None)], Box::new(recorder.clone())).unwrap();
    let options = LaunchOptions { dims: &[("rows", 3)], scalars: &[] };
    let mut y = [0f32; 0];
    handle.run_with(&options, &[], &mut [&mut y]).unwrap();
    // Without elements a length says nothing of the rows.
    let e = handle.run(&[], &mut y).unwrap_err();
    assert!(matches!(e, LaunchError::UnknownSize { .. }), "{e}");
}

#[test]
fn a_padded_view_brings_its_stride() {
    let (handle, recorder) = handle();
    let (x, mut y) = (vec![0f32; 2 * 6 + 4], vec![0f32; 12]);
    handle.run(&[&View::strided(&x, &[3, 4], &[6, 1])], &mut y).unwrap();
    assert_eq!(numbers(&recorder)[..2], [ArgValue::Index(3), ArgValue::Index(6)]);
}

#[test]
fn buffers_arrays_and_slices_serve_alike() {
    let (handle, _) = handle();
    let x = Buffer::zeros(DType::F32, 8).unwrap();
    let mut y = [0f32; 8];
    handle.run(&[&x], &mut y).unwrap();
    handle.run(&[&&[1f32; 8][..]], &mut &mut y[..]).unwrap();
}

#[test]
fn a_launch_may_state_sizes_and_scalars() {
    let (handle, recorder) = handle();
    let (x, mut y) = (vec![0f32; 8], vec![0f32; 8]);
    let options = LaunchOptions { dims: &[("rows", 2)], scalars: &[("alpha", 0.1)] };
    handle.run_with(&options, &[&x], &mut [&mut y]).unwrap();
    assert_eq!(numbers(&recorder)[2], ArgValue::Float(0.1f32 as f64));
}

#[test]
fn a_bound_launch_runs_again_with_the_same_arguments() {
    let (handle, recorder) = handle();
    let (x, mut y) = (vec![0f32; 8], vec![0f32; 8]);
    let mut bound = handle.bind(&LaunchOptions::default(), &[&x], [&mut y]).unwrap();
    bound.launch().unwrap();
    bound.launch().unwrap();
    let calls = recorder.0.lock().unwrap().clone();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0], calls[1]);
}

#[test]
fn scratch_is_brought_by_the_handle() {
    let recorder = Recorder::default();
    let program = program();
    let mut handle =
        Handle::new(&program, &[kernel(&program, Some(10))], Box::new(recorder.clone())).unwrap();
    handle.set_scalar("alpha", 2.0).unwrap();
    handle.run(&[&[0f32; 8]], &mut [0f32; 8]).unwrap();
    let ArgValue::Buffer { ptr, bytes } = numbers(&recorder)[3] else { panic!("no scratch") };
    assert!(!ptr.is_null());
    assert_eq!(bytes, 40);
}

#[test]
fn every_broken_precondition_has_its_error() {
    use LaunchError as E;
    let (handle, recorder) = handle();
    let x = vec![0f32; 64];
    let mut y = vec![0f32; 64];
    let none = LaunchOptions::default();
    let error = |r: Result<(), LaunchError>| r.unwrap_err();

    let e = error(handle.run(&[], &mut y));
    assert!(matches!(e, E::Direction { direction: "inputs", expected: 1, found: 0, .. }));
    let e = error(handle.run(&[&x, &x], &mut y));
    assert!(matches!(e, E::Direction { direction: "inputs", expected: 1, found: 2, .. }));
    let e = error(handle.run_with(&none, &[&x], &mut []));
    assert!(matches!(e, E::Direction { direction: "outputs", expected: 1, found: 0, .. }));
    let e = error(handle.run(&[&vec![0f64; 64]], &mut y));
    assert!(matches!(e, E::DType { expected: DType::F32, found: DType::F64, .. }));
    let e = error(handle.run(&[&View::new(&x, &[64])], &mut y));
    assert!(matches!(e, E::Rank { expected: 2, found: 1, .. }));
    let e = error(handle.run(&[&View::new(&x, &[8, 8])], &mut y));
    assert!(matches!(e, E::Size { axis: 1, expected: 4, found: 8, .. }));
    let e = error(handle.run(&[&View::new(&x, &[8, 4])], &mut y));
    assert!(matches!(e, E::Length { needs: 32, has: 64, .. }), "{e}");
    let e = error(handle.run(&[&View::new(&x[..8], &[16, 4])], &mut y));
    assert!(matches!(e, E::Length { needs: 64, has: 8, .. }), "{e}");
    let e = error(handle.run(&[&View::strided(&x, &[16, 4], &[5, 1])], &mut y));
    assert!(matches!(e, E::Divisor { divisor: 2, value: 5, .. }), "{e}");
    let e = error(handle.run(&[&View::strided(&x, &[16, 4], &[4, 2])], &mut y));
    assert!(matches!(e, E::Stride { axis: 1, expected: 1, found: 2, .. }), "{e}");
    let e = error(handle.run(&[&x], &mut vec![0f32; 63]));
    assert!(matches!(e, E::Length { needs: 64, has: 63, .. }), "{e}");
    let e = error(handle.run(&[&vec![0f32; 62]], &mut vec![0f32; 62]));
    assert!(matches!(e, E::Ragged { len: 62, unit: 4, .. }), "{e}");
    let e = error(handle.run(&[&vec![0f32; 404]], &mut vec![0f32; 404]));
    assert!(matches!(e, E::TooLarge { max: 100, value: 101, .. }), "{e}");
    let stated = LaunchOptions { dims: &[("cols", 4)], scalars: &[] };
    let e = error(handle.run_with(&stated, &[&x], &mut [&mut y]));
    assert!(matches!(e, E::UnknownDim { .. }), "{e}");
    let stated = LaunchOptions { dims: &[], scalars: &[("gamma", 4.0)] };
    let e = error(handle.run_with(&stated, &[&x], &mut [&mut y]));
    assert!(matches!(e, E::UnknownScalar { .. }), "{e}");
    // Nonzero as an f64, zero as the f32 that the code would get.
    let stated = LaunchOptions { dims: &[], scalars: &[("alpha", 1e-60)] };
    let e = error(handle.run_with(&stated, &[&x], &mut [&mut y]));
    assert!(matches!(e, E::ZeroScalar { .. }), "{e}");
    assert!(recorder.0.lock().unwrap().is_empty(), "a refused launch ran");

    let program = program();
    let unset =
        Handle::new(&program, &[kernel(&program, None)], Box::new(recorder.clone())).unwrap();
    let e = error(unset.run(&[&x], &mut y));
    assert!(matches!(e, E::MissingScalar { .. }), "{e}");
}

#[test]
fn misaligned_and_overlapping_tensors_are_refused() {
    let mut b = ProgramBuilder::new("copy");
    let rows = b.dim("rows", DimKind::Symbolic { divisor: 1, max: 100 });
    let ldy = b.dim("ldy", DimKind::Symbolic { divisor: 1, max: 100 });
    let x = b.tensor("x", Access::In, DType::F32, &[rows]);
    let y = b.tensor("y", Access::Out, DType::F32, &[rows, Extent::Const(2)]);
    b.strides(y, &[ldy, Extent::Const(1)]);
    let mut program = b.finish();
    program.tensors[x].align = 64;
    let recorder = Recorder::default();
    let handle =
        Handle::new(&program, &[kernel(&program, None)], Box::new(recorder.clone())).unwrap();
    let x = Buffer::zeros(DType::F32, 5).unwrap();
    let shifted = &x.as_slice::<f32>().unwrap()[1..];
    let e = handle.run(&[&shifted], &mut [0f32; 8]).unwrap_err();
    assert!(matches!(e, LaunchError::Misaligned { align: 64, .. }), "{e}");
    let mut y = [0f32; 8];
    let e = handle
        .run(
            &[&Buffer::zeros(DType::F32, 4).unwrap()],
            &mut ViewMut::strided(&mut y, &[4, 2], &[1, 1]),
        )
        .unwrap_err();
    assert!(matches!(e, LaunchError::Overlap { stride: 1, .. }), "{e}");
}

#[test]
fn overlapping_ranges_are_an_alias_error() {
    use tilewright_engine::signature::{MAX_ITEMS, Signature};
    use tilewright_engine::tensor::TensorArg;
    let signature = Signature::of(&program()).unwrap();
    let mut memory = [0f32; 12];
    let at = |ptr: *mut f32| TensorArg {
        space: tilewright_runtime::MemorySpace::Host,
        ptr: ptr.cast(),
        len: 8,
        dtype: DType::F32,
        shape: None,
        strides: None,
    };
    let base = memory.as_mut_ptr();
    let mut sizes = [None; MAX_ITEMS];
    let e = signature.resolve(&[at(base), at(base.wrapping_add(4))], &mut sizes).unwrap_err();
    assert!(matches!(e, LaunchError::Alias { .. }), "{e}");
    let mut sizes = [None; MAX_ITEMS];
    assert_eq!(signature.resolve(&[at(base), at(base.wrapping_add(8))], &mut sizes), Ok(()));
    assert_eq!(sizes[0], Some(2));
}

#[test]
fn kernel_arguments_from_nowhere_are_refused() {
    let program = program();
    let sources = [
        ArgSource::Free,
        ArgSource::Tensor(<TensorId as tilewright_ir::entity::Id>::from_index(9)),
        ArgSource::Dim(<DimId as tilewright_ir::entity::Id>::from_index(9)),
        ArgSource::Scalar(<ScalarId as tilewright_ir::entity::Id>::from_index(9)),
    ];
    for source in sources {
        for kind in [
            ArgKind::Number(Elem::Index),
            ArgKind::Buffer {
                dtype: DType::F32,
                access: Access::In,
                align: 4,
                evict: Evict::Normal,
            },
        ] {
            let mut kernel = kernel(&program, None);
            kernel.args.push(Arg { name: "odd".to_string(), kind, source });
            let e = Handle::new(&program, &[kernel], Box::<Recorder>::default()).unwrap_err();
            assert!(matches!(e, LaunchError::Runtime(RuntimeError::Argument { index: 5, .. })));
        }
    }
}
