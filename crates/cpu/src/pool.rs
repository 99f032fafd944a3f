//! The thread pool: a launch spreads its groups over the calling thread and the workers.
//!
//! A launch cuts the groups into one segment per participant. Each takes chunks from its own
//! segment first (so that repeated launches find their data in the same core's caches) and then
//! helps with the others'. Nobody waits for a worker that hasn't come: when all chunks are taken
//! the launch is closed, and only workers inside are waited for. So a worker that sleeps or dies
//! costs speed, never progress.
//!
//! Workers spin at most [`SPIN`] after work and then park.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::error::CpuError;
use crate::scratch::Scratch;

/// How long an idle worker polls before it parks.
pub const SPIN: Duration = Duration::from_micros(200);

/// Most threads of a pool.
pub const MAX_THREADS: usize = 1024;

/// Chunks per segment: finer ones balance better, coarser ones touch shared lines less often.
const CHUNKS: u64 = 4;

/// Set in the state of a launch that takes no more participants.
const CLOSED: u64 = 1 << 31;

/// What the participants of a launch run: groups `first .. end` with a scratch memory.
pub type Work<'a> = &'a (dyn Fn(u64, u64, *mut u8) + Sync);

/// One to a cache line, so that participants don't disturb each other.
#[repr(align(128))]
#[derive(Default)]
struct Segment {
    next: AtomicU64,
    end: AtomicU64,
}

#[repr(align(128))]
#[derive(Default)]
struct Mailbox {
    /// Number of the newest launch that the worker is called to.
    ticket: AtomicU32,
    parked: AtomicBool,
    thread: OnceLock<Thread>,
}

/// The launch at hand. Written by the launching thread while the state is closed and nobody is
/// inside; read by participants between entering and leaving.
#[derive(Clone, Copy)]
struct Job {
    work: *const (dyn Fn(u64, u64, *mut u8) + Sync),
    participants: usize,
    chunk: u64,
    scratch_bytes: usize,
}

struct Shared {
    /// Launch number in the upper half, [`CLOSED`], participants inside below.
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    segments: Vec<Segment>,
    mailboxes: Vec<Mailbox>,
    stop: AtomicBool,
}

// SAFETY: `job` is the only field that isn't `Sync` by itself. It is written only by the thread
// that holds the launch lock, while the state is closed with nobody inside, and published by the
// release store that opens the state; participants read it after an acquire that entered.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `job` is only followed during the launch that set it, while the
// pointee (which is `Sync`) is borrowed by the launching thread.
unsafe impl Send for Shared {}

thread_local! {
    static CALLER_SCRATCH: UnsafeCell<Scratch> = const { UnsafeCell::new(Scratch::new()) };
    static CALLER_BUSY: Cell<bool> = const { Cell::new(false) };
}

/// Threads that run the groups of launches.
pub struct Pool {
    shared: Arc<Shared>,
    launch: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool of that many threads, the caller of a launch included.
    ///
    /// # Errors
    /// [`CpuError::System`] where a thread can't be started; [`CpuError::Threads`] for 0 or more
    /// than [`MAX_THREADS`].
    pub fn new(threads: usize) -> Result<Pool, CpuError> {
        if threads == 0 || threads > MAX_THREADS {
            return Err(CpuError::Threads { asked: threads, most: MAX_THREADS });
        }
        let shared = Arc::new(Shared {
            state: AtomicU64::new(CLOSED),
            job: UnsafeCell::new(None),
            segments: (0..threads).map(|_| Segment::default()).collect(),
            mailboxes: (1..threads).map(|_| Mailbox::default()).collect(),
            stop: AtomicBool::new(false),
        });
        let mut pool = Pool { shared: shared.clone(), launch: Mutex::new(()), workers: Vec::new() };
        for number in 1..threads {
            let shared = shared.clone();
            let handle = std::thread::Builder::new()
                .name(format!("tilewright-{number}"))
                .spawn(move || worker(&shared, number))
                .map_err(|source| CpuError::System {
                    what: "starting a worker thread".to_string(),
                    source,
                })?;
            pool.workers.push(handle);
        }
        Ok(pool)
    }

    /// Number of threads, the caller included.
    pub fn threads(&self) -> usize {
        self.shared.segments.len()
    }

