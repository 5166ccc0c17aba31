//! The address range of sampled objects.
//!
//! A large reservation of address space not backed by memory. The extent hooks of a jemalloc arena
//! carve extents from it, so `free` recognises a sampled object with one compare. Pages that the
//! arena does not need are released to the system by its usual decay; addresses never are.
//!
//! Nothing is reserved before the first sample. If the reservation does not fit
//! (`RLIMIT_AS`, small address spaces), smaller ones are tried; without any, objects are
//! sampled but their frees cannot be tracked.

// Decision 64: threads wait while another creates the range.
mod extents;
mod free_lists;
pub mod region;
mod transfer;

pub use free_lists::FreeLists;

use crate::backend::growth;
use crate::object::Layout;
use crate::{headers, seccomp, sys};
use core::ffi::{CStr, c_int, c_uint, c_void};
use core::mem::size_of;
use core::ptr::{NonNull, null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use shm_protocol::layout::HeapGlobals;
use tikv_jemalloc_sys as jemalloc;

/// First address; 0 until there is a range.
static BASE: AtomicUsize = AtomicUsize::new(0);
/// Size of the range; 0 until there is a range, so that no address is in it.
static SIZE: AtomicUsize = AtomicUsize::new(0);
/// Addresses handed to the arena so far.
static USED: AtomicUsize = AtomicUsize::new(0);
static ARENA: AtomicU32 = AtomicU32::new(0);
static STATE: AtomicU32 = AtomicU32::new(UNTRIED);
/// Threads that wait for the one that is making the range.
static WAITING: AtomicU32 = AtomicU32::new(0);

const UNTRIED: u32 = 0;
const TRYING: u32 = 1;
/// As [`TRYING`], and for so long that nobody waits any more.
const LATE: u32 = 2;
const READY: u32 = 3;
const FAILED: u32 = 4;

/// How long a thread waits at most.
const PATIENCE_NS: libc::c_long = 100_000_000;

const GIB: usize = 1 << 30;
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
/// Part of a limited address space that the range may take: the program needs the rest.
pub const SHARE: u64 = 16;

/// The largest reservation allowed, as determined from the machine's memory and the process's limit.
static MOST: AtomicUsize = AtomicUsize::new(SIZES[1]);

/// End of the range; 0 until there is one. The range lies below nearly everything else, so
/// one compare with its end rules out nearly all other objects.
pub static END: AtomicUsize = AtomicUsize::new(0);

/// Whether an address may be a sampled object's, which [`contains`] decides. True for null, too.
#[inline(always)]
pub fn may_contain(p: *const c_void) -> bool {
    (p as usize) < END.load(Ordering::Relaxed)
}

/// Whether an address is a sampled object's.
#[inline(always)]
pub fn contains(p: *const c_void) -> bool {
    (p as usize).wrapping_sub(BASE.load(Ordering::Relaxed)) < SIZE.load(Ordering::Relaxed)
}

unsafe extern "C" {
    /// jemalloc's, of a type of its own: only its address is taken.
    #[link_name = "_rjem_je_arena_emap_global"]
    static EMAP: u8;
    #[link_name = "_rjem_je_arenas"]
    static ARENAS: u8;
    /// jemalloc's small size classes, of which the first has slabs of one page.
    #[link_name = "_rjem_je_bin_infos"]
    static CLASSES: BinInfo;
}

/// How a `bin_info_t` begins, in jemalloc 5.3.1.
#[repr(C)]
struct BinInfo {
    _object: usize,
    slab: usize,
}

/// Where a reader outside the process finds all objects; the sampled ones alone where `is_system`,
/// as the program keeps its own allocator then.
pub fn globals(is_system: bool) -> HeapGlobals {
    // Not asked by `mallctl`, whose first call takes megabytes.
    let page = match is_system {
        // It is not to be woken up before the first sample.
        true if cfg!(target_arch = "x86_64") => 4096,
        true => return HeapGlobals::default(),
        // SAFETY: a size that is not 0, for which jemalloc starts, and so fills the table.
        false => unsafe {
            jemalloc::nallocx(1, 0);
            (&raw const CLASSES.slab).read_volatile()
        },
    };
    HeapGlobals {
        emap: (&raw const EMAP).addr() as u64,
        arenas: (&raw const ARENAS).addr() as u64,
        page: page as u64,
        range_base: (&raw const BASE).addr() as u64,
        range_size: (&raw const SIZE).addr() as u64,
    }
}

/// Bytes of address space reserved.
pub fn reserved() -> usize {
    SIZE.load(Ordering::Relaxed)
}

/// jemalloc's flags for a thread's calls into the arena: which arena, which cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(c_int);

const TCACHE_NONE: c_int = 1 << 8;

impl Flags {
    /// The arena without a thread cache: for threads that have none or are inside one.
    pub fn uncached() -> Self {
        Self(arena_flag() | TCACHE_NONE)
    }

    /// The arena with a new thread cache, or none if there are too many.
    pub fn with_new_cache() -> Self {
        let mut index: c_uint = 0;
        let mut len = size_of::<c_uint>();
        // SAFETY: jemalloc writes a c_uint to a c_uint.
        let failed = unsafe {
            let name = c"tcache.create".as_ptr();
            jemalloc::mallctl(name, (&raw mut index).cast(), &mut len, null_mut(), 0)
        };
        if failed != 0 {
            return Self::uncached();
        }
        Self(arena_flag() | (index as c_int + 2) << 8)
    }

    /// Returns the thread cache and its contents.
    pub fn destroy_cache(self) {
        self.control_cache(c"tcache.destroy");
    }

    /// Returns the contents of the thread cache to the arena.
    pub fn flush_cache(self) {
        self.control_cache(c"tcache.flush");
    }

    /// Passes the index of the thread cache, if there is one, to a control of jemalloc's.
    fn control_cache(self, name: &CStr) {
        let index = (self.0 >> 8) & 0xfff;
        if index < 2 {
            return;
        }
        let mut index = index as c_uint - 2;
        // SAFETY: jemalloc reads a c_uint; the cache is the calling thread's own.
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

/// Index of jemalloc's arena of sampled objects, once there is a range.
#[cfg_attr(test, allow(dead_code))]
pub fn arena() -> Option<c_uint> {
    let index = ARENA.load(Ordering::Relaxed);
    (index != 0).then_some(index)
}

fn arena_flag() -> c_int {
    (ARENA.load(Ordering::Relaxed) as c_int + 1) << 20
}

/// Determines how much may be reserved and used; `address_space` and `data` are the process's limits,
/// `u64::MAX` for none. At start-up, because a sample may not make these system calls.
pub fn start(address_space: u64, data: u64) {
    extents::limit_data(data);
    // SAFETY: all zero is a valid sysinfo, and the call fills it.
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
    let by_limit = usize::try_from(address_space / SHARE).unwrap_or(usize::MAX);
    MOST.store(by_memory.min(by_limit), Ordering::Relaxed);
}

/// Gives up what is reserved and not in use, for an address space that will be limited to so many bytes:
/// reserved addresses count as well. A range that is yet to be made takes a small part of the limit.
#[cold]
#[cfg_attr(test, allow(dead_code))]
pub fn shrink(address_space: u64) {
    let most = usize::try_from(address_space / SHARE).unwrap_or(usize::MAX);
    MOST.fetch_min(most, Ordering::Relaxed);
    let size = SIZE.load(Ordering::Relaxed);
    if size as u64 <= address_space / SHARE || !is_ready() {
        return;
    }
    let base = BASE.load(Ordering::Relaxed);
    // All is in use from now on: no other thread carves from what is given up.
    let used = USED
        .swap(size, Ordering::Relaxed)
        .next_multiple_of(sys::PAGE);
    if used >= size {
        return;
    }
    SIZE.store(used, Ordering::Release);
    END.store(base + used, Ordering::Release);
    let table = headers::bytes(size);
    let entries = headers::in_use(table, used);
    // SAFETY: parts of the range's own mapping: behind the last object, which nobody can reach any more,
    // and the entries of the table for addresses that no object will have.
    unsafe {
        let at = |offset: usize| without_provenance_mut(base + offset);
        libc::munmap(at(used), size - used);
        libc::munmap(at(0), entries.start);
        libc::munmap(at(entries.end), table - entries.end);
    }
}

/// Leaves most of what the process may write to, so many bytes, to the program.
#[cold]
#[cfg_attr(test, allow(dead_code))]
pub fn limit_data(bytes: u64) {
    extents::limit_data(bytes);
}

/// Makes the range, once, or waits for the thread that is making it. `limit` is the most bytes to reserve,
/// which the session's starter derived from the process's limit and use of address space; 0: as determined
/// at start-up.
#[inline]
pub fn prepare(limit: u64) {
    match STATE.load(Ordering::Acquire) {
        UNTRIED => make(limit),
        TRYING => wait(),
        _ => {}
    }
}

/// Waits for the thread that is making the range, as glibc's `malloc` does for one that holds its lock: some
/// 0.3 ms as a rule. One that has no processor for much longer is not waited for by anybody any more, and
/// objects are counted meanwhile that are not followed.
#[cold]
fn wait() {
    WAITING.fetch_add(1, Ordering::SeqCst);
    let patience = libc::timespec {
        tv_sec: 0,
        tv_nsec: PATIENCE_NS,
    };
    // Signals' handlers end the call as well.
    for _ in 0..8 {
        // SAFETY: sleeps while the word says so, for the given time at most.
        let failed = unsafe {
            libc::syscall(
                libc::SYS_futex,
                STATE.as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                TRYING,
                &raw const patience,
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

/// The range is made, or cannot be: others go on.
fn finish(state: u32) {
    STATE.store(state, Ordering::SeqCst);
    if WAITING.load(Ordering::SeqCst) == 0 {
        return;
    }
    // SAFETY: wakes all that sleep at the word.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            STATE.as_ptr(),
            libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
            c_int::MAX,
        )
    };
}

/// Whether there is a range.
#[inline]
pub fn is_ready() -> bool {
    STATE.load(Ordering::Acquire) == READY
}

/// In a forked child, for a thread that is not making the range: the one that was is not in the child.
#[inline(always)]
pub fn begin_again() {
    // Not written unless need be, as that would copy the page.
    if matches!(STATE.load(Ordering::Relaxed), TRYING | LATE) {
        STATE.store(UNTRIED, Ordering::Relaxed);
        WAITING.store(0, Ordering::Relaxed);
    }
}

#[cold]
fn make(limit: u64) {
    if STATE
        .compare_exchange(UNTRIED, TRYING, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        return prepare(limit);
    }
    let made = reserve(limit).and_then(|(base, size)| {
        BASE.store(base, Ordering::Relaxed);
        headers::begin(base);
        USED.store(headers::bytes(size), Ordering::Relaxed);
        let arena = extents::make_arena(size)?;
        ARENA.store(arena, Ordering::Relaxed);
        SIZE.store(size, Ordering::Release);
        END.store(base + size, Ordering::Release);
        Some(())
    });
    finish(if made.is_some() { READY } else { FAILED });
}

fn reserve(limit: u64) -> Option<(usize, usize)> {
    let most = match limit {
        0 => MOST.load(Ordering::Relaxed),
        limit => MOST
            .load(Ordering::Relaxed)
            .min(usize::try_from(limit).unwrap_or(usize::MAX)),
    };
    SIZES
        .into_iter()
        .filter(|size| *size <= most)
        .find_map(|size| {
            let hint = without_provenance_mut(low_address());
            let at = sys::map_unlocked(hint, size, libc::PROT_NONE);
            if at.is_null() {
                return None;
            }
            // Headers and objects are far apart.
            #[cfg(not(test))]
            crate::wrapped::without_huge_pages(at, size);
            // gdb's gcore writes memory that nobody can access as zeros: all of the reservation. What is in
            // use is dumped, see `include_in_dumps`. If the call is refused, such a dump is large.
            // SAFETY: the reservation just made; only what core dumps have of it changes.
            unsafe { libc::madvise(at, size, libc::MADV_DONTDUMP) };
            Some((at as usize, size))
        })
}

/// Has core dumps contain memory of the range that is in use now. No call is made once a filter is installed,
/// see [`include_all_in_dumps`].
///
/// # Safety
/// Whole pages of the range.
unsafe fn include_in_dumps(at: *mut c_void, bytes: usize) {
    // SAFETY: the caller's; only what core dumps have of it changes.
    unsafe { libc::madvise(at, bytes, libc::MADV_DODUMP) };
}

/// Has core dumps contain whatever will be used of the range: before a filter is installed, after which no
/// call is made for each part.
pub fn include_all_in_dumps() {
    if is_ready() {
        let base = without_provenance_mut(BASE.load(Ordering::Relaxed));
        // SAFETY: the whole range.
        unsafe { include_in_dumps(base, SIZE.load(Ordering::Relaxed)) };
    }
}

/// A random address below the libraries, the stacks and position-independent programs. Only a
/// hint: if it is not available the kernel chooses another, and [`may_contain`] says
/// yes more often.
fn low_address() -> usize {
    const LOWEST: usize = 32 << 40;
    const STEP: usize = 16 << 20;
    // SAFETY: the kernel leaves 16 random bytes there, or there are none.
    let random = unsafe {
        let bytes = libc::getauxval(libc::AT_RANDOM) as *const [usize; 2];
        bytes.as_ref().map_or(0, |words| words[0] ^ words[1])
    };
    LOWEST + (random.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 44) * STEP
}

/// Why an object cannot be in the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// There is no range, or no room in it.
    Exhausted,
    /// jemalloc takes memory for this thread from its first arena, whatever is requested: it has given up the
    /// data of a thread that is ending, which may be before other destructors run, or is itself at work.
    Elsewhere,
}

/// Memory in the range. What jemalloc gives from elsewhere is given back: it would not be known as a sampled
/// object when it is freed.
///
/// # Safety
/// There is a range ([`is_ready`]); `size` is not 0 and `align` a power of two.
#[inline]
pub unsafe fn alloc(
    size: usize,
    align: usize,
    zero: bool,
    flags: Flags,
) -> Result<NonNull<u8>, NoPlace> {
    let zero = if zero { 0x40 } else { 0 };
    let align = if align > 16 {
        align.trailing_zeros() as c_int
    } else {
        0
    };
    // SAFETY: the flags name an arena and a cache that exist; the object is nobody's yet.
    unsafe { in_range(jemalloc::mallocx(size, flags.0 | zero | align)) }
}

/// Like [`alloc`], for a large object that has grown and may grow again.
///
/// # Safety
/// That of [`alloc`]; `size` is at least [`growth::MIN_BYTES`].
#[cold]
unsafe fn alloc_with_room(size: usize, align: usize, flags: Flags) -> Result<NonNull<u8>, NoPlace> {
    let align = align.max(16).trailing_zeros() as c_int;
    // SAFETY: the flags name an arena and a cache that exist; the object is nobody's yet.
    unsafe { in_range(growth::allocate_with_room(size, flags.0 | align)) }
}

/// Returns a new object if it is in the range. If it is elsewhere, frees it.
///
/// # Safety
/// `at` is null or an object of jemalloc's that nobody uses.
#[inline]
unsafe fn in_range(at: *mut c_void) -> Result<NonNull<u8>, NoPlace> {
    let block = NonNull::new(at.cast()).ok_or(NoPlace::Exhausted)?;
    if contains(at) {
        return Ok(block);
    }
    // SAFETY: this function's contract.
    unsafe { jemalloc::dallocx(at, TCACHE_NONE) };
    Err(NoPlace::Elsewhere)
}

/// Resizes in place only. Returns whether it succeeded, without leaving the object much larger
/// than it needs to be.
///
/// # Safety
/// `base` came from [`alloc`]; `size` is not 0.
pub unsafe fn resize(base: *mut u8, size: usize) -> bool {
    // SAFETY: the caller's; jemalloc finds the arena itself.
    let usable = unsafe { jemalloc::xallocx(base.cast(), size, 0, 0) };
    usable >= size && usable / 2 <= size
}

/// Bytes of the memory at `base`, which may have been allocated for more than is in it.
///
/// # Safety
/// `base` came from [`alloc`] and has not been freed.
pub unsafe fn room(base: *const u8) -> usize {
    // SAFETY: the caller's; flags are of no use here.
    unsafe { jemalloc::sallocx(base.cast(), 0) }
}

/// Frees memory of the range.
///
/// # Safety
/// `base` came from [`alloc`] and is not used again.
#[inline]
pub unsafe fn free(base: *mut u8, flags: Flags) {
    // SAFETY: the caller's. The flags carry a cache of this arena or none: the automatic
    // cache would hand the memory to plain allocations.
    unsafe { jemalloc::dallocx(base.cast(), flags.0) }
}

/// Bytes freed after a session between two purges of the arena. A purge returns whole pages in runs, so this
/// also bounds its system calls.
const PURGE_BYTES: usize = 1 << 20;
/// Bytes freed since the last purge.
static UNPURGED: AtomicUsize = AtomicUsize::new(0);

/// Frees memory of the range while no session runs, and returns it to the system: without sampled allocations
/// nothing reuses it, and jemalloc's decay advances only with calls into this arena.
///
/// # Safety
/// That of [`free`], with the memory's `layout`; `free_lists` are the calling thread's, if it has any.
#[cold]
pub unsafe fn return_memory(base: *mut u8, layout: Layout, free_lists: Option<&mut FreeLists>) {
    let bytes = layout.offset + layout.usable;
    // SAFETY: this function's contract.
    unsafe {
        match free_lists {
            Some(free_lists) => free_lists.free_unkept(base, layout),
            None => free(base, Flags::uncached()),
        }
    }
    let is_due = UNPURGED.fetch_add(bytes, Ordering::Relaxed) >= PURGE_BYTES;
    // The program's filter may forbid the system call.
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
        // SAFETY: a control that takes and gives nothing.
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
    fn a_maker_is_waited_for_but_not_for_ever() {
        let state = || STATE.load(Ordering::SeqCst);
        STATE.store(TRYING, Ordering::SeqCst);
        for _ in 0..3 {
            prepare(0);
            assert_eq!((state(), is_ready()), (LATE, false));
        }
        begin_again();
        assert_eq!(state(), UNTRIED);
        STATE.store(TRYING, Ordering::SeqCst);
        let waiter = std::thread::spawn(|| prepare(0));
        while WAITING.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        finish(FAILED);
        waiter.join().expect("it goes on");
        assert_eq!(state(), FAILED);
        assert_eq!(WAITING.load(Ordering::SeqCst), 0);
        STATE.store(UNTRIED, Ordering::SeqCst);
    }
}
