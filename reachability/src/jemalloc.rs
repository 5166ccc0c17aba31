//! Reader of jemalloc's own data from outside: all extents, and the blocks with its metadata.
//!
//! Source: jemalloc 5.3.1, `rtree.h`, `edata.h`, `base.h`, `emap.h`. The tests compare the results
//! with what jemalloc itself reports, in builds for pages of 4, 16 and 64 KiB.

mod caches;
mod layout;

use std::ops::Range;

use crate::memory::{self, Memory, word_of};
use crate::size;
use layout::{
    ADDRESS_BITS, BITMAP_OFFSET, BLOCKS_OFFSET, EDATA_ALIGNMENT, Layout, ROOT_OFFSET, STATE_MASK,
    STATE_SHIFT, Shape,
};

/// Addresses of jemalloc's global data, as published by the agent.
#[derive(Clone, Copy, Debug)]
pub struct Globals {
    /// Address of `arena_emap_global`.
    pub emap: u64,
    /// Address of `arenas`.
    pub arenas: u64,
    /// Page size of jemalloc, in bytes.
    pub page: u64,
}

/// Run of pages that jemalloc manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Address range.
    pub pages: Range<u64>,
    /// Contents.
    pub content: Content,
}

/// Contents of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing that is allocated.
    Unused,
    /// One object: its address, and the number of bytes from there to the extent's end. The object
    /// may end earlier in the last page.
    Large(u64, u64),
    /// Small objects: their size, and the index in [`Map::free`] of the word where their bits
    /// start. A bit is 0 if the object is allocated.
    Slab(u64, usize),
}

/// Memory that jemalloc manages.
#[derive(Clone, Debug, Default)]
pub struct Map {
    /// Extents by address, without overlap.
    pub extents: Vec<Extent>,
    /// Bits of the objects of all slabs, 1 if free. Each slab starts at a word.
    pub free: Vec<u64>,
    /// Blocks of metadata.
    pub metadata: Vec<Range<u64>>,
    /// Addresses of the objects that contain thread caches.
    pub caches: Vec<u64>,
    /// Number of extents that could not be read or contradict others.
    pub damaged: usize,
}

/// Reason why the heap cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// There is no data at the published addresses.
    #[error("the allocator's data cannot be read at the addresses that its agent published")]
    Globals,
    /// Unexpected layout.
    #[error("the allocator's data is not laid out as this program expects (jemalloc 5.3.1)")]
    Layout,
    /// More extents or metadata than any real heap has.
    #[error("the allocator's data describes more memory than a process can have in use")]
    Size,
}

/// Maximum size of a slab in bytes. Real ones have up to 16 pages.
const MAX_SLAB_BYTES: u64 = 1 << 20;
/// Number of bytes per read.
const READ_BYTES: usize = 1 << 20;
/// Number of descriptors per read.
const DESCRIPTORS_PER_READ: usize = 8192;
/// Number of entries of `arenas`.
const ARENAS: usize = 4095;
/// Maximum number of blocks of one arena. Every fourth one is twice as large as the one before.
const MAX_BLOCKS: usize = 256;
/// Maximum number of blocks of all arenas.
const MAX_BLOCKS_OF_ALL: usize = 1 << 16;
/// Maximum number of leaves of the radix tree. Each covers a GiB of addresses, or an eighth of one.
const MAX_LEAVES: usize = 1 << 14;
/// Maximum number of leaves that are read for [`mapped`]: some 4 GiB, which takes a second.
const MAX_SCANNED_LEAVES: usize = 1 << 11;
/// Maximum number of extents, which take 12 GiB of this program's memory. Their descriptors take as
/// much of the process's memory.
const MAX_EXTENTS: usize = 1 << 27;
/// Maximum number of damaged extents. A process is stopped in the middle of only a few operations.
const MAX_DAMAGED: usize = 1 << 16;

/// Maximum number of separate ranges that jemalloc has mapped. A process can have some 65,000
/// mappings by default.
const MAX_RANGES: usize = 1 << 20;

/// Reads the map of the heap.
///
/// # Errors
/// Returns an error if nothing can be read, or the data is not jemalloc's.
pub fn read(memory: &dyn Memory, globals: &Globals) -> Result<Map, Unreadable> {
    let layout = Layout::of_pages(globals.page).ok_or(Unreadable::Layout)?;
    let arenas = arenas(memory, globals, &layout);
    let mut map = Map {
        metadata: metadata(memory, &arenas, &layout),
        caches: caches::find(memory, globals, &arenas),
        ..Map::default()
    };
    if map.metadata.is_empty() {
        return Err(Unreadable::Layout);
    }
    let mut reader = Reader {
        memory,
        layout,
        map: &mut map,
        group: Vec::new(),
        last: 0,
        end: 0,
    };
    reader.read_tree(globals)?;
    Ok(map)
}

