//! What a lowering takes from the target.

use tilewright_ir::Program;
use tilewright_plan::Target;
use tilewright_plan::mapping::MatrixBasis;

use super::{Join, Options, Pack, Sums, Tail};

impl Options {
    /// The options of every kernel for a target, whoever lowers it: a device, or a test of what
    /// the device will run.
    pub fn for_target(target: &Target) -> Options {
        let Some(gpu) = target.gpu_facts() else {
            return Options { pack: Pack::InTurn, sums: Sums::Blocks, ..Options::default() };
        };
        Options {
            shared_limit: gpu.shared_bytes,
            join: if gpu.registers_per_core.is_some() { Join::Lane } else { Join::Collective },
            // A simdgroup branches; other machines mask.
            tail: match gpu.matrix.contains(&MatrixBasis::Simdgroup) {
                true => Tail::Packs,
                false => Tail::Guards,
            },
            pack: Pack::Beside,
            sums: Sums::Running,
        }
    }
}

/// What plans take the start of every tensor on a GPU to be a multiple of, in bytes: the widest
/// access of a lane. Buffers start at multiples of 256.
const RESIDENT_ALIGN: u64 = 16;

/// The program with what holds of tensors on the target: on a GPU they lie in buffers of the
/// device, so their start is aligned for vectors, which a launch checks.
pub fn resident(program: &Program, target: &Target) -> Program {
    let mut program = program.clone();
    if target.gpu_facts().is_some() {
        for (_, tensor) in program.tensors.iter_mut() {
            tensor.align = tensor.align.max(RESIDENT_ALIGN);
        }
    }
    program
}
