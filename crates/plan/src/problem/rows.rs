//! The row problem.

use std::collections::HashSet;

use tilewright_ir::facts::{Domain, DomainKind, Fact, Payload, RowFacts, RowVariant};
use tilewright_ir::program::{Access, Bounds, Extent, Op, OrderPolicy, ReduceOp, Strides, ValueId};
use tilewright_ir::{DType, Program};

use super::mix::{OpMix, definitions, op_mix};
use super::moments::moments;
use crate::request::{PlanError, Request};

/// Numbers of a row program.
#[derive(Clone, PartialEq, Debug)]
pub struct RowProblem {
    /// Program instances at the nominal sizes.
    pub programs: u64,
    /// Instances along the innermost grid dimension, whose neighbours may share a group.
    pub inner: u64,
    /// Whether the number of instances holds for every launch.
    pub static_grid: bool,
    /// Columns (N) at the nominal sizes.
    pub columns: u64,
    /// Most columns that the program allows; the length for which legality must hold.
    pub columns_max: u64,
    /// Element type of the widest column tile that is loaded or stored.
    pub dtype: DType,
    /// Type in which the columns are computed.
    pub compute: DType,
    /// Reductions in order of execution.
    pub reductions: Vec<ReductionNumbers>,
    /// Domains when every phase reads its inputs again.
    pub reload: VariantNumbers,
    /// Domains when inputs that several phases read are copied once.
    pub cache: VariantNumbers,
    /// Whether some input is read by several phases, so that the two variants differ.
    pub reuses: bool,
    /// The inputs that the cache variant copies.
    pub copied: CopiedNumbers,
    /// Whether some tensor is read and written.
    pub updates: bool,
    /// Whether the reductions are a sum and the squares about its mean ([`moments`]).
    pub moments: bool,
}

/// What the cache variant copies, as asynchronous copies to shared memory would.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopiedNumbers {
    /// Bytes of one column over all inputs that are copied; 0 if one of them can't go as whole
    /// copies.
    pub bytes: u64,
    /// Bytes of the widest and of the narrowest element.
    pub element: [u64; 2],
    /// Consecutive elements for which every copy is proved whole and aligned.
    pub aligned: u64,
}

/// A reduction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReductionNumbers {
    /// The fold.
    pub fold: ReduceOp,
    /// Type in which it accumulates.
    pub dtype: DType,
    /// Whether its elements may be combined in any order.
    pub unordered: bool,
}

/// Numbers of one reuse choice.
#[derive(Clone, PartialEq, Debug)]
pub struct VariantNumbers {
    /// Domains in execution order.
    pub domains: Vec<DomainNumbers>,
    /// Tiles that are kept as stripes.
    pub striped_tiles: u64,
    /// 4-byte scalars that one slot takes over all stripes (an f64 takes two, a 16-bit type one).
    pub slot_scalars: u64,
    /// Bytes that one slot takes over all stripes.
    pub slot_bytes: u64,
    /// 4-byte scalars that one slot of the loads ahead of the first reduction takes.
    pub ahead_scalars: u64,
    /// Bytes that one slot of them takes.
    pub ahead_bytes: u64,
    /// Payload bytes of one column, or why they aren't known.
    pub payload: Fact<Payload>,
}

/// Numbers of one domain, per element.
#[derive(Clone, PartialEq, Debug)]
pub struct DomainNumbers {
    /// What it does.
    pub kind: DomainKind,
    /// Distinct global loads: the value, its bytes, and whether it is the same for every program
    /// (a per-column vector such as gamma).
    pub loads: Vec<LoadNumbers>,
    /// Bytes read from stripes.
    pub stripe_read_bytes: u64,
    /// Bytes written to stripes.
    pub stripe_write_bytes: u64,
    /// Bytes stored to tensors.
    pub store_bytes: u64,
    /// Per-row scalars read.
    pub scalars: u64,
    /// Operations per element.
    pub mix: OpMix,
    /// What it folds or stores is a tile that an earlier domain kept or an input as it is: nothing
    /// is computed per element, whatever `mix` counts for the kept tile.
    pub reads_its_root: bool,
    /// The reduction reads the tile that the domain before it fills.
    pub follows_its_tile: bool,
}

/// One global load of a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadNumbers {
    /// The loaded value.
    pub value: ValueId,
    /// Bytes per element.
    pub bytes: u64,
    /// Whether every program instance reads the same elements.
    pub shared: bool,
}

impl DomainNumbers {
    /// Whether it is a reduction.
    pub fn is_reduction(&self) -> bool {
        matches!(self.kind, DomainKind::Reduce(_))
    }
}

