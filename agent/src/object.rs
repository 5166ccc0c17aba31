//! The header before each sampled object: what `free` needs to know.
//!
//! ```text
//!   base                                             object
//!   | … padding for alignment … | extension (16) | header (16) | bytes …
//! ```
//! The extension is present if the object is aligned to more than 16 bytes, or has 512 MiB or more.
//!
//! An object that fills a size class of 1 to 14 KiB, a multiple of 1 KiB, has its header in a table instead
//! ([`crate::headers`]), and begins where its allocation does.
//!
//! Any other object with its header takes the size class of the two together. The usable size, at least 16
//! bytes, is as a rule what it would be without a header: the object's own size class, as `nallocx`
//! returns it. Where the two together fit the same class as the object alone, it is 16 bytes less.
//! A program that has ever called `nallocx`, or that allocates with `mallocx`, may rely on all of
//! the class, and gets it: its objects are exact, and take the next class where they would fill
//! their own.

use crate::headers::{self, UNIT};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use shm_protocol::record::{NewSample, RecordId};

/// Bytes of a header.
pub const HEADER: usize = 16;
const EXTENDED: u32 = 1 << 31;
/// In the size: the program said that the object is not a leak.
const IGNORED: u32 = 1 << 30;
/// In the size: the object has all of its size class.
const EXACT: u32 = 1 << 29;
/// Sizes from here on are in the extension.
const LONG: usize = 1 << 29;
/// Bytes from one entry of the tables of size classes to the next; each class is a multiple of it.
const STEP: usize = 8;
/// Size classes up to here are known; those of large objects are jemalloc's affair.
const KNOWN: usize = 4 << 10;
/// The largest size class with headers in the table: of larger ones, what is unused takes no memory.
const MOST_FULL: usize = 14 << 10;
/// In the known classes: the header is in the table.
const IN_TABLE: usize = 1;

/// A sampled object as its header describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    /// Record in which it was counted.
    pub record: RecordId,
    /// Lowest 8 bits of the session's number.
    pub session: u8,
    /// Objects it stands for.
    pub weight: f32,
    /// Birth: the clock's tick, not relative to anything.
    pub born: u32,
    /// Requested bytes.
    pub bytes: u64,
    /// Alignment that was requested, where that made a difference; else 1.
    pub align: usize,
    /// Whether a leak check leaves it out.
    pub ignored: bool,
    /// Whether it has all of its size class.
    pub exact: bool,
}

/// Whether the program has queried the size of a class.
static KNOWS_CLASSES: AtomicBool = AtomicBool::new(false);

/// From now on, every object has all of its size class.
pub fn expect_classes() {
    if !KNOWS_CLASSES.load(Ordering::Relaxed) {
        KNOWS_CLASSES.store(true, Ordering::Relaxed);
    }
}

/// Whether an object that is not jemalloc's own calls' needs all of its size class.
#[inline]
#[must_use]
pub fn is_exact() -> bool {
    KNOWS_CLASSES.load(Ordering::Relaxed)
}

#[repr(C)]
struct Header {
    size: u32,
    counted: u32,
    born: u32,
    weight: f32,
}

#[repr(C)]
struct Extension {
    bytes: u64,
    align: u64,
}

/// Position of an object in its allocation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// Distance from the allocation's base to the object; 0: its header is in the table.
    pub offset: usize,
    /// Bytes that its owner may use.
    pub usable: usize,
}

/// The layout of an object of `bytes` aligned to `align`, `exact` if it needs all of its size class.
#[inline]
#[must_use]
pub fn layout(bytes: usize, align: usize, exact: bool) -> Layout {
    if align < HEADER && bytes <= KNOWN {
        let known = if exact { &CLASSES } else { &USABLE };
        let known = usize::from(known[bytes.div_ceil(STEP)]);
        Layout {
            offset: HEADER - HEADER * (known & IN_TABLE),
            usable: known & !IN_TABLE,
        }
    } else {
        uncommon_layout(bytes, align, exact)
    }
}

