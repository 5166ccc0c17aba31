//! C++'s `operator new` and `operator delete`, in all their forms (C++20 17.6.3).
//!
//! libstdc++'s own call `malloc` and would do; but an allocator library that the program
//! is linked with (tcmalloc, a shared jemalloc) brings its own, and with them another heap.
//! Where there is no memory, the next library's operator is called instead: it calls
//! the new-handler and throws. It is reached by jumps, so an exception meets no frame of
//! ours. Ours also spare each stack a frame.
//!
//! Allocations that are not sampled are served through a pointer for each operator. Where the
//! agent stands aside it leads to a sanitizer's, which checks that each object goes back by
//! the counterpart of the form that it came from.

use super::{free_low, skips_sampling, to};
use crate::arch::{jump_through, with_registers_or_fail};
use crate::backend::{self, NEXT};
use crate::sys::next_symbol;
use crate::{range, sample};
use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The next library's throwing operators; null where there is no C++ library.
static NEXT_NEW: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static NEXT_ALIGNED_NEW: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

jump_through!(new_failed, NEXT_NEW);
jump_through!(aligned_new_failed, NEXT_ALIGNED_NEW);
with_registers_or_fail!(sampled_new, sample::malloc, new_failed);
with_registers_or_fail!(sampled_aligned_new, sample::new_aligned, aligned_new_failed);

/// Finds the operators that fail for us, and settles all. At start-up: later the loader may not
/// be called.
pub fn find_next() {
    settle();
    NEXT_NEW.store(next_symbol(c"_Znwm"), Ordering::Relaxed);
    NEXT_ALIGNED_NEW.store(next_symbol(c"_ZnwmSt11align_val_t"), Ordering::Relaxed);
}

/// Allocation on the fast path.
mod plain {
    use super::*;

    pub unsafe extern "C" fn new(size: usize, _: usize, _: usize) -> *mut c_void {
        // SAFETY: `malloc` takes any size. `new_failed` jumps to the next library's operator,
        // which takes the same.
        unsafe {
            let p = NEXT.malloc(size);
            if p.is_null() { new_failed(size, 0) } else { p }
        }
    }

    pub unsafe extern "C" fn new_nothrow(size: usize, _: usize, _: usize) -> *mut c_void {
        // SAFETY: `malloc` takes any size.
        unsafe { NEXT.malloc(size) }
    }

    pub unsafe extern "C" fn new_aligned(size: usize, align: usize, _: usize) -> *mut c_void {
        // SAFETY: any size and alignment: one that is not a power of two, which only a call by hand
        // can have, meets the allocator's own check.
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
        // SAFETY: as `new_aligned`.
        unsafe { NEXT.memalign(align, size) }
    }
}

/// Allocation on the slow path.
mod sampled {
    use super::*;

    #[inline(always)]
    pub unsafe fn new(size: usize, _: usize, _: usize) -> *mut c_void {
        // SAFETY: the trampoline takes any size and uses no other argument.
        unsafe { sampled_new(size, 0, 0) }
    }

    #[inline(always)]
    pub unsafe fn new_nothrow(size: usize, _: usize, _: usize) -> *mut c_void {
        // SAFETY: `malloc` on the slow path takes any size.
        unsafe { to::malloc(size, 0, 0) }
    }

    #[inline(always)]
    pub unsafe fn new_aligned(size: usize, align: usize, _: usize) -> *mut c_void {
        // SAFETY: the trampoline takes any size and alignment, and uses no other argument.
        unsafe { sampled_aligned_new(size, align, 0) }
    }

    #[inline(always)]
    pub unsafe fn new_aligned_nothrow(size: usize, align: usize, _: usize) -> *mut c_void {
        // SAFETY: `memalign` on the slow path takes any size and alignment.
        unsafe { to::memalign(align, size, 0) }
    }
}

/// Calls what a slot leads to, with all arguments that an operator may have. One that takes
/// fewer never looks at the registers of the others.
#[inline(always)]
unsafe fn call(slot: &AtomicPtr<c_void>, a: usize, b: usize, c: usize) -> *mut c_void {
    let function = slot.load(Ordering::Relaxed);
    let function: unsafe extern "C" fn(usize, usize, usize) -> *mut c_void =
        // SAFETY: slots hold functions of ours of this type, the allocator's `free`, or the
        // next library's operator of the slot's name.
        unsafe { core::mem::transmute(function) };
    // SAFETY: the caller's.
    unsafe { function(a, b, c) }
}

macro_rules! operators {
    (new { $($new:ident $kind:ident $new_name:literal,)* }
     delete { $($delete:ident $delete_name:literal,)* }) => {
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
                settle();
                // SAFETY: the caller's.
                unsafe { call(&slot::$new, a, b, c) }
            })*
            $(pub unsafe extern "C" fn $delete(a: usize, b: usize, c: usize) -> *mut c_void {
                settle();
                // SAFETY: the caller's.
                unsafe { call(&slot::$delete, a, b, c) }
            })*
        }

        $(
            #[doc = concat!("`operator new`, as ", stringify!($kind))]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $new(size: usize, b: usize, c: usize) -> *mut c_void {
                // SAFETY: `b` and `c` are what the registers hold, perhaps nothing: only forms
                // that have these arguments use them.
                unsafe {
                    if skips_sampling(size) {
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
                // SAFETY: `p` is null or an object that the caller gives up; what is not a sampled
                // object goes to the counterpart of the operator that it came from.
                unsafe {
                    if range::may_contain(p) {
                        free_low(p)
                    } else {
                        call(&slot::$delete, p as usize, b, c);
                    }
                }
            }
        )*

        /// Fills the slots according to the choice of the allocator. Each `operator delete` is the
        /// allocator's `free`, which spares it a jump.
        #[cold]
        pub fn settle() {
            backend::settle();
            // Each is stored once: another thread never meets a target that is to be replaced.
            let free = NEXT.free.load(Ordering::Relaxed);
            $(slot::$new.store(target($new_name, plain::$kind as *mut c_void), Ordering::Relaxed);)*
            $(slot::$delete.store(target($delete_name, free), Ordering::Relaxed);)*
        }
    };
}

/// Target of an operator: ours, or where the agent stands aside the next library's, if it has one.
fn target(name: &CStr, ours: *mut c_void) -> *mut c_void {
    if !backend::stands_aside() {
        return ours;
    }
    let found = next_symbol(name);
    if found.is_null() { ours } else { found }
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
