//! Why a program can't be lowered with a mapping.

/// The rule that a request broke. Names are stable; they appear in messages and in records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// The mapping is for another family than the program's facts say.
    Family,
    /// A number in the mapping is zero or out of its range.
    MappingRange,
    /// At most three grid dimensions.
    GridDimensions,
    /// The distance of successive grid or loop origins must be known.
    StepKnown,
    /// A size must be known (or have a small enough bound) for storage to be declared.
    ExtentKnown,
    /// Partial results of subgroups are read by one lane each.
    SubgroupsPerLane,
    /// Several programs share a group only if each has one subgroup.
    PackSingleSubgroup,
    /// Several accumulators, or a distributed fold, need a reduction in any order.
    UnorderedReduction,
    /// A tensor that is read and written must be read at the place and before it is written.
    InOutOrder,
    /// An operation that the family has no place for.
    Operation,
    /// A value is used at a position along an axis that the mapping doesn't distribute.
    Axis,
    /// A block must be a multiple of the atom and of the subgroup grid.
    ExactCover,
    /// An element type that the atoms don't have.
    AtomType,
    /// The mapping relies on a fact that isn't proved, or that these sizes don't give.
    UnprovedFact,
    /// Shared memory over the limit.
    SharedLimit,
    /// The lowering and the planner's closed form disagree: a defect of Tilewright.
    ClosedForm,
    /// The lowering made a kernel that the validator refuses: a defect of Tilewright.
    Invalid,
}

impl Rule {
    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            Rule::Family => "family",
            Rule::MappingRange => "mapping-range",
            Rule::GridDimensions => "grid-dimensions",
            Rule::StepKnown => "step-known",
            Rule::ExtentKnown => "extent-known",
            Rule::SubgroupsPerLane => "subgroups-per-lane",
            Rule::PackSingleSubgroup => "pack-single-subgroup",
            Rule::UnorderedReduction => "unordered-reduction",
            Rule::InOutOrder => "in-out-order",
            Rule::Operation => "operation",
            Rule::Axis => "axis",
            Rule::ExactCover => "exact-cover",
            Rule::AtomType => "atom-type",
            Rule::UnprovedFact => "unproved-fact",
            Rule::SharedLimit => "shared-limit",
            Rule::ClosedForm => "closed-form",
            Rule::Invalid => "invalid",
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A program that can't be lowered with a mapping.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{program}` can't be lowered with this mapping: {detail} (rule `{rule}`)")]
pub struct LowerError {
    /// Name of the program.
    pub program: String,
    /// The rule.
    pub rule: Rule,
    /// What broke it.
    pub detail: String,
}
