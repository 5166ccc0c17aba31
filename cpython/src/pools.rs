//! Pools of CPython's allocator of small objects (pymalloc), as their headers describe them.
//!
//! The allocator maps arenas and divides them into pools, whose blocks have one size each. A pool
//! begins with a header.
//!
//! Source: CPython 3.8 to 3.15, `Objects/obmalloc.c` and `Include/internal/pycore_obmalloc.h`
//! (`struct pool_header`). Free-threaded builds have another allocator.

/// Size of a pool's header, in bytes.
pub const HEADER_BYTES: usize = 48;
/// Smallest size and alignment of pools, in bytes.
pub const MIN_POOL_BYTES: u64 = 4 << 10;

/// Sizes of pools, in bytes: before 3.10, and since.
const POOL_SIZES: [u64; 2] = [MIN_POOL_BYTES, 16 << 10];
/// Difference between the sizes of two size classes, in bytes.
const CLASS_STEP: u64 = 16;
/// Number of size classes: blocks have up to 512 bytes.
const CLASSES: u64 = 32;

/// Pool of blocks of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Size of the pool, in bytes.
    pub bytes: u64,
    /// Size of a block, in bytes.
    pub block_bytes: u64,
    /// Number of blocks in use.
    pub used_blocks: u64,
}

impl Pool {
    /// Decodes the header of the pool at `address`. Returns `None` if no pool at this address has
    /// such a header.
    pub fn decode(address: u64, header: &[u8; HEADER_BYTES]) -> Option<Self> {
        let word = |at: usize| {
            let bytes = header[at..].first_chunk().copied();
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        let half = |at: usize| {
            let bytes = header[at..].first_chunk().copied();
            u64::from(u32::from_le_bytes(bytes.unwrap_or_default()))
        };
        let used_blocks = half(0);
        let free_block = word(8);
        let class = half(36);
        // Offsets of the first block that was never used, and of the last block.
        let next_offset = half(40);
        let last_offset = half(44);
        if class >= CLASSES {
            return None;
        }
        let block_bytes = (class + 1) * CLASS_STEP;
        let bytes = last_offset + block_bytes;
        if !POOL_SIZES.contains(&bytes) || !address.is_multiple_of(bytes) {
            return None;
        }
        let first_offset = HEADER_BYTES as u64;
        let is_block = |offset: u64| {
            offset >= first_offset && (offset - first_offset).is_multiple_of(block_bytes)
        };
        // A pool is initialised when its first block is allocated, which prepares the second, too.
        if !is_block(next_offset) || next_offset < first_offset + 2 * block_bytes {
            return None;
        }
        let prepared_blocks = (next_offset - first_offset) / block_bytes;
        let is_free_block_valid = free_block == 0
            || free_block
                .checked_sub(address)
                .is_some_and(|offset| offset < next_offset && is_block(offset));
        let is_valid =
            next_offset <= bytes && used_blocks <= prepared_blocks && is_free_block_valid;
        is_valid.then_some(Self {
            bytes,
            block_bytes,
            used_blocks,
        })
    }

    /// Returns the size of the blocks in use, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used_blocks * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x7f00_0000_4000;

    fn header(fields: &[(usize, u32)]) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        for (at, value) in fields {
            header[*at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        header
    }

    /// A pool of blocks of 64 bytes, of which ten are in use, and 20 were.
    fn valid() -> [u8; HEADER_BYTES] {
        let next = 48 + 20 * 64;
        let mut header = header(&[(0, 10), (36, 3), (40, next), (44, (16 << 10) - 64)]);
        header[8..16].copy_from_slice(&(ADDRESS + 48 + 64).to_le_bytes());
        header
    }

    #[test]
    fn pools_are_decoded() {
        let pool = Pool::decode(ADDRESS, &valid()).unwrap();
        assert_eq!(
            pool,
            Pool {
                bytes: 16 << 10,
                block_bytes: 64,
                used_blocks: 10
            }
        );
        assert_eq!(pool.used_bytes(), 640);
    }

    #[test]
    fn no_other_header_is_a_pools() {
        let change = |at: usize, value: u32| {
            let mut header = valid();
            header[at..at + 4].copy_from_slice(&value.to_le_bytes());
            Pool::decode(ADDRESS, &header)
        };
        assert!(change(0, 20).is_some());
        assert_eq!(change(0, 21), None, "more blocks than were prepared");
        assert_eq!(change(36, 4), None, "another size class");
        assert_eq!(change(36, 32), None, "no size class");
        assert_eq!(change(40, 48 + 64), None, "one block");
        assert_eq!(change(40, 48 + 20 * 64 + 16), None, "inside a block");
        assert_eq!(change(40, 48 + 256 * 64), None, "after the end");
        assert_eq!(change(44, 8 << 10), None, "another size");
        assert_eq!(change(44, u32::MAX), None);
        assert_eq!(
            change(8, 48),
            None,
            "a free block in no pool of this address"
        );
        assert_eq!(Pool::decode(ADDRESS + 4096, &valid()), None);
        assert_eq!(Pool::decode(0, &[0; HEADER_BYTES]), None);
        assert_eq!(Pool::decode(0, &[0xff; HEADER_BYTES]), None);
    }
}
