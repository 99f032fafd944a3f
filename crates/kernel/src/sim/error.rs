//! What a run can fail with.

use crate::validate::ValidateError;
use std::fmt;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What went wrong at run time.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum FaultKind {
            $($(#[$doc])* $name,)*
        }

        impl FaultKind {
            /// Every kind.
            pub const ALL: &[FaultKind] = &[$(FaultKind::$name,)*];

            /// The name in messages and documents.
            pub fn name(self) -> &'static str {
                match self {
                    $(FaultKind::$name => $text,)*
                }
            }
        }
    };
}

kinds! {
    /// Two subgroups touch an element, one of them writes, and nothing orders them.
    DataRace = "data-race",
    /// Two lanes of a subgroup do.
    LaneRace = "lane-race",
    /// An element outside its buffer.
    OutOfBounds = "out-of-bounds",
    /// A vector access whose address isn't a multiple of its size (of 16 bytes if it is longer),
    /// or that isn't contiguous in the buffer's layout.
    Misaligned = "misaligned",
    /// A read of shared or private memory that nobody wrote.
    Uninitialised = "uninitialised",
    /// A read of an element of a poisoned buffer that nobody wrote.
    Poisoned = "poisoned",
    /// An access to what an asynchronous copy is writing, or a read of an accumulator that an
    /// asynchronous atom is computing.
    InFlight = "in-flight",
    /// An asynchronous atom reads a generic write with no proxy fence between.
    ProxyFence = "proxy-fence",
    /// Not all participants of a barrier arrive, or not at the same statement.
    BarrierDivergence = "barrier-divergence",
    /// Not all lanes or subgroups take part in a collective or an atom, or not with the same
    /// operands.
    NonUniform = "non-uniform",
    /// Everybody waits.
    NoProgress = "no-progress",
    /// More statements than allowed.
    StepLimit = "step-limit",
    /// An mbarrier is used before its initialisation, initialised twice, or gets more arrivals
    /// or bytes than its phase takes.
    Mbarrier = "mbarrier",
    /// A wait leaves one of its tokens in flight.
    WaitOrder = "wait-order",
    /// A group ends while copies for it are in flight.
    Unfinished = "unfinished",
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A fault and where it happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// Number of the statement in the order of the text, from 0.
    pub statement: usize,
    /// The statement's first line.
    pub text: String,
    /// Linear number of the group in the launch.
    pub group: u64,
    /// Subgroup in the group.
    pub subgroup: u32,
    /// Lane, if one lane is at fault.
    pub lane: Option<u32>,
    /// Name of the memory and the element in it (logical, for shared buffers).
    pub address: Option<(String, i64)>,
    /// The other party, sizes, states.
    pub detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kind, statement, text, group, subgroup, .. } = self;
        write!(f, "[{kind}] statement {statement} `{text}`, group {group}, subgroup {subgroup}")?;
        if let Some(lane) = self.lane {
            write!(f, ", lane {lane}")?;
        }
        if let Some((memory, element)) = &self.address {
            write!(f, ", {memory}[{element}]")?;
        }
        write!(f, ": {}", self.detail)
    }
}

/// Why a run has no result.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum SimError {
    /// The kernel breaks rules of the validator.
    #[error("the kernel isn't valid: {}", .0.first().map(ToString::to_string).unwrap_or_default())]
    Invalid(Vec<ValidateError>),
    /// The arguments don't fit the kernel.
    #[error("argument {index} `{name}`: {message}")]
    Argument {
        /// Position.
        index: usize,
        /// Name in the kernel.
        name: String,
        /// What is wrong.
        message: String,
    },
    /// The grid doesn't fit.
    #[error("the grid: {0}")]
    Grid(String),
    /// A fault at run time. Buffers hold what was written before it.
    #[error("{0}")]
    Fault(Box<Fault>),
}

impl SimError {
    /// The kind of a fault at run time.
    pub fn kind(&self) -> Option<FaultKind> {
        match self {
            SimError::Fault(fault) => Some(fault.kind),
            _ => None,
        }
    }
}

/// A fault before its place is known.
#[derive(Debug)]
pub(super) struct Trap {
    pub kind: FaultKind,
    pub lane: Option<u32>,
    pub address: Option<(String, i64)>,
    pub detail: String,
}

/// A step that may trap.
pub(super) type Step<T> = Result<T, Box<Trap>>;

pub(super) fn trap<T>(kind: FaultKind, detail: impl Into<String>) -> Step<T> {
    Err(Box::new(Trap { kind, lane: None, address: None, detail: detail.into() }))
}
