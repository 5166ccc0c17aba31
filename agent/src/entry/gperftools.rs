//! gperftools' leak checker for programs that call it: `HeapLeakChecker` and `HeapCleaner` of
//! `gperftools/heap-checker.h` (2.10 to 2.16), with the symbols and the layout that a program
//! compiled with that header uses.
//!
//! Like gperftools', it does nothing unless `HEAPCHECK` is set or the controller started the
//! program with a leak check. Unlike gperftools', it never terminates the program for misuse.
//!
//! If the program keeps its own allocator, calls are passed on to that, if it has these functions.

use crate::checks::{self, Style, WHOLE_PROGRAM};
use crate::{arch, backend, exemptions, exit, own, scratch, sys};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::size_of;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicIsize, AtomicPtr, Ordering};

/// `HeapLeakChecker`, with the layout of its header. Our own data are in the mapping that `start`
/// points to.
#[repr(C)]
pub struct Checker {
    lock: *mut c_void,
    /// Name and losses before the check began; null if it checks nothing.
    start: *mut Baseline,
    start_snapshot: *mut c_void,
    has_checked: bool,
    bytes: isize,
    objects: isize,
    keeps_profiles: bool,
}

impl Checker {
    /// Checker that checks nothing.
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

const _: () = assert!(size_of::<Checker>() == 56, "size that callers allocate");

/// Head of a mapping, followed by the name and the losses. Sizes in bytes.
#[repr(C)]
struct Baseline {
    /// Size of the mapping.
    bytes: usize,
    /// Size of the name with its terminating zero.
    name: usize,
    /// Size of the losses.
    losses: usize,
}

/// Checker of the whole program.
struct Global(Checker);
// SAFETY: never written: all functions recognise it by its address.
unsafe impl Sync for Global {}
static GLOBAL: Global = Global(Checker::NEW);
/// Bytes that its last check found; -1 before the first check.
static GLOBAL_BYTES: AtomicIsize = AtomicIsize::new(-1);
/// Objects that its last check found; -1 before the first check.
static GLOBAL_OBJECTS: AtomicIsize = AtomicIsize::new(-1);

fn is_global(checker: *const Checker) -> bool {
    checker == &raw const GLOBAL.0
}

/// Returns true if calls are passed on to another library. A sanitizer may call before the first
/// allocation, which decides whose allocator is used.
pub fn is_passed_on() -> bool {
    backend::is_system() || backend::is_inactive()
}

/// Defines functions: the body runs unless the call is passed on to another library. `silent` is
/// the result if no other library has the function.
macro_rules! exports {
    ($($(#[$doc:meta])* $symbol:literal
        fn $name:ident($($arg:ident: $type:ty),*) -> $out:ty
        $body:block else $silent:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// See the C++ function.
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $out {
            if $crate::entry::gperftools::is_passed_on() {
                static NEXT: core::sync::atomic::AtomicPtr<core::ffi::c_void> =
                    core::sync::atomic::AtomicPtr::new(core::ptr::null_mut());
                return match $crate::entry::gperftools::next_definition(&NEXT, $symbol) {
                    // SAFETY: the symbol names a function of this type, which gets the program's
                    // arguments unchanged.
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
    /// `HeapLeakChecker::HeapLeakChecker(const char*)`: stores what is lost already.
    "_ZN15HeapLeakCheckerC1EPKc"
    fn create(this: *mut Checker, name: *const c_char) -> () {
        // SAFETY: the program passes memory for a checker, and null or a terminated string.
        unsafe { begin(this, name) }
    } else {
        // SAFETY: the program passes memory for a checker.
        unsafe { this.write(Checker::NEW) }
    }
    /// `HeapLeakChecker::~HeapLeakChecker()`.
    "_ZN15HeapLeakCheckerD1Ev"
    fn destroy(this: *mut Checker) -> () {
        // SAFETY: a checker that `create` initialised.
        unsafe { end(this) }
    } else {}
    /// `HeapLeakChecker::DoNoLeaks(ShouldSymbolize)`, called by `NoLeaks`, `SameHeap`,
    /// `QuickNoLeaks` and others: returns true if nothing was lost since the checker was created.
    "_ZN15HeapLeakChecker9DoNoLeaksENS_15ShouldSymbolizeE"
    fn has_no_leaks(this: *mut Checker, _symbolize: c_int) -> bool {
        // SAFETY: a checker that `create` initialised, or the global one.
        unsafe { has_no_new_leaks(this) }
    } else { true }
    /// `HeapLeakChecker::BytesLeaked() const`; -1 before a check.
    "_ZNK15HeapLeakChecker11BytesLeakedEv"
    fn bytes_leaked(this: *const Checker) -> isize {
        // SAFETY: a checker that `create` initialised, or the global one.
        unsafe { last_result(this, &GLOBAL_BYTES, |checker| checker.bytes) }
    } else { -1 }
    /// `HeapLeakChecker::ObjectsLeaked() const`; -1 before a check.
    "_ZNK15HeapLeakChecker13ObjectsLeakedEv"
    fn objects_leaked(this: *const Checker) -> isize {
        // SAFETY: a checker that `create` initialised, or the global one.
        unsafe { last_result(this, &GLOBAL_OBJECTS, |checker| checker.objects) }
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
        is_clean()
    } else { true }
    /// `HeapLeakChecker::CancelGlobalCheck()`: no check at exit.
    "_ZN15HeapLeakChecker17CancelGlobalCheckEv"
    fn cancel_global_check() -> () {
        checks::cancel();
        exit::cancel_check();
    } else {}
    /// `HeapLeakChecker::DoIgnoreObject(const void*)`: the object, and everything that only it
    /// points to, is not a leak.
    "_ZN15HeapLeakChecker14DoIgnoreObjectEPKv"
    fn ignore_object(object: *const c_void) -> () {
        ignore(object)
    } else {}
    /// `HeapLeakChecker::UnIgnoreObject(const void*)`.
    "_ZN15HeapLeakChecker14UnIgnoreObjectEPKv"
    fn stop_ignoring_object(object: *const c_void) -> () {
        exemptions::remove_object(object.addr() as u64)
    } else {}
    /// `HeapLeakChecker::Disabler::Disabler()`: objects that this thread allocates from now on are
    /// not leaks.
    "_ZN15HeapLeakChecker8DisablerC1Ev"
    fn disable(_this: *mut c_void) -> () {
        change_ignoring(1)
    } else {}
    /// `HeapLeakChecker::Disabler::~Disabler()`.
    "_ZN15HeapLeakChecker8DisablerD1Ev"
    fn enable(_this: *mut c_void) -> () {
        change_ignoring(-1)
    } else {}
    /// `HeapCleaner::HeapCleaner(void (*)())`: adds a function that is called before the whole
    /// program is checked.
    "_ZN11HeapCleanerC1EPFvvE"
    fn add_cleaner(_this: *mut c_void, function: extern "C" fn()) -> () {
        checks::add_cleaner(function)
    } else {}
    /// Called by tcmalloc at start-up if a program is linked with it. Its own checker would find
    /// that it is not the allocator, and abort the program.
    "_Z33HeapLeakChecker_InternalInitStartv"
    fn start_of_tcmallocs() -> () {} else {}
    /// Called by tcmalloc before other constructors.
    "_Z34HeapLeakChecker_BeforeConstructorsv"
    fn before_constructors_of_tcmallocs() -> () {} else {}
    /// Called by tcmalloc after other destructors.
    "_Z32HeapLeakChecker_AfterDestructorsv"
    fn after_destructors_of_tcmallocs() -> () {} else {}
    /// `HeapCleaner::RunHeapCleanups()`.
    "_ZN11HeapCleaner15RunHeapCleanupsEv"
    fn run_cleaners() -> () {
        if checks::is_active() {
            checks::run_cleaners();
        }
    } else {}
}

/// Defines the variants of constructors and destructors for base-class subobjects (C2, D2).
macro_rules! for_parts {
    ($(fn $other:ident($($arg:ident: $type:ty),*) is $name:ident;)*) => {$(
        /// Variant for a base-class subobject.
        ///
        /// # Safety
        /// See the C++ function.
        pub unsafe extern "C" fn $other($($arg: $type),*) {
            // SAFETY: the arguments of the C++ function, of which this is a variant.
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

/// Returns the next definition of this name (`RTLD_NEXT`), or `None`. Looked up once.
pub fn next_definition(cached: &AtomicPtr<c_void>, symbol: &str) -> Option<*mut c_void> {
    const NOWHERE: *mut c_void = core::ptr::without_provenance_mut(1);
    let mut function = cached.load(Ordering::Relaxed);
    if function.is_null() {
        let mut name = sys::Text::<128>::new();
        name.push(symbol.as_bytes());
        let found = sys::next_symbol(name.as_c_str().unwrap_or_default());
        function = if found.is_null() { NOWHERE } else { found };
        cached.store(function, Ordering::Relaxed);
    }
    (function != NOWHERE).then_some(function)
}

/// Adds to the thread's count of nested requests to ignore leaks; 0: leaks are not ignored.
pub fn change_ignoring(by: i16) {
    // SAFETY: one word of the calling thread's own state, which no signal handler sees half
    // written.
    unsafe {
        let local = arch::local();
        (*local).ignoring = (*local).ignoring.saturating_add_signed(by);
    }
}

/// Exempts an object from leak reports. If it cannot be recorded, it may be reported.
pub fn ignore(object: *const c_void) {
    if !object.is_null() {
        let _ = exemptions::add_object(object.addr() as u64);
    }
}

/// Returns true if the call of one of these functions may check for leaks.
extern "C" fn may_check() -> bool {
    checks::is_active()
}

scratch::on_clear_stack!(
    /// Entry of [`create`].
    create_on_clear_stack,
    create,
    if may_check
);
scratch::on_clear_stack!(
    /// Entry of [`create_part`].
    create_part_on_clear_stack,
    create_part,
    if may_check
);
scratch::on_clear_stack!(
    /// Entry of [`has_no_leaks`].
    has_no_leaks_on_clear_stack,
    has_no_leaks,
    if may_check
);
scratch::on_clear_stack!(
    /// Entry of [`has_no_global_leaks`].
    has_no_global_leaks_on_clear_stack,
    has_no_global_leaks,
    if may_check
);

/// Initialises a checker with what is lost already.
///
/// # Safety
/// `this` is memory for a checker; `name` is null or a terminated string.
#[inline(never)]
unsafe fn begin(this: *mut Checker, name: *const c_char) {
    // SAFETY: memory for a checker.
    unsafe { this.write(Checker::NEW) };
    if !checks::is_active() || name.is_null() {
        return;
    }
    // SAFETY: a terminated string.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(mut found) = checks::check(name, Style::Silent, b"") else {
        return;
    };
    let name = name.to_bytes_with_nul();
    let losses = found.losses();
    let bytes = size_of::<Baseline>() + name.len() + losses.len();
    let start: *mut Baseline = own::map(bytes).cast();
    if start.is_null() {
        return;
    }
    // SAFETY: a new mapping with room for all three, and an initialised checker.
    unsafe {
        start.write(Baseline {
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

/// Releases the memory of a checker.
///
/// # Safety
/// `this` is a checker that [`begin`] initialised, or the global one.
unsafe fn end(this: *mut Checker) {
    if is_global(this) {
        return;
    }
    // SAFETY: an initialised checker, which alone has the mapping.
    unsafe {
        let start = core::mem::replace(&mut (*this).start, null_mut());
        if !start.is_null() {
            own::unmap(start.cast(), (*start).bytes);
        }
    }
}

/// Checks for leaks since the checker was initialised. Returns true if there are none.
///
/// # Safety
/// `this` is a checker that [`begin`] initialised, or the global one.
#[inline(never)]
unsafe fn has_no_new_leaks(this: *mut Checker) -> bool {
    if is_global(this) {
        return is_clean();
    }
    // SAFETY: an initialised checker; `begin` has filled its mapping.
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

/// Checks the whole program. Returns true if there are no leaks.
#[inline(never)]
fn is_clean() -> bool {
    if !checks::is_whole() {
        return true;
    }
    checks::run_cleaners();
    let Some(found) = checks::check(WHOLE_PROGRAM, Style::Gperftools, b"") else {
        return true;
    };
    GLOBAL_BYTES.store(found.bytes as isize, Ordering::Relaxed);
    GLOBAL_OBJECTS.store(found.objects as isize, Ordering::Relaxed);
    found.objects == 0
}

/// Returns a number that a check has found; -1 before the first check.
///
/// # Safety
/// `checker` is a checker that [`begin`] initialised, or the global one.
unsafe fn last_result(
    checker: *const Checker,
    global: &AtomicIsize,
    number: impl Fn(&Checker) -> isize,
) -> isize {
    if is_global(checker) {
        return global.load(Ordering::Relaxed);
    }
    // SAFETY: an initialised checker.
    let checker = unsafe { &*checker };
    if checker.has_checked {
        number(checker)
    } else {
        -1
    }
}
