//! `dlopen`, `dlmopen`, `dlsym` and `dlvsym`, which may decide whose `malloc` and `free` a library
//! uses.
//!
//! A library that is loaded with `RTLD_DEEPBIND` finds the C library's allocator before ours, and
//! so do `dlsym` and `dlvsym` with the C library's own handle. Then one allocator would have to
//! free the other's objects. So the flag is dropped, and a lookup of the C library's `free` returns
//! ours: all use one allocator.
//!
//! Nothing is changed with musl or a sanitizer, or in programs that are not profiled.

use crate::arch::{answer_or_jump, find_and_jump, hidden_jump, jump_without};
use crate::backend;
use crate::c_library;
use crate::entry::{self, libc_names, offered};
use crate::musl;
use crate::sys::next_symbol;
use core::arch::naked_asm;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// Mask of the flags of `dlopen` that are passed on.
static KEPT_FLAGS: AtomicI32 = AtomicI32::new(!libc::RTLD_DEEPBIND);

/// The loader's functions. Until these are looked up, functions that look them up and jump there.
static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(first_dlopen as *mut c_void);
static DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(first_dlmopen as *mut c_void);
static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(first_dlsym as *mut c_void);
static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(first_dlvsym as *mut c_void);
/// Next definitions of `dlsym` and `dlvsym` (`RTLD_NEXT`), to which the program's calls are passed
/// on: another library may replace them. The agent itself calls the loader's.
static NEXT_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(first_next_dlsym as *mut c_void);
static NEXT_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(first_next_dlvsym as *mut c_void);

hidden_jump!("__wrap_dlsym", DLSYM, 0);

jump_without! {
    /// dlopen(3), without `RTLD_DEEPBIND`.
    dlopen(name: *const c_char, flags: c_int), second, KEPT_FLAGS, DLOPEN
}

jump_without! {
    /// dlmopen(3), without `RTLD_DEEPBIND` in the program's own namespace. Other namespaces have a
    /// C library of their own.
    dlmopen(space: c_long, name: *const c_char, flags: c_int), third, KEPT_FLAGS, DLMOPEN
}

answer_or_jump! {
    /// dlsym(3), with our allocator instead of the C library's.
    dlsym(handle: *mut c_void, name: *const c_char), answer
}

answer_or_jump! {
    /// dlvsym(3), with our allocator instead of the C library's, whatever the version.
    dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char), answer_for_version
}

find_and_jump!(first_dlopen, find_dlopen);
find_and_jump!(first_dlmopen, find_dlmopen);
find_and_jump!(first_dlsym, find_dlsym);
find_and_jump!(first_dlvsym, find_dlvsym);
find_and_jump!(first_next_dlsym, find_next_dlsym);
find_and_jump!(first_next_dlvsym, find_next_dlvsym);

/// Looks up all functions at start-up, so that nothing is looked up later.
pub fn find_next() {
    if backend::is_inactive() || backend::is_left_out() {
        KEPT_FLAGS.store(!0, Ordering::Relaxed);
    }
    find_next_dlsym();
    find_next_dlvsym();
    find_dlopen();
    find_dlmopen();
}

extern "C" fn find_dlopen() -> *mut c_void {
    store_if_found(&DLOPEN, next_symbol(c"dlopen"))
}

extern "C" fn find_dlmopen() -> *mut c_void {
    store_if_found(&DLMOPEN, next_symbol(c"dlmopen"))
}

/// Finds `dlsym` in the C library's own tables.
extern "C" fn find_dlsym() -> *mut c_void {
    find_in_tables(&DLSYM, c"dlsym")
}

/// Finds `dlvsym`, which musl lacks.
extern "C" fn find_dlvsym() -> *mut c_void {
    find_in_tables(&DLVSYM, c"dlvsym")
}

extern "C" fn find_next_dlsym() -> *mut c_void {
    store_if_found(&NEXT_DLSYM, next_definition_or(c"dlsym", find_dlsym()))
}

extern "C" fn find_next_dlvsym() -> *mut c_void {
    store_if_found(&NEXT_DLVSYM, next_definition_or(c"dlvsym", find_dlvsym()))
}

/// Returns the next definition of a loader function, or the loader's own if there is none.
fn next_definition_or(name: &CStr, loaders: *mut c_void) -> *mut c_void {
    let next = if loaders.is_null() {
        loaders
    } else {
        next_symbol(name)
    };
    if next.is_null() { loaders } else { next }
}

fn find_in_tables(slot: &AtomicPtr<c_void>, name: &'static CStr) -> *mut c_void {
    // Must come first: another library's constructor may be here before the first allocation.
    c_library::resolve();
    // `dlsym` may return a function that registers fork handlers, so ours are registered first.
    crate::atfork::register();
    let in_table = c_library::optional_function(name);
    let found = if in_table.is_null() {
        musl::function(name)
    } else {
        in_table
    };
    store_if_found(slot, found)
}

