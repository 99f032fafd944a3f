//! A case's launch, and what its outputs must be.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tilewright_engine::check::{LaunchValues, tolerance};
use tilewright_engine::tolerance::compare;
use tilewright_ir::DType;
use tilewright_ir::entity::Id as _;
use tilewright_ir::interp::{self, Bindings, Outputs};
use tilewright_kernel::kernel::{ArgSource, Elem, Size};
use tilewright_metal::BindingKind;
use tilewright_metal::cases::{Case, Special};

use crate::launch::{Bound, Launch, Results};

/// A launch with the results that it must have.
pub struct Task {
    pub launch: Launch,
    /// Index in `launch.buffers` of each output of `expected`.
    outputs: Vec<usize>,
    expected: Arc<Outputs>,
    values: LaunchValues,
    /// Per output whether an element's offset is covered by the groups that run.
    covered: Option<Vec<Vec<bool>>>,
}

/// Bytes of numbers as a type holds them.
pub fn encode(dtype: DType, data: &[f64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(data.len() * dtype.bytes() as usize);
    for &x in data {
        match dtype {
            DType::F32 => bytes.extend((x as f32).to_le_bytes()),
            DType::F64 => bytes.extend(x.to_le_bytes()),
            DType::F16 => bytes.extend(half::f16::from_f64(x).to_le_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f64(x).to_le_bytes()),
            DType::I32 => bytes.extend((x as i32).to_le_bytes()),
            DType::Bool => bytes.push(u8::from(x != 0.0)),
        }
    }
    bytes
}

/// The numbers of bytes.
pub fn decode(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let two = |b: &[u8]| [b[0], b[1]];
    let four = |b: &[u8]| [b[0], b[1], b[2], b[3]];
    match dtype {
        DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(four(b)).into()).collect(),
        DType::I32 => bytes.chunks_exact(4).map(|b| i32::from_le_bytes(four(b)).into()).collect(),
        DType::F16 => {
            bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes(two(b)).to_f64()).collect()
        }
        DType::BF16 => {
            bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes(two(b)).to_f64()).collect()
        }
        DType::F64 | DType::Bool => panic!("no buffer of Metal's holds {dtype}"),
    }
}

/// What the interpreter makes of a program. With a name of the inputs it is kept: the candidates
/// of a large product have the same program.
fn expected(
    case: &Case,
    bindings: &Bindings<'_>,
    inputs: Option<String>,
) -> Result<Arc<Outputs>, String> {
    static KEPT: Mutex<BTreeMap<String, Arc<Outputs>>> = Mutex::new(BTreeMap::new());
    let run =
        || interp::magnitude(&case.program, bindings).map(Arc::new).map_err(|e| e.to_string());
    let Some(inputs) = inputs else { return run() };
    let key = format!("{:?} {:?} {inputs}", case.program, case.dims);
    // One at a time: each uses all cores.
    let mut kept = KEPT.lock().map_err(|e| e.to_string())?;
    if let Some(known) = kept.get(&key) {
        return Ok(Arc::clone(known));
    }
    let outputs = run()?;
    kept.insert(key, Arc::clone(&outputs));
    Ok(outputs)
}

/// A launch of a case: on all groups, or on the first, the last, one at an edge and one inside.
pub fn task(case: &Case, special: Special, seed: u64, few_groups: bool) -> Result<Task, String> {
    let program = &case.program;
    let data = case.inputs(special, seed).map_err(|e| e.to_string())?;
    let mut bindings = Bindings {
        dims: case.dims.clone(),
        scalars: case.scalars.clone(),
        tensors: BTreeMap::new(),
    };
    for (name, values) in &data {
        bindings.tensors.insert(name.clone(), values.as_slice().into());
    }
    let expected = expected(case, &bindings, few_groups.then(|| format!("{special:?} {seed}")))?;
    drop(bindings);

    let kernel = &case.kernel;
    let layouts = interp::layouts(program, &case.dims).map_err(|e| e.to_string())?;
    let mut buffers = Vec::new();
    let mut outputs = vec![usize::MAX; expected.len()];
    for binding in &case.module.bindings {
        let bytes = match (kernel.args[binding.arg].source, binding.kind) {
            (ArgSource::Tensor(id), BindingKind::Buffer { dtype, .. }) => {
                let tensor = &program.tensors[id];
                if let Some(at) = expected.iter().position(|o| o.tensor == id) {
                    outputs[at] = buffers.len();
                }
                match data.get(&tensor.name) {
                    Some(values) => encode(dtype, values),
                    None => vec![0xff; (layouts[id.index()].span() * dtype.bytes()) as usize],
                }
            }
            (ArgSource::Scratch(count), BindingKind::Buffer { dtype, .. }) => {
                vec![0xff; (count * dtype.bytes()) as usize]
            }
            (ArgSource::Scalar(id), BindingKind::Number(Elem::Data(dtype))) => {
                encode(dtype, &[case.scalars[&program.scalars[id].name]])
            }
            (ArgSource::Dim(id), BindingKind::Number(Elem::Index)) => {
                (case.dims[&program.dims[id].name] as i64).to_le_bytes().to_vec()
            }
            other => return Err(format!("argument {}: {other:?}", binding.name)),
        };
        let align = match binding.kind {
            BindingKind::Buffer { align, dtype, .. } => align.clamp(dtype.bytes(), 16),
            BindingKind::Number(Elem::Index) => 8,
            BindingKind::Number(Elem::Data(dtype)) => dtype.bytes(),
        };
        buffers.push(Bound { index: binding.slot, bytes, align });
    }
    if outputs.contains(&usize::MAX) {
        return Err("an output of the program is no argument of the kernel".to_string());
    }
    let size = |arg| match kernel.args[arg].source {
        ArgSource::Dim(id) => Some(case.dims[&program.dims[id].name]),
        _ => None,
    };
    let groups = case.module.groups(size).ok_or("the grid has no size")?;
    let groups = groups.map(u64::from);
    let mut task = Task {
        launch: Launch {
            kernel: case.id.clone(),
            groups,
            threads: case.module.threads,
            buffers,
            only: Vec::new(),
            limit: 120,
        },
        outputs,
        expected,
        values: LaunchValues {
            dims: case.dims.iter().map(|(n, v)| (n.clone(), *v)).collect(),
            scalars: case.scalars.iter().map(|(n, v)| (n.clone(), *v)).collect(),
        },
        covered: None,
    };
    if few_groups {
        task.select(case)?;
    }
    Ok(task)
}

