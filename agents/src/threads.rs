//! Records the names of a target's threads in its segment, so that they outlive the threads and the
//! process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use shm_protocol::segment::Session;
use shm_protocol::snapshot::{BankSummary, ThreadView};

use crate::discovery::Agent;

/// Minimum time between two lookups of known names. A thread may change its name; most set it right
/// after creation.
const MIN_REFRESH: Duration = Duration::from_secs(1);
/// Divisor of the time since the first lookup; the quotient is the minimum time between later ones.
const REFRESH_DIVISOR: u32 = 4;

/// Threads whose names are recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// All threads: a name may have changed.
    All,
    /// Threads without a recorded name.
    Unnamed,
}

/// Times at which the names of all threads were looked up.
#[derive(Default)]
pub struct Lookups {
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Lookups {
    /// Records the names of new threads and, from time to time, of all threads.
    pub fn update(&mut self, agent: &Agent, session: &Session, bank: &BankSummary<'_>) {
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        let pause = MIN_REFRESH.max((now - first) / REFRESH_DIVISOR);
        let which = if self.last.is_none_or(|last| now - last >= pause) {
            self.last = Some(now);
            Which::All
        } else {
            Which::Unnamed
        };
        record_names(agent, session, bank, which);
    }
}

/// Pads a thread's name with zeros to the size that segments store.
fn padded(name: Vec<u8>) -> [u8; 16] {
    let mut padded = [0; 16];
    padded
        .iter_mut()
        .zip(name)
        .for_each(|(padded, byte)| *padded = byte);
    padded
}

/// Records the names of the threads that exist.
///
/// A name that cannot be read or written is left empty; the profile then shows the thread's tid.
pub fn record_names(agent: &Agent, session: &Session, bank: &BankSummary<'_>, which: Which) {
    let all = which == Which::All;
    let entries = bank.thread_entries().enumerate();
    let wanted: Vec<(usize, ThreadView)> = entries
        .filter(|(_, thread)| thread.tid != 0 && (all || thread.name().is_empty()))
        .collect();
    if wanted.is_empty() {
        return;
    }
    let ids = ThreadIds::of(agent);
    for (index, thread) in wanted {
        let tid = ids.in_our_namespace(thread.tid);
        let name = tid
            .and_then(|tid| proc::thread_name(agent.pid, tid))
            .map(padded);
        if let Some(name) = name.filter(|name| *name != thread.name) {
            let _ = agent
                .segment
                .view()
                .name_thread(session.number, index, name);
        }
    }
}

/// Maps thread ids from the target's pid namespace to ours.
enum ThreadIds {
    /// Both are in the same namespace.
    Equal,
    /// Ids in our namespace, by the target's.
    Translated(HashMap<u32, i32>),
}

impl ThreadIds {
    fn of(agent: &Agent) -> Self {
        if agent.entry.name.pid == agent.pid {
            return Self::Equal;
        }
        let threads = proc::threads(agent.pid).into_iter();
        Self::Translated(
            threads
                .filter_map(|tid| Some((proc::innermost_tid(agent.pid, tid)?, tid)))
                .collect(),
        )
    }

    fn in_our_namespace(&self, tid: u32) -> Option<i32> {
        match self {
            Self::Equal => i32::try_from(tid).ok(),
            Self::Translated(ids) => ids.get(&tid).copied(),
        }
    }
}
