//! A discrete-event simulator. It runs the scheduler's own code with a table of times. Workloads and reports are
//! shared with runs of a real engine ([`drive`](crate::drive())).

mod backend;
mod belady;
mod profile;
pub(crate) mod report;
mod rng;
mod trace;
pub(crate) mod workload;

pub use crate::drive::{RunSpan, simulate};
pub use backend::SimBackend;
pub use belady::{Belady, Oracle};
pub use profile::{Profile, StepTimes};
pub use report::{LatencyParts, Report, Sample, TurnRecord, percentile};
pub use rng::Rng;
pub use trace::{parse_azure, parse_tracelab};
pub use workload::{Distribution, Hint, Script, Shape, Tool, Workload, WorkloadTurn};
