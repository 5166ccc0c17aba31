//! Tells samples that took as long as others from those that took much longer, because they read a
//! module, or because the thread was suspended.

/// Time up to which every sample is usual, in ns.
const ALWAYS_USUAL_NS: u64 = 50_000;
/// Maximum time of a usual sample, as a multiple of the mean. On slow processors, and with deep
/// stacks, every sample takes long.
const MAX_RATIO: u64 = 8;
/// Number of samples over which the mean is taken.
const WINDOW: u64 = 8;

/// Mean time of a thread's samples, in ns.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usual {
    mean_ns: u64,
}

impl Usual {
    /// Adds a sample. Returns true if it stands for others.
    pub fn add(&mut self, ns: u64) -> bool {
        let limit = ALWAYS_USUAL_NS.max(self.mean_ns * MAX_RATIO);
        // One that took much longer counts as the longest usual one.
        self.mean_ns += ns.min(limit) / WINDOW;
        self.mean_ns -= self.mean_ns / WINDOW;
        ns <= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds `count` samples. Returns the number of those that stand for others.
    fn add(usual: &mut Usual, ns: u64, count: u32) -> u32 {
        (0..count).map(|_| u32::from(usual.add(ns))).sum()
    }

    #[test]
    fn where_every_sample_takes_long_it_is_usual() {
        for ns in [800, 60_000, 400_000, 5_000_000] {
            let mut usual = Usual::default();
            let first = add(&mut usual, ns, 16);
            assert!(first >= 4, "{ns}: {first}");
            assert_eq!(add(&mut usual, ns, 100), 100, "{ns}");
        }
    }

    #[test]
    fn a_suspended_thread_is_no_usual_sample() {
        for ns in [800, 5000, 60_000] {
            let mut usual = Usual::default();
            add(&mut usual, ns, 100);
            for _ in 0..10 {
                assert!(!usual.add(4_000_000), "{ns}");
                assert_eq!(add(&mut usual, ns, 63), 63, "{ns}");
            }
        }
    }
}