impl RowProblem {
    /// Takes the numbers of a row program.
    ///
    /// # Errors
    /// A size isn't known and the request has no nominal size for it.
    pub fn new(request: &Request<'_>, facts: &RowFacts) -> Result<Self, PlanError> {
        let program = request.program;
        let (mut programs, mut inner): (u64, u64) = (1, 1);
        for (extent, step) in &facts.grid {
            let extent = request.resolve(*extent)?;
            let step = request.resolve(*step)?.max(1);
            inner = extent.div_ceil(step);
            programs = programs.saturating_mul(inner);
        }
        let reductions = facts
            .reductions
            .iter()
            .map(|r| ReductionNumbers {
                fold: r.fold,
                dtype: r.dtype,
                unordered: matches!(
                    program.ops.get(r.op).map(|data| &data.op),
                    Some(Op::Reduce { order: OrderPolicy::UnorderedTree, .. })
                ),
            })
            .collect();
        let reload = VariantNumbers::new(program, facts, &facts.reload);
        let cache = VariantNumbers::new(program, facts, &facts.cache);
        let compute = compute_type(program, facts);
        let known = |e: &Extent| program.known(*e).is_some();
        Ok(RowProblem {
            programs,
            inner,
            static_grid: facts.grid.iter().all(|(extent, step)| known(extent) && known(step)),
            columns: request.resolve(facts.columns)?,
            columns_max: program.max_size(facts.columns),
            dtype: facts.dtype,
            compute,
            reductions,
            reuses: facts.reload != facts.cache,
            copied: copied_numbers(program, facts),
            updates: program.tensors.iter().any(|(_, t)| t.access == Access::InOut),
            moments: moments(program, facts).is_some(),
            reload,
            cache,
        })
    }

    /// The numbers of one reuse choice.
    pub fn variant(&self, cache: bool) -> &VariantNumbers {
        if cache { &self.cache } else { &self.reload }
    }
}

impl VariantNumbers {
    fn new(program: &Program, facts: &RowFacts, variant: &RowVariant) -> Self {
        let definitions = definitions(program);
        let bytes = |value: &ValueId| value_bytes(program, *value);
        let mut domains: Vec<DomainNumbers> = Vec::with_capacity(variant.domains.len());
        let mut filled: Option<ValueId> = None;
        for domain in &variant.domains {
            let leaves: HashSet<ValueId> =
                domain.loads.iter().chain(&domain.stripes).copied().collect();
            let root = root_value(program, domain);
            let mix = match (root, facts.axis) {
                (Some(root), Some(axis)) => op_mix(program, &definitions, root, &leaves, axis),
                _ => OpMix::default(),
            };
            let stripe = match domain.kind {
                DomainKind::Copy(v) | DomainKind::Materialize(v) => Some(v),
                DomainKind::Reduce(_) | DomainKind::Store(_) => None,
            };
            domains.push(DomainNumbers {
                reads_its_root: root.is_some_and(|root| leaves.contains(&root)),
                follows_its_tile: matches!(domain.kind, DomainKind::Reduce(_))
                    && filled.is_some_and(|tile| domain.stripes.contains(&tile)),
                kind: domain.kind.clone(),
                loads: domain
                    .loads
                    .iter()
                    .map(|v| LoadNumbers {
                        value: *v,
                        bytes: bytes(v),
                        shared: is_shared_load(program, definitions.get(v).copied()),
                    })
                    .collect(),
                stripe_read_bytes: domain.stripes.iter().map(bytes).sum(),
                stripe_write_bytes: stripe.as_ref().map(bytes).unwrap_or(0),
                store_bytes: match domain.kind {
                    DomainKind::Store(_) => root.as_ref().map(bytes).unwrap_or(0),
                    _ => 0,
                },
                scalars: domain.scalars.len() as u64,
                mix,
            });
            filled = stripe;
        }
        let ahead: Vec<u64> = ahead_loads(program, variant).iter().map(&bytes).collect();
        let stripes: Vec<u64> = variant
            .domains
            .iter()
            .filter_map(|d| match d.kind {
                DomainKind::Copy(v) | DomainKind::Materialize(v) => Some(value_bytes(program, v)),
                DomainKind::Reduce(_) | DomainKind::Store(_) => None,
            })
            .collect();
        VariantNumbers {
            domains,
            striped_tiles: variant.striped_tiles(),
            slot_scalars: stripes.iter().map(|b| b.div_ceil(4)).sum(),
            slot_bytes: stripes.iter().sum(),
            ahead_scalars: ahead.iter().map(|b| b.div_ceil(4)).sum(),
            ahead_bytes: ahead.iter().sum(),
            payload: variant.payload.clone(),
        }
    }
}

impl VariantNumbers {
    /// The same with nothing kept: what was kept is computed again where it is needed. Operations
    /// of what is computed again are counted once, so they are numbers from below.
    pub fn without_stripes(&self) -> VariantNumbers {
        let roots =
            |d: &&DomainNumbers| matches!(d.kind, DomainKind::Reduce(_) | DomainKind::Store(_));
        VariantNumbers {
            domains: self.domains.iter().filter(roots).cloned().collect(),
            striped_tiles: 0,
            slot_scalars: 0,
            slot_bytes: 0,
            ..self.clone()
        }
    }
}

