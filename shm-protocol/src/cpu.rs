//! Sampling of CPU time by the process itself: what a controller requests, and what is counted
//! apart from the stacks.
//!
//! It is part of a session, beside its heap samples or instead of them (its interval is 0 then).
//! The stacks are in the session's tree, with records of the size class
//! [`CPU_CLASS`](crate::record::CPU_CLASS), which no object has.

use crate::sync::{AtomicU64, Ordering};
use core::sync::atomic::{AtomicU32, AtomicU64 as Word};

/// What an epoch wants of CPU time, as published. Written as the other parameters are.
#[repr(C)]
pub struct CpuParams {
    /// Samples in a second of each thread's CPU time; 0: none.
    pub rate: AtomicU64,
    /// Signals that must not be used, signal N being bit N - 1: the program blocks or handles them.
    pub avoid: AtomicU64,
}

/// The same as a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSetting {
    /// See [`CpuParams::rate`].
    pub rate: u64,
    /// See [`CpuParams::avoid`].
    pub avoid: u64,
}

impl CpuParams {
    /// The values.
    #[must_use]
    pub fn read(&self) -> CpuSetting {
        CpuSetting {
            rate: self.rate.load(Ordering::Relaxed),
            avoid: self.avoid.load(Ordering::Relaxed),
        }
    }

    /// Sets the values, of an epoch that is not published.
    pub fn write(&self, setting: CpuSetting) {
        self.rate.store(setting.rate, Ordering::Relaxed);
        self.avoid.store(setting.avoid, Ordering::Relaxed);
    }
}

/// How far the process has come with a session's CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum CpuState {
    /// It has not noticed yet: none of its threads has allocated memory since.
    #[default]
    Unnoticed = 0,
    /// Its threads have timers.
    Armed = 1,
    /// The session is over, and its timers are gone.
    Disarmed = 2,
    /// It is under a seccomp filter, which may forbid timers.
    Filtered = 3,
    /// Every signal that may be used is in use.
    NoSignal = 4,
    /// The program has taken the signal for itself.
    SignalTaken = 5,
    /// The kernel refused a timer, or memory.
    Failed = 6,
}

impl CpuState {
    /// The state with this number; hostile ones are the first.
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

/// Causes for which stacks are truncated, as the unwinder numbers them.
pub const CPU_CAUSES: usize = 6;

/// What is counted of CPU time in a session apart from the stacks. Added to with locked
/// instructions: all of it happens at most some thousand times a second.
#[repr(C)]
pub struct CpuTotals {
    /// A [`CpuState`].
    pub state: AtomicU32,
    /// `errno` of the call that failed, for [`CpuState::Failed`].
    pub errno: AtomicU32,
    /// The signal in use.
    pub signal: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Threads that got a timer.
    pub threads: Word,
    /// Threads that got none: there are too many, or the kernel has no more timers.
    pub unarmed: Word,
    /// Samples.
    pub samples: Word,
    /// The CPU time that they stand for, in ns.
    pub ns: Word,
    /// Ticks of timers that came together with another one.
    pub overruns: Word,
    /// Samples not taken as the thread was in the agent: the next one stands for their time too.
    pub postponed: Word,
    /// Samples without room for their stack.
    pub full_samples: Word,
    /// The CPU time that those stand for, in ns.
    pub full_ns: Word,
    /// Samples whose stack is truncated, by cause.
    pub truncated: [Word; CPU_CAUSES],
    /// The process's CPU clock when a thread of it ended or it ran its last destructor, whichever
    /// came last, in ns: the process that reaps it may be faster than a controller that reads the
    /// clock. 0: neither has happened.
    pub process_ns: Word,
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
