//! gperftools' leak checker for programs that call it: `HeapLeakChecker` and `HeapCleaner` of
//! `gperftools/heap-checker.h` (2.10 to 2.16), under the names and with the layout that a program
//! compiled with that header uses.
//!
//! As there, all of it does nothing unless `HEAPCHECK` is set or the controller started the program
//! with a leak check. It differs in that no misuse terminates the program.
//!
//! If the program keeps its own allocator, calls are passed to that, if it has these functions.

use crate::checks::{self, Style, WHOLE_PROGRAM};
use crate::{arch, backend, exemptions, exit, own, scratch, sys};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicIsize, AtomicPtr, Ordering};

/// A `HeapLeakChecker`, as its header lays it out. What is ours in it is in the two pointers.
#[repr(C)]
pub struct Checker {
    lock: *mut c_void,
    /// Its name and what was lost before it; null: it checks nothing.
    start: *mut Start,
    start_snapshot: *mut c_void,
    has_checked: bool,
    bytes: isize,
    objects: isize,
    keeps_profiles: bool,
}

impl Checker {
    /// One that checks nothing.
    const NEW: Self = Self {
        lock: null_mut(),
        start: null_mut(),
        start_snapshot: null_mut(),
        has_checked: false,
        bytes: 0,
        objects: 0,
        keeps_profiles: false,
    };
}

const _: () = assert!(size_of::<Checker>() == 56, "what its users set aside");

/// A mapping of its own, which begins so; the name and the losses follow.
#[repr(C)]
struct Start {
    bytes: usize,
    name: usize,
    losses: usize,
}

/// The checker of the whole program, which has no name of its own.
struct Global(Checker);
// SAFETY: never written; its functions see that it is this one.
unsafe impl Sync for Global {}
static GLOBAL: Global = Global(Checker::NEW);
/// What its last check found; -1: none was made.
static GLOBAL_BYTES: AtomicIsize = AtomicIsize::new(-1);
static GLOBAL_OBJECTS: AtomicIsize = AtomicIsize::new(-1);

fn is_global(checker: *const Checker) -> bool {
    checker == &raw const GLOBAL.0
}

/// Whether these functions are another library's to answer. A sanitizer may call before the first
/// allocation has decided whose allocator it is.
pub fn is_others() -> bool {
    backend::is_system() || backend::stands_aside()
}

/// Defines a function, with what it does where it is not another library's. `silent` is its result
/// where nobody else has it.
macro_rules! exports {
    ($($(#[$doc:meta])* $symbol:literal
        fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty
        $body:block else $silent:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// That of the C++ function.
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $out {
            if $crate::entry::gperftools::is_others() {
                static NEXT: core::sync::atomic::AtomicPtr<core::ffi::c_void> =
                    core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());
                return match $crate::entry::gperftools::next(&NEXT, $symbol) {
                    // SAFETY: the symbol names a function of this type, and the arguments are the
                    // caller's.
                    Some(function) => unsafe {
                        let function: unsafe extern "C" fn($($type),*) -> $out =
                            core::mem::transmute(function);
                        function($($arg),*)
                    },
                    None => $silent,
                };
            }
            $body
        }
    )*};
}

pub(super) use exports;

