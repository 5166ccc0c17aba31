//! Entry points that replace the program's allocation functions: the hot path.
//!
//! While sampling is off, `malloc` tests the epoch (the lowest byte of a word in a page that is
//! always cached) and jumps to the allocator through a pointer; `free` compares the address with
//! the end of the range of sampled objects, which is at low addresses, and jumps: four instructions
//! each. While sampling is on, `malloc` also compares the thread's epoch and counts its bytes down:
//! seven more instructions, in the thread's own cache line.
//!
//! Every exit is a tail call and nothing is kept across it, so these functions have no stack frame.
//! The assembly that the slow path jumps to sees the program's own registers.

use crate::arch::{counting_entry, freeing_entry, on_aligned_stack, with_registers};
use crate::backend::{self, NEXT};
use crate::c_library;
use crate::definitions::{self, FIRST_DEFINITIONS, Hidden};
use crate::session::skips_sampling;
#[cfg(target_arch = "x86_64")]
use crate::{backend::Next, session};
use crate::{object, range, sample};
#[cfg(target_arch = "x86_64")]
use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::Ordering;

mod cpu_profiler;
mod cxx;
mod exits;
mod gperftools;
mod heap_profiler;
mod heap_signal;
mod libc_names;
mod loader;
mod offered;
mod sanitizer;
mod seccomp;
mod signals;
mod statistics;
mod thread_stacks;
mod threads;
mod trim;
mod waits;

/// Looks up the functions to which entry points forward calls. Called at start-up: the loader may
/// not be called later.
pub fn find_next() {
    loader::find_next();
    cxx::find_next();
    offered::find_next();
    exits::find_next();
    seccomp::find_next();
    signals::find_next();
    threads::find_next();
    waits::find_next();
}

/// Hides names of ours from the loader, which from now on finds other definitions of them, or none.
/// Called by the constructor, after the loader has relocated what the program is linked with.
pub fn hide() {
    offered::bind_calls();
    definitions::hide(if backend::is_left_out() {
        Hidden::All
    } else {
        Hidden::Named(cxx::hidden().chain(offered::hidden_names()))
    });
}

/// Reads the environment variables of gperftools' heap profiler, at start-up. Returns true if every
/// allocation is to be sampled from now on.
pub fn start_heap_profile() -> bool {
    heap_signal::start() | heap_profiler::allow_sessions()
}

/// Starts the controller that writes dumps while the program runs, in the constructor, if the
/// environment names them. Keeps `errno`.
pub fn start_heap_dumps() {
    if heap_signal::names_dumps() && heap_profiler::is_sampling() {
        let prefix = heap_profiler::prefix();
        crate::heap_watch::start(prefix.as_c_str().unwrap_or_default());
    }
}

/// Slow paths, called with the registers of the entry point's caller as the last argument.
mod slow_path {
    use super::{c_int, c_void, sample, with_registers};
    use core::arch::naked_asm;

    with_registers!(malloc, sample::malloc);
    with_registers!(calloc, sample::calloc);
    with_registers!(posix_memalign, sample::posix_memalign, c_int);
    with_registers!(aligned_alloc, sample::aligned_alloc);
    with_registers!(memalign, sample::memalign);
    with_registers!(mallocx, sample::mallocx);
    with_registers!(rallocx, sample::rallocx);
    with_registers!(rallocx_sampled, sample::rallocx_sampled);
    with_registers!(realloc, sample::realloc);
    with_registers!(realloc_sampled, sample::realloc_sampled);
}

counting_entry! {
    /// C11 7.22.3.4.
    malloc, else slow_path::malloc
}

#[inline(always)]
unsafe fn malloc_inline(size: usize) -> *mut c_void {
    // SAFETY: both paths take any size.
    unsafe {
        if skips_sampling(size) {
            NEXT.malloc(size)
        } else {
            slow_path::malloc(size, 0, 0)
        }
    }
}

freeing_entry! {
    /// C11 7.22.3.3.
    free, else free_low
}

#[inline(always)]
unsafe fn free_inline(p: *mut c_void) {
    // SAFETY: `p` is null or an object that the caller frees. A sampled object lies below the end
    // of the range, where `free_low` tells it from others; all objects above are the allocator's.
    unsafe {
        if range::may_contain(p) {
            free_low(p)
        } else {
            NEXT.free(p)
        }
    }
}