/// Inputs that a phase after the first reduction loads and none before or in it does, so that they
/// may be loaded ahead of its end: in the order of their first use. What is gathered, or read from
/// a tensor that is also written, stays where it is.
pub fn ahead_loads(program: &Program, variant: &RowVariant) -> Vec<ValueId> {
    let domains = &variant.domains;
    let Some(first) = domains.iter().position(|d| matches!(d.kind, DomainKind::Reduce(_))) else {
        return Vec::new();
    };
    let (before, after) = domains.split_at(first + 1);
    let definitions = definitions(program);
    let mut found: Vec<ValueId> = Vec::new();
    for value in after.iter().flat_map(|d| &d.loads) {
        let plain = match definitions.get(value).map(|op| &program.ops[*op].op) {
            Some(Op::Load { tensor, coords, .. }) => {
                program.tensors[*tensor].access == Access::In
                    && coords.iter().all(|c| c.gather.is_none())
            }
            _ => false,
        };
        let loaded = before.iter().any(|d| d.loads.contains(value) || d.stripes.contains(value));
        if plain && !loaded && !found.contains(value) {
            found.push(*value);
        }
    }
    found
}

/// The inputs that [`CopiedNumbers`] counts: what the cache variant copies into stripes.
pub fn copied_loads(variant: &RowVariant) -> Vec<ValueId> {
    let copies = variant.domains.iter().filter_map(|d| match d.kind {
        DomainKind::Copy(value) => Some(value),
        _ => None,
    });
    copies.collect()
}

fn copied_numbers(program: &Program, facts: &RowFacts) -> CopiedNumbers {
    let definitions = definitions(program);
    let mut out = CopiedNumbers { aligned: program.divisor(facts.columns), ..Default::default() };
    for value in copied_loads(&facts.cache) {
        let bytes = value_bytes(program, value);
        let load = definitions.get(&value).map(|op| &program.ops[*op].op);
        let aligned = load.map_or(0, |op| whole_elements(program, facts, op));
        if aligned == 0 {
            return CopiedNumbers::default();
        }
        out.aligned = gcd(out.aligned, aligned);
        out.element = match out.bytes {
            0 => [bytes, bytes],
            _ => [out.element[0].max(bytes), out.element[1].min(bytes)],
        };
        out.bytes += bytes;
    }
    out
}

/// Consecutive elements of a load's row for which every access is proved whole: the columns lie
/// one after another from an aligned start. 0 where they don't.
fn whole_elements(program: &Program, facts: &RowFacts, load: &Op) -> u64 {
    let Op::Load { tensor, coords, bounds } = load else { return 0 };
    let t = &program.tensors[*tensor];
    if t.access != Access::In || *bounds != Bounds::Assume {
        return 0;
    }
    let stride = |d: usize| match &t.strides {
        Strides::Explicit(strides) => program.divisor(strides[d]),
        Strides::Packed => {
            t.shape[d + 1..].iter().map(|e| program.divisor(*e)).fold(1, u64::saturating_mul)
        }
    };
    let unit = |d: usize| match &t.strides {
        Strides::Explicit(strides) => program.known(strides[d]) == Some(1),
        Strides::Packed => d + 1 == t.shape.len(),
    };
    let mut aligned = t.align / t.dtype.bytes().max(1);
    for (d, coord) in coords.iter().enumerate() {
        if coord.gather.is_some() {
            return 0;
        }
        if coord.axis.is_some() && coord.axis == facts.axis {
            if !unit(d) || coord.origin.constant != 0 || !coord.origin.terms.is_empty() {
                return 0;
            }
        } else {
            aligned = gcd(aligned, stride(d));
        }
    }
    aligned
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The type whose size sets how many columns a vector holds: f64 if any column is computed in it,
/// else the accumulator of the element type.
fn compute_type(program: &Program, facts: &RowFacts) -> DType {
    let wide = program.values.iter().any(|(_, value)| {
        value.ty.dtype == DType::F64 && facts.axis.is_none_or(|a| value.ty.axes.contains(&a))
    });
    if wide { DType::F64 } else { facts.dtype.accumulator() }
}

/// Storage of one element of a value; a truth value takes one byte.
fn value_bytes(program: &Program, value: ValueId) -> u64 {
    program.values.get(value).map_or(4, |v| v.ty.dtype.bytes().max(1))
}

/// The value that a domain computes.
fn root_value(program: &Program, domain: &Domain) -> Option<ValueId> {
    match domain.kind {
        DomainKind::Copy(v) | DomainKind::Materialize(v) => Some(v),
        DomainKind::Reduce(op) | DomainKind::Store(op) => match program.ops.get(op)?.op {
            Op::Reduce { value, .. } | Op::Store { value, .. } => Some(value),
            _ => None,
        },
    }
}

/// Whether a load's coordinates mention no grid index, so that every instance reads the same.
pub fn is_shared_load(program: &Program, load: Option<tilewright_ir::program::OpId>) -> bool {
    let Some(data) = load.and_then(|op| program.ops.get(op)) else { return false };
    match &data.op {
        Op::Load { coords, .. } => coords.iter().all(|c| {
            c.gather.is_none() && c.origin.terms.iter().all(|(i, _)| !program.grid.contains(i))
        }),
        _ => false,
    }
}
