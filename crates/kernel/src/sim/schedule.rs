//! Runs the subgroups of a cluster to their ends.

use super::clock::{join, join_foreign};
use super::error::{Fault, FaultKind, SimError, Trap};
use super::exec::{Shared, Status, Subgroup};
use super::{Order, setup::Random};
use crate::flat::Inst;
use crate::kernel::{BarrierId, Scope};

/// Instructions of a turn where subgroups take turns.
const TURN: u64 = 24;

/// Runs all subgroups of the cluster; they are reset and ready.
pub(super) fn run(
    subgroups: &mut [Subgroup],
    shared: &mut Shared<'_>,
    order: Order,
    random: &mut Random,
    max_steps: u64,
) -> Result<(), SimError> {
    let mut last = subgroups.len() - 1;
    loop {
        let Some(turn) = pick(subgroups, order, random, &mut last) else {
            if subgroups.iter().all(|s| s.status == Some(Status::Done)) {
                return unfinished(subgroups, shared);
            }
            return Err(stuck(subgroups, shared));
        };
        let subgroup = &mut subgroups[last];
        let was = subgroup.status;
        subgroup.status = Some(Status::Ready);
        let left = max_steps.saturating_sub(shared.report.steps);
        if left == 0 {
            let trap = Trap {
                kind: FaultKind::StepLimit,
                lane: None,
                address: None,
                detail: format!("more than {max_steps} statements"),
            };
            return Err(fault(trap, subgroup, shared));
        }
        match subgroup.run(shared, turn.min(left)) {
            Ok(steps) => {
                shared.report.steps += steps;
                // A retried wait that still waits is no progress: it must not be tried for ever.
                subgroup.tried = steps == 0 && was == subgroup.status;
            }
            Err(trap) => return Err(fault(*trap, subgroup, shared)),
        }
        let progress = !subgroups[last].tried;
        match subgroups[last].status {
            Some(Status::AtBarrier(id)) => barrier(subgroups, shared, last, id)?,
            Some(Status::Arrived(id)) => {
                barrier(subgroups, shared, last, id)?;
                subgroups[last].status = Some(Status::Ready);
                subgroups[last].pc += 1;
            }
            Some(Status::AtBlock) => assemble(subgroups, shared, last)?,
            _ => {}
        }
        if progress {
            for subgroup in subgroups.iter_mut() {
                subgroup.tried = false;
            }
        }
    }
}

/// Chooses who runs next (into `last`) and for how long; `None` if nobody can.
fn pick(
    subgroups: &[Subgroup],
    order: Order,
    random: &mut Random,
    last: &mut usize,
) -> Option<u64> {
    let n = subgroups.len();
    let can = |i: &usize| {
        let subgroup = &subgroups[*i];
        match subgroup.status {
            Some(Status::Ready) => true,
            Some(Status::AtMbarrier(_)) => !subgroup.tried,
            _ => false,
        }
    };
    let start = *last;
    let (next, turn) = match order {
        Order::Forward => ((1..=n).map(|d| (start + d) % n).find(can), TURN),
        Order::Reverse => ((1..=n).map(|d| (start + n - d) % n).find(can), TURN),
        Order::RunAheadFirst => ((0..n).find(can), u64::MAX),
        Order::RunAheadLast => ((0..n).rev().find(can), u64::MAX),
        Order::Shuffled(_) => {
            let ready: Vec<usize> = (0..n).filter(can).collect();
            let turn = 1 + random.below(64);
            (ready.get(random.below(ready.len().max(1) as u64) as usize).copied(), turn)
        }
    };
    *last = next?;
    Some(turn)
}

/// Adds the place to a trap.
fn fault(trap: Trap, subgroup: &Subgroup, shared: &Shared<'_>) -> SimError {
    let statement = shared.code.statements[subgroup.pc] as usize;
    let mut text = String::from("end");
    let mut n = 0;
    shared.kernel.body.walk(&mut |stmt| {
        if n == statement {
            text = crate::text::statement(shared.kernel, stmt);
        }
        n += 1;
    });
    SimError::Fault(Box::new(Fault {
        kind: trap.kind,
        statement,
        text,
        group: shared.groups[subgroup.rank].linear,
        subgroup: subgroup.number,
        lane: trap.lane,
        address: trap.address,
        detail: trap.detail,
    }))
}

