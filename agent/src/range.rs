//! Address range of sampled objects.
//!
//! `free` must recognise sampled objects fast. So they lie in one large reservation of address
//! space that is not backed by memory, from which the extent hooks of a jemalloc arena carve
//! extents. One compare distinguishes them from other objects. Pages that the arena does not need
//! are returned to the system by its usual decay; addresses never are.
//!
//! Nothing is reserved before the first sample, and then only the table of headers and the first
//! addresses for objects: emulators and valgrind keep a record of each reserved page. The range
//! grows in place, into addresses where hardly anything else lies. If the reservation does not fit
//! (`RLIMIT_AS`, small address spaces), smaller ones are tried. Without any, objects are sampled
//! but their frees cannot be tracked.

// Decision 64: threads wait while another creates the range.
// Decision 86: the range grows.
mod extents;
mod free_lists;
pub mod region;
mod transfer;

pub use free_lists::FreeLists;

use crate::backend::{growth, jemalloc};
use crate::object::Layout;
use crate::{headers, seccomp, sys};
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::mem::size_of;
use core::ptr::{NonNull, null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use shm_protocol::layout::HeapGlobals;

/// First address; 0 before there is a range.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Size in bytes, which grows; 0 before there is a range, so that it contains no address.
static SIZE: AtomicUsize = AtomicUsize::new(0);
/// Bytes handed to the arena so far.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Index of the arena; 0 before there is one.
static ARENA: AtomicU32 = AtomicU32::new(0);
/// Progress of creating the range, as one of the constants below.
static STATE: AtomicU32 = AtomicU32::new(UNTRIED);
/// Number of threads that wait for the one that is creating the range.
static WAITING: AtomicU32 = AtomicU32::new(0);

/// State before a thread tries to create the range.
const UNTRIED: u32 = 0;
/// State while a thread is creating the range.
const TRYING: u32 = 1;
/// State while a thread is creating the range, but has taken so long that nobody waits any more.
const LATE: u32 = 2;
/// State once the range exists.
const READY: u32 = 3;
/// State after creating the range has failed.
const FAILED: u32 = 4;

/// Maximum wait for the thread that is creating the range, in ns.
const CREATION_TIMEOUT_NS: libc::c_long = 100_000_000;

const GIB: usize = 1 << 30;
/// Sizes to try for the range, largest first, in bytes.
const SIZES: [usize; 8] = [
    256 * GIB,
    64 * GIB,
    16 * GIB,
    4 * GIB,
    GIB,
    GIB / 4,
    GIB / 16,
    GIB / 64,
];
/// Number of bytes reserved for objects when the range is created.
const INITIAL_BYTES: usize = 4 * GIB;
/// The range takes at most 1 / `LIMIT_SHARE` of a limited address space. The program needs the
/// rest.
pub const LIMIT_SHARE: u64 = 16;

/// Maximum size of the range in bytes, determined from the machine's memory and the process's
/// limit.
static MAX_SIZE: AtomicUsize = AtomicUsize::new(SIZES[1]);

/// End of the range; 0 before there is one. The range lies below nearly everything else, so one
/// compare with its end rules out nearly all other objects.
pub static END: AtomicUsize = AtomicUsize::new(0);

/// Returns true if an address may be a sampled object's, or is null. [`contains`] decides.
#[inline(always)]
pub fn may_contain(p: *const c_void) -> bool {
    (p as usize) < END.load(Ordering::Relaxed)
}

/// Returns true if an address is a sampled object's.
#[inline(always)]
pub fn contains(p: *const c_void) -> bool {
    (p as usize).wrapping_sub(BASE.load(Ordering::Relaxed)) < SIZE.load(Ordering::Relaxed)
}

/// Maps new pages over a part of the range. Returns false if that fails.
///
/// # Safety
/// `at` and `bytes` describe whole pages whose contents are not needed any more.
#[cfg_attr(test, allow(dead_code))]
pub unsafe fn renew(at: *mut c_void, bytes: usize) -> bool {
    // SAFETY: this function's contract.
    unsafe { extents::renew(at, bytes) }
}

/// Returns the size of jemalloc's pages in bytes; 0 before jemalloc is initialised.
pub fn jemalloc_page() -> usize {
    // The slabs of the smallest size class consist of one page.
    // SAFETY: jemalloc's static has this type.
    unsafe { (&raw const jemalloc::FIRST_BIN.slab).read_volatile() }
}

/// Returns the addresses by which a reader outside the process finds all objects. With `is_system`,
/// the program keeps its own allocator, and only sampled objects are found.
pub fn globals(is_system: bool) -> HeapGlobals {
    // The page size is not read by `mallctl`, whose first call allocates megabytes.
    let page = if !is_system {
        // SAFETY: the size is not 0. The call initialises jemalloc, which fills the table.
        unsafe {
            jemalloc::nallocx(1, 0);
        }
        jemalloc_page()
    } else if cfg!(target_arch = "x86_64") {
        // jemalloc must not be initialised before the first sample.
        4096
    } else {
        return HeapGlobals::default();
    };
    HeapGlobals {
        emap: (&raw const jemalloc::EMAP).addr() as u64,
        arenas: (&raw const jemalloc::ARENAS).addr() as u64,
        page: page as u64,
        range_base: (&raw const BASE).addr() as u64,
        range_size: (&raw const SIZE).addr() as u64,
    }
}

/// Returns the size of the range in bytes; 0 before there is one.
pub fn reserved() -> usize {
    SIZE.load(Ordering::Relaxed)
}

/// jemalloc's flags for a thread's calls into the arena: index of the arena and of a thread cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(c_int);

/// `MALLOCX_TCACHE_NONE`. The index of a cache plus 2 is at the same position (`MALLOCX_TCACHE`).
const TCACHE_NONE: c_int = 1 << 8;
/// `MALLOCX_ZERO`.
const ZERO: c_int = 0x40;

impl Flags {
    /// Returns flags that bypass the thread cache, for a thread that has no cache, or interrupted
    /// itself while it was using it.
    pub fn uncached() -> Self {
        Self(arena_flag() | TCACHE_NONE)
    }

    /// Returns flags with a new thread cache, or without one if there are too many.
    pub fn with_new_cache() -> Self {
        let mut index: c_uint = 0;
        let mut len = size_of::<c_uint>();
        // SAFETY: jemalloc writes a `c_uint` of ours.
        let failed = unsafe {
            let name = c"tcache.create".as_ptr();
            jemalloc::mallctl(name, (&raw mut index).cast(), &mut len, null_mut(), 0)
        };
        if failed != 0 {
            return Self::uncached();
        }
        Self(arena_flag() | ((index as c_int + 2) << 8))
    }

    /// Destroys the thread cache, and returns its contents to the arena.
    pub fn destroy_cache(self) {
        self.control_cache(c"tcache.destroy");
    }

    /// Returns the contents of the thread cache to the arena.
    pub fn flush_cache(self) {
        self.control_cache(c"tcache.flush");
    }

    /// Passes the index of the thread cache, if there is one, to a control of jemalloc.
    fn control_cache(self, name: &CStr) {
        let index = (self.0 >> 8) & 0xfff;
        if index < 2 {
            return;
        }
        let mut index = index as c_uint - 2;
        // SAFETY: jemalloc reads a `c_uint` of ours; the cache is the calling thread's own.
        unsafe {
            let len = size_of::<c_uint>();
            jemalloc::mallctl(
                name.as_ptr(),
                null_mut(),
                null_mut(),
                (&raw mut index).cast(),
                len,
            );
        }
    }
}

/// Returns the index of the arena of sampled objects; `None` before there is one.
#[cfg_attr(test, allow(dead_code))]
pub fn arena() -> Option<c_uint> {
    let index = ARENA.load(Ordering::Relaxed);
    (index != 0).then_some(index)
}

/// Returns jemalloc's flag that names the arena.
fn arena_flag() -> c_int {
    (ARENA.load(Ordering::Relaxed) as c_int + 1) << 20
}

/// Determines how much may be reserved and used. `address_space` and `data` are the process's
/// limits in bytes, `u64::MAX` if unlimited. Called at start-up, because a sample must not make
/// these system calls.
pub fn start(address_space: u64, data: u64) {
    extents::limit_data(data);
    // SAFETY: zeros are a valid `sysinfo`, which the call fills.
    let memory = unsafe {
        let mut info: libc::sysinfo = core::mem::zeroed();
        libc::sysinfo(&mut info);
        (info.totalram as usize).saturating_mul(info.mem_unit as usize)
    };
    let by_memory = if memory > SIZES[1] / 4 {
        SIZES[0]
    } else {
        SIZES[1]
    };
    let by_limit = usize::try_from(address_space / LIMIT_SHARE).unwrap_or(usize::MAX);
    MAX_SIZE.store(by_memory.min(by_limit), Ordering::Relaxed);
}

/// Releases unused addresses when the program is about to limit its address space to
/// `address_space` bytes, because reserved addresses count towards the limit. If there is no range
/// yet, limits the size that it will have.
#[cold]
#[cfg_attr(test, allow(dead_code))]
pub fn shrink(address_space: u64) {
    let max_size = usize::try_from(address_space / LIMIT_SHARE).unwrap_or(usize::MAX);
    MAX_SIZE.fetch_min(max_size, Ordering::Relaxed);
    let table_bytes = extents::limit_growth(max_size);
    let size = SIZE.load(Ordering::Relaxed);
    if size as u64 <= address_space / LIMIT_SHARE || !is_ready() {
        return;
    }
    let base = BASE.load(Ordering::Relaxed);
    // Marks everything as used, so that no other thread carves from the part that is released.
    let used = USED
        .swap(size, Ordering::Relaxed)
        .next_multiple_of(sys::PAGE);
    if used >= size {
        return;
    }
    SIZE.store(used, Ordering::Release);
    END.store(base + used, Ordering::Release);
    let entries = headers::in_use(table_bytes, used);
    // SAFETY: the parts belong to the range's own mapping: the addresses after the last object,
    // which no further object can have, and the entries of the header table for such addresses.
    unsafe {
        let at = |offset: usize| without_provenance_mut(base + offset);
        libc::munmap(at(used), size - used);
        libc::munmap(at(0), entries.start);
        libc::munmap(at(entries.end), table_bytes - entries.end);
    }
}

/// Limits sampled objects to a small part of `bytes`, the process's limit of writable memory.
#[cold]
#[cfg_attr(test, allow(dead_code))]
pub fn limit_data(bytes: u64) {
    extents::limit_data(bytes);
}

/// Creates the range once, or waits for the thread that is creating it. `limit` is the maximum size
/// in bytes that the controller derived from the process's limit and use of address space; 0: as
/// determined at start-up.
#[inline]
pub fn prepare(limit: u64) {
    match STATE.load(Ordering::Acquire) {
        UNTRIED => create(limit),
        TRYING => wait(),
        _ => {}
    }
}

/// Waits for the thread that is creating the range, as glibc's `malloc` waits for its lock: usually
/// some 0.3 ms. If that thread gets no processor for much longer, nobody waits any more, and
/// sampled objects are not tracked until the range exists.
#[cold]
fn wait() {
    WAITING.fetch_add(1, Ordering::SeqCst);
    let timeout = libc::timespec {
        tv_sec: 0,
        tv_nsec: CREATION_TIMEOUT_NS,
    };
    // Signal handlers interrupt the wait.
    for _ in 0..8 {
        // SAFETY: sleeps while the word has this value, for the given time at most.
        let failed = unsafe {
            sys::syscall(
                libc::SYS_futex,
                STATE.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                TRYING,
                &raw const timeout,
            )
        } != 0;
        let is_over = failed && sys::errno() == libc::ETIMEDOUT;
        if is_over || STATE.load(Ordering::Acquire) != TRYING {
            break;
        }
    }
    let _ = STATE.compare_exchange(TRYING, LATE, Ordering::Relaxed, Ordering::Relaxed);
    WAITING.fetch_sub(1, Ordering::Relaxed);
}

/// Publishes that the range exists or cannot be created, and wakes waiting threads.
fn finish(state: u32) {
    STATE.store(state, Ordering::SeqCst);
    if WAITING.load(Ordering::SeqCst) == 0 {
        return;
    }
    // SAFETY: wakes all threads that sleep on the word.
    unsafe {
        sys::syscall(
            libc::SYS_futex,
            STATE.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            c_int::MAX,
        )
    };
}

/// Returns true if there is a range.
#[inline]
pub fn is_ready() -> bool {
    STATE.load(Ordering::Acquire) == READY
}

/// Allows creating the range again in a forked child, where the thread of the parent that was
/// creating it does not exist. Called by a thread that was not creating it.
#[inline(always)]
pub fn allow_creation_again() {
    // Writes only if necessary, because each page that a child writes to is copied.
    if matches!(STATE.load(Ordering::Relaxed), TRYING | LATE) {
        STATE.store(UNTRIED, Ordering::Relaxed);
        WAITING.store(0, Ordering::Relaxed);
    }
    extents::allow_growth_again();
}

/// Creates the range.
#[cold]
fn create(limit: u64) {
    if STATE
        .compare_exchange(UNTRIED, TRYING, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        return prepare(limit);
    }
    let created = reserve(limit).and_then(start_arena);
    finish(if created.is_some() { READY } else { FAILED });
}

/// Creates the arena in reserved addresses. Returns `None` if that fails.
fn start_arena(reserved: Reserved) -> Option<()> {
    let Reserved { base, size, max } = reserved;
    BASE.store(base, Ordering::Relaxed);
    headers::begin(base);
    USED.store(headers::bytes(max), Ordering::Relaxed);
    let arena = extents::make_arena(size, max)?;
    ARENA.store(arena, Ordering::Relaxed);
    extend(size);
    Some(())
}

/// Publishes the size of the range, before any object lies in its new part.
fn extend(size: usize) {
    SIZE.store(size, Ordering::Release);
    END.store(BASE.load(Ordering::Relaxed) + size, Ordering::Release);
}

/// Addresses that are reserved for the range.
struct Reserved {
    base: usize,
    size: usize,
    /// Size to which the range may grow.
    max: usize,
}

/// Reserves addresses for the range.
fn reserve(limit: u64) -> Option<Reserved> {
    let max_size = match limit {
        0 => MAX_SIZE.load(Ordering::Relaxed),
        limit => MAX_SIZE
            .load(Ordering::Relaxed)
            .min(usize::try_from(limit).unwrap_or(usize::MAX)),
    };
    SIZES
        .into_iter()
        .filter(|size| *size <= max_size)
        .find_map(|max| {
            let size = max.min(headers::bytes(max) + INITIAL_BYTES);
            let hint = without_provenance_mut(low_address());
            let at = sys::map_unlocked(hint, size, libc::PROT_NONE);
            if at.is_null() {
                return None;
            }
            // The header table and the objects are far apart, so each would make a huge page
            // resident.
            #[cfg(not(test))]
            crate::huge_pages::exclude(at, size);
            // gdb's gcore would write the whole reservation, as zeros. `include_in_dumps` includes
            // the parts in use. If this call fails, dumps by gcore are large. SAFETY: the
            // reservation just made; only its presence in core dumps changes.
            unsafe { libc::madvise(at, size, libc::MADV_DONTDUMP) };
            Some(Reserved {
                base: at as usize,
                size,
                max,
            })
        })
}

/// Includes a used part of the range in core dumps. Under a seccomp filter, `madvise` is replaced
/// by a function that makes no system call, and [`include_all_in_dumps`] has included all of the
/// range.
///
/// # Safety
/// The part consists of whole pages of the range.
unsafe fn include_in_dumps(at: *mut c_void, bytes: usize) {
    // SAFETY: whole pages of the range; only their presence in core dumps changes.
    unsafe { libc::madvise(at, bytes, libc::MADV_DODUMP) };
}

/// Makes the range as large as it may become and includes all of it in core dumps, before the
/// program installs a seccomp filter, which may not allow these calls.
pub fn include_all_in_dumps() {
    if is_ready() {
        extents::grow_fully();
        let base = without_provenance_mut(BASE.load(Ordering::Relaxed));
        // SAFETY: the whole range, in whole pages.
        unsafe { include_in_dumps(base, SIZE.load(Ordering::Relaxed)) };
    }
}

/// Returns a random address below the program, the libraries and the stacks, at the end of the gap
/// in front of them: the gap, usually the largest, stays nearly whole. The address is only a hint:
/// if it is not free, the kernel chooses another, and [`may_contain`] returns true more often.
fn low_address() -> usize {
    // SAFETY: null, or the address of 16 random bytes from the kernel.
    let random = unsafe {
        let random_bytes = libc::getauxval(libc::AT_RANDOM) as *const [usize; 2];
        random_bytes.as_ref().map_or(0, |words| words[0] ^ words[1])
    };
    // SAFETY: `getauxval` takes any number.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    address_below([program, (&raw const BASE).addr()], random)
}

/// Returns an address chosen by `random`, at least 1 TiB below each of `modules`. Those in low
/// addresses, such as programs without PIE, are not considered.
fn address_below(modules: [usize; 2], random: usize) -> usize {
    const TIB: usize = 1 << 40;
    /// Address, in bytes, below which the largest gap does not end.
    const MIN_GAP_END: usize = 16 * TIB;
    const STEP: usize = 1 << 20;
    let ends = modules.into_iter().filter(|module| *module >= MIN_GAP_END);
    let end = ends.min().unwrap_or(MIN_GAP_END) & !(TIB - 1);
    end - 2 * TIB + (random.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44) * STEP
}

/// Reason why an object cannot be in the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutsideRange {
    /// There is no range, or no room in it.
    Exhausted,
    /// jemalloc allocated from its first arena, whatever the flags say. It does so once it has
    /// freed its data for an exiting thread (later destructors may still allocate), and in a thread
    /// that has interrupted jemalloc itself.
    Elsewhere,
}

