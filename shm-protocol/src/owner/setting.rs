//! Sampling parameters in force, and how threads enter a session.

use super::Sessions;
use crate::bank::Bank;
use crate::cpu::CpuSetting;
use crate::layout::{Control, MAGIC};
use crate::segment::Session;
use crate::sync::{AtomicU64, Ordering, fence};

/// Parameters of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Number of the epoch.
    pub epoch: u32,
    /// Number of the session.
    pub session: u64,
    /// Mean number of bytes between samples; 0 if only CPU time is sampled.
    pub interval: u64,
    /// End of the session in ns of the machine's clock; 0 if none.
    pub deadline_ns: u64,
    /// Start of the session in ns of the machine's clock.
    pub start_ns: u64,
    /// Maximum address space for sampled objects in bytes; 0 if there is no limit.
    pub range_limit: u64,
    /// Logarithm of the maximum thinning: at well-known call sites, at least one of 2^`thinning`
    /// due samples is taken. With 0, every due sample is taken.
    pub thinning: u64,
    /// Maximum share of the CPU time that sampling may take, in millionths; 0 if the interval is
    /// fixed.
    pub max_overhead: u64,
    /// CPU sampling parameters.
    pub cpu: CpuSetting,
}

impl Setting {
    /// Returns the setting in force, or `None` if there is none or it changed while it was being
    /// read.
    #[must_use]
    pub fn in_force(control: &Control) -> Option<Self> {
        let epoch = control.epoch(Ordering::Acquire);
        if epoch == 0 {
            return None;
        }
        let params = control.params_of(epoch);
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let cpu = control.cpu[epoch as usize & 1].read();
        // An interval of 0 is valid only if CPU time is sampled.
        let min_interval = if cpu.rate == 0 { 1 } else { 0 };
        let setting = Self {
            epoch,
            session: read(&params.session),
            interval: read(&params.interval).max(min_interval),
            deadline_ns: read(&params.deadline_ns),
            start_ns: read(&params.start_ns),
            range_limit: read(&params.range_limit),
            thinning: read(&params.thinning),
            max_overhead: read(&params.max_overhead),
            cpu,
        };
        // A thread may be preempted here for two whole sessions. Parameters are rewritten only
        // after their epoch is over. So if the epoch is still in force, the values read belong to
        // it.
        fence(Ordering::Acquire);
        let is_in_force = control.epoch(Ordering::Relaxed) == epoch;
        (is_in_force && setting.session != 0).then_some(setting)
    }

    /// Returns true if the epoch with these parameters is still in force. Its number alone is not
    /// sufficient: after an exec, epochs are counted from 1 again.
    #[inline]
    #[must_use]
    pub fn is_current(control: &Control, epoch: u32, session: u64, deadline_ns: u64) -> bool {
        let params = control.params_of(epoch);
        params.session.load(Ordering::Relaxed) == session
            && params.deadline_ns.load(Ordering::Relaxed) == deadline_ns
    }

    /// Ends an epoch if it is in force. Returns true if it was.
    pub fn end(control: &Control, epoch: u32) -> bool {
        let ended = control
            .epoch
            .compare_exchange(epoch, 0, Ordering::AcqRel, Ordering::Relaxed);
        ended.is_ok()
    }
}

/// Makes a new segment visible to controllers and starts its first session, whose bank is prepared.
/// Called by the process that made the segment.
pub fn publish(control: &Control, magic: &AtomicU64, first: Option<&Session>) {
    if let Some(session) = first {
        publish_first(control, session);
    }
    // Stored after the session has started: a controller that finds a segment without a session may
    // start one.
    magic.store(MAGIC, Ordering::Release);
}

/// Publishes the first session of a segment that no controller can see yet.
fn publish_first(control: &Control, session: &Session) {
    const FIRST: u32 = 1;
    let params = control.params_of(FIRST);
    for (word, value) in [
        (&params.session, session.number),
        (&params.interval, session.interval),
        (&params.deadline_ns, session.deadline_ns),
        (&params.start_ns, session.start_ns),
        (&params.start_unix_ns, session.start_unix_ns),
        (&params.controller_pid, session.controller_pid),
        (&params.range_limit, session.range_limit),
        (&params.thinning, session.thinning),
        (&params.max_overhead, session.max_overhead),
    ] {
        word.store(value, Ordering::Relaxed);
    }
    control.cpu[FIRST as usize & 1].write(session.cpu);
    control.last_epoch.store(FIRST, Ordering::Relaxed);
    control.epoch.store(FIRST, Ordering::Release);
}

/// Session that a thread has noticed.
pub struct EnteredSession<'a> {
    /// Parameters of the session.
    pub setting: Setting,
    /// Bank of the session.
    pub bank: Bank<'a>,
    /// First tick of the session.
    pub start_tick: u32,
}

/// Enters the session in force, and records it for frees by threads that do not notice it. `bank`
/// maps the bank of a session; `tick` returns the tick of a time. Returns `None` if there is no
/// session or its bank is not ready.
pub fn enter<'a>(
    control: &Control,
    sessions: &Sessions,
    bank: impl FnOnce(u64) -> Option<Bank<'a>>,
    tick: impl FnOnce(u64) -> u32,
) -> Option<EnteredSession<'a>> {
    let setting = Setting::in_force(control)?;
    let session = setting.session;
    let bank = bank(session).filter(|bank| bank.holds_session(session))?;
    let start_tick = tick(setting.start_ns);
    sessions.record(session, start_tick);
    Some(EnteredSession {
        setting,
        bank,
        start_tick,
    })
}
