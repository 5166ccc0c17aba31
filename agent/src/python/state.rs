//! The states of the running thread, among those of all threads of all interpreters.
//!
//! A thread has one in each interpreter that it runs, and a C thread has one in each of its calls
//! into Python. New ones, and new interpreters, are put at the beginnings of the lists: these show
//! whether there may be others than were found.

use super::layout::Layout;
use super::mark::mix;
use super::memory::{STATE, word};
use super::runtime::Runtime;
use cpython::{MOST_INTERPRETERS, MOST_THREADS};
use unwind::probe;

/// Maximum number of states of one thread that are kept: of more, the newest and the oldest.
const OWN: usize = 8;
/// Samples without a state before it is looked for again, at first and at most.
const PATIENCE: (u32, u32) = (4, 256);
/// For a list with a new beginning, this many are examined before that.
const NEWEST: usize = 4;

/// The states of a thread, as they were found. Zeroed memory has none.
#[repr(C)]
pub struct States {
    /// Those in newer interpreters first.
    own: [Own; OWN],
    count: usize,
    /// What the lists began with.
    begin: u64,
    /// The only interpreter, or 0: there are several.
    only: u64,
    /// Samples until they are looked for again, and how many that were the last time.
    patience: (u32, u32),
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Own {
    state: u64,
    interpreter: u64,
    /// The state before it in the list, which was probed, or 0; and what leads here from there.
    previous: u64,
    from: u64,
}

impl States {
    /// Whether nothing was looked for.
    #[inline]
    pub fn are_unknown(&self) -> bool {
        self.count == 0 && self.patience == (0, 0)
    }

    pub fn forget(&mut self) {
        (self.count, self.begin, self.only) = (0, 0, 0);
        self.patience = (0, 0);
    }

    /// Number of those that are known.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// One of them, those in newer interpreters first.
    #[inline]
    pub fn get(&self, index: usize) -> u64 {
        self.own.get(index).map_or(0, |own| own.state)
    }

    /// Finds those of the thread with this number, as the C library has it; whether it is a single
    /// one, which was known before.
    #[inline(always)]
    pub fn find(&mut self, runtime: &Runtime, thread: u64) -> bool {
        let layout = &runtime.layout;
        // SAFETY: a variable of a loaded module.
        let newest = unsafe { word(runtime.at + layout.interpreters) };
        if self.count == 1 && self.only == newest && self.own[0].is_listed(layout, thread) {
            return true;
        }
        self.look(layout, thread, newest)
    }

    #[inline(never)]
    fn look(&mut self, layout: &Layout, thread: u64, newest: u64) -> bool {
        if newest == 0 {
            self.forget();
            return false;
        }
        let (begin, only) = self.beginnings(layout, newest);
        let is_same = (begin, only) == (self.begin, self.only);
        (self.begin, self.only) = (begin, only);
        let own = &mut self.own[..self.count];
        if is_same && !own.is_empty() && own.iter_mut().all(|own| own.is_listed(layout, thread)) {
            return self.count == 1;
        }
        let had_any = self.count > 0;
        if had_any || self.patience.0 == 0 {
            let (first, most) = PATIENCE;
            let next = (self.patience.1 * 2).clamp(first, most);
            self.patience = (next, next);
            self.collect(layout, newest, thread, MOST_THREADS);
        } else {
            self.patience.0 -= 1;
            if !is_same {
                self.collect(layout, newest, thread, NEWEST);
            }
        }
        if self.count > 0 {
            self.patience = (0, 0);
        }
        false
    }

    /// What the lists begin with, and the interpreter if it is the only one.
    fn beginnings(&self, layout: &Layout, newest: u64) -> (u64, u64) {
        if self.only == newest {
            // SAFETY: it was probed, and the only interpreter stays as long as it is in the list.
            return (unsafe { word(newest + layout.threads) }, newest);
        }
        let (mut begin, mut interpreter, mut count) = (0, newest, 0);
        while count < MOST_INTERPRETERS {
            count += 1;
            let threads = follow(interpreter + layout.threads).unwrap_or(0);
            begin = mix(mix(begin, interpreter), threads);
            match follow(interpreter + layout.next_interpreter) {
                Some(next) => interpreter = next,
                None => break,
            }
        }
        match (count, follow(newest + layout.threads)) {
            (1, Some(threads)) => (threads, newest),
            _ => (begin, 0),
        }
    }