/// Allocates memory in the range. Memory that jemalloc returns from elsewhere is freed: it would
/// not be recognised as a sampled object.
///
/// # Safety
/// There is a range ([`is_ready`]), `size` is not 0, and `align` is a power of two.
#[inline]
pub unsafe fn alloc(
    size: usize,
    align: usize,
    zero: bool,
    flags: Flags,
) -> Result<NonNull<u8>, OutsideRange> {
    let zero = if zero { ZERO } else { 0 };
    // `MALLOCX_LG_ALIGN`.
    let align = if align > 16 {
        align.trailing_zeros() as c_int
    } else {
        0
    };
    // SAFETY: the flags name an existing arena and cache, and nobody uses the new object yet.
    unsafe { in_range(jemalloc::mallocx(size, flags.0 | zero | align)) }
}

/// Like [`alloc`], for a large object that has grown and may grow again. It is aligned to a page,
/// so that its pages can be moved when it does.
///
/// # Safety
/// See [`alloc`]. In addition, `size` is at least [`growth::MIN_BYTES`].
#[cold]
unsafe fn alloc_with_room(
    size: usize,
    align: usize,
    flags: Flags,
) -> Result<NonNull<u8>, OutsideRange> {
    let align = align.max(sys::PAGE).trailing_zeros() as c_int;
    // SAFETY: the flags name an existing arena and cache, and nobody uses the new object yet.
    unsafe { in_range(growth::allocate_with_room(size, flags.0 | align)) }
}

