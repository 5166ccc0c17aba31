//! Thread states of an interpreter. The lists of states are walked between samples, while the
//! process runs. Inconsistent data are detected when a thread is stopped: a state is accepted only
//! if it has that thread's id and is still in its list. New states and new interpreters are
//! inserted at the heads of lists, so little is read while the heads are unchanged.

use std::collections::BTreeMap;

use cpython::chain::is_pointer;
use cpython::layout::Layout;
use cpython::{MAX_INTERPRETERS, MAX_THREADS};

use super::memory::Memory;
use crate::mixer::IntMap;

/// Maximum number of states of one thread. A thread has one for each interpreter that it uses.
const MAX_STATES_OF_THREAD: usize = 8;
/// While a thread is stopped: maximum number of interpreters examined, and of states visited at the
/// head of each changed list.
const MAX_NEW_STATES: usize = 4;
/// Maximum number of cached states.
const MAX_STATES: usize = 4 * MAX_THREADS;
/// Maximum distance in bytes of a thread's id (`pthread_self`) below its thread pointer: 0 if they
/// are equal, otherwise the size of the C library's data for the thread.
#[cfg(target_arch = "x86_64")]
const MAX_ID_DISTANCE: u64 = 0;
#[cfg(not(target_arch = "x86_64"))]
const MAX_ID_DISTANCE: u64 = 4096;

/// Thread state as it was read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    interpreter: u64,
    thread: u64,
    next: u64,
}

/// Cached thread states.
#[derive(Default)]
pub struct Threads {
    /// Interpreters, newest first, each with the head of its list of states.
    heads: Vec<(u64, u64)>,
    states: IntMap<u64, State>,
    /// Addresses of states by thread id.
    by_thread: BTreeMap<u64, Vec<u64>>,
}

impl Threads {
    /// Finds new states, while the process runs.
    pub fn update(&mut self, pid: i32, runtime: u64, layout: &Layout) {
        let word = |at: u64| {
            let mut bytes = [0; 8];
            let read = capture::read_memory(pid, at, &mut bytes);
            (read == 8).then(|| u64::from_le_bytes(bytes))
        };
        let follow = |at: u64| word(at).filter(|pointer| is_pointer(*pointer));
        if self.states.len() > MAX_STATES {
            *self = Self::default();
        }
        let mut heads = Vec::new();
        let mut next = follow(runtime.wrapping_add(layout.interpreters));
        while heads.len() < MAX_INTERPRETERS
            && let Some(interpreter) = next
        {
            let first = follow(interpreter + layout.threads).unwrap_or(0);
            heads.push((interpreter, first));
            next = follow(interpreter + layout.next_interpreter);
        }
        for &(interpreter, first) in &heads {
            let mut at = first;
            for _ in 0..MAX_THREADS {
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
                // The states after an unchanged one are unchanged too.
                if !self.cache(at, state) || !is_pointer(next) {
                    break;
                }
                at = next;
            }
        }
        self.heads = heads;
    }

    /// Caches a state. Returns true if it is new.
    fn cache(&mut self, at: u64, state: State) -> bool {
        match self.states.insert(at, state) {
            Some(known) if known == state => return false,
            Some(known) if known.thread == state.thread => {}
            known => {
                if let Some(known) = known {
                    self.remove_from_thread(at, known.thread);
                }
                self.by_thread.entry(state.thread).or_default().push(at);
            }
        }
        true
    }

    fn remove_from_thread(&mut self, at: u64, thread: u64) {
        if let Some(states) = self.by_thread.get_mut(&thread) {
            states.retain(|state| *state != at);
            if states.is_empty() {
                self.by_thread.remove(&thread);
            }
        }
    }

    /// Returns the addresses of the states of the stopped thread with this thread pointer, those in
    /// newer interpreters first.
    pub fn find(
        &mut self,
        memory: &mut Memory<'_>,
        runtime: u64,
        layout: &Layout,
        pointer: u64,
    ) -> Vec<u64> {
        let mut last = self
            .by_thread
            .range(pointer.saturating_sub(MAX_ID_DISTANCE)..=pointer);
        let known = last.next_back().map(|(_, states)| states.clone());
        let mut found = Vec::new();
        for at in known.unwrap_or_default() {
            let Some(&state) = self.states.get(&at) else {
                continue;
            };
            if is_listed(memory, layout, at, state) == Some(true) {
                found.push((state.interpreter, at));
            } else {
                self.states.remove(&at);
                self.remove_from_thread(at, state.thread);
            }
        }
        self.find_new(memory, runtime, layout, pointer, &mut found);
        let order = |interpreter: u64| {
            let mut all = self.heads.iter();
            all.position(|known| known.0 == interpreter)
        };
        // An unknown interpreter is newer than the known ones.
        found.sort_by_key(|(interpreter, _)| order(*interpreter));
        found.truncate(MAX_STATES_OF_THREAD);
        found.into_iter().map(|(_, at)| at).collect()
    }

    /// Searches the heads of changed lists for a thread's states.
    fn find_new(
        &self,
        memory: &mut Memory<'_>,
        runtime: u64,
        layout: &Layout,
        pointer: u64,
        found: &mut Vec<(u64, u64)>,
    ) {
        let mut next = memory.follow(runtime.wrapping_add(layout.interpreters));
        for _ in 0..MAX_NEW_STATES {
            let Some(interpreter) = next else { break };
            let mut state = memory.follow(interpreter + layout.threads);
            let head = (interpreter, state.unwrap_or(0));
            let is_unchanged = self.heads.contains(&head);
            let visited = if is_unchanged { 0 } else { MAX_NEW_STATES };
            for _ in 0..visited {
                let Some(at) = state else { break };
                let thread = memory.word(at + layout.thread_id);
                let matches = thread.is_some_and(|thread| matches_pointer(thread, pointer));
                if matches && !found.iter().any(|known| known.1 == at) {
                    found.push((interpreter, at));
                }
                state = memory.follow(at + layout.next_thread);
            }
            next = memory.follow(interpreter + layout.next_interpreter);
        }
    }
}

/// Returns true if a thread id and a thread pointer may be those of one thread.
fn matches_pointer(thread: u64, pointer: u64) -> bool {
    (pointer.saturating_sub(MAX_ID_DISTANCE)..=pointer).contains(&thread)
}

/// Returns true if a cached state is still in its list.
fn is_listed(memory: &mut Memory<'_>, layout: &Layout, at: u64, cached: State) -> Option<bool> {
    let thread = memory.word(at + layout.thread_id)?;
    let previous = memory.word(at + layout.previous_thread)?;
    let from = match previous {
        0 => cached.interpreter + layout.threads,
        _ => previous.checked_add(layout.next_thread)?,
    };
    Some(thread == cached.thread && memory.word(from)? == at)
}
