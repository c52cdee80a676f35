//! Facts about the machine from the operating system. Unknown facts are `None`, as on systems without `/proc`.

use std::fs;
use std::path::Path;

/// The CPU's name.
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
    /// Bytes of the machine, or of the control group (container) if that has fewer.
    pub total: u64,
    /// Bytes available without swapping, of both.
    pub available: u64,
    /// Free swap space.
    pub swap_free: u64,
    /// Free reserved huge pages.
    pub huge_free: u64,
    /// The size of a huge page.
    pub huge_size: u64,
}

/// Host memory, as the kernel counts it, within the limits of this process's control groups (version 2).
pub fn memory() -> Option<Memory> {
    let memory = parse_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(within_groups(memory, Path::new("/sys/fs/cgroup"), &groups))
}

/// `memory` within the limits of the control group that `groups`, the text of `/proc/self/cgroup`, names, and of those above
/// it. `root` is where their files are. In a container the group's own folder is the root.
fn within_groups(mut memory: Memory, root: &Path, groups: &str) -> Memory {
    let name = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
    for group in Path::new(name).ancestors() {
        let number = |file: &str| {
            let text = fs::read_to_string(root.join(group).join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        // `max`, which is no number, is no limit.
        if let Some(limit) = number("memory.max") {
            // Cached files are given up when memory is needed.
            let stat = fs::read_to_string(root.join(group).join("memory.stat")).unwrap_or_default();
            let cached =
                |key: &str| stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<u64>().ok());
            let cached = cached("inactive_file ").unwrap_or(0);
            let used = number("memory.current").unwrap_or(0).saturating_sub(cached);
            memory.total = memory.total.min(limit);
            memory.available = memory.available.min(limit.saturating_sub(used));
        }
        if let Some(limit) = number("memory.swap.max") {
            let used = number("memory.swap.current").unwrap_or(0);
            memory.swap_free = memory.swap_free.min(limit.saturating_sub(used));
        }
    }
    memory
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

    #[test]
    fn control_groups_bound_memory() {
        let root = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let machine = Memory { total: 1000, available: 900, swap_free: 80, huge_free: 3, huge_size: 2 };
        let within = |groups: &str| within_groups(machine, root.path(), groups);
        assert_eq!(within("0::/a/b\n"), machine);
        write("a/memory.max", "500\n");
        write("a/memory.current", "300\n");
        write("a/memory.stat", "anon 150\ninactive_file 100\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.swap.max", "0\n");
        let bounded = Memory { total: 500, available: 300, swap_free: 0, ..machine };
        assert_eq!(within("0::/a/b\n"), bounded);
        assert_eq!(within("1:cpu:/x\n0::/a\n"), Memory { swap_free: 80, ..bounded });
        assert_eq!(within("0::/c\n"), machine);
        // A container's own group is the root.
        write("memory.max", "200\n");
        write("memory.current", "300\n");
        assert_eq!(within("0::/\n"), Memory { total: 200, available: 0, ..machine });
    }
}