/// Addresses of all memory that jemalloc has mapped: sorted ranges that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// Pages that contain objects.
    pub in_use: Vec<Range<u64>>,
    /// Pages without objects, whether they were given back to the kernel or not.
    pub unused: Vec<Range<u64>>,
    /// Blocks of metadata.
    pub metadata: Vec<Range<u64>>,
}

/// Returns the addresses of all memory that jemalloc has mapped.
///
/// Reads only the radix tree, 0.2 % of the heap, and no extents. The memory may change during this
/// call. Parts that change may be missing, or be in two of the lists.
///
/// # Errors
/// Returns an error if nothing can be read, or the data is not jemalloc's.
pub fn mapped(memory: &dyn Memory, globals: &Globals) -> Result<Mapped, Unreadable> {
    let layout = Layout::of_pages(globals.page).ok_or(Unreadable::Layout)?;
    let arenas = arenas(memory, globals, &layout);
    let metadata = metadata(memory, &arenas, &layout);
    if metadata.is_empty() {
        return Err(Unreadable::Layout);
    }
    let mut runs = Runs::default();
    let shape = shape(memory, globals, &layout);
    let mut buffer = vec![0; READ_BYTES];
    let leaves = leaves(memory, globals, &shape)?;
    if leaves.len() > MAX_SCANNED_LEAVES {
        return Err(Unreadable::Size);
    }
    for (index, leaf) in leaves {
        let count = shape.words << shape.lower;
        let (mut descriptor, mut page) = (0, 0);
        each_word(memory, leaf, count, &mut buffer, |number, word| {
            if number % shape.words == 0 {
                let number = (number / shape.words) as u64;
                descriptor = descriptor_of(word);
                page = ((index as u64) << shape.lower | number) * layout.page;
            }
            // The state is in an entry's last word.
            if (number + 1) % shape.words == 0 && descriptor != 0 {
                let is_in_use = word >> STATE_SHIFT & STATE_MASK == 0;
                runs.add(page..page + layout.page, descriptor, is_in_use);
            }
        });
        if runs.in_use.len() + runs.unused.len() > MAX_RANGES {
            return Err(Unreadable::Size);
        }
    }
    Ok(Mapped {
        in_use: joined(runs.in_use),
        unused: joined(runs.unused),
        metadata: joined(metadata),
    })
}

/// Runs of pages, collected in the order of their addresses.
#[derive(Default)]
struct Runs {
    in_use: Vec<Range<u64>>,
    unused: Vec<Range<u64>>,
    last: LastPage,
}

/// Page that was added last.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct LastPage {
    /// Address of its descriptor.
    descriptor: u64,
    is_in_use: bool,
}

impl Runs {
    /// Adds a page that has a descriptor. All pages of a slab have the same; of other extents, only
    /// the first and the last page have one.
    fn add(&mut self, page: Range<u64>, descriptor: u64, is_in_use: bool) {
        let runs = if is_in_use {
            &mut self.in_use
        } else {
            &mut self.unused
        };
        let added = LastPage {
            descriptor,
            is_in_use,
        };
        let continues = |run: &&mut Range<u64>| self.last == added || run.end == page.start;
        match runs.last_mut().filter(continues) {
            Some(run) => run.end = page.end,
            None => runs.push(page),
        }
        self.last = added;
    }
}

/// Sorts ranges and joins those that overlap or touch. Empty ones are dropped.
pub fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| range.start < range.end);
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut().filter(|last| last.end >= range.start) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

/// Reader of extents, in the order of their addresses.
struct Reader<'a> {
    memory: &'a dyn Memory,
    layout: Layout,
    map: &'a mut Map,
    /// Extents to read: address of the first page and of the descriptor (`edata_t`).
    group: Vec<(u64, u64)>,
    /// Descriptor of the last page that had one. All pages of a slab have the same descriptor; of
    /// other extents, only the first and the last page have one.
    last: u64,
    /// End of the last extent.
    end: u64,
}