    /// Runs `work` over the groups `0 .. groups` on at most `threads` threads and returns when
    /// all have run. Each call of `work` gets a scratch memory of at least `scratch_bytes`,
    /// aligned to 64 bytes, that no other thread uses meanwhile.
    ///
    /// While another thread launches, the groups run on the calling thread alone.
    ///
    /// # Errors
    /// [`CpuError::System`] where the calling thread's scratch can't be allocated.
    pub fn run(
        &self,
        groups: u64,
        threads: usize,
        scratch_bytes: usize,
        work: Work<'_>,
    ) -> Result<(), CpuError> {
        if groups == 0 {
            return Ok(());
        }
        let participants =
            threads.min(self.threads()).min(usize::try_from(groups).unwrap_or(usize::MAX));
        let guard = if participants > 1 { self.try_lock() } else { None };
        let Some(guard) = guard else {
            return with_caller_scratch(scratch_bytes, |scratch| work(0, groups, scratch));
        };
        let done = self.spread(groups, participants, scratch_bytes, work);
        drop(guard);
        done
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        match self.launch.try_lock() {
            Ok(guard) => Some(guard),
            // A launch that panicked left the state closed (see `Closing`): it is usable.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn spread(
        &self,
        groups: u64,
        participants: usize,
        scratch_bytes: usize,
        work: Work<'_>,
    ) -> Result<(), CpuError> {
        let shared = &*self.shared;
        let n = participants as u64;
        for (i, segment) in shared.segments.iter().take(participants).enumerate() {
            let i = i as u64;
            // i·groups/n without overflow.
            let bound = |i: u64| (u128::from(groups) * u128::from(i) / u128::from(n)) as u64;
            segment.end.store(bound(i + 1), Ordering::Relaxed);
            segment.next.store(bound(i), Ordering::Relaxed);
        }
        // SAFETY: only the lifetime is erased; `Closing` below makes sure that nobody is inside
        // when this function returns or unwinds.
        let work: *const (dyn Fn(u64, u64, *mut u8) + Sync) = unsafe {
            std::mem::transmute::<Work<'_>, &'static (dyn Fn(u64, u64, *mut u8) + Sync)>(work)
        };
        let chunk = (groups / (n * CHUNKS)).max(1);
        // SAFETY: the launch lock is held and the state is closed with nobody inside.
        unsafe { *shared.job.get() = Some(Job { work, participants, chunk, scratch_bytes }) };
        let number = (shared.state.load(Ordering::Relaxed) >> 32).wrapping_add(1) & 0xffff_ffff;
        shared.state.store(number << 32, Ordering::Release);
        let closing = Closing(shared);
        for mailbox in shared.mailboxes.iter().take(participants - 1) {
            mailbox.ticket.store(number as u32, Ordering::SeqCst);
            if mailbox.parked.load(Ordering::SeqCst)
                && let Some(thread) = mailbox.thread.get()
            {
                thread.unpark();
            }
        }
        let done = with_caller_scratch(scratch_bytes, |scratch| {
            // SAFETY: set above; unchanged while the launch is open.
            if let Some(job) = unsafe { *shared.job.get() } {
                take_part(shared, &job, 0, scratch);
            }
        });
        drop(closing);
        done
    }
}

/// Closes the launch and waits for those inside, also when the caller's share panics.
struct Closing<'a>(&'a Shared);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_or(CLOSED, Ordering::Relaxed);
        let mut spins = 0u32;
        while self.0.state.load(Ordering::Relaxed) & (CLOSED - 1) != 0 {
            spins = spins.saturating_add(1);
            // A worker inside may have lost its core to somebody.
            if spins < 1 << 14 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        fence(Ordering::Acquire);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker that panicked has nothing left to tell.
            let _ = worker.join();
        }
    }
}

/// Takes chunks until none is left, from the own segment first.
fn take_part(shared: &Shared, job: &Job, own: usize, scratch: *mut u8) {
    for turn in 0..job.participants {
        let segment = &shared.segments[(own + turn) % job.participants];
        let end = segment.end.load(Ordering::Relaxed);
        while segment.next.load(Ordering::Relaxed) < end {
            let first = segment.next.fetch_add(job.chunk, Ordering::Relaxed);
            if first >= end {
                break;
            }
            // SAFETY: the launching thread keeps the pointee alive until nobody is inside.
            unsafe { (*job.work)(first, end.min(first.saturating_add(job.chunk)), scratch) };
        }
    }
}

/// Runs `f` with the calling thread's scratch memory.
fn with_caller_scratch(bytes: usize, f: impl FnOnce(*mut u8)) -> Result<(), CpuError> {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            CALLER_BUSY.set(false);
        }
    }
    // A launch from inside a launch must not share the scratch.
    if CALLER_BUSY.replace(true) {
        let mut own = Scratch::new();
        f(own.at_least(bytes)?);
        return Ok(());
    }
    let _leave = Leave;
    CALLER_SCRATCH.with(|scratch| {
        // SAFETY: `CALLER_BUSY` makes this the only borrow on this thread.
        let pointer = unsafe { &mut *scratch.get() }.at_least(bytes)?;
        f(pointer);
        Ok(())
    })
}

