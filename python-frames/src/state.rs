//! Finds the states (`PyThreadState`) of the running thread.
//!
//! Interpreters and their threads are in linked lists, which other threads may change at any time.
//! A thread has one state in each interpreter that it runs, and a C thread has one for each of its
//! calls into Python. New states and interpreters are put at the heads of the lists. So a changed
//! head is the sign that there may be more states than were found.

use super::layout::Layout;
use super::memory::read_word;
use super::session::Runtime;
use super::tag::mix;
use cpython::chain::is_pointer;
use cpython::{MAX_INTERPRETERS, MAX_THREADS};
use unwind::probe;

/// Maximum number of states that are kept of one thread. If it has more, the newest ones and the
/// oldest one are kept.
const MAX_STATES: usize = 8;
/// Initial back-off of a thread without a state before the next full search, in samples.
const MIN_SEARCH_SAMPLES: u32 = 4;
/// Maximum back-off before the next full search, in samples.
const MAX_SEARCH_SAMPLES: u32 = 256;
/// Maximum number of states that are examined between full searches, if the head of a list has
/// changed.
const MAX_NEWEST: usize = 4;

/// States of one thread. All zeros: none.
#[repr(C)]
pub struct States {
    /// States in the order of the search: those in newer interpreters first.
    states: [State; MAX_STATES],
    count: usize,
    /// Hash of the list heads at the last search.
    heads: u64,
    /// Address of the interpreter if there is only one; 0 if there are several.
    only_interpreter: u64,
    /// Samples left until the next full search.
    samples_to_search: u32,
    /// Current back-off, in samples; 0 before the first search.
    search_samples: u32,
}

/// One state of the thread, and its position in the list.
#[derive(Clone, Copy)]
#[repr(C)]
struct State {
    /// Address of the state.
    at: u64,
    interpreter: u64,
    /// Address of the previous state in the list, which was probed; 0 if not known or if this state
    /// is the first.
    previous: u64,
    /// Address of the pointer that leads to the state: in the previous state or the interpreter.
    link_address: u64,
}

impl States {
    /// Returns true before the first search.
    #[inline]
    pub fn are_unknown(&self) -> bool {
        self.count == 0 && self.samples_to_search == 0 && self.search_samples == 0
    }

    /// Forgets the states of another thread.
    pub fn forget(&mut self) {
        self.count = 0;
        self.heads = 0;
        self.only_interpreter = 0;
        self.end_search();
    }

    fn end_search(&mut self) {
        self.samples_to_search = 0;
        self.search_samples = 0;
    }

    /// Returns the number of states.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the address of a state, or 0. States in newer interpreters come first.
    #[inline]
    pub fn get(&self, index: usize) -> u64 {
        self.states.get(index).map_or(0, |state| state.at)
    }

    /// Finds the states of the thread `thread` (its `pthread_self`). Returns true if it has a
    /// single state, which was known before.
    #[inline(always)]
    pub fn find(&mut self, runtime: &Runtime, thread: u64) -> bool {
        let layout = &runtime.layout;
        // SAFETY: `_PyRuntime` is a variable of a module that stays loaded during the call.
        let newest = unsafe { read_word(runtime.at + layout.interpreters) };
        if self.count == 1
            && self.only_interpreter == newest
            && self.states[0].is_listed(runtime, thread)
        {
            return true;
        }
        self.search(runtime, thread, newest)
    }

    #[inline(never)]
    fn search(&mut self, runtime: &Runtime, thread: u64, newest: u64) -> bool {
        let layout = &runtime.layout;
        if newest == 0 {
            self.forget();
            return false;
        }
        let heads = self.heads(layout, newest);
        let heads_are_unchanged =
            heads.hash == self.heads && heads.only_interpreter == self.only_interpreter;
        self.heads = heads.hash;
        self.only_interpreter = heads.only_interpreter;
        let states = &mut self.states[..self.count];
        if heads_are_unchanged
            && !states.is_empty()
            && states
                .iter_mut()
                .all(|state| state.is_listed(runtime, thread))
        {
            return self.count == 1;
        }
        let had_any = self.count > 0;
        if had_any || self.samples_to_search == 0 {
            let next = (self.search_samples * 2).clamp(MIN_SEARCH_SAMPLES, MAX_SEARCH_SAMPLES);
            self.samples_to_search = next;
            self.search_samples = next;
            self.collect(layout, newest, thread, MAX_THREADS);
        } else {
            self.samples_to_search -= 1;
            if !heads_are_unchanged {
                self.collect(layout, newest, thread, MAX_NEWEST);
            }
        }
        if self.count > 0 {
            self.end_search();
        }
        false
    }

