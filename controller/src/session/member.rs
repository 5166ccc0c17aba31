//! Process in a session, with its triggers and timeline.

use std::time::{Duration, Instant};

use mem_agents::clock::now_ns;
use mem_agents::snapshot::Snapshot;
use mem_agents::target::Target;
use mem_agents::timeline::{Due, Timeline};

use crate::triggers::{Triggers, Watcher};

/// Process in a session.
pub struct Member {
    /// Process and its session.
    pub target: Target,
    /// State of its triggers.
    pub watcher: Watcher,
    /// Moments of its session.
    pub timeline: Timeline,
}

impl Member {
    /// Creates a member whose session starts now. `left` is the time until its end.
    pub fn new(target: Target, triggers: &Triggers, left: Option<Duration>) -> Self {
        Self {
            target,
            watcher: Watcher::new(triggers, left),
            timeline: Timeline::default(),
        }
    }

    /// Records a moment of the timeline, if one is due. The number of `members` limits how often
    /// tables are read.
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
                // If the table cannot be read, the next poll or the dump reports the reason.
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
