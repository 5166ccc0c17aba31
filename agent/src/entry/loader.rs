//! The loader's calls that decide whose `malloc` and `free` a library gets.
//!
//! A library that is loaded with `RTLD_DEEPBIND` finds the C library's allocator before ours, and
//! `dlsym` on the C library's own handle gives that as well. Either way, one allocator would have
//! to free the other's objects. So the flag is dropped, and a lookup of the C library's `free`
//! returns ours: all then use one allocator.
//!
//! Where the agent stands aside, and in programs that are not to be profiled, nothing is changed.

use crate::arch::{answer_or_jump, find_and_jump, jump_without};
use crate::backend;
use crate::c_library;
use crate::entry::{self, libc_names, offered};
use crate::musl;
use crate::sys::next_symbol;
use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The flags of `dlopen` that are passed on.
static KEPT: AtomicI32 = AtomicI32::new(!libc::RTLD_DEEPBIND);

/// The loader's functions, or until they are looked up what does that.
static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(first_dlopen as *mut c_void);
static DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(first_dlmopen as *mut c_void);
static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(first_dlsym as *mut c_void);

jump_without! {
    /// dlopen(3), except for `RTLD_DEEPBIND`.
    dlopen(name: *const c_char, flags: c_int), second, KEPT, DLOPEN
}

jump_without! {
    /// dlmopen(3), likewise in the program's own namespace. Others have a C library of their
    /// own.
    dlmopen(space: c_long, name: *const c_char, flags: c_int), third, KEPT, DLMOPEN
}

answer_or_jump! {
    /// dlsym(3), with our allocator in the place of the C library's.
    dlsym(handle: *mut c_void, name: *const c_char), ours_for, DLSYM
}

find_and_jump!(first_dlopen, find_dlopen);
find_and_jump!(first_dlmopen, find_dlmopen);
find_and_jump!(first_dlsym, find_dlsym);

/// Finds them all. At start-up, so that later nothing is looked up.
pub fn find_next() {
    if backend::stands_aside() || backend::is_left_out() {
        KEPT.store(!0, Ordering::Relaxed);
    }
    find_dlsym();
    find_dlopen();
    find_dlmopen();
}

extern "C" fn find_dlopen() -> *mut c_void {
    keep(&DLOPEN, next_symbol(c"dlopen"))
}

extern "C" fn find_dlmopen() -> *mut c_void {
    keep(&DLMOPEN, next_symbol(c"dlmopen"))
}

/// The version that `dlsym` had when glibc first ran on this machine. Every later glibc has it.
const DLSYM_VERSION: &CStr = if cfg!(target_arch = "aarch64") {
    c"GLIBC_2.17"
} else {
    c"GLIBC_2.2.5"
};

/// In the C library's own tables; if they are not known by `dlvsym`, which is not ours.
extern "C" fn find_dlsym() -> *mut c_void {
    // It may be asked for a function that registers fork handlers without ours.
    crate::atfork::register();
    let found = c_library::looked_up(c"dlsym");
    if !found.is_null() {
        return keep(&DLSYM, found);
    }
    let (name, version) = (c"dlsym", DLSYM_VERSION.as_ptr());
    let found = match musl::dlvsym() {
        // SAFETY: both names end in a zero byte, and `dlvsym` keeps neither.
        Some(dlvsym) => unsafe { dlvsym(libc::RTLD_NEXT, name.as_ptr(), version) },
        None => musl::function(name),
    };
    keep(&DLSYM, found)
}

fn keep(slot: &AtomicPtr<c_void>, found: *mut c_void) -> *mut c_void {
    if !found.is_null() {
        slot.store(found, Ordering::Relaxed);
    }
    found
}

/// The answer of `dlsym`, or null: the loader's own. Ours only where that would be
/// the function that ours stands before, and only for a library's handle, since the other two
/// depend on who calls; or where nobody has a function that the agent offers.
unsafe extern "C" fn ours_for(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let is_passed_on = backend::stands_aside() || backend::is_left_out();
    if handle == libc::RTLD_NEXT || name.is_null() || is_passed_on {
        return null_mut();
    }
    // SAFETY: the caller of `dlsym` gives a terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    let is_default = handle == libc::RTLD_DEFAULT;
    if let Some(hidden) = offered::looked_up(name) {
        let own = dlsym as *mut c_void;
        // The search finds the agent's functions: it is the program's.
        // SAFETY: the caller's handle.
        let has_ours = is_default || unsafe { in_loader(handle, c"dlsym") } == own;
        return if has_ours { hidden } else { null_mut() };
    }
    let mut family = family().into_iter();
    let Some((_, own)) = family.find(|(known, _)| *known == name) else {
        return null_mut();
    };
    let found = if is_default {
        null_mut()
    } else {
        // SAFETY: the caller's handle.
        unsafe { in_loader(handle, name) }
    };
    if !found.is_null() && found == next_symbol(name) {
        own
    } else {
        null_mut()
    }
}

/// Calls the loader's `dlsym`.
///
/// # Safety
/// The handle is one of a library that is loaded.
unsafe fn in_loader(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let real = DLSYM.load(Ordering::Relaxed);
    // SAFETY: the loader's function of this type, or one that finds and calls it.
    let real: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { core::mem::transmute(real) };
    // SAFETY: the caller's handle; that we are who calls does not matter.
    unsafe { real(handle, name.as_ptr()) }
}

/// The C library's names that hand out objects or take them.
fn family() -> [(&'static CStr, *mut c_void); 21] {
    [
        (c"malloc", entry::malloc as *mut c_void),
        (c"free", entry::free as *mut c_void),
        (c"calloc", entry::calloc as *mut c_void),
        (c"realloc", entry::realloc as *mut c_void),
        (c"reallocarray", entry::reallocarray as *mut c_void),
        (c"posix_memalign", entry::posix_memalign as *mut c_void),
        (c"aligned_alloc", entry::aligned_alloc as *mut c_void),
        (c"memalign", entry::memalign as *mut c_void),
        (c"valloc", entry::valloc as *mut c_void),
        (c"pvalloc", entry::pvalloc as *mut c_void),
        (
            c"malloc_usable_size",
            entry::malloc_usable_size as *mut c_void,
        ),
        (c"free_sized", entry::free_sized as *mut c_void),
        (
            c"free_aligned_sized",
            entry::free_aligned_sized as *mut c_void,
        ),
        (c"cfree", entry::cfree as *mut c_void),
        (c"__libc_malloc", libc_names::__libc_malloc as *mut c_void),
        (c"__libc_free", libc_names::__libc_free as *mut c_void),
        (c"__libc_calloc", libc_names::__libc_calloc as *mut c_void),
        (c"__libc_realloc", libc_names::__libc_realloc as *mut c_void),
        (
            c"__libc_memalign",
            libc_names::__libc_memalign as *mut c_void,
        ),
        (c"__libc_valloc", libc_names::__libc_valloc as *mut c_void),
        (c"__libc_pvalloc", libc_names::__libc_pvalloc as *mut c_void),
    ]
}
