//! The header before each sampled object: what `free` needs to know.
//!
//! ```text
//!   base                                             object
//!   | … padding for alignment … | extension (16) | header (16) | bytes …
//! ```
//! The extension is there when the object is aligned to more than 16 bytes or is
//! larger than 2 GiB.

use shm_protocol::record::{NewSample, RecordId};

/// Bytes of a header.
pub const HEADER: usize = 16;
const EXTENDED: u32 = 1 << 31;

/// A sampled object as its header describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Object {
    /// Where it was counted.
    pub record: RecordId,
    /// Lowest 8 bits of the session's number.
    pub session: u8,
    /// Objects it stands for.
    pub weight: f32,
    /// Birth: the clock's tick, not relative to anything.
    pub born: u32,
    /// Requested bytes.
    pub bytes: u64,
    /// Distance from the allocation's base to the object.
    pub offset: usize,
}

#[repr(C)]
struct Header {
    size: u32,
    place: u32,
    born: u32,
    weight: f32,
}

#[repr(C)]
struct Extension {
    bytes: u64,
    offset: u64,
}

/// Where an object of `bytes` aligned to `align` begins in its allocation.
#[inline]
#[must_use]
pub fn offset_for(bytes: usize, align: usize) -> usize {
    if align <= HEADER && bytes < EXTENDED as usize {
        HEADER
    } else {
        align.max(2 * HEADER)
    }
}

impl Object {
    /// Writes the header of the object at `at`.
    ///
    /// # Safety
    /// `at` is 16-aligned, `self.offset` bytes before it are the caller's to write, and
    /// `self.offset` is what [`offset_for`] gave.
    #[inline]
    pub unsafe fn write(&self, at: *mut u8) {
        let extended = self.offset != HEADER;
        let size = if extended {
            EXTENDED
        } else {
            self.bytes as u32
        };
        let place = self.record << 8 | u32::from(self.session);
        // SAFETY: the caller vouches for the bytes before `at`.
        unsafe {
            let header = at.sub(HEADER).cast::<Header>();
            header.write(Header {
                size,
                place,
                born: self.born,
                weight: self.weight,
            });
            if extended {
                let extension = at.sub(2 * HEADER).cast::<Extension>();
                extension.write(Extension {
                    bytes: self.bytes,
                    offset: self.offset as u64,
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
        let (bytes, offset) = if header.size & EXTENDED == 0 {
            (u64::from(header.size), HEADER)
        } else {
            // SAFETY: `write` put an extension there with this flag.
            let extension = unsafe { at.sub(2 * HEADER).cast::<Extension>().read() };
            (extension.bytes, extension.offset as usize)
        };
        Self {
            record: header.place >> 8,
            session: header.place as u8,
            weight: header.weight,
            born: header.born,
            bytes,
            offset,
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
            (64, 64),
            (1 << 31, 8),
            (1 << 40, 4096),
        ] {
            let offset = offset_for(bytes, align);
            assert!(offset >= HEADER && offset.is_multiple_of(align.max(16)));
            let object = Object {
                record: 0xab_cdef,
                session: 200,
                weight: 64.5,
                born: 0xdead_beef,
                bytes: bytes as u64,
                offset,
            };
            // SAFETY: 8 KiB of aligned memory, offsets of at most 4096 into it.
            let back = unsafe {
                let at = memory.as_mut_ptr().cast::<u8>().add(offset);
                object.write(at);
                Object::read(at)
            };
            assert_eq!(back, object);
        }
    }
}