exports! {
    /// `HeapLeakChecker::HeapLeakChecker(const char*)`: remembers what is lost already.
    "_ZN15HeapLeakCheckerC1EPKc"
    fn create(this: *mut Checker, name: *const c_char) -> () {
        clear_stack();
        // SAFETY: the caller's memory for a checker, and its name.
        unsafe { begin(this, name) }
    } else {
        // SAFETY: the caller's memory for a checker.
        unsafe { this.write(Checker::NEW) }
    }
    /// `HeapLeakChecker::~HeapLeakChecker()`.
    "_ZN15HeapLeakCheckerD1Ev"
    fn destroy(this: *mut Checker) -> () {
        // SAFETY: a checker that `create` initialised.
        unsafe { end(this) }
    } else {}
    /// `HeapLeakChecker::DoNoLeaks(ShouldSymbolize)`, which all of `NoLeaks`, `SameHeap`,
    /// `QuickNoLeaks` and so on call: whether nothing was lost since the checker was made.
    "_ZN15HeapLeakChecker9DoNoLeaksENS_15ShouldSymbolizeE"
    fn has_no_leaks(this: *mut Checker, _symbolize: c_int) -> bool {
        clear_stack();
        // SAFETY: a checker that `create` initialised, or the global one.
        unsafe { look(this) }
    } else { true }
    /// `HeapLeakChecker::BytesLeaked() const`; -1 before a check.
    "_ZNK15HeapLeakChecker11BytesLeakedEv"
    fn bytes_leaked(this: *const Checker) -> isize {
        // SAFETY: a checker that `create` initialised, or the global one.
        unsafe { found(this, &GLOBAL_BYTES, |checker| checker.bytes) }
    } else { -1 }
    /// `HeapLeakChecker::ObjectsLeaked() const`; -1 before a check.
    "_ZNK15HeapLeakChecker13ObjectsLeakedEv"
    fn objects_leaked(this: *const Checker) -> isize {
        // SAFETY: a checker that `create` initialised, or the global one.
        unsafe { found(this, &GLOBAL_OBJECTS, |checker| checker.objects) }
    } else { -1 }
    /// `HeapLeakChecker::IsActive()`.
    "_ZN15HeapLeakChecker8IsActiveEv"
    fn is_active() -> bool { checks::is_active() } else { false }
    /// `HeapLeakChecker::GlobalChecker()`: null if the whole program is not checked.
    "_ZN15HeapLeakChecker13GlobalCheckerEv"
    fn global_checker() -> *const Checker {
        if checks::is_whole() { &raw const GLOBAL.0 } else { null() }
    } else { null() }
    /// `HeapLeakChecker::NoGlobalLeaks()`: checks the whole program now.
    "_ZN15HeapLeakChecker13NoGlobalLeaksEv"
    fn has_no_global_leaks() -> bool {
        clear_stack();
        is_clean()
    } else { true }
    /// `HeapLeakChecker::CancelGlobalCheck()`: no check at exit.
    "_ZN15HeapLeakChecker17CancelGlobalCheckEv"
    fn cancel_global_check() -> () {
        checks::cancel();
        exit::let_exit_unchecked();
    } else {}
    /// `HeapLeakChecker::DoIgnoreObject(const void*)`: the object, and what only it holds, is not a
    /// leak.
    "_ZN15HeapLeakChecker14DoIgnoreObjectEPKv"
    fn ignore_object(object: *const c_void) -> () {
        ignore(object)
    } else {}
    /// `HeapLeakChecker::UnIgnoreObject(const void*)`.
    "_ZN15HeapLeakChecker14UnIgnoreObjectEPKv"
    fn stop_ignoring_object(object: *const c_void) -> () {
        exemptions::remove_object(object.addr() as u64)
    } else {}
    /// `HeapLeakChecker::Disabler::Disabler()`: what this thread allocates from now on is not a
    /// leak.
    "_ZN15HeapLeakChecker8DisablerC1Ev"
    fn disable(_this: *mut c_void) -> () {
        change_ignoring(1)
    } else {}
    /// `HeapLeakChecker::Disabler::~Disabler()`.
    "_ZN15HeapLeakChecker8DisablerD1Ev"
    fn enable(_this: *mut c_void) -> () {
        change_ignoring(-1)
    } else {}
    /// `HeapCleaner::HeapCleaner(void (*)())`: a function to call before the whole program is
    /// checked.
    "_ZN11HeapCleanerC1EPFvvE"
    fn add_cleaner(_this: *mut c_void, function: extern "C" fn()) -> () {
        checks::add_cleaner(function)
    } else {}
    /// What tcmalloc, where a program is linked with it, calls at start-up: its own checker would
    /// find that it is not the allocator, and abort the program.
    "_Z33HeapLeakChecker_InternalInitStartv"
    fn start_of_tcmallocs() -> () {} else {}
    /// Likewise before other constructors.
    "_Z34HeapLeakChecker_BeforeConstructorsv"
    fn before_constructors_of_tcmallocs() -> () {} else {}
    /// Likewise after other destructors.
    "_Z32HeapLeakChecker_AfterDestructorsv"
    fn after_destructors_of_tcmallocs() -> () {} else {}
    /// `HeapCleaner::RunHeapCleanups()`.
    "_ZN11HeapCleaner15RunHeapCleanupsEv"
    fn run_cleaners() -> () {
        if checks::is_active() {
            checks::clean();
        }
    } else {}
}

/// Defines a constructor or destructor once more, for objects that are part of others.
macro_rules! for_parts {
    ($(fn $other:ident($($arg:ident: $type:ty),*) is $name:ident;)*) => {$(
        /// The same for a part of an object.
        ///
        /// # Safety
        /// That of the C++ function.
        pub unsafe extern "C" fn $other($($arg: $type),*) {
            // SAFETY: the caller's.
            unsafe { $name($($arg),*) }
        }
    )*};
}

for_parts! {
    fn create_part(this: *mut Checker, name: *const c_char) is create;
    fn destroy_part(this: *mut Checker) is destroy;
    fn disable_part(this: *mut c_void) is disable;
    fn enable_part(this: *mut c_void) is enable;
    fn add_cleaner_part(this: *mut c_void, function: extern "C" fn()) is add_cleaner;
}

