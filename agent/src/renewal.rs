//! Replaces the pages of a freed large object by new ones before its memory is reused.
//!
//! A program may change how the pages of its objects behave: by `madvise` (`MADV_DONTFORK`,
//! `MADV_WIPEONFORK`), `mprotect`, `mlock` or `mbind`, or by mapping a file over them. glibc maps
//! each large object separately and unmaps it when it is freed, which ends all of that. jemalloc
//! hands the same pages to the next object. A forked child of the next owner would then find no
//! memory, or its data would be written to a file.
//!
//! So objects that glibc would map separately are marked when they are allocated: those above a
//! threshold, which grows to the size of the largest one that was freed, up to 32 MiB. The memory
//! of a marked object is not kept for reuse when it is freed, but replaced by a new mapping in one
//! system call. glibc takes memory of objects below the threshold from its heap, and reuses it as
//! its last owner left it; so does jemalloc.
//!
//! Memory that jemalloc returns to the system by decay is replaced, too, in pieces of at least 128
//! KiB.
//!
//! Memory of arenas with hooks that the program installed is left to these hooks. In a process with
//! a seccomp filter, pages are reused as they are.

// Decision 73: freed large objects come back as new pages.
use crate::backend::{extent_hooks, extent_map, jemalloc};
use crate::{arch, huge_pages, keeping, range, seccomp, sys};
use core::arch::global_asm;
use core::ffi::{c_uint, c_void};
use core::ptr::without_provenance_mut;
use core::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering};

// Not exported.
global_asm!(
    ".hidden __wrap__rjem_je_pac_init",
    ".hidden __wrap__rjem_je_pa_dalloc",
    ".hidden __wrap__rjem_je_pa_expand",
    ".hidden __wrap__rjem_je_pa_shrink",
    ".hidden __wrap__rjem_je_ecache_dalloc",
);

/// jemalloc's descriptor of an extent (`edata_t`).
type Extent = c_void;

unsafe extern "C" {
    fn __real__rjem_je_pac_init(
        thread: *mut c_void,
        cache: *mut c_void,
        base: *mut c_void,
        map: *mut c_void,
        descriptors: *mut c_void,
        time: *mut c_void,
        limit: usize,
        dirty_ms: isize,
        muzzy_ms: isize,
        statistics: *mut Statistics,
        mutex: *mut c_void,
    ) -> bool;
    fn __real__rjem_je_pa_dalloc(
        thread: *mut c_void,
        shard: *mut c_void,
        extent: *mut Extent,
        deferred: *mut bool,
    );
    fn __real__rjem_je_pa_expand(
        thread: *mut c_void,
        shard: *mut c_void,
        extent: *mut Extent,
        old: usize,
        new: usize,
        class: c_uint,
        zero: bool,
        deferred: *mut bool,
    ) -> bool;
    fn __real__rjem_je_pa_shrink(
        thread: *mut c_void,
        shard: *mut c_void,
        extent: *mut Extent,
        old: usize,
        new: usize,
        class: c_uint,
        deferred: *mut bool,
    ) -> bool;
    fn __real__rjem_je_ecache_dalloc(
        thread: *mut c_void,
        cache: *mut c_void,
        hooks: *mut c_void,
        kind: *mut c_void,
        extent: *mut Extent,
    );
}

/// Minimum size, in bytes, of memory that is replaced when jemalloc returns it by decay: glibc
/// returns the end of its heap from this size on (`DEFAULT_TRIM_THRESHOLD`).
const MIN_BYTES: usize = 128 << 10;
/// Maximum of [`THRESHOLD`], in bytes: glibc's `DEFAULT_MMAP_THRESHOLD_MAX`, and the page that
/// jemalloc adds to a large object.
const MAX_THRESHOLD: usize = (32 << 20) + (64 << 10);

/// Size in bytes above which glibc would map an object separately: at first its
/// `DEFAULT_MMAP_THRESHOLD`.
static THRESHOLD: AtomicUsize = AtomicUsize::new(128 << 10);

