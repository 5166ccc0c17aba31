//! Header before each sampled object, with what `free` needs to know.
//!
//! For layout, contents and checksums see [`shm_protocol::header`]. An extension is present if the
//! object is aligned to more than 16 bytes, or has 128 KiB or more.
//!
//! An object that fills a size class of 1 to 14 KiB, a multiple of 1 KiB, has its header in a table
//! instead ([`crate::headers`]), and begins where its allocation does.
//!
//! Any other object takes the size class of its own size plus the header's. The usable size, at
//! least 16 bytes, usually is what it would be without a header: the object's own size class, as
//! `nallocx` returns it. It is 16 bytes less if the object with its header fits into that same
//! class. A program that has ever called `nallocx`, or that allocates with `mallocx`, may rely on
//! all of the class. So its objects are exact: they take the next class if they would fill their
//! own.

// Decision 56: headers lie in what the size class leaves over.
use crate::backend::jemalloc;
use crate::headers;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use shm_protocol::header::{
    self, Counted, Drawn, EXTENSION_DISTANCE, HEADER, MAX_TABLE_CLASS, MIN_EXTENDED_BYTES,
    TABLE_UNIT, Words,
};
use shm_protocol::record::{NewSample, RecordId};

/// Granularity of the tables of size classes, in bytes: each class is a multiple of it.
const STEP: usize = 8;
/// Largest size class in the tables, in bytes. jemalloc is queried for larger ones.
const MAX_KNOWN: usize = 4 << 10;
/// Flag of an entry: objects of this size have their header in the table of headers.
const IN_TABLE: usize = 1;

/// Sampled object, as its header describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    /// Record in which it was counted.
    pub record: RecordId,
    /// Low 8 bits of the session's number.
    pub session: u8,
    /// Number of objects that it stands for, rounded as headers store it ([`header::storable`]).
    pub weight: f32,
    /// Tick of the clock at which it was allocated.
    pub born: u32,
    /// Requested size in bytes.
    pub bytes: u64,
    /// Requested alignment if it made a difference; else 1.
    pub align: usize,
    /// True if leak checks ignore it.
    pub ignored: bool,
    /// True if all of its size class is usable.
    pub exact: bool,
}

/// Result of reading a header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeaderState {
    /// Header of a live object.
    Live(Object),
    /// Header of an object that was freed.
    Freed,
    /// Header that the program has overwritten.
    Overwritten(Remains),
}

/// Intact parts of an overwritten header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remains {
    /// First word, if it is intact; with the size from the extension, if there is one.
    pub counted: Option<Counted>,
    /// Second word, which is next to the object, if it is intact.
    pub drawn: Option<Drawn>,
}

/// True once the program has queried the size of a class.
static KNOWS_CLASSES: AtomicBool = AtomicBool::new(false);

/// Makes all of the size class usable in every object from now on.
pub fn expect_classes() {
    if !KNOWS_CLASSES.load(Ordering::Relaxed) {
        KNOWS_CLASSES.store(true, Ordering::Relaxed);
    }
}

/// Returns true if an object that does not come from jemalloc's own functions needs all of its size
/// class.
#[inline]
#[must_use]
pub fn is_exact() -> bool {
    KNOWS_CLASSES.load(Ordering::Relaxed)
}

/// Position of an object in its allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// Offset of the object in its allocation; 0 if its header is in the table.
    pub offset: usize,
    /// Usable size in bytes.
    pub usable: usize,
}

/// Returns the layout of an object. With `exact`, all of its size class must be usable.
#[inline]
#[must_use]
pub fn layout(bytes: usize, align: usize, exact: bool) -> Layout {
    if align < HEADER && bytes <= MAX_KNOWN {
        let entry = if exact { &CLASSES } else { &USABLE };
        let entry = usize::from(entry[bytes.div_ceil(STEP)]);
        Layout {
            offset: HEADER - HEADER * (entry & IN_TABLE),
            usable: entry & !IN_TABLE,
        }
    } else {
        uncommon_layout(bytes, align, exact)
    }
}

#[cold]
#[inline(never)]
fn uncommon_layout(bytes: usize, align: usize, exact: bool) -> Layout {
    let aligned = align <= HEADER;
    if aligned && (HEADER..=MAX_TABLE_CLASS).contains(&bytes) && is_in_table(bytes, exact) {
        let usable = class_of(bytes);
        return Layout { offset: 0, usable };
    }
    let flags = align.trailing_zeros() as c_int;
    let bytes = bytes.max(1);
    let offset = if aligned && (bytes as u64) < MIN_EXTENDED_BYTES {
        HEADER
    } else {
        header::extended_offset(align)
    };
    // SAFETY: a size that is not 0 and a power of two.
    let class = |bytes| unsafe { jemalloc::nallocx(bytes, flags) };
    let usable = match (class(bytes), exact) {
        (class_bytes, true) => class_bytes,
        // 0 if it is too large for any class.
        (class_bytes, false) => class_bytes.min(class(bytes + offset).saturating_sub(offset)),
    };
    Layout { offset, usable }
}

