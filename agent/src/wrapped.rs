//! What jemalloc requests from the system, bypassing the C library's functions of that name.
//!
//! A program, or a library preloaded beside the agent, may define `mmap` or `clock_gettime` itself
//! (libfaketime does the latter), and allocate memory in it: then the allocator would wait for
//! itself, before `main`. glibc's `malloc` calls neither through a name that others can define. The
//! build script makes the linker resolve the names to these.

// Decision 63: where jemalloc and glibc differ, the agent follows glibc.
use crate::{arch, keeping, seccomp, symbol_table, sys};
use core::arch::global_asm;
use core::ffi::{c_int, c_long, c_void};
use core::mem::transmute;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

// Ours alone: they are not exported.
global_asm!(
    ".hidden __wrap_mmap",
    ".hidden __wrap_munmap",
    ".hidden __wrap_madvise",
    ".hidden __wrap_clock_gettime",
    ".hidden __wrap_pthread_cond_init",
    ".hidden __wrap_pthread_key_create",
);

/// Bytes from which on jemalloc's data of sampled objects are mapped unlocked: less is backed at once.
const LARGE: usize = 256 << 10;

/// jemalloc's `system_thp_mode_always`.
const ALWAYS: u32 = 1;
/// Smallest mapping that may get huge pages where the system gives them to every mapping. jemalloc's mappings
/// grow with what it has mapped, to 16 MiB at some 80 MiB: a huge page that is used in part is little of that.
const HUGE_PAGES_FROM: usize = 16 << 20;

unsafe extern "C" {
    /// Mode of transparent huge pages, which jemalloc reads from the system before it maps memory.
    #[link_name = "_rjem_je_init_system_thp_mode"]
    static HUGE_PAGES: AtomicU32;
}

/// Excludes memory from huge pages where the system gives them to every mapping: the first byte written would
/// make 2 MiB resident. In other modes, nothing is to be done. A mapping that is refused stays as it is.
pub fn without_huge_pages(at: *mut c_void, bytes: usize) {
    // SAFETY: jemalloc's, an `int` written while the process has one thread.
    if unsafe { &HUGE_PAGES }.load(Ordering::Relaxed) == ALWAYS {
        // SAFETY: the caller's mapping, of which only the kind of pages changes.
        unsafe { __wrap_madvise(at, bytes, libc::MADV_NOHUGEPAGE) };
    }
}

/// Keeps `errno` where anonymous memory is mapped, which is all that jemalloc maps; [`sys::map`] sets it.
///
/// Memory for jemalloc's own data of sampled objects, 4 MiB at the first one, is not locked, whatever the program has
/// requested for its memory with `mlockall`: backing it at once would take milliseconds.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_mmap(
    at: *mut c_void,
    bytes: usize,
    access: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS == 0 {
        // SAFETY: the caller's, who has the same function of the C library in mind.
        return unsafe { sys::map(at, bytes, access, flags, file, offset) };
    }
    // SAFETY: the thread's own word.
    let is_sampling = unsafe { (*arch::local()).busy != 0 } && !seccomp::is_installed();
    let is_large = bytes >= LARGE && access & libc::PROT_WRITE != 0;
    let new = keeping_errno(|| {
        if is_sampling && is_large && at.is_null() {
            let new = sys::map_unlocked(at, bytes, access);
            return if new.is_null() { libc::MAP_FAILED } else { new };
        }
        // SAFETY: as above.
        unsafe { sys::map(at, bytes, access, flags, file, offset) }
    });
    let is_for_use = new != libc::MAP_FAILED && access & libc::PROT_WRITE != 0;
    if is_for_use && bytes < HUGE_PAGES_FROM {
        without_huge_pages(new, bytes);
    }
    new
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_munmap(at: *mut c_void, bytes: usize) -> c_int {
    keeping::note_return(bytes);
    // SAFETY: the caller's.
    keeping_errno(|| unsafe { libc::syscall(libc::SYS_munmap, at, bytes) as c_int })
}

/// Makes no call for a program that has installed a seccomp filter: it may have been tried with the C
/// library's allocator alone, which seldom makes this call. jemalloc keeps freed pages that it cannot give
/// back.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    if seccomp::is_installed() {
        return -1;
    }
    if advice == libc::MADV_DONTNEED {
        keeping::note_return(bytes);
    }
    let advice = c_long::from(advice);
    // SAFETY: the caller's.
    keeping_errno(|| unsafe { libc::syscall(libc::SYS_madvise, at, bytes, advice) as c_int })
}

