//! A neutral second-level cache before a measurement.
//!
//! Lines that a kernel marks to be evicted last stay marked when it has ended, for as long as
//! nothing else of that kind needs their place: on an H200 a kernel without hints that ran on tensors
//! of 64 MiB after one that keeps them took 32.7 µs, and 34.2 otherwise, in each of twenty batches.
//! So what is timed depends on what ran before, in any process. A reset displaces all marked lines by
//! lines of its own, and then takes the marks off these.

use crate::driver::{Context, CudaError, DeviceBuffer, Function};
use crate::{Ptx, PtxTarget};
use std::sync::Arc;

/// Bytes of a line of the second-level cache.
const LINE: u64 = 128;
/// Threads of a group; each has a line.
const THREADS: u32 = 256;
/// Lines of its own are this many times what the cache holds, since lines go to places of a hash.
const FILLS: u64 = 2;
const ENTRY: &str = "tilewright_residency_reset";

/// What a reset needs.
pub struct ResidencyReset {
    scratch: DeviceBuffer,
    lines: u64,
    kernel: Function,
}

impl ResidencyReset {
    /// Bytes of device memory that a reset takes.
    pub fn bytes(context: &Context) -> u64 {
        (FILLS * context.facts().l2_bytes).next_multiple_of(LINE).max(LINE)
    }

    /// Allocates twice the size of the second-level cache, and loads the kernel.
    ///
    /// # Errors
    /// The driver's words.
    pub fn new(context: &Arc<Context>) -> Result<Self, CudaError> {
        let bytes = Self::bytes(context);
        let scratch = context.alloc(bytes as usize)?;
        scratch.fill(0)?;
        Ok(ResidencyReset { scratch, lines: bytes / LINE, kernel: context.load(&kernel())? })
    }

    /// Queues a reset; what is queued later finds no line that is marked.
    ///
    /// # Errors
    /// The driver's words.
    pub fn queue(&self) -> Result<(), CudaError> {
        let groups = self.lines.div_ceil(u64::from(THREADS)) as u32;
        for demote in [0, 1] {
            let mut words = [self.scratch.pointer(), self.lines, demote];
            // SAFETY: the kernel's three parameters; it touches the lines of `scratch` alone, and
            // freeing memory waits for the device.
            unsafe { self.kernel.launch([groups, 1, 1], &mut words)? };
        }
        Ok(())
    }
}

/// Marks the lines of a buffer to be evicted last, by reading them, or takes the marks off.
///
/// Parameters: the buffer, its lines, and whether to take marks off.
pub fn kernel() -> Ptx {
    let reads: String = (0..4)
        .map(|sector| {
            let offset = sector * 32;
            format!("    ld.global.L2::cache_hint.b32 %r{sector}, [%d3+{offset}], %d4;\n")
        })
        .collect();
    // The store never happens on zeros, but the assembler can't know, so the reads stay.
    let text = format!(
        ".version 7.4
.target sm_80
.address_size 64

.visible .entry {ENTRY}(.param .u64 p_buffer, .param .u64 p_lines, .param .u64 p_demote)
.maxntid {THREADS}, 1, 1
{{
    .reg .pred %p<3>;
    .reg .b32 %r<7>;
    .reg .b64 %d<6>;
    mov.u32 %r4, %ctaid.x;
    mov.u32 %r5, %tid.x;
    cvt.u64.u32 %d0, %r5;
    mad.wide.u32 %d0, %r4, {THREADS}, %d0;
    ld.param.u64 %d1, [p_lines];
    setp.ge.u64 %p0, %d0, %d1;
    @%p0 bra END;
    ld.param.u64 %d2, [p_buffer];
    cvta.to.global.u64 %d2, %d2;
    shl.b64 %d3, %d0, 7;
    add.s64 %d3, %d2, %d3;
    ld.param.u64 %d5, [p_demote];
    setp.ne.u64 %p1, %d5, 0;
    @%p1 bra DEMOTE;
    createpolicy.fractional.L2::evict_last.b64 %d4, 1.0;
{reads}    or.b32 %r0, %r0, %r1;
    or.b32 %r2, %r2, %r3;
    or.b32 %r0, %r0, %r2;
    setp.ne.b32 %p2, %r0, 0;
    @%p2 st.global.b32 [%d3], %r0;
    bra END;
DEMOTE:
    applypriority.global.L2::evict_normal [%d3], {LINE};
END:
    ret;
}}
"
    );
    Ptx {
        text,
        target: PtxTarget::CACHE_HINTS,
        entry: ENTRY.to_string(),
        threads: THREADS,
        shared_bytes: 0,
        cluster: 1,
        dependent: false,
    }
}
