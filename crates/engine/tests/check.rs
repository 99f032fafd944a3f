//! The road with a device that misbehaves: every fault is seen, every refusal is recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tilewright_engine::check::{CheckReport, LaunchValues, check_memory, run_checked};
use tilewright_engine::{Engine, EngineError, Signature, Task, inputs};
use tilewright_ir::ops::{OpRequest, build};
use tilewright_ir::{DType, Program};
use tilewright_kernel::kernel::Kernel;
use tilewright_plan::Target;
use tilewright_plan::mapping::CpuIsa;
use tilewright_plan::target::CpuFacts;
use tilewright_runtime::{
    ArgValue, Capabilities, Device, Executable, Failure, ResourceReport, Roofline, RuntimeError,
    Stage,
};

type Body = fn(&[*mut f32], &[usize]);

/// Code that does what a function says to its buffers (addresses and lengths).
struct Code(Body);

impl Executable for Code {
    unsafe fn launch(&self, args: &[ArgValue]) -> Result<(), RuntimeError> {
        let buffers: Vec<(*mut f32, usize)> = args
            .iter()
            .filter_map(|a| match a {
                ArgValue::Buffer { ptr, bytes } => Some((ptr.cast::<f32>(), bytes / 4)),
                _ => None,
            })
            .collect();
        let (pointers, lengths): (Vec<_>, Vec<_>) = buffers.into_iter().unzip();
        (self.0)(&pointers, &lengths);
        Ok(())
    }
    fn disassembly(&self) -> String {
        String::new()
    }
    fn report(&self) -> ResourceReport {
        ResourceReport::default()
    }
}

/// A device that refuses or fails some compilations and then gives the same code for any kernel.
struct Fake {
    capabilities: Capabilities,
    target: Target,
    body: Body,
    refuse: usize,
    fail: bool,
    compiled: AtomicUsize,
}

impl Device for Fake {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn compile(&self, launches: &[Kernel]) -> Result<Box<dyn Executable>, RuntimeError> {
        let failure = Failure {
            op: launches[0].name.clone(),
            plan: String::new(),
            stage: Stage::Compile,
            detail: "as told".to_string(),
        };
        if self.fail {
            return Err(RuntimeError::Backend(failure));
        }
        if self.compiled.fetch_add(1, Ordering::Relaxed) < self.refuse {
            return Err(RuntimeError::Unsupported { rule: "test-rule".to_string(), failure });
        }
        Ok(Box::new(Code(self.body)))
    }
    fn roofline(&self, _: DType, _: usize) -> Option<Roofline> {
        None
    }
}

fn engine(body: Body, refuse: usize, fail: bool) -> Engine {
    Engine::new(Arc::new(Fake {
        capabilities: Capabilities {
            name: "fake".to_string(),
            model: String::new(),
            isa: String::new(),
            threads: 1,
            memory_bytes: None,
            notes: vec![],
        },
        target: Target::cpu(CpuFacts::modest(CpuIsa::Avx2, 1)),
        body,
        refuse,
        fail,
        compiled: AtomicUsize::new(0),
    }))
}

/// `y = max(x, 0)`, as it should be, for packed tensors.
fn relu(buffers: &[*mut f32], lengths: &[usize]) {
    for i in 0..lengths[1] {
        // SAFETY: i is inside the shorter of two buffers of one length.
        unsafe { *buffers[1].add(i) = (*buffers[0].add(i)).max(0.0) };
    }
}

fn relu_program(strided: bool) -> Program {
    let request = OpRequest { strided, ..OpRequest::shaped(DType::F32, &[4, 10]) };
    build("relu", &request).unwrap()
}

fn report(body: Body) -> CheckReport {
    let program = relu_program(false);
    let compiled = Task::new(program.clone()).plan(&engine(body, 0, false)).unwrap().compile();
    let values = LaunchValues::default();
    let contents = inputs::random(&program, &values, 5).unwrap();
    run_checked(&compiled.unwrap(), &values, contents.inputs, contents.initial).unwrap().report
}

#[test]
fn right_code_passes() {
    let report = report(relu);
    assert!(report.passed() && report.complaint().is_none());
    assert_eq!(report.outputs[0].comparison.elements, 40);
}

#[test]
fn a_wrong_an_unwritten_and_a_shifted_element_are_seen() {
    let bodies: [Body; 3] = [
        |b, n| {
            relu(b, n);
            // SAFETY: element 17 of 40. One unit in the last place beyond 20 is too much.
            unsafe { *b[1].add(17) += 1e-4 };
        },
        |b, n| relu(b, &[n[0], n[1] - 1]),
        |b, n| {
            for i in 1..n[1] {
                // SAFETY: both indices are inside.
                unsafe { *b[1].add(i) = (*b[0].add(i - 1)).max(0.0) };
            }
        },
    ];
    for body in bodies {
        let report = report(body);
        assert!(!report.passed());
        let complaint = report.complaint().unwrap();
        assert!(complaint.contains("elements of `y` are outside their bound"), "{complaint}");
    }
}

