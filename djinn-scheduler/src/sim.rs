//! A discrete-event simulator that runs the scheduler's own code against a table of times.

mod backend;
mod belady;
mod driver;
mod profile;
mod report;
mod rng;
mod trace;
mod workload;

pub use backend::SimBackend;
pub use belady::{Belady, Oracle};
pub use driver::{Span, simulate};
pub use profile::{DecodeTimes, Profile};
pub use report::{Parts, Report, Sample, TurnRecord, percentile};
pub use rng::Rng;
pub use trace::{parse_azure, parse_tracelab};
pub use workload::{Distribution, Hint, Script, Shape, Tool, Turn, Workload};
