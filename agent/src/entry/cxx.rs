//! C++'s `operator new` and `operator delete`, in all their forms (C++20 17.6.3).
//!
//! libstdc++'s operators call `malloc`, and would suffice. But an allocator library that the
//! program is linked with (tcmalloc, a shared jemalloc) brings its own operators, with another
//! heap. Our own operators also save a frame in every stack. If memory runs out, the C++ library's
//! operator is called instead, which calls the new-handler, and throws or returns null. It is
//! reached by a jump, so an exception meets no frame of ours.
//!
//! A program or library may define some of the forms itself. The C++ library's other forms then
//! call those (`delete(p, size)` calls `delete(p)`, `new[]` calls `new`), and objects may have
//! headers that only they understand. So our operators are used only if, without us, each form
//! would come from a C++ library, or from an allocator library whose `malloc` ours replaces as
//! well. If any other module defines a form, each of our operators jumps to the definition that
//! would be called without us, and its memory is sampled where it calls `malloc`.
//!
//! Forms that are not used are hidden from the loader ([`definitions::hide`]): a C program may
//! later load a library with operators of its own, or a C++ library, which the loader searches
//! after us.
//!
//! Each operator has a *slot*: a pointer to the function that it calls if no sample is due.

// Decision 13: `operator new` jumps to its next definition on failure.
use super::free_low;
use crate::arch::{jump_through, on_aligned_stack, with_registers_or_fail};
use crate::backend::{self, NEXT};
use crate::definitions::{self, FIRST_DEFINITIONS, Module, Name, next_definition};
use crate::{range, sample, session};
use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// True if each form jumps to what would be called without us, and samples nothing itself.
static PASSES_ON: AtomicBool = AtomicBool::new(false);
/// Bit set of the forms that no module after this one defines, in the order of `NAMES`.
static MISSING: AtomicU32 = AtomicU32::new(0);
/// True once the slots are filled.
static ARE_SLOTS_FILLED: AtomicBool = AtomicBool::new(false);

/// Operators of the C++ library; null if there is none.
static NEXT_NEW: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static NEXT_ALIGNED_NEW: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static NEXT_NOTHROW_NEW: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static NEXT_ALIGNED_NOTHROW_NEW: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

// Arguments of type `std::nothrow_t` have no contents, and nobody looks at them.
jump_through!(new_failed, NEXT_NEW);
jump_through!(aligned_new_failed, NEXT_ALIGNED_NEW);
jump_through!(nothrow_new_failed, NEXT_NOTHROW_NEW);
jump_through!(aligned_nothrow_new_failed, NEXT_ALIGNED_NOTHROW_NEW);
with_registers_or_fail!(sampled_new, sample::malloc, new_failed);
with_registers_or_fail!(sampled_aligned_new, sample::new_aligned, aligned_new_failed);
with_registers_or_fail!(sampled_nothrow_new, sample::malloc, nothrow_new_failed);
with_registers_or_fail!(
    sampled_aligned_nothrow_new,
    sample::new_aligned,
    aligned_nothrow_new_failed
);

/// Fills all slots at start-up: the loader may not be called later.
pub fn find_next() {
    fill_slots();
}

/// Returns the forms that are hidden, because they are not used.
pub fn hidden() -> impl Iterator<Item = Name<'static>> {
    // In a program that is not profiled, all symbols are hidden elsewhere.
    let hides = !backend::is_inactive() && !backend::is_left_out();
    let passes_on = PASSES_ON.load(Ordering::Relaxed);
    let missing = MISSING.load(Ordering::Relaxed);
    let is_hidden = move |form: usize| hides && (passes_on || (missing >> form) & 1 == 1);
    let forms = FORMS.iter().enumerate();
    forms.filter_map(move |(form, name)| is_hidden(form).then_some(*name))
}

