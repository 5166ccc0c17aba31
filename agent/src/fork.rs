//! Forked children: they leave their parent's session first of all.
//!
//! `fork` calls a handler in the child. Children of a raw `clone` or `_Fork` are noticed by their
//! first sample, or first free of a sampled object.

use crate::local::Local;
use crate::{arch, atfork, session, sys, thread};

/// Asks to be called in children. At start-up.
pub fn start() {
    atfork::in_children(in_child);
}

/// State of the process, as a thread finds it before it samples or counts a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {
    /// The process is no copy, or one that has left its parent's segment.
    No,
    /// A copy, which has left its parent's segment just now.
    Left,
    /// A copy, which another thread is taking out of its parent's segment.
    Leaving,
}

/// Called before each sample and each free of a sampled object: a child made without
/// `fork`'s handlers leaves its parent's segment here.
#[inline]
pub fn after_unseen_fork() -> Copy {
    match session::is_copy() {
        false => Copy::No,
        true => leave_unseen(),
    }
}

#[cold]
fn leave_unseen() -> Copy {
    if !session::claim_leaving() {
        return Copy::Leaving;
    }
    // The sample that this is the start of has not touched anything yet.
    // SAFETY: the calling thread's state, of which its caller holds no reference across this.
    leave(unsafe { &mut *arch::local() }, false);
    Copy::Left
}

#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
unsafe extern "C" fn in_child() {
    let saved = sys::errno();
    // SAFETY: the calling thread's state. If the fork interrupted a sample, that does not go on
    // before this handler has returned.
    let local = unsafe { &mut *arch::local() };
    let interrupted = local.busy != 0;
    leave(local, interrupted);
    sys::set_errno(saved);
}

/// Leaves the parent's session, whose countdown and epoch no longer count.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
fn leave(local: &mut Local, interrupted: bool) {
    thread::forget_session(local);
    session::leave(local, thread::shard_of(local), interrupted);
}
