//! What samples stand for where the kernel's events sample processors, and count nothing of a
//! thread or a process.
//!
//! Such samples hit all that a process does alike, threads that live for a moment too. So what it
//! used since its clock was last read is shared evenly by the samples that came of it meanwhile.
//! The clock is read when there are samples: the next ones stand for what went by without any.
//!
//! The kernel says how many samples were lost, but not whose: what a process lacks of those that its
//! clock would have is its part.

use std::collections::{HashMap, HashSet};

/// Clocks of processes.
pub(crate) struct Meters {
    period: u64,
    /// The CPU time of each when its clock was last read.
    told: HashMap<i32, u64>,
    /// What each sample of this round stands for, by process.
    shares: HashMap<i32, u64>,
    /// Processes of which samples may have been lost since their clocks were read.
    lossy: HashSet<i32>,
}

impl Meters {
    /// Of samples that come after `period` nanoseconds each.
    pub(crate) fn new(period: u64) -> Self {
        Self {
            period,
            told: HashMap::new(),
            shares: HashMap::new(),
            lossy: HashSet::new(),
        }
    }

    /// A process is sampled from now on, when its clock says this.
    pub(crate) fn begin(&mut self, pid: i32, now: Option<u64>) {
        self.told.insert(pid, now.unwrap_or(0));
    }

    /// Samples were lost, of whoever it was.
    pub(crate) fn some_were_lost(&mut self) {
        self.lossy.extend(self.told.keys());
    }

    /// Takes in that processes have so many samples each. `clock` gives a process's clock. How many
    /// were lost of each, where any were.
    pub(crate) fn round(
        &mut self,
        samples: &HashMap<i32, u64>,
        clock: impl Fn(i32) -> Option<u64>,
    ) -> Vec<(i32, u64)> {
        let mut lost = Vec::new();
        self.shares.clear();
        for (&pid, &count) in samples {
            // One that has ended has no clock.
            let share = clock(pid).map_or(self.period, |now| {
                let before = self.told.insert(pid, now).unwrap_or(now);
                let used = now.saturating_sub(before);
                if self.lossy.remove(&pid) {
                    lost.push((pid, (used / self.period.max(1)).saturating_sub(count)));
                }
                used / count.max(1)
            });
            self.shares.insert(pid, share);
        }
        lost
    }

    /// What a sample of this process stands for, in this round.
    pub(crate) fn share(&self, pid: i32) -> u64 {
        self.shares.get(&pid).copied().unwrap_or(self.period)
    }

    /// Processes ended.
    pub(crate) fn forget(&mut self, pids: &[i32]) {
        self.told.retain(|pid, _| !pids.contains(pid));
        self.lossy.retain(|pid| !pids.contains(pid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_share_what_their_process_used_since_the_last_ones() {
        let mut meters = Meters::new(10);
        meters.begin(7, Some(100));
        meters.begin(8, None);
        let mut round = |seven: Option<u64>, eight: Option<u64>| {
            let samples = HashMap::from([(7, 2), (8, 1)]);
            let _ = meters.round(&samples, |pid| if pid == 7 { seven } else { eight });
            [meters.share(7), meters.share(8)]
        };
        assert_eq!(round(Some(124), Some(11)), [12, 11]);
        // Most of the samples were lost.
        assert_eq!(round(Some(324), Some(12)), [100, 1]);
        // One has ended; the other's clock went backwards.
        assert_eq!(round(Some(300), None), [0, 10]);
        assert_eq!(round(Some(320), Some(15)), [10, 3]);
        // A process of which there was no sample.
        assert_eq!(meters.share(9), 10);
        meters.forget(&[7]);
        let _ = meters.round(&HashMap::from([(7, 1)]), |_| Some(1000));
        assert_eq!(meters.share(7), 0);
    }

    #[test]
    fn what_was_lost_is_told_of_those_whose_clocks_went_on() {
        let mut meters = Meters::new(10);
        meters.begin(7, Some(0));
        meters.begin(8, Some(0));
        let both = HashMap::from([(7, 2), (8, 1)]);
        // Late samples are none that were lost.
        assert_eq!(meters.round(&both, |_| Some(100)), []);
        meters.some_were_lost();
        // Of the other one there is no sample now: it is told with the next.
        let one = HashMap::from([(7, 2)]);
        assert_eq!(meters.round(&one, |_| Some(200)), [(7, 8)]);
        let mut told = meters.round(&both, |_| Some(220));
        told.sort_unstable();
        assert_eq!(told, [(8, 11)]);
        meters.some_were_lost();
        meters.forget(&[7, 8]);
        assert_eq!(meters.round(&both, |_| Some(500)), []);
    }
}