/// jemalloc's statistics of an arena's pages (`pac_stats_t`), which it counts when it returns
/// pages.
///
/// Source: jemalloc 5.3.1, `pac.h`.
#[repr(C)]
struct Statistics {
    purges: AtomicU64,
    /// Number of system calls that returned unused pages.
    calls: AtomicU64,
    /// Number of unused pages returned.
    pages: AtomicU64,
    _of_muzzy_pages: [AtomicU64; 3],
    _retained: usize,
    /// Bytes of addresses that are not retained.
    mapped: AtomicUsize,
}

/// Offset of an arena's statistics from its cache of free pages (`pac_t`), in bytes. Both are parts
/// of an arena, so it is the same in each.
static STATISTICS_OFFSET: AtomicIsize = AtomicIsize::new(0);

/// Initialises an arena's cache of free pages. Returns true if that fails.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_pac_init(
    thread: *mut c_void,
    cache: *mut c_void,
    base: *mut c_void,
    map: *mut c_void,
    descriptors: *mut c_void,
    time: *mut c_void,
    limit: usize,
    dirty_ms: isize,
    muzzy_ms: isize,
    statistics: *mut Statistics,
    mutex: *mut c_void,
) -> bool {
    let offset = statistics.addr().wrapping_sub(cache.addr()) as isize;
    STATISTICS_OFFSET.store(offset, Ordering::Relaxed);
    // SAFETY: passes jemalloc's arguments on to its own function.
    unsafe {
        __real__rjem_je_pac_init(
            thread,
            cache,
            base,
            map,
            descriptors,
            time,
            limit,
            dirty_ms,
            muzzy_ms,
            statistics,
            mutex,
        )
    }
}

/// Counts pages that are returned, as jemalloc does.
///
/// # Safety
/// `cache` is an arena's cache of free pages.
unsafe fn count_returned(cache: *mut c_void, bytes: usize) {
    let at: *const Statistics = cache
        .wrapping_byte_offset(STATISTICS_OFFSET.load(Ordering::Relaxed))
        .cast();
    let pages = bytes / range::jemalloc_page();
    // SAFETY: the arena's statistics, which are only accessed as atomics.
    let statistics = unsafe { &*at };
    statistics.calls.fetch_add(1, Ordering::Relaxed);
    statistics.pages.fetch_add(pages as u64, Ordering::Relaxed);
    statistics.mapped.fetch_sub(bytes, Ordering::Relaxed);
}

/// Mark of a large object: size of the mapping that glibc would have made for it. It is stored in
/// the descriptor's first word, above jemalloc's own bits (45, or 49 with pages of 64 KiB).
///
/// Source: jemalloc 5.3.1, `edata.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark {
    /// Size in units of [`Mark::UNIT`], rounded up; [`Mark::MAX_UNITS`] if larger; 0: not marked.
    units: u64,
}

impl Mark {
    /// Unit of the size, in bytes.
    const UNIT: usize = 4096;
    const SHIFT: u32 = 50;
    const MAX_UNITS: u64 = (1 << (u64::BITS - Self::SHIFT)) - 1;
    const NONE: Self = Self { units: 0 };

    /// Returns the mark for a mapping of `bytes` bytes.
    fn of(bytes: usize) -> Self {
        if bytes <= THRESHOLD.load(Ordering::Relaxed) {
            return Self::NONE;
        }
        let units = (bytes.div_ceil(Self::UNIT) as u64).min(Self::MAX_UNITS);
        Self { units }
    }

    /// # Safety
    /// `extent` is the descriptor of an allocated extent, which only the calling thread uses.
    unsafe fn read(extent: *const Extent) -> Self {
        // SAFETY: the descriptor begins with this word.
        let bits = unsafe { extent.cast::<u64>().read() };
        Self {
            units: bits >> Self::SHIFT,
        }
    }

    /// # Safety
    /// See [`Mark::read`].
    unsafe fn write(self, extent: *mut Extent) {
        let word: *mut u64 = extent.cast();
        let below = (1 << Self::SHIFT) - 1;
        // SAFETY: the descriptor begins with this word, of which jemalloc's own bits are kept.
        unsafe { word.write((word.read() & below) | (self.units << Self::SHIFT)) };
    }
}

