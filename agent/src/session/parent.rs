//! The parent's commands and status, as a waiting child still sees them: whether the session that
//! was running at the fork still runs when the child creates its own segment, perhaps long
//! afterwards.
//!
//! The view of the parent's segment is covered at `fork`, since nothing may be written there. So it
//! is mapped a second time before, to be read only: the parent's file may be in another root
//! directory, or another user's, by the time it matters.

use super::{CONTROL, VIEW, control};
use crate::{seccomp, sys};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering, fence};
use shm_protocol::layout::{Control, STATUS_OFFSET, Status};
use shm_protocol::owner::Setting;
use shm_protocol::segment;

/// Where they are mapped, [`VIEW`] bytes; null: nowhere.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static PARENTS: AtomicPtr<u8> = AtomicPtr::new(null_mut());

/// Keeps the parent's commands and status in sight. Called in a child before the view is covered,
/// by the only thread that may.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub fn keep() {
    // Such a child makes no segment; and its filter may not expect these calls.
    if seccomp::is_installed() {
        return;
    }
    let saved = sys::errno();
    // SAFETY: the view of the parent's segment, whole pages, which nobody has covered yet.
    let Ok(parents) = (unsafe { segment::whole(CONTROL.0.get().cast(), VIEW) }) else {
        // Valgrind and some emulators cannot do that.
        return sys::set_errno(saved);
    };
    // Whoever can only read is not in the way of those who remove segments of ended processes.
    // SAFETY: the mapping just made, which nobody else knows.
    if unsafe { libc::mprotect(parents.cast(), VIEW, libc::PROT_READ) } == 0 {
        PARENTS.store(parents, Ordering::Release);
    } else {
        // SAFETY: as above.
        unsafe { libc::munmap(parents.cast(), VIEW) };
        sys::set_errno(saved);
    }
}

/// Gives the mapping up. Called in a child by the thread that has made its segment, or will make
/// none.
pub fn forget() {
    let parents = PARENTS.swap(null_mut(), Ordering::AcqRel);
    if !parents.is_null() {
        // SAFETY: `keep`'s mapping, which only the thread that makes the segment reads; that is
        // the calling one.
        unsafe { libc::munmap(parents.cast(), VIEW) };
    }
}

/// How a session of the parent's stands.
pub enum Standing {
    /// It continues, by this setting.
    Current(Setting),
    /// It continues as far as is known: the parent may have ended since.
    Unknown,
    /// It is over, or only its controller knows.
    Over,
}

/// How the parent's session of this number stands. `has_end`: a controller has begun it, which ends
/// it with all of its processes, or takes them in; otherwise the parent did so for itself.
pub fn standing(session: u64, has_end: bool) -> Standing {
    let parents = PARENTS.load(Ordering::Acquire);
    if parents.is_null() {
        return Standing::Unknown;
    }
    // SAFETY: the first pages of the parent's segment, mapped until `forget`. Its maker wrote all
    // of them, so they are backed by memory, which is not given back while anybody maps the file,
    // with or without a name. All of both structures are atomics.
    let (control, status) = unsafe {
        let control = &*parents.cast::<Control>();
        (control, &*parents.byte_add(STATUS_OFFSET).cast::<Status>())
    };
    // Another epoch may begin meanwhile, but not without end.
    const TRIES: usize = 8;
    let setting = (0..TRIES).find_map(|_| Setting::in_force(control));
    let has_ended = status.ended_session.load(Ordering::Acquire) == session;
    let is_collected = status.collected_session.load(Ordering::Acquire) == session;
    match setting {
        Some(setting) if setting.session != session => Standing::Over,
        // If the parent was killed, its session is never turned off.
        Some(setting) if !(has_end && is_collected) => Standing::Current(setting),
        _ if has_end || has_ended => Standing::Over,
        // The program that began it has ended.
        _ => Standing::Unknown,
    }
}

/// The same once the child's own session is visible. A controller turns the parent's off first, and
/// looks for segments afterwards: either it sees this one, or this sees that.
pub fn standing_since(session: u64, has_end: bool) -> Standing {
    fence(Ordering::SeqCst);
    standing(session, has_end)
}

/// Ends the session that this process has just begun, unless a controller has taken it over
/// already.
pub fn take_back(session: u64) {
    /// Epoch of a segment's first session.
    const FIRST: u32 = 1;
    if let (true, Some(status)) = (Setting::end(control(), FIRST), super::status()) {
        status
            .ended_ns
            .store(super::time::now_ns(), Ordering::Relaxed);
        status.ended_session.store(session, Ordering::Release);
    }
}
