//! The names of the rules.

use std::fmt;

macro_rules! rules {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// A rule that every program obeys.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Rule {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Rule] = &[$(Rule::$variant,)+];

            /// The name in messages.
            pub fn name(self) -> &'static str {
                match self {
                    $(Rule::$variant => $name,)+
                }
            }

            /// What the rule says.
            pub fn text(self) -> &'static str {
                match self {
                    $(Rule::$variant => concat!($($doc),+).trim_ascii(),)+
                }
            }
        }
    };
}

rules! {
    /// Every id opens an element of its arena.
    DanglingId = "dangling-id",
    /// Every operation is in exactly one block.
    OpPlacement = "op-placement",
    /// Loops are nested at most 16 deep.
    Nesting = "nesting",
    /// Names are words of letters, digits and `_`, at most 128 long; a declaration's name starts with no digit.
    NameForm = "name-form",
    /// No two dimensions, parameters, axes or values share a name, and no index variable hides another.
    NameUnique = "name-unique",
    /// A divisor isn't 0.
    DimDivisor = "dim-divisor",
    /// A block extent isn't 0.
    DimBlock = "dim-block",
    /// Sizes, bounds and strides are at most 2^48.
    SizeLimit = "size-limit",
    /// A tensor or scalar parameter isn't bool.
    ParameterDtype = "parameter-dtype",
    /// A tensor has at most 8 dimensions.
    TensorRank = "tensor-rank",
    /// A tile has at most 16 axes.
    TileRank = "tile-rank",
    /// A tensor's sizes and strides don't depend on a block extent.
    TensorExtent = "tensor-extent",
    /// There is one stride per dimension, and none is 0 where the tensor is written.
    TensorStrides = "tensor-strides",
    /// An alignment is a power of two and at least the element size.
    TensorAlign = "tensor-align",
    /// Every output is stored.
    OutputUnwritten = "output-unwritten",
    /// A step isn't 0.
    IndexStep = "index-step",
    /// An index variable belongs to the grid or to one loop, once.
    IndexOwner = "index-owner",
    /// An index variable is used under its loop only.
    IndexScope = "index-scope",
    /// An operation has as many results as its kind defines.
    ResultCount = "result-count",
    /// Every value is defined exactly once.
    SingleDefinition = "single-definition",
    /// A value is used after its definition, in the same block or an inner one.
    Dominance = "dominance",
    /// A value's type is the one that its operation gives.
    ResultType = "result-type",
    /// No axis occurs twice in a type.
    AxesDistinct = "axes-distinct",
    /// A size read as an i32 is at most 2^31 − 1.
    SizeRange = "size-range",
    /// An origin names no index variable twice and has no zero coefficient.
    OriginTerms = "origin-terms",
    /// A literal is exactly representable in its dtype.
    ConstValue = "const-value",
    /// A fill is exactly representable in the tensor's dtype; a store's is 0.
    FillValue = "fill-value",
    /// A load doesn't read an output.
    LoadAccess = "load-access",
    /// A store doesn't write an input.
    StoreAccess = "store-access",
    /// There is one coordinate per dimension.
    CoordCount = "coord-count",
    /// A gathered index is an i32 tile.
    GatherDtype = "gather-dtype",
    /// A store has no gathered coordinate.
    StoreGather = "store-gather",
    /// A stored tile has the tensor's dtype.
    StoreDtype = "store-dtype",
    /// Each axis of a stored tile runs along exactly one coordinate.
    StoreAxes = "store-axes",
    /// An access with assumed bounds stays inside the tensor where all sizes are known.
    AssumedBounds = "assumed-bounds",
    /// A map has as many operands as its operation takes.
    MapArity = "map-arity",
    /// The operands of a map have the same dtype, one that the operation is defined on.
    MapDtype = "map-dtype",
    /// The operands of a map have the same axes.
    MapAxes = "map-axes",
    /// A cast isn't to bool.
    CastBool = "cast-bool",
    /// A broadcast keeps every axis of its operand.
    BroadcastAxes = "broadcast-axes",
    /// The folded axis is one of the tile's.
    ReduceAxis = "reduce-axis",
    /// A reduction is over numbers.
    ReduceDtype = "reduce-dtype",
    /// Operands of a matrix product share a float dtype, and the accumulator has its accumulator type.
    MmaDtype = "mma-dtype",
    /// Each contracted axis is in both operands, at least one is, and each accumulator axis is in an operand.
    MmaAxes = "mma-axes",
    /// A reindex replaces axes of the tile by new ones of the same extent.
    ReindexAxes = "reindex-axes",
    /// A pipeline window isn't 0.
    LoopWindow = "loop-window",
    /// Initial, carried and final values have the same type, axes in the same order, and the next one has the same axes.
    LoopCarry = "loop-carry",
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
