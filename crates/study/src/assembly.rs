//! Kernels assembled ahead by several processes.
//!
//! A CUDA driver assembles one text at a time in a process, a tenth of a second and more each, and
//! keeps what it made in a cache on disk that all processes of a user share. So a case's candidates
//! are dealt out to workers of this program that compile and run nothing; the worker that measures
//! then finds its kernels in the cache. Where the cache is off the measuring worker assembles all
//! of them again: slower, never wrong.

use crate::case::Case;
use crate::spec::Space;
use crate::worker::{Launch, Process, Reply, Request};
use std::collections::BTreeMap;
use std::time::Duration;

/// Fewest candidates for which processes are started.
const MANY: usize = 16;
/// Fewest candidates of a process.
const SHARE: usize = 4;

/// The processes, started when they are first needed.
#[derive(Default)]
pub struct Assemblers {
    processes: Vec<Process>,
}

impl Assemblers {
    /// Compiles candidates of a case, (slot, index in the space) each, and returns how many
    /// nanoseconds a slot took in the process that did it. Failures are left to the worker that
    /// measures, which compiles what isn't in the cache itself: a process that fails is ended.
    pub fn assemble(
        &mut self,
        launch: &Launch,
        (case, space): (&Case, &Space),
        slots: &[[usize; 2]],
        jobs: usize,
        patience: Duration,
    ) -> BTreeMap<usize, u64> {
        let mut took = BTreeMap::new();
        // One core is left to this process.
        let count = jobs.saturating_sub(1).min(slots.len() / SHARE);
        if slots.len() < MANY || count < 2 {
            return took;
        }
        let missing = count.saturating_sub(self.processes.len());
        let started: Vec<Process> =
            (0..missing).filter_map(|_| Process::start(launch).ok()).collect();
        self.processes.extend(started.into_iter().filter_map(|mut process| {
            matches!(process.next(patience), Ok(Reply::Ready { .. })).then_some(process)
        }));
        let count = count.min(self.processes.len()).max(1);
        let mut busy = Vec::new();
        for (at, mut process) in std::mem::take(&mut self.processes).into_iter().enumerate() {
            if at >= count {
                self.processes.push(process);
                continue;
            }
            // Without tensors: nothing runs there.
            let open = Request::Open { case: case.clone(), space: space.clone(), seed: 0, sets: 0 };
            let share: Vec<[usize; 2]> = slots.iter().skip(at).step_by(count).copied().collect();
            if process.send(&open).is_ok() {
                busy.push((process, share));
            }
        }
        let busy: Vec<Process> = busy
            .into_iter()
            .filter_map(|(mut process, slots)| {
                let opened = matches!(process.next(patience), Ok(Reply::Opened { .. }));
                let compile = Request::Compile { slots, jobs: 1, listing: false };
                (opened && process.send(&compile).is_ok()).then_some(process)
            })
            .collect();
        for mut process in busy {
            let whole = loop {
                match process.next(patience) {
                    Ok(Reply::Done) => break true,
                    Ok(Reply::Compiled { slot, compile_ns, .. }) => {
                        took.insert(slot, compile_ns);
                    }
                    Ok(Reply::Rejected { .. }) => {}
                    _ => break false,
                }
            };
            if whole {
                self.processes.push(process);
            }
        }
        took
    }
}
