//! CPU sampling by the process itself: parameters that a controller sets, and totals that do not
//! belong to a stack.
//!
//! CPU samples are part of a session, together with its heap samples or alone (its interval is 0
//! then). Their stacks are in the session's tree, with records of the size class
//! [`CPU_CLASS`](crate::record::CPU_CLASS), which no object has.

use crate::sync::{AtomicU64, Ordering};
use core::sync::atomic::{AtomicU32, AtomicU64 as PlainAtomicU64};

/// CPU sampling parameters of an epoch, as published. Written like the other parameters.
#[repr(C)]
pub struct CpuParams {
    /// Number of samples per second of each thread's CPU time; 0 if CPU time is not sampled.
    pub rate: AtomicU64,
    /// Mask of signals that must not be used, because the program blocks or handles them. Bit N - 1
    /// stands for signal N.
    pub avoid: AtomicU64,
}

/// CPU sampling parameters as a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSetting {
    /// Sampling rate; see [`CpuParams::rate`].
    pub rate: u64,
    /// Mask of signals; see [`CpuParams::avoid`].
    pub avoid: u64,
}

impl CpuParams {
    /// Reads the parameters.
    #[must_use]
    pub fn read(&self) -> CpuSetting {
        CpuSetting {
            rate: self.rate.load(Ordering::Relaxed),
            avoid: self.avoid.load(Ordering::Relaxed),
        }
    }

    /// Writes the parameters of an epoch that is not published.
    pub fn write(&self, setting: CpuSetting) {
        self.rate.store(setting.rate, Ordering::Relaxed);
        self.avoid.store(setting.avoid, Ordering::Relaxed);
    }
}

/// State of CPU sampling in a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum CpuState {
    /// The process has not noticed the session yet: none of its threads has allocated memory since
    /// the session started.
    #[default]
    Unnoticed = 0,
    /// Threads have timers.
    Armed = 1,
    /// The session is over, and its timers are deleted.
    Disarmed = 2,
    /// The process is under a seccomp filter, which may forbid timers.
    Filtered = 3,
    /// No signal is free.
    NoSignal = 4,
    /// The program has started to use the signal itself.
    SignalTaken = 5,
    /// The kernel refused a timer or memory.
    Failed = 6,
}

impl CpuState {
    /// Returns the state with this number; [`Unnoticed`](Self::Unnoticed) if there is none.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        const ALL: [CpuState; 7] = [
            CpuState::Unnoticed,
            CpuState::Armed,
            CpuState::Disarmed,
            CpuState::Filtered,
            CpuState::NoSignal,
            CpuState::SignalTaken,
            CpuState::Failed,
        ];
        ALL.get(number as usize).copied().unwrap_or_default()
    }
}

/// Number of reasons why a stack is truncated. They are numbered as in `unwind::Cause`.
pub const CPU_CAUSES: usize = 6;

/// Totals of CPU sampling in a session. Incremented with locked instructions, since all of these
/// events happen at most a few thousand times a second.
#[repr(C)]
pub struct CpuTotals {
    /// State, as the number of a [`CpuState`].
    pub state: AtomicU32,
    /// `errno` of the failed call, for [`CpuState::Failed`].
    pub errno: AtomicU32,
    /// Number of the signal in use.
    pub signal: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Number of threads with a timer.
    pub threads: PlainAtomicU64,
    /// Number of threads without a timer: there are too many, or the kernel has no more timers.
    pub unarmed: PlainAtomicU64,
    /// Number of samples.
    pub samples: PlainAtomicU64,
    /// CPU time that the samples stand for, in ns.
    pub ns: PlainAtomicU64,
    /// Number of timer expirations that were merged with another one.
    pub overruns: PlainAtomicU64,
    /// Number of samples not taken because the thread was in the agent. The next sample stands for
    /// their time too.
    pub postponed: PlainAtomicU64,
    /// Number of samples whose stack did not fit into the tree.
    pub full_samples: PlainAtomicU64,
    /// CPU time that the samples in `full_samples` stand for, in ns.
    pub full_ns: PlainAtomicU64,
    /// Number of samples with a truncated stack, by cause.
    pub truncated: [PlainAtomicU64; CPU_CAUSES],
    /// CPU time of the process in ns when its last thread ended or it ran its last destructor,
    /// whichever was later; 0 if neither has happened. Recorded because the process may be reaped
    /// before a controller can read its clock.
    pub process_ns: PlainAtomicU64,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use core::mem::{offset_of, size_of};

    #[test]
    fn layout_is_pinned() {
        assert_eq!(size_of::<CpuParams>(), 16);
        assert_eq!(size_of::<CpuTotals>(), 136);
        assert_eq!(offset_of!(CpuTotals, samples), 32);
        assert_eq!(offset_of!(CpuTotals, truncated), 80);
        assert_eq!(offset_of!(CpuTotals, process_ns), 128);
    }

    #[test]
    fn states_have_their_numbers() {
        for number in 0..7 {
            assert_eq!(CpuState::from_number(number) as u32, number);
        }
        for hostile in [7, u32::MAX] {
            assert_eq!(CpuState::from_number(hostile), CpuState::Unnoticed);
        }
    }
}
