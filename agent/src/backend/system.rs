//! The program's own allocator, found with `dlsym`, which itself allocates.

use super::{CHOSEN_SYSTEM, NEXT};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

const EARLY_BYTES: usize = 16 << 10;

/// Serves the allocations that happen while the real functions are looked up.
#[repr(C, align(16))]
struct Early(UnsafeCell<[u8; EARLY_BYTES]>);
// SAFETY: handed out piecewise by an atomic counter.
unsafe impl Sync for Early {}
static EARLY: Early = Early(UnsafeCell::new([0; EARLY_BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);

pub fn find(symbol: &CStr) -> *mut c_void {
    crate::sys::next_symbol(symbol)
}

/// The target for a function that was found: those that take objects must know the early
/// ones.
pub fn guarded(symbol: &CStr, found: *mut c_void) -> *mut c_void {
    if symbol == c"free" {
        REAL_FREE.store(found, Ordering::Relaxed);
        free as *mut c_void
    } else if symbol == c"realloc" {
        REAL_REALLOC.store(found, Ordering::Relaxed);
        realloc as *mut c_void
    } else {
        found
    }
}

static REAL_FREE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static REAL_REALLOC: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Serves allocations from the early block until [`leave`].
pub fn enter() {
    NEXT.malloc
        .store(early_malloc as *mut c_void, Ordering::Relaxed);
    NEXT.calloc
        .store(early_calloc as *mut c_void, Ordering::Relaxed);
    NEXT.free.store(free as *mut c_void, Ordering::Relaxed);
    NEXT.realloc
        .store(realloc as *mut c_void, Ordering::Relaxed);
}

/// Whatever was not found stays with jemalloc, as a whole: half an allocator is none.
pub fn leave() {
    let missing = REAL_FREE.load(Ordering::Relaxed).is_null();
    if missing || NEXT.malloc.load(Ordering::Relaxed) == early_malloc as *mut c_void {
        CHOSEN_SYSTEM.store(false, Ordering::Relaxed);
        NEXT.use_jemalloc();
    }
}

fn is_early(p: *mut c_void) -> bool {
    (p as usize).wrapping_sub(EARLY.0.get() as usize) < EARLY_BYTES
}

unsafe extern "C" fn early_malloc(size: usize) -> *mut c_void {
    let bytes = size.max(1).next_multiple_of(16);
    let at = USED.fetch_add(bytes, Ordering::Relaxed);
    if at.saturating_add(bytes) > EARLY_BYTES {
        return core::ptr::null_mut();
    }
    // SAFETY: inside the block, and nobody else's by the counter.
    unsafe { EARLY.0.get().cast::<u8>().add(at).cast() }
}

unsafe extern "C" fn early_calloc(n: usize, size: usize) -> *mut c_void {
    // SAFETY: no requirement; the block is zero and used once.
    n.checked_mul(size)
        .map_or(core::ptr::null_mut(), |all| unsafe { early_malloc(all) })
}

unsafe extern "C" fn free(p: *mut c_void) {
    let real = REAL_FREE.load(Ordering::Relaxed);
    if is_early(p) || real.is_null() {
        return;
    }
    // SAFETY: dlsym gave the C function `free`.
    let real: unsafe extern "C" fn(*mut c_void) = unsafe { core::mem::transmute(real) };
    // SAFETY: the caller's.
    unsafe { real(p) }
}

unsafe extern "C" fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    let real = REAL_REALLOC.load(Ordering::Relaxed);
    if !p.is_null() && (is_early(p) || real.is_null()) {
        // SAFETY: `size` bytes may be more than the old object, but stay in the block.
        unsafe {
            let new = NEXT.malloc(size).cast::<u8>();
            let rest = EARLY_BYTES - (p as usize - EARLY.0.get() as usize).min(EARLY_BYTES);
            if !new.is_null() {
                core::ptr::copy(p.cast::<u8>(), new, size.min(rest));
            }
            return new.cast();
        }
    }
    if real.is_null() {
        // SAFETY: no requirement.
        return unsafe { NEXT.malloc(size) };
    }
    // SAFETY: dlsym gave the C function `realloc`.
    let real: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void =
        unsafe { core::mem::transmute(real) };
    // SAFETY: the caller's.
    unsafe { real(p, size) }
}
