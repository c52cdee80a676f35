//! The pool runs every task once, passes panics on, and does not hang.

use super::Pool;

#[cfg(not(loom))]
mod threads {
    use super::Pool;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads).unwrap();
            assert_eq!(pool.threads(), threads);
            for tasks in [0, 1, 2, 7, 100] {
                for _ in 0..50 {
                    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(tasks, |i| {
                        counts[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(counts.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{threads} {tasks}");
                }
            }
        }
    }

    #[test]
    fn workers_take_part_after_a_sleep() {
        let pool = Pool::new(2).unwrap();
        for pause in [0, 20, 0, 50] {
            std::thread::sleep(Duration::from_millis(pause));
            // Each task waits for the other, so both threads must be inside.
            let inside = AtomicUsize::new(0);
            pool.run(2, |_| {
                inside.fetch_add(1, Ordering::Relaxed);
                while inside.load(Ordering::Relaxed) < 2 {
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_panic_of_any_task_reaches_the_caller() {
        let pool = Pool::new(3).unwrap();
        for culprit in 0..20 {
            let panic = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, |i| {
                    std::thread::yield_now();
                    assert!(i != culprit, "task {i}");
                });
            }));
            let message = panic.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(*message, format!("task {culprit}"));
            let count = AtomicUsize::new(0);
            pool.run(20, |_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 20, "the pool is sound after a panic");
        }
    }

    #[test]
    fn callers_at_once_and_within_tasks_do_not_deadlock() {
        let pool = Pool::new(2).unwrap();
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(3, |_| {
                            pool.run(2, |_| {
                                count.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 4 * 50 * 3 * 2);
    }
}

/// Every interleaving of two jobs, a worker and the end of the pool, up to three preemptions. Run with
/// `RUSTFLAGS="--cfg loom" cargo test -p djinn-cpu --lib loom`.
#[cfg(loom)]
#[test]
fn loom_jobs_complete_before_their_caller_goes_on() {
    use loom::cell::UnsafeCell;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let pool = Pool::new(2).unwrap();
        for _ in 0..2 {
            // Loom's cells fail the test if a task's write is not ordered before the caller's read.
            let cells = Cells([UnsafeCell::new(0), UnsafeCell::new(0)]);
            let cells = &cells;
            pool.run(2, |i| cells.0[i].with_mut(|cell| Cells::add(cell)));
            for cell in &cells.0 {
                cell.with(|cell| assert_eq!(Cells::get(cell), 1));
            }
        }
    });

    struct Cells([UnsafeCell<u32>; 2]);

    // SAFETY: each task touches its own cell, and loom checks that.
    unsafe impl Sync for Cells {}

    impl Cells {
        fn add(cell: *mut u32) {
            // SAFETY: loom has checked that the access is exclusive.
            unsafe { *cell += 1 }
        }

        fn get(cell: *const u32) -> u32 {
            // SAFETY: loom has checked that nothing writes now.
            unsafe { *cell }
        }
    }
}
