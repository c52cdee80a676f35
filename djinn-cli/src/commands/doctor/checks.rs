//! Checks of what the operating system reports.

#[cfg(test)]
mod tests;

use super::Finding;
use crate::size::human;
use djinn_host::rates::{COPY_BYTES, Rates};
use djinn_host::system::{self, Limit, Memory};
use djinn_vmu::Machine;

/// Less locked memory holds no useful share of a model.
const LITTLE_MEMLOCK: u64 = 1 << 30;
/// Less memory runs only small models.
const LITTLE_MEMORY: u64 = 4 << 30;
const UNKNOWN: &str = "the system does not say";

/// Processor, memory, limits.
pub(super) fn system() -> Vec<Finding> {
    let name = system::cpu_name().unwrap_or_else(|| UNKNOWN.to_owned());
    let threads = system::threads();
    vec![
        Finding::fine("processor", format!("{name}, {threads} threads, {}", std::env::consts::ARCH)),
        memory(system::memory()),
        memlock(system::memlock()),
        huge_pages(system::transparent_huge_pages().as_deref(), system::memory()),
    ]
}

fn memory(memory: Option<Memory>) -> Finding {
    let name = "memory";
    let Some(memory) = memory else { return Finding::fine(name, UNKNOWN) };
    let value = format!("{} available of {}", human(memory.available), human(memory.total));
    match memory.available < LITTLE_MEMORY {
        true => Finding::poor(name, value, "close other programs; less than 4 GiB runs only small models"),
        false => Finding::fine(name, value),
    }
}

fn memlock(limit: Option<Limit>) -> Finding {
    let name = "locked memory";
    match limit {
        None => Finding::fine(name, UNKNOWN),
        Some(Limit::Unlimited) => Finding::fine(name, "unlimited"),
        Some(Limit::Bytes(bytes)) if bytes < LITTLE_MEMLOCK => Finding::poor(
            name,
            format!("at most {}; the cpu device locks none", human(bytes)),
            "`ulimit -l unlimited`, or memlock in /etc/security/limits.conf, before a GPU is used",
        ),
        Some(Limit::Bytes(bytes)) => Finding::fine(name, format!("at most {}", human(bytes))),
    }
}

fn huge_pages(transparent: Option<&str>, memory: Option<Memory>) -> Finding {
    let name = "huge pages";
    let reserved = memory.map(|m| m.huge_free.saturating_mul(m.huge_size)).filter(|bytes| *bytes > 0);
    let reserved = reserved.map_or_else(String::new, |bytes| format!(", {} reserved", human(bytes)));
    match transparent {
        None => Finding::fine(name, format!("{UNKNOWN}{reserved}")),
        Some("never") => Finding::poor(
            name,
            format!("transparent: never{reserved}"),
            "`echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`",
        ),
        Some(mode) => Finding::fine(name, format!("transparent: {mode}{reserved}")),
    }
}

/// The CPU device's rates.
pub(super) fn rates(rates: &Rates) -> Vec<Finding> {
    let Machine { flops, memory, link, launch, .. } = &rates.machine;
    vec![
        Finding::fine("arithmetic", format!("{:.1} GFLOP/s, bf16 weights, {}", flops / 1e9, rates.device)),
        Finding::fine("weight reads", format!("{:.2} GB/s, one row times bf16 weights", memory / 1e9)),
        Finding::fine("memory copy", format!("{:.2} GB/s in pieces of {}", link / 1e9, human(COPY_BYTES))),
        Finding::fine("operation", format!("{:.1} us each at least", launch * 1e6)),
    ]
}

/// The first GPU, or why there is none.
pub(super) fn cuda() -> Finding {
    let name = "cuda";
    match (djinn_cuda::probe(0), system::cuda_driver()) {
        (Ok(card), _) => {
            let (major, minor) = card.compute_capability;
            let total = human(card.total_bytes);
            Finding::fine(name, format!("{}, {total}, compute capability {major}.{minor}", card.name))
        }
        (Err(djinn_cuda::Error::NotBuilt), None) => {
            Finding::fine(name, "this build has no CUDA support, and the machine has no driver")
        }
        (Err(djinn_cuda::Error::NotBuilt), Some(version)) => Finding::poor(
            name,
            format!("driver {version}, but this build has no CUDA support"),
            "build with --features cuda",
        ),
        (Err(djinn_cuda::Error::NoDriver), None) => Finding::fine(name, "the machine has no driver"),
        (Err(error), _) => Finding::poor(name, djinn_host::one_line(&error), "--device cpu works without"),
    }
}
