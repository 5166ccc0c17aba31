//! The allocator underneath: jemalloc, or with `MEM_PROFILER_ALLOCATOR=system` the one that the
//! program would use without the agent. A program with a sanitizer always keeps its own, and so
//! does one that `MEM_PROFILER_ONLY` does not name.
//!
//! Every object must be freed by the allocator that it came from. So the choice is made at the
//! first allocation of the process, before any constructor has run, and never changes. Until then,
//! each entry of [`NEXT`] points to a function that makes the choice and then jumps to the chosen
//! one.

// Decision 03: `tikv-jemalloc-sys`.
mod extended;
pub mod extent_hooks;
pub mod extent_map;
pub mod growth;
pub mod jemalloc;
mod linked;
mod system;

use crate::arch::on_aligned_stack;
use crate::definitions::{self, Name};
use crate::{arch, c_library, environment, musl};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use shm_protocol::layout::MIN_MEMORY_LIMIT;

/// jemalloc's functions, called with a stack that is aligned even if the caller's is not. The entry
/// points of `malloc` and `free` align the stack themselves.
mod aligned {
    use super::*;

    macro_rules! aligned {
        ($($name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?, $target:path;)*) => {
            $(on_aligned_stack! { pub fn $name($($arg: $type),*) $(-> $out)?, $target })*
        };
    }

    aligned! {
        free(p: *mut c_void), jemalloc::free;
        calloc(n: usize, size: usize) -> *mut c_void, jemalloc::calloc;
        realloc(p: *mut c_void, size: usize) -> *mut c_void, growth::realloc;
        posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int,
            jemalloc::posix_memalign;
        aligned_alloc(align: usize, size: usize) -> *mut c_void, jemalloc::aligned_alloc;
        memalign(align: usize, size: usize) -> *mut c_void, super::memalign;
        valloc(size: usize) -> *mut c_void, super::valloc;
        usable_size(p: *const c_void) -> usize, jemalloc::malloc_usable_size;
        mallocx(size: usize, flags: c_int) -> *mut c_void, jemalloc::mallocx;
        rallocx(p: *mut c_void, size: usize, flags: c_int) -> *mut c_void, jemalloc::rallocx;
        xallocx(p: *mut c_void, size: usize, extra: usize, flags: c_int) -> usize,
            jemalloc::xallocx;
        sallocx(p: *const c_void, flags: c_int) -> usize, jemalloc::sallocx;
        dallocx(p: *mut c_void, flags: c_int), jemalloc::dallocx;
        sdallocx(p: *mut c_void, size: usize, flags: c_int), jemalloc::sdallocx;
    }
}

/// jemalloc's `memalign`, but sets `errno` if memory runs out.
unsafe extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: takes any size and alignment.
    no_memory_if_null(unsafe { jemalloc::_rjem_memalign(align, size) })
}

/// `valloc`, implemented with [`memalign`], because jemalloc's own does not align an object of size
/// 0.
unsafe extern "C" fn valloc(size: usize) -> *mut c_void {
    // SAFETY: only reads the auxiliary vector.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
    // SAFETY: takes any size and alignment.
    unsafe { memalign(page, size) }
}

/// Sets `errno` if memory has run out.
fn no_memory_if_null(p: *mut c_void) -> *mut c_void {
    if p.is_null() {
        crate::sys::set_errno(libc::ENOMEM);
    }
    p
}

/// jemalloc's options, unless `MEM_PROFILER_JEMALLOC` overrides them:
///
/// - Large objects have four size classes for each doubling, as before 5.3.1. Without them, an
///   object that grows in steps is moved and copied at every second step, because the memory after
///   it is in another state.
/// - Adjacent free pages are returned when they amount to 8 MiB (`keeping.rs`), whatever the sizes
///   of the objects that were in them. By default, 5.3.1 merges free pages to at most 64 times the
///   size that is freed, so pages of small objects would never amount to 8 MiB.
#[unsafe(export_name = "_rjem_malloc_conf")]
static OPTIONS: AtomicPtr<c_char> = AtomicPtr::new(USUAL_OPTIONS.as_ptr().cast_mut());
const USUAL_OPTIONS: &CStr = c"disable_large_size_classes:false,lg_extent_max_active_fit:9";
/// Options for a process with little memory: one arena. Unused addresses are released soon, because
/// the program may need them for its own mappings. Unused memory of any size is split for a
/// request, which would otherwise fail if the system has no more memory.
const LIMITED_MEMORY_OPTIONS: &CStr = c"disable_large_size_classes:false,narenas:1,\
retain:false,dirty_decay_ms:100,lg_extent_max_active_fit:64";
core::arch::global_asm!(".hidden _rjem_malloc_conf");