/// Finds the operators to call if memory runs out: they call the new-handler. Those of an allocator
/// library would allocate from its own heap, so they are used only for forms that must not return
/// null.
fn find_next_operators() {
    for (slot, name) in [
        (&NEXT_NEW, c"_Znwm"),
        (&NEXT_ALIGNED_NEW, c"_ZnwmSt11align_val_t"),
    ] {
        let mut found = definitions::find_in_cxx_runtime(Name::new(name));
        if found.is_null() {
            found = next_definition(name);
        }
        slot.store(found, Ordering::Relaxed);
    }
    for (slot, name) in [
        (&NEXT_NOTHROW_NEW, c"_ZnwmRKSt9nothrow_t"),
        (
            &NEXT_ALIGNED_NOTHROW_NEW,
            c"_ZnwmSt11align_val_tRKSt9nothrow_t",
        ),
    ] {
        slot.store(
            definitions::find_in_cxx_runtime(Name::new(name)),
            Ordering::Relaxed,
        );
    }
}

/// Definitions of the forms that would be used without us.
struct Survey {
    /// True if a form is defined by a module other than a C++ library or an allocator library that
    /// is replaced.
    has_others: bool,
    /// Next definition of each form, in the order of `NAMES`. Null: ours is used, because there is
    /// none or it is an allocator library's that is replaced.
    next: [*mut c_void; NAMES.len()],
}

/// Finds the definitions of all forms outside the agent.
fn survey() -> Survey {
    let mut survey = Survey {
        has_others: false,
        next: definitions::next_definitions(&NAMES, &FORMS),
    };
    let missing_forms = (0..NAMES.len()).filter(|form| survey.next[*form].is_null());
    let missing = missing_forms.fold(0, |bits, form| bits | (1 << form));
    MISSING.store(missing, Ordering::Relaxed);
    definitions::each_module_before(|module| {
        let defines_some = || FORMS.iter().any(|name| module.defines(*name));
        survey.has_others |= !module.is_cxx_runtime() && defines_some();
    });
    let malloc = next_definition(c"malloc");
    let free = next_definition(c"free");
    let is_replaced = |module: &Module| {
        let ours_serve = !backend::is_left_out() && !backend::is_interposed();
        ours_serve && module.contains(malloc) && module.contains(free)
    };
    definitions::each_module(|module| {
        if module.is_cxx_runtime() {
            return true;
        }
        let is_replaced = is_replaced(module);
        for definition in &mut survey.next {
            if definition.is_null() || !module.contains(*definition) {
                continue;
            }
            if is_replaced {
                *definition = null_mut();
            } else {
                survey.has_others = true;
            }
        }
        true
    });
    survey
}

/// Targets on the fast path.
mod plain {
    use super::*;

    pub unsafe extern "C" fn new(size: usize, _: usize, _: usize) -> *mut c_void {
        // SAFETY: `malloc` takes any size, and so does the operator that `new_failed` jumps to.
        unsafe {
            let p = NEXT.malloc(size);
            if p.is_null() { new_failed(size, 0) } else { p }
        }
    }

    pub unsafe extern "C" fn new_nothrow(size: usize, nothrow: usize, _: usize) -> *mut c_void {
        // SAFETY: as in `new`.
        unsafe {
            let p = NEXT.malloc(size);
            if p.is_null() {
                nothrow_new_failed(size, nothrow)
            } else {
                p
            }
        }
    }

    pub unsafe extern "C" fn new_aligned(size: usize, align: usize, _: usize) -> *mut c_void {
        // SAFETY: any size and alignment is valid: the allocator refuses an alignment that is not a
        // power of two, which no compiler generates.
        unsafe {
            let p = NEXT.memalign(align, size);
            if p.is_null() {
                aligned_new_failed(size, align)
            } else {
                p
            }
        }
    }

    pub unsafe extern "C" fn new_aligned_nothrow(
        size: usize,
        align: usize,
        _: usize,
    ) -> *mut c_void {
        // SAFETY: any size and alignment is valid, as in `new_aligned`.
        unsafe {
            let p = NEXT.memalign(align, size);
            if p.is_null() {
                aligned_nothrow_new_failed(size, align)
            } else {
                p
            }
        }
    }
}

