//! A fork-join pool: the caller publishes a job, workers that are awake join it, and the caller returns
//! when the tasks are done and every worker that joined has left.
//!
//! All synchronisation is in one word, [`Shared::state`]: the job's number, whether it may be joined, and
//! how many workers are inside. Workers spin, then yield, then sleep. A worker that is late (because its
//! core is busy) does not hold up the caller, who takes tasks itself.
#![allow(unsafe_code, reason = "a job borrows from its caller, who outlasts it")]

use djinn_device::{Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{PoisonError, TryLockError};
use sync::{AtomicUsize, Condvar, JoinHandle, Mutex, Ordering, fence, relax, spawn, yield_now};

#[cfg(not(loom))]
mod sync {
    //! What the pool is built on.
    pub(super) use std::hint::spin_loop as relax;
    pub(super) use std::sync::atomic::{AtomicUsize, Ordering, fence};
    pub(super) use std::sync::{Arc, Condvar, Mutex};
    pub(super) use std::thread::{JoinHandle, yield_now};

    /// Polls that only relax the core before a waiting thread yields it.
    pub(super) const SPINS: u32 = 1000;
    /// Polls that yield before a worker sleeps.
    pub(super) const YIELDS: u32 = 500;
    /// The same where jobs come milliseconds apart, and each would wait while workers wake.
    pub(super) const PATIENT_YIELDS: u32 = 20_000;

    pub(super) fn spawn(body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name("djinn-compute".to_owned()).spawn(body)
    }
}

#[cfg(loom)]
mod sync {
    //! The same under the model checker, which explores every interleaving: no polling.
    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering, fence};
    pub(super) use loom::sync::{Arc, Condvar, Mutex};
    pub(super) use loom::thread::{JoinHandle, yield_now, yield_now as relax};

    pub(super) const SPINS: u32 = 0;
    pub(super) const YIELDS: u32 = 0;
    pub(super) const PATIENT_YIELDS: u32 = 0;

    pub(super) fn spawn(body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        Ok(loom::thread::spawn(body))
    }
}

/// In [`Shared::state`]: workers inside the job.
const INSIDE: usize = 0xffff;
/// In [`Shared::state`]: the job may be joined.
const OPEN: usize = 1 << 16;
/// In [`Shared::state`]: workers shall end.
const STOP: usize = 1 << 17;
/// In [`Shared::state`]: one in the job's number, which has the bits above.
const NUMBER: usize = 1 << 18;

/// Threads that run tasks together with the caller.
pub(crate) struct Pool {
    shared: sync::Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the caller whose job is published.
    caller: Mutex<()>,
}

struct Shared {
    state: AtomicUsize,
    /// The next task of the published job.
    next: AtomicUsize,
    job: Mutex<Job>,
    /// Workers asleep or about to be.
    sleepers: AtomicUsize,
    bed: Mutex<()>,
    wake: Condvar,
    /// Polls that yield before a worker sleeps.
    yields: u32,
}

/// A job as workers see it.
struct Job {
    tasks: usize,
    run: Option<Task>,
    panic: Option<Box<dyn Any + Send>>,
}

/// The caller's closure, without its lifetime.
#[derive(Clone, Copy)]
struct Task(*const (dyn Fn(usize) + Sync));

// SAFETY: the closure is `Sync`, so calling it by reference from other threads is sound; `Pool::run` keeps
// it alive while a worker is inside the job.
unsafe impl Send for Task {}

impl Pool {
    /// A pool of `threads`, the caller included.
    ///
    /// # Errors
    /// [`Error::Resource`] if the system refuses a thread.
    pub(crate) fn new(threads: usize) -> Result<Pool> {
        Pool::waiting(threads, sync::YIELDS)
    }

    /// A pool whose workers stay awake between jobs that come milliseconds apart.
    ///
    /// # Errors
    /// As [`new`](Pool::new).
    pub(crate) fn patient(threads: usize) -> Result<Pool> {
        Pool::waiting(threads, sync::PATIENT_YIELDS)
    }

