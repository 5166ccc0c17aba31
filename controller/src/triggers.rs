//! Decides when to write a dump during a session. Policy only: uses numbers that were read for
//! other purposes, and states why a dump is due.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mem_agents::cgroup;
use mem_agents::text;
use nix::sys::signal::Signal;
use proc::Stat;
use shm_protocol::snapshot::Totals;

/// A threshold fires again once the value has fallen below this fraction of it.
const REARM_FRACTION: f64 = 0.9;
/// Delay before a failed dump is retried.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Conditions for dumps during a session. There is always one at the end.
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    /// Interval between dumps.
    pub every: Option<Duration>,
    /// Number of bytes allocated between dumps.
    pub every_alloc: Option<u64>,
    /// Growth of the live heap between dumps, in bytes.
    pub every_growth: Option<u64>,
    /// True if the profile of the high-water mark is written at the end.
    pub peak: bool,
    /// Resident memory that triggers a dump, in bytes.
    pub on_rss: Option<u64>,
    /// Memory of the control group that triggers a dump.
    pub on_cgroup: Option<Threshold>,
    /// Signal that triggers a dump.
    pub signal: Option<Signal>,
    /// Maximum number of dumps kept per process; the oldest are removed. `None`: no limit.
    pub keep: Option<usize>,
}

/// Amount of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// Number of bytes.
    Bytes(u64),
    /// Fraction of a limit, 0 to 1.
    Share(f64),
}

impl Triggers {
    /// Returns true if a trigger needs frequent polling.
    pub fn needs_polling(&self) -> bool {
        self.every_alloc.is_some()
            || self.every_growth.is_some()
            || self.on_rss.is_some()
            || self.on_cgroup.is_some()
    }
}

/// Time before the end of a session in which no periodic dump is written, since the last one
/// follows.
const END_MARGIN: Duration = Duration::from_secs(1);

/// State of the triggers of one process.
pub struct Watcher {
    /// Time of the next periodic dump.
    next_time: Option<Instant>,
    /// End of the session, if it is known.
    end: Option<Instant>,
    /// Number of allocated bytes at which the next dump is due.
    next_alloc: f64,
    /// Number of live bytes at which the next dump is due.
    next_live: f64,
    /// True once `on_rss` has fired, until it is rearmed.
    rss_fired: bool,
    /// True once `on_cgroup` has fired, until it is rearmed.
    cgroup_fired: bool,
    /// Time and reason of the retry of a failed dump.
    retry: Option<(Instant, String)>,
    /// Dumps written so far, oldest first.
    files: VecDeque<PathBuf>,
    /// Mark of estimates in reasons; empty if every allocation is sampled.
    estimate_mark: &'static str,
}

impl Watcher {
    /// Creates the state for a process whose session starts now. `left` is the time until its end.
    pub fn new(triggers: &Triggers, left: Option<Duration>) -> Self {
        let now = Instant::now();
        let first = |step: Option<u64>| step.map_or(f64::INFINITY, |step| step as f64);
        Self {
            next_time: triggers.every.map(|every| now + every),
            end: left.and_then(|left| now.checked_add(left)),
            next_alloc: first(triggers.every_alloc),
            next_live: first(triggers.every_growth),
            rss_fired: false,
            cgroup_fired: false,
            retry: None,
            files: VecDeque::new(),
            estimate_mark: "~",
        }
    }

    /// Sets whether every allocation is sampled, so that numbers in reasons are not estimates.
    pub fn with_exactness(self, is_exact: bool) -> Self {
        Self {
            estimate_mark: if is_exact { "" } else { "~" },
            ..self
        }
    }

