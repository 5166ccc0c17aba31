//! The header before each sampled object: what `free` needs to know.
//!
//! ```text
//!   base                                             object
//!   | … padding for alignment … | extension (16) | header (16) | bytes …
//! ```
//! The extension is there when the object is aligned to more than 16 bytes, has 1 GiB or
//! more, or is so small that an alignment to 16 makes it larger.
//!
//! An object has as many usable bytes as jemalloc gives its request: the size class, 8 bytes
//! at least, and memory for all of them.

use core::ffi::c_int;
use shm_protocol::record::{NewSample, RecordId};

/// Bytes of a header.
pub const HEADER: usize = 16;
const EXTENDED: u32 = 1 << 31;
/// In the size: the program said that the object is no leak.
const IGNORED: u32 = 1 << 30;
/// jemalloc's smallest size class.
const SMALLEST: usize = 8;
/// Size classes up to here are known; those of large objects are jemalloc's affair.
const KNOWN: usize = 4 << 10;

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
    /// Alignment that was asked for, where that made a difference; else 1.
    pub align: usize,
    /// Whether a leak check leaves it out.
    pub ignored: bool,
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
    /// Distance from the allocation's base to the object.
    pub offset: usize,
    /// Bytes that its owner may use: what jemalloc's `nallocx` says.
    pub usable: usize,
}

/// The layout of an object of `bytes` aligned to `align`.
#[inline]
#[must_use]
pub fn layout(bytes: usize, align: usize) -> Layout {
    if align < HEADER && bytes <= KNOWN {
        Layout {
            offset: HEADER,
            usable: known_class(bytes),
        }
    } else {
        uncommon_layout(bytes, align)
    }
}

#[cold]
#[inline(never)]
fn uncommon_layout(bytes: usize, align: usize) -> Layout {
    let aligned = align < HEADER || (align == HEADER && bytes > SMALLEST);
    let flags = align.trailing_zeros() as c_int;
    Layout {
        offset: if aligned && bytes < IGNORED as usize {
            HEADER
        } else {
            align.max(2 * HEADER)
        },
        // SAFETY: a size that is not 0 and a power of two.
        usable: unsafe { tikv_jemalloc_sys::nallocx(bytes.max(1), flags) },
    }
}

/// The least size class that holds `bytes`, up to [`KNOWN`].
#[inline]
fn known_class(bytes: usize) -> usize {
    usize::from(CLASSES[bytes.div_ceil(SMALLEST)])
}

/// By multiples of 8: classes are 8, multiples of 16, and from 128 on four to each doubling.
static CLASSES: [u16; KNOWN / SMALLEST + 1] = {
    let mut classes = [SMALLEST as u16; KNOWN / SMALLEST + 1];
    let mut at = 2;
    while at < classes.len() {
        let bytes = at * SMALLEST;
        let step = if bytes <= 128 {
            16
        } else {
            1 << ((bytes - 1).ilog2() - 2)
        };
        classes[at] = bytes.next_multiple_of(step) as u16;
        at += 1;
    }
    classes
};

impl Object {
    /// Writes the header of the object at `at`.
    ///
    /// # Safety
    /// `at` is 16-aligned, the bytes before it are the caller's to write as far as the
    /// object's `offset` says, which is that of its [`layout`](Self::layout).
    #[inline]
    pub unsafe fn write(&self, offset: usize, at: *mut u8) {
        let extended = offset != HEADER;
        let size = if extended {
            EXTENDED
        } else {
            self.bytes as u32
        };
        let size = size | if self.ignored { IGNORED } else { 0 };
        let counted = self.record << 8 | u32::from(self.session);
        // SAFETY: the caller vouches for the bytes before `at`.
        unsafe {
            let header = at.sub(HEADER).cast::<Header>();
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
        let header = unsafe { at.sub(HEADER).cast::<Header>().read() };
        let (bytes, align) = if header.size & EXTENDED == 0 {
            (u64::from(header.size & !IGNORED), 1)
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
        unsafe { (*at.sub(HEADER).cast::<Header>()).weight = 0.0 }
    }

    /// Position in its allocation.
    #[inline]
    #[must_use]
    pub fn layout(&self) -> Layout {
        layout(self.bytes as usize, self.align)
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
        let mut memory = std::vec![0u128; 512];
        for (bytes, align) in [
            (0usize, 1usize),
            (5, 16),
            (17, 1),
            (64, 64),
            ((1 << 30) - 1, 1),
            (1 << 30, 8),
            (1 << 31, 8),
            (1 << 40, 4096),
        ] {
            let object = Object {
                record: 0xab_cdef,
                session: 200,
                weight: 64.5,
                born: 0xdead_beef,
                bytes: bytes as u64,
                align,
                ignored: bytes % 2 == 1,
            };
            let Layout { offset, .. } = object.layout();
            assert!(offset >= HEADER && offset.is_multiple_of(align.max(16)));
            // SAFETY: 8 KiB of aligned memory, offsets of at most 4096 into it.
            let back = unsafe {
                let at = memory.as_mut_ptr().cast::<u8>().add(offset);
                object.write(offset, at);
                Object::read(at)
            };
            assert_eq!(back, object);
            assert_eq!(back.layout(), object.layout());
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
    fn objects_have_the_size_that_jemalloc_says() {
        let mut sizes: std::vec::Vec<usize> = (1..70_000).collect();
        sizes.extend((16..40).flat_map(|bits| [1 << bits, (1 << bits) + 1, (5 << bits) - 1]));
        for bytes in sizes {
            for align in [1usize, 8, 16, 32, 64, 4096, 1 << 21] {
                let flags = align.trailing_zeros() as c_int;
                // SAFETY: a size that is not 0 and a power of two.
                let theirs = unsafe { tikv_jemalloc_sys::nallocx(bytes, flags) };
                assert_eq!(
                    layout(bytes, align).usable,
                    theirs,
                    "{bytes} aligned to {align}"
                );
            }
        }
        assert_eq!(layout(0, 1).usable, 8);
        assert_eq!(layout(0, 16).usable, 16);
    }
}
