use super::*;

#[test]
fn headers_are_read_as_they_were_written() {
    let pages = range();
    for (bytes, align) in [
        (0usize, 1usize),
        (5, 16),
        (17, 1),
        (64, 64),
        ((1 << 29) - 1, 1),
        (1 << 29, 8),
        (1 << 30, 8),
        (1 << 31, 8),
        (1 << 40, 4096),
        (1024, 1),
        (1009, 16),
        (4096, 1),
        (8192, 1),
        (7169, 8),
        (14336, 1),
    ] {
        let object = Object {
            record: 0xab_cdef,
            session: 200,
            weight: header::storable(64.3),
            born: 0xdead_beef,
            bytes: bytes as u64,
            align,
            ignored: bytes % 2 == 1,
            exact: bytes % 3 == 1,
        };
        let Layout { offset, .. } = object.layout();
        assert!(offset == 0 || (offset >= HEADER && offset.is_multiple_of(align.max(16))));
        // SAFETY: two pages of the range, offsets of at most one into them.
        unsafe {
            let at = pages.add(offset);
            object.write(offset, at);
            let HeaderState::Live(back) = Object::read(at) else {
                panic!("{bytes} {align}");
            };
            assert_eq!(Object { align, ..back }, object);
            assert_eq!(back.layout(), object.layout());
            Object::retire(at);
            assert_eq!(Object::read(at), HeaderState::Freed);
            // Another object at the same address has its header before it again.
            let plain = Object {
                bytes: 17,
                align: 1,
                ..object
            };
            plain.write(HEADER, at);
            assert_eq!(header_of(at), at.sub(HEADER).cast());
            assert_eq!(Object::read(at), HeaderState::Live(plain));
            Object::retire(at);
        }
    }
}

/// Overwrites every number of bytes just before an object, or at the start of its header.
#[test]
fn overwritten_headers_are_detected() {
    let object = Object {
        record: 77,
        session: 3,
        weight: header::storable(43.2),
        born: 1234,
        bytes: 24,
        align: 1,
        ignored: false,
        exact: false,
    };
    let long = Object {
        bytes: 1 << 20,
        ..object
    };
    let remains_of = |object: &Object, offset: usize, from: usize, count: usize| {
        // One value in 256 passes a check by chance, so the most frequent result is taken.
        let remains_with = |value: u8| {
            // SAFETY: two pages of the range.
            let state = unsafe {
                let at = range().add(2 * HEADER);
                object.write(offset, at);
                at.sub(from).write_bytes(value, count);
                Object::read(at)
            };
            match state {
                HeaderState::Overwritten(intact) => Some(intact),
                _ => None,
            }
        };
        let all: std::vec::Vec<_> = (b'a'..=b'e').filter_map(remains_with).collect();
        let frequency = |intact: &&IntactParts| all.iter().filter(|other| other == intact).count();
        *all.iter().max_by_key(frequency).expect("detected damage")
    };
    for (object, offset) in [(object, HEADER), (long, 2 * HEADER)] {
        for count in 1..=offset {
            let end_damaged = remains_of(&object, offset, count, count);
            assert_eq!(end_damaged.second, None, "{count}");
            let counted = end_damaged
                .first
                .map(|counted| (counted.record, counted.bytes));
            assert_eq!(
                counted,
                (count <= 8).then_some((77, object.bytes)),
                "{count}"
            );
            let start_damaged = remains_of(&object, offset, offset, count);
            assert_eq!(start_damaged.first, None, "{count}");
            assert_eq!(
                start_damaged.second.is_some(),
                count <= offset - 8,
                "{count}"
            );
        }
    }
}

/// Returns writable memory of a range, after its table of headers.
fn range() -> *mut u8 {
    const SIZE: usize = 16 << 20;
    let table = headers::bytes(SIZE);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping where nothing is.
    let base = unsafe { libc::mmap(core::ptr::null_mut(), SIZE, access, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED);
    headers::begin(base.addr());
    // SAFETY: within it, after the table.
    unsafe { base.cast::<u8>().add(table + 4096) }
}

#[test]
fn objects_that_fill_their_class_have_their_header_in_the_table() {
    for bytes in (1..=4).chain([5, 6, 7, 8, 10, 12, 14]).map(|kb| kb << 10) {
        let all = Layout {
            offset: 0,
            usable: bytes,
        };
        for (bytes, align, exact) in [
            (bytes, 1, false),
            (bytes - 15, 16, false),
            (bytes, 8, true),
            (bytes - bytes / 10, 1, true),
        ] {
            assert_eq!(layout(bytes, align, exact), all, "{bytes} {exact}");
        }
        let before = Layout {
            offset: HEADER,
            usable: bytes - HEADER,
        };
        assert_eq!(layout(bytes - 16, 1, false), before);
    }
    for (bytes, align) in [(512, 1), (1280, 1), (4097, 1), (16384, 1), (8192, 32)] {
        assert!(layout(bytes, align, false).offset >= HEADER, "{bytes}");
    }
}

#[test]
fn weighted_bytes_are_size_times_weight() {
    let weighted = |bytes, weight| {
        Object {
            record: 1,
            session: 1,
            weight,
            born: 0,
            bytes,
            align: 1,
            ignored: false,
            exact: false,
        }
        .weighted_bytes()
    };
    assert_eq!(weighted(1000, 1.5), 1500);
    assert_eq!(weighted(0, 1.0), 0);
    assert_eq!(weighted(1 << 40, 1.0), 1 << 40);
}

#[test]
fn exact_objects_have_the_size_of_their_jemalloc_class() {
    for (bytes, align, class) in sizes() {
        assert_eq!(
            layout(bytes, align, true).usable,
            class(bytes),
            "{bytes} aligned to {align}"
        );
    }
    assert_eq!(layout(0, 1, true).usable, 16);
    assert_eq!(layout(0, 16, true).usable, 16);
}

/// An object with a header takes no more than the class that both need, and all of that class
/// is usable that would be usable without a header.
#[test]
fn other_objects_share_their_class_with_their_header() {
    for (bytes, align, class) in sizes() {
        let Layout { offset, usable } = layout(bytes, align, false);
        let description = std::format!("{bytes} aligned to {align}");
        let together = class(bytes + offset);
        assert_eq!(usable, class(bytes).min(together - offset), "{description}");
        assert!(
            usable >= bytes && class(usable + offset) == together,
            "{description}"
        );
    }
    assert_eq!(layout(0, 1, false).usable, 16);
    assert_eq!(layout(4368, 1, false).usable, 5104);
    assert_eq!(layout(5120, 1, false).usable, 5120);
}

/// Returns sizes and alignments, each with a function that returns jemalloc's class for a size
/// with this alignment.
fn sizes() -> impl Iterator<Item = (usize, usize, impl Fn(usize) -> usize)> {
    let mut sizes: std::vec::Vec<usize> = (1..70_000).collect();
    sizes.extend((16..40).flat_map(|bits| [1 << bits, (1 << bits) + 1, (5 << bits) - 1]));
    sizes.into_iter().flat_map(|bytes| {
        [1usize, 8, 16, 32, 64, 4096, 1 << 21].map(|align| {
            let flags = align.trailing_zeros() as c_int;
            // SAFETY: a size that is not 0 and a power of two.
            let class = move |bytes| unsafe { jemalloc::nallocx(bytes, flags) };
            // The backend has jemalloc's smallest class skipped.
            (bytes, align, move |bytes| class(bytes).max(16))
        })
    })
}
