//! Reference results: seeded inputs for a program and what the interpreter makes of them, kept in
//! memory as long as they fit.

mod inputs;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use sha2::{Digest, Sha256};

use crate::interp::{Bindings, InterpError, Options, Outputs, run_with};
use crate::program::Program;

pub use inputs::{Data, Random, inputs};

/// What a reference is for: a shape, the scalars and the inputs of one launch.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// Sizes of dimensions.
    pub dims: BTreeMap<String, u64>,
    /// Run-time scalars.
    pub scalars: BTreeMap<String, f64>,
    /// How inputs are made.
    pub data: Data,
    /// Their seed.
    pub seed: u64,
    /// Whether the scales of errors are wanted, too.
    pub magnitude: bool,
}

/// Inputs and reference outputs.
#[derive(Clone, PartialEq, Debug)]
pub struct Reference {
    /// Contents of the tensors that are read, in storage order, by name.
    pub inputs: BTreeMap<String, Vec<f64>>,
    /// The written tensors.
    pub outputs: Outputs,
}

impl Reference {
    /// Bytes that it takes.
    fn bytes(&self) -> usize {
        let numbers = self.inputs.values().map(Vec::len).sum::<usize>()
            + self.outputs.iter().map(|o| o.data.len() + o.magnitude.len()).sum::<usize>();
        numbers.saturating_mul(size_of::<f64>())
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    /// SHA-256 of the program's text.
    program: [u8; 32],
    dims: Vec<(String, u64)>,
    /// Values by their bits.
    scalars: Vec<(String, u64)>,
    data: Data,
    seed: u64,
    magnitude: bool,
}

impl Key {
    fn new(program: &Program, case: &Case) -> Key {
        Key {
            program: Sha256::digest(crate::text::print(program).as_bytes()).into(),
            dims: case.dims.iter().map(|(n, v)| (n.clone(), *v)).collect(),
            scalars: case.scalars.iter().map(|(n, v)| (n.clone(), v.to_bits())).collect(),
            data: case.data,
            seed: case.seed,
            magnitude: case.magnitude,
        }
    }
}

#[derive(Default)]
struct Cache {
    entries: HashMap<Key, (Arc<Reference>, u64)>,
    bytes: usize,
    clock: u64,
}

/// A cache of references, bounded in bytes; the one unused for longest goes first. May be shared
/// by threads.
pub struct Oracle {
    limit: usize,
    cache: Mutex<Cache>,
}

impl Oracle {
    /// An empty cache for `limit` bytes of numbers. A reference that is larger is made and not
    /// kept.
    pub fn new(limit: usize) -> Self {
        Oracle { limit, cache: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Cache> {
        // Every change to the cache is complete before anything can panic.
        self.cache.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The reference of a program on a case, from the cache or made now.
    ///
    /// # Errors
    /// As [`crate::interp::run`].
    pub fn reference(&self, program: &Program, case: &Case) -> Result<Arc<Reference>, InterpError> {
        let key = Key::new(program, case);
        {
            let mut cache = self.lock();
            cache.clock += 1;
            let now = cache.clock;
            if let Some((found, used)) = cache.entries.get_mut(&key) {
                *used = now;
                return Ok(found.clone());
            }
        }
        let made = Arc::new(compute(program, case)?);
        let bytes = made.bytes();
        if bytes > self.limit {
            return Ok(made);
        }
        let mut cache = self.lock();
        while cache.bytes + bytes > self.limit {
            let oldest = cache.entries.iter().min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            if let Some((gone, _)) = cache.entries.remove(&oldest) {
                cache.bytes -= gone.bytes();
            }
        }
        let now = cache.clock;
        cache.bytes += bytes;
        if let Some((same, _)) = cache.entries.insert(key, (made.clone(), now)) {
            // Another thread made it meanwhile.
            cache.bytes -= same.bytes();
        }
        Ok(made)
    }

    /// Number of references kept.
    pub fn len(&self) -> usize {
        self.lock().entries.len()
    }

    /// Whether none is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The reference of a case, not cached.
///
/// # Errors
/// As [`crate::interp::run`].
pub fn compute(program: &Program, case: &Case) -> Result<Reference, InterpError> {
    let inputs = inputs(program, &case.dims, case.data, case.seed)?;
    let mut bindings = Bindings {
        dims: case.dims.clone(),
        scalars: case.scalars.clone(),
        tensors: BTreeMap::new(),
    };
    for (name, data) in &inputs {
        bindings.tensors.insert(name.clone(), data.as_slice().into());
    }
    let options = Options { magnitude: case.magnitude, ..Options::default() };
    let outputs = run_with(program, &bindings, &options)?;
    drop(bindings);
    Ok(Reference { inputs, outputs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::read;

    fn program() -> Program {
        read(
            "program p {\ndim n: symbolic max 1000\nin x: f32[n]\nout y: f32[n]\naxis j: n\n\
             grid r: 1 step 1\n%x = load x[:j]\n%e = exp %x\nstore y[:j], %e\n}\n",
        )
        .unwrap()
    }

    fn case(n: u64, seed: u64) -> Case {
        Case { dims: [("n".to_string(), n)].into(), seed, ..Case::default() }
    }

    #[test]
    fn the_same_case_is_computed_once() {
        let (oracle, p) = (Oracle::new(1 << 20), program());
        let first = oracle.reference(&p, &case(10, 1)).unwrap();
        let again = oracle.reference(&p, &case(10, 1)).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        let other = oracle.reference(&p, &case(10, 2)).unwrap();
        assert_ne!(first.inputs, other.inputs);
        let mut scaled = case(10, 1);
        scaled.magnitude = true;
        assert_eq!(oracle.reference(&p, &scaled).unwrap().outputs[0].magnitude.len(), 10);
        assert_eq!(oracle.len(), 3);
        let x = &first.inputs["x"];
        assert!(first.outputs[0].data.iter().zip(x).all(|(y, x)| *y == libm::exp(*x)));
    }

    #[test]
    fn the_cache_keeps_to_its_limit_and_drops_the_oldest() {
        // Each reference has 2·10 numbers of 8 bytes.
        let (oracle, p) = (Oracle::new(330), program());
        let one = oracle.reference(&p, &case(10, 1)).unwrap();
        oracle.reference(&p, &case(10, 2)).unwrap();
        assert!(Arc::ptr_eq(&one, &oracle.reference(&p, &case(10, 1)).unwrap()));
        oracle.reference(&p, &case(10, 3)).unwrap();
        assert_eq!(oracle.len(), 2);
        assert!(Arc::ptr_eq(&one, &oracle.reference(&p, &case(10, 1)).unwrap()));
        oracle.reference(&p, &case(100, 1)).unwrap();
        assert_eq!(oracle.len(), 2);
    }

    #[test]
    fn another_text_is_another_program() {
        let (oracle, p) = (Oracle::new(1 << 20), program());
        let text = crate::text::print(&p).replace("exp", "neg");
        let y = |p: &Program| oracle.reference(p, &case(5, 1)).unwrap().outputs[0].data.clone();
        assert_ne!(y(&p), y(&read(&text).unwrap()));
    }

    #[test]
    fn errors_are_not_cached() {
        let oracle = Oracle::new(1 << 20);
        assert!(oracle.reference(&program(), &Case::default()).is_err());
        assert!(oracle.is_empty());
    }
}
