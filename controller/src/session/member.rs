//! A process in a session, with the state of its triggers.

use crate::target::Target;
use crate::triggers::{Triggers, Watcher};

/// A process in a session.
pub struct Member {
    /// The process.
    pub target: Target,
    /// The state of its triggers.
    pub watcher: Watcher,
}

impl Member {
    /// A process whose session starts now.
    pub fn new(target: Target, triggers: &Triggers) -> Self {
        Self {
            target,
            watcher: Watcher::new(triggers),
        }
    }

    /// Name and pid, for people.
    pub fn title(&self) -> String {
        self.target.agent.title()
    }
}
