//! Page table that maps an address to the slab that contains it. Each leaf covers one GiB.

use std::ops::Range;

/// Logarithm of the number of bytes that an entry covers.
const PAGE_BITS: u32 = 12;
/// Logarithm of the number of bytes that a leaf covers.
const LEAF_BITS: u32 = 30;
/// Number of bits of a program's addresses.
const ADDRESS_BITS: u32 = 48;
/// Number of entries of a leaf.
const LEAF: usize = 1 << (LEAF_BITS - PAGE_BITS);
/// Maximum number of leaves. Pages beyond that are not entered.
const MAX_LEAVES: usize = 1 << 12;

/// Page table of slabs.
#[derive(Debug)]
pub struct Pages {
    /// Index of the leaf of each GiB, plus 1; 0 if there is none.
    roots: Vec<u32>,
    /// Leaves: index of the extent of each page, plus 1; 0 if there is none.
    leaves: Vec<Box<[u32]>>,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            roots: vec![0; 1 << (ADDRESS_BITS - LEAF_BITS)],
            leaves: Vec::new(),
        }
    }
}

impl Pages {
    /// Returns the extent that contains `address`.
    #[inline]
    #[must_use]
    pub fn find(&self, address: u64) -> Option<u32> {
        let number = *self.roots.get((address >> LEAF_BITS) as usize)?;
        let leaf = self.leaves.get((number as usize).wrapping_sub(1))?;
        let page = (address >> PAGE_BITS) as usize % LEAF;
        leaf[page].checked_sub(1)
    }

    /// Enters an extent for all pages of `range` that have none. Returns false if there are too
    /// many leaves, or the addresses have more bits than jemalloc maps.
    pub fn enter(&mut self, range: Range<u64>, extent: u32) -> bool {
        let mut page = range.start >> PAGE_BITS;
        let end = range.end.div_ceil(1 << PAGE_BITS);
        while page < end {
            let Some(leaf) = self.leaf(page << PAGE_BITS) else {
                return false;
            };
            let first = page as usize % LEAF;
            let count = ((end - page) as usize).min(LEAF - first);
            for entry in &mut leaf[first..first + count] {
                if *entry == 0 {
                    *entry = extent + 1;
                }
            }
            page += count as u64;
        }
        true
    }

    /// Returns the leaf of an address, and creates it if there is none.
    fn leaf(&mut self, address: u64) -> Option<&mut [u32]> {
        let root = self.roots.get_mut((address >> LEAF_BITS) as usize)?;
        if *root == 0 {
            if self.leaves.len() >= MAX_LEAVES {
                return None;
            }
            self.leaves.push(vec![0; LEAF].into_boxed_slice());
            *root = self.leaves.len() as u32;
        }
        self.leaves
            .get_mut(*root as usize - 1)
            .map(|leaf| &mut leaf[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_found_by_any_address_in_them() {
        let mut pages = Pages::default();
        let across = (5 << LEAF_BITS) - 0x2000..(5 << LEAF_BITS) + 0x3000;
        assert!(pages.enter(across.clone(), 7));
        assert!(pages.enter(across.end..across.end + 0x1000, 8));
        assert_eq!(pages.find(across.start), Some(7));
        assert_eq!(pages.find(across.end - 1), Some(7));
        assert_eq!(pages.find(across.end), Some(8));
        for elsewhere in [0, across.start - 1, across.end + 0x1000, u64::MAX] {
            assert_eq!(pages.find(elsewhere), None);
        }
        assert!(!pages.enter(u64::MAX - 0x2000..u64::MAX, 9));
    }
}
