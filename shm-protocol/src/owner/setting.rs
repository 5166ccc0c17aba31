//! The setting that the threads of a process sample by.

use super::Sessions;
use crate::bank::Bank;
use crate::cpu::CpuSetting;
use crate::layout::{Control, MAGIC};
use crate::segment::Session;
use crate::sync::{AtomicU64, Ordering, fence};

/// The parameters of one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Number of the epoch.
    pub epoch: u32,
    /// The session's number.
    pub session: u64,
    /// Mean bytes between samples; 0: none, CPU time alone is sampled.
    pub interval: u64,
    /// End, in ns of the machine's clock; 0: none.
    pub deadline_ns: u64,
    /// Start, in ns of the machine's clock.
    pub start_ns: u64,
    /// Maximum address space for sampled objects; 0: no limit.
    pub range_limit: u64,
    /// For well-known call sites at least one due sample in 2^this is taken; 0: each one.
    pub thinning: u64,
    /// What is wanted of CPU time.
    pub cpu: CpuSetting,
}

impl Setting {
    /// The setting in force. `None` if there is none, or if it changed meanwhile.
    #[must_use]
    pub fn in_force(control: &Control) -> Option<Self> {
        let epoch = control.epoch(Ordering::Acquire);
        if epoch == 0 {
            return None;
        }
        let params = control.params_of(epoch);
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let cpu = control.cpu[epoch as usize & 1].read();
        let least = u64::from(cpu.rate == 0);
        let setting = Self {
            epoch,
            session: read(&params.session),
            interval: read(&params.interval).max(least),
            deadline_ns: read(&params.deadline_ns),
            start_ns: read(&params.start_ns),
            range_limit: read(&params.range_limit),
            thinning: read(&params.thinning),
            cpu,
        };
        // A thread may sleep for two sessions between any two of these. Parameters are rewritten
        // only after their epoch is over. It is not over, so they belong to it.
        fence(Ordering::Acquire);
        let stays = control.epoch(Ordering::Relaxed) == epoch;
        (stays && setting.session != 0).then_some(setting)
    }

    /// Whether the epoch that was entered is still the one with its number: a program that takes another
    /// one's place in this memory begins to count anew.
    #[inline]
    #[must_use]
    pub fn is_current(control: &Control, epoch: u32, session: u64, deadline_ns: u64) -> bool {
        let params = control.params_of(epoch);
        params.session.load(Ordering::Relaxed) == session
            && params.deadline_ns.load(Ordering::Relaxed) == deadline_ns
    }

    /// Ends an epoch if it is in force. Returns whether it was.
    pub fn end(control: &Control, epoch: u32) -> bool {
        let ended = control
            .epoch
            .compare_exchange(epoch, 0, Ordering::AcqRel, Ordering::Relaxed);
        ended.is_ok()
    }
}

/// Makes a new segment visible to controllers and begins its first session, whose bank
/// is prepared. Called by the segment's maker.
pub fn appear(control: &Control, magic: &AtomicU64, first: Option<&Session>) {
    if let Some(session) = first {
        begin(control, session);
    }
    // After the session: a controller that finds a segment without one may begin one.
    magic.store(MAGIC, Ordering::Release);
}

/// Publishes the first session of a segment that no controller commands yet.
fn begin(control: &Control, session: &Session) {
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
    ] {
        word.store(value, Ordering::Relaxed);
    }
    control.cpu[FIRST as usize & 1].write(session.cpu);
    control.last_epoch.store(FIRST, Ordering::Relaxed);
    control.epoch.store(FIRST, Ordering::Release);
}

/// A session that a thread has met.
pub struct Met<'a> {
    /// Its parameters.
    pub setting: Setting,
    /// Its bank.
    pub bank: Bank<'a>,
    /// Its first tick.
    pub start_tick: u32,
}

/// Meets the session in force, and records it for frees by threads that do not meet it. `bank`
/// maps the bank of a session, `tick` gives the tick of a time. `None` if there is no session, or
/// its bank is not ready.
pub fn meet<'a>(
    control: &Control,
    sessions: &Sessions,
    bank: impl FnOnce(u64) -> Option<Bank<'a>>,
    tick: impl FnOnce(u64) -> u32,
) -> Option<Met<'a>> {
    let setting = Setting::in_force(control)?;
    let session = setting.session;
    let bank = bank(session).filter(|bank| bank.holds(session))?;
    let start_tick = tick(setting.start_ns);
    sessions.note(session, start_tick);
    Some(Met {
        setting,
        bank,
        start_tick,
    })
}
