//! Makes forked children leave their parent's session before they do anything else.
//!
//! `fork` calls a handler in the child. Children of a raw `clone` or of `_Fork` are noticed at
//! their first sample, or at their first free of a sampled object.

// Decision 21: a forked child waits before it makes a segment.
use crate::local::Local;
use crate::{arch, atfork, range, session, sys, thread, timers};

/// Registers the handlers, at start-up.
pub fn start() {
    atfork::add_child_handler(in_child);
    atfork::set_parent_handlers(timers::before_fork, timers::after_fork);
}

/// Makes a child that was created without fork handlers leave its parent's segment. Called before
/// each sample and each free of a sampled object. Returns false while another thread of the child
/// is leaving it.
#[inline]
pub fn leave_if_copy(local: &mut Local) -> bool {
    !session::is_copy() || leave_copy(local)
}

#[cold]
fn leave_copy(local: &mut Local) -> bool {
    let is_first = session::claim_leaving();
    if is_first {
        range::allow_creation_again();
        // The copy may have other threads, one of which was the parent's and uses the tables.
        leave(local, true);
    }
    is_first
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn in_child() {
    let saved = sys::errno();
    // SAFETY: the calling thread's own state. An interrupted sample continues only after this
    // handler.
    let local = unsafe { &mut *arch::local() };
    let interrupted = local.busy != 0;
    if !interrupted {
        range::allow_creation_again();
    }
    leave(local, interrupted);
    sys::set_errno(saved);
}

/// Leaves the parent's session, so that its countdown and epoch no longer count. With
/// `may_use_tables`, the parent's tables may still be accessed (see [`session::leave`]).
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
fn leave(local: &mut Local, may_use_tables: bool) {
    let had_timers = timers::in_child();
    thread::forget_session(local);
    session::leave(local, thread::shard_of(local), may_use_tables);
    if had_timers {
        timers::await_session(session::pending_cpu_rate());
    }
}