const _: () = assert!(
    MAX_THRESHOLD / Mark::UNIT < Mark::MAX_UNITS as usize,
    "a size up to the threshold's maximum has a mark of its own"
);

/// Marks a new extent, or clears the mark of an earlier one in the same descriptor.
///
/// # Safety
/// `extent` is the descriptor of a new extent, which only the calling thread uses.
#[inline]
pub unsafe fn mark(extent: *mut c_void, bytes: usize, align: usize, is_slab: bool) {
    // glibc maps `align` bytes more, so that the mapping contains an aligned object.
    let mapped = if align > Mark::UNIT {
        bytes.saturating_add(align)
    } else {
        bytes
    };
    let mark = if is_slab {
        Mark::NONE
    } else {
        Mark::of(mapped)
    };
    // SAFETY: the extent is new, and only this thread uses it.
    unsafe {
        if Mark::read(extent) != mark {
            mark.write(extent);
        }
    }
}

/// Returns true if memory that jemalloc returns to the system is to be replaced by a new mapping.
pub fn must_replace(bytes: usize) -> bool {
    bytes >= MIN_BYTES || is_renewing()
}

/// Returns true if the calling thread is freeing a marked object or a part of one.
pub fn is_renewing() -> bool {
    // SAFETY: the word is the thread's own.
    unsafe { (*arch::local()).renewing }
}

/// Returns true if the memory that jemalloc returns has been replaced already.
pub fn is_replaced() -> bool {
    // SAFETY: the word is the thread's own.
    unsafe { (*arch::local()).renewed }
}

/// Calls jemalloc's function that frees a marked object or a part of it.
fn renewing<T>(free: impl FnOnce() -> T) -> T {
    let before = is_renewing();
    // SAFETY: the word is the thread's own.
    unsafe { (*arch::local()).renewing = true };
    let result = free();
    // SAFETY: the word is the thread's own.
    unsafe { (*arch::local()).renewing = before };
    result
}

/// Frees an extent.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_pa_dalloc(
    thread: *mut c_void,
    shard: *mut c_void,
    extent: *mut Extent,
    deferred: *mut bool,
) {
    // SAFETY: jemalloc passes the descriptor of an allocated extent that it frees.
    let (mark, bytes) = unsafe { (Mark::read(extent), extent_map::bytes(extent.cast())) };
    // SAFETY: as above.
    if unsafe { extent_map::is_slab_of_tiny(extent.cast()) } {
        keeping::record_freed_tiny(bytes);
    }
    // SAFETY: passes jemalloc's arguments on to its own function.
    let free = || unsafe { __real__rjem_je_pa_dalloc(thread, shard, extent, deferred) };
    if mark == Mark::NONE {
        free();
    } else {
        let mapped = mark.units as usize * Mark::UNIT;
        if mapped <= MAX_THRESHOLD {
            THRESHOLD.fetch_max(mapped, Ordering::Relaxed);
        }
        renewing(free);
    }
    if !keeping::record_freed(bytes) {
        return;
    }
    if is_renewing() {
        // A large object has moved: the heap has not shrunk.
        keeping::forget_peak();
    } else {
        keeping::return_after_shrinkage(thread);
    }
}

/// Enlarges an extent in place. Returns true if that fails.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_pa_expand(
    thread: *mut c_void,
    shard: *mut c_void,
    extent: *mut Extent,
    old: usize,
    new: usize,
    class: c_uint,
    zero: bool,
    deferred: *mut bool,
) -> bool {
    // SAFETY: passes jemalloc's arguments on to its own function. The extent is a large object's,
    // which the caller resizes.
    unsafe {
        let failed =
            __real__rjem_je_pa_expand(thread, shard, extent, old, new, class, zero, deferred);
        let mark = Mark::of(new);
        if !failed {
            keeping::record_allocated(new - old);
            if mark.units > Mark::read(extent).units {
                mark.write(extent);
            }
        }
        failed
    }
}