/// Size of the pages for which jemalloc's defaults are made, in bytes.
const USUAL_PAGE: usize = 4096;
/// log2 of how many times as many objects a slab has as with pages of 4 KiB.
const LG_LARGER_SLABS: isize = match option_env!("JEMALLOC_SYS_WITH_LG_PAGE") {
    Some(bits) => lg_ratio(bits.as_bytes()),
    None => 0,
};

/// Returns log2 of how many pages of 4 KiB make one of the size of which the log2 is written here.
const fn lg_ratio(bits: &[u8]) -> isize {
    match bits {
        [b'1', unit @ b'2'..=b'6'] => (*unit - b'2') as isize,
        _ => panic!("JEMALLOC_SYS_WITH_LG_PAGE is not from 12 to 16"),
    }
}

/// Makes larger pages take no more memory than they must. A thread caches as many objects as with
/// pages of 4 KiB. Of each size class that is in use, every arena has a page that is used in part:
/// where pages are larger, there is one arena for each processor, instead of four.
/// `MEM_PROFILER_JEMALLOC` overrides both. Called before jemalloc is initialised. Decision 15.
fn fit_to_pages() {
    // SAFETY: only reads the auxiliary vector.
    let page = unsafe { libc::getauxval(libc::AT_PAGESZ) } as usize;
    // SAFETY: jemalloc's variables have these types, and the process has one thread.
    unsafe {
        if LG_LARGER_SLABS > 0 {
            jemalloc::LG_CACHED_SLABS.store(1 - LG_LARGER_SLABS, Ordering::Relaxed);
        }
        if page > USUAL_PAGE {
            jemalloc::ARENAS_PER_PROCESSOR.store(1 << 16, Ordering::Relaxed);
        }
    }
}

/// Makes the choice before jemalloc's constructor: constructors with a priority run first.
#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array.00100"))]
static FIRST_CONSTRUCTOR: extern "C" fn() = choose_first;

extern "C" fn choose_first() {
    if !cfg!(test) && !is_inactive() {
        ensure_chosen();
    }
}

/// Makes jemalloc's constructor do nothing: it would map memory that nobody uses.
fn disable_jemalloc() {
    // SAFETY: jemalloc's variable has this type, and the process has one thread.
    unsafe { jemalloc::INIT_STATE.store(jemalloc::INITIALISED, Ordering::Relaxed) };
}

/// Gives requests of up to 8 bytes the size class of 16: all results of `malloc` are then aligned
/// to 16, as the ABIs require, compilers assume and glibc does. Called before the first allocation.
fn align_smallest() {
    // SAFETY: a size that is not 0. The call initialises jemalloc, which fills its table. The
    // process has one thread, so nobody reads the table at the same time, and no object of a
    // smaller class exists yet.
    unsafe {
        jemalloc::nallocx(1, 0);
        let classes = &raw mut jemalloc::CLASS_OF_REQUEST;
        let class_of_16 = (*classes)[2];
        (*classes)[0] = class_of_16;
        (*classes)[1] = class_of_16;
    }
}

macro_rules! next {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty),*) $(-> $out:ty)?,
        $symbol:literal, $jemalloc:path;)*) => {
        /// Functions of the allocator underneath, as one pointer each.
        pub struct Next { $(pub(crate) $name: AtomicPtr<c_void>),* }

        /// Targets of calls that are not sampled.
        pub static NEXT: Next = Next { $($name: AtomicPtr::new(undecided::$name as *mut c_void)),* };

        impl Next {
            $($(#[$doc])*
            /// # Safety
            /// See the C function of this name.
            #[inline(always)]
            pub unsafe fn $name(&self, $($arg: $type),*) $(-> $out)? {
                let function = self.$name.load(Ordering::Relaxed);
                let function: unsafe extern "C" fn($($type),*) $(-> $out)? =
                    // SAFETY: only functions of this type are stored in this field.
                    unsafe { core::mem::transmute(function) };
                // SAFETY: passes the arguments on unchanged, to a function with the same contract.
                unsafe { function($($arg),*) }
            })*

            fn use_jemalloc(&self) {
                $(self.$name.store($jemalloc as *mut c_void, Ordering::Relaxed);)*
            }

            /// Uses the functions of the next library in the search order. If it lacks jemalloc's
            /// own functions, these are implemented by the others.
            fn use_system(&self) {
                $(let $name = definitions::next_definition($symbol);)*
                $(let function = if $name.is_null() {
                    extended::substitute($symbol)
                } else {
                    Some(system::guarded($symbol, $name))
                };
                if let Some(function) = function {
                    self.$name.store(function, Ordering::Relaxed);
                })*
            }
        }

        /// Targets until the choice is made.
        mod undecided {
            use super::*;
            $(pub unsafe extern "C" fn $name($($arg: $type),*) $(-> $out)? {
                crate::ample_stack::call(choose);
                // SAFETY: passes the arguments on unchanged, to a function with the same contract.
                unsafe { NEXT.$name($($arg),*) }
            })*
        }
    };
}

