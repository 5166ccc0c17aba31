//! jemalloc's non-standard functions, implemented with another allocator that lacks them, whose own
//! functions are in [`NEXT`]. A program that looks them up may pass their objects to `free` and
//! `realloc`, so all functions must belong to one allocator.
//!
//! They do what jemalloc(3) says, except that the allocator's size classes are not known: `nallocx`
//! returns the requested size, `xallocx` resizes nothing, and `mallctl` knows no names.

use super::NEXT;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::write_bytes;

/// `MALLOCX_ZERO` of jemalloc(3).
const ZERO: c_int = 0x40;
/// Bits of the flags with log2 of the alignment.
const ALIGN_BITS: c_int = 0x3f;
/// Alignment of all allocations, in bytes.
const NATURAL_ALIGNMENT: usize = 16;

/// Returns the substitute for a function that the allocator lacks; `None` if it is not one of
/// jemalloc's.
pub fn substitute(symbol: &CStr) -> Option<*mut c_void> {
    let functions: [(&CStr, *mut c_void); 11] = [
        (c"mallocx", mallocx as *mut c_void),
        (c"rallocx", rallocx as *mut c_void),
        (c"xallocx", xallocx as *mut c_void),
        (c"sallocx", sallocx as *mut c_void),
        (c"dallocx", dallocx as *mut c_void),
        (c"sdallocx", sdallocx as *mut c_void),
        (c"nallocx", nallocx as *mut c_void),
        (c"mallctl", mallctl as *mut c_void),
        (c"mallctlnametomib", mallctlnametomib as *mut c_void),
        (c"mallctlbymib", mallctlbymib as *mut c_void),
        (c"malloc_stats_print", stats_print as *mut c_void),
    ];
    let found = functions.iter().find(|(name, _)| *name == symbol);
    found.map(|(_, function)| *function)
}

/// Returns the alignment that flags request.
fn alignment(flags: c_int) -> usize {
    1usize.checked_shl((flags & ALIGN_BITS) as u32).unwrap_or(1)
}

unsafe extern "C" fn mallocx(size: usize, flags: c_int) -> *mut c_void {
    let align = alignment(flags);
    let zero = flags & ZERO != 0;
    // SAFETY: functions of the allocator; `memalign` returns `size` bytes, which nobody else uses
    // yet.
    unsafe {
        if align <= NATURAL_ALIGNMENT {
            return if zero {
                NEXT.calloc(1, size)
            } else {
                NEXT.malloc(size)
            };
        }
        let p = NEXT.memalign(align, size);
        if zero && !p.is_null() {
            write_bytes(p.cast::<u8>(), 0, size);
        }
        p
    }
}

unsafe extern "C" fn rallocx(p: *mut c_void, size: usize, flags: c_int) -> *mut c_void {
    let align = alignment(flags);
    // SAFETY: `p` is a live object of the allocator with `old` usable bytes; the new one has at
    // least `size`.
    unsafe {
        let old = NEXT.usable_size(p);
        let new = if align <= NATURAL_ALIGNMENT {
            NEXT.realloc(p, size)
        } else {
            let new = NEXT.memalign(align, size);
            if !new.is_null() {
                core::ptr::copy_nonoverlapping(p.cast::<u8>(), new.cast(), old.min(size));
                NEXT.free(p);
            }
            new
        };
        if flags & ZERO != 0 && !new.is_null() && size > old {
            write_bytes(new.cast::<u8>().add(old), 0, size - old);
        }
        new
    }
}

unsafe extern "C" fn xallocx(p: *mut c_void, _: usize, _: usize, _: c_int) -> usize {
    // SAFETY: a live object of the allocator.
    unsafe { NEXT.usable_size(p) }
}

unsafe extern "C" fn sallocx(p: *const c_void, _: c_int) -> usize {
    // SAFETY: a live object of the allocator.
    unsafe { NEXT.usable_size(p) }
}

unsafe extern "C" fn dallocx(p: *mut c_void, _: c_int) {
    // SAFETY: the program frees an object of the allocator.
    unsafe { NEXT.free(p) }
}

unsafe extern "C" fn sdallocx(p: *mut c_void, _: usize, _: c_int) {
    // SAFETY: the program frees an object of the allocator.
    unsafe { NEXT.free(p) }
}

extern "C" fn nallocx(size: usize, flags: c_int) -> usize {
    size.checked_next_multiple_of(alignment(flags)).unwrap_or(0)
}

extern "C" fn mallctl(
    _: *const c_char,
    _: *mut c_void,
    _: *mut usize,
    _: *mut c_void,
    _: usize,
) -> c_int {
    libc::ENOENT
}

extern "C" fn mallctlnametomib(_: *const c_char, _: *mut usize, _: *mut usize) -> c_int {
    libc::ENOENT
}

extern "C" fn mallctlbymib(
    _: *const usize,
    _: usize,
    _: *mut c_void,
    _: *mut usize,
    _: *mut c_void,
    _: usize,
) -> c_int {
    libc::ENOENT
}

extern "C" fn stats_print(
    _: Option<unsafe extern "C" fn(*mut c_void, *const c_char)>,
    _: *mut c_void,
    _: *const c_char,
) {
}
