//! Extent hooks of the arena of sampled objects: extents are carved from the range, and never
//! returned.

use super::{BASE, LIMIT_SHARE, USED};
use crate::backend::{extent_hooks, jemalloc};
use crate::{arch, headers, sys};
use core::ffi::{c_int, c_long, c_uint, c_void};
use core::mem::size_of;
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Creates the arena for a range of `size` bytes, which may grow to `max`. Returns its index.
pub fn make_arena(size: usize, max: usize) -> Option<c_uint> {
    static TABLE: Table = Table(jemalloc::extent_hooks_t {
        alloc: Some(carve),
        dalloc: Some(refuse_release),
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

    TABLE_BYTES.store(headers::bytes(max), Ordering::Relaxed);
    MAX_SIZE.store(max, Ordering::Relaxed);
    CARVABLE_BYTES.store(carvable_bytes(size, max), Ordering::Relaxed);
    extent_hooks::register(&raw const TABLE.0);
    let mut index: c_uint = 0;
    let mut len = size_of::<c_uint>();
    let mut hooks = (&raw const TABLE.0).cast_mut();
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

/// Number of bytes of the range that may be carved. Set before [`SIZE`](super::SIZE) makes the
/// range visible to `free`.
static CARVABLE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// Size to which the range may grow, in bytes.
static MAX_SIZE: AtomicUsize = AtomicUsize::new(0);
/// Size of the header table, in bytes.
static TABLE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// True while a thread is growing the range.
static GROWING: AtomicBool = AtomicBool::new(false);

/// Size of the part at the end of the range from which nothing is carved while the range may grow,
/// in bytes: a growing mapping passes on the properties of its last page.
const MARGIN_BYTES: usize = 64 << 10;
/// Maximum number of times that a thread checks whether another one has finished growing the range.
/// jemalloc's own lock makes this rare.
const MAX_GROWTH_CHECKS: u32 = 10_000;

/// Returns how much of a range of `size` bytes may be carved, if it may grow to `max`.
fn carvable_bytes(size: usize, max: usize) -> usize {
    if size < max {
        size - MARGIN_BYTES
    } else {
        size
    }
}

/// Grows the range so that `end` bytes of it may be carved. Returns false if that fails.
#[cold]
fn grow(end: usize) -> bool {
    let is_mine = (0..MAX_GROWTH_CHECKS).any(|_| {
        core::hint::spin_loop();
        !GROWING.swap(true, Ordering::Acquire)
    });
    if !is_mine {
        return false;
    }
    let grown = end <= CARVABLE_BYTES.load(Ordering::Relaxed) || grow_alone(end);
    GROWING.store(false, Ordering::Release);
    grown
}

/// Grows the range. Must be called by one thread at a time.
fn grow_alone(end: usize) -> bool {
    let (size, max) = (super::reserved(), MAX_SIZE.load(Ordering::Relaxed));
    // Twice as large, so that growing is rare.
    let wanted = end
        .saturating_add(MARGIN_BYTES)
        .next_multiple_of(MARGIN_BYTES);
    let new = (2 * size).max(wanted).min(max);
    if new <= size || carvable_bytes(new, max) < end {
        return false;
    }
    let last: *mut c_void = without_provenance_mut(BASE.load(Ordering::Relaxed) + size - sys::PAGE);
    // SAFETY: the last page of the reservation, in which no extent lies. It grows in place or not
    // at all. It stays inaccessible, and its other properties stay the same, too.
    let grown = unsafe { libc::mremap(last, sys::PAGE, sys::PAGE + new - size, 0) };
    if grown == libc::MAP_FAILED {
        return false;
    }
    super::extend(new);
    CARVABLE_BYTES.store(carvable_bytes(new, max), Ordering::Release);
    true
}

/// Grows the range to its maximum size, or as far as possible.
#[cold]
pub fn grow_fully() {
    grow(MAX_SIZE.load(Ordering::Relaxed));
}

/// Limits the size to which the range may grow. Returns the size of the header table, in bytes.
#[cold]
#[cfg_attr(test, allow(dead_code))]
pub fn limit_growth(max_size: usize) -> usize {
    MAX_SIZE.fetch_min(max_size, Ordering::Relaxed);
    TABLE_BYTES.load(Ordering::Relaxed)
}

/// Allows growth again in a forked child, where the thread of the parent that was growing the range
/// does not exist.
#[inline(always)]
pub fn allow_growth_again() {
    if GROWING.load(Ordering::Relaxed) {
        GROWING.store(false, Ordering::Relaxed);
    }
}

/// Maximum number of bytes for objects. `RLIMIT_DATA` counts writable memory, and the arena never
/// gives its extents back.
static MAX_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Limits objects to a small part of `bytes`, the process's limit of writable memory.
pub fn limit_data(bytes: u64) {
    let max_bytes = usize::try_from(bytes / LIMIT_SHARE).unwrap_or(usize::MAX);
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
    // SAFETY: a new mapping, unmapped immediately.
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
    let table = TABLE_BYTES.load(Ordering::Relaxed);
    let max_end = table.saturating_add(MAX_BYTES.load(Ordering::Relaxed));
    let mut used = USED.load(Ordering::Relaxed);
    let at = loop {
        let Some(at) = (base + used).checked_next_multiple_of(alignment.max(4096)) else {
            return null_mut();
        };
        let Some(end) = (at - base).checked_add(size).filter(|end| *end <= max_end) else {
            return null_mut();
        };
        if end > CARVABLE_BYTES.load(Ordering::Acquire) && !grow(end) {
            return null_mut();
        }
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
unsafe extern "C" fn refuse_release(
    _: *mut jemalloc::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    true
}

/// Gives the kernel advice on pages. Returns true if the kernel refuses it. Keeps `errno`, because
/// `free` calls this.
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
    unsafe { sys::syscall(libc::SYS_mmap, at, bytes, access, flags, file, 0) != -1 }
}

/// Maps new pages over a part of the range ([`renewal`](crate::renewal)). Does nothing if the
/// process has locked its future mappings: the kernel would back the part immediately. Returns true
/// if all pages were replaced.
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
