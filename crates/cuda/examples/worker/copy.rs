//! The fastest copy: a kernel of our own, and the driver's.

use std::sync::Arc;

use serde_json::{Value, json};
use tilewright_cuda::driver::Context;
use tilewright_cuda::{Ptx, PtxTarget};

use crate::case::Error;
use crate::search::median;

/// Copies 16 bytes per thread and trip with a grid that fills the machine.
pub fn copy(context: &Arc<Context>, bytes: u64) -> Result<Value, Error> {
    let ptx = |threads: u32, unroll: u32| {
        let mut body = String::new();
        for u in 0..unroll {
            body += &format!(
                "    ld.global.nc.v4.u32 {{%r{a},%r{b},%r{c},%r{d}}}, [%rd1+{o}];\n",
                a = 10 + 4 * u,
                b = 11 + 4 * u,
                c = 12 + 4 * u,
                d = 13 + 4 * u,
                o = u * 16 * threads
            );
        }
        for u in 0..unroll {
            body += &format!(
                "    st.global.v4.u32 [%rd2+{o}], {{%r{a},%r{b},%r{c},%r{d}}};\n",
                a = 10 + 4 * u,
                b = 11 + 4 * u,
                c = 12 + 4 * u,
                d = 13 + 4 * u,
                o = u * 16 * threads
            );
        }
        Ptx {
            text: format!(
                ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry copy(.param .u64 a, .param .u64 b)\n.maxntid {threads},1,1\n{{\n    .reg .b32 %r<200>;\n    .reg .b64 %rd<8>;\n    ld.param.u64 %rd1, [a];\n    ld.param.u64 %rd2, [b];\n    cvta.to.global.u64 %rd1, %rd1;\n    cvta.to.global.u64 %rd2, %rd2;\n    mov.u32 %r1, %ctaid.x;\n    mov.u32 %r2, %tid.x;\n    mul.wide.u32 %rd3, %r1, {};\n    mul.wide.u32 %rd4, %r2, 16;\n    add.s64 %rd3, %rd3, %rd4;\n    add.s64 %rd1, %rd1, %rd3;\n    add.s64 %rd2, %rd2, %rd3;\n{body}    ret;\n}}\n",
                threads * 16 * unroll
            ),
            target: PtxTarget::BASE,
            entry: "copy".into(),
            threads,
            shared_bytes: 0,
            cluster: 1,
            dependent: false,
        }
    };
    let (a, b) = (context.alloc(bytes as usize)?, context.alloc(bytes as usize)?);
    a.fill(1)?;
    let mut best = (f64::INFINITY, 0, 0);
    for threads in [128u32, 256, 512, 1024] {
        for unroll in [1u32, 2, 4, 8] {
            let per = u64::from(threads * 16 * unroll);
            if !bytes.is_multiple_of(per) {
                continue;
            }
            let function = context.load(&ptx(threads, unroll))?;
            let mut words = vec![a.pointer(), b.pointer()];
            let mut samples = Vec::new();
            for _ in 0..5 {
                let us = context.time(|| {
                    for _ in 0..5 {
                        // SAFETY: the grid covers exactly `bytes`.
                        unsafe { function.launch([(bytes / per) as u32, 1, 1], &mut words)? };
                    }
                    Ok(())
                })?;
                samples.push(us / 5.0);
            }
            let us = median(samples);
            if us < best.0 {
                best = (us, threads, unroll);
            }
        }
    }
    Ok(json!({ "us": best.0, "threads": best.1, "unroll": best.2,
               "tb_per_s": 2.0 * bytes as f64 / best.0 * 1e-6 }))
}

/// Times an empty kernel of `groups` groups, in a graph.
pub fn empty(context: &Arc<Context>, groups: u32) -> Result<Value, Error> {
    let text = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry empty()\n\
                .maxntid 128,1,1\n{\n    ret;\n}\n";
    let ptx = Ptx {
        text: text.to_string(),
        target: PtxTarget::BASE,
        entry: "empty".to_string(),
        threads: 128,
        shared_bytes: 0,
        cluster: 1,
        dependent: false,
    };
    let function = context.load(&ptx)?;
    // SAFETY: the kernel touches nothing.
    let one = |_| unsafe { function.launch([groups, 1, 1], &mut []) };
    let graph = context.capture(|| (0..500).try_for_each(one))?;
    graph.launch()?;
    let sample = |_| Ok(context.time(|| graph.launch())? / 500.0);
    let us = median((0..5).map(sample).collect::<Result<Vec<f64>, Error>>()?);
    Ok(json!({ "us": us }))
}
