use super::*;
use std::vec::Vec;

/// Returns contents for an object, in which every third piece is zero.
fn contents(bytes: usize) -> Vec<u8> {
    let byte = |at: usize| ((at / PIECE_BYTES % 3) * (at % 251 + 1)) as u8;
    (0..bytes).map(byte).collect()
}

#[test]
fn a_large_object_keeps_its_contents_when_it_grows() {
    let bytes = MIN_BYTES + 5 * PIECE_BYTES + 17;
    let expected = contents(bytes);
    // SAFETY: objects of jemalloc, used within their sizes.
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

/// `madvise` fails for locked pages.
#[test]
fn locked_pages_do_not_change_errno() {
    let bytes = MIN_BYTES + STEP_BYTES;
    // SAFETY: objects of jemalloc, used within their sizes.
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
fn a_destination_is_mapped_again_only_if_it_is_gone() {
    /// Address of a mapping that the kernel chooses only on request.
    const UNUSED_ADDRESS: usize = 1 << 40;
    let at: *mut c_void = core::ptr::without_provenance_mut(UNUSED_ADDRESS);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: only this test uses the mapping.
    unsafe {
        assert_eq!(libc::mmap(at, sys::PAGE, access, flags, -1, 0), at);
        let byte: *mut u8 = at.cast();
        byte.write(7);
        remap(at, sys::PAGE);
        assert_eq!(byte.read(), 7);
        libc::munmap(at, sys::PAGE);
        remap(at, sys::PAGE);
        assert_eq!(byte.read(), 0);
        byte.write(7);
        libc::munmap(at, sys::PAGE);
    }
}

/// Returns the number of minor page faults of the calling thread.
fn faults() -> i64 {
    // SAFETY: zeros are a valid `rusage`, which the call fills.
    unsafe {
        let mut usage: libc::rusage = core::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_minflt
    }
}

/// Reading each page of the object would take 65,536 faults.
#[test]
fn pages_of_several_mappings_are_moved() {
    const BYTES: usize = 256 << 20;
    // SAFETY: objects of jemalloc, used within their sizes.
    unsafe {
        let from: *mut u8 = jemalloc::mallocx(BYTES, 0).cast();
        let to: *mut u8 =
            place_at_offset(jemalloc::mallocx(BYTES, 0), from.addr() % sys::PAGE).cast();
        assert_eq!(from.addr() % sys::PAGE, to.addr() % sys::PAGE);
        let marks = (0..BYTES).step_by(16 << 20);
        let mark = |at: usize| (at >> 24) as u8 + 1;
        for at in marks.clone() {
            from.add(at).write(mark(at));
        }
        // Two more mappings, the first of which the kernel refuses to move.
        for (at, advice) in [(BYTES / 3, None), (BYTES / 2, Some(libc::MADV_DONTFORK))] {
            let page = from.add(at - (from.addr() + at) % sys::PAGE).cast();
            let failed = match advice {
                None => libc::mlock(page, sys::PAGE),
                Some(advice) => libc::madvise(page, sys::PAGE, advice),
            };
            assert_eq!(failed, 0);
        }
        let before = faults();
        move_bytes(from, to, BYTES);
        let taken = faults() - before;
        assert!(
            taken < 3 * (STEP_BYTES / sys::PAGE) as i64,
            "{taken} faults"
        );
        for at in marks {
            assert_eq!(*to.add(at), mark(at), "{at}");
        }
        libc::munlock(from.cast(), BYTES);
        jemalloc::dallocx(from.cast(), 0);
        jemalloc::dallocx(to.cast(), 0);
    }
}

#[test]
fn zeros_are_copied_over_other_contents() {
    let bytes = MIN_BYTES + 100;
    let expected = contents(bytes);
    // SAFETY: objects of jemalloc, used within their sizes.
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