impl Reader<'_> {
    fn read_tree(&mut self, globals: &Globals) -> Result<(), Unreadable> {
        let page_bits = self.layout.page.trailing_zeros();
        let shape = shape(self.memory, globals, &self.layout);
        let leaves = leaves(self.memory, globals, &shape)?;
        let mut buffer = vec![0; READ_BYTES];
        for (index, leaf) in leaves {
            let mut result = Ok(());
            each_word(
                self.memory,
                leaf,
                shape.words << shape.lower,
                &mut buffer,
                |number, word| {
                    if number % shape.words != 0 {
                        return;
                    }
                    let number = number / shape.words;
                    let descriptor = descriptor_of(word);
                    if descriptor != 0 && descriptor != self.last && result.is_ok() {
                        self.last = descriptor;
                        let page = (((index as u64) << shape.lower) | number as u64) << page_bits;
                        self.group.push((page, descriptor));
                        if self.group.len() == DESCRIPTORS_PER_READ {
                            result = self.read_group();
                        }
                    }
                },
            );
            result?;
        }
        self.read_group()
    }

    /// Reads the collected descriptors, and adds the extents that they describe.
    fn read_group(&mut self) -> Result<(), Unreadable> {
        // They are read in the order of their addresses, since many are adjacent.
        let mut order: Vec<usize> = (0..self.group.len()).collect();
        order.sort_unstable_by_key(|&index| self.group[index].1);
        let size = self.layout.edata_bytes;
        let pieces = order.iter().map(|&index| (self.group[index].1, size));
        let pieces: Vec<(u64, usize)> = pieces.collect();
        let mut bytes = vec![0; pieces.len() * size];
        self.memory.gather(&pieces, &mut bytes);
        let mut offsets = vec![0; order.len()];
        for (position, index) in order.into_iter().enumerate() {
            offsets[index] = position * size;
        }
        for (&(page, _), offset) in self.group.iter().zip(offsets) {
            let descriptor = &bytes[offset..offset + size];
            // An extent that does not match its page, or overlaps another one, is damaged.
            let before = self.map.free.len();
            let found = parse_extent(descriptor, self.layout.page, &mut self.map.free)
                .filter(|extent| extent.pages.start == page && page >= self.end);
            match found {
                Some(extent) => {
                    self.end = extent.pages.end;
                    self.map.extents.push(extent);
                }
                None => {
                    self.map.free.truncate(before);
                    self.map.damaged += 1;
                }
            }
        }
        self.group.clear();
        match (self.map.extents.len(), self.map.damaged) {
            (MAX_EXTENTS.., _) => Err(Unreadable::Size),
            (_, MAX_DAMAGED..) => Err(Unreadable::Layout),
            _ => Ok(()),
        }
    }
}

/// Returns the address of the descriptor in the word of a page; 0 if there is none.
fn descriptor_of(word: u64) -> u64 {
    word & ((1 << ADDRESS_BITS) - 1) & !(EDATA_ALIGNMENT - 1)
}

/// Number of entries at the start of the root that distinguish the shapes. With 57 bits, they cover
/// all of a program's addresses; with 48, only those below 32 GiB, where jemalloc has no memory.
const SHAPE_ENTRIES: usize = 32;

/// Returns the shape of the radix tree.
fn shape(memory: &dyn Memory, globals: &Globals, layout: &Layout) -> Shape {
    let Some(deep) = layout.deep else {
        return layout.flat;
    };
    let root = globals.emap.wrapping_add(ROOT_OFFSET);
    let mut is_deep = false;
    let mut buffer = vec![0; SHAPE_ENTRIES * 8];
    each_word(memory, root, SHAPE_ENTRIES, &mut buffer, |_, word| {
        is_deep |= word != 0;
    });
    if is_deep { deep } else { layout.flat }
}

/// Returns the radix tree's leaves: the index of the address range that each covers, and the leaf's
/// address.
fn leaves(
    memory: &dyn Memory,
    globals: &Globals,
    shape: &Shape,
) -> Result<Vec<(usize, u64)>, Unreadable> {
    let mut leaves = vec![(0, globals.emap.wrapping_add(ROOT_OFFSET))];
    let mut buffer = vec![0; READ_BYTES];
    for (level, &bits) in shape.upper.iter().enumerate() {
        let mut below = Vec::new();
        for (index, at) in leaves {
            each_word(memory, at, 1 << bits, &mut buffer, |number, word| {
                if word != 0 && below.len() <= MAX_LEAVES {
                    below.push(((index << bits) | number, word));
                }
            });
        }
        if below.is_empty() {
            return Err(Unreadable::Globals);
        }
        let entry = if level + 1 == shape.upper.len() {
            (8 * shape.words as u64) << shape.lower
        } else {
            8 << shape.upper[level + 1]
        };
        check_addresses(&below, entry)?;
        leaves = below;
    }
    Ok(leaves)
}