    /// Returns the reason why a dump is due, if it is. Returns each reason once.
    pub fn dump_reason(
        &mut self,
        triggers: &Triggers,
        pid: i32,
        totals: &Totals,
    ) -> Option<String> {
        let now = Instant::now();
        let mut reasons = Vec::new();
        if let Some((_, reason)) = self.retry.take_if(|(time, _)| *time <= now) {
            reasons.push(reason);
        }
        reasons.extend(self.periodic_reason(triggers, now));
        reasons.extend(self.allocation_reason(triggers, totals.alloc_bytes));
        reasons.extend(self.growth_reason(triggers, totals.live_bytes));
        reasons.extend(self.rss_reason(triggers, pid));
        reasons.extend(self.cgroup_reason(triggers, pid));
        (!reasons.is_empty()).then(|| reasons.join(", "))
    }

    fn periodic_reason(&mut self, triggers: &Triggers, now: Instant) -> Option<String> {
        let every = triggers.every?;
        let next = self.next_time?;
        let is_last = |end: Instant| next + (every / 8).min(END_MARGIN) >= end;
        if now < next || self.end.is_some_and(is_last) {
            return None;
        }
        // Dumps that were missed, for example during suspend, are skipped.
        let periods = (now - next).as_nanos() / every.as_nanos().max(1) + 1;
        self.next_time = Some(next + every * u32::try_from(periods).unwrap_or(u32::MAX));
        Some(format!("every {every:?}"))
    }

    fn allocation_reason(&mut self, triggers: &Triggers, bytes: f64) -> Option<String> {
        let step = triggers.every_alloc? as f64;
        if bytes < self.next_alloc {
            return None;
        }
        self.next_alloc = ((bytes / step).floor() + 1.0) * step;
        let mark = self.estimate_mark;
        Some(format!("{mark}{} allocated", text::bytes(bytes)))
    }

    fn growth_reason(&mut self, triggers: &Triggers, live: f64) -> Option<String> {
        let step = triggers.every_growth? as f64;
        if live < self.next_live {
            return None;
        }
        self.next_live = live + step;
        let mark = self.estimate_mark;
        Some(format!("live heap grown to {mark}{}", text::bytes(live)))
    }

    fn rss_reason(&mut self, triggers: &Triggers, pid: i32) -> Option<String> {
        let limit = triggers.on_rss? as f64;
        let rss = Stat::of(pid)?.rss_bytes()? as f64;
        let has_crossed = crosses(&mut self.rss_fired, rss, limit);
        has_crossed.then(|| format!("resident memory at {}", text::bytes(rss)))
    }

    fn cgroup_reason(&mut self, triggers: &Triggers, pid: i32) -> Option<String> {
        let threshold = triggers.on_cgroup?;
        let memory = cgroup::Membership::of(pid).memory()?;
        let limit = match threshold {
            Threshold::Bytes(bytes) => bytes as f64,
            Threshold::Share(share) => memory.limit? as f64 * share,
        };
        let current = memory.current as f64;
        let has_crossed = crosses(&mut self.cgroup_fired, current, limit);
        has_crossed.then(|| format!("memory of the control group at {}", text::bytes(current)))
    }

    /// Records a dump that was written, and cancels the retry of a failed one, since every dump
    /// covers the time from the start. Returns a dump to be removed.
    pub fn record_dump(&mut self, file: PathBuf, keep: Option<usize>) -> Option<PathBuf> {
        self.retry = None;
        self.files.push_back(file);
        let is_too_many = keep.is_some_and(|keep| self.files.len() > keep);
        is_too_many.then(|| self.files.pop_front()).flatten()
    }

    /// Records a failed dump, to be retried.
    pub fn record_failure(&mut self, reason: &str) {
        let reason = reason.strip_suffix(" (late)").unwrap_or(reason);
        self.retry = Some((Instant::now() + RETRY_DELAY, format!("{reason} (late)")));
    }
}