next! {
    malloc(size: usize) -> *mut c_void, c"malloc", jemalloc::malloc;
    free(p: *mut c_void), c"free", jemalloc::free;
    calloc(n: usize, size: usize) -> *mut c_void, c"calloc", aligned::calloc;
    realloc(p: *mut c_void, size: usize) -> *mut c_void, c"realloc", aligned::realloc;
    posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int,
        c"posix_memalign", aligned::posix_memalign;
    aligned_alloc(align: usize, size: usize) -> *mut c_void,
        c"aligned_alloc", aligned::aligned_alloc;
    memalign(align: usize, size: usize) -> *mut c_void, c"memalign", aligned::memalign;
    valloc(size: usize) -> *mut c_void, c"valloc", aligned::valloc;
    usable_size(p: *const c_void) -> usize, c"malloc_usable_size", aligned::usable_size;
    mallocx(size: usize, flags: c_int) -> *mut c_void, c"mallocx", aligned::mallocx;
    rallocx(p: *mut c_void, size: usize, flags: c_int) -> *mut c_void,
        c"rallocx", aligned::rallocx;
    xallocx(p: *mut c_void, size: usize, extra: usize, flags: c_int) -> usize,
        c"xallocx", aligned::xallocx;
    sallocx(p: *const c_void, flags: c_int) -> usize, c"sallocx", aligned::sallocx;
    dallocx(p: *mut c_void, flags: c_int), c"dallocx", aligned::dallocx;
    sdallocx(p: *mut c_void, size: usize, flags: c_int), c"sdallocx", aligned::sdallocx;
    nallocx(size: usize, flags: c_int) -> usize, c"nallocx", jemalloc::nallocx;
    mallctl(name: *const c_char, old: *mut c_void, old_len: *mut usize, new: *mut c_void,
        new_len: usize) -> c_int, c"mallctl", jemalloc::mallctl;
    mallctlnametomib(name: *const c_char, mib: *mut usize, len: *mut usize) -> c_int,
        c"mallctlnametomib", jemalloc::mallctlnametomib;
    mallctlbymib(mib: *const usize, len: usize, old: *mut c_void, old_len: *mut usize,
        new: *mut c_void, new_len: usize) -> c_int, c"mallctlbymib", jemalloc::mallctlbymib;
    stats_print(write: Option<unsafe extern "C" fn(*mut c_void, *const c_char)>,
        context: *mut c_void, options: *const c_char),
        c"malloc_stats_print", jemalloc::malloc_stats_print;
    libc_malloc(size: usize) -> *mut c_void, c"__libc_malloc", jemalloc::malloc;
    libc_free(p: *mut c_void), c"__libc_free", jemalloc::free;
    libc_calloc(n: usize, size: usize) -> *mut c_void, c"__libc_calloc", aligned::calloc;
    libc_realloc(p: *mut c_void, size: usize) -> *mut c_void, c"__libc_realloc", aligned::realloc;
    libc_memalign(align: usize, size: usize) -> *mut c_void, c"__libc_memalign", aligned::memalign;
}

/// True if the program keeps its own allocator.
static CHOSEN_SYSTEM: AtomicBool = AtomicBool::new(false);
/// Value of [`is_left_out`].
static LEFT_OUT: AtomicBool = AtomicBool::new(false);
/// Value of [`is_interposed`].
static IS_INTERPOSED: AtomicBool = AtomicBool::new(false);
/// Value of [`is_choosing`].
static IS_CHOOSING: AtomicBool = AtomicBool::new(false);

/// Returns true while the choice is being made. jemalloc is initialised then, and may be
/// incomplete: before glibc 2.35, its initialisation allocates, because `sysconf` reads a
/// directory.
pub fn is_choosing() -> bool {
    IS_CHOOSING.load(Ordering::Relaxed)
}

/// Returns true if the agent does nothing in this process: it contains a sanitizer, which finds
/// errors by its own allocator, or has a C library that the agent does not know, or the agent is in
/// another namespace than the program.
pub fn is_inactive() -> bool {
    arch::has_sanitizer() || musl::is_here() || !c_library::is_shared_with_program()
}

/// Returns true if this process is left out of profiling, and gets no segment.
pub fn is_left_out() -> bool {
    LEFT_OUT.load(Ordering::Relaxed)
}

/// Returns true if the executable, or a library that is preloaded before this one, defines `malloc`
/// or one of its relatives, so that the program's calls go there. Where the C library would call
/// such a definition, our functions must do so too; and the allocator that such a definition looks
/// up (`RTLD_NEXT`) must be the one that it would find without the agent.
pub fn is_interposed() -> bool {
    IS_INTERPOSED.load(Ordering::Relaxed)
}