/// Makes system calls that may fail without the program's noticing it: `free` leaves `errno` as it is, and
/// so does a request that succeeds after all. jemalloc sets `errno` itself where a request fails.
fn keeping_errno<T>(calls: impl FnOnce() -> T) -> T {
    let saved = sys::errno();
    let result = calls();
    sys::set_errno(saved);
    result
}

/// With default attributes, which are all that jemalloc uses: `PTHREAD_COND_INITIALIZER`, which glibc and
/// musl document as equivalent.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_cond_init(
    condition: *mut libc::pthread_cond_t,
    _: *const libc::pthread_condattr_t,
) -> c_int {
    // SAFETY: the caller's, to be initialised.
    unsafe { condition.write(libc::PTHREAD_COND_INITIALIZER) };
    0
}

type Destructor = unsafe extern "C" fn(*mut c_void);

unsafe extern "C" {
    /// Frees jemalloc's data of a thread that ends.
    #[link_name = "_rjem_je_tsd_cleanup"]
    fn tsd_cleanup(data: *mut c_void);
    fn mem_agent_next_pthread_key_create(
        key: *mut libc::pthread_key_t,
        destructor: Option<Destructor>,
    ) -> c_int;
}

/// jemalloc's key; `u32::MAX`: none yet.
static TSD: AtomicU32 = AtomicU32::new(u32::MAX);
/// How often a C library runs the destructors of data that is there again
/// (`PTHREAD_DESTRUCTOR_ITERATIONS`).
const ROUNDS: u8 = 4;

/// jemalloc's data of a thread is the last to go. Without them, requests of destructors that run later are
/// served from jemalloc's first arena, whatever arena they name, so that they could not be sampled.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_key_create(
    key: *mut libc::pthread_key_t,
    destructor: Option<Destructor>,
) -> c_int {
    let is_jemallocs =
        destructor.is_some_and(|one| one as usize == tsd_cleanup as *const () as usize);
    let destructor = if is_jemallocs {
        Some(clean_up_last as Destructor)
    } else {
        destructor
    };
    // SAFETY: the caller's.
    unsafe {
        let result = mem_agent_next_pthread_key_create(key, destructor);
        if is_jemallocs && result == 0 {
            TSD.store(*key, Ordering::Relaxed);
        }
        result
    }
}

unsafe extern "C" fn clean_up_last(data: *mut c_void) {
    // SAFETY: the thread's own, which nobody else uses.
    let rounds = unsafe { &mut (*arch::local()).rounds };
    *rounds = rounds.saturating_add(1);
    // SAFETY: jemalloc's key and its own data, as they were; and its destructor at last.
    unsafe {
        if *rounds >= ROUNDS || libc::pthread_setspecific(TSD.load(Ordering::Relaxed), data) != 0 {
            tsd_cleanup(data);
        }
    }
}

type ClockGettime = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int;

/// The kernel's function in the process's memory, which needs no system call; 1: there is none.
static IN_VDSO: AtomicUsize = AtomicUsize::new(0);
const NONE: usize = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_clock_gettime(
    clock: libc::clockid_t,
    time: *mut libc::timespec,
) -> c_int {
    let mut known = IN_VDSO.load(Ordering::Relaxed);
    if known == 0 {
        known = find();
        IN_VDSO.store(known, Ordering::Relaxed);
    }
    if known != NONE {
        // SAFETY: the kernel's function of this type, by vdso(7).
        let function = unsafe { transmute::<usize, ClockGettime>(known) };
        // SAFETY: the caller's.
        if unsafe { function(clock, time) } == 0 {
            return 0;
        }
    }
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), time) as c_int }
}

#[cold]
fn find() -> usize {
    let name = match cfg!(target_arch = "x86_64") {
        true => c"__vdso_clock_gettime",
        false => c"__kernel_clock_gettime",
    };
    // SAFETY: it only looks into the vector that the kernel left above the stack.
    let base = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) };
    if base == 0 {
        return NONE;
    }
    // SAFETY: the kernel has mapped a library there, which stays.
    match unsafe { symbol_table::exported(base, name) } {
        Some((at, _)) if at != 0 => at as usize,
        _ => NONE,
    }
}
