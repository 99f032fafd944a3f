//! The rules that a kernel obeys. Backends and the simulator assume a kernel that passes.
//!
//! Every error names its [`Rule`], the statement and what to do. Files: `declare` (arguments,
//! buffers, barriers, roles), `ids` (every id exists), `flow` (the walk: definitions, dominance,
//! control flow), `types`, `scope`, `memory`, `matrix`, `tokens`.

mod declare;
mod flow;
mod ids;
mod matrix;
mod memory;
mod scope;
mod tokens;
mod types;

use crate::kernel::{Kernel, Stmt, Type, Value, ValueId};
use std::fmt;

/// Most blocks in blocks.
pub const MAX_DEPTH: usize = 64;
/// Most lanes of a subgroup.
pub const MAX_LANES: u32 = 64;
/// Most subgroups of a group.
pub const MAX_SUBGROUPS: u32 = 64;
/// Most groups of a cluster.
pub const MAX_CLUSTER: u32 = 16;
/// Most transaction barriers of a group, all arrays together.
pub const MAX_MBARRIERS: u64 = 1024;
/// Most errors that are collected.
const MAX_ERRORS: usize = 100;

macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// A rule of [`validate`].
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Rule {
            $($(#[$doc])* $name,)*
        }

        impl Rule {
            /// Every rule, in the order of the documentation.
            pub const ALL: &[Rule] = &[$(Rule::$name,)*];

            /// The name in messages and documents.
            pub fn name(self) -> &'static str {
                match self {
                    $(Rule::$name => $text,)*
                }
            }
        }
    };
}

rules! {
    /// Names are identifiers, and no two declarations share one.
    Name = "name",
    /// Lanes are a power of two up to 64; subgroups 1 to 64; groups of a cluster 1 to 16.
    GroupShape = "group-shape",
    /// At most three grid dimensions, steps at least 1, sizes from index arguments.
    Grid = "grid",
    /// Buffers hold tensor types and are aligned to a power of two of at least an element.
    Argument = "argument",
    /// A tensor map's box fits its swizzle and 256 rows and columns.
    TensorMap = "tensor-map",
    /// Shared buffers hold tensor types and have a size below 2³² bytes.
    SharedSize = "shared-size",
    /// A swizzled buffer's rows have exactly as many bytes as the swizzle.
    SwizzleRow = "swizzle-row",
    /// Private arrays hold tensor types and at most 2²⁰ elements.
    PrivateSize = "private-size",
    /// A barrier's scope is subgroup, group or cluster; only a group barrier names participants,
    /// and only a cluster barrier has halves.
    BarrierScope = "barrier-scope",
    /// Subgroups that can reach a barrier are at least its participants.
    BarrierParticipants = "barrier-participants",
    /// A group has at most 1024 mbarriers, each with at least one arrival, and who waits at one
    /// has somebody who initialises it and arrives.
    MbarrierUse = "mbarrier-use",
    /// Roles are non-empty, in the group, and share no subgroup.
    RoleRange = "role-range",
    /// Every id names something that exists.
    Id = "id",
    /// Blocks are nested at most 64 deep.
    Depth = "depth",
    /// A value is defined once.
    SingleDefinition = "single-definition",
    /// A value is used where its definition has run.
    Dominance = "dominance",
    /// An operation defines as many values as it should.
    ResultCount = "result-count",
    /// Operands and results have the types that the operation takes and gives.
    OperandType = "operand-type",
    /// A literal is a value of its type.
    LiteralValue = "literal-value",
    /// A value isn't declared uniform over more than it surely is.
    ScopeTooWide = "scope-too-wide",
    /// Bases, bounds, strides, limits and stages are uniform where the operation needs it.
    Uniform = "uniform",
    /// A load or store moves 1, 2, 4 or 8 elements per lane.
    Width = "width",
    /// The lane stride of a private array is 0.
    PrivateStride = "private-stride",
    /// A place or view is in a memory that the operation can reach.
    MemorySpace = "memory-space",
    /// Nothing writes an input.
    ReadOnly = "read-only",
    /// Atomics work on i32, f32 and f64, fold by add, max or min, and order a group or more.
    AtomicForm = "atomic-form",
    /// Collectives are not under lane-varying control flow.
    CollectiveDivergence = "collective-divergence",
    /// Barriers are not under lane-varying control flow.
    BarrierDivergence = "barrier-divergence",
    /// Fragments and atoms are not under lane-varying control flow.
    FragmentDivergence = "fragment-divergence",
    /// Asynchronous copies, mbarriers, waits and roles are not under lane-varying control flow.
    AsyncDivergence = "async-divergence",
    /// Roles aren't nested.
    RoleNesting = "role-nesting",
    /// The lane of a broadcast or the mask of a shuffle is below the number of lanes.
    LaneNumber = "lane-number",
    /// A loop's step is at least 1.
    LoopStep = "loop-step",
    /// An atom is one that a target has, on the lanes that it needs.
    AtomForm = "atom-form",
    /// A fragment's element type is one that its atom takes.
    FragmentType = "fragment-type",
    /// Operands of an atom are fragments or views as the atom takes them, of types whose
    /// accumulator is the atom's.
    AtomOperand = "atom-operand",
    /// An atom of a block of subgroups runs in aligned blocks of them.
    BlockAlignment = "block-alignment",
    /// A token is consumed exactly once on every path.
    TokenOnce = "token-once",
    /// A fragment in flight is read only after the wait for its token.
    InFlight = "in-flight",
    /// An accumulator that an asynchronous atom took over is read no more.
    AccumulatorReuse = "accumulator-reuse",
    /// An asynchronous copy moves 4, 8 or 16 bytes per lane from global to shared memory.
    CopyForm = "copy-form",
    /// A tensor copy's box and swizzle fit its destination.
    TensorCopy = "tensor-copy",
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A place where a kernel breaks a rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct ValidateError {
    /// The rule.
    pub rule: Rule,
    /// Number of the statement in the order of the text, from 0; `None` for a declaration.
    pub statement: Option<usize>,
    /// The statement's first line, or the declared name.
    pub text: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for ValidateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.statement {
            Some(n) => write!(f, "[{}] statement {n} `{}`: {}", self.rule, self.text, self.message),
            None => write!(f, "[{}] `{}`: {}", self.rule, self.text, self.message),
        }
    }
}

