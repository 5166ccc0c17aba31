//! Moves large objects that grow, without keeping two copies resident.
//!
//! glibc moves the pages of a large object by `mremap`: no byte is copied, and the process never
//! needs the memory of both. jemalloc copies, and both copies are resident until it is done. A
//! process in a control group with room for one of them would be killed.
//!
//! Here the pages are moved, too. jemalloc keeps the old addresses, so the old pages stay mapped
//! (`MREMAP_DONTUNMAP`). An object that has moved is a mapping of its own, as with glibc, until it
//! is freed and its memory replaced (`renewal.rs`).
//!
//! Sampled objects that move, and objects that become sampled or cease to be sampled, are handled
//! in the same way.
//!
//! If the kernel does not move the pages (before Linux 5.7, or if they are locked), the object is
//! copied in steps, and the pages of each step are returned before the next one begins: at most
//! [`STEP_BYTES`] are resident twice. A page that was never written to is not copied, so that a
//! sparse object remains sparse.

use super::{extent_hooks, extent_map, jemalloc};
use crate::{arch, seccomp, sys};
use core::ffi::{c_int, c_long, c_void};
use core::slice;

/// Minimum usable size, in bytes, of objects that are moved in steps.
pub const MIN_BYTES: usize = 4 << 20;
/// Number of bytes that are copied before their pages are returned.
const STEP_BYTES: usize = 2 << 20;
/// Maximum number of bytes that are left free after an object that was moved.
const MAX_ROOM_BYTES: usize = 256 << 20;
/// Size of the address space in bytes: jemalloc refuses larger requests.
const MAX_BYTES: usize = 1 << 47;

/// jemalloc's `realloc`, except that objects of at least [`MIN_BYTES`] are moved in steps.
pub unsafe extern "C" fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    if size > MIN_BYTES && !p.is_null() {
        // SAFETY: the caller of `realloc` owns `p`, a live object.
        unsafe { grow(p, size) }
    } else {
        // SAFETY: the caller of `realloc` passes null or a live object of its own.
        unsafe { jemalloc::realloc(p, size) }
    }
}

/// Enlarges an object.
///
/// # Safety
/// `p` is a live object of jemalloc that belongs to the caller.
#[cold]
unsafe fn grow(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: a live object; the new one has `size` bytes, which are more than `usable`.
    unsafe {
        let usable = jemalloc::sallocx(p, 0);
        let moves = usable >= MIN_BYTES
            && usable < size
            && size < MAX_BYTES
            && !extent_hooks::has_custom_extent(p.cast());
        if !moves || jemalloc::xallocx(p, size, 0, 0) >= size {
            // `realloc` does not move an object that was just enlarged in place.
            return jemalloc::realloc(p, size);
        }
        let new = allocate_with_room(size, 0);
        if new.is_null() {
            return jemalloc::realloc(p, size);
        }
        let new = place_at_offset(new, p.addr() % sys::PAGE);
        move_bytes(p.cast(), new.cast(), usable);
        free_moved(|| jemalloc::dallocx(p, 0));
        new
    }
}

/// Places a new large object `offset` bytes after the start of a page, like another object whose
/// pages are to be moved to it. jemalloc places each large object at a random offset within the
/// first of its pages, for which it reserves one more page. Returns the object's address, which is
/// unchanged if the object is not jemalloc's.
///
/// # Safety
/// `new` is a live object of at least [`MIN_BYTES`], and nobody else has its address. `offset` is
/// less than a page.
pub unsafe fn place_at_offset(new: *mut c_void, offset: usize) -> *mut c_void {
    /// Index of the object's address in the descriptor.
    ///
    /// Source: jemalloc 5.3.1, `edata.h`.
    const ADDRESS: usize = 1;
    // SAFETY: `new` was allocated by an allocator; the map has no entry for another allocator's
    // memory.
    let Some(descriptor) = (unsafe { extent_map::descriptor(new.cast()) }) else {
        return new;
    };
    let new_address = new
        .wrapping_sub(new.addr() % sys::PAGE)
        .wrapping_add(offset);
    // SAFETY: the descriptor belongs to `new`, which only the caller has. The object stays in its
    // extent.
    unsafe {
        let room = extent_map::bytes(descriptor);
        let address = descriptor.cast_mut().add(ADDRESS);
        let is_large = address.read() == new.addr() as u64;
        if !is_large || offset + jemalloc::sallocx(new, 0) > room {
            return new;
        }
        address.write(new_address.addr() as u64);
    }
    new_address
}

