//! How the shared words are laid out: tables, at distances from the first word, since they are
//! elsewhere in the copy.

/// What the first of the shared words say. Tables are given as their distance, in words.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Header {
    /// Bytes that were searched: changes all the time.
    pub scanned: u64,
    /// What is to be added to an address to find it here.
    pub shift: u64,
    /// The first address that may be in the heap, a multiple of what a leaf stands for.
    pub low: u64,
    /// Bytes from there to the last such address.
    pub span: u64,
    /// For each part of the addresses, its leaf; 0: none. A leaf has a word for each page: [`Page`].
    pub roots: u64,
    /// Two words for each kind of slab: [`Kind`].
    pub kinds: u64,
    /// Three words for each extent: where it begins, size, and first region and number of regions.
    pub extents: u64,
    /// How many.
    pub extent_count: u64,
    /// A bit for each region: reached, or not allocated.
    pub taken: u64,
    /// A bit for each region: reached, and not searched.
    pub pending: u64,
    /// A bit for each region: reached, and cannot be searched here.
    pub foreign: u64,
    /// Half a word for each region, what led to it; 0: not wanted.
    pub from: u64,
    /// Three words for each range to search: start, end, what to note as what led from there.
    pub ranges: u64,
    /// How many.
    pub range_count: u64,
    /// Two words for each region to search next.
    pub queue: u64,
    /// Regions that have room there: a power of two.
    pub queue_room: u64,
}

impl Header {
    /// As words.
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

/// Bits of an address in a page.
pub const PAGE_BITS: u32 = 12;
/// Bytes of a page.
pub const PAGE: u64 = 1 << PAGE_BITS;
/// Bits of an address in the part that a leaf stands for.
pub const LEAF_BITS: u32 = 28;
/// Words of a leaf.
pub const LEAF: u64 = 1 << (LEAF_BITS - PAGE_BITS);
/// The kind of an extent of one region.
pub const ONE: u64 = 0xffff;
/// In the word of an extent's size: objects have headers.
pub const HEADERS: u64 = 1 << 63;

/// A page of the heap, as a word: the first region of its extent, or, if that has only one, the
/// extent; the page's number in a slab; its kind, from 1 on; whether it can be read here, and
/// whether it is anything but zeros.
#[derive(Clone, Copy)]
pub struct Page(pub u64);

impl Page {
    /// Can be read here.
    pub const HERE: u64 = 1 << 56;
    /// Can be read elsewhere only.
    pub const ELSEWHERE: u64 = 1 << 57;

    /// A page of an extent.
    pub fn new(first: u32, index: u64, kind: u64) -> Self {
        Self(u64::from(first) | index << 32 | (kind & 0xffff) << 40)
    }

    /// Its extent's first region, or its extent.
    #[inline(always)]
    pub fn first(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    /// Its number in a slab.
    #[inline(always)]
    pub fn index(self) -> u64 {
        self.0 >> 32 & 0xff
    }

    /// Its kind; 0: it is of no extent.
    #[inline(always)]
    pub fn kind(self) -> u64 {
        self.0 >> 40 & 0xffff
    }
}

/// What slabs of one kind have in common, as two words: the inverse of the size; and the size, the
/// number of regions, whether objects have headers, and whether all pages can be read here.
#[derive(Clone, Copy)]
pub struct Kind {
    /// 2^40 by the size.
    pub inverse: u64,
    /// The rest.
    pub shape: u64,
}

impl Kind {
    /// Objects have headers.
    pub const SAMPLED: u64 = 1 << 62;
    /// Not all pages can be read here.
    pub const PARTIAL: u64 = 1 << 63;

    /// For sizes below 2^32, and this many regions, below 2^24.
    pub fn shape(size: u64, count: u32, flags: u64) -> u64 {
        size | u64::from(count) << 32 | flags
    }

    /// Bytes of a region.
    #[inline(always)]
    pub fn size(self) -> u64 {
        self.shape & 0xffff_ffff
    }

    /// Regions of a slab.
    #[inline(always)]
    pub fn count(self) -> u64 {
        self.shape >> 32 & 0xff_ffff
    }
}
