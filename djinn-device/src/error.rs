//! Errors that a caller of a device cannot foresee. Misuse (a freed handle, a span of the wrong size) panics.

use crate::Space;
use std::any::Any;

/// A device's failure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message says what its fields are")]
pub enum Error {
    /// The allocation would exceed the cap, or the system refused it.
    #[error(
        "out of {} memory: {requested_bytes} bytes requested, {in_use_bytes} of {limit_bytes} in use",
        match space { Space::Device => "device", Space::Host => "host" }
    )]
    OutOfMemory {
        space: Space,
        /// Bytes asked for.
        requested_bytes: u64,
        /// Bytes allocated at that time.
        in_use_bytes: u64,
        limit_bytes: u64,
    },
    /// A copy failed. Sticky.
    #[error("a copy of {bytes} bytes failed on stream {stream}")]
    CopyFailed {
        /// Bytes of the copy.
        bytes: u64,
        stream: u32,
    },
    /// The device is gone, e.g. a worker of it panicked. Sticky.
    #[error("device lost: {reason}")]
    DeviceLost { reason: String },
    /// The operating system refused a resource, e.g. a thread.
    #[error("cannot create {what}: {reason}")]
    Resource { what: &'static str, reason: String },
}

/// The first line of a panic's message, for an error that tells of it.
pub fn panic_line(panic: &(dyn Any + Send)) -> String {
    let message = panic.downcast_ref::<String>().map(String::as_str);
    let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
    message.and_then(|text| text.lines().next()).unwrap_or("no message").to_owned()
}

/// A device's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;
