//! Copies of a process: children of `fork`, whose only thread is made to leave the parent's segment
//! by a fork handler, and children for which no handler ran, where each thread checks the mark.

use crate::owner::{Mark, OWN, SegmentState, Sessions, WAITING};
use crate::sync::{AtomicU8, AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

/// Kinds of mappings.
const FOREIGN: u8 = 0;
const PRIVATE: u8 = 1;
const MINE: u8 = 2;

/// Address range with a mapping. Loom reports a use that races with a change of the mapping.
struct Area {
    mapping: AtomicU8,
    uses: UnsafeCell<()>,
}

// SAFETY: loom reports every access to `uses` that is not ordered with a change.
unsafe impl Sync for Area {}

impl Area {
    fn new(mapping: u8) -> Self {
        Self {
            mapping: AtomicU8::new(mapping),
            uses: UnsafeCell::new(()),
        }
    }

    fn map(&self, mapping: u8) {
        self.uses
            .with_mut(|_| self.mapping.store(mapping, Ordering::Release));
    }

    fn access(&self) -> u8 {
        self.uses.with(|_| self.mapping.load(Ordering::Relaxed))
    }
}

/// Process whose view of the segment, and tables of session 1, were mapped by its parent or by
/// itself.
struct Process {
    life: SegmentState,
    mark: Mark,
    sessions: Sessions,
    /// Mapping of commands, identity and status.
    view: Area,
    /// Tables of session 1.
    tables: Area,
    /// Part of the parent's session that was saved: 0 nothing, 1 some, 2 all.
    remembered: AtomicU8,
    /// Number of times that the copy left its parent's segment, and that it created its own.
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
            life: SegmentState(AtomicU8::new(life)),
            mark: Mark(AtomicU32::new(0)),
            sessions: Sessions::new(),
            view: Area::new(view),
            tables: Area::new(tables),
            remembered: AtomicU8::new(0),
            left: AtomicU8::new(0),
            made: AtomicU8::new(0),
        };
        if tables != PRIVATE {
            process.sessions.record(1, 0);
        }
        process
    }

    /// Returns a process in session 1 that has signed its mark.
    fn in_session() -> Self {
        let process = Self::new(OWN, MINE, MINE);
        process.life.own(Some(&process.mark));
        process
    }

    /// Returns a copy of such a process.
    fn copy() -> Self {
        Self::new(OWN, FOREIGN, FOREIGN)
    }

    /// Models the agent's `session::leave`.
    fn leave(&self) {
        self.left.fetch_add(1, Ordering::AcqRel);
        self.life.leave(
            || {
                assert_ne!(self.view.access(), PRIVATE, "remembers an empty page");
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
                assert_eq!(self.view.access(), PRIVATE, "waits in its parent's view");
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
            assert_eq!(self.view.access(), MINE, "samples for another process");
        }
    }

    /// Models the agent's `count_free` for an object of session 1. Returns true if the free counts.
    fn free(&self, thread: Thread) -> bool {
        if !self.may_go_on() {
            return false;
        }
        // A new thread does not know a session itself.
        if thread == Thread::IsNew && self.sessions.of_object(1, 0, 0).is_none() {
            return false;
        }
        let tables = self.tables.access();
        assert_ne!(tables, FOREIGN, "a free in the parent's tables");
        // The private page belongs to no session.
        tables == MINE
    }

    /// Models the copy that `fork` makes. Returns `None` if the words were not read at one moment.
    fn fork(&self) -> Option<Self> {
        let see = |word: &AtomicU8| word.load(Ordering::Acquire);
        let [made, left, life] = [&self.made, &self.left, &self.life.0].map(see);
        // Words that change later are read first.
        let [tables, view] = [&self.tables.mapping, &self.view.mapping].map(see);
        let knows = self.sessions.of_object(1, 0, 0).is_some();
        let remembered = see(&self.remembered);
        let same = [life, left, made] == [&self.life.0, &self.left, &self.made].map(see);
        let copied = |mapping| if mapping == PRIVATE { PRIVATE } else { FOREIGN };
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

/// A copy for which no handler ran has two threads: a copy of a parent's thread, in the middle of a
/// session, and a new one. Nothing is counted in the parent's tables, no thread uses a mapping that
/// the other has replaced, and only one thread leaves and creates a segment.
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

/// Two threads of a waiting child, which a handler made leave its parent's segment, so that its
/// mark is still that of a copy: one creates the segment, and none leaves it.
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

/// Lets a thread of a process sample while another one forks. `seen`: fork handlers run.
fn fork_during_a_sample(process: fn() -> Process, seen: bool) {
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
        assert_eq!(counts, process.tables.access() == MINE, "the parent's own");
    });
}

/// Fork during a session: the parent's samples and frees count, the child's do not.
#[test]
fn fork_in_a_session() {
    fork_during_a_sample(Process::in_session, true);
    fork_during_a_sample(Process::in_session, false);
}

/// Fork in a waiting child, while a thread creates its segment.
#[test]
fn fork_while_a_segment_is_created() {
    let waiting = || Process::new(WAITING, PRIVATE, PRIVATE);
    fork_during_a_sample(waiting, true);
    fork_during_a_sample(waiting, false);
}

/// Fork in a copy, while a thread makes it leave its parent's segment.
#[test]
fn fork_while_a_segment_is_left() {
    fork_during_a_sample(Process::copy, true);
    fork_during_a_sample(Process::copy, false);
}
