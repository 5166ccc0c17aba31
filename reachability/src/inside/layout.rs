//! Layout of the words that are shared with a copy of the process, which searches its own memory.
//! Tables are given by their offsets from the first word, since the words have a different address
//! in the copy.

/// Header of the shared words. Offsets of tables are in words.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Header {
    /// Number of bytes searched so far; shows progress.
    pub scanned: u64,
    /// Added to an address of the process to get the address of the same byte in the copy, modulo
    /// 2^64.
    pub shift: u64,
    /// Lowest address that may be in the heap, rounded down to the start of a leaf.
    pub low: u64,
    /// Number of bytes from `low` to the end of the heap.
    pub span: u64,
    /// Table of the offsets of leaves, one for each `1 << LEAF_BITS` bytes from `low` up; 0 if
    /// there is no leaf. A leaf has a word for each page ([`Page`]).
    pub leaf_table: u64,
    /// Table of slab classes, two words each ([`SlabClass`]).
    pub slab_classes: u64,
    /// Table of extents, three words each: address, size with the flag [`HEADERS`], and first
    /// region with number of regions.
    pub extents: u64,
    /// Number of extents.
    pub extent_count: u64,
    /// Bitmap of the regions that are reached or not allocated.
    pub marked: u64,
    /// Bitmap of the regions that are reached and not searched yet.
    pub pending: u64,
    /// Bitmap of the regions that are reached but cannot be read by the copy. They are searched
    /// from outside.
    pub outside: u64,
    /// Table of what led to each region first, half a word each; 0 if not recorded.
    pub origins: u64,
    /// Table of ranges to search, three words each: start, end, origin.
    pub ranges: u64,
    /// Number of ranges.
    pub range_count: u64,
    /// Ring buffer of regions to search, two words each.
    pub queue: u64,
    /// Capacity of the queue in regions, a power of two.
    pub queue_capacity: u64,
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
            self.leaf_table,
            self.slab_classes,
            self.extents,
            self.extent_count,
            self.marked,
            self.pending,
            self.outside,
            self.origins,
            self.ranges,
            self.range_count,
            self.queue,
            self.queue_capacity,
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
/// Class of extents with one region.
pub const SINGLE_REGION: u64 = 0xffff;
/// Flag in the size of an extent: the regions contain the headers of sampled objects.
pub const HEADERS: u64 = 1 << 63;

/// Description of a page of the heap, in one word:
///
/// - bits 0 to 31: the first region of the page's extent or, if that has only one region, the index
///   of the extent;
/// - bits 32 to 39: index of the page in its slab;
/// - bits 40 to 55: number of the slab class, starting at 1; 0 if the page is in no extent;
/// - bit 56: the page can be read in place;
/// - bit 57: the page can only be read from outside. If neither flag is set, it contains zeros.
#[derive(Clone, Copy)]
pub struct Page(pub u64);

impl Page {
    /// Flag: can be read in place.
    pub const IN_PLACE: u64 = 1 << 56;
    /// Flag: can only be read from outside.
    pub const OUTSIDE: u64 = 1 << 57;

    /// Returns the description of a page of an extent, without flags.
    pub fn new(first: u32, index: u64, class: u64) -> Self {
        Self(u64::from(first) | (index << 32) | ((class & 0xffff) << 40))
    }

    /// Returns the first region of the page's extent, or the index of the extent.
    #[inline(always)]
    pub fn first(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    /// Returns the index of the page in its slab.
    #[inline(always)]
    pub fn index(self) -> u64 {
        (self.0 >> 32) & 0xff
    }

    /// Returns the number of the slab class; 0 if the page is in no extent.
    #[inline(always)]
    pub fn class(self) -> u64 {
        (self.0 >> 40) & 0xffff
    }
}

/// Properties that all slabs of one class share, in two words.
#[derive(Clone, Copy)]
pub struct SlabClass {
    /// 2^40 / size, for divisions by the size.
    pub inverse: u64,
    /// Size, number of regions and flags.
    pub shape: u64,
}

impl SlabClass {
    /// Flag: the regions contain the headers of sampled objects, as for [`HEADERS`].
    pub const SAMPLED: u64 = 1 << 62;
    /// Flag: some pages cannot be read in place.
    pub const PARTIAL: u64 = 1 << 63;

    /// Packs a size below 2^32, a number of regions below 2^24, and flags.
    pub fn shape(size: u64, count: u32, flags: u64) -> u64 {
        size | (u64::from(count) << 32) | flags
    }

    /// Returns the size of a region in bytes.
    #[inline(always)]
    pub fn size(self) -> u64 {
        self.shape & 0xffff_ffff
    }

    /// Returns the number of regions of a slab.
    #[inline(always)]
    pub fn count(self) -> u64 {
        (self.shape >> 32) & 0xff_ffff
    }
}
