//! Sizes and offsets of jemalloc's structures that depend on its configuration: on the page size,
//! which the agent publishes, and on the architecture.

/// Number of bits of an address in a descriptor or the radix tree.
pub const ADDRESS_BITS: u32 = 48;
/// Offset of the root in `rtree_t`, after a pointer and a mutex.
pub const ROOT_OFFSET: u64 = if cfg!(target_arch = "aarch64") {
    128
} else {
    120
};
/// Alignment of descriptors (`EDATA_ALIGNMENT`), in bytes.
pub const EDATA_ALIGNMENT: u64 = 128;
/// Bit position of the extent's state in the last word of a page's radix tree entry
/// (`RTREE_LEAF_STATE_SHIFT`).
pub const STATE_SHIFT: u32 = 2;
/// Mask of that state after the shift. State 0: active.
pub const STATE_MASK: u64 = 7;
/// Offset of a slab's bitmap in a descriptor (`edata_t`).
pub const BITMAP_OFFSET: usize = 64;
/// Alignment of blocks of metadata, in bytes.
pub const BLOCK: u64 = 2 << 20;
/// Offset of the pointer to the newest block in `base_t`.
pub const BLOCKS_OFFSET: u64 = if cfg!(target_arch = "aarch64") {
    168
} else {
    160
};
/// Number of bits of an address in jemalloc for x86-64 processors with five levels of page tables.
const DEEP_ADDRESS_BITS: u32 = 57;
/// Size of a cache line in bytes, as jemalloc assumes it.
const CACHE_LINE: u64 = 64;
/// Number of bits of a bitmap word.
const WORD_BITS: u32 = 64;
/// Maximum number of words of a bitmap that jemalloc searches linearly. Larger ones are trees
/// (`BITMAP_USE_TREE`).
const MAX_FLAT_WORDS: u32 = 8;

/// Shape of the radix tree (`rtree.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of address bits of each level above the leaves.
    pub upper: &'static [u32],
    /// Number of address bits of a leaf.
    pub lower: u32,
    /// Number of words of a leaf's entry. The first word is, or contains, the descriptor's address.
    pub words: usize,
}

impl Shape {
    /// Returns the shape of a tree over page numbers of `bits` bits, with these levels above its
    /// leaves.
    fn with_levels(upper: &'static [u32], bits: u32, words: usize) -> Self {
        let lower = bits - upper.iter().sum::<u32>();
        Self {
            upper,
            lower,
            words,
        }
    }
}

/// Sizes and shapes for one page size.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Page size in bytes.
    pub page: u64,
    /// Size of a descriptor (`edata_t`), whose last field is a slab's bitmap.
    pub edata_bytes: usize,
    /// Size of the `base_block_t` at the start of each metadata block, rounded up to a cache line.
    pub block_header: u64,
    /// Tree for 48-bit addresses.
    pub flat: Shape,
    /// Tree for 57-bit addresses, which exists on x86-64 only.
    pub deep: Option<Shape>,
}

impl Layout {
    /// Returns the layout for a page size, or `None` if it is not 4, 16 or 64 KiB.
    pub fn of_pages(page: u64) -> Option<Self> {
        let (flat, deep): (&'static [u32], &'static [u32]) = match page {
            0x1000 => (&[18], &[15, 15]),
            0x4000 => (&[17], &[14, 14]),
            0x1_0000 => (&[16], &[13, 14]),
            _ => return None,
        };
        let page_bits = page.trailing_zeros();
        let flat = Shape::with_levels(flat, ADDRESS_BITS - page_bits, 1);
        let deep = Shape::with_levels(deep, DEEP_ADDRESS_BITS - page_bits, 2);
        let edata_bytes = BITMAP_OFFSET + 8 * bitmap_words(page) as usize;
        Some(Self {
            page,
            edata_bytes,
            // Two words, and the descriptor of the block itself.
            block_header: (16 + edata_bytes as u64).next_multiple_of(CACHE_LINE),
            flat,
            deep: cfg!(target_arch = "x86_64").then_some(deep),
        })
    }

    /// Returns the base allocator of an arena, at the start of the arena's first block.
    pub fn base_of(&self, arena: u64) -> u64 {
        (arena & !(BLOCK - 1)) + self.block_header
    }
}

/// Returns the number of bitmap words of the slab with the most objects: a page of 8-byte objects.
/// In a tree, the higher levels follow the leaves.
fn bitmap_words(page: u64) -> u32 {
    let objects = (page / 8) as u32;
    let leaves = objects.div_ceil(WORD_BITS);
    if leaves <= MAX_FLAT_WORDS {
        return leaves;
    }
    let mut total = leaves;
    let mut level = leaves;
    while level > 1 {
        level = level.div_ceil(WORD_BITS);
        total += level;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_sizes_equal_jemallocs() {
        // `sizeof(edata_t)` in builds with JEMALLOC_SYS_WITH_LG_PAGE of 12, 14 and 16.
        for (page, edata_bytes) in [(0x1000, 128), (0x4000, 328), (0x1_0000, 1112)] {
            let layout = Layout::of_pages(page).expect("a page size");
            assert_eq!(layout.edata_bytes, edata_bytes);
        }
        for page in [0, 3, 0x2000, 0x3000, 0x8000, 1 << 63] {
            assert!(Layout::of_pages(page).is_none(), "{page}");
        }
    }
}