#[cold]
#[inline(never)]
fn uncommon_layout(bytes: usize, align: usize, exact: bool) -> Layout {
    let aligned = align <= HEADER;
    if aligned && (HEADER..=MOST_FULL).contains(&bytes) && is_in_table(bytes, exact) {
        let usable = class_of(bytes);
        return Layout { offset: 0, usable };
    }
    let flags = align.trailing_zeros() as c_int;
    let bytes = bytes.max(1);
    let offset = if aligned && bytes < LONG {
        HEADER
    } else {
        align.max(2 * HEADER)
    };
    // SAFETY: a size that is not 0 and a power of two.
    let class = |bytes| unsafe { tikv_jemalloc_sys::nallocx(bytes, flags) };
    let usable = match (class(bytes), exact) {
        (own, true) => own,
        // 0 if it is too large for any class.
        (own, false) => own.min(class(bytes + offset).saturating_sub(offset)),
    };
    Layout { offset, usable }
}

/// Whether an object of this many bytes has its header in the table: where it fills its class, or
/// needs all of it.
const fn is_in_table(bytes: usize, exact: bool) -> bool {
    let class = class_of(bytes);
    class.is_multiple_of(UNIT) && class <= MOST_FULL && (exact || bytes + HEADER > class)
}

/// Size classes of requests, in steps of 8 bytes.
static CLASSES: [u16; KNOWN / STEP + 1] = {
    let mut classes = [0; KNOWN / STEP + 1];
    let mut at = 0;
    while at < classes.len() {
        let bytes = at * STEP;
        classes[at] = (class_of(bytes) | is_in_table(bytes, true) as usize) as u16;
        at += 1;
    }
    classes
};

/// What can be used of them behind a header, in the class that both fill together.
static USABLE: [u16; KNOWN / STEP + 1] = {
    let mut usable = [0; KNOWN / STEP + 1];
    let mut at = 0;
    while at < usable.len() {
        let bytes = at * STEP;
        let (own, both) = (class_of(bytes), class_of(bytes + HEADER) - HEADER);
        usable[at] = match is_in_table(bytes, false) {
            true => own | IN_TABLE,
            false if both > 0 && both < own => both,
            false => own,
        } as u16;
        at += 1;
    }
    usable
};

/// The size class of a request: multiples of 16, and from 128 on four to each doubling.
const fn class_of(bytes: usize) -> usize {
    let bytes = if bytes == 0 { 1 } else { bytes };
    let step = if bytes <= 128 {
        16
    } else {
        1 << ((bytes - 1).ilog2() - 2)
    };
    bytes.next_multiple_of(step)
}

/// The header of the object at `at`.
///
/// # Safety
/// An object is there, or was until it was [retired](Object::retire).
#[inline(always)]
unsafe fn header(at: *const u8) -> *mut Header {
    // SAFETY: the caller's: in the range, all of which has entries.
    unsafe {
        if at.addr().is_multiple_of(UNIT) {
            let entry: *mut Header = headers::entry(at).cast();
            if (*entry).weight != 0.0 {
                return entry;
            }
        }
        at.sub(HEADER).cast_mut().cast()
    }
}

impl Object {
    /// Writes the header of the object at `at`.
    ///
    /// # Safety
    /// `at` is 16-aligned, the bytes before it are the caller's to write as far as the
    /// object's `offset` says, which is that of its [`layout`](Self::layout). If that is 0, `at` is a
    /// multiple of [`UNIT`], in the range.
    #[inline]
    pub unsafe fn write(&self, offset: usize, at: *mut u8) {
        let extended = offset > HEADER;
        let size = if extended {
            EXTENDED
        } else {
            self.bytes as u32
        };
        let size = size | if self.ignored { IGNORED } else { 0 };
        let size = size | if self.exact { EXACT } else { 0 };
        let counted = self.record << 8 | u32::from(self.session);
        // SAFETY: the caller vouches for the bytes before `at`, or for its entry.
        unsafe {
            let header: *mut Header = match offset {
                0 => headers::entry(at).cast(),
                _ => at.sub(HEADER).cast(),
            };
            header.write(Header {
                size,
                counted,
                born: self.born,
                weight: self.weight,
            });
            if extended {
                let extension = at.sub(2 * HEADER).cast::<Extension>();
                extension.write(Extension {
                    bytes: self.bytes,
                    align: self.align as u64,
                });
            }
        }
    }

    /// Reads the header of the object at `at`.
    ///
    /// # Safety
    /// [`write`](Self::write) wrote it and the object is still allocated.
    #[inline]
    #[must_use]
    pub unsafe fn read(at: *const u8) -> Self {
        // SAFETY: the caller vouches that a header is there.
        let header = unsafe { header(at).read() };
        let (bytes, align) = if header.size & EXTENDED == 0 {
            (u64::from(header.size & !(IGNORED | EXACT)), 1)
        } else {
            // SAFETY: `write` put an extension there with this flag.
            let extension = unsafe { at.sub(2 * HEADER).cast::<Extension>().read() };
            (extension.bytes, extension.align as usize)
        };
        Self {
            record: header.counted >> 8,
            session: header.counted as u8,
            weight: header.weight,
            born: header.born,
            bytes,
            align,
            ignored: header.size & IGNORED != 0,
            exact: header.size & EXACT != 0,
        }
    }

