//! Uses the program's own allocator. Its functions are found with `dlsym`, which itself allocates;
//! until they are known, a small static block serves these allocations.

use super::{CHOSEN_SYSTEM, NEXT};
use core::cell::UnsafeCell;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Size of the static block in bytes.
const EARLY_BYTES: usize = 12 << 10;

/// Static block for allocations during the lookup.
#[repr(C, align(16))]
struct Early(UnsafeCell<[u8; EARLY_BYTES]>);
// SAFETY: an atomic counter hands out each part once.
unsafe impl Sync for Early {}
#[cfg_attr(not(test), unsafe(link_section = ".llvm.linkonce.b.rare"))]
static EARLY: Early = Early(UnsafeCell::new([0; EARLY_BYTES]));
/// Bytes of the block that were handed out.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Returns the target for a function that was found. Functions that take objects are wrapped,
/// because they must recognise those of the static block.
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

/// Begins to serve allocations from the static block, until [`end_lookup`].
pub fn begin_lookup() {
    NEXT.malloc
        .store(early_malloc as *mut c_void, Ordering::Relaxed);
    NEXT.calloc
        .store(early_calloc as *mut c_void, Ordering::Relaxed);
    NEXT.free.store(free as *mut c_void, Ordering::Relaxed);
    NEXT.realloc
        .store(realloc as *mut c_void, Ordering::Relaxed);
}

/// Ends the lookup. If `malloc` or `free` was not found, jemalloc is used after all, for all
/// functions.
pub fn end_lookup() {
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
    let offset = USED.fetch_add(bytes, Ordering::Relaxed);
    if offset.saturating_add(bytes) > EARLY_BYTES {
        return core::ptr::null_mut();
    }
    // SAFETY: inside the block, and handed out once by the counter.
    unsafe { EARLY.0.get().cast::<u8>().add(offset).cast() }
}

unsafe extern "C" fn early_calloc(n: usize, size: usize) -> *mut c_void {
    // SAFETY: takes any size. The block is zeroed, and each part is used once.
    n.checked_mul(size)
        .map_or(core::ptr::null_mut(), |all| unsafe { early_malloc(all) })
}

unsafe extern "C" fn free(p: *mut c_void) {
    let real = REAL_FREE.load(Ordering::Relaxed);
    if is_early(p) || real.is_null() {
        return;
    }
    // SAFETY: `dlsym` returned this address for `free`.
    let real: unsafe extern "C" fn(*mut c_void) = unsafe { core::mem::transmute(real) };
    // SAFETY: the program passes an object that it frees, which is not from the block.
    unsafe { real(p) }
}

unsafe extern "C" fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    let real = REAL_REALLOC.load(Ordering::Relaxed);
    if !p.is_null() && (is_early(p) || real.is_null()) {
        // SAFETY: may copy more than the old object, but not beyond the block.
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
        // SAFETY: takes any size.
        return unsafe { NEXT.malloc(size) };
    }
    // SAFETY: `dlsym` returned this address for `realloc`.
    let real: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void =
        unsafe { core::mem::transmute(real) };
    // SAFETY: the program passes null or a live object, which is not from the block.
    unsafe { real(p, size) }
}
