//! Process in a session, with its triggers and timeline.

use std::time::{Duration, Instant};

use mem_agents::clock::now_ns;
use mem_agents::segment::Head;
use mem_agents::snapshot::Snapshot;
use mem_agents::target::Target;
use mem_agents::text;
use mem_agents::timeline::{Due, Timeline};

use crate::triggers::{Triggers, Watcher};

/// Process in a session.
pub struct Member {
    /// Process and its session.
    pub target: Target,
    /// State of its triggers.
    pub watcher: Watcher,
    /// Values over time.
    pub timeline: Timeline,
    /// File name of the executable that has the segment; `None` if unknown.
    exe: Option<Vec<u8>>,
}

impl Member {
    /// Creates a member whose session starts now. `left` is the time until its end.
    pub fn new(target: Target, triggers: &Triggers, left: Option<Duration>) -> Self {
        let mut head = Head::new();
        let header = target.agent.segment.head(&mut head);
        let exe = header
            .ok()
            .map(|header| text::base_name(header.exe()).to_vec());
        let is_exact = target.session.interval == 1 && target.session.max_overhead == 0;
        Self {
            target,
            watcher: Watcher::new(triggers, left).with_exactness(is_exact),
            timeline: Timeline::default(),
            exe,
        }
    }

    /// Returns true if the process has executed another program, which does not use the segment.
    /// Cheap unless it has.
    pub fn has_executed(&self) -> bool {
        // The kernel adds this suffix when the file is removed or replaced.
        const REMOVED: &[u8] = b" (deleted)";
        let exe = proc::exe(self.target.agent.pid);
        let is_other = match (&exe, &self.exe) {
            (Some(current), Some(original)) => {
                let current = text::base_name(current);
                current != &original[..] && current.strip_suffix(REMOVED) != Some(&original[..])
            }
            _ => false,
        };
        is_other && self.target.agent.confirm().is_err()
    }

    /// Adds a point to the timeline, if one is due. The more `members` the session has, the less
    /// often tables are read.
    pub fn update_timeline(&mut self, members: usize) {
        let Target {
            agent,
            session,
            totals,
            resident,
            ..
        } = &self.target;
        let at_ns = now_ns().saturating_sub(session.start_ns);
        match self.timeline.due(at_ns, totals, members) {
            Due::Nothing => self.timeline.note_poll(at_ns, totals, *resident),
            Due::Totals => self.timeline.add(at_ns, totals, *resident),
            Due::Stacks => {
                let start = Instant::now();
                // If the table cannot be read, the next poll or the dump reports the reason.
                match Snapshot::read_sums(&agent.segment, session) {
                    Ok(sums) => self.timeline.add_stacks(at_ns, &sums, *resident),
                    Err(_) => self.timeline.add(at_ns, totals, *resident),
                }
                self.timeline.set_table_cost(start.elapsed());
            }
        }
    }

    /// Returns name and pid, for display.
    pub fn title(&self) -> String {
        self.target.agent.title()
    }
}
