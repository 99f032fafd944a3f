//! What a caller asks of the planner, and the errors that it may get.

use std::collections::BTreeMap;

use tilewright_ir::Program;
use tilewright_ir::facts::Facts;
use tilewright_ir::program::{DimKind, Extent};

use crate::legality::{Rejection, Rule};
use crate::policy::PolicyError;

/// Limits and choices of the candidate space. `None` means the target's default.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpaceOptions {
    /// Blocks BM, BN, BK of a matrix product.
    pub blocks: Option<Vec<[u64; 3]>>,
    /// Widths of a group, in threads.
    pub threads: Option<Vec<u32>>,
    /// Pipeline windows of a matrix product.
    pub stages: Option<Vec<u32>>,
    /// Vector widths V of rows.
    pub vector: Option<Vec<u32>>,
    /// Unroll factors U of rows.
    pub unroll: Option<Vec<u32>>,
    /// Programs per group P of rows.
    pub pack: Option<Vec<u32>>,
    /// Input caching of rows: on, off, or both.
    pub cache: Option<bool>,
    /// Loop fusion of rows on CPUs: on, off, or both.
    pub fuse: Option<bool>,
    /// Threads that share a launch on a CPU.
    pub cpu_threads: Option<u32>,
    /// Keep accumulators in fragments across iterations where proved.
    pub retain_accumulators: bool,
    /// Store fragments straight to the output where proved.
    pub direct_output: bool,
    /// Read operands in place where proved.
    pub forward_operands: bool,
    /// Most widths of a row space (reference 1.6: 32).
    pub max_thread_candidates: usize,
    /// Most candidates of a space (reference 2: 256).
    pub max_candidates: usize,
}

impl Default for SpaceOptions {
    fn default() -> Self {
        SpaceOptions {
            blocks: None,
            threads: None,
            stages: None,
            vector: None,
            unroll: None,
            pack: None,
            cache: None,
            fuse: None,
            cpu_threads: None,
            retain_accumulators: true,
            direct_output: true,
            forward_operands: true,
            max_thread_candidates: 32,
            max_candidates: 256,
        }
    }
}

/// A program to plan.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The program. Sizes that should be fixed are bound in it.
    pub program: &'a Program,
    /// What is proved of it.
    pub facts: &'a Facts,
    /// Nominal sizes of symbolic dimensions, by name. A size scores candidates; legality holds
    /// for every size that the dimension allows.
    pub sizes: BTreeMap<String, u64>,
    /// Space options.
    pub options: SpaceOptions,
}

/// Why there is no ranking.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum PlanError {
    /// The program is in no family that the planner has a space for.
    #[error("the program has no planned schedule: {0}")]
    Family(String),
    /// A symbolic dimension without a nominal size.
    #[error("dimension `{0}` is symbolic: planning needs a nominal size for it")]
    MissingSize(String),
    /// A nominal size that the dimension doesn't allow.
    #[error(
        "nominal size {size} of dimension `{dim}` must be a multiple of {divisor}, at most {max}"
    )]
    BadSize {
        /// The dimension.
        dim: String,
        /// The size.
        size: u64,
        /// Its divisor.
        divisor: u64,
        /// Its bound.
        max: u64,
    },
    /// The request breaks a rule.
    #[error("illegal request: {0}")]
    Illegal(#[from] Rejection),
    /// The policy failed; nothing is scored in its place.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Every candidate was rejected.
    #[error("no legal candidate among {candidates}: {reasons}")]
    NoLegalCandidate {
        /// Number of candidates.
        candidates: usize,
        /// Rules with the number of candidates that each rejected.
        reasons: String,
    },
}

impl PlanError {
    /// An illegal request.
    pub(crate) fn illegal(rule: Rule, detail: impl Into<String>) -> Self {
        PlanError::Illegal(Rejection::new(rule, detail))
    }
}

impl<'a> Request<'a> {
    /// A request with default options and no nominal sizes.
    pub fn new(program: &'a Program, facts: &'a Facts) -> Self {
        Request { program, facts, sizes: BTreeMap::new(), options: SpaceOptions::default() }
    }

    /// Adds the nominal size of a symbolic dimension.
    pub fn size(mut self, dim: &str, size: u64) -> Self {
        self.sizes.insert(dim.to_string(), size);
        self
    }

    /// Sets the options.
    pub fn options(mut self, options: SpaceOptions) -> Self {
        self.options = options;
        self
    }

    /// The size of an extent: known, or nominal.
    ///
    /// # Errors
    /// A symbolic dimension has no nominal size or one that it doesn't allow.
    pub fn resolve(&self, extent: Extent) -> Result<u64, PlanError> {
        if let Some(size) = self.program.known(extent) {
            return Ok(size);
        }
        let Extent::Dim(id) = extent else { return Ok(0) };
        let dim = &self.program.dims[id];
        let Some(&size) = self.sizes.get(&dim.name) else {
            return Err(PlanError::MissingSize(dim.name.clone()));
        };
        if let DimKind::Symbolic { divisor, max } = dim.kind
            && (!size.is_multiple_of(divisor) || size > max)
        {
            return Err(PlanError::BadSize { dim: dim.name.clone(), size, divisor, max });
        }
        Ok(size)
    }
}
