//! Layout of the shared words: tables, given by their offsets from the first word, since their
//! address differs in the copy.

/// Header of the shared words. Tables are given as offsets in words.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Header {
    /// Number of bytes searched so far. Changes all the time.
    pub scanned: u64,
    /// Difference between an address in place and the process's.
    pub shift: u64,
    /// Lowest address that may be in the heap, a multiple of what a leaf covers.
    pub low: u64,
    /// Number of bytes from `low` to the highest such address.
    pub span: u64,
    /// Table of leaves, for each part of the addresses; 0 if there is none. A leaf has a word for
    /// each page: [`Page`].
    pub roots: u64,
    /// Table of kinds of slabs, two words each: [`Kind`].
    pub kinds: u64,
    /// Table of extents, three words each: address, size, and first region with number of regions.
    pub extents: u64,
    /// Number of extents.
    pub extent_count: u64,
    /// Bits of regions that are reached, or not allocated.
    pub taken: u64,
    /// Bits of regions that are reached and not searched.
    pub pending: u64,
    /// Bits of regions that are reached and cannot be searched in place.
    pub foreign: u64,
    /// Table of the origins of regions, half a word each; 0 if not recorded.
    pub from: u64,
    /// Table of ranges to search, three words each: start, end, origin.
    pub ranges: u64,
    /// Number of ranges.
    pub range_count: u64,
    /// Queue of regions to search, two words each.
    pub queue: u64,
    /// Capacity of the queue, a power of two.
    pub queue_room: u64,
}

impl Header {
    /// Returns the header as words.
    #[must_use]
    pub fn words(&self) -> [u64; size_of::<Header>() / 8] {
        [
            self.scanned,
            self.shift,
            self.low,
            self.span,
            self.roots,
            self.kinds,
            self.extents,
            self.extent_count,
            self.taken,
            self.pending,
            self.foreign,
            self.from,
            self.ranges,
            self.range_count,
            self.queue,
            self.queue_room,
        ]
    }
}

/// Number of bits of an offset in a page.
pub const PAGE_BITS: u32 = 12;
/// Size of a page in bytes.
pub const PAGE: u64 = 1 << PAGE_BITS;
/// Number of address bits that a leaf covers.
pub const LEAF_BITS: u32 = 28;
/// Number of words of a leaf.
pub const LEAF: u64 = 1 << (LEAF_BITS - PAGE_BITS);
/// Kind of extents with one region.
pub const SINGLE_REGION: u64 = 0xffff;
/// Flag in the word of an extent's size: objects have headers.
pub const HEADERS: u64 = 1 << 63;

/// Description of a page of the heap, in one word: the first region of its extent, or, if that has
/// only one, the extent; the page's index in its slab; its kind, from 1 on; whether it can be read
/// in place, and whether it is anything but zeros.
#[derive(Clone, Copy)]
pub struct Page(pub u64);

impl Page {
    /// Flag: can be read in place.
    pub const HERE: u64 = 1 << 56;
    /// Flag: can only be read from outside.
    pub const ELSEWHERE: u64 = 1 << 57;

    /// Returns the description of a page of an extent.
    pub fn new(first: u32, index: u64, kind: u64) -> Self {
        Self(u64::from(first) | index << 32 | (kind & 0xffff) << 40)
    }

    /// Returns the first region of its extent, or the extent.
    #[inline(always)]
    pub fn first(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    /// Returns its index in its slab.
    #[inline(always)]
    pub fn index(self) -> u64 {
        self.0 >> 32 & 0xff
    }

    /// Returns its kind; 0 if it is in no extent.
    #[inline(always)]
    pub fn kind(self) -> u64 {
        self.0 >> 40 & 0xffff
    }
}

/// Properties of all slabs of one kind, in two words: the inverse of the size; and the size, the
/// number of regions, whether objects have headers, and whether all pages can be read in place.
#[derive(Clone, Copy)]
pub struct Kind {
    /// 2^40 / size.
    pub inverse: u64,
    /// Size, number of regions and flags.
    pub shape: u64,
}

impl Kind {
    /// Flag: objects have headers.
    pub const SAMPLED: u64 = 1 << 62;
    /// Flag: some pages cannot be read in place.
    pub const PARTIAL: u64 = 1 << 63;

    /// Packs a size below 2^32, a number of regions below 2^24, and flags.
    pub fn shape(size: u64, count: u32, flags: u64) -> u64 {
        size | u64::from(count) << 32 | flags
    }

    /// Returns the size of a region in bytes.
    #[inline(always)]
    pub fn size(self) -> u64 {
        self.shape & 0xffff_ffff
    }

    /// Returns the number of regions of a slab.
    #[inline(always)]
    pub fn count(self) -> u64 {
        self.shape >> 32 & 0xff_ffff
    }
}
