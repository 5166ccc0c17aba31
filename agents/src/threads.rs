//! Names of a target's threads, looked up from outside and written down in its segment, so that
//! they outlive the threads and the process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use shm_protocol::segment::Session;
use shm_protocol::snapshot::{BankSummary, ThreadView};

use crate::discovery::Agent;

/// Least time between two looks at the names that are known already. A thread may change its
/// name, and most do when they begin.
const REFRESH: Duration = Duration::from_secs(1);
/// Later looks come after this part of the time since the first one.
const REFRESH_SHARE: u32 = 4;

/// When the names were looked up.
#[derive(Default)]
pub struct Looks {
    first: Option<Instant>,
    last: Option<Instant>,
}

impl Looks {
    /// Writes down the names of threads that have none yet, and from time to time those of all.
    pub fn look(&mut self, agent: &Agent, session: &Session, bank: &BankSummary<'_>) {
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        let pause = REFRESH.max((now - first) / REFRESH_SHARE);
        let all = self.last.is_none_or(|last| now - last >= pause);
        if all {
            self.last = Some(now);
        }
        write_down(agent, session, bank, all);
    }
}

/// A thread's name as segments keep it, zero-padded.
fn padded(name: Vec<u8>) -> [u8; 16] {
    let mut padded = [0; 16];
    padded
        .iter_mut()
        .zip(name)
        .for_each(|(byte, own)| *byte = own);
    padded
}

/// Writes down the names of the threads that are there: of `all`, or those that have none yet.
///
/// A name that cannot be read or written is left as it is: the profile has the thread's number.
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

/// The numbers of a target's threads, as it sees them and as we do.
enum Numbers {
    /// The same.
    Equal,
    /// Ours by the target's, which is in a pid namespace of its own.
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