/// Returns true if an object of this size has its header in the table: if it fills its class, or
/// needs all of it.
const fn is_in_table(bytes: usize, exact: bool) -> bool {
    let class = class_of(bytes);
    header::is_table_class(class) && (exact || bytes + HEADER > class)
}

/// Size classes of requests, in steps of 8 bytes, with the flag [`IN_TABLE`].
static CLASSES: [u16; MAX_KNOWN / STEP + 1] = {
    let mut classes = [0; MAX_KNOWN / STEP + 1];
    let mut at = 0;
    while at < classes.len() {
        let bytes = at * STEP;
        classes[at] = (class_of(bytes) | is_in_table(bytes, true) as usize) as u16;
        at += 1;
    }
    classes
};

/// Usable sizes after a header, in the class that both fill together, with the flag [`IN_TABLE`].
static USABLE: [u16; MAX_KNOWN / STEP + 1] = {
    let mut usable = [0; MAX_KNOWN / STEP + 1];
    let mut at = 0;
    while at < usable.len() {
        let bytes = at * STEP;
        let alone = class_of(bytes);
        let both = class_of(bytes + HEADER) - HEADER;
        let size = if is_in_table(bytes, false) {
            alone | IN_TABLE
        } else if both > 0 && both < alone {
            both
        } else {
            alone
        };
        usable[at] = size as u16;
        at += 1;
    }
    usable
};

/// Returns the size class of a request. Up to 128 bytes, classes are multiples of 16; above, there
/// are four for each doubling.
const fn class_of(bytes: usize) -> usize {
    let bytes = if bytes == 0 { 1 } else { bytes };
    let step = if bytes <= 128 {
        16
    } else {
        1 << ((bytes - 1).ilog2() - 2)
    };
    bytes.next_multiple_of(step)
}

/// Returns the address of an object's header.
///
/// # Safety
/// `at` is in the range, in memory of the arena, all of which has entries in the table.
#[inline(always)]
unsafe fn header_of(at: *const u8) -> *mut Words {
    // SAFETY: the table has an entry for `at`, and the bytes before `at` belong to the arena.
    unsafe {
        if at.addr().is_multiple_of(TABLE_UNIT) {
            let entry: *mut Words = headers::entry(at).cast();
            // Entries without an object, live or freed, are zero.
            if (*entry)[1] != 0 {
                return entry;
            }
        }
        at.wrapping_sub(HEADER).cast_mut().cast()
    }
}

/// Clears the table's entry for an object whose header lies before it: an earlier object at this
/// address may have left its header there.
///
/// # Safety
/// `at` is a multiple of [`TABLE_UNIT`], in memory of the arena.
#[cold]
unsafe fn forget_entry(at: *const u8) {
    let entry: *mut Words = headers::entry(at).cast();
    // SAFETY: the table has an entry for `at`. Written only if necessary, because the page may not
    // be backed yet.
    unsafe {
        if (*entry)[1] != 0 {
            (*entry)[1] = 0;
        }
    }
}

impl Object {
    /// Writes the header of an object.
    ///
    /// # Safety
    /// `at` is 16-aligned, and `offset` is that of the object's [`layout`](Self::layout). The
    /// `offset` bytes before `at` belong to the caller. If `offset` is 0, `at` is a multiple of
    /// [`TABLE_UNIT`] in the range.
    #[inline]
    pub unsafe fn write(&self, offset: usize, at: *mut u8) {
        let address = at.addr() as u64;
        let extended = offset > HEADER;
        let counted = Counted {
            record: self.record,
            session: self.session,
            bytes: if extended { 0 } else { self.bytes },
            ignored: self.ignored,
            exact: self.exact,
            extended,
        };
        let drawn = Drawn {
            weight: self.weight,
            born: self.born,
        };
        let words = [
            header::first(&counted, address),
            header::second(drawn, address),
        ];
        // SAFETY: the `offset` bytes before `at` are nobody else's, or the table has an entry for
        // `at`.
        unsafe {
            if offset == 0 {
                headers::entry(at).cast::<Words>().write(words);
                return;
            }
            if at.addr().is_multiple_of(TABLE_UNIT) {
                forget_entry(at);
            }
            at.sub(HEADER).cast::<Words>().write(words);
            if extended {
                let words = header::extension(self.bytes, self.align as u64, address);
                at.sub(EXTENSION_DISTANCE).cast::<Words>().write(words);
            }
        }
    }