/// The next library's function of this name, looked up once.
pub fn next(known: &AtomicPtr<c_void>, symbol: &str) -> Option<*mut c_void> {
    const NOWHERE: *mut c_void = core::ptr::without_provenance_mut(1);
    let mut function = known.load(Ordering::Relaxed);
    if function.is_null() {
        let mut name = sys::Text::<128>::new();
        name.push(symbol.as_bytes());
        let found = sys::next_symbol(name.as_c_str().unwrap_or_default());
        function = if found.is_null() { NOWHERE } else { found };
        known.store(function, Ordering::Relaxed);
    }
    (function != NOWHERE).then_some(function)
}

/// From now on what the thread allocates is not a leak, or is again; as often as one came more
/// often than the other.
pub fn change_ignoring(by: i16) {
    // SAFETY: the calling thread's own state; one word, which no signal handler reads halfway.
    unsafe {
        let local = arch::local();
        (*local).ignoring = (*local).ignoring.saturating_add_signed(by);
    }
}

/// Takes an object for no leak. Where that cannot be noted it may be reported.
pub fn ignore(object: *const c_void) {
    if !object.is_null() {
        let _ = exemptions::add_object(object.addr() as u64);
    }
}

/// Clears the stack below the exported function, if a check may follow. What makes the check has
/// frames of its own, there.
#[inline(always)]
fn clear_stack() {
    if checks::is_active() {
        scratch::clear_stack();
    }
}

/// # Safety
/// Memory for a checker; a terminated name.
#[inline(never)]
unsafe fn begin(this: *mut Checker, name: *const c_char) {
    // SAFETY: the caller's.
    unsafe { this.write(Checker::NEW) };
    if !checks::is_active() || name.is_null() {
        return;
    }
    // SAFETY: the caller's.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(mut found) = checks::check(name, Style::Silent, b"") else {
        return;
    };
    let (name, losses) = (name.to_bytes_with_nul(), found.losses());
    let bytes = size_of::<Start>() + name.len() + losses.len();
    let start: *mut Start = own::map(bytes).cast();
    if start.is_null() {
        return;
    }
    // SAFETY: a new mapping with room for all three, and the caller's checker.
    unsafe {
        start.write(Start {
            bytes,
            name: name.len(),
            losses: losses.len(),
        });
        let at = start.add(1).cast::<u8>();
        at.copy_from_nonoverlapping(name.as_ptr(), name.len());
        at.add(name.len())
            .copy_from_nonoverlapping(losses.as_ptr(), losses.len());
        (*this).start = start;
    }
}

/// # Safety
/// A checker that [`begin`] initialised.
unsafe fn end(this: *mut Checker) {
    if is_global(this) {
        return;
    }
    // SAFETY: the caller's checker; its mapping is nobody else's.
    unsafe {
        let start = core::mem::replace(&mut (*this).start, null_mut());
        if !start.is_null() {
            own::unmap(start.cast(), (*start).bytes);
        }
    }
}

/// # Safety
/// A checker that [`begin`] initialised, or the global one.
#[inline(never)]
unsafe fn look(this: *mut Checker) -> bool {
    if is_global(this) {
        return is_clean();
    }
    // SAFETY: the caller's checker, whose mapping `begin` filled.
    unsafe {
        let Some(start) = (*this).start.as_ref() else {
            return true;
        };
        let at = (*this).start.add(1).cast::<u8>();
        let name = core::slice::from_raw_parts(at, start.name);
        let losses = core::slice::from_raw_parts(at.add(start.name), start.losses);
        let name = CStr::from_bytes_with_nul(name).unwrap_or_default();
        let Some(found) = checks::check(name, Style::Gperftools, losses) else {
            return true;
        };
        (*this).has_checked = true;
        (*this).bytes = found.bytes as isize;
        (*this).objects = found.objects as isize;
        found.objects == 0
    }
}

/// Checks the whole program.
#[inline(never)]
fn is_clean() -> bool {
    if !checks::is_whole() {
        return true;
    }
    checks::clean();
    let Some(found) = checks::check(WHOLE_PROGRAM, Style::Gperftools, b"") else {
        return true;
    };
    GLOBAL_BYTES.store(found.bytes as isize, Ordering::Relaxed);
    GLOBAL_OBJECTS.store(found.objects as isize, Ordering::Relaxed);
    found.objects == 0
}

/// A number that a check has found; -1 before one.
///
/// # Safety
/// A checker that [`begin`] initialised, or the global one.
unsafe fn found(
    checker: *const Checker,
    global: &AtomicIsize,
    number: impl Fn(&Checker) -> isize,
) -> isize {
    if is_global(checker) {
        return global.load(Ordering::Relaxed);
    }
    // SAFETY: the caller's.
    let checker = unsafe { &*checker };
    if checker.has_checked {
        number(checker)
    } else {
        -1
    }
}