/// Returns a new object if it is in the range. If it is elsewhere, frees it.
///
/// # Safety
/// `at` is null or an object of jemalloc that nobody uses.
#[inline]
unsafe fn in_range(at: *mut c_void) -> Result<NonNull<u8>, OutsideRange> {
    let block = NonNull::new(at.cast()).ok_or(OutsideRange::Exhausted)?;
    if contains(at) {
        return Ok(block);
    }
    // SAFETY: an object of jemalloc that nobody uses.
    unsafe { jemalloc::dallocx(at, TCACHE_NONE) };
    Err(OutsideRange::Elsewhere)
}

/// Resizes in place. Returns false if that is not possible, or would leave the object much larger
/// than it needs to be.
///
/// # Safety
/// [`alloc`] returned `base`, which is not freed, and `size` is not 0.
pub unsafe fn resize(base: *mut u8, size: usize) -> bool {
    // SAFETY: a live object, whose arena jemalloc finds itself.
    let usable = unsafe { jemalloc::xallocx(base.cast(), size, 0, 0) };
    usable >= size && usable / 2 <= size
}

/// Returns the size of the memory at `base`, which may be larger than what was requested.
///
/// # Safety
/// [`alloc`] returned `base`, which is not freed.
pub unsafe fn allocated_bytes(base: *const u8) -> usize {
    // SAFETY: a live object; the flags are not used.
    unsafe { jemalloc::sallocx(base.cast(), 0) }
}

