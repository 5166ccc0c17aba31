//! Measures the time between dumps, even if the system clock was set between them.
//!
//! A machine without a battery-backed clock starts in 1970 and jumps when it learns the time. So
//! dumps are ordered, and the time between them is measured, by the best clock that all of them
//! have. In order of preference: time since boot; time since the start of the session, which stops
//! while the machine is suspended; the system clock.

use std::collections::BTreeSet;

use crate::profile::Facts;

/// Difference between two clocks that is attributed to resolution and slewing, in ns.
const TOLERANCE_NS: u64 = 2_000_000_000;
/// Tolerated slew rate, as its reciprocal: one part in a thousand.
const SLEW_RECIPROCAL: u64 = 1000;

/// Clock that several dumps have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// Time since boot, including suspended time. All dumps are of one boot.
    Boot,
    /// Time since the start of the session. All dumps are of one session.
    Session,
    /// Time of day, which may have been set between the dumps.
    System,
}

impl Clock {
    /// Returns the best clock that all dumps have, or `None` if one of them has no time.
    pub fn common_to<'a>(dumps: impl Iterator<Item = &'a Facts> + Clone) -> Option<Self> {
        if dumps.clone().any(|facts| facts.end_unix_ns.is_none()) {
            return None;
        }
        let boots: Option<BTreeSet<_>> = dumps
            .clone()
            .map(|facts| facts.end_boot_ns.and(facts.boot_id.as_deref()))
            .collect();
        if boots.is_some_and(|boots| boots.len() == 1) {
            return Some(Self::Boot);
        }
        let sessions: Option<BTreeSet<_>> = dumps
            .map(|facts| {
                facts.duration_ns?;
                Some((facts.pid?, facts.start_unix_ns?, facts.boot_id.as_deref()))
            })
            .collect();
        if sessions.is_some_and(|sessions| sessions.len() == 1) {
            return Some(Self::Session);
        }
        Some(Self::System)
    }

    /// Returns the time of a dump, or of the end of its session, in ns of this clock.
    #[must_use]
    pub fn end_ns(self, facts: &Facts) -> Option<u64> {
        match self {
            Self::Boot => facts.end_boot_ns,
            Self::Session => facts.duration_ns,
            Self::System => facts.end_unix_ns,
        }
    }
}

/// Returns the end of a session, computed from its start and its duration. The times of its
/// intervals and of the allocator's statistics are on this scale. `end_unix_ns` is not, if the
/// system clock was set during the session.
#[must_use]
pub fn end_by_length(facts: &Facts) -> Option<u64> {
    let known = facts.start_unix_ns.zip(facts.duration_ns);
    let end = known.map(|(start, length)| start.saturating_add(length));
    end.or(facts.end_unix_ns)
}

/// Returns a remark if the system clock was set between the dumps.
pub fn remark<'a>(dumps: impl Iterator<Item = &'a Facts> + Clone) -> Option<String> {
    let clock = Clock::common_to(dumps.clone()).filter(|clock| *clock != Clock::System)?;
    let times = dumps.map(|facts| Some((clock.end_ns(facts)?, facts.end_unix_ns?)));
    let mut times: Vec<(u64, u64)> = times.collect::<Option<_>>()?;
    times.sort_unstable();
    let was_set = times.windows(2).any(|pair| {
        let [(from, from_unix), (to, to_unix)] = [pair[0], pair[1]];
        let elapsed = to - from;
        let unix_elapsed = i128::from(to_unix) - i128::from(from_unix);
        let difference = (unix_elapsed - i128::from(elapsed)).unsigned_abs();
        difference > u128::from(TOLERANCE_NS + elapsed / SLEW_RECIPROCAL)
    });
    let was_ahead = times.windows(2).all(|pair| {
        let unix_elapsed = i128::from(pair[1].1) - i128::from(pair[0].1);
        unix_elapsed + i128::from(TOLERANCE_NS) >= i128::from(pair[1].0 - pair[0].0)
    });
    let what = if clock == Clock::Session && was_ahead {
        "The system clock was set, or the machine was suspended,"
    } else {
        "The system clock was set"
    };
    was_set.then(|| {
        format!("{what} between the dumps: the time between them is by a clock that does not jump")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Returns a dump of a session that began at Unix time 100 s, 10 s after the boot.
    fn dump(seconds: u64, unix: u64, boot: Option<u64>) -> Facts {
        Facts {
            pid: Some(1),
            boot_id: Some("a".into()),
            start_unix_ns: Some(100 * SECOND),
            duration_ns: Some(seconds * SECOND),
            end_unix_ns: Some(unix * SECOND),
            end_boot_ns: boot.map(|boot| boot * SECOND),
            ..Facts::default()
        }
    }

    #[test]
    fn the_best_common_clock_is_used() {
        let clock_of = |dumps: &[Facts]| Clock::common_to(dumps.iter());
        let boot = [dump(1, 101, Some(11)), dump(2, 102, Some(12))];
        assert_eq!(clock_of(&boot), Some(Clock::Boot));
        let mut other = boot.clone();
        other[1].boot_id = Some("b".into());
        assert_eq!(clock_of(&other), Some(Clock::System), "of another boot");
        let mut later = boot.clone();
        later[1].start_unix_ns = Some(7);
        assert_eq!(clock_of(&later), Some(Clock::Boot), "another session of it");
        later[1].end_boot_ns = None;
        assert_eq!(clock_of(&later), Some(Clock::System), "an old dump of it");
        let old = [dump(1, 101, None), dump(2, 102, Some(12))];
        assert_eq!(clock_of(&old), Some(Clock::Session));
        let mut untimed = boot;
        untimed[0].end_unix_ns = None;
        assert_eq!(clock_of(&untimed), None);
    }

    #[test]
    fn only_clocks_that_were_set_are_reported() {
        let set = |dumps: &[Facts]| remark(dumps.iter());
        let message = |dumps: &[Facts]| set(dumps).unwrap_or_default();
        assert_eq!(
            set(&[dump(1, 101, Some(11)), dump(61, 162, Some(71))]),
            None
        );
        // The machine was suspended for an hour.
        let slept = [dump(1, 101, Some(11)), dump(61, 3761, Some(3671))];
        assert_eq!(set(&slept), None);
        let unknown = slept.map(|mut facts| {
            facts.end_boot_ns = None;
            facts
        });
        assert!(message(&unknown).contains("was set, or the machine was suspended,"));
        for unix in [20, 1_700_000_000] {
            let boot = [dump(1, 101, Some(11)), dump(61, unix, Some(71))];
            assert!(message(&boot).starts_with("The system clock was set between"));
        }
        let back = [dump(1, 101, None), dump(61, 20, None)];
        assert!(message(&back).starts_with("The system clock was set between"));
    }
}