/// Calls `free` for an object whose contents have been moved. The object's pages are then replaced
/// by new ones, and the heap does not count as having shrunk.
pub fn free_moved<T>(free: impl FnOnce() -> T) -> T {
    // SAFETY: the word is the thread's own.
    unsafe { (*arch::local()).renewing = true };
    let result = free();
    // SAFETY: the word is the thread's own.
    unsafe { (*arch::local()).renewing = false };
    result
}

/// Allocates a large object with free addresses after it, so that it can grow there: an object that
/// grows in steps is then moved once for each doubling. Nothing reserves these addresses.
///
/// # Safety
/// `size` is at least [`MIN_BYTES`] and less than [`MAX_BYTES`]; `flags` are valid for `mallocx`.
#[cold]
pub unsafe fn allocate_with_room(size: usize, flags: c_int) -> *mut c_void {
    // SAFETY: a valid size and flags. The object is made smaller before anybody else has its
    // address.
    unsafe {
        let roomy = jemalloc::mallocx(size + size.min(MAX_ROOM_BYTES), flags);
        if roomy.is_null() {
            return jemalloc::mallocx(size, flags);
        }
        jemalloc::xallocx(roomy, size, 0, flags);
        roomy
    }
}

/// Moves the contents of an object to another one. The contents of the old object are undefined
/// afterwards.
///
/// # Safety
/// `from` and `to` are different objects of at least `bytes` bytes, and only the calling thread
/// uses them. `to` is in anonymous private memory.
pub unsafe fn move_bytes(from: *mut u8, to: *mut u8, bytes: usize) {
    // SAFETY: `from` is the calling thread's object.
    let has_custom_extent = || unsafe { extent_hooks::has_custom_extent(from) };
    if bytes < MIN_BYTES || seccomp::is_installed() || has_custom_extent() {
        // SAFETY: both objects have at least `bytes` bytes, and do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        return;
    }
    let head = from.addr().next_multiple_of(sys::PAGE) - from.addr();
    // The page after the moved ones must belong to the object.
    let whole = ((bytes - head) / sys::PAGE - 1) * sys::PAGE;
    let can_move = from.addr() % sys::PAGE == to.addr() % sys::PAGE;
    let saved = sys::errno();
    // SAFETY: within both objects, which do not overlap.
    unsafe {
        to.copy_from_nonoverlapping(from, head);
        let moved = if can_move {
            move_pages(from.add(head), to.add(head), whole)
        } else {
            0
        };
        let finished = head + moved;
        copy_in_steps(from.add(finished), to.add(finished), bytes - finished);
    }
    sys::set_errno(saved);
}

/// Moves whole pages. Returns the number of bytes that were moved or copied. The caller must copy
/// the rest.
///
/// An object often consists of several mappings: after it has grown in place, or if the program has
/// changed the state of some of its pages. The kernel moves pages of one mapping at a time.
///
/// # Safety
/// See [`move_bytes`]. The pages of the new object have no contents yet, and each object has one
/// more page.
unsafe fn move_pages(from: *mut u8, to: *mut u8, bytes: usize) -> usize {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let mut offset = 0;
    while offset < bytes {
        // SAFETY: the pages are within both objects, and of one mapping each. The advice does not
        // change their contents.
        unsafe {
            let from = from.add(offset);
            let to = to.add(offset);
            let part = mapped_together(from.cast(), bytes - offset);
            // The kernel would unlock the whole mapping that contains locked pages.
            if libc::madvise(from.cast(), sys::PAGE, libc::MADV_COLD) != 0 {
                copy_in_steps(from, to, part);
            } else if libc::mremap(from.cast(), part, part, flags, to) == libc::MAP_FAILED {
                remap(to.cast(), part);
                break;
            }
            offset += part;
        }
    }
    offset
}