/// Frees memory of the range.
///
/// # Safety
/// [`alloc`] returned `base`, which nobody uses any more.
#[inline]
pub unsafe fn free(base: *mut u8, flags: Flags) {
    // SAFETY: nobody uses the memory. The flags name a cache of this arena or none: the automatic
    // cache would hand the memory to ordinary allocations.
    unsafe { jemalloc::dallocx(base.cast(), flags.0) }
}

/// Bytes that are freed after a session between two purges of the arena. A purge returns whole
/// pages in runs, so this also bounds its system calls.
const PURGE_BYTES: usize = 1 << 20;
/// Bytes freed since the last purge.
static UNPURGED: AtomicUsize = AtomicUsize::new(0);

/// Frees memory of the range while no session is running, and returns it to the system: without
/// sampled allocations nothing reuses it, and jemalloc's decay advances only with calls into this
/// arena.
///
/// # Safety
/// See [`free`]. The memory has this `layout`, and `free_lists` belong to the calling thread.
#[cold]
pub unsafe fn return_memory(base: *mut u8, layout: Layout, free_lists: Option<&mut FreeLists>) {
    let bytes = layout.offset + layout.usable;
    // SAFETY: memory that nobody uses, with this layout.
    unsafe {
        match free_lists {
            Some(free_lists) => free_lists.free_and_flush(base, layout),
            None => free(base, Flags::uncached()),
        }
    }
    let is_due = UNPURGED.fetch_add(bytes, Ordering::Relaxed) >= PURGE_BYTES;
    // A seccomp filter of the program may forbid the system call.
    if is_due && !seccomp::is_installed() {
        UNPURGED.store(0, Ordering::Relaxed);
        purge();
    }
}