/// Checks every rule.
///
/// # Errors
/// What breaks a rule, in the order of the text, at most 100 of them. If ids or declarations are
/// wrong the body isn't looked at further; tokens are only followed in a well-typed body.
pub fn validate(kernel: &Kernel) -> Result<(), Vec<ValidateError>> {
    let mut checker = Checker { kernel, errors: Vec::new() };
    declare::check(&mut checker);
    ids::check(&mut checker);
    if checker.errors.is_empty() {
        flow::check(&mut checker);
    }
    // The token rules assume typed operands.
    if checker.errors.is_empty() {
        tokens::check(&mut checker);
    }
    if checker.errors.is_empty() { Ok(()) } else { Err(checker.errors) }
}

/// Collects errors.
struct Checker<'a> {
    kernel: &'a Kernel,
    errors: Vec<ValidateError>,
}

impl<'a> Checker<'a> {
    fn declaration(&mut self, rule: Rule, name: &str, message: impl Into<String>) {
        self.push(rule, None, name.to_string(), message.into());
    }

    fn statement(&mut self, rule: Rule, at: At<'_>, message: impl Into<String>) {
        let text = crate::text::statement(self.kernel, at.stmt);
        self.push(rule, Some(at.number), text, message.into());
    }

    fn push(&mut self, rule: Rule, statement: Option<usize>, text: String, message: String) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(ValidateError { rule, statement, text, message });
        }
    }

    fn value(&self, id: ValueId) -> &'a Value {
        &self.kernel.values[id]
    }

    fn ty(&self, id: ValueId) -> Type {
        self.kernel.values[id].ty
    }
}

/// A statement and its number.
#[derive(Clone, Copy)]
struct At<'a> {
    stmt: &'a Stmt,
    number: usize,
}