    /// Reads the header of an object.
    ///
    /// # Safety
    /// `at` is in the range, in memory of the arena.
    #[inline]
    #[must_use]
    pub unsafe fn read(at: *const u8) -> HeaderState {
        let address = at.addr() as u64;
        // SAFETY: `at` is in memory of the arena. An invalid pointer of the program may be
        // unaligned.
        let words = unsafe { header_of(at).read_unaligned() };
        let first = header::read_first(words[0], address);
        let second = header::read_second(words[1], address);
        match (first, second) {
            (Some(counted), Some(drawn)) if !counted.extended => {
                HeaderState::Live(Self::of(&counted, drawn, counted.bytes, 1))
            }
            // SAFETY: `at` is in memory of the arena.
            _ => unsafe { Self::read_uncommon(at, words) },
        }
    }

    /// Reads the header of an object with an extension, or one that is not intact.
    ///
    /// # Safety
    /// See [`read`](Self::read).
    #[cold]
    #[inline(never)]
    unsafe fn read_uncommon(at: *const u8, words: Words) -> HeaderState {
        let address = at.addr() as u64;
        let second = header::read_second(words[1], address);
        let mut first = header::read_first(words[0], address);
        if second.is_none() && header::is_freed(words[1], address) {
            return HeaderState::Freed;
        }
        if let Some(counted) = first.filter(|counted| counted.extended) {
            // SAFETY: `write` put an extension there together with this flag. If the flag is not
            // genuine, the checksum fails.
            let words = unsafe { at.sub(EXTENSION_DISTANCE).cast::<Words>().read_unaligned() };
            let extension = header::read_extension(words, address);
            if let (Some((bytes, align)), Some(drawn)) = (extension, second) {
                return HeaderState::Live(Self::of(&counted, drawn, bytes, align as usize));
            }
            first = extension.map(|(bytes, _)| Counted { bytes, ..counted });
        }
        HeaderState::Overwritten(Remains {
            counted: first,
            drawn: second,
        })
    }

    #[inline(always)]
    fn of(counted: &Counted, drawn: Drawn, bytes: u64, align: usize) -> Self {
        Self {
            record: counted.record,
            session: counted.session,
            weight: drawn.weight,
            born: drawn.born,
            bytes,
            align,
            ignored: counted.ignored,
            exact: counted.exact,
        }
    }

    /// Marks an object as freed, for the detection of double frees, and for outside readers that
    /// look for objects. jemalloc does not write to free memory; at most it releases the page,
    /// which then reads as zeros.
    ///
    /// # Safety
    /// [`write`](Self::write) wrote a header there, and the memory is still allocated.
    #[inline]
    pub unsafe fn retire(at: *mut u8) {
        // SAFETY: a header is there, in memory that is still allocated.
        unsafe { (*header_of(at))[1] = header::freed(at.addr() as u64) }
    }

    /// Returns the object's position in its allocation.
    #[inline]
    #[must_use]
    pub fn layout(&self) -> Layout {
        layout(self.bytes as usize, self.align, self.exact)
    }

    /// Returns the number of bytes that the object stands for.
    #[inline]
    #[must_use]
    pub fn weighted_bytes(&self) -> u64 {
        (self.bytes as i64 as f64 * f64::from(self.weight)) as u64
    }

    /// Returns the sample as it was counted at the allocation. `start` is the session's first tick.
    #[inline]
    #[must_use]
    pub fn sample(&self, start: u32) -> NewSample {
        let tick = self.born.wrapping_sub(start);
        NewSample {
            bytes: self.bytes,
            weight: self.weight,
            tick,
        }
    }
}

#[cfg(test)]
mod tests {
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
                    HeaderState::Overwritten(remains) => Some(remains),
                    _ => None,
                }
            };
            let all: std::vec::Vec<_> = (b'a'..=b'e').filter_map(remains_with).collect();
            let frequency =
                |remains: &&Remains| all.iter().filter(|other| other == remains).count();
            *all.iter().max_by_key(frequency).expect("detected damage")
        };
        for (object, offset) in [(object, HEADER), (long, 2 * HEADER)] {
            for count in 1..=offset {
                let end_damaged = remains_of(&object, offset, count, count);
                assert_eq!(end_damaged.drawn, None, "{count}");
                let counted = end_damaged
                    .counted
                    .map(|counted| (counted.record, counted.bytes));
                assert_eq!(
                    counted,
                    (count <= 8).then_some((77, object.bytes)),
                    "{count}"
                );
                let start_damaged = remains_of(&object, offset, offset, count);
                assert_eq!(start_damaged.counted, None, "{count}");
                assert_eq!(
                    start_damaged.drawn.is_some(),
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
}
