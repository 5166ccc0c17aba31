//! The states of a process's threads.
//!
//! The lists of them are walked between samples, while the process runs: inconsistent data are
//! detected when a thread is stopped, since a state is accepted as that thread's only if it says so
//! and is still in its list. New states, and new interpreters, are put at the beginnings of the
//! lists: so little is read as long as these are unchanged.

use std::collections::BTreeMap;

use cpython::layout::Layout;
use cpython::{MOST_INTERPRETERS, MOST_THREADS};

use super::memory::{Memory, is_pointer};
use crate::mixer::ByAddress;

/// Maximum number of states of one thread: one for each interpreter that it runs.
const OWN: usize = 8;
/// For a list with a new beginning, this many are examined while a thread is stopped, in this many
/// interpreters.
const NEWEST: usize = 4;
/// Maximum number of states that are remembered.
const MOST_STATES: usize = 4 * MOST_THREADS;
/// How far below the thread pointer the number of a thread may be: nothing where they are the same,
/// else the size of the C library's own data of it.
#[cfg(target_arch = "x86_64")]
const BELOW: u64 = 0;
#[cfg(not(target_arch = "x86_64"))]
const BELOW: u64 = 4096;

/// A state as it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    interpreter: u64,
    thread: u64,
    next: u64,
}

/// What is remembered of them.
#[derive(Default)]
pub struct Threads {
    /// The interpreters, the newest first, each with its first state.
    beginnings: Vec<(u64, u64)>,
    states: ByAddress<u64, State>,
    /// By the number of their thread.
    own: BTreeMap<u64, Vec<u64>>,
}

impl Threads {
    /// Looks for new ones. The process runs meanwhile.
    pub fn update(&mut self, pid: i32, runtime: u64, layout: &Layout) {
        let word = |at: u64| {
            let mut bytes = [0; 8];
            let read = capture::read_memory(pid, at, &mut bytes);
            (read == 8).then(|| u64::from_le_bytes(bytes))
        };
        let follow = |at: u64| word(at).filter(|pointer| is_pointer(*pointer));
        if self.states.len() > MOST_STATES {
            *self = Self::default();
        }
        let mut beginnings = Vec::new();
        let mut next = follow(runtime.wrapping_add(layout.interpreters));
        while let Some(interpreter) = next.filter(|_| beginnings.len() < MOST_INTERPRETERS) {
            let first = follow(interpreter + layout.threads).unwrap_or(0);
            beginnings.push((interpreter, first));
            next = follow(interpreter + layout.next_interpreter);
        }
        for &(interpreter, first) in &beginnings {
            let mut at = first;
            for _ in 0..MOST_THREADS {
                let (Some(thread), Some(next)) =
                    (word(at + layout.thread_id), word(at + layout.next_thread))
                else {
                    break;
                };
                let state = State {
                    interpreter,
                    thread,
                    next,
                };
                // Those behind one that is what it was are, too.
                if !self.note(at, state) || !is_pointer(next) {
                    break;
                }
                at = next;
            }
        }
        self.beginnings = beginnings;
    }

    /// Whether that is new.
    fn note(&mut self, at: u64, state: State) -> bool {
        match self.states.insert(at, state) {
            Some(known) if known == state => return false,
            Some(known) if known.thread == state.thread => {}
            known => {
                if let Some(known) = known {
                    self.leave(at, known.thread);
                }
                self.own.entry(state.thread).or_default().push(at);
            }
        }
        true
    }

    fn leave(&mut self, at: u64, thread: u64) {
        if let Some(own) = self.own.get_mut(&thread) {
            own.retain(|state| *state != at);
            if own.is_empty() {
                self.own.remove(&thread);
            }
        }
    }

    /// The states of a stopped thread, by its thread pointer; those in newer interpreters first.
    pub fn find(
        &mut self,
        memory: &mut Memory<'_>,
        (runtime, layout): (u64, &Layout),
        pointer: u64,
    ) -> Vec<u64> {
        let mut last = self.own.range(pointer.saturating_sub(BELOW)..=pointer);
        let known = last.next_back().map(|(_, own)| own.clone());
        let mut found = Vec::new();
        for at in known.unwrap_or_default() {
            let Some(&state) = self.states.get(&at) else {
                continue;
            };
            if is_listed(memory, layout, (at, state)) == Some(true) {
                found.push((state.interpreter, at));
            } else {
                self.states.remove(&at);
                self.leave(at, state.thread);
            }
        }
        self.newest(memory, (runtime, layout), pointer, &mut found);
        let order = |interpreter: u64| {
            let mut all = self.beginnings.iter();
            all.position(|known| known.0 == interpreter)
        };
        // One that is not known yet is newer than those that are.
        found.sort_by_key(|(interpreter, _)| order(*interpreter));
        found.truncate(OWN);
        found.into_iter().map(|(_, at)| at).collect()
    }

    /// Looks for a thread's states where the lists have new beginnings.
    fn newest(
        &self,
        memory: &mut Memory<'_>,
        (runtime, layout): (u64, &Layout),
        pointer: u64,
        found: &mut Vec<(u64, u64)>,
    ) {
        let mut next = memory.follow(runtime.wrapping_add(layout.interpreters));
        for _ in 0..NEWEST {
            let Some(interpreter) = next else { break };
            let mut state = memory.follow(interpreter + layout.threads);
            let beginning = (interpreter, state.unwrap_or(0));
            let is_known = self.beginnings.contains(&beginning);
            for _ in 0..if is_known { 0 } else { NEWEST } {
                let Some(at) = state else { break };
                let thread = memory.word(at + layout.thread_id);
                let is_own = thread.is_some_and(|thread| is_of(thread, pointer));
                if is_own && !found.iter().any(|known| known.1 == at) {
                    found.push((interpreter, at));
                }
                state = memory.follow(at + layout.next_thread);
            }
            next = memory.follow(interpreter + layout.next_interpreter);
        }
    }
}

/// Whether a thread's number belongs to a thread pointer.
fn is_of(thread: u64, pointer: u64) -> bool {
    (pointer.saturating_sub(BELOW)..=pointer).contains(&thread)
}

/// Whether what was a thread's state still is one.
fn is_listed(memory: &mut Memory<'_>, layout: &Layout, (at, was): (u64, State)) -> Option<bool> {
    let thread = memory.word(at + layout.thread_id)?;
    let previous = memory.word(at + layout.previous_thread)?;
    let from = match previous {
        0 => was.interpreter + layout.threads,
        _ => previous.checked_add(layout.next_thread)?,
    };
    Some(thread == was.thread && memory.word(from)? == at)
}