fn store_if_found(slot: &AtomicPtr<c_void>, found: *mut c_void) -> *mut c_void {
    if !found.is_null() {
        slot.store(found, Ordering::Relaxed);
    }
    found
}

/// Result of a lookup, or the function that finds it.
#[repr(C)]
struct LookupResult {
    /// Function of the agent's; null: `next` answers.
    ours: *mut c_void,
    /// Function that the call is passed on to. It identifies its caller by the return address.
    next: *mut c_void,
}

/// Answers `dlsym`.
///
/// # Safety
/// `handle` and `name` are valid arguments of `dlsym`.
unsafe extern "C" fn answer(handle: *mut c_void, name: *const c_char) -> LookupResult {
    LookupResult {
        // SAFETY: the caller's arguments.
        ours: unsafe { our_result(handle, name) },
        next: NEXT_DLSYM.load(Ordering::Relaxed),
    }
}

/// Answers `dlvsym`, as [`our_result`] does for `dlsym`. The loader never finds our functions, not
/// even for `RTLD_DEFAULT`, because they have no version. So where it finds the C library's
/// function, ours is returned, whatever the version. For `RTLD_NEXT`, whose result depends on the
/// caller, the call goes on to `dlsym`, which finds ours if they come next: otherwise, a program
/// that wraps `malloc` would get objects of two allocators.
///
/// # Safety
/// The arguments are valid ones of `dlvsym`.
unsafe extern "C" fn answer_for_version(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> LookupResult {
    let loaders = LookupResult {
        ours: null_mut(),
        next: NEXT_DLVSYM.load(Ordering::Relaxed),
    };
    let is_passed_on = backend::is_inactive() || backend::is_left_out();
    if name.is_null() || version.is_null() || is_passed_on {
        return loaders;
    }
    // SAFETY: the caller of `dlvsym` passes a terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(ours) = our_function(name) else {
        return loaders;
    };
    type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
    // SAFETY: the function is the loader's, or one of ours that finds and calls it, and has this
    // type. The arguments are the program's, and the handle `RTLD_NEXT` is always valid.
    let (found, next) = unsafe {
        let real: Dlvsym = core::mem::transmute(DLVSYM.load(Ordering::Relaxed));
        let found = real(handle, name.as_ptr(), version);
        (found, real(libc::RTLD_NEXT, name.as_ptr(), version))
    };
    if found.is_null() || found != next {
        return loaders;
    }
    if handle == libc::RTLD_NEXT {
        let next = NEXT_DLSYM.load(Ordering::Relaxed);
        return LookupResult { next, ..loaders };
    }
    LookupResult { ours, ..loaders }
}

/// Returns the agent's answer to `dlsym`, or null for the loader's own answer. The agent answers if
/// the loader would return the function that ours replaces, and only for a library's handle (the
/// results for the two pseudo-handles depend on the caller); or if nobody else has a function that
/// the agent offers.
///
/// # Safety
/// `handle` and `name` are valid arguments of `dlsym`.
unsafe extern "C" fn our_result(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let is_passed_on = backend::is_inactive() || backend::is_left_out();
    if handle == libc::RTLD_NEXT || name.is_null() || is_passed_on {
        return null_mut();
    }
    // SAFETY: the caller of `dlsym` passes a terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    let is_default = handle == libc::RTLD_DEFAULT;
    if let Some(hidden) = offered::dlsym_result(name) {
        let ours = dlsym as *mut c_void;
        // Of all handles, the agent answers only for those with which `dlsym` finds the agent: the
        // program's.
        // SAFETY: a valid handle, passed on to the loader.
        let has_ours = is_default || unsafe { call_loader(handle, c"dlsym") } == ours;
        return if has_ours { hidden } else { null_mut() };
    }
    if is_default {
        return null_mut();
    }
    let Some(ours) = our_function(name) else {
        return null_mut();
    };
    // SAFETY: a valid handle, passed on to the loader.
    let found = unsafe { call_loader(handle, name) };
    if !found.is_null() && found == next_symbol(name) {
        ours
    } else {
        null_mut()
    }
}

/// Returns the agent's function for a name of the C library's [allocation
/// functions](allocation_functions).
fn our_function(name: &CStr) -> Option<*mut c_void> {
    let mut functions = allocation_functions().into_iter();
    functions.find_map(|(known, ours)| (known == name).then_some(ours))
}

/// Calls the loader's `dlsym`.
///
/// # Safety
/// `handle` is a valid handle of `dlsym`.
unsafe fn call_loader(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let real = DLSYM.load(Ordering::Relaxed);
    // SAFETY: the loader's function of this type, or one of ours that finds and calls it.
    let real: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void =
        unsafe { core::mem::transmute(real) };
    // SAFETY: a valid handle and a terminated name. The result does not depend on the caller.
    unsafe { real(handle, name.as_ptr()) }
}

/// Returns the names of the C library's functions that return or take objects, each with ours.
fn allocation_functions() -> [(&'static CStr, *mut c_void); 21] {
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