/// Makes an extent smaller and frees its end. Returns true if that fails.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_pa_shrink(
    thread: *mut c_void,
    shard: *mut c_void,
    extent: *mut Extent,
    old: usize,
    new: usize,
    class: c_uint,
    deferred: *mut bool,
) -> bool {
    // SAFETY: passes jemalloc's arguments on to its own function.
    let shrink =
        || unsafe { __real__rjem_je_pa_shrink(thread, shard, extent, old, new, class, deferred) };
    // SAFETY: jemalloc passes the descriptor of a large object's extent, which it is resizing.
    let failed = if unsafe { Mark::read(extent) } == Mark::NONE {
        shrink()
    } else {
        renewing(shrink)
    };
    if !failed && keeping::record_freed(old - new) {
        keeping::return_after_shrinkage(thread);
    }
    failed
}

/// Keeps a free extent for reuse, except that of a marked object: its pages are returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap__rjem_je_ecache_dalloc(
    thread: *mut c_void,
    cache: *mut c_void,
    hooks: *mut c_void,
    kind: *mut c_void,
    extent: *mut Extent,
) {
    // SAFETY: passes jemalloc's arguments on to its own function. Both functions take an extent
    // that is not in use and in no list.
    unsafe {
        if is_renewing() && !seccomp::is_installed() && !extent_hooks::are_custom(hooks) {
            return_marked(thread, cache, hooks, extent);
        } else {
            __real__rjem_je_ecache_dalloc(thread, cache, hooks, kind, extent);
        }
    }
}

/// Returns the pages of a marked object, and keeps its addresses for reuse. Memory that the program
/// has sealed cannot be reused: it is left alone, as glibc leaves it when it cannot be unmapped.
///
/// # Safety
/// Arguments of jemalloc's function that returns an extent. This one is not in use and in no list.
unsafe fn return_marked(
    thread: *mut c_void,
    cache: *mut c_void,
    hooks: *mut c_void,
    extent: *mut Extent,
) {
    // SAFETY: this function's contract; the local word is the thread's own.
    unsafe {
        let bytes = extent_map::bytes(extent.cast());
        let at = without_provenance_mut(extent_map::base(extent.cast()));
        // If addresses are not retained, jemalloc unmaps the extent.
        let is_kept = jemalloc::RETAIN.load(Ordering::Relaxed) || range::contains(at);
        let is_new = is_kept && replace(at, bytes);
        if is_kept && !is_new && is_sealed(at, bytes) {
            return;
        }
        (*arch::local()).renewed = is_new;
        jemalloc::return_extent(thread, cache, hooks, extent.cast());
        (*arch::local()).renewed = false;
        count_returned(cache, bytes);
    }
}

/// Maps new memory over an extent. Returns false if that fails.
///
/// # Safety
/// Nobody needs the contents of the memory.
unsafe fn replace(at: *mut c_void, bytes: usize) -> bool {
    // SAFETY: this function's contract.
    unsafe {
        if range::contains(at) {
            range::renew(at, bytes)
        } else {
            renew(at, bytes)
        }
    }
}

/// Returns true if the program has sealed pages of an extent (`mseal`, Linux 6.10): the kernel then
/// refuses every change of its mappings.
///
/// # Safety
/// Memory of jemalloc that nobody uses.
#[cold]
unsafe fn is_sealed(at: *mut c_void, bytes: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: gives memory of jemalloc the access that it should have.
    sys::keeping_errno(|| unsafe {
        libc::mprotect(at, bytes, access) != 0 && sys::errno() == libc::EPERM
    })
}

/// Maps new memory over jemalloc's, with the properties that its own mappings have. Returns false
/// if that fails.
///
/// # Safety
/// Nobody needs the contents of the memory.
pub unsafe fn renew(at: *mut c_void, bytes: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: replaces memory of jemalloc.
    let new = sys::keeping_errno(|| unsafe { sys::map(at, bytes, access, flags, -1, 0) });
    if new != libc::MAP_FAILED {
        huge_pages::exclude_unless_large(new, bytes);
    }
    new != libc::MAP_FAILED
}