/// [`plain`] targets, called with an aligned stack whatever the caller's alignment is.
mod aligned {
    use super::*;

    macro_rules! aligned {
        ($($name:ident)*) => {
            $(on_aligned_stack! {
                pub fn $name(size: usize, b: usize, c: usize) -> *mut c_void, plain::$name
            })*
        };
    }

    aligned! { new new_nothrow new_aligned new_aligned_nothrow }
}

/// Targets that call the C library's functions by their names, as a C++ library's operators do.
/// These may be functions of the executable.
mod by_name {
    use super::*;

    type Malloc = unsafe extern "C" fn(usize) -> *mut c_void;
    type Memalign = unsafe extern "C" fn(usize, usize) -> *mut c_void;

    #[inline(always)]
    fn malloc(size: usize) -> *mut c_void {
        let found = FIRST_DEFINITIONS.malloc.load(Ordering::Relaxed);
        // SAFETY: the first definition of `malloc`, which takes any size.
        unsafe { transmute::<*mut c_void, Malloc>(found)(size) }
    }

    #[inline(always)]
    fn aligned_alloc(size: usize, align: usize) -> *mut c_void {
        let found = FIRST_DEFINITIONS.aligned_alloc.load(Ordering::Relaxed);
        let size = size.checked_next_multiple_of(align).unwrap_or(size);
        // SAFETY: the first definition of `aligned_alloc`, which takes any size and alignment.
        unsafe { transmute::<*mut c_void, Memalign>(found)(align, size) }
    }

    pub unsafe extern "C" fn new(size: usize, _: usize, _: usize) -> *mut c_void {
        let p = malloc(size);
        if p.is_null() {
            // SAFETY: the operator that is jumped to takes any size.
            unsafe { new_failed(size, 0) }
        } else {
            p
        }
    }

    pub unsafe extern "C" fn new_nothrow(size: usize, nothrow: usize, _: usize) -> *mut c_void {
        let p = malloc(size);
        if p.is_null() {
            // SAFETY: as in `new`.
            unsafe { nothrow_new_failed(size, nothrow) }
        } else {
            p
        }
    }

    pub unsafe extern "C" fn new_aligned(size: usize, align: usize, _: usize) -> *mut c_void {
        let p = aligned_alloc(size, align);
        if p.is_null() {
            // SAFETY: the operator that is jumped to takes any size and alignment.
            unsafe { aligned_new_failed(size, align) }
        } else {
            p
        }
    }

    pub unsafe extern "C" fn new_aligned_nothrow(
        size: usize,
        align: usize,
        _: usize,
    ) -> *mut c_void {
        let p = aligned_alloc(size, align);
        if p.is_null() {
            // SAFETY: as in `new_aligned`.
            unsafe { aligned_nothrow_new_failed(size, align) }
        } else {
            p
        }
    }

    pub fn free() -> *mut c_void {
        FIRST_DEFINITIONS.free.load(Ordering::Relaxed)
    }
}

/// Targets on the slow path.
mod sampled {
    use super::*;

    #[inline(always)]
    pub unsafe fn new(size: usize, _: usize, _: usize) -> *mut c_void {
        // SAFETY: the trampoline takes any size and uses no other argument.
        unsafe { sampled_new(size, 0, 0) }
    }

    #[inline(always)]
    pub unsafe fn new_nothrow(size: usize, nothrow: usize, _: usize) -> *mut c_void {
        // SAFETY: as in `new`.
        unsafe { sampled_nothrow_new(size, nothrow, 0) }
    }

    #[inline(always)]
    pub unsafe fn new_aligned(size: usize, align: usize, _: usize) -> *mut c_void {
        // SAFETY: the trampoline takes any size and alignment, and uses no other argument.
        unsafe { sampled_aligned_new(size, align, 0) }
    }

    #[inline(always)]
    pub unsafe fn new_aligned_nothrow(size: usize, align: usize, _: usize) -> *mut c_void {
        // SAFETY: as in `new_aligned`.
        unsafe { sampled_aligned_nothrow_new(size, align, 0) }
    }
}

