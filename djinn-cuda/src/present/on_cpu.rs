//! Work that the CPU does when a stream reaches it: products, or experts' blocks.
//!
//! ```text
//! stream      … │ request = work │ waits for done │ …      in a replay as well; with experts, other work before it waits
//! CPU                    sees it │ computes │ done = 1
//! ```
//!
//! A thread polls the request while works are to come, since the stream would wait while it wakes.

#![allow(unsafe_code, reason = "words and memory that the card and the CPU share")]

use crate::Result;
use crate::present::memory::{HostPlace, Memory, Pinned};
use crate::present::stream::RawStream;
use djinn_device::args::{CpuExperts, ExpertLinear, Linear, SiluMul, Weight};
use djinn_device::{CpuOps, Error, HostLinear, HostWeight, panic_line};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Polls that only relax the core before the thread yields it.
const SPINS: u32 = 20_000;

/// The place of `done` behind `request`, in another line of memory.
const DONE: usize = 256;

/// The CPU, and the works that it is to do.
pub(crate) struct CpuThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    ops: Arc<dyn CpuOps>,
    words: Words,
    works: Mutex<Works>,
    /// Works are to come, or none ever.
    news: Condvar,
    ended: AtomicBool,
    /// The message of the first product that panicked.
    failure: OnceLock<String>,
    /// Nanoseconds of works since they were last taken.
    worked: AtomicU64,
}

#[derive(Default)]
struct Works {
    /// By number, with whether it is done once only.
    known: HashMap<u32, (Arc<Work>, bool)>,
    latest: u32,
    /// Enqueued and not done.
    to_come: usize,
}

/// Two words of host memory: the number of the requested work or 0, and whether it is done.
struct Words {
    pinned: Pinned,
    address: u64,
}

/// Products, or experts' blocks, with the memory that they read and write.
pub(crate) enum Work {
    Products(Vec<Product>),
    Experts(Box<FeedForward>),
}

/// Feed-forward blocks of experts.
pub(crate) struct FeedForward {
    up: ExpertProducts,
    act: Activation,
    down: ExpertProducts,
}

pub(crate) struct Product {
    args: Linear,
    x: HostPlace,
    weight: HostPlace,
    bias: Option<HostPlace>,
    out: HostPlace,
}

/// Products that differ in their weights only.
pub(crate) struct ExpertProducts {
    each: Vec<(ExpertLinear, HostPlace)>,
    x: HostPlace,
    order: HostPlace,
    starts: HostPlace,
    out: HostPlace,
}

pub(crate) struct Activation {
    args: SiluMul,
    x: HostPlace,
    out: HostPlace,
}

/// A work that captures repeat. It is forgotten when dropped.
pub(crate) struct Repeated {
    shared: Arc<Shared>,
    number: u32,
}

impl CpuThread {
    /// Starts the thread. The context is current.
    pub(crate) fn start(ops: Arc<dyn CpuOps>) -> djinn_device::Result<Self> {
        let resource = |reason| Error::Resource { what: "the CPU's help", reason };
        let pinned = Pinned::new(2 * DONE as u64)?;
        let (pinned, address) = pinned.ok_or_else(|| resource("no pinned memory".to_owned()))?;
        let shared = Arc::new(Shared {
            ops,
            words: Words { pinned, address },
            works: Mutex::default(),
            news: Condvar::new(),
            ended: AtomicBool::new(false),
            failure: OnceLock::new(),
            worked: AtomicU64::new(0),
        });
        let own = Arc::clone(&shared);
        let thread = Builder::new().name("djinn-on-cpu".to_owned()).spawn(move || own.serve());
        let thread = Some(thread.map_err(|error| resource(error.to_string()))?);
        Ok(CpuThread { shared, thread })
    }

    /// For people.
    pub(crate) fn name(&self) -> String {
        self.shared.ops.name()
    }

    /// The message of a product that panicked.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.shared.failure.get().map(String::as_str)
    }

    /// How long works took since the last call.
    pub(crate) fn take_time(&self) -> Duration {
        Duration::from_nanos(self.shared.worked.swap(0, Ordering::Relaxed))
    }

    /// Enqueues the request for a work. The stream must [wait](Self::wait) for it before it requests another one.
    pub(crate) fn request(&self, stream: &RawStream, work: Work) -> Result<()> {
        let number = self.shared.add(work, true);
        self.announce(1);
        self.shared.words.enqueue(stream, number)
    }

    /// The same on a stream that is captured. The capture keeps the result.
    pub(crate) fn capture(&self, stream: &RawStream, work: Work) -> Result<Repeated> {
        let number = self.shared.add(work, false);
        let repeated = Repeated { shared: Arc::clone(&self.shared), number };
        self.shared.words.enqueue(stream, number)?;
        Ok(repeated)
    }

    /// Lets a stream wait for the work that it requested last.
    pub(crate) fn wait(&self, stream: &RawStream) -> Result<()> {
        self.shared.words.wait(stream)
    }

    /// Makes the thread expect this many works more, before they are enqueued: the driver may hold a call until the card has
    /// done the first of them.
    pub(crate) fn announce(&self, works: usize) {
        self.shared.works().to_come += works;
        self.shared.news.notify_one();
    }
}

