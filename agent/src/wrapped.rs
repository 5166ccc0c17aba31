//! System functions that jemalloc calls, implemented without calling the C library's.
//!
//! A program, or another preloaded library, may define `mmap` or `clock_gettime` itself
//! (libfaketime does the latter) and allocate memory in it. Then the allocator would deadlock
//! before `main`. glibc's `malloc` calls neither through a symbol that others can define. The build
//! script makes the linker resolve these names to the functions here.

// Decision 63: where jemalloc and glibc differ, the agent follows glibc.
use crate::backend::jemalloc::{OPTIONS_LINK, OPTIONS_VARIABLE, tsd_cleanup};
use crate::{arch, cycles, huge_pages, keeping, range, renewal, seccomp, symbol_table, sys};
use core::arch::global_asm;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

// Not exported.
global_asm!(
    ".hidden __wrap_mmap",
    ".hidden __wrap_munmap",
    ".hidden __wrap_madvise",
    ".hidden __wrap_clock_gettime",
    ".hidden __wrap_pthread_cond_init",
    ".hidden __wrap_pthread_key_create",
    ".hidden __wrap_readlink",
    ".hidden __wrap_secure_getenv",
);

/// Minimum size of jemalloc's own data of sampled objects to be mapped unlocked, in bytes. Smaller
/// mappings may be locked and backed immediately.
const MIN_UNLOCKED_BYTES: usize = 256 << 10;

/// Minimum size, in bytes, of a mapping that is tried again when it is refused.
const MIN_RETRIED_BYTES: usize = 1 << 30;

/// Retries a mapping that the kernel has refused as too large for the machine. Succeeds if the
/// kernel would grant the size before jemalloc rounded it up: with four size classes for each
/// doubling, a request of 22 GiB takes 24, and nothing uses what rounding adds. Returns
/// `MAP_FAILED` otherwise.
#[cold]
fn map_rounded(bytes: usize) -> *mut c_void {
    let page = range::jemalloc_page();
    let size = bytes - page;
    let next_smaller = size - (1 << ((size - 1).ilog2() - 2));
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new mappings at no particular address, the first of which nobody has.
    unsafe {
        let smallest = sys::map(null_mut(), next_smaller + page, access, flags, -1, 0);
        if smallest == libc::MAP_FAILED {
            return smallest;
        }
        sys::syscall(libc::SYS_munmap, smallest, next_smaller + page);
        sys::map_unreserved(bytes)
    }
}

/// Maps memory. Keeps `errno` for anonymous memory, which is all that jemalloc maps; [`sys::map`]
/// sets it.
///
/// jemalloc's own data of sampled objects (4 MiB at the first one) are not locked, even if the
/// program has called `mlockall`: backing all of them would take milliseconds.
#[unsafe(no_mangle)]
#[unsafe(link_section = "mem_agent_fork")]
unsafe extern "C" fn __wrap_mmap(
    at: *mut c_void,
    bytes: usize,
    access: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS == 0 {
        // SAFETY: passes on jemalloc's arguments for the C library's function, which does the same.
        return unsafe { sys::map(at, bytes, access, flags, file, offset) };
    }
    // SAFETY: the word is the thread's own.
    let is_sampling = unsafe { (*arch::local()).busy != 0 } && !seccomp::is_installed();
    let is_large = bytes >= MIN_UNLOCKED_BYTES && access & libc::PROT_WRITE != 0;
    let new = sys::keeping_errno(|| {
        if is_sampling && is_large && at.is_null() {
            let new = sys::map_unlocked(at, bytes, access);
            return if new.is_null() { libc::MAP_FAILED } else { new };
        }
        // SAFETY: passes on jemalloc's arguments for the C library's function, which does the same.
        let new = unsafe { sys::map(at, bytes, access, flags, file, offset) };
        let is_writable = access & libc::PROT_WRITE != 0;
        if new == libc::MAP_FAILED && is_writable && bytes >= MIN_RETRIED_BYTES && at.is_null() {
            map_rounded(bytes)
        } else {
            new
        }
    });
    let is_for_use = new != libc::MAP_FAILED && access & libc::PROT_WRITE != 0;
    if is_for_use {
        huge_pages::exclude_unless_large(new, bytes);
    }
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_munmap(at: *mut c_void, bytes: usize) -> c_int {
    keeping::record_return(bytes);
    // SAFETY: jemalloc unmaps memory of its own.
    sys::keeping_errno(|| unsafe { sys::syscall(libc::SYS_munmap, at, bytes) as c_int })
}

/// Returns pages to the system, by mapping new ones over them if they must be replaced
/// ([`renewal`]).
///
/// Does nothing in a program with a seccomp filter: the filter may have been tested with the C
/// library's allocator only, which seldom makes this call. jemalloc keeps pages that it cannot
/// return.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    if seccomp::is_installed() {
        return -1;
    }
    if advice == libc::MADV_DONTNEED {
        keeping::record_return(bytes);
        // SAFETY: memory of jemalloc, whose contents it does not need.
        let replace = || unsafe { renewal::renew(at, bytes) };
        if renewal::is_replaced() || renewal::must_replace(bytes) && replace() {
            return 0;
        }
    }
    let advice = c_long::from(advice);
    // SAFETY: jemalloc's advice about memory of its own.
    sys::keeping_errno(|| unsafe { sys::syscall(libc::SYS_madvise, at, bytes, advice) as c_int })
}

unsafe extern "C" {
    fn mem_agent_next_readlink(path: *const c_char, buffer: *mut c_char, bytes: usize) -> isize;
    fn mem_agent_next_secure_getenv(name: *const c_char) -> *mut c_char;
}