on_aligned_stack! {
    /// Frees an object at a low address: a sampled one, null, or one of the few others.
    fn free_low(p: *mut c_void), free_low_aligned
}

/// See [`free_low`].
unsafe extern "C" fn free_low_aligned(p: *mut c_void) {
    // SAFETY: `p` is null or an object that the caller frees. Only the sampler hands out addresses
    // in the range, so each object is freed by the allocator that it came from.
    unsafe {
        if range::contains(p) {
            sample::free(p)
        } else {
            NEXT.free(p)
        }
    }
}

on_aligned_stack! {
    /// Frees a sampled object.
    fn free_sampled(p: *mut c_void), sample::free
}

on_aligned_stack! {
    /// Returns the usable size of a sampled object.
    fn usable_size_of_sampled(p: *const c_void) -> usize, sample::usable_size
}

/// C11 7.22.3.2.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(n: usize, size: usize) -> *mut c_void {
    // SAFETY: `calloc` takes any two numbers.
    unsafe { calloc_inline(n, size) }
}

#[inline(always)]
unsafe fn calloc_inline(n: usize, size: usize) -> *mut c_void {
    // SAFETY: the slow path requires a product that did not overflow. The allocator refuses others.
    unsafe {
        match n.checked_mul(size) {
            Some(bytes) if !skips_sampling(bytes) => slow_path::calloc(n, size, bytes),
            _ => NEXT.calloc(n, size),
        }
    }
}

/// C11 7.22.3.5.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the program passes null or a live object, as `realloc` requires.
    unsafe { realloc_inline(p, size) }
}

#[inline(always)]
unsafe fn realloc_inline(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: `p` is null or a live object of the caller. Null is not in the range: everything in
    // the range is a sampled object, everything else is the allocator's or null.
    unsafe {
        if range::contains(p) {
            return slow_path::realloc_sampled(p as usize, size, 0);
        }
        if skips_sampling(size) {
            NEXT.realloc(p, size)
        } else {
            slow_path::realloc(p as usize, size, 0)
        }
    }
}

type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;

/// POSIX.1-2024: `realloc` of a product that is checked for overflow.
pub unsafe extern "C" fn reallocarray(p: *mut c_void, n: usize, size: usize) -> *mut c_void {
    let Some(bytes) = n.checked_mul(size) else {
        crate::sys::set_errno(libc::ENOMEM);
        return null_mut();
    };
    if backend::is_interposed() {
        let function = FIRST_DEFINITIONS.realloc.load(Ordering::Relaxed);
        // SAFETY: the function is a `realloc` of the executable or another library, from which the
        // object comes. The C library's `reallocarray` would call the same function.
        return unsafe { transmute::<*mut c_void, Realloc>(function)(p, bytes) };
    }
    // SAFETY: `p` is null or a live object of the caller, and the product did not overflow.
    unsafe { realloc_inline(p, bytes) }
}

/// POSIX.1-2024.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    // SAFETY: `out` belongs to the caller and is written once, by the path that succeeds. Both
    // paths check the alignment.
    unsafe {
        if skips_sampling(size) {
            return NEXT.posix_memalign(out, align, size);
        }
        slow_path::posix_memalign(out as usize, align, size)
    }
}

/// C11 7.22.3.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    let align = if align.is_power_of_two() {
        align
    } else {
        alignment_of_c_library(align)
    };
    // SAFETY: any alignment is valid here: the slow path samples only powers of two, and the
    // allocator refuses the others.
    unsafe {
        if skips_sampling(size) {
            NEXT.aligned_alloc(align, size)
        } else {
            slow_path::aligned_alloc(align, size, 0)
        }
    }
}

/// glibc: malloc.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: `memalign` takes any size and alignment.
    unsafe { memalign_inline(align, size) }
}

#[inline(always)]
unsafe fn memalign_inline(align: usize, size: usize) -> *mut c_void {
    let Some(align) = power_of_two(align) else {
        return null_mut();
    };
    // SAFETY: a power of two, and any size.
    unsafe {
        if skips_sampling(size) {
            NEXT.memalign(align, size)
        } else {
            slow_path::memalign(align, size, 0)
        }
    }
}

/// Returns the alignment that glibc's `memalign` would use: the next power of two. jemalloc accepts
/// no other alignments. Returns `None` and sets `errno` if there is none.
#[inline(always)]
fn power_of_two(align: usize) -> Option<usize> {
    if align.is_power_of_two() {
        Some(align)
    } else {
        next_power_of_two(align)
    }
}

