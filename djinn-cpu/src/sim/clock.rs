//! Virtual time: what a copy and an operation would take on a device of given bandwidths.

use djinn_device::Space;
use std::time::Duration;

/// Stretches of use that a link remembers; the oldest gaps are forgotten.
const REMEMBERED: usize = 256;

/// The device's speeds, and who has its links when.
pub(super) struct Clock {
    link_bytes_per_second: f64,
    memory_bytes_per_second: f64,
    launch_overhead: Duration,
    to_device: Link,
    to_host: Link,
    /// What the host has seen the end of; nothing enqueued later starts before.
    host: Duration,
}

impl Clock {
    pub(super) fn new(link_bytes_per_second: f64, memory_bytes_per_second: f64, overhead: Duration) -> Self {
        Clock {
            link_bytes_per_second,
            memory_bytes_per_second,
            launch_overhead: overhead,
            to_device: Link::default(),
            to_host: Link::default(),
            host: Duration::ZERO,
        }
    }

    /// The host's time.
    pub(super) fn host(&self) -> Duration {
        self.host
    }

    /// The host has seen what ended at `at`.
    pub(super) fn host_saw(&mut self, at: Duration) {
        self.host = self.host.max(at);
    }

    /// When a copy that may start at `from` ends. Copies across the link in one direction take turns.
    pub(super) fn copy(&mut self, from: Duration, src: Space, dst: Space, bytes: u64) -> Duration {
        let time = Duration::from_secs_f64(bytes as f64 / self.link_bytes_per_second);
        match (src, dst) {
            (Space::Host, Space::Device) => self.to_device.reserve(from, time),
            (Space::Device, Space::Host) => self.to_host.reserve(from, time),
            _ => self.work(from, bytes.saturating_mul(2)),
        }
    }

    /// When work that may start at `from` and moves `bytes` of memory ends.
    pub(super) fn work(&self, from: Duration, bytes: u64) -> Duration {
        let time = Duration::from_secs_f64(bytes as f64 / self.memory_bytes_per_second);
        from + time + self.launch_overhead
    }
}

/// One direction of the link: when it is taken, in ascending stretches that do not touch. The simulator
/// carries copies out in any order, so a copy takes the first gap that holds it.
#[derive(Default)]
struct Link(Vec<(Duration, Duration)>);

impl Link {
    fn reserve(&mut self, from: Duration, time: Duration) -> Duration {
        if time.is_zero() {
            return from;
        }
        let mut start = from;
        let mut index = 0;
        for &(taken, free) in &self.0 {
            if start + time <= taken {
                break;
            }
            start = start.max(free);
            index += 1;
        }
        let end = start + time;
        self.0.insert(index, (start, end));
        self.0.dedup_by(|next, kept| {
            let touch = kept.1 == next.0;
            kept.1 = if touch { next.1 } else { kept.1 };
            touch
        });
        if self.0.len() > REMEMBERED {
            self.0[1].0 = self.0[0].0;
            self.0.remove(0);
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_link_fills_the_first_gap_that_fits() {
        let mut link = Link::default();
        assert_eq!(link.reserve(s(10), s(5)), s(15));
        assert_eq!(link.reserve(s(0), s(4)), s(4));
        assert_eq!(link.reserve(s(2), s(7)), s(22), "from 4 to 10 are only six seconds");
        assert_eq!(link.reserve(s(1), s(6)), s(10));
        assert_eq!(link.0, [(s(0), s(22))]);
        assert_eq!(link.reserve(s(30), s(1)), s(31));
        assert_eq!(link.reserve(s(12), s(0)), s(12));
    }

    #[test]
    fn a_link_forgets_the_oldest_gaps() {
        let mut link = Link::default();
        for i in 0..2 * REMEMBERED as u64 {
            link.reserve(s(2 * i), s(1));
        }
        assert_eq!(link.0.len(), REMEMBERED);
        assert_eq!(link.reserve(s(0), s(1)), s(2 * REMEMBERED as u64 + 2));
    }

    #[test]
    fn directions_do_not_share_the_link() {
        let mut clock = Clock::new(1.0, 2.0, s(3));
        assert_eq!(clock.copy(s(1), Space::Host, Space::Device, 5), s(6));
        assert_eq!(clock.copy(s(1), Space::Device, Space::Host, 5), s(6));
        assert_eq!(clock.copy(s(1), Space::Host, Space::Device, 5), s(11));
        assert_eq!(clock.copy(s(1), Space::Device, Space::Device, 5), s(9));
        assert_eq!(clock.work(s(1), 4), s(6));
    }
}