    /// Reads the heads of all lists.
    fn heads(&self, layout: &Layout, newest: u64) -> Heads {
        if self.only_interpreter == newest {
            // SAFETY: the interpreter was probed, and the only interpreter exists as long as it is
            // in the list.
            let hash = unsafe { read_word(newest + layout.threads) };
            return Heads {
                hash,
                only_interpreter: newest,
            };
        }
        let mut hash = 0;
        let mut interpreter = newest;
        let mut count = 0;
        while count < MAX_INTERPRETERS {
            count += 1;
            let threads = probe_pointer(interpreter + layout.threads).unwrap_or(0);
            hash = mix(mix(hash, interpreter), threads);
            match probe_pointer(interpreter + layout.next_interpreter) {
                Some(next) => interpreter = next,
                None => break,
            }
        }
        match (count, probe_pointer(newest + layout.threads)) {
            (1, Some(threads)) => Heads {
                hash: threads,
                only_interpreter: newest,
            },
            _ => Heads {
                hash,
                only_interpreter: 0,
            },
        }
    }

    /// Collects the thread's states among the first `threads` of each interpreter.
    ///
    /// Other threads may change the lists at the same time. So each address is probed before it is
    /// followed; the memory of a freed state stays mapped for longer than this takes.
    #[cold]
    fn collect(&mut self, layout: &Layout, newest: u64, thread: u64, threads: usize) {
        self.count = 0;
        let mut interpreter = newest;
        for _ in 0..MAX_INTERPRETERS {
            // `None` if no thread runs this interpreter now.
            let mut next = probe_pointer(interpreter + layout.threads);
            for _ in 0..threads {
                let Some(state) = next else { break };
                if is_state_of_thread(layout, state, thread) {
                    self.count = (self.count + 1).min(MAX_STATES);
                    self.states[self.count - 1] = State {
                        at: state,
                        interpreter,
                        previous: 0,
                        link_address: interpreter + layout.threads,
                    };
                }
                next = probe_pointer(state + layout.next_thread);
            }
            match probe_pointer(interpreter + layout.next_interpreter) {
                Some(next) => interpreter = next,
                None => break,
            }
        }
    }
}

/// Heads of the lists of states and interpreters.
struct Heads {
    /// Hash of all heads; with one interpreter, its newest state.
    hash: u64,
    /// Address of the interpreter if there is only one, or 0.
    only_interpreter: u64,
}

impl State {
    /// Returns true if this still is a state of its interpreter and belongs to `thread`.
    #[inline(always)]
    fn is_listed(&mut self, runtime: &Runtime, thread: u64) -> bool {
        if runtime.unmaps_freed {
            return self.is_listed_by_probing(runtime, thread);
        }
        // SAFETY: there was a state at this address, and our allocator keeps freed memory mapped.
        let (owner, previous) = unsafe { self.owner_and_previous(&runtime.layout) };
        if previous == self.previous {
            // SAFETY: `link_address` lies in the interpreter or the previous state. Both were
            // probed, and our allocator keeps freed memory mapped.
            owner == thread && unsafe { read_word(self.link_address) } == self.at
        } else {
            self.is_listed_by_probing(runtime, thread)
        }
    }

    /// Like [`is_listed`](Self::is_listed), but probes addresses: for the C library's allocator,
    /// which unmaps freed memory, and for a state that has a new predecessor.
    #[inline(never)]
    fn is_listed_by_probing(&mut self, runtime: &Runtime, thread: u64) -> bool {
        let layout = &runtime.layout;
        if runtime.unmaps_freed && !probe::is_readable(self.at) {
            return false;
        }
        // SAFETY: there was a state at this address. Our allocator keeps freed memory mapped, and
        // with another allocator the address was just probed.
        let (owner, previous) = unsafe { self.owner_and_previous(layout) };
        let link_address = match previous {
            0 => self.interpreter + layout.threads,
            _ => previous.wrapping_add(layout.next_thread),
        };
        if owner != thread {
            return false;
        }
        let Some(listed) = probe_word(link_address) else {
            return false;
        };
        self.previous = previous;
        self.link_address = link_address;
        listed == self.at
    }

    /// Reads the thread that the state belongs to, and the address of the state before it.
    ///
    /// # Safety
    /// The state is readable.
    #[inline(always)]
    unsafe fn owner_and_previous(&self, layout: &Layout) -> (u64, u64) {
        // SAFETY: both words lie in the readable state.
        unsafe {
            (
                read_word(self.at + layout.thread_id),
                read_word(self.at + layout.previous_thread),
            )
        }
    }
}

/// Returns true if a state is readable and belongs to `thread`.
fn is_state_of_thread(layout: &Layout, state: u64, thread: u64) -> bool {
    // SAFETY: the first operand found the state readable.
    probe::are_readable(state, state.saturating_add(layout.state_bytes()))
        && unsafe { read_word(state + layout.thread_id) } == thread
}

/// Reads a pointer. Returns `None` if it is null or not plausible, or if `at` is not readable.
fn probe_pointer(at: u64) -> Option<u64> {
    probe_word(at).filter(|pointer| is_pointer(*pointer))
}

/// Reads a word. Returns `None` if it is not readable.
pub fn probe_word(at: u64) -> Option<u64> {
    let readable = probe::are_readable(at, at.checked_add(8)?);
    // SAFETY: the word was just found readable.
    readable.then(|| unsafe { read_word(at) })
}