fn error(kind: FaultKind, detail: String, subgroup: &Subgroup, shared: &Shared<'_>) -> SimError {
    fault(Trap { kind, lane: None, address: None, detail }, subgroup, shared)
}

/// `subgroups[arrived]` is at a barrier: if all participants are, they pass.
fn barrier(
    subgroups: &mut [Subgroup],
    shared: &mut Shared<'_>,
    arrived: usize,
    id: BarrierId,
) -> Result<(), SimError> {
    let barrier = &shared.kernel.barriers[id];
    let rank = subgroups[arrived].rank;
    let here = |s: &Subgroup| match &s.arrival {
        Some(arrival) => arrival.barrier == id && !arrival.complete,
        None => s.status == Some(Status::AtBarrier(id)),
    };
    let at: Vec<usize> = (0..subgroups.len())
        .filter(|&i| {
            here(&subgroups[i]) && (barrier.scope == Scope::Cluster || subgroups[i].rank == rank)
        })
        .collect();
    let need = match barrier.scope {
        Scope::Cluster => subgroups.len(),
        _ => barrier.participants.unwrap_or(shared.kernel.subgroups) as usize,
    };
    if barrier.participants.is_none() {
        let statement = |i: usize| match &subgroups[i].arrival {
            Some(arrival) => arrival.statement,
            None => shared.code.statements[subgroups[i].pc],
        };
        if let Some(&other) = at.iter().find(|&&i| statement(i) != statement(arrived)) {
            let detail = format!(
                "subgroup {} is at another statement of the barrier (number {})",
                subgroups[other].number,
                statement(other)
            );
            let kind = FaultKind::BarrierDivergence;
            return Err(error(kind, detail, &subgroups[arrived], shared));
        }
    }
    if at.len() < need {
        return Ok(());
    }
    let mut clock = vec![0; subgroups[arrived].view.clock.len()];
    let mut fenced = clock.clone();
    let mut foreign = None;
    for &i in &at {
        let view = &subgroups[i].view;
        let (c, f, known) = match &subgroups[i].arrival {
            Some(arrival) => (&arrival.clock, &arrival.fenced, &arrival.foreign),
            None => (&view.clock, &view.fenced, &view.foreign),
        };
        join(&mut clock, c);
        join(&mut fenced, f);
        join_foreign(&mut foreign, known);
    }
    for &i in &at {
        let subgroup = &mut subgroups[i];
        if subgroup.status == Some(Status::AtBarrier(id)) {
            subgroup.arrival = None;
            subgroup.join(&clock, &fenced, &foreign);
            subgroup.status = Some(Status::Ready);
            subgroup.pc += 1;
        } else if let Some(arrival) = &mut subgroup.arrival {
            arrival.clock.clone_from(&clock);
            arrival.fenced.clone_from(&fenced);
            arrival.foreign.clone_from(&foreign);
            arrival.complete = true;
        }
    }
    shared.report.barriers += 1;
    Ok(())
}

/// `subgroups[arrived]` is at an asynchronous atom: if its block is, the block executes it.
fn assemble(
    subgroups: &mut [Subgroup],
    shared: &Shared<'_>,
    arrived: usize,
) -> Result<(), SimError> {
    let Inst::Multiply(multiply) = &shared.code.insts[subgroups[arrived].pc] else {
        return Ok(());
    };
    let size = match multiply.shape.atom.scope() {
        Scope::SubgroupBlock(size) => size as usize,
        _ => 1,
    };
    let first = arrived / size * size;
    let block = first..(first + size).min(subgroups.len());
    let pc = subgroups[arrived].pc;
    let operands = subgroups[arrived].operands(multiply);
    for i in block.clone() {
        let other = &subgroups[i];
        if other.status != Some(Status::AtBlock) {
            return Ok(());
        }
        if other.pc != pc || other.operands(multiply) != operands {
            let what = if other.pc == pc { "with other operands" } else { "at another atom" };
            let detail = format!("subgroup {} of the block is {what}", other.number);
            return Err(error(FaultKind::NonUniform, detail, &subgroups[arrived], shared));
        }
    }
    for subgroup in &mut subgroups[block] {
        subgroup.assembled = true;
        subgroup.status = Some(Status::Ready);
    }
    Ok(())
}

