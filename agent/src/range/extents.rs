//! Extent hooks of the arena of sampled objects: extents are carved from the range, and never
//! returned.

use super::{BASE, SHARE, USED};
use crate::backend::jemalloc;
use crate::{arch, headers, sys};
use core::ffi::{c_int, c_long, c_uint, c_void};
use core::mem::size_of;
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicUsize, Ordering};

/// Creates the arena for a range of `size` bytes. Returns its index.
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
    // SAFETY: never written, and consists of function pointers.
    unsafe impl Sync for Table {}

    LIMIT.store(size, Ordering::Relaxed);
    let hooks = (&raw const TABLE.0).cast_mut();
    let mut index: c_uint = 0;
    let mut len = size_of::<c_uint>();
    let mut hooks: *mut jemalloc::extent_hooks_t = hooks;
    // SAFETY: jemalloc writes a `c_uint` of ours and reads a pointer to a static.
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

/// Bytes that the hooks may carve from. Set before [`SIZE`](super::SIZE) makes the range visible to
/// `free`.
static LIMIT: AtomicUsize = AtomicUsize::new(0);

/// Maximum number of bytes for objects. `RLIMIT_DATA` counts writable memory, and the arena keeps
/// what it has, for sampled objects alone.
static MAX_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Limits objects to a small part of the process's writable memory, which is limited to `bytes`.
pub fn limit_data(bytes: u64) {
    let max_bytes = usize::try_from(bytes / SHARE).unwrap_or(usize::MAX);
    MAX_BYTES.fetch_min(max_bytes, Ordering::Relaxed);
}

/// Minimum size of an extent for which a mapping is tried first, to see whether the kernel grants
/// so much memory. It does not check this for the range, which is mapped with `MAP_NORESERVE`.
const MIN_CHECKED_BYTES: usize = 1 << 30;

/// Returns true if the kernel would grant a mapping of this size.
#[cold]
fn is_granted(bytes: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, unmapped at once.
    unsafe {
        let at = libc::mmap(null_mut(), bytes, access, flags, -1, 0);
        at != libc::MAP_FAILED && libc::munmap(at, bytes) == 0
    }
}

/// Carves an extent from the range.
unsafe extern "C" fn carve(
    _: *mut jemalloc::extent_hooks_t,
    wanted: *mut c_void,
    size: usize,
    alignment: usize,
    zero: *mut bool,
    commit: *mut bool,
    _: c_uint,
) -> *mut c_void {
    if !wanted.is_null() || (size >= MIN_CHECKED_BYTES && !is_granted(size)) {
        return null_mut();
    }
    let base = BASE.load(Ordering::Relaxed);
    let reserved = LIMIT.load(Ordering::Relaxed);
    let max_end = headers::bytes(reserved).saturating_add(MAX_BYTES.load(Ordering::Relaxed));
    let limit = reserved.min(max_end);
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
            Err(current) => used = current,
        }
    };
    let at: *mut c_void = without_provenance_mut(at);
    // SAFETY: the extent is inside the reservation and not used yet; jemalloc passes valid
    // pointers.
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

/// Refuses to release an extent: its addresses stay in the range.
unsafe extern "C" fn keep(
    _: *mut jemalloc::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    true
}

/// Gives the kernel advice on pages. Returns true if the kernel refuses it. Keeps `errno`, because `free` calls this.
///
/// # Safety
/// `at` and `bytes` describe whole pages whose contents are not needed any more.
unsafe fn advise(at: *mut c_void, bytes: usize, advice: c_int) -> bool {
    let saved = sys::errno();
    // SAFETY: the contents of these pages are not needed any more.
    let is_refused = unsafe { libc::madvise(at, bytes, advice) } != 0;
    sys::set_errno(saved);
    is_refused
}

unsafe extern "C" fn purge_lazy(
    _: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    // SAFETY: jemalloc passes pages of an extent that it owns and does not need.
    unsafe { advise(at.byte_add(offset), len, libc::MADV_FREE) }
}

unsafe extern "C" fn purge_forced(
    _: *mut jemalloc::extent_hooks_t,
    at: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    // SAFETY: jemalloc passes pages of an extent that it owns and does not need.
    unsafe {
        let at = at.byte_add(offset);
        let local = arch::local();
        let is_new = (*local).renewed || (*local).renewing && renew(at, len);
        !is_new && advise(at, len, libc::MADV_DONTNEED)
    }
}

/// Maps new pages over others, with the properties of the range. Changes `errno`.
///
/// # Safety
/// See [`advise`].
unsafe fn cover(at: *mut c_void, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let [access, flags, file] = [access, flags, -1].map(c_long::from);
    // SAFETY: the call replaces memory of the range that nobody needs. `libc::mmap` is not used,
    // because `wrapped.rs` replaces it for jemalloc's other memory.
    unsafe { libc::syscall(libc::SYS_mmap, at, bytes, access, flags, file, 0) != -1 }
}

/// Maps new pages over a part of the range ([`renewal`](crate::renewal)). Does nothing if the
/// process has locked its future mappings: the kernel would back the part at once. Returns true if
/// all pages were replaced.
///
/// # Safety
/// See [`advise`].
#[cold]
pub unsafe fn renew(at: *mut c_void, bytes: usize) -> bool {
    let saved = sys::errno();
    let page = sys::PAGE.min(bytes);
    // SAFETY: the pages are within the part, whose contents are not needed any more.
    let is_new = unsafe {
        cover(at, page)
            && if sys::is_locked(at) {
                libc::munlock(at, page);
                false
            } else {
                cover(at.byte_add(page), bytes - page)
            }
    };
    #[cfg(not(test))]
    if is_new {
        crate::huge_pages::exclude(at, bytes);
    }
    sys::set_errno(saved);
    is_new
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