#[test]
fn writes_beside_a_tensor_are_seen() {
    let bodies: [Body; 2] = [
        |b, n| {
            relu(b, n);
            // SAFETY: the element after the last one is in the guard zone.
            unsafe { *b[1].add(n[1]) = 0.0 };
        },
        |b, n| {
            relu(b, n);
            // SAFETY: the element before the first one is in the guard zone.
            unsafe { *b[0].sub(1) = 0.0 };
        },
    ];
    for (body, tensor) in bodies.into_iter().zip(["y", "x"]) {
        assert_eq!(report(body).broken_guards, [tensor]);
    }
}

#[test]
fn a_changed_input_is_seen() {
    let report = report(|b, n| {
        relu(b, n);
        // SAFETY: element 3 of 40.
        unsafe { *b[0].add(3) = -*b[0].add(3) };
    });
    assert_eq!(report.changed_inputs, ["x"]);
    assert!(report.complaint().unwrap().contains("were changed: x"));
}

#[test]
fn a_write_between_padded_rows_is_seen() {
    let program = relu_program(true);
    let values = LaunchValues {
        dims: vec![("ldx".to_string(), 10), ("ldy".to_string(), 12)],
        scalars: vec![],
    };
    let run = |body: Body| {
        let task = Task::new(program.clone()).size("ldx", 10).size("ldy", 12);
        let compiled = task.plan(&engine(body, 0, false)).unwrap().compile().unwrap();
        let contents = inputs::random(&program, &values, 5).unwrap();
        run_checked(&compiled, &values, contents.inputs, contents.initial).unwrap().report
    };
    let good = run(|b, _| {
        for i in 0..40 {
            // SAFETY: the last row ends at 3·12 + 10 elements of y and at 40 of x.
            unsafe { *b[1].add(i / 10 * 12 + i % 10) = (*b[0].add(i)).max(0.0) };
        }
    });
    assert!(good.passed(), "{:?}", good.complaint());
    let bad = run(|b, _| {
        for i in 0..40 {
            // SAFETY: the last row ends at 3·12 + 10 elements of y and at 40 of x.
            unsafe { *b[1].add(i / 10 * 12 + i % 10) = (*b[0].add(i)).max(0.0) };
        }
        // SAFETY: element 10 of the first row's 12.
        unsafe { *b[1].add(10) = 1.0 };
    });
    assert_eq!(bad.written_gaps, ["y"]);
}

#[test]
fn refused_candidates_are_recorded_and_the_next_is_taken() {
    let e = engine(relu, 2, false);
    let planned = Task::new(relu_program(false)).plan(&e).unwrap();
    let order = planned.plan().ranking.order.clone();
    let compiled = planned.compile().unwrap();
    assert_eq!(compiled.chosen(), Some(order[2]));
    let rejected: Vec<(usize, &str)> =
        compiled.rejected().iter().map(|r| (r.candidate, r.rule.as_str())).collect();
    assert_eq!(rejected, [(order[0], "test-rule"), (order[1], "test-rule")]);
    // The ranking itself is as it was.
    assert_eq!(compiled.plan().ranking.order, order);
}

#[test]
fn every_candidate_refused_is_an_error_with_all_reasons() {
    let e = engine(relu, usize::MAX, false);
    let planned = Task::new(relu_program(false)).plan(&e).unwrap();
    let legal = planned.plan().ranking.order.len();
    let error = planned.compile().unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&format!("{legal} by test-rule, first ")), "{text}");
    assert_eq!(text.matches("as told").count(), 1, "{text}");
    let EngineError::Rejected { rejected, .. } = error else { panic!("{error}") };
    assert_eq!(rejected.len(), legal);
}

#[test]
fn a_failing_backend_is_not_passed_over() {
    let e = engine(relu, 0, true);
    let error = Task::new(relu_program(false)).plan(&e).unwrap().compile().unwrap_err();
    assert!(matches!(error, EngineError::Runtime(RuntimeError::Backend(_))), "{error}");
}

#[test]
fn memory_is_counted_before_it_is_taken() {
    let program = build("softmax", &OpRequest::shaped(DType::F32, &[1 << 24, 1 << 24])).unwrap();
    let signature = Signature::of(&program).unwrap();
    let error = check_memory(&signature, &LaunchValues::default()).unwrap_err();
    let EngineError::Runtime(RuntimeError::OutOfMemory { needed, .. }) = error else {
        panic!("{error}")
    };
    // x: 4 bytes and an f64 copy; y: 4 bytes and three f64 copies.
    assert_eq!(needed, (1 << 48) * (12 + 28));
}
