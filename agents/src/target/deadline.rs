//! Deadlines of sessions.

use std::time::Duration;

use crate::clock::now_ns;
use crate::text;

/// Time for which a session without a fixed end outlives its controller.
pub const ROLLING_LENGTH: Duration = Duration::from_secs(60);
/// Interval at which a controller extends such a session.
pub const RENEWAL_INTERVAL: Duration = Duration::from_secs(20);

/// End of a session. In the segment, rolling deadlines are odd and fixed ones even, so that other
/// programs can tell "42 s left" from "until it is stopped".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// No end: the agent started the session by itself.
    Never,
    /// Fixed end, in ns of the segment's clock.
    At(u64),
    /// End when the controller is interrupted, or at this time if the controller dies.
    Rolling(u64),
}

impl Deadline {
    /// Decodes a deadline from a segment.
    pub fn of(deadline_ns: u64) -> Self {
        match deadline_ns {
            0 => Self::Never,
            ns if ns % 2 == 1 => Self::Rolling(ns),
            ns => Self::At(ns),
        }
    }

    /// Encodes the deadline of a session that is started or extended now, rolling if `length` is
    /// `None`.
    pub fn ns_after(length: Option<Duration>) -> u64 {
        let ns = |d: Duration| now_ns().saturating_add(d.as_nanos().min(u64::MAX.into()) as u64);
        length.map_or_else(|| ns(ROLLING_LENGTH) | 1, |length| (ns(length) & !1).max(2))
    }

    /// Formats the time left for display.
    pub fn left(self) -> String {
        match self {
            Self::Never | Self::Rolling(_) => "until it is stopped".to_owned(),
            Self::At(ns) => {
                let left = Duration::from_nanos(ns.saturating_sub(now_ns()));
                format!("{} left", text::duration(left))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolling_and_fixed_deadlines_differ() {
        let fixed = Deadline::ns_after(Some(Duration::from_secs(90)));
        let Deadline::At(ns) = Deadline::of(fixed) else {
            panic!("{fixed}")
        };
        assert!(ns.abs_diff(now_ns()) <= 90_000_000_000);
        assert!(matches!(
            Deadline::of(Deadline::ns_after(None)),
            Deadline::Rolling(_)
        ));
        assert_eq!(Deadline::of(0), Deadline::Never);
        assert!(Deadline::of(fixed).left().ends_with(" left"));
        assert_eq!(Deadline::Rolling(7).left(), "until it is stopped");
        assert!(matches!(
            Deadline::of(Deadline::ns_after(Some(Duration::MAX))),
            Deadline::At(_)
        ));
    }
}
