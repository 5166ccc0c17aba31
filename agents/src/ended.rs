//! State of a session when it was dumped.

use nix::sys::signal::Signal;
use shm_protocol::snapshot::Header;

use crate::discovery::{Agent, Life};
use crate::process_end::ProcessEnd;

/// State of a session when it was dumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The session continues.
    Not,
    /// The session reached its deadline or was stopped.
    Normally,
    /// The process exited during the session, with this exit code if it is known.
    Exited(Option<u8>),
    /// The process died of this signal during the session.
    Died(i32),
    /// The process has ended by a signal or by an `_exit` that was not recorded; which is unknown.
    Gone,
    /// The process executed another program during the session.
    Replaced,
}

impl Ended {
    /// Returns the text for the dump's metadata.
    pub fn fact(self) -> String {
        match self {
            Self::Not => "running".to_owned(),
            Self::Normally => "live".to_owned(),
            Self::Exited(None) => "target exited".to_owned(),
            Self::Exited(Some(code)) => format!("target exited: {code}"),
            Self::Died(signal) => format!("target died: {}", signal_name(signal)),
            Self::Gone => "target ended".to_owned(),
            Self::Replaced => "target executed another program".to_owned(),
        }
    }

    /// Returns the text for a table.
    pub fn label(self) -> String {
        match self {
            Self::Not | Self::Normally => "-".to_owned(),
            Self::Exited(None | Some(0)) => "exited".to_owned(),
            Self::Exited(Some(code)) => format!("exited {code}"),
            Self::Died(signal) => signal_name(signal),
            Self::Gone => "ended".to_owned(),
            Self::Replaced => "exec".to_owned(),
        }
    }

    /// Returns the text after the file name; empty if the session ended normally.
    pub fn remark(self, title: &str) -> String {
        match self {
            Self::Not | Self::Normally => String::new(),
            Self::Exited(None | Some(0)) | Self::Gone => {
                format!("{title} ended during the session")
            }
            Self::Exited(Some(code)) => {
                format!("{title} ended during the session with exit code {code}")
            }
            Self::Died(signal) => {
                format!("{title} died during the session of {}", signal_name(signal))
            }
            Self::Replaced => format!("{title} executed another program during the session"),
        }
    }

    /// Determines the state for an agent that no longer runs. The kernel's report takes precedence
    /// over what the agent recorded.
    pub fn of(agent: &Agent, header: &Header<'_>) -> Self {
        match (agent.life, agent.end) {
            (Life::Running, _) => Self::Normally,
            (Life::Replaced, _) => Self::Replaced,
            (Life::Dead, Some(ProcessEnd::Exited(code))) => Self::Exited(Some(code)),
            (Life::Dead, Some(ProcessEnd::Killed(signal))) => Self::Died(signal),
            (Life::Dead, None) if header.exited() => Self::Exited(None),
            (Life::Dead, None) => Self::Gone,
        }
    }
}

fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |s| s.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_readable_texts() {
        assert_eq!(Ended::Died(9).label(), "SIGKILL");
        assert_eq!(Ended::Died(64).fact(), "target died: signal 64");
        assert_eq!(Ended::Exited(Some(0)).label(), "exited");
        assert_eq!(Ended::Exited(Some(2)).label(), "exited 2");
        assert_eq!(
            Ended::Gone.remark("x (1)"),
            "x (1) ended during the session"
        );
        assert_eq!(Ended::Normally.remark("x (1)"), "");
    }
}
