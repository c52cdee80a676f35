//! Facts about the machine from the operating system. Unknown facts are `None`, as on systems without `/proc`.

use std::fs;

/// The processor's name.
pub fn cpu_name() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name") || line.starts_with("Model"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Threads that run at once.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Host memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes of the machine.
    pub total: u64,
    /// Bytes available without swapping.
    pub available: u64,
    /// Free swap space.
    pub swap_free: u64,
    /// Free reserved huge pages.
    pub huge_free: u64,
    /// The size of a huge page.
    pub huge_size: u64,
}

/// Host memory, as the kernel counts it.
pub fn memory() -> Option<Memory> {
    parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)
}

/// The most memory that this process ever had resident, in bytes.
pub fn peak_memory() -> Option<u64> {
    status("self", "VmHWM:")
}

/// The memory that a process has resident, in bytes.
pub fn resident_memory(process: u32) -> Option<u64> {
    status(&process.to_string(), "VmRSS:")
}

fn status(process: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

fn parse_meminfo(text: &str) -> Option<Memory> {
    let number = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let kib = |key: &str| number(key).map(|n| n << 10);
    Some(Memory {
        total: kib("MemTotal")?,
        available: kib("MemAvailable")?,
        swap_free: kib("SwapFree").unwrap_or(0),
        huge_free: number("HugePages_Free").unwrap_or(0),
        huge_size: kib("Hugepagesize").unwrap_or(0),
    })
}

/// How much memory a process may lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A number of bytes.
    Bytes(u64),
    /// Any amount.
    Unlimited,
}

/// The limit on locked (pinned) memory.
pub fn memlock() -> Option<Limit> {
    parse_memlock(&fs::read_to_string("/proc/self/limits").ok()?)
}

fn parse_memlock(text: &str) -> Option<Limit> {
    let soft = text.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    match soft.split_whitespace().next()? {
        "unlimited" => Some(Limit::Unlimited),
        bytes => bytes.parse().ok().map(Limit::Bytes),
    }
}

/// The kernel's setting for transparent huge pages: `always`, `madvise` or `never`.
pub fn transparent_huge_pages() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let chosen = text.split_once('[')?.1.split_once(']')?.0;
    Some(chosen.to_owned())
}

/// The version of NVIDIA's driver, if its kernel module is loaded.
pub fn cuda_driver() -> Option<String> {
    let text = fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let version = text
        .lines()
        .next()?
        .split_whitespace()
        .find(|word| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.'));
    Some(version.unwrap_or("of unknown version").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_tables_are_read() {
        let text = "MemTotal:       24603132 kB\nMemFree: 1 kB\nMemAvailable:   22000000 kB\nSwapFree: 8 kB\n\
                    HugePages_Total:       4\nHugePages_Free:        3\nHugepagesize:       2048 kB\n";
        let memory = parse_meminfo(text).unwrap();
        assert_eq!(memory.total, 24_603_132 << 10);
        assert_eq!((memory.swap_free, memory.huge_free, memory.huge_size), (8 << 10, 3, 2 << 20));
        assert_eq!(parse_meminfo("MemTotal: x kB"), None);
        let limits =
            "Limit  Soft Limit  Hard Limit  Units\nMax locked memory         65536      unlimited   bytes\n";
        assert_eq!(parse_memlock(limits), Some(Limit::Bytes(65536)));
        assert_eq!(parse_memlock("Max locked memory unlimited unlimited bytes"), Some(Limit::Unlimited));
        assert_eq!(parse_memlock(""), None);
    }
}