/// Calls the target of a slot, with all arguments that an operator may have. An operator with fewer
/// arguments does not look at the registers of the others.
///
/// # Safety
/// The arguments are valid for the operator that the slot belongs to.
#[inline(always)]
unsafe fn call(slot: &AtomicPtr<c_void>, a: usize, b: usize, c: usize) -> *mut c_void {
    let function = slot.load(Ordering::Relaxed);
    let function: unsafe extern "C" fn(usize, usize, usize) -> *mut c_void =
        // SAFETY: slots hold functions of ours of this type, a `free`, or the next definition of
        // the slot's operator.
        unsafe { core::mem::transmute(function) };
    // SAFETY: the arguments are valid for the slot's operator.
    unsafe { function(a, b, c) }
}

macro_rules! operators {
    (new { $($new:ident $kind:ident $new_name:literal,)* }
     delete { $($delete:ident $delete_name:literal,)* }) => {
        /// All operators.
        const NAMES: [&CStr; [$($new_name,)* $($delete_name,)*].len()] =
            [$($new_name,)* $($delete_name,)*];

        /// Names with their hashes, for look-ups in symbol tables.
        static FORMS: [Name; NAMES.len()] =
            [$(Name::new($new_name),)* $(Name::new($delete_name),)*];

        #[allow(non_upper_case_globals)]
        mod slot {
            use super::*;
            $(pub static $new: AtomicPtr<c_void> = AtomicPtr::new(first::$new as *mut c_void);)*
            $(pub static $delete: AtomicPtr<c_void> =
                AtomicPtr::new(first::$delete as *mut c_void);)*
        }

        /// Targets of the slots until one of them is used, or the library is initialised.
        #[allow(non_snake_case)]
        mod first {
            use super::*;
            $(pub unsafe extern "C" fn $new(a: usize, b: usize, c: usize) -> *mut c_void {
                fill_slots();
                // SAFETY: the arguments that this operator was called with.
                unsafe { call(&slot::$new, a, b, c) }
            })*
            $(pub unsafe extern "C" fn $delete(a: usize, b: usize, c: usize) -> *mut c_void {
                fill_slots();
                // SAFETY: the arguments that this operator was called with.
                unsafe { call(&slot::$delete, a, b, c) }
            })*
        }

        $(
            #[doc = concat!("`operator new`, as ", stringify!($kind))]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $new(size: usize, b: usize, c: usize) -> *mut c_void {
                // SAFETY: `b` and `c` are whatever the registers hold; only forms that have these
                // arguments use them.
                unsafe {
                    if is_unsampled(size) {
                        call(&slot::$new, size, b, c)
                    } else {
                        sampled::$kind(size, b, c)
                    }
                }
            }
        )*

        $(
            /// `operator delete`
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $delete(p: *mut c_void, b: usize, c: usize) {
                // SAFETY: `p` is null or an object that the caller frees. One that is not sampled
                // goes to the counterpart of the operator that it came from.
                unsafe {
                    if range::may_contain(p) && !PASSES_ON.load(Ordering::Relaxed) {
                        free_low(p)
                    } else {
                        call(&slot::$delete, p as usize, b, c);
                    }
                }
            }
        )*

        /// Fills the slots, once. Our `operator delete` is the allocator's `free` itself, which
        /// saves a jump.
        #[cold]
        pub fn fill_slots() {
            backend::ensure_chosen();
            if ARE_SLOTS_FILLED.swap(true, Ordering::Relaxed) {
                return;
            }
            let saved = crate::sys::errno();
            find_next_operators();
            let targets = targets();
            // Each slot is stored once, so that no thread sees a target that is to be replaced.
            let free = targets.free;
            let mut next = targets.next.iter();
            let mut target = |ours: *mut c_void| match next.next() {
                Some(next) if !next.is_null() => *next,
                _ => ours,
            };
            let passes_on = PASSES_ON.load(Ordering::Relaxed);
            $(
                let plain = aligned::$kind as *mut c_void;
                let by_name = by_name::$kind as *mut c_void;
                let ours = if passes_on { by_name } else { plain };
                slot::$new.store(target(ours), Ordering::Relaxed);
            )*
            $(slot::$delete.store(target(free), Ordering::Relaxed);)*
            crate::sys::set_errno(saved);
        }
    };
}