    /// Marks the header as one of no object, for who looks for objects from outside. jemalloc
    /// writes nothing to free memory; at most it gives the page back, which leaves zeros.
    ///
    /// # Safety
    /// [`write`](Self::write) wrote a header there, and the memory is still allocated.
    #[inline]
    pub unsafe fn retire(at: *mut u8) {
        // SAFETY: the caller vouches that a header is there.
        unsafe { (*header(at)).weight = 0.0 }
    }

    /// Position in its allocation.
    #[inline]
    #[must_use]
    pub fn layout(&self) -> Layout {
        layout(self.bytes as usize, self.align, self.exact)
    }

    /// Bytes that it stands for; 0 if its header was overwritten.
    #[inline]
    #[must_use]
    pub fn weighted_bytes(&self) -> u64 {
        const MOST: f64 = (1u64 << 62) as f64;
        let weighted = self.bytes as i64 as f64 * f64::from(self.weight);
        if weighted.abs() < MOST {
            // SAFETY: a number below 2^62, just compared. It saves a third of the instructions.
            unsafe { weighted.to_int_unchecked::<i64>() as u64 }
        } else {
            0
        }
    }

    /// As it was counted at birth, `start` being the session's first tick.
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
    fn headers_survive() {
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
                weight: 64.5,
                born: 0xdead_beef,
                bytes: bytes as u64,
                align,
                ignored: bytes % 2 == 1,
                exact: bytes % 3 == 1,
            };
            let Layout { offset, .. } = object.layout();
            assert!(offset == 0 || offset >= HEADER && offset.is_multiple_of(align.max(16)));
            // SAFETY: two pages of the range, offsets of at most one into them.
            unsafe {
                let at = pages.add(offset);
                object.write(offset, at);
                let back = Object::read(at);
                assert_eq!(Object { align, ..back }, object);
                assert_eq!(back.layout(), object.layout());
                Object::retire(at);
                // Another one there has its header before it again.
                assert_eq!((*header(at)).weight, 0.0);
                assert_eq!(header(at), at.sub(HEADER).cast());
            }
        }
    }

    /// Memory of a range that is after the table of headers, and may be written to.
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
    fn objects_that_fill_their_class_take_no_other() {
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
        for weight in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e38] {
            assert_eq!(weighted(1 << 39, weight), 0);
        }
    }

    #[test]
    fn exact_objects_have_the_size_that_jemalloc_says() {
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

    /// A header takes no more than the class that it needs, and what of that is not usable would not
    /// be without it either.
    #[test]
    fn other_objects_share_their_class_with_their_header() {
        for (bytes, align, class) in sizes() {
            let Layout { offset, usable } = layout(bytes, align, false);
            let told = std::format!("{bytes} aligned to {align}");
            let together = class(bytes + offset);
            assert_eq!(usable, class(bytes).min(together - offset), "{told}");
            assert!(
                usable >= bytes && class(usable + offset) == together,
                "{told}"
            );
        }
        assert_eq!(layout(0, 1, false).usable, 16);
        assert_eq!(layout(4368, 1, false).usable, 5104);
        assert_eq!(layout(5120, 1, false).usable, 5120);
    }

    /// Sizes and alignments, each with jemalloc's word for the class of a size so aligned.
    fn sizes() -> impl Iterator<Item = (usize, usize, impl Fn(usize) -> usize)> {
        let mut sizes: std::vec::Vec<usize> = (1..70_000).collect();
        sizes.extend((16..40).flat_map(|bits| [1 << bits, (1 << bits) + 1, (5 << bits) - 1]));
        sizes.into_iter().flat_map(|bytes| {
            [1usize, 8, 16, 32, 64, 4096, 1 << 21].map(|align| {
                let flags = align.trailing_zeros() as c_int;
                // SAFETY: a size that is not 0 and a power of two.
                let class = move |bytes| unsafe { tikv_jemalloc_sys::nallocx(bytes, flags) };
                // The backend has jemalloc's smallest class skipped.
                (bytes, align, move |bytes| class(bytes).max(16))
            })
        })
    }
}
