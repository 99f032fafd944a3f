//! A device with memory of its own and a queue: staging, bound launches, scratch, checks, clocks.

#[path = "support/memory.rs"]
mod memory;

use memory::Bytes;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tilewright_engine::check::{LaunchValues, run_checked};
use tilewright_engine::timing::{Clock, TimingOptions, measure_bound};
use tilewright_engine::{
    DeviceView, DeviceViewMut, Engine, EngineError, LaunchError, LaunchOptions, Task, inputs,
};
use tilewright_ir::ops::{OpRequest, build};
use tilewright_ir::{DType, Program};
use tilewright_kernel::kernel::Kernel;
use tilewright_plan::Target;
use tilewright_plan::mapping::CpuIsa;
use tilewright_plan::target::CpuFacts;
use tilewright_runtime::{
    ArgValue, Batch, Capabilities, Device, DeviceBuffer, Executable, Failure, Memory, MemorySpace,
    PreparedLaunch, Queue, ResourceReport, Roofline, RuntimeError, Stage, Work,
};

type Job = Box<dyn FnOnce() -> Result<(), RuntimeError> + Send>;

/// Runs what it is given only when somebody waits.
struct Late {
    jobs: Mutex<Vec<Job>>,
    ran: Mutex<usize>,
}

impl Queue for Late {
    fn space(&self) -> MemorySpace {
        MemorySpace::Device(7)
    }
    fn alloc(&self, bytes: usize) -> Result<Box<dyn Memory>, RuntimeError> {
        Ok(Box::new(Bytes::new(bytes)))
    }
    fn wait(&self) -> Result<(), RuntimeError> {
        for job in self.jobs.lock().unwrap().drain(..) {
            *self.ran.lock().unwrap() += 1;
            job()?;
        }
        Ok(())
    }
    fn batch<'a>(
        &self,
        repetitions: u64,
        work: Work<'a>,
    ) -> Result<Box<dyn Batch + 'a>, RuntimeError> {
        struct Counted<'a>(u64, Work<'a>);
        impl Batch for Counted<'_> {
            /// 2 µs a repetition.
            fn run(&mut self) -> Result<f64, RuntimeError> {
                (self.1)()?;
                Ok(2000.0 * self.0 as f64)
            }
        }
        Ok(Box::new(Counted(repetitions, work)))
    }
}

type Body = fn(&[(usize, usize)]) -> Result<(), String>;

#[derive(Clone)]
struct Code {
    queue: Arc<dyn Queue>,
    late: Arc<Late>,
    body: Body,
}

impl Code {
    fn job(&self, args: &[ArgValue]) -> Job {
        let buffers: Vec<(usize, usize)> = args
            .iter()
            .filter_map(|a| match a {
                ArgValue::Buffer { ptr, bytes } => Some((*ptr as usize, bytes / 4)),
                _ => None,
            })
            .collect();
        let body = self.body;
        Box::new(move || {
            body(&buffers).map_err(|detail| {
                let (op, plan) = ("relu".to_string(), String::new());
                RuntimeError::Backend(Failure { op, plan, stage: Stage::Launch, detail })
            })
        })
    }
}

struct Prepared(Code, Vec<ArgValue>);

// SAFETY: the arguments are addresses that only the queue follows.
unsafe impl Send for Prepared {}

impl PreparedLaunch for Prepared {
    unsafe fn enqueue(&mut self) -> Result<(), RuntimeError> {
        self.0.late.jobs.lock().unwrap().push(self.0.job(&self.1));
        Ok(())
    }
}

impl Executable for Code {
    unsafe fn launch(&self, args: &[ArgValue]) -> Result<(), RuntimeError> {
        self.late.jobs.lock().unwrap().push(self.job(args));
        self.late.wait()
    }
    fn queue(&self) -> Option<&Arc<dyn Queue>> {
        Some(&self.queue)
    }
    unsafe fn prepare(
        &self,
        args: &[ArgValue],
    ) -> Result<Option<Box<dyn PreparedLaunch>>, RuntimeError> {
        Ok(Some(Box::new(Prepared(self.clone(), args.to_vec()))))
    }
    fn disassembly(&self) -> String {
        String::new()
    }
    fn report(&self) -> ResourceReport {
        ResourceReport::default()
    }
}

struct Fake {
    capabilities: Capabilities,
    target: Target,
    late: Arc<Late>,
    queue: Arc<dyn Queue>,
    body: Body,
}

impl Device for Fake {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn compile(&self, _: &[Kernel]) -> Result<Box<dyn Executable>, RuntimeError> {
        let (queue, late) = (self.queue.clone(), self.late.clone());
        Ok(Box::new(Code { queue, late, body: self.body }))
    }
    fn roofline(&self, _: DType, _: usize) -> Option<Roofline> {
        None
    }
    fn queue(&self) -> Option<&Arc<dyn Queue>> {
        Some(&self.queue)
    }
}

fn device(body: Body) -> (Engine, Arc<Late>, Arc<dyn Queue>) {
    let late = Arc::new(Late { jobs: Mutex::default(), ran: Mutex::default() });
    let queue: Arc<dyn Queue> = late.clone();
    let fake = Fake {
        capabilities: Capabilities {
            name: "fake".to_string(),
            model: String::new(),
            isa: String::new(),
            threads: 1,
            memory_bytes: None,
            notes: vec![],
        },
        target: Target::cpu(CpuFacts::modest(CpuIsa::Avx2, 1)),
        late: late.clone(),
        queue: queue.clone(),
        body,
    };
    (Engine::new(Arc::new(fake)), late, queue)
}