    /// Other threads may change the lists meanwhile: each address is probed before it is followed,
    /// and the memory of a state that is gone stays mapped for longer than this takes.
    #[cold]
    fn collect(&mut self, layout: &Layout, newest: u64, thread: u64, threads: usize) {
        self.count = 0;
        let mut interpreter = newest;
        for _ in 0..MOST_INTERPRETERS {
            // One that no thread runs now has no state.
            let mut next = follow(interpreter + layout.threads);
            for _ in 0..threads {
                let Some(state) = next else { break };
                if is_of(layout, state, thread) {
                    self.count = (self.count + 1).min(OWN);
                    self.own[self.count - 1] = Own {
                        state,
                        interpreter,
                        previous: 0,
                        from: interpreter + layout.threads,
                    };
                }
                next = follow(state + layout.next_thread);
            }
            match follow(interpreter + layout.next_interpreter) {
                Some(next) => interpreter = next,
                None => break,
            }
        }
    }
}

impl Own {
    /// Whether it still is a state of its interpreter, and of a thread.
    #[inline(always)]
    fn is_listed(&mut self, layout: &Layout, thread: u64) -> bool {
        if crate::backend::is_system() {
            return self.is_listed_anew(layout, thread);
        }
        // SAFETY: this thread's state was here, and the allocator's memory stays mapped.
        let (of, previous) = unsafe { self.owner(layout) };
        match previous == self.previous {
            // SAFETY: of this interpreter or in that state, which were probed, as above.
            true => of == thread && unsafe { word(self.from) } == self.state,
            false => self.is_listed_anew(layout, thread),
        }
    }

    /// The same where nothing is known to be readable, or another state is before it.
    #[inline(never)]
    fn is_listed_anew(&mut self, layout: &Layout, thread: u64) -> bool {
        if crate::backend::is_system() && !probe::is_readable(self.state) {
            return false;
        }
        // SAFETY: this thread's state was here: the allocator's memory stays mapped, or, with the
        // program's own, it was just probed.
        let (of, previous) = unsafe { self.owner(layout) };
        let from = match previous {
            0 => self.interpreter + layout.threads,
            _ => previous.wrapping_add(layout.next_thread),
        };
        if of != thread {
            return false;
        }
        let Some(here) = follow_any(from) else {
            return false;
        };
        (self.previous, self.from) = (previous, from);
        here == self.state
    }

    /// The thread that it says it is of, and the state before it.
    ///
    /// # Safety
    /// It can be read.
    #[inline(always)]
    unsafe fn owner(&self, layout: &Layout) -> (u64, u64) {
        // SAFETY: the caller's.
        unsafe {
            (
                word(self.state + layout.thread_id),
                word(self.state + layout.previous_thread),
            )
        }
    }
}

/// Whether a state is readable and of a thread.
fn is_of(layout: &Layout, state: u64, thread: u64) -> bool {
    // SAFETY: found readable.
    probe::are_readable(state, state.saturating_add(STATE))
        && unsafe { word(state + layout.thread_id) } == thread
}

/// The pointer at an address, if there is one.
pub fn follow(at: u64) -> Option<u64> {
    let is_one = |pointer: &u64| *pointer != 0 && pointer.is_multiple_of(8) && *pointer < 1 << 56;
    follow_any(at).filter(is_one)
}

/// The word at an address, if it can be read.
pub fn follow_any(at: u64) -> Option<u64> {
    let readable = probe::are_readable(at, at.checked_add(8)?);
    // SAFETY: found readable.
    readable.then(|| unsafe { word(at) })
}
