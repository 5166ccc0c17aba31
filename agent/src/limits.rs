//! `setrlimit` and `prlimit`, with which a program limits its own address space or its data.
//!
//! The address space reserved for sampled objects and for tables counts towards `RLIMIT_AS`, and
//! may be far more than the program wants to use in total. So unused reservations are released
//! before the limit takes effect. Sampled objects and the memory of threads that are sampled from
//! then on (2 MiB each, nearly all of it unused) get a small part of either limit. jemalloc, which
//! keeps the addresses of memory that it returns, stops doing so if the limit is low. Limits set by
//! another process, or by a raw system call, are not noticed.

use crate::{backend, exhaustion, range, seccomp, session, sys, thread};
use core::ffi::{CStr, c_int, c_long, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Type of the argument that names a resource.
type Resource = libc::__rlimit_resource_t;
type Setrlimit = unsafe extern "C" fn(Resource, *const libc::rlimit) -> c_int;
type Prlimit =
    unsafe extern "C" fn(libc::pid_t, Resource, *const libc::rlimit, *mut libc::rlimit) -> c_int;

/// Next definitions of these functions (`RTLD_NEXT`); null: the system call is made instead.
static SETRLIMIT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static PRLIMIT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks up the functions, at start-up.
pub fn find_next() {
    let find = |slot: &AtomicPtr<c_void>, name: &CStr| {
        slot.store(sys::next_symbol(name), Ordering::Relaxed);
    };
    find(&SETRLIMIT, c"setrlimit");
    find(&PRLIMIT, c"prlimit");
}

/// Number that no resource has.
const NO_RESOURCE: c_long = u32::MAX as c_long;

/// Returns true if the kernel can read a limit. If it cannot, the program's own call fails with
/// `EFAULT`. The request made here changes nothing: the kernel reads the limit before it refuses
/// the resource.
fn is_readable(limit: *const libc::rlimit) -> bool {
    let old = null_mut::<libc::rlimit>();
    sys::keeping_errno(|| {
        // SAFETY: the kernel checks the pointer. No resource has this number.
        let result = unsafe { sys::syscall(libc::SYS_prlimit64, 0_i64, NO_RESOURCE, limit, old) };
        result == 0 || sys::errno() != libc::EFAULT
    })
}

/// Prepares for a new limit of this process.
///
/// # Safety
/// `limit` may be any address; but if a seccomp filter is installed, it is null or valid.
unsafe fn prepare_for_limit(resource: Resource, limit: *const libc::rlimit) {
    let is_memory_limit = resource == libc::RLIMIT_AS || resource == libc::RLIMIT_DATA;
    let is_filtered = seccomp::is_installed();
    // In the child of a `vfork`, the limit is the child's, but the allocator the parent's.
    if !is_memory_limit || limit.is_null() || (!is_filtered && session::is_guest()) {
        return;
    }
    // A filter may end the program for a resource that does not exist.
    if !is_filtered && !is_readable(limit) {
        return;
    }
    // SAFETY: `limit` is readable: the kernel has read it, or the caller guarantees it.
    let limit = unsafe { &*limit };
    if limit.rlim_cur < backend::LOW_LIMIT_BYTES {
        exhaustion::save_memory();
    }
    thread::start(limit.rlim_cur);
    if resource == libc::RLIMIT_DATA {
        range::limit_data(limit.rlim_cur);
    }
    if resource != libc::RLIMIT_AS || limit.rlim_cur == libc::RLIM_INFINITY || is_filtered {
        return;
    }
    let saved = sys::errno();
    range::shrink(limit.rlim_cur);
    session::shrink(limit.rlim_cur);
    sys::set_errno(saved);
}

/// setrlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: Resource, limit: *const libc::rlimit) -> c_int {
    // SAFETY: the program passes a limit that is null or valid. `SETRLIMIT` is null or a function
    // of this type.
    let real = unsafe {
        prepare_for_limit(resource, limit);
        transmute::<*mut c_void, Option<Setrlimit>>(SETRLIMIT.load(Ordering::Relaxed))
    };
    match real {
        // SAFETY: passes the program's arguments on unchanged.
        Some(real) => unsafe { real(resource, limit) },
        // SAFETY: passes the program's arguments on unchanged.
        None => unsafe { call(0, resource, limit, null_mut()) },
    }
}

/// prlimit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: libc::pid_t,
    resource: Resource,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    if pid == 0 || pid.unsigned_abs() == sys::pid() {
        // SAFETY: the program passes a limit that is null or valid.
        unsafe { prepare_for_limit(resource, new) };
    }
    // SAFETY: `PRLIMIT` is null or a function of this type.
    let real =
        unsafe { transmute::<*mut c_void, Option<Prlimit>>(PRLIMIT.load(Ordering::Relaxed)) };
    match real {
        // SAFETY: passes the program's arguments on unchanged.
        Some(real) => unsafe { real(pid, resource, new, old) },
        // SAFETY: passes the program's arguments on unchanged.
        None => unsafe { call(pid, resource, new, old) },
    }
}

/// Alias of [`setrlimit`] for large files. On 64-bit machines both are the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: Resource, limit: *const libc::rlimit) -> c_int {
    // SAFETY: passes the program's arguments on unchanged.
    unsafe { setrlimit(resource, limit) }
}

/// Alias of [`prlimit`] for large files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: libc::pid_t,
    resource: Resource,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: passes the program's arguments on unchanged.
    unsafe { prlimit(pid, resource, new, old) }
}

/// Makes the system call.
///
/// # Safety
/// The pointers are null or valid.
unsafe fn call(
    pid: libc::pid_t,
    resource: Resource,
    new: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    let [pid, resource] = [c_long::from(pid), c_long::from(resource)];
    // SAFETY: the pointers are null or valid; the kernel checks them as well.
    unsafe { sys::syscall(libc::SYS_prlimit64, pid, resource, new, old) as c_int }
}