impl Drop for CpuThread {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        drop(self.shared.works());
        self.shared.news.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the thread catches panics of its work");
        }
    }
}

impl Drop for Repeated {
    fn drop(&mut self) {
        self.shared.works().known.remove(&self.number);
    }
}

impl Shared {
    fn works(&self) -> MutexGuard<'_, Works> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, work: Work, once: bool) -> u32 {
        let mut works = self.works();
        let mut number = works.latest.wrapping_add(1).max(1);
        while works.known.contains_key(&number) {
            number = number.wrapping_add(1).max(1);
        }
        works.latest = number;
        works.known.insert(number, (Arc::new(work), once));
        number
    }

    /// The life of the thread.
    fn serve(&self) {
        loop {
            let mut works = self.works();
            while works.to_come == 0 {
                if self.ended.load(Ordering::Relaxed) {
                    return;
                }
                works = self.news.wait(works).unwrap_or_else(PoisonError::into_inner);
            }
            drop(works);
            let Some(number) = self.words.await_request(&self.ended) else { return };
            let mut works = self.works();
            works.to_come = works.to_come.saturating_sub(1);
            let known = works.known.get(&number).map(|(work, once)| (Arc::clone(work), *once));
            if known.as_ref().is_some_and(|(_, once)| *once) {
                works.known.remove(&number);
            }
            drop(works);
            let began = Instant::now();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let (work, _) = known.expect("the stream asks for a work that is known");
                work.run(&*self.ops);
            }));
            if let Err(panic) = outcome {
                let _ = self.failure.set(panic_line(&*panic));
            }
            self.worked.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
            // After a failure too: the stream goes on, and the next call on the device tells.
            self.words.done().store(1, Ordering::Release);
        }
    }
}

impl Words {
    fn request(&self) -> &AtomicU32 {
        self.pinned.word(0)
    }

    fn done(&self) -> &AtomicU32 {
        self.pinned.word(DONE)
    }

    /// Has a stream request a work. Each write comes after all that the stream did before.
    fn enqueue(&self, stream: &RawStream, number: u32) -> Result<()> {
        // SAFETY: the word is pinned memory, which lives until the device is dropped, after its streams.
        unsafe { stream.write_word(self.address + DONE as u64, 0)? };
        // SAFETY: as above.
        unsafe { stream.write_word(self.address, number) }
    }

    fn wait(&self, stream: &RawStream) -> Result<()> {
        // SAFETY: as in `enqueue`.
        unsafe { stream.await_word(self.address + DONE as u64, 1) }
    }

