//! A process in a session, with the state of its triggers.

use std::time::{Duration, Instant};

use mem_agents::clock::now_ns;
use mem_agents::snapshot::Snapshot;
use mem_agents::target::Target;
use mem_agents::timeline::{Due, Timeline};

use crate::triggers::{Triggers, Watcher};

/// A process in a session.
pub struct Member {
    /// The process.
    pub target: Target,
    /// The state of its triggers.
    pub watcher: Watcher,
    /// The moments of its session.
    pub timeline: Timeline,
}

impl Member {
    /// A process whose session starts now, and ends after this time.
    pub fn new(target: Target, triggers: &Triggers, left: Option<Duration>) -> Self {
        Self {
            target,
            watcher: Watcher::new(triggers, left),
            timeline: Timeline::default(),
        }
    }

    /// Records the moment at which the target was last polled, if one is due. `members` are in
    /// the session: together they may take as much time as one alone.
    pub fn observe(&mut self, members: usize) {
        let Target {
            agent,
            session,
            totals,
            resident,
            ..
        } = &self.target;
        let at_ns = now_ns().saturating_sub(session.start_ns);
        match self.timeline.due(at_ns, totals, members) {
            Due::Nothing => self.timeline.see(at_ns, totals, *resident),
            Due::Totals => self.timeline.add(at_ns, totals, *resident),
            Due::Stacks => {
                let start = Instant::now();
                // Where the table cannot be read, the next poll or the dump says why.
                match Snapshot::read_sums(&agent.segment, session) {
                    Ok(sums) => self.timeline.add_stacks(at_ns, &sums, *resident),
                    Err(_) => self.timeline.add(at_ns, totals, *resident),
                }
                self.timeline.spent(start.elapsed());
            }
        }
    }

    /// Name and pid, for display.
    pub fn title(&self) -> String {
        self.target.agent.title()
    }
}