    fn waiting(threads: usize, yields: u32) -> Result<Pool> {
        let shared = sync::Arc::new(Shared {
            state: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            job: Mutex::new(Job { tasks: 0, run: None, panic: None }),
            sleepers: AtomicUsize::new(0),
            bed: Mutex::new(()),
            wake: Condvar::new(),
            yields,
        });
        let mut pool = Pool { shared, workers: Vec::new(), caller: Mutex::new(()) };
        for _ in 1..threads.min(INSIDE) {
            let shared = sync::Arc::clone(&pool.shared);
            let worker = spawn(move || shared.work());
            let worker = worker
                .map_err(|error| Error::Resource { what: "a compute thread", reason: error.to_string() })?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that compute.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task` with each of `0..tasks` once, on any of the threads, and returns when all have returned.
    /// A call while another thread's is under way runs alone on its own thread.
    ///
    /// # Panics
    /// With a task's panic; other tasks may then not have been called.
    pub(crate) fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        let caller = match self.caller.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if tasks <= 1 || self.workers.is_empty() || caller.is_none() {
            (0..tasks).for_each(task);
            return;
        }
        let panic = self.shared.publish(tasks, &task);
        drop(caller);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.state.fetch_or(STOP, Ordering::Release);
        self.shared.wake_all();
        for worker in self.workers.drain(..) {
            worker.join().expect("a worker catches its tasks' panics");
        }
    }
}

impl Shared {
    /// Runs a job to its end; returns a task's panic.
    fn publish(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) -> Option<Box<dyn Any + Send>> {
        // SAFETY: only the lifetime changes. Workers use the pointer only while inside the job, and this
        // function returns only after the job was closed and all of them have left.
        let run = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(task)
        };
        *lock(&self.job) = Job { tasks, run: Some(Task(run)), panic: None };
        self.next.store(0, Ordering::Relaxed);
        // No thread is inside, so the low bits are zero. Release: a thread that joins sees the job and `next`.
        self.state.fetch_add(NUMBER + OPEN, Ordering::Release);
        self.wake_all();
        let own = catch_unwind(AssertUnwindSafe(|| self.take_tasks(tasks, task)));
        if own.is_err() {
            self.next.store(tasks, Ordering::Relaxed);
        }
        // Acquire: what workers wrote in tasks is seen after the last has left.
        let mut polls = 0;
        let mut state = self.state.fetch_and(!OPEN, Ordering::AcqRel);
        while state & INSIDE != 0 {
            wait_a_little(&mut polls);
            state = self.state.load(Ordering::Acquire);
        }
        let mut job = lock(&self.job);
        job.run = None;
        own.err().or_else(|| job.panic.take())
    }

    fn take_tasks(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        loop {
            // Relaxed: only the number matters; data goes by `state`.
            let i = self.next.fetch_add(1, Ordering::Relaxed);
            if i >= tasks {
                return;
            }
            task(i);
        }
    }

    /// A worker's life.
    fn work(&self) {
        let (mut done, mut polls) = (0, 0);
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state & STOP != 0 {
                return;
            }
            if state & OPEN == 0 || state / NUMBER == done {
                self.rest(state, &mut polls);
                continue;
            }
            // Acquire: pairs with the release in `publish`. Success means that the job is open now, so that
            // its caller waits for this worker, even if it is a later job than the one that was loaded.
            let joined =
                self.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if joined {
                (done, polls) = (state / NUMBER, 0);
                self.join_job();
            }
        }
    }

    /// Takes tasks of the job that this worker is inside of, and leaves it.
    fn join_job(&self) {
        let (tasks, run) = {
            let job = lock(&self.job);
            (job.tasks, job.run)
        };
        if let Some(Task(run)) = run {
            // SAFETY: the caller keeps the closure alive while this worker is counted inside.
            let task = unsafe { &*run };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.take_tasks(tasks, task))) {
                self.next.store(tasks, Ordering::Relaxed);
                lock(&self.job).panic.get_or_insert(panic);
            }
        }
        // Release: the caller sees what the tasks wrote.
        self.state.fetch_sub(1, Ordering::Release);
    }

    /// Waits for `state` to change: a little at first, asleep in the end.
    fn rest(&self, state: usize, polls: &mut u32) {
        if *polls < sync::SPINS + self.yields {
            wait_a_little(polls);
            return;
        }
        let mut bed = lock(&self.bed);
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        // With the fence in `wake_all`: either the waker sees this sleeper, or this sees its change.
        fence(Ordering::SeqCst);
        // A change of the workers inside alone is no news.
        let news = |now: usize| (now ^ state) & !INSIDE != 0 && now & (OPEN | STOP) != 0;
        while !news(self.state.load(Ordering::Relaxed)) {
            bed = self.wake.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        *polls = 0;
    }

    fn wake_all(&self) {
        fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) > 0 {
            // The lock keeps the call from falling between a sleeper's last look and its wait.
            drop(lock(&self.bed));
            self.wake.notify_all();
        }
    }
}

/// One poll of a wait: relaxes the core at first, then yields it to threads that have work.
fn wait_a_little(polls: &mut u32) {
    if *polls < sync::SPINS {
        relax();
    } else {
        yield_now();
    }
    *polls = polls.saturating_add(1);
}

fn lock<T>(mutex: &Mutex<T>) -> sync_guard::Guard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

mod sync_guard {
    //! The guard of the mutex that is in use.
    #[cfg(loom)]
    pub(super) type Guard<'a, T> = loom::sync::MutexGuard<'a, T>;
    #[cfg(not(loom))]
    pub(super) type Guard<'a, T> = std::sync::MutexGuard<'a, T>;
}

#[cfg(test)]
mod tests;
