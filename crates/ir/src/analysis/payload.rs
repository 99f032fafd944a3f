//! Payload bytes of the domains of a row program (reference system 5.3).
//!
//! Per element of a domain: each distinct access to global memory counts once, so `x*x` is one
//! read; across domains nothing is shared. A per-row scalar that a domain reads counts as a
//! private read. Carries, the set-up of scalars and collectives are excluded.

use super::uses::Uses;
use crate::facts::{Domain, DomainKind, Fact, Payload};
use crate::program::*;

/// Bytes of one column over all domains, or why they aren't known.
pub(super) fn payload(program: &Program, uses: &Uses, domains: &[Domain]) -> Fact<Payload> {
    let mut total = Payload::default();
    for domain in domains {
        let mut accesses: Vec<&Op> = Vec::new();
        for load in &domain.loads {
            let Some(op) = uses.op(*load) else { continue };
            let op = &program.ops[op].op;
            if accesses.contains(&op) {
                continue;
            }
            accesses.push(op);
            total.global_read += program.values[*load].ty.dtype.bytes();
        }
        for value in domain.stripes.iter().chain(&domain.scalars) {
            match stored_bytes(program, *value) {
                Ok(bytes) => total.private_read += bytes,
                Err(reason) => return Fact::Unknown(reason),
            }
        }
        match domain.kind {
            DomainKind::Copy(value) | DomainKind::Materialize(value) => {
                match stored_bytes(program, value) {
                    Ok(bytes) => total.private_write += bytes,
                    Err(reason) => return Fact::Unknown(reason),
                }
            }
            DomainKind::Store(op) => {
                if let Op::Store { value, .. } = &program.ops[op].op {
                    total.global_write += program.values[*value].ty.dtype.bytes();
                }
            }
            DomainKind::Reduce(_) => {}
        }
    }
    Fact::Proved(total)
}

/// Size of a value in private storage. A condition has none: that isn't zero bytes.
fn stored_bytes(program: &Program, value: ValueId) -> Result<u64, String> {
    let value = &program.values[value];
    match value.ty.dtype.bytes() {
        0 => Err(format!("%{} is a condition, whose storage has no stated size", value.name)),
        bytes => Ok(bytes),
    }
}