/// Determines the value of [`is_interposed`].
fn decide_interposed() -> bool {
    const CORE: [Name; 4] = [
        Name::new(c"malloc"),
        Name::new(c"free"),
        Name::new(c"calloc"),
        Name::new(c"realloc"),
    ];
    let mut is_defined_before = false;
    let saved = crate::sys::errno();
    definitions::each_module_before(|module| {
        is_defined_before |= CORE.iter().any(|name| module.defines(*name));
    });
    if is_defined_before {
        definitions::find_first_definitions();
    }
    crate::sys::set_errno(saved);
    IS_INTERPOSED.store(is_defined_before, Ordering::Relaxed);
    is_defined_before
}

/// Makes the choice unless it has been made.
pub fn ensure_chosen() {
    // Does not call `free(null)`: until the loader has initialised thread-local storage, which it
    // does after it has called the resolvers of indirect functions, jemalloc mistakes null for one
    // of its objects.
    if NEXT.free.load(Ordering::Relaxed) == undecided::free as *mut c_void {
        crate::ample_stack::call(choose);
    }
}

/// Returns the allocator's `free`, for calls with any stack.
pub fn free_on_any_stack() -> *mut c_void {
    if is_system() {
        NEXT.free.load(Ordering::Relaxed)
    } else {
        aligned::free as *mut c_void
    }
}

/// Returns true if the program keeps its own allocator.
pub fn is_system() -> bool {
    CHOSEN_SYSTEM.load(Ordering::Relaxed)
}

/// Makes the choice, at the first allocation, while the process has one thread.
#[cold]
extern "C" fn choose() {
    IS_CHOOSING.store(true, Ordering::Relaxed);
    // SAFETY: jemalloc only reads this variable, and the process has one thread.
    unsafe { jemalloc::malloc_message = Some(discard_message) };
    if is_limited() {
        OPTIONS.store(
            LIMITED_MEMORY_OPTIONS.as_ptr().cast_mut(),
            Ordering::Relaxed,
        );
    }
    fit_to_pages();
    NEXT.use_jemalloc();
    let is_interposed = decide_interposed();
    if is_inactive() || decide_left_out() || is_interposed || wants_system() {
        CHOSEN_SYSTEM.store(true, Ordering::Relaxed);
        system::begin_lookup();
        NEXT.use_system();
        system::end_lookup();
    }
    if is_left_out() && is_system() && !musl::is_here() {
        disable_jemalloc();
    }
    if !is_system() {
        align_smallest();
    }
    IS_CHOOSING.store(false, Ordering::Relaxed);
}

/// Resource limit of the process, in bytes, below which unused memory is returned soon.
pub const LOW_LIMIT_BYTES: u64 = 4 << 30;

/// Returns true if the process may map so little that arenas, of megabytes each, would take much of
/// it.
fn is_limited() -> bool {
    least_limit() < LOW_LIMIT_BYTES
}

/// Returns the smaller of the limits of address space and of writable memory, in bytes.
fn least_limit() -> u64 {
    let saved = crate::sys::errno();
    let limit = crate::sys::limit(libc::RLIMIT_AS).min(crate::sys::limit(libc::RLIMIT_DATA));
    crate::sys::set_errno(saved);
    limit
}

/// Discards jemalloc's messages. By default it writes them, for example if a thread's cache gets no
/// memory, to descriptor 2, which may be any file of the program.
unsafe extern "C" fn discard_message(_: *mut c_void, _: *const c_char) {}

/// Determines the value of [`is_left_out`]: true if the environment excludes the process, if it has
/// too little memory, or if it calls its allocator by names that the agent does not replace.
fn decide_left_out() -> bool {
    let left_out = environment::leaves_us_out()
        || least_limit() < MIN_MEMORY_LIMIT
        || linked::is_called_by_own_names();
    LEFT_OUT.store(left_out, Ordering::Relaxed);
    left_out
}

/// Determines [`is_left_out`] again at start-up, for a process with a sanitizer. At its first
/// allocation the sanitizer may not be initialised, and reading a file by its functions would end
/// the program.
pub fn reconsider_left_out() {
    if is_inactive() {
        decide_left_out();
    }
}

/// Returns true if the environment requests the program's own allocator.
fn wants_system() -> bool {
    environment::any(|entry| entry == b"MEM_PROFILER_ALLOCATOR=system")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_as_large_as_the_build_was_told() {
        // SAFETY: a size that is not 0. The call initialises jemalloc, which fills its table; only
        // its initialisation writes it.
        let slab = unsafe {
            jemalloc::nallocx(1, 0);
            (&raw const jemalloc::FIRST_BIN.slab).read()
        };
        assert_eq!(slab, USUAL_PAGE << LG_LARGER_SLABS);
    }
}