/// Returns how many of the `bytes` bytes at `at`, which are whole pages, are in the first mapping.
/// Found by bisection: a request to enlarge a part in place fails with `EFAULT` if the part spans
/// several mappings, and with another error otherwise. Moving the pages is no test: before Linux
/// 6.17, a move that spans several mappings fails only after its destination has been unmapped.
///
/// # Safety
/// The pages belong to an object of the calling thread, which has one more page.
unsafe fn mapped_together(at: *mut c_void, bytes: usize) -> usize {
    let are_together = |bytes: usize| {
        sys::set_errno(0);
        // SAFETY: there is a page where the part would be enlarged.
        unsafe { libc::mremap(at, bytes, bytes + sys::PAGE, 0) };
        sys::errno() != libc::EFAULT
    };
    if are_together(bytes) {
        return bytes;
    }
    let mut together = 1;
    let mut apart = bytes / sys::PAGE;
    while together + 1 < apart {
        let middle = together.midpoint(apart);
        if are_together(middle * sys::PAGE) {
            together = middle;
        } else {
            apart = middle;
        }
    }
    together * sys::PAGE
}

/// Maps the destination of a refused move if that has been unmapped. The kernel cannot move pages
/// before Linux 5.7, nor some kinds later, and has no room for another mapping if there are too
/// many.
///
/// # Safety
/// The range consists of whole pages of an object of the calling thread.
#[cold]
unsafe fn remap(at: *mut c_void, bytes: usize) {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let [access, flags, file] = [access, flags, -1].map(c_long::from);
    // SAFETY: replaces no mapping. A mapping elsewhere, by a kernel that takes the address for a
    // hint (before Linux 4.17), is unmapped again.
    unsafe {
        let mapped = sys::syscall(libc::SYS_mmap, at, bytes, access, flags, file, 0);
        if mapped != -1 && mapped as usize != at.addr() {
            libc::munmap(at.with_addr(mapped as usize), bytes);
        }
    }
}

/// Copies memory, and returns the pages of each step before the next one begins.
///
/// # Safety
/// See [`move_bytes`].
unsafe fn copy_in_steps(from: *mut u8, to: *mut u8, bytes: usize) {
    let mut offset = 0;
    while offset < bytes {
        let step = STEP_BYTES.min(bytes - offset);
        // SAFETY: within both objects; the pages that are returned have been copied.
        unsafe {
            let from = from.add(offset);
            copy_written(from, to.add(offset), step);
            return_pages(from, step);
        }
        offset += step;
    }
}

/// Number of bytes that are compared with zero at a time.
const PIECE_BYTES: usize = 4096;

/// Copies memory, except for pieces that are zero in both places. Reading memory that was never
/// written to maps the kernel's zero page; writing zeros to it would make a page resident.
///
/// # Safety
/// See [`move_bytes`].
unsafe fn copy_written(from: *const u8, to: *mut u8, bytes: usize) {
    let mut offset = 0;
    while offset < bytes {
        // Pieces end where a page of the destination ends.
        let to_next = PIECE_BYTES - (to.addr() + offset) % PIECE_BYTES;
        let piece = to_next.min(bytes - offset);
        // SAFETY: within both objects.
        unsafe {
            let from = from.add(offset);
            let to = to.add(offset);
            if !(is_zero(from, piece) && is_zero(to, piece)) {
                to.copy_from_nonoverlapping(from, piece);
            }
        }
        offset += piece;
    }
}

/// Returns true if all bytes are zero.
///
/// # Safety
/// `bytes` bytes at `at` are readable.
unsafe fn is_zero(at: *const u8, bytes: usize) -> bool {
    // SAFETY: readable bytes. Memory that was never written to is zero, as the kernel provides it.
    let bytes = unsafe { slice::from_raw_parts(at, bytes) };
    let (lines, rest) = bytes.as_chunks::<64>();
    lines.iter().all(line_is_zero) && rest.iter().all(|byte| *byte == 0)
}

/// Returns true if a cache line is zero. Has no branch for each word, so that it becomes a few
/// vector instructions.
fn line_is_zero(line: &[u8; 64]) -> bool {
    let (words, _) = line.as_chunks::<8>();
    let word = |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes);
    words.iter().map(word).fold(0, |all, word| all | word) == 0
}

/// Returns the whole pages within a part of an object to the system. Locked pages stay resident.
/// Changes `errno`.
///
/// # Safety
/// The part is anonymous private memory whose contents nobody needs any more.
unsafe fn return_pages(at: *mut u8, bytes: usize) {
    let start = at.addr().next_multiple_of(sys::PAGE);
    let end = (at.addr() + bytes) / sys::PAGE * sys::PAGE;
    if start < end {
        // SAFETY: whole pages of that part.
        unsafe { libc::madvise(at.with_addr(start).cast(), end - start, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests;