/// Checks that tables of this size do not overlap and are at plausible addresses.
fn check_addresses(tables: &[(usize, u64)], bytes: u64) -> Result<(), Unreadable> {
    let mut addresses: Vec<u64> = tables.iter().map(|(_, address)| *address).collect();
    addresses.sort_unstable();
    let are_aligned = addresses.iter().all(|address| address % 8 == 0);
    let are_disjoint = addresses.windows(2).all(|pair| pair[1] - pair[0] >= bytes);
    let are_in_range = addresses
        .last()
        .is_some_and(|last| last >> ADDRESS_BITS == 0);
    if !(are_aligned && are_disjoint && are_in_range) {
        Err(Unreadable::Layout)
    } else if tables.len() > MAX_LEAVES {
        Err(Unreadable::Size)
    } else {
        Ok(())
    }
}

/// Calls `each` with the index and value of each of the `count` words at `at`. May skip words that
/// are zero because nothing is mapped. The length of `buffer` must be a multiple of 8.
fn each_word(
    memory: &dyn Memory,
    at: u64,
    count: usize,
    buffer: &mut [u8],
    mut each: impl FnMut(usize, u64),
) {
    let range = at..at.saturating_add(count as u64 * 8);
    memory::scan(memory, range, 8, buffer, |start, bytes| {
        let first = (start - at) as usize / 8;
        for (index, word) in bytes.chunks_exact(8).enumerate() {
            each(first + index, word_of(word));
        }
    });
}

/// Returns a descriptor's extent, or `None` if it is invalid. Appends a slab's bitmap to `free`.
fn parse_extent(descriptor: &[u8], page: u64, free: &mut Vec<u64>) -> Option<Extent> {
    let word = |index: usize| word_of(&descriptor[index * 8..]);
    let bits = word(0);
    let address = word(1);
    let bytes = word(2) & !(page - 1);
    let start = address & !(page - 1);
    let end = start.checked_add(bytes)?;
    if start == 0 || bytes == 0 || end > 1 << ADDRESS_BITS || address >= end {
        return None;
    }
    let is_slab = (bits >> 12) & 1 != 0;
    let state = (bits >> 17) & 7;
    let content = if state != 0 {
        Content::Unused
    } else {
        let usable = size::of_class(((bits >> 20) & 0xff) as u32);
        if is_slab {
            parse_slab(descriptor, bytes, usable?, free)?
        } else {
            Content::Large(address, end - address)
        }
    };
    Some(Extent {
        pages: start..end,
        content,
    })
}

fn parse_slab(descriptor: &[u8], bytes: u64, usable: u64, free: &mut Vec<u64>) -> Option<Content> {
    let count = (bytes / usable) as usize;
    let bitmap = &descriptor[BITMAP_OFFSET..];
    if bytes > MAX_SLAB_BYTES || count == 0 || count.div_ceil(64) > bitmap.len() / 8 {
        return None;
    }
    let first = free.len();
    let groups = bitmap.chunks_exact(8).take(count.div_ceil(64));
    free.extend(groups.map(word_of));
    Some(Content::Slab(usable, first))
}

/// Returns the addresses of all arenas.
fn arenas(memory: &dyn Memory, globals: &Globals, layout: &Layout) -> Vec<u64> {
    let mut arenas = Vec::new();
    let mut buffer = vec![0; ARENAS * 8];
    each_word(
        memory,
        globals.arenas,
        ARENAS,
        &mut buffer,
        |index, word| {
            if word != 0 {
                arenas.push((index, word));
            }
        },
    );
    // An arena follows its own base allocator in the first block. The base allocator's first field
    // is the arena's index.
    arenas.retain(|(index, arena)| {
        let number = memory.word(layout.base_of(*arena));
        number.is_some_and(|word| word as u32 as usize == *index)
    });
    arenas.into_iter().map(|(_, arena)| arena).collect()
}

/// Returns the blocks of memory that contain arenas' metadata.
fn metadata(memory: &dyn Memory, arenas: &[u64], layout: &Layout) -> Vec<Range<u64>> {
    let mut blocks = Vec::new();
    for base in arenas.iter().map(|arena| layout.base_of(*arena)) {
        let mut block = memory.word(base + BLOCKS_OFFSET).unwrap_or(0);
        for _ in 0..MAX_BLOCKS.min(MAX_BLOCKS_OF_ALL - blocks.len()) {
            let mut header = [0; 16];
            if block == 0 || memory.read(block, &mut header) < header.len() {
                break;
            }
            let bytes = word_of(&header);
            let next = word_of(&header[8..]);
            let Some(end) = block.checked_add(bytes).filter(|end| *end > block) else {
                break;
            };
            blocks.push(block..end);
            block = next;
        }
    }
    blocks
}

#[cfg(test)]
pub mod tests;
