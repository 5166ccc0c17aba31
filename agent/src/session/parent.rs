//! Read-only view of the parent's commands and status, for a waiting child.
//!
//! A child that creates its own segment, perhaps long after the fork, must know whether the
//! parent's session is still running. The view itself is covered at `fork`, because a child must
//! not write there, and the parent's file may be in another root directory or belong to another
//! user by the time the child needs it. So the file's first pages are mapped a second time at
//! `fork`.

use super::{CONTROL, VIEW_BYTES, control};
use crate::{seccomp, sys};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering, fence};
use shm_protocol::layout::{Control, STATUS_OFFSET, Status};
use shm_protocol::owner::Setting;

/// Address of the second mapping, of [`VIEW_BYTES`] bytes; null if there is none.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static PARENT_VIEW: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// Maps the parent's commands and status. Called in a child before the view is covered, by the only
/// thread.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub fn keep_view() {
    // A child under a filter creates no segment, and the filter may not allow these calls.
    if seccomp::is_installed() {
        return;
    }
    let saved = sys::errno();
    // A read-only mapping does not keep others from removing the segment of an exited process.
    // SAFETY: the view belongs to the parent's segment, in whole pages, which nobody has covered
    // yet.
    let parents: *mut u8 = unsafe { sys::map_again(CONTROL.0.get().cast(), VIEW_BYTES) }.cast();
    // Valgrind and some emulators do not support this.
    if !parents.is_null() {
        PARENT_VIEW.store(parents, Ordering::Release);
    }
    sys::set_errno(saved);
}

/// Unmaps the parent's commands and status. Called in a child by the thread that has created its
/// segment, or has decided to create none.
pub fn forget() {
    let parents = PARENT_VIEW.swap(null_mut(), Ordering::AcqRel);
    if !parents.is_null() {
        // SAFETY: the mapping that `keep_view` made. Only the thread that creates the segment reads
        // it, and that is the calling one.
        unsafe { sys::unmap(parents.cast(), VIEW_BYTES) };
    }
}

/// State of a parent's session.
pub enum ParentSession {
    /// The session continues, with this setting.
    Current(Setting),
    /// The session continues, as far as is known; the parent may have exited.
    Unknown,
    /// The session is over, or only its controller knows whether it continues.
    Over,
}

/// Returns the state of a session in the parent. `has_end` is true if a controller began the
/// session: the controller then ends it in all of its processes, or takes the children over.
/// Otherwise the parent itself began it.
pub fn session_state(session: u64, has_end: bool) -> ParentSession {
    let parents = PARENT_VIEW.load(Ordering::Acquire);
    if parents.is_null() {
        return ParentSession::Unknown;
    }
    // SAFETY: the first pages of the parent's segment, mapped until `forget`. Its creator wrote all
    // of them, so they are backed by memory as long as anybody maps the file, even if it is
    // unlinked. All fields are atomics.
    let (control, status) = unsafe {
        let control = &*parents.cast::<Control>();
        (control, &*parents.byte_add(STATUS_OFFSET).cast::<Status>())
    };
    /// Maximum number of times that a setting is read, because it may change during the read.
    const TRIES: usize = 8;
    let setting = (0..TRIES).find_map(|_| Setting::in_force(control));
    let has_ended = status.ended_session.load(Ordering::Acquire) == session;
    let is_collected = status.collected_session.load(Ordering::Acquire) == session;
    match setting {
        Some(setting) if setting.session != session => ParentSession::Over,
        // A killed parent never ends its session, so the session is over once its profile is
        // collected.
        Some(setting) if !(has_end && is_collected) => ParentSession::Current(setting),
        _ if has_end || has_ended => ParentSession::Over,
        // The program that began it has exited.
        _ => ParentSession::Unknown,
    }
}

/// Like [`session_state`], after the child's own session is visible. A controller ends the parent's
/// session first and looks for new segments afterwards: so either it finds this segment, or this
/// function sees that the session is over.
pub fn session_state_since(session: u64, has_end: bool) -> ParentSession {
    fence(Ordering::SeqCst);
    session_state(session, has_end)
}

/// Ends the session that this process has just begun, unless a controller has taken it over.
pub fn revoke_session(session: u64) {
    /// Epoch of a segment's first session.
    const FIRST: u32 = 1;
    if let (true, Some(status)) = (Setting::end(control(), FIRST), super::status()) {
        status
            .ended_ns
            .store(super::time::now_ns(), Ordering::Relaxed);
        status.ended_session.store(session, Ordering::Release);
    }
}