fn worker(shared: &Shared, number: usize) {
    let mailbox = &shared.mailboxes[number - 1];
    // Set once: the thread is started once.
    let _ = mailbox.thread.set(std::thread::current());
    let mut scratch = Scratch::new();
    let mut seen = 0u32;
    loop {
        let Some(ticket) = wait(shared, mailbox, seen) else { return };
        seen = ticket;
        // Enter, unless the launch is over.
        let entered = shared
            .state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
                let open = (state >> 32) as u32 == ticket && state & CLOSED == 0;
                open.then_some(state + 1)
            })
            .is_ok();
        if !entered {
            continue;
        }
        let leave = Leaving(shared);
        // SAFETY: entered, so the job of this launch stands until we leave.
        if let Some(job) = unsafe { *shared.job.get() } {
            // Without memory for its scratch a worker stays out; the others do its share.
            if let Ok(pointer) = scratch.at_least(job.scratch_bytes) {
                take_part(shared, &job, number, pointer);
            }
        }
        drop(leave);
    }
}

/// Leaves the launch, also when the work panics.
struct Leaving<'a>(&'a Shared);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

/// The next ticket after `seen`, or `None` when the pool stops.
fn wait(shared: &Shared, mailbox: &Mailbox, seen: u32) -> Option<u32> {
    let news = || {
        let ticket = mailbox.ticket.load(Ordering::SeqCst);
        (ticket != seen).then_some(ticket)
    };
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            if let Some(ticket) = news() {
                return Some(ticket);
            }
            std::hint::spin_loop();
        }
        if shared.stop.load(Ordering::SeqCst) {
            return None;
        }
        if start.elapsed() >= SPIN {
            break;
        }
    }
    loop {
        // Announce, then look again: the launcher stores the ticket first and then looks whether
        // anybody is parked, so one of the two sees the other.
        mailbox.parked.store(true, Ordering::SeqCst);
        let ticket = news();
        if ticket.is_none() && !shared.stop.load(Ordering::SeqCst) {
            std::thread::park();
        }
        mailbox.parked.store(false, Ordering::SeqCst);
        if let Some(ticket) = ticket.or_else(news) {
            return Some(ticket);
        }
        if shared.stop.load(Ordering::SeqCst) {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Mutex;

    /// Runs groups and checks that each ran once.
    fn covers(pool: &Pool, groups: u64) -> usize {
        let counts: Vec<AtomicU32> = (0..groups).map(|_| AtomicU32::new(0)).collect();
        let threads = Mutex::new(HashSet::new());
        pool.run(groups, usize::MAX, 256, &|first, end, scratch| {
            assert_eq!(scratch as usize % 64, 0);
            for g in first..end {
                counts[g as usize].fetch_add(1, Ordering::Relaxed);
            }
            threads.lock().unwrap().insert(std::thread::current().id());
        })
        .unwrap();
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        threads.into_inner().unwrap().len()
    }

    #[test]
    fn every_group_runs_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            for groups in [0, 1, 2, 3, 7, 64, 1000] {
                assert!(covers(&pool, groups) <= threads);
            }
        }
    }

    #[test]
    fn workers_take_part_and_come_back_from_sleep() {
        let pool = Pool::new(2).unwrap();
        for sleep in [0, 1] {
            std::thread::sleep(Duration::from_millis(sleep));
            // Each waits for the other: passes only if both threads are inside.
            let inside = AtomicU32::new(0);
            pool.run(2, 2, 0, &|_, _, _| {
                inside.fetch_add(1, Ordering::SeqCst);
                while inside.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            })
            .unwrap();
        }
    }

    #[test]
    fn launches_from_many_threads_do_not_mix() {
        let pool = Pool::new(3).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..200).for_each(|n| _ = covers(&pool, n % 17)));
            }
        });
    }

    #[test]
    fn a_launch_inside_a_launch_has_a_scratch_of_its_own() {
        let pool = Pool::new(2).unwrap();
        pool.run(1, 1, 64, &|_, _, outer| {
            let outer = outer as usize;
            pool.run(1, 1, 64, &|_, _, inner| assert_ne!(inner as usize, outer)).unwrap();
        })
        .unwrap();
    }

    #[test]
    fn a_panic_in_a_share_does_not_stop_later_launches() {
        let pool = Pool::new(2).unwrap();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(1000, 2, 0, &|first, _, _| assert!(first < 100, "on purpose"))
        }));
        // Whoever met a large group first panicked; the caller's own share holds large groups
        // or steals them, unless the worker took them all and died.
        drop(result);
        for _ in 0..10 {
            covers(&pool, 100);
        }
    }

    #[test]
    fn impossible_numbers_of_threads_are_errors() {
        assert!(matches!(Pool::new(0), Err(CpuError::Threads { .. })));
        assert!(matches!(Pool::new(MAX_THREADS + 1), Err(CpuError::Threads { .. })));
    }
}
