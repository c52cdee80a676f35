//! The device interface: memory, streams, events and copies ([`Device`]), and the closed list of decoder operations
//! ([`Ops`]).
//!
//! # Contract
//!
//! **Who validates.** The caller checks an operation's arguments once, with `args.check()`, when it builds them;
//! devices only `debug_assert` that. A device checks what only it can know: that handles are its own and alive, and
//! that the spans of a copy fit each other. A failed check is a bug of the caller and panics, with ids and sizes.
//!
//! **Order.** Work on one stream runs in the order of the calls. Work on different streams runs in any order, with one
//! exception: after [`wait`](Device::wait) a stream continues only behind the work that the event stood for at that
//! call. Calls that enqueue return at once. The host learns that work is done only from [`sync`](Device::sync),
//! [`sync_event`](Device::sync_event) and [`is_done`](Device::is_done).
//!
//! **Lifetime of memory.** A buffer's bytes live from [`alloc`](Device::alloc) to [`free`](Device::free), at one
//! address. While enqueued work uses them, they must not be freed, and the host must not touch them. No device waits
//! to ensure that; the simulator panics on a violation. New memory has undefined contents. Streams, events and captures
//! live until they are freed, too.
//!
//! **Errors.** An [`Error`] is what a caller cannot foresee. A refused call (no memory, no resource) leaves the device
//! as it was. A failure of enqueued work is sticky: no work runs after it, and every later call that can fail returns
//! it. Only another device helps then.
//!
//! **Results.** The scalar [`reference`](mod@reference) defines each operation, up to a tolerance that the
//! [`conformance`] suite states. Every row is computed from its own inputs in a fixed order. So bits depend neither on
//! where bytes lie nor, up to [`DeviceInfo::batch_invariant_rows`], on other rows.
//!
//! **Why static dispatch?** A program chooses one device when it starts. Generic code has no table of functions on the
//! way to a launch, and a device may override a pair of operations with one kernel.
//!
//! **Why handles?** Work is enqueued and runs later, on another thread or another processor. A borrow cannot express
//! that. A checked handle can, and it may be captured and replayed.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod access;
pub mod args;
pub mod choice;
pub mod conformance;
mod cpu;
mod error;
mod handles;
mod memory;
mod ops;
pub mod reference;
mod stream;

pub use access::Access;
pub use args::checksum;
pub use choice::{Change, Changes, Draw, Drawn};
pub use cpu::{CpuOps, HostLinear, HostWeight};
pub use djinn_srg::{BlockFormat, DType, Encoding, GeluForm, RopeStyle};
pub use error::{Error, Result, panic_line};
pub use handles::Handles;
pub use memory::{Buffer, Space, Span, Usage};
pub use ops::{Operation, Ops};
pub use stream::{Capture, Device, DeviceInfo, Event, Stream};