/// Reads a symbolic link, unless it is the one with options for every jemalloc of the machine.
/// These may be wrong for this one, which would abort every program (`abort_conf:true`).
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_readlink(
    path: *const c_char,
    buffer: *mut c_char,
    bytes: usize,
) -> isize {
    // SAFETY: a string, as `readlink` requires.
    if unsafe { CStr::from_ptr(path) } == OPTIONS_LINK {
        sys::set_errno(libc::ENOENT);
        return -1;
    }
    // SAFETY: passes on the caller's arguments.
    unsafe { mem_agent_next_readlink(path, buffer, bytes) }
}

/// Looks up an environment variable. The agent's jemalloc has a name of its own for its options:
/// programs with jemalloc's Rust crate read `_RJEM_MALLOC_CONF` for theirs.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_secure_getenv(name: *const c_char) -> *mut c_char {
    // SAFETY: a string, as `secure_getenv` requires.
    let is_jemallocs = unsafe { CStr::from_ptr(name) } == OPTIONS_VARIABLE;
    let name = if is_jemallocs {
        c"MEM_PROFILER_JEMALLOC".as_ptr()
    } else {
        name
    };
    // SAFETY: a string.
    unsafe { mem_agent_next_secure_getenv(name) }
}

/// Initialises a condition variable with default attributes, which are all that jemalloc uses.
/// glibc and musl document `PTHREAD_COND_INITIALIZER` as equivalent.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_cond_init(
    condition: *mut libc::pthread_cond_t,
    _: *const libc::pthread_condattr_t,
) -> c_int {
    // SAFETY: jemalloc passes memory that is to be initialised.
    unsafe { condition.write(libc::PTHREAD_COND_INITIALIZER) };
    0
}

type Destructor = unsafe extern "C" fn(*mut c_void);

unsafe extern "C" {
    fn mem_agent_next_pthread_key_create(
        key: *mut libc::pthread_key_t,
        destructor: Option<Destructor>,
    ) -> c_int;
}

/// Key of jemalloc's thread-specific data; `u32::MAX` before it is created.
static TSD: AtomicU32 = AtomicU32::new(u32::MAX);

/// Creates a key. jemalloc's destructor is replaced by one that runs last: without jemalloc's data,
/// requests of later destructors would be served from its first arena, whatever arena they name,
/// and could not be sampled.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_key_create(
    key: *mut libc::pthread_key_t,
    destructor: Option<Destructor>,
) -> c_int {
    let is_jemalloc_key =
        destructor.is_some_and(|function| function as usize == tsd_cleanup as *const () as usize);
    let destructor = if is_jemalloc_key {
        Some(clean_up_last as Destructor)
    } else {
        destructor
    };
    // SAFETY: passes jemalloc's arguments on unchanged.
    unsafe {
        let result = mem_agent_next_pthread_key_create(key, destructor);
        if is_jemalloc_key && result == 0 {
            TSD.store(*key, Ordering::Relaxed);
        }
        result
    }
}

/// Sets jemalloc's data again in each round of destructors but the last, in which it frees them.
unsafe extern "C" fn clean_up_last(data: *mut c_void) {
    // SAFETY: the word is the thread's own, and no borrow of its state is alive here.
    let is_last = unsafe {
        let local = &mut *arch::local();
        local.rounds = local.rounds.saturating_add(1);
        local.is_last_round()
    };
    // SAFETY: key, data and destructor are those that jemalloc passed.
    unsafe {
        if is_last || libc::pthread_setspecific(TSD.load(Ordering::Relaxed), data) != 0 {
            tsd_cleanup(data);
        }
    }
}

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// Address of the vDSO's function, which makes no system call; 0 before it is looked up, [`NONE`]
/// if there is none.
static VDSO_FUNCTION: AtomicUsize = AtomicUsize::new(0);
/// Value of [`VDSO_FUNCTION`] if there is none.
const NONE: usize = 1;

/// Reads a clock. The vDSO reads the cycle counter for all clocks but the coarse ones.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_clock_gettime(
    clock: libc::clockid_t,
    time: *mut libc::timespec,
) -> c_int {
    let mut address = VDSO_FUNCTION.load(Ordering::Relaxed);
    let is_coarse = matches!(
        clock,
        libc::CLOCK_MONOTONIC_COARSE | libc::CLOCK_REALTIME_COARSE
    );
    if !is_coarse && cycles::is_forbidden() {
        address = NONE;
    } else if address == 0 {
        address = find();
        VDSO_FUNCTION.store(address, Ordering::Relaxed);
    }
    if address != NONE {
        // SAFETY: the vDSO's function has this type, according to vdso(7).
        let function = unsafe { transmute::<usize, ClockGettime>(address) };
        // SAFETY: passes jemalloc's arguments on unchanged.
        if unsafe { function(clock, time) } == 0 {
            return 0;
        }
    }
    // SAFETY: passes jemalloc's arguments on unchanged.
    unsafe { sys::syscall(libc::SYS_clock_gettime, c_long::from(clock), time) as c_int }
}

/// Looks up the vDSO's function. Returns [`NONE`] if there is none.
#[cold]
fn find() -> usize {
    let name = if cfg!(target_arch = "x86_64") {
        c"__vdso_clock_gettime"
    } else {
        c"__kernel_clock_gettime"
    };
    // SAFETY: only reads the auxiliary vector.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    if base == 0 {
        return NONE;
    }
    // SAFETY: the kernel has mapped the vDSO there, and never unmaps it.
    match unsafe { symbol_table::find_exported(base, name) } {
        Some((at, _)) if at != 0 => at as usize,
        _ => NONE,
    }
}
