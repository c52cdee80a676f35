//! Parallel work on many pieces, with results in order.

use std::ops::Range;
use std::thread;

/// Pieces of each thread that are under way at once.
const AHEAD: usize = 8;

/// Calls `work` for each of `pieces` on several threads, and `take` on this one with the results in order. Stops at
/// the first error.
pub(super) fn in_order<T: Send, E: Send>(
    threads: usize,
    pieces: Range<usize>,
    work: impl Fn(usize) -> Result<T, E> + Sync,
    mut take: impl FnMut(usize, T) -> Result<(), E>,
) -> Result<(), E> {
    let threads = threads.max(1);
    let batch = |start: usize| start..pieces.end.min(start + threads * AHEAD);
    let mut done: (usize, Vec<T>) = (pieces.start, Vec::new());
    loop {
        let next = batch(done.0 + done.1.len());
        let first = next.start;
        let results = thread::scope(|scope| {
            let spawn = |thread: usize| {
                let (own, work) = (next.clone().skip(thread).step_by(threads), &work);
                scope.spawn(move || own.map(work).collect::<Result<Vec<T>, E>>())
            };
            let running: Vec<_> = (0..threads.min(next.len())).map(spawn).collect();
            let taken = done.1.drain(..).enumerate().try_for_each(|(i, result)| take(done.0 + i, result));
            let joined = running.into_iter().map(|thread| match thread.join() {
                Ok(results) => results.map(Vec::into_iter),
                Err(panic) => std::panic::resume_unwind(panic),
            });
            let joined: Result<Vec<_>, E> = joined.collect();
            taken.and(joined)
        })?;
        if results.is_empty() {
            return Ok(());
        }
        done = (first, interleaved(results));
    }
}

/// The first of each list, the second of each, and so on.
fn interleaved<T>(mut lists: Vec<std::vec::IntoIter<T>>) -> Vec<T> {
    let mut all = Vec::new();
    loop {
        let before = all.len();
        all.extend(lists.iter_mut().filter_map(Iterator::next));
        if all.len() == before {
            return all;
        }
    }
}