/// Returns all unused pages of the arena to the system.
#[cold]
fn purge() {
    let mut name = sys::Text::<32>::new();
    name.push(b"arena.");
    name.push_number(u64::from(ARENA.load(Ordering::Relaxed)));
    name.push(b".purge");
    if let Some(name) = name.as_c_str() {
        // SAFETY: a control without input and output.
        unsafe { jemalloc::mallctl(name.as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_objects_have_slabs_of_a_page() {
        let mut page = 0usize;
        let mut len = size_of::<usize>();
        // SAFETY: jemalloc writes a size_t.
        let failed = unsafe {
            let name = c"arenas.page".as_ptr();
            jemalloc::mallctl(name, (&raw mut page).cast(), &mut len, null_mut(), 0)
        };
        assert_eq!((failed, globals(false).page), (0, page as u64));
    }

    #[test]
    fn the_range_lies_at_the_end_of_the_gap_below_program_and_libraries() {
        const TIB: usize = 1 << 40;
        let library = 0x7f12_3456_7000;
        let checks = [
            (0x5555_5555_4000, library, 85 * TIB),
            (0x5655_5555_4000, library, 86 * TIB),
            // A program without PIE.
            (0x40_0040, library, 127 * TIB),
            // Libraries from low addresses on (`ulimit -s unlimited`).
            (0x5555_5555_4000, 0x2aaa_aaac_4000, 42 * TIB),
            // 39 bits of address: the kernel ignores the hint.
            (0x55_5555_5000, 0x7f_8123_4000, 16 * TIB),
        ];
        for (program, library, gap_end) in checks {
            for random in [0, 1, 77, usize::MAX / 3, usize::MAX] {
                let at = address_below([program, library], random);
                assert!((gap_end - 2 * TIB..gap_end - TIB).contains(&at), "{at:x}");
                assert_eq!(at % (1 << 20), 0);
            }
        }
    }

    #[test]
    fn threads_wait_for_the_creation_of_the_range_but_not_forever() {
        let state = || STATE.load(Ordering::SeqCst);
        STATE.store(TRYING, Ordering::SeqCst);
        for _ in 0..3 {
            prepare(0);
            assert_eq!((state(), is_ready()), (LATE, false));
        }
        allow_creation_again();
        assert_eq!(state(), UNTRIED);
        STATE.store(TRYING, Ordering::SeqCst);
        let waiter = std::thread::spawn(|| prepare(0));
        while WAITING.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        finish(FAILED);
        waiter.join().expect("the wait ends");
        assert_eq!(state(), FAILED);
        assert_eq!(WAITING.load(Ordering::SeqCst), 0);
        STATE.store(UNTRIED, Ordering::SeqCst);
    }
}