#[cold]
fn next_power_of_two(align: usize) -> Option<usize> {
    let next = align.checked_next_power_of_two();
    if next.is_none() {
        crate::sys::set_errno(libc::EINVAL);
    }
    next
}

/// Returns the alignment that glibc's `aligned_alloc` would use instead of one that is not a power
/// of two. Before 2.38, it rounded up like `memalign`; later versions refuse, like our allocator.
#[cold]
fn alignment_of_c_library(align: usize) -> usize {
    // `strlcpy` was added in the same version, 2.38.
    let refuses = !c_library::optional_function(c"strlcpy").is_null();
    match align.checked_next_power_of_two() {
        Some(next) if !refuses => next,
        _ => align,
    }
}

/// glibc: malloc.h. Aligned to a page.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: takes any size; the size of a page is a power of two.
    unsafe {
        if skips_sampling(size) {
            NEXT.valloc(size)
        } else {
            slow_path::memalign(page_size(), size, 0)
        }
    }
}

/// glibc: malloc.h. Aligned to a page, and rounded up to whole pages.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let page = page_size();
    let Some(bytes) = size.max(1).checked_next_multiple_of(page) else {
        crate::sys::set_errno(libc::ENOMEM);
        return null_mut();
    };
    // SAFETY: the size of a page is a power of two.
    unsafe {
        if skips_sampling(bytes) {
            NEXT.memalign(page, bytes)
        } else {
            slow_path::memalign(page, bytes, 0)
        }
    }
}

fn page_size() -> usize {
    // SAFETY: only reads the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
}

/// glibc: malloc.h.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_usable_size(p: *mut c_void) -> usize {
    // SAFETY: `p` is null or a live object of the caller. An object in the range has a header in
    // front of it.
    unsafe {
        if range::contains(p) {
            usable_size_of_sampled(p)
        } else {
            NEXT.usable_size(p)
        }
    }
}

/// C23 7.24.3.4. The size is ignored: the allocator knows it.
pub unsafe extern "C" fn free_sized(p: *mut c_void, _: usize) {
    // SAFETY: `p` is null or an object that the caller frees. A wrong size does no harm.
    unsafe { free_by_name(p) }
}

type Free = unsafe extern "C" fn(*mut c_void);

/// Frees an object as a function of the C library would, which calls `free` by name.
///
/// # Safety
/// `p` is null or an object that the caller frees.
#[inline(always)]
unsafe fn free_by_name(p: *mut c_void) {
    if !backend::is_interposed() {
        // SAFETY: `p` is null or an object that the caller frees.
        return unsafe { free_inline(p) };
    }
    let function = FIRST_DEFINITIONS.free.load(Ordering::Relaxed);
    // SAFETY: the function is a `free` of the executable or another library, from which the object
    // comes.
    unsafe { transmute::<*mut c_void, Free>(function)(p) }
}

/// C23 7.24.3.5.
pub unsafe extern "C" fn free_aligned_sized(p: *mut c_void, _: usize, _: usize) {
    // SAFETY: `p` is null or an object that the caller frees. Neither number is used.
    unsafe { free_by_name(p) }
}

/// SunOS and old glibc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cfree(p: *mut c_void) {
    // SAFETY: `p` is null or an object that the caller frees.
    unsafe { free_inline(p) }
}

/// dlclose(3). Calls the loader's `dlclose`. If that unloaded a module, invalidates all unwind
/// rules and cached stacks at once, because another module may be mapped at the same addresses
/// next.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlclose(handle: *mut c_void) -> c_int {
    // SAFETY: a handle that the caller got from `dlopen`, passed on to the loader.
    unsafe { crate::module::close(handle) }
}

/// jemalloc's non-standard functions, for programs that look them up.
mod jemalloc_api {
    use super::*;

    /// jemalloc(3).
    pub unsafe extern "C" fn mallocx(size: usize, flags: c_int) -> *mut c_void {
        // SAFETY: the caller guarantees that `size` is not 0. Calls with flags that the sampler
        // does not know go to jemalloc.
        unsafe {
            if skips_sampling(size) {
                NEXT.mallocx(size, flags)
            } else {
                slow_path::mallocx(size, flags as usize, 0)
            }
        }
    }