/// `y = max(x, 0)`; rows of 10 in both.
fn relu(buffers: &[(usize, usize)]) -> Result<(), String> {
    for i in 0..buffers[1].1 {
        // SAFETY: both buffers have the same length.
        unsafe {
            let (x, y) = (buffers[0].0 as *const f32, buffers[1].0 as *mut f32);
            *y.add(i) = (*x.add(i)).max(0.0);
        }
    }
    Ok(())
}

fn program() -> Program {
    build("relu", &OpRequest::shaped(DType::F32, &[4, 10])).unwrap()
}

fn values() -> Vec<f32> {
    (0..40).map(|i| i as f32 - 20.0).collect()
}

#[test]
fn host_tensors_are_copied_there_and_back() {
    let (engine, late, _) = device(relu);
    let compiled = Task::new(program()).plan(&engine).unwrap().compile().unwrap();
    let (x, mut y) = (values(), vec![9.0f32; 40]);
    compiled.run(&[&x], &mut y).unwrap();
    assert!(y.iter().zip(&x).all(|(y, x)| *y == x.max(0.0)));
    assert_eq!(*late.ran.lock().unwrap(), 1);
}

#[test]
fn device_buffers_are_used_where_they_are() {
    let (engine, late, queue) = device(relu);
    let compiled = Task::new(program()).plan(&engine).unwrap().compile().unwrap();
    let bytes: Vec<u8> = values().iter().flat_map(|x| x.to_le_bytes()).collect();
    let x = DeviceBuffer::from_bytes(&queue, DType::F32, &bytes).unwrap();
    let mut y = DeviceBuffer::new(&queue, DType::F32, 40).unwrap();
    {
        let mut bound = compiled.bind(&LaunchOptions::default(), &[&x], [&mut y]).unwrap();
        assert!(bound.queue().is_some());
        bound.enqueue().unwrap();
        bound.enqueue().unwrap();
        assert_eq!(*late.ran.lock().unwrap(), 0, "nothing runs before somebody waits");
        bound.wait().unwrap();
        assert_eq!(*late.ran.lock().unwrap(), 2);
        bound.enqueue().unwrap();
    }
    assert_eq!(*late.ran.lock().unwrap(), 3, "a binding waits before its tensors are free again");
    let mut found = vec![0u8; 160];
    y.read(&mut found).unwrap();
    assert_eq!(&found[156..], 19f32.to_le_bytes());
    assert!(y.guards_intact().unwrap() && x.guards_intact().unwrap());
    let (x, mut y) = (DeviceView::new(&x, &[4, 10]), DeviceViewMut::new(&mut y, &[4, 10]));
    compiled.run(&[&x], &mut y).unwrap();
    let wrong = compiled.run(&[&x], &mut DeviceBuffer::new(&queue, DType::F32, 39).unwrap());
    assert!(matches!(wrong, Err(LaunchError::Length { .. })), "{wrong:?}");
}

#[test]
fn a_bound_launch_takes_device_buffers_only() {
    let (engine, _, queue) = device(relu);
    let compiled = Task::new(program()).plan(&engine).unwrap().compile().unwrap();
    let x = values();
    let mut y = DeviceBuffer::new(&queue, DType::F32, 40).unwrap();
    let error = compiled.bind(&LaunchOptions::default(), &[&x], [&mut y]).err().unwrap();
    let text = error.to_string();
    assert!(text.contains("`x` is in host memory") && text.contains("device buffers"), "{text}");
}

#[test]
fn a_checked_run_checks_what_the_device_holds() {
    let check = |body| {
        let (engine, _, _) = device(body);
        let program = program();
        let compiled = Task::new(program.clone()).plan(&engine).unwrap().compile().unwrap();
        let values = LaunchValues::default();
        let contents = inputs::random(&program, &values, 3).unwrap();
        let mut run = run_checked(&compiled, &values, contents.inputs, contents.initial)?;
        let timing = {
            let mut bound = [run.bind(&compiled, &values)?];
            let options = TimingOptions {
                warmup: Duration::ZERO,
                sample: Duration::from_micros(100),
                samples: 3,
            };
            measure_bound(&options, &mut bound)?
        };
        assert_eq!(timing.clock, Clock::Device);
        assert_eq!(timing.samples_us, [2.0; 3]);
        assert!((48..=50).contains(&timing.repetitions), "{}", timing.repetitions);
        Ok::<_, EngineError>(run.report)
    };
    let report = check(relu).unwrap();
    assert!(report.passed(), "{:?}", report.complaint());
    // Changes its input.
    let report = check(|buffers| {
        // SAFETY: the first element of a buffer of 40.
        unsafe { *(buffers[0].0 as *mut f32) = 77.0 };
        relu(buffers)
    });
    assert_eq!(report.unwrap().changed_inputs, ["x"]);
    // Writes beside its output.
    let report = check(|buffers| {
        // SAFETY: the element after the last lies in the guard zone.
        unsafe { *(buffers[1].0 as *mut f32).add(40) = 0.0 };
        relu(buffers)
    });
    assert_eq!(report.unwrap().broken_guards, ["y"]);
    // Leaves its output alone.
    let report = check(|_| Ok(())).unwrap();
    assert_eq!(report.outputs[0].comparison.failures, 40);
    // Fails: the error names the plan.
    let error = check(|_| Err("the device's words".to_string())).unwrap_err().to_string();
    assert!(error.contains("launch of `relu` under plan 8 lanes"), "{error}");
    assert!(error.ends_with("the device's words"), "{error}");
}