/// Targets that the slots are filled with.
struct Targets {
    /// Definitions of others for each form; null: ours is used.
    next: [*mut c_void; NAMES.len()],
    free: *mut c_void,
}

/// Decides whether our operators are used.
fn targets() -> Targets {
    let nothing = [null_mut(); NAMES.len()];
    let free = backend::free_on_any_stack();
    if backend::is_inactive() {
        PASSES_ON.store(true, Ordering::Relaxed);
        return Targets {
            next: definitions::next_definitions(&NAMES, &FORMS),
            free,
        };
    }
    let survey = survey();
    let uses_others = backend::is_left_out() || backend::is_interposed() || others_align();
    if !survey.has_others && !uses_others {
        return Targets {
            next: nothing,
            free,
        };
    }
    PASSES_ON.store(true, Ordering::Relaxed);
    definitions::find_first_definitions();
    Targets {
        next: survey.next,
        free: by_name::free(),
    }
}

/// Returns true if another library defines a function that C++'s aligned operators allocate from.
fn others_align() -> bool {
    let mut is_defined = false;
    definitions::each_module_before(|module| {
        const NAMES: [Name; 3] = [
            Name::new(c"aligned_alloc"),
            Name::new(c"posix_memalign"),
            Name::new(c"memalign"),
        ];
        is_defined |= NAMES.iter().any(|name| module.defines(*name));
    });
    is_defined
}

/// Returns true if an operator takes no sample of an allocation (see [`session::skips_sampling`]).
/// An operator that passes the call on does not count the bytes: the function that it calls does.
#[inline(always)]
fn is_unsampled(size: usize) -> bool {
    let is_off = session::control().epoch.load(Ordering::Relaxed) == 0;
    is_off || PASSES_ON.load(Ordering::Relaxed) || session::skips_sampling(size)
}

operators! {
    new {
        _Znwm new c"_Znwm",
        _ZnwmRKSt9nothrow_t new_nothrow c"_ZnwmRKSt9nothrow_t",
        _ZnwmSt11align_val_t new_aligned c"_ZnwmSt11align_val_t",
        _ZnwmSt11align_val_tRKSt9nothrow_t new_aligned_nothrow
            c"_ZnwmSt11align_val_tRKSt9nothrow_t",
        _Znam new c"_Znam",
        _ZnamRKSt9nothrow_t new_nothrow c"_ZnamRKSt9nothrow_t",
        _ZnamSt11align_val_t new_aligned c"_ZnamSt11align_val_t",
        _ZnamSt11align_val_tRKSt9nothrow_t new_aligned_nothrow
            c"_ZnamSt11align_val_tRKSt9nothrow_t",
    }
    delete {
        _ZdlPv c"_ZdlPv",
        _ZdlPvm c"_ZdlPvm",
        _ZdlPvRKSt9nothrow_t c"_ZdlPvRKSt9nothrow_t",
        _ZdlPvSt11align_val_t c"_ZdlPvSt11align_val_t",
        _ZdlPvmSt11align_val_t c"_ZdlPvmSt11align_val_t",
        _ZdlPvSt11align_val_tRKSt9nothrow_t c"_ZdlPvSt11align_val_tRKSt9nothrow_t",
        _ZdaPv c"_ZdaPv",
        _ZdaPvm c"_ZdaPvm",
        _ZdaPvRKSt9nothrow_t c"_ZdaPvRKSt9nothrow_t",
        _ZdaPvSt11align_val_t c"_ZdaPvSt11align_val_t",
        _ZdaPvmSt11align_val_t c"_ZdaPvmSt11align_val_t",
        _ZdaPvSt11align_val_tRKSt9nothrow_t c"_ZdaPvSt11align_val_tRKSt9nothrow_t",
    }
}
