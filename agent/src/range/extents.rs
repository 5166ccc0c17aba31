//! The range as jemalloc's arena sees it: extents are carved from it, and never given back.

use super::{BASE, SHARE, USED};
use crate::headers;
use core::ffi::{c_uint, c_void};
use core::mem::size_of;
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicUsize, Ordering};
use tikv_jemalloc_sys as jemalloc;

/// An arena of jemalloc whose memory is the range, of which so many bytes are reserved.
pub fn make_arena(size: usize) -> Option<c_uint> {
    static TABLE: Table = Table(jemalloc::extent_hooks_t {
        alloc: Some(carve),
        dalloc: Some(keep),
        destroy: None,
        commit: None,
        decommit: None,
        purge_lazy: Some(purge_lazy),
        purge_forced: Some(purge_forced),
        split: Some(allow_split),
        merge: Some(allow_merge),
    });
    struct Table(jemalloc::extent_hooks_t);
    // SAFETY: never written; function pointers are free to share.
    unsafe impl Sync for Table {}

    LIMIT.store(size, Ordering::Relaxed);
    let hooks = (&raw const TABLE.0).cast_mut();
    let mut index: c_uint = 0;
    let mut len = size_of::<c_uint>();
    let mut hooks: *mut jemalloc::extent_hooks_t = hooks;
    // SAFETY: jemalloc writes a c_uint and reads a pointer to a static.
    let failed = unsafe {
        jemalloc::mallctl(
            c"arenas.create".as_ptr(),
            (&raw mut index).cast(),
            &mut len,
            (&raw mut hooks).cast(),
            size_of::<*mut jemalloc::extent_hooks_t>(),
        )
    };
    (failed == 0).then_some(index)
}

/// Bytes that the hooks may carve from, before [`SIZE`] makes the range visible to `free`.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Bytes that objects may take: `RLIMIT_DATA` counts memory that may be written to, and what the arena has
/// got it keeps, for sampled objects alone.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Makes objects take only a small part of what the process may write to.
pub fn limit_data(bytes: u64) {
    let most = usize::try_from(bytes / SHARE).unwrap_or(usize::MAX);
    MOST.fetch_min(most, Ordering::Relaxed);
}

/// Bytes from which on the kernel is asked whether it grants them. It does not ask itself, as there is
/// `MAP_NORESERVE` on the range.
const MUCH: usize = 1 << 30;

/// Whether a mapping of this many bytes would be granted.
#[cold]
fn is_granted(bytes: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where nothing is, given back at once.
    unsafe {
        let at = libc::mmap(null_mut(), bytes, access, flags, -1, 0);
        at != libc::MAP_FAILED && libc::munmap(at, bytes) == 0
    }
}

unsafe extern "C" fn carve(
    _: *mut jemalloc::extent_hooks_t,
    wanted: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _: c_uint,
) -> *mut c_void {
    if !wanted.is_null() || size >= MUCH && !is_granted(size) {
        return null_mut();
    }
    let (base, reserved) = (BASE.load(Ordering::Relaxed), LIMIT.load(Ordering::Relaxed));
    let most = headers::bytes(reserved).saturating_add(MOST.load(Ordering::Relaxed));
    let limit = reserved.min(most);
    let mut used = USED.load(Ordering::Relaxed);
    let at = loop {
        let Some(at) = (base + used).checked_next_multiple_of(alignment.max(4096)) else {
            return null_mut();
        };
        let Some(end) = (at - base).checked_add(size).filter(|end| *end <= limit) else {
            return null_mut();
        };
        match USED.compare_exchange_weak(used, end, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => break at,
            Err(now) => used = now,
        }
    };
    let at: *mut c_void = without_provenance_mut(at);
    // SAFETY: inside the reservation and not in use; jemalloc's pointers are valid.
    unsafe {
        if libc::mprotect(at, size, libc::PROT_READ | libc::PROT_WRITE) != 0
            || !headers::open(at.cast(), size)
        {
            return null_mut();
        }
        super::include_in_dumps(at, size);
        *zero = true;
        *commit = true;
    }
    at
}

unsafe extern "C" fn keep(
    _: *mut jemalloc::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    true
}

unsafe extern "C" fn purge_lazy(
    _: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    // SAFETY: pages of an extent that jemalloc owns and does not need.
    unsafe { libc::madvise(at.byte_add(offset), len, libc::MADV_FREE) != 0 }
}

unsafe extern "C" fn purge_forced(
    _: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    // SAFETY: as above.
    unsafe { libc::madvise(at.byte_add(offset), len, libc::MADV_DONTNEED) != 0 }
}

unsafe extern "C" fn allow_split(
    _: *mut jemalloc::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: usize,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

unsafe extern "C" fn allow_merge(
    _: *mut jemalloc::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}
