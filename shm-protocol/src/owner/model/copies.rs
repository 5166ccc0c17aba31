//! Copies of a process: children of `fork`, of which handlers take the only thread out of
//! the parent's segment, and children that no handler sees, where each thread asks the mark.

use crate::owner::{Life, Mark, OWN, Sessions, WAITING};
use crate::sync::{AtomicU8, AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

/// Kinds of mappings.
const FOREIGN: u8 = 0;
const PRIVATE: u8 = 1;
const MINE: u8 = 2;

/// Place where something is mapped. Loom reports a use that races with a change of the mapping.
struct Place {
    what: AtomicU8,
    uses: UnsafeCell<()>,
}

// SAFETY: what the models are to prove.
unsafe impl Sync for Place {}

impl Place {
    fn new(what: u8) -> Self {
        Self {
            what: AtomicU8::new(what),
            uses: UnsafeCell::new(()),
        }
    }

    fn map(&self, what: u8) {
        self.uses
            .with_mut(|_| self.what.store(what, Ordering::Release));
    }

    fn seen(&self) -> u8 {
        self.uses.with(|_| self.what.load(Ordering::Relaxed))
    }
}

/// Process whose view, and the tables of session 1, were mapped by its parent or are its own.
struct Process {
    life: Life,
    mark: Mark,
    sessions: Sessions,
    /// View of commands, identity and status.
    view: Place,
    /// Tables of session 1.
    tables: Place,
    /// Amount recorded of the parent's session: nothing, a part, all.
    remembered: AtomicU8,
    /// Numbers of times that the copy left its parent's segment and made its own.
    left: AtomicU8,
    made: AtomicU8,
}

/// Knowledge that a thread has of session 1.
#[derive(Clone, Copy, PartialEq)]
enum Thread {
    Knows,
    IsNew,
}

impl Process {
    fn new(life: u8, view: u8, tables: u8) -> Self {
        let process = Self {
            life: Life(AtomicU8::new(life)),
            mark: Mark(AtomicU32::new(0)),
            sessions: Sessions::new(),
            view: Place::new(view),
            tables: Place::new(tables),
            remembered: AtomicU8::new(0),
            left: AtomicU8::new(0),
            made: AtomicU8::new(0),
        };
        if tables != PRIVATE {
            process.sessions.note(1, 0);
        }
        process
    }

    /// In session 1, and the mark is its own.
    fn in_session() -> Self {
        let process = Self::new(OWN, MINE, MINE);
        process.life.own(Some(&process.mark));
        process
    }

    /// Returns a copy of that.
    fn copy() -> Self {
        Self::new(OWN, FOREIGN, FOREIGN)
    }

    /// Models the agent's `session::leave`.
    fn leave(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
        self.life.leave(
            || {
                assert_ne!(self.view.seen(), PRIVATE, "remembers an empty page");
                self.remembered.store(1, Ordering::Release);
                self.remembered.store(2, Ordering::Release);
            },
            || self.sessions.forget(),
            || {
                self.view.map(PRIVATE);
                self.tables.map(PRIVATE);
                true
            },
            || {
                assert_eq!(self.view.seen(), PRIVATE, "waits in its parent's view");
                let remembered = self.remembered.load(Ordering::Relaxed);
                assert_ne!(remembered, 1, "continues with half of a session");
                let known = self.sessions.of_object(1, 0, 0);
                assert_eq!(known, None, "knows its parent's session");
            },
        );
    }

    /// Models the agent's `fork::leave_if_unseen`.
    fn may_go_on(&self) -> bool {
        if !self.life.is_copy(|| Some(&self.mark)) {
            return true;
        }
        let first = self.life.claim_leaving(Some(&self.mark));
        if first {
            self.leave();
        }
        first
    }

    /// Models the agent's `sample_if_due` in a thread whose countdown is over.
    fn sample(&self) {
        if !self.may_go_on() {
            return;
        }
        let state = self.life.get();
        let makes = state == WAITING && self.life.claim_making();
        if makes {
            self.made.fetch_add(1, Ordering::AcqRel);
            self.view.map(MINE);
            self.life.own(Some(&self.mark));
        }
        if makes || state == OWN {
            assert_eq!(self.view.seen(), MINE, "samples for another process");
        }
    }

    /// Models the agent's `count_free` for an object of session 1. Returns true if the free counts.
    fn free(&self, thread: Thread) -> bool {
        if !self.may_go_on() {
            return false;
        }
        // The thread's own session, or the one that it finds.
        if thread == Thread::IsNew && self.sessions.of_object(1, 0, 0).is_none() {
            return false;
        }
        let tables = self.tables.seen();
        assert_ne!(tables, FOREIGN, "a free in the parent's tables");
        // The private page is no session's.
        tables == MINE
    }

    /// Models the copy that `fork` makes. Returns `None` if the words read are not of one moment.
    fn fork(&self) -> Option<Self> {
        let see = |word: &AtomicU8| word.load(Ordering::Acquire);
        let [made, left, life] = [&self.made, &self.left, &self.life.0].map(see);
        // Each may be seen as it was before those that changed before it.
        let [tables, view] = [&self.tables.what, &self.view.what].map(see);
        let knows = self.sessions.of_object(1, 0, 0).is_some();
        let remembered = see(&self.remembered);
        let same = [life, left, made] == [&self.life.0, &self.left, &self.made].map(see);
        let copied = |what| if what == PRIVATE { PRIVATE } else { FOREIGN };
        let child = Self::new(life, copied(view), copied(tables));
        child.remembered.store(remembered, Ordering::Relaxed);
        if !knows {
            child.sessions.forget();
        }
        same.then_some(child)
    }

    /// Runs a child's first calls: frees an object of its parent, and allocates.
    fn run(&self, thread: Thread) {
        assert!(!self.free(thread), "not its own object");
        self.sample();
        assert!(!self.free(thread), "not its own object");
    }
}

fn explore(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A copy that no handler saw has two threads: one that was its parent's, in the midst of a
/// session, and one of its own. Nothing is counted in the parent's tables, nobody touches
/// what the other gives up, and one thread alone leaves and makes a segment.
#[test]
fn unseen_copy_leaves_once() {
    explore(3, || {
        let copy = Arc::new(Process::copy());
        let other = Arc::clone(&copy);
        let thread = thread::spawn(move || other.run(Thread::IsNew));
        copy.run(Thread::Knows);
        thread.join().unwrap();
        assert_eq!(copy.left.load(Ordering::Relaxed), 1);
        assert!(copy.made.load(Ordering::Relaxed) <= 1);
        copy.sample();
        assert_eq!(copy.life.get(), OWN);
    });
}

/// Two threads of a child that waits, which a handler took out of its parent's segment, so
/// that the mark still says that it is a copy: one makes the segment, and nobody leaves it.
#[test]
fn waiting_child_makes_one_segment() {
    explore(3, || {
        let child = Arc::new(Process::new(WAITING, PRIVATE, PRIVATE));
        let other = Arc::clone(&child);
        let thread = thread::spawn(move || other.run(Thread::IsNew));
        child.run(Thread::Knows);
        thread.join().unwrap();
        assert_eq!(child.made.load(Ordering::Relaxed), 1);
        assert_eq!(child.left.load(Ordering::Relaxed), 0);
        assert_eq!(child.life.get(), OWN);
    });
}

/// Returns a thread of a process samples while another one forks; `seen` by the handlers or not.
fn fork_beside(process: fn() -> Process, seen: bool) {
    explore(3, move || {
        let process = Arc::new(process());
        let other = Arc::clone(&process);
        let thread = thread::spawn(move || {
            other.sample();
            other.free(Thread::IsNew)
        });
        if let Some(child) = process.fork() {
            if seen {
                child.leave();
            }
            child.run(Thread::Knows);
            child.run(Thread::IsNew);
        }
        let counts = thread.join().unwrap();
        assert_eq!(counts, process.tables.seen() == MINE, "the parent's own");
    });
}

/// In a session: the parent's samples and frees count, the child's do not.
#[test]
fn fork_in_a_session() {
    fork_beside(Process::in_session, true);
    fork_beside(Process::in_session, false);
}

/// In a child that waits for a segment, while a thread makes it.
#[test]
fn fork_beside_the_making_of_a_segment() {
    let waiting = || Process::new(WAITING, PRIVATE, PRIVATE);
    fork_beside(waiting, true);
    fork_beside(waiting, false);
}

/// In a copy, while a thread takes it out of its parent's segment.
#[test]
fn fork_beside_the_leaving_of_a_segment() {
    fork_beside(Process::copy, true);
    fork_beside(Process::copy, false);
}
