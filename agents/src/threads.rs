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
/// Later lookups wait for this fraction of the time since the first one: 1/4.
const REFRESH_DIVISOR: u32 = 4;

/// Times at which names were looked up.
#[derive(Default)]
pub struct Looks {
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Looks {
    /// Records the names of new threads and, from time to time, of all threads.
    pub fn look(&mut self, agent: &Agent, session: &Session, bank: &BankSummary<'_>) {
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        let pause = MIN_REFRESH.max((now - first) / REFRESH_DIVISOR);
        let all = self.last.is_none_or(|last| now - last >= pause);
        if all {
            self.last = Some(now);
        }
        write_down(agent, session, bank, all);
    }
}

/// Pads a thread's name with zeros to the size that segments store.
fn padded(name: Vec<u8>) -> [u8; 16] {
    let mut padded = [0; 16];
    padded
        .iter_mut()
        .zip(name)
        .for_each(|(byte, own)| *byte = own);
    padded
}

/// Records the names of the threads that exist: of `all`, or only of those without one.
///
/// A name that cannot be read or written is left empty; the profile shows the thread's tid then.
pub fn write_down(agent: &Agent, session: &Session, bank: &BankSummary<'_>, all: bool) {
    let entries = bank.thread_entries().enumerate();
    let wanted: Vec<(usize, ThreadView)> = entries
        .filter(|(_, thread)| thread.tid != 0 && (all || thread.name().is_empty()))
        .collect();
    if wanted.is_empty() {
        return;
    }
    let numbers = Numbers::of(agent);
    for (index, thread) in wanted {
        let name = numbers.outside(thread.tid);
        let name = name
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
enum Numbers {
    /// Both are in the same namespace.
    Equal,
    /// Ids in our namespace, by the target's.
    Translated(HashMap<u32, i32>),
}

impl Numbers {
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

    fn outside(&self, tid: u32) -> Option<i32> {
        match self {
            Self::Equal => i32::try_from(tid).ok(),
            Self::Translated(numbers) => numbers.get(&tid).copied(),
        }
    }
}