    /// The next requested work; `None` once `ended`.
    fn await_request(&self, ended: &AtomicBool) -> Option<u32> {
        let mut polls = 0;
        loop {
            // Acquire: what the stream wrote before is seen, and `done` is written after the stream has reset it.
            let number = self.request().load(Ordering::Acquire);
            if number != 0 {
                self.request().store(0, Ordering::Relaxed);
                return Some(number);
            }
            if ended.load(Ordering::Relaxed) {
                return None;
            }
            if polls < SPINS {
                polls += 1;
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Work {
    /// # Panics
    /// If a span is no host memory of the device.
    pub(crate) fn products(memory: &Memory, tiles: &[Linear]) -> Self {
        let product = |args: &Linear| Product {
            args: *args,
            x: memory.host(args.x),
            weight: memory.host(args.weight.span),
            bias: args.bias.map(|bias| memory.host(bias.span)),
            out: memory.host(args.out),
        };
        Work::Products(tiles.iter().map(product).collect())
    }

    /// # Panics
    /// As [`products`](Self::products).
    pub(crate) fn experts(memory: &Memory, experts: &CpuExperts) -> Self {
        let products = |args: &[ExpertLinear]| ExpertProducts {
            each: args.iter().map(|args| (*args, memory.host(args.weight.span))).collect(),
            x: memory.host(args[0].x),
            order: memory.host(args[0].order),
            starts: memory.host(args[0].starts),
            out: memory.host(args[0].out),
        };
        let &CpuExperts { ref up, act, ref down } = experts;
        let act = Activation { args: act, x: memory.host(act.x), out: memory.host(act.out) };
        Work::Experts(Box::new(FeedForward { up: products(up), act, down: products(down) }))
    }

    /// Nothing else writes the memory before the stream has waited for this work, nor reads its outputs.
    fn run(&self, cpu: &dyn CpuOps) {
        match self {
            Work::Products(products) => products.iter().for_each(|product| product.run(cpu)),
            Work::Experts(of) => {
                let FeedForward { up, act, down } = &**of;
                up.run(cpu);
                up.slots().for_each(|slot| act.run(cpu, slot as usize));
                down.run(cpu);
            }
        }
    }
}

impl Product {
    fn run(&self, cpu: &dyn CpuOps) {
        let Product { args, x, weight, bias, out } = self;
        cpu.linears(vec![HostLinear {
            x: bytemuck::cast_slice(x.bytes()),
            weight: weight_of(args.weight, weight),
            bias: args.bias.zip(bias.as_ref()).map(|(bias, place)| weight_of(bias, place)),
            out: output(out),
            k: args.k,
            n: args.n,
            out_width: args.out_width,
            out_column: args.out_column,
        }]);
    }
}

impl ExpertProducts {
    /// The slots of an expert.
    fn slots_of(&self, expert: u32) -> &[u32] {
        let [order, starts]: [&[u32]; 2] =
            [&self.order, &self.starts].map(|place| bytemuck::cast_slice(place.bytes()));
        let expert = expert as usize;
        &order[starts[expert] as usize..starts[expert + 1] as usize]
    }

    /// The slots of all its experts.
    fn slots(&self) -> impl Iterator<Item = u32> {
        // An expert's weight may have several tiles.
        let experts = self.each.chunk_by(|(one, _), (next, _)| one.expert == next.expert);
        experts.flat_map(|tiles| self.slots_of(tiles[0].0.expert)).copied()
    }

    /// The products of all experts that have slots, at once: each of its slots' rows, side by side.
    fn run(&self, cpu: &dyn CpuOps) {
        let all: &[f32] = bytemuck::cast_slice(self.x.bytes());
        let used = self.each.iter().map(|(args, weight)| (args, weight, self.slots_of(args.expert)));
        let used: Vec<_> = used.filter(|(_, _, slots)| !slots.is_empty()).collect();
        let (mut x, mut len) = (Vec::new(), 0);
        for (args, _, slots) in &used {
            let row =
                |slot: u32| &all[(slot / args.slots_per_row) as usize * args.k as usize..][..args.k as usize];
            slots.iter().for_each(|&slot| x.extend_from_slice(row(slot)));
            len += slots.len() * args.n as usize;
        }
        let mut results = vec![0.0; len];
        let (mut x, mut left, mut products) = (x.as_slice(), results.as_mut_slice(), Vec::new());
        for &(args, weight, slots) in &used {
            let (own, others) = x.split_at(slots.len() * args.k as usize);
            let (out, unused) = left.split_at_mut(slots.len() * args.n as usize);
            (x, left) = (others, unused);
            let (weight, bias, out_width, out_column) = (weight_of(args.weight, weight), None, args.n, 0);
            products.push(HostLinear {
                x: own,
                weight,
                bias,
                out,
                k: args.k,
                n: args.n,
                out_width,
                out_column,
            });
        }
        cpu.linears(products);
        let out = output(&self.out);
        let mut rows = results.as_slice();
        for (args, _, slots) in used {
            for &slot in slots {
                let (row, others) = rows.split_at(args.n as usize);
                rows = others;
                let first = slot as usize * args.out_width as usize + args.out_column as usize;
                out[first..first + row.len()].copy_from_slice(row);
            }
        }
    }
}

impl Activation {
    fn run(&self, cpu: &dyn CpuOps, slot: usize) {
        let Activation { args, x, out } = self;
        let width = args.width as usize;
        let x: &[f32] = bytemuck::cast_slice(x.bytes());
        let out = output(out);
        cpu.silu_mul(&x[slot * 2 * width..][..2 * width], &mut out[slot * width..][..width]);
    }
}

/// Where a product or an activation writes; it has no other slice of it.
#[allow(clippy::mut_from_ref, reason = "the works of a device run one at a time, on one thread")]
fn output(place: &HostPlace) -> &mut [f32] {
    // SAFETY: one work runs at a time, and no part of it reads what it writes. Nothing on the device reads or writes the memory
    // until the stream has waited for the work, by the contract of `Ops::linear_on_cpu` and `Ops::experts_on_cpu`.
    bytemuck::cast_slice_mut(unsafe { place.bytes_mut() })
}

fn weight_of(Weight { dtype, encoding, .. }: Weight, place: &HostPlace) -> HostWeight<'_> {
    HostWeight { bytes: place.bytes(), dtype, encoding }
}
