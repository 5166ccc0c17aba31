//! Moves large objects that grow, without keeping two copies resident.
//!
//! glibc moves the pages of a large object by `mremap`: no byte is copied, and the process never
//! needs the memory of both. jemalloc copies, and both copies are resident meanwhile. A process in a
//! control group with room for one of them would be killed.
//!
//! Here the pages are moved, too. jemalloc keeps the old addresses, so the old pages stay mapped
//! (`MREMAP_DONTUNMAP`). An object that has moved is a mapping of its own, as with glibc, until it
//! is freed and its memory replaced (`renewal.rs`).
//!
//! Where the kernel does not move pages (before Linux 5.7, or if the program has changed the state
//! of some of them), the object is copied in steps, and the pages of each step are returned before
//! the next one begins: at most [`STEP_BYTES`] are resident twice. A page that was never written to
//! is not copied, so that a sparse object remains sparse.

use super::{extent_map, jemalloc};
use crate::{arch, seccomp, sys};
use core::ffi::{c_int, c_void};
use core::slice;

/// Minimum usable size, in bytes, of objects that are moved in steps.
pub const MIN_BYTES: usize = 4 << 20;
/// Number of bytes that are copied before their pages are returned.
const STEP_BYTES: usize = 2 << 20;
/// Maximum number of bytes that are left free behind an object that was moved.
const MAX_ROOM_BYTES: usize = 256 << 20;
/// Size of the address space in bytes: jemalloc refuses larger requests.
const MAX_BYTES: usize = 1 << 47;

/// jemalloc's `realloc`, except that objects of at least [`MIN_BYTES`] are moved in steps.
pub unsafe extern "C" fn realloc(p: *mut c_void, size: usize) -> *mut c_void {
    if size > MIN_BYTES && !p.is_null() {
        // SAFETY: the caller of `realloc` owns `p`, a live object.
        unsafe { grow(p, size) }
    } else {
        // SAFETY: `p` is null or a live object of the caller's.
        unsafe { jemalloc::realloc(p, size) }
    }
}

/// Enlarges an object.
///
/// # Safety
/// `p` is a live object of jemalloc's that belongs to the caller.
#[cold]
unsafe fn grow(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: a live object; the new one has `size` bytes, which are more than `usable`.
    unsafe {
        let usable = jemalloc::sallocx(p, 0);
        let moves = usable >= MIN_BYTES && usable < size && size < MAX_BYTES;
        if !moves || jemalloc::xallocx(p, size, 0, 0) >= size {
            // `realloc` leaves an object where it is that was just enlarged in place.
            return jemalloc::realloc(p, size);
        }
        let new = allocate_with_room(size, 0);
        if new.is_null() {
            return jemalloc::realloc(p, size);
        }
        let new = place_like(new, p);
        move_bytes(p.cast(), new.cast(), usable);
        // Its pages have been moved or returned.
        (*arch::local()).renewing = true;
        jemalloc::dallocx(p, 0);
        (*arch::local()).renewing = false;
        new
    }
}

/// Places a new object at the same offset within a page as another one, so that pages can be moved
/// between them. jemalloc places each large object at a random offset within the first of its pages
/// and has a page more for that. Returns the object's address.
///
/// # Safety
/// Both are live large objects of jemalloc's, and nobody else has the address of `new`.
unsafe fn place_like(new: *mut c_void, other: *const c_void) -> *mut c_void {
    /// Index of the object's address in the descriptor.
    ///
    /// Source: jemalloc 5.3.1, `edata.h`.
    const ADDRESS: usize = 1;
    let offset = |p: *const c_void| p.addr() % sys::PAGE;
    // SAFETY: memory that jemalloc has allocated.
    let Some(descriptor) = (unsafe { extent_map::descriptor(new.cast()) }) else {
        return new;
    };
    let placed = new.wrapping_sub(offset(new)).wrapping_add(offset(other));
    // SAFETY: the descriptor of an object of the caller's. The other object's offset is one that
    // jemalloc gives, so there is room for it if the new one has an offset, too.
    unsafe {
        let address = descriptor.cast_mut().add(ADDRESS);
        if offset(new) == 0 || address.read() != new.addr() as u64 {
            return new;
        }
        address.write(placed.addr() as u64);
    }
    placed
}

/// Allocates a large object with free addresses behind it, so that it can grow there: an object
/// that grows in steps is then moved once for each doubling. Nothing reserves these addresses.
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
/// `from` and `to` are different objects of at least `bytes` bytes, in anonymous private memory,
/// and only the calling thread uses them.
pub unsafe fn move_bytes(from: *mut u8, to: *mut u8, bytes: usize) {
    if bytes < MIN_BYTES || seccomp::is_installed() {
        // SAFETY: both objects have at least `bytes` bytes, and do not overlap.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
        return;
    }
    // SAFETY: this function's contract.
    if unsafe { move_pages(from, to, bytes) } {
        return;
    }
    let mut done = 0;
    while done < bytes {
        let step = STEP_BYTES.min(bytes - done);
        // SAFETY: within both objects; the pages that are returned have been copied.
        unsafe {
            let from = from.add(done);
            copy_written(from, to.add(done), step);
            return_pages(from, step);
        }
        done += step;
    }
}