    /// jemalloc(3).
    pub unsafe extern "C" fn rallocx(p: *mut c_void, size: usize, flags: c_int) -> *mut c_void {
        // SAFETY: the caller guarantees a live object and a `size` that is not 0. The object is
        // sampled if it is in the range, and the allocator's elsewhere.
        unsafe {
            if range::contains(p) {
                slow_path::rallocx_sampled(p as usize, size, flags as usize)
            } else if skips_sampling(size) {
                NEXT.rallocx(p, size, flags)
            } else {
                slow_path::rallocx(p as usize, size, flags as usize)
            }
        }
    }

    /// jemalloc(3).
    pub unsafe extern "C" fn xallocx(
        p: *mut c_void,
        size: usize,
        extra: usize,
        flags: c_int,
    ) -> usize {
        // SAFETY: `p` is a live object of the caller: sampled if it is in the range, and the
        // allocator's elsewhere.
        unsafe {
            if range::contains(p) {
                sample::xallocx(p, size, extra, flags)
            } else {
                NEXT.xallocx(p, size, extra, flags)
            }
        }
    }

    /// jemalloc(3).
    pub unsafe extern "C" fn sallocx(p: *const c_void, flags: c_int) -> usize {
        // SAFETY: `p` is a live object of the caller, and nothing is written.
        unsafe {
            if range::contains(p) {
                usable_size_of_sampled(p)
            } else {
                NEXT.sallocx(p, flags)
            }
        }
    }

    /// jemalloc(3).
    pub unsafe extern "C" fn dallocx(p: *mut c_void, flags: c_int) {
        // SAFETY: `p` is an object that the caller frees. A sampled one goes into no thread cache,
        // whichever the flags name.
        unsafe {
            if range::contains(p) {
                free_sampled(p)
            } else {
                NEXT.dallocx(p, flags)
            }
        }
    }

    /// jemalloc(3).
    pub unsafe extern "C" fn sdallocx(p: *mut c_void, size: usize, flags: c_int) {
        // SAFETY: `p` is an object that the caller frees. The header of a sampled one has its size.
        unsafe {
            if range::contains(p) {
                free_sampled(p)
            } else {
                NEXT.sdallocx(p, size, flags)
            }
        }
    }

    /// jemalloc(3).
    pub unsafe extern "C" fn nallocx(size: usize, flags: c_int) -> usize {
        // From now on, the program may use all of an object's size class.
        object::make_all_exact();
        // SAFETY: a computation; the caller guarantees that `size` is not 0.
        unsafe { NEXT.nallocx(size, flags) }
    }

    /// jemalloc(3).
    pub unsafe extern "C" fn mallctl(
        name: *const c_char,
        old: *mut c_void,
        old_len: *mut usize,
        new: *mut c_void,
        new_len: usize,
    ) -> c_int {
        // SAFETY: the caller guarantees the name and the buffers of these lengths, as `mallctl`
        // requires.
        sample::without_sampling(|| unsafe { NEXT.mallctl(name, old, old_len, new, new_len) })
    }

    /// jemalloc(3).
    pub unsafe extern "C" fn mallctlnametomib(
        name: *const c_char,
        mib: *mut usize,
        len: *mut usize,
    ) -> c_int {
        // SAFETY: the caller guarantees room for `len` numbers at `mib`.
        unsafe { NEXT.mallctlnametomib(name, mib, len) }
    }

    /// jemalloc(3).
    pub unsafe extern "C" fn mallctlbymib(
        mib: *const usize,
        len: usize,
        old: *mut c_void,
        old_len: *mut usize,
        new: *mut c_void,
        new_len: usize,
    ) -> c_int {
        // SAFETY: the caller guarantees the `mib` and the buffers of these lengths.
        sample::without_sampling(|| unsafe {
            NEXT.mallctlbymib(mib, len, old, old_len, new, new_len)
        })
    }

    /// jemalloc(3).
    pub unsafe extern "C" fn malloc_stats_print(
        write: Option<unsafe extern "C" fn(*mut c_void, *const c_char)>,
        context: *mut c_void,
        options: *const c_char,
    ) {
        // jemalloc's own default function writes nothing.
        let write = write.or(Some(write_to_standard_error));
        // SAFETY: the caller guarantees that `write` may be called with `context`.
        unsafe { NEXT.stats_print(write, context, options) }
    }

    unsafe extern "C" fn write_to_standard_error(_: *mut c_void, text: *const c_char) {
        // SAFETY: jemalloc passes a terminated string.
        unsafe { libc::write(libc::STDERR_FILENO, text.cast(), libc::strlen(text)) };
    }
}