impl Task {
    /// Runs the first, the last, one at an edge and one inside of a product's grid.
    fn select(&mut self, case: &Case) -> Result<(), String> {
        let [x, y, _] = self.launch.groups;
        let [rows, columns] = case.kernel.grid.as_slice() else {
            return Err("groups are selected of a product's grid".to_string());
        };
        let mut chosen = vec![[0, 0, 0], [x - 1, y - 1, 0], [x - 1, y / 2, 0], [x / 2, y / 2, 0]];
        chosen.sort_unstable();
        chosen.dedup();
        let known = |size| match size {
            Size::Const(n) => Ok(n),
            Size::Arg(_) => Err("the product's size isn't known".to_string()),
        };
        let (m, n) = (known(rows.size)?, known(columns.size)?);
        let mut covered = vec![false; (m * n) as usize];
        for [x, y, _] in &chosen {
            for r in y * rows.step..((y + 1) * rows.step).min(m) {
                let from = r * n + x * columns.step;
                let to = r * n + ((x + 1) * columns.step).min(n);
                covered[from as usize..to as usize].fill(true);
            }
        }
        self.covered = Some(vec![covered]);
        self.launch.only = chosen;
        Ok(())
    }

    /// Judges what a launch gave, once per order.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn judge(&self, case: &Case, results: &Results) -> Result<(), String> {
        for buffers in results {
            for (i, (before, after)) in self.launch.buffers.iter().zip(buffers).enumerate() {
                if !self.outputs.contains(&i) && before.bytes != *after {
                    return Err(format!("buffer {} was changed", before.index));
                }
            }
            for (o, (output, &at)) in self.expected.iter().zip(&self.outputs).enumerate() {
                let covered = self.covered.as_ref().map(|c| c[o].as_slice());
                self.output(case, output, &buffers[at], &self.launch.buffers[at].bytes, covered)?;
            }
        }
        Ok(())
    }

    fn output(
        &self,
        case: &Case,
        output: &interp::Output,
        bytes: &[u8],
        before: &[u8],
        covered: Option<&[bool]>,
    ) -> Result<(), String> {
        let dtype = case.program.tensors[output.tensor].dtype;
        let width = dtype.bytes() as usize;
        let actual = decode(dtype, bytes);
        let mut owned = vec![false; actual.len()];
        let (mut found, mut reference, mut scale) = (Vec::new(), Vec::new(), Vec::new());
        for (n, at) in output.layout.offsets().enumerate() {
            if covered.is_none_or(|c| c[n]) {
                owned[at] = true;
                found.push(actual[at]);
                reference.push(output.data[at]);
                scale.push(output.magnitude[at]);
            }
        }
        for (at, owned) in owned.iter().enumerate() {
            let place = at * width..(at + 1) * width;
            if !owned && bytes[place.clone()] != before[place] {
                return Err(format!("`{}` offset {at} isn't the launch's to write", output.name));
            }
        }
        let tolerance = tolerance(&case.program, &case.facts, &self.values, output.tensor);
        let outcome = compare(&tolerance, &found, &reference, &scale);
        match outcome.first_failure {
            None => Ok(()),
            Some((at, actual, reference, bound)) => Err(format!(
                "{} of {} elements of `{}` are off; the first is {at}: {actual:e} instead of \
                 {reference:e}, bound {bound:e}",
                outcome.failures, outcome.elements, output.name
            )),
        }
    }
}