/// Returns true if a value has just reached a limit. `fired` is the state of the trigger.
fn crosses(fired: &mut bool, value: f64, limit: f64) -> bool {
    let fires = value >= limit && !*fired;
    *fired = value >= limit || *fired && value >= limit * REARM_FRACTION;
    fires
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(alloc_bytes: f64, live_bytes: f64) -> Totals {
        Totals {
            alloc_bytes,
            live_bytes,
            ..Totals::default()
        }
    }

    #[test]
    fn no_periodic_dump_is_due_just_before_the_end() {
        let triggers = Triggers {
            every: Some(Duration::from_millis(1)),
            ..Triggers::default()
        };
        let due = |left: Option<Duration>| {
            let mut watcher = Watcher::new(&triggers, left);
            watcher.periodic_reason(&triggers, Instant::now() + Duration::from_millis(2))
        };
        assert!(due(None).is_some());
        assert!(due(Some(Duration::from_secs(1))).is_some());
        assert_eq!(due(Some(Duration::from_millis(1))), None);
    }

    #[test]
    fn allocation_and_growth_fire_at_their_steps() {
        let triggers = Triggers {
            every_alloc: Some(100),
            every_growth: Some(50),
            ..Triggers::default()
        };
        let mut watcher = Watcher::new(&triggers, None);
        let mut due = |alloc, live| watcher.dump_reason(&triggers, 1, &totals(alloc, live));
        assert_eq!(due(99.0, 49.0), None);
        assert_eq!(due(350.0, 0.0).as_deref(), Some("~350 B allocated"));
        assert_eq!(due(399.0, 0.0), None);
        assert_eq!(due(400.0, 0.0).as_deref(), Some("~400 B allocated"));
        assert_eq!(
            due(401.0, 60.0).as_deref(),
            Some("live heap grown to ~60 B")
        );
        assert_eq!(due(402.0, 109.0), None);
        assert_eq!(
            due(500.0, 110.0).as_deref(),
            Some("~500 B allocated, live heap grown to ~110 B")
        );
        let mut exact = Watcher::new(&triggers, None).with_exactness(true);
        let due = exact.dump_reason(&triggers, 1, &totals(350.0, 0.0));
        assert_eq!(due.as_deref(), Some("350 B allocated"));
    }

    #[test]
    fn thresholds_fire_again_only_after_the_value_has_fallen() {
        let mut fired = false;
        let mut crosses = |value| crosses(&mut fired, value, 100.0);
        assert!(!crosses(99.0) && crosses(100.0) && !crosses(120.0));
        assert!(
            !crosses(95.0) && !crosses(101.0),
            "a small dip does not rearm the trigger"
        );
        assert!(!crosses(80.0) && crosses(100.0));
    }

    #[test]
    fn late_periodic_dumps_are_written_once() {
        let triggers = Triggers {
            every: Some(Duration::from_secs(3600)),
            ..Triggers::default()
        };
        let mut watcher = Watcher::new(&triggers, None);
        let start = watcher.next_time.unwrap();
        assert_eq!(
            watcher.periodic_reason(&triggers, start - Duration::from_secs(1)),
            None
        );
        let late = start + Duration::from_secs(3 * 3600 + 5);
        assert_eq!(
            watcher.periodic_reason(&triggers, late).as_deref(),
            Some("every 3600s")
        );
        assert_eq!(
            watcher.periodic_reason(&triggers, late + Duration::from_secs(3000)),
            None
        );
        assert!(
            watcher
                .periodic_reason(&triggers, start + Duration::from_secs(4 * 3600))
                .is_some()
        );
    }

    #[test]
    fn failed_dumps_are_retried_and_old_ones_are_removed() {
        let mut watcher = Watcher::new(&Triggers::default(), None);
        watcher.record_failure("every 1s");
        watcher.record_failure("every 1s (late)");
        assert_eq!(watcher.retry.as_ref().unwrap().1, "every 1s (late)");
        assert_eq!(watcher.record_dump("a".into(), Some(2)), None);
        assert!(watcher.retry.is_none());
        assert_eq!(watcher.record_dump("b".into(), Some(2)), None);
        assert_eq!(watcher.record_dump("c".into(), Some(2)), Some("a".into()));
        assert_eq!(watcher.record_dump("d".into(), None), None);
    }
}