/// Moves the whole pages of an object, and copies what is before and behind them. Returns false,
/// without having changed the old object, if the pages cannot be moved.
///
/// # Safety
/// See [`move_bytes`].
unsafe fn move_pages(from: *mut u8, to: *mut u8, bytes: usize) -> bool {
    let head = from.addr().next_multiple_of(sys::PAGE) - from.addr();
    if from.addr() % sys::PAGE != to.addr() % sys::PAGE || bytes < head {
        return false;
    }
    let whole = (bytes - head) / sys::PAGE * sys::PAGE;
    let tail = head + whole;
    let saved = sys::errno();
    // SAFETY: within both objects. The pages of the new one have no contents yet.
    let is_moved = unsafe {
        let start = from.add(head).cast::<c_void>();
        // The kernel would unlock the whole mapping that contains locked pages.
        let is_locked = libc::madvise(start, sys::PAGE, libc::MADV_COLD) != 0;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        let target = to.add(head).cast::<c_void>();
        !is_locked && libc::mremap(start, whole, whole, flags, target) != libc::MAP_FAILED
    };
    sys::set_errno(saved);
    if is_moved {
        // SAFETY: within both objects, which do not overlap.
        unsafe {
            to.copy_from_nonoverlapping(from, head);
            to.add(tail)
                .copy_from_nonoverlapping(from.add(tail), bytes - tail);
        }
    }
    is_moved
}

/// Number of bytes that are compared with zero at a time.
const PIECE_BYTES: usize = 4096;

/// Copies memory, except for pieces that are zero in both places. Reading memory that was never
/// written to maps the kernel's zero page; writing zeros to it would make a page resident.
///
/// # Safety
/// See [`move_bytes`].
unsafe fn copy_written(from: *const u8, to: *mut u8, bytes: usize) {
    let mut done = 0;
    while done < bytes {
        // Pieces end where a page of the destination ends.
        let to_next = PIECE_BYTES - (to.addr() + done) % PIECE_BYTES;
        let piece = to_next.min(bytes - done);
        // SAFETY: within both objects.
        unsafe {
            let (from, to) = (from.add(done), to.add(done));
            if !(is_zero(from, piece) && is_zero(to, piece)) {
                to.copy_from_nonoverlapping(from, piece);
            }
        }
        done += piece;
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
///
/// # Safety
/// The part is anonymous private memory whose contents nobody needs any more.
unsafe fn return_pages(at: *mut u8, bytes: usize) {
    let start = at.addr().next_multiple_of(sys::PAGE);
    let end = (at.addr() + bytes) / sys::PAGE * sys::PAGE;
    if start < end {
        // The kernel refuses locked pages, which must not show in `errno`.
        let saved = sys::errno();
        // SAFETY: whole pages of that part.
        unsafe { libc::madvise(at.with_addr(start).cast(), end - start, libc::MADV_DONTNEED) };
        sys::set_errno(saved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Bytes of the object, in which every third piece is zero.
    fn contents(bytes: usize) -> Vec<u8> {
        let byte = |at: usize| ((at / PIECE_BYTES % 3) * (at % 251 + 1)) as u8;
        (0..bytes).map(byte).collect()
    }

    #[test]
    fn a_large_object_keeps_its_contents_when_it_grows() {
        let bytes = MIN_BYTES + 5 * PIECE_BYTES + 17;
        let expected = contents(bytes);
        // SAFETY: objects of jemalloc's, used within their sizes.
        unsafe {
            let mut p: *mut u8 = jemalloc::mallocx(bytes, 0).cast();
            p.copy_from_nonoverlapping(expected.as_ptr(), bytes);
            for factor in 2..5 {
                // Leaves it no room to grow in place.
                let next = jemalloc::mallocx(MIN_BYTES, 0);
                p = realloc(p.cast(), factor * bytes).cast();
                assert_eq!(slice::from_raw_parts(p, bytes), expected);
                jemalloc::dallocx(next, 0);
            }
            jemalloc::dallocx(p.cast(), 0);
        }
    }

    /// Zeros overwrite the destination's earlier contents like other bytes.
    #[test]
    fn locked_pages_do_not_change_errno() {
        let bytes = MIN_BYTES + STEP_BYTES;
        // SAFETY: objects of jemalloc's, used within their sizes.
        unsafe {
            let from: *mut u8 = jemalloc::mallocx(bytes, 0).cast();
            let to: *mut u8 = jemalloc::mallocx(bytes, 0).cast();
            from.write_bytes(7, bytes);
            let locked = from.add(STEP_BYTES / 2).cast();
            assert_eq!(libc::mlock(locked, 1), 0, "one page may be locked");
            sys::set_errno(0);
            move_bytes(from, to, bytes);
            assert_eq!(sys::errno(), 0);
            assert!(
                slice::from_raw_parts(to, bytes)
                    .iter()
                    .all(|byte| *byte == 7)
            );
            libc::munlock(locked, 1);
            jemalloc::dallocx(from.cast(), 0);
            jemalloc::dallocx(to.cast(), 0);
        }
    }

    #[test]
    fn zeros_are_copied_over_other_contents() {
        let bytes = MIN_BYTES + 100;
        let expected = contents(bytes);
        // SAFETY: objects of jemalloc's, used within their sizes.
        unsafe {
            for (from_offset, to_offset) in [(0, 0), (64, 1000), (4095, 1)] {
                let from: *mut u8 = jemalloc::mallocx(2 * bytes, 0).cast();
                let to: *mut u8 = jemalloc::mallocx(2 * bytes, 0).cast();
                to.write_bytes(0xa5, 2 * bytes);
                from.add(from_offset)
                    .copy_from_nonoverlapping(expected.as_ptr(), bytes);
                move_bytes(from.add(from_offset), to.add(to_offset), bytes);
                let moved = slice::from_raw_parts(to.add(to_offset), bytes);
                assert!(moved == expected, "{from_offset} {to_offset}");
                assert_eq!(*to.add(to_offset + bytes), 0xa5);
                jemalloc::dallocx(from.cast(), 0);
                jemalloc::dallocx(to.cast(), 0);
            }
        }
    }
}