/// Nobody can run and not all are done: says why.
fn stuck(subgroups: &[Subgroup], shared: &Shared<'_>) -> SimError {
    let state = |s: &Subgroup| {
        let statement = shared.code.statements[s.pc];
        let what = match s.status {
            Some(Status::AtBarrier(id)) => {
                format!("waits at barrier `{}`", shared.kernel.barriers[id].name)
            }
            Some(Status::AtMbarrier(number)) => {
                let m = &shared.groups[s.rank].mbarriers[number];
                format!(
                    "waits at mbarrier number {number} (phase {}, {} arrivals and {} bytes \
                     missing)",
                    m.phase, m.arrivals, m.bytes
                )
            }
            Some(Status::AtBlock) => "waits for its block".to_string(),
            Some(Status::Ready | Status::Arrived(_)) | None => "is ready".to_string(),
            Some(Status::Done) => return format!("subgroup {} has ended", s.number),
        };
        format!("subgroup {} {what} at statement {statement}", s.number)
    };
    let is =
        |pick: fn(&Status) -> bool| subgroups.iter().find(|s| s.status.as_ref().is_some_and(pick));
    let (kind, at) = if let Some(s) = is(|s| matches!(s, Status::AtMbarrier(_))) {
        (FaultKind::NoProgress, s)
    } else if let Some(s) = is(|s| matches!(s, Status::AtBlock)) {
        (FaultKind::NonUniform, s)
    } else {
        let s = is(|s| matches!(s, Status::AtBarrier(_))).unwrap_or(&subgroups[0]);
        (FaultKind::BarrierDivergence, s)
    };
    let others: Vec<String> = subgroups.iter().take(16).map(state).collect();
    error(kind, others.join("; "), at, shared)
}

/// The cluster has ended: what others did to a group's shared memory must have been over before
/// the group ended, for then the memory is gone.
fn outlived(subgroups: &[Subgroup], shared: &Shared<'_>) -> Result<(), SimError> {
    for (rank, group) in shared.groups.iter().enumerate() {
        let own: Vec<&Subgroup> = subgroups.iter().filter(|s| s.rank == rank).collect();
        let cells = group.shared.iter().flat_map(|buffer| &buffer.cells);
        for access in cells.flat_map(|cell| cell.last(&shared.reads)) {
            let thread = usize::from(access.thread);
            let Some(other) = subgroups.get(thread).filter(|s| s.rank != rank) else { continue };
            let current = access.cluster == other.view.cluster;
            if current && !own.iter().any(|s| s.view.clock[thread] >= access.epoch) {
                let detail = format!(
                    "the group of rank {rank} may end before subgroup {} of rank {} has reached \
                     its shared memory",
                    other.number, other.rank
                );
                return Err(error(FaultKind::DataRace, detail, other, shared));
            }
        }
    }
    Ok(())
}

/// The cluster has ended: nothing may be in flight to it.
fn unfinished(subgroups: &[Subgroup], shared: &Shared<'_>) -> Result<(), SimError> {
    if shared.groups.len() > 1 {
        outlived(subgroups, shared)?;
    }
    for subgroup in subgroups {
        for (number, mbarrier) in shared.groups[subgroup.rank].mbarriers.iter().enumerate() {
            if !mbarrier.landing.is_empty() {
                let detail = format!("bulk copies to mbarrier number {number} are in flight");
                return Err(error(FaultKind::Unfinished, detail, subgroup, shared));
            }
        }
        let view = &subgroup.view;
        let finished = |agents: usize| {
            view.clock.get(agents * view.subgroups + view.thread).copied().unwrap_or(0)
        };
        if subgroup.copies > finished(1) || subgroup.atoms > finished(2) {
            let detail = "asynchronous copies or atoms of the subgroup are in flight".to_string();
            return Err(error(FaultKind::Unfinished, detail, subgroup, shared));
        }
    }
    Ok(())
}
