//! jemalloc's own data, read from outside: all extents, and the blocks that hold its metadata.
//!
//! Source: jemalloc 5.3.1, `rtree.h`, `edata.h`, `base.h`, `emap.h`. The tests compare this with
//! what jemalloc itself says about its objects, in builds for pages of 4, 16 and 64 KiB.

mod caches;
mod layout;

use std::ops::Range;

use crate::memory::{self, Memory, word_of};
use crate::size;
use layout::{
    ADDRESS_BITS, BITMAP_OFFSET, BLOCKS_OFFSET, EDATA_ALIGNMENT, Layout, ROOT_OFFSET, Shape,
};

/// Where it all begins, as the agent publishes it.
#[derive(Clone, Copy, Debug)]
pub struct Globals {
    /// Address of `arena_emap_global`.
    pub emap: u64,
    /// Address of `arenas`.
    pub arenas: u64,
    /// jemalloc's page size.
    pub page: u64,
}

/// A run of pages that jemalloc manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its pages.
    pub pages: Range<u64>,
    /// What they hold.
    pub content: Content,
}

/// What an extent holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing that is allocated.
    Unused,
    /// One object: its address, and the bytes from there to the extent's end. Some of the last
    /// page may not be the object's.
    Large(u64, u64),
    /// Small objects of one size, those whose bit is zero. The bits begin at a word of
    /// [`Map::free`].
    Slab(u64, usize),
}

/// All that jemalloc manages.
#[derive(Clone, Debug, Default)]
pub struct Map {
    /// Extents by address; none overlap.
    pub extents: Vec<Extent>,
    /// Which objects of all slabs are free, of each from a whole word on.
    pub free: Vec<u64>,
    /// Blocks of metadata.
    pub metadata: Vec<Range<u64>>,
    /// Addresses of the objects in which threads' caches are.
    pub caches: Vec<u64>,
    /// Extents that could not be read, or contradict others.
    pub damaged: usize,
}

/// Why the heap cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The addresses that the agent published lead to nothing.
    #[error("the allocator's data cannot be read at the addresses that its agent published")]
    Globals,
    /// Not the layout that this reads.
    #[error("the allocator's data is not laid out as this program expects (jemalloc 5.3.1)")]
    Layout,
    /// More than any real heap has.
    #[error("the allocator's data describes more memory than a process can have in use")]
    Size,
}

/// Bytes of a slab, at most; real ones have up to 16 pages.
const MOST_SLAB_BYTES: u64 = 1 << 20;
/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// Descriptors read at once.
const GROUP: usize = 8192;
/// `arenas` has an entry for each number that a call can name.
const ARENAS: usize = 4095;
/// Blocks of one arena, at most: each fourth one is twice as large as the one before.
const MOST_BLOCKS: usize = 256;
/// Blocks of all arenas, at most.
const MOST_BLOCKS_OF_ALL: usize = 1 << 16;
/// Leaves of the radix tree, at most. Each stands for a GiB of addresses, or an eighth of one.
const MOST_LEAVES: usize = 1 << 14;
/// Extents, at most: 12 GiB of this program's memory. Each takes as much of the process's.
const MOST_EXTENTS: usize = 1 << 27;
/// Damaged extents, at most. A process is stopped in the middle of few operations.
const MOST_DAMAGED: usize = 1 << 16;

/// Reads the map.
///
/// # Errors
/// If nothing can be read, or what there is is not jemalloc's.
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

/// Reads the extents in the order of their addresses.
struct Reader<'a> {
    memory: &'a dyn Memory,
    layout: Layout,
    map: &'a mut Map,
    /// Extents to read: the first page of each, and its descriptor (`edata_t`).
    group: Vec<(u64, u64)>,
    /// The descriptor of the last page that had one: all pages of a slab have the same, and of
    /// other extents the first page and the last.
    last: u64,
    /// Where the last extent ends.
    end: u64,
}

impl Reader<'_> {
    fn read_tree(&mut self, globals: &Globals) -> Result<(), Unreadable> {
        let page_bits = self.layout.page.trailing_zeros();
        let shape = shape(self.memory, globals, &self.layout);
        let leaves = leaves(self.memory, globals, &shape)?;
        let mut buffer = vec![0; CHUNK];
        for (index, leaf) in leaves {
            let mut result = Ok(());
            words(
                self.memory,
                leaf,
                shape.words << shape.lower,
                &mut buffer,
                |number, word| {
                    if number % shape.words != 0 {
                        return;
                    }
                    let number = number / shape.words;
                    let descriptor = word & ((1 << ADDRESS_BITS) - 1) & !(EDATA_ALIGNMENT - 1);
                    if descriptor != 0 && descriptor != self.last && result.is_ok() {
                        self.last = descriptor;
                        let page = ((index as u64) << shape.lower | number as u64) << page_bits;
                        self.group.push((page, descriptor));
                        if self.group.len() == GROUP {
                            result = self.read_group();
                        }
                    }
                },
            );
            result?;
        }
        self.read_group()
    }

    /// Reads the descriptors at hand and adds what they describe.
    fn read_group(&mut self) -> Result<(), Unreadable> {
        // By their addresses, since many lie side by side.
        let mut order: Vec<usize> = (0..self.group.len()).collect();
        order.sort_unstable_by_key(|&index| self.group[index].1);
        let size = self.layout.edata_bytes;
        let pieces = order.iter().map(|&index| (self.group[index].1, size));
        let pieces: Vec<(u64, usize)> = pieces.collect();
        let mut bytes = vec![0; pieces.len() * size];
        self.memory.gather(&pieces, &mut bytes);
        let mut places = vec![0; order.len()];
        for (place, index) in order.into_iter().enumerate() {
            places[index] = place * size;
        }
        for (&(page, _), place) in self.group.iter().zip(places) {
            let descriptor = &bytes[place..place + size];
            // An extent of another place, or inside of another one, is none.
            let before = self.map.free.len();
            let found = extent(descriptor, self.layout.page, &mut self.map.free)
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
            (MOST_EXTENTS.., _) => Err(Unreadable::Size),
            (_, MOST_DAMAGED..) => Err(Unreadable::Layout),
            _ => Ok(()),
        }
    }
}

/// Entries at the start of the root by which the shapes differ: with 57 bits all of a program's
/// addresses, with 48 those below 32 GiB, where jemalloc has none.
const TELLING: usize = 32;

/// Returns the shape that the radix tree has.
fn shape(memory: &dyn Memory, globals: &Globals, layout: &Layout) -> Shape {
    let Some(deep) = layout.deep else {
        return layout.flat;
    };
    let root = globals.emap.wrapping_add(ROOT_OFFSET);
    let mut is_deep = false;
    let mut buffer = vec![0; TELLING * 8];
    words(memory, root, TELLING, &mut buffer, |_, word| {
        is_deep |= word != 0;
    });
    if is_deep { deep } else { layout.flat }
}

/// The radix tree's leaves: the index of each, which is that of the addresses that it stands for,
/// and where it is.
fn leaves(
    memory: &dyn Memory,
    globals: &Globals,
    shape: &Shape,
) -> Result<Vec<(usize, u64)>, Unreadable> {
    let mut leaves = vec![(0, globals.emap.wrapping_add(ROOT_OFFSET))];
    let mut buffer = vec![0; CHUNK];
    for (level, &bits) in shape.upper.iter().enumerate() {
        let mut below = Vec::new();
        for (index, at) in leaves {
            words(memory, at, 1 << bits, &mut buffer, |number, word| {
                if word != 0 && below.len() <= MOST_LEAVES {
                    below.push((index << bits | number, word));
                }
            });
        }
        if below.is_empty() {
            return Err(Unreadable::Globals);
        }
        let entry = match level + 1 == shape.upper.len() {
            true => (8 * shape.words as u64) << shape.lower,
            false => 8 << shape.upper[level + 1],
        };
        check_places(&below, entry)?;
        leaves = below;
    }
    Ok(leaves)
}

/// Tables of this many bytes must lie apart, at addresses of a program.
fn check_places(tables: &[(usize, u64)], bytes: u64) -> Result<(), Unreadable> {
    let mut places: Vec<u64> = tables.iter().map(|(_, at)| *at).collect();
    places.sort_unstable();
    let is_aligned = places.iter().all(|at| at % 8 == 0);
    let is_apart = places.windows(2).all(|pair| pair[1] - pair[0] >= bytes);
    let is_below = places.last().is_some_and(|at| at >> ADDRESS_BITS == 0);
    match is_aligned && is_apart && is_below {
        true if tables.len() > MOST_LEAVES => Err(Unreadable::Size),
        true => Ok(()),
        false => Err(Unreadable::Layout),
    }
}

/// Passes `count` words from `at` to `each`, with their index, except those that are zero because
/// nothing is there. `buffer` is of whole words.
fn words(
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

/// A descriptor's extent, if it makes sense. A slab's bits are added to `free`.
fn extent(descriptor: &[u8], page: u64, free: &mut Vec<u64>) -> Option<Extent> {
    let word = |index: usize| word_of(&descriptor[index * 8..]);
    let (bits, address) = (word(0), word(1));
    let bytes = word(2) & !(page - 1);
    let start = address & !(page - 1);
    let end = start.checked_add(bytes)?;
    if start == 0 || bytes == 0 || end > 1 << ADDRESS_BITS || address >= end {
        return None;
    }
    let (is_slab, state) = (bits >> 12 & 1 != 0, bits >> 17 & 7);
    let content = if state != 0 {
        Content::Unused
    } else {
        match is_slab {
            true => {
                let usable = size::of_class((bits >> 20 & 0xff) as u32)?;
                slab(descriptor, (bytes, usable), free)?
            }
            false => Content::Large(address, end - address),
        }
    };
    Some(Extent {
        pages: start..end,
        content,
    })
}

fn slab(descriptor: &[u8], (bytes, usable): (u64, u64), free: &mut Vec<u64>) -> Option<Content> {
    let count = (bytes / usable) as usize;
    let bitmap = &descriptor[BITMAP_OFFSET..];
    if bytes > MOST_SLAB_BYTES || count == 0 || count.div_ceil(64) > bitmap.len() / 8 {
        return None;
    }
    let first = free.len();
    let groups = bitmap.chunks_exact(8).take(count.div_ceil(64));
    free.extend(groups.map(word_of));
    Some(Content::Slab(usable, first))
}

/// The arenas' addresses.
fn arenas(memory: &dyn Memory, globals: &Globals, layout: &Layout) -> Vec<u64> {
    let mut arenas = Vec::new();
    let mut buffer = vec![0; ARENAS * 8];
    words(
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
    // An arena lies in the first block of its own base allocator, behind that.
    arenas.retain(|(index, arena)| {
        let number = memory.word(layout.base_of(*arena));
        number.is_some_and(|word| word as u32 as usize == *index)
    });
    arenas.into_iter().map(|(_, arena)| arena).collect()
}

/// The blocks of memory in which arenas keep their metadata.
fn metadata(memory: &dyn Memory, arenas: &[u64], layout: &Layout) -> Vec<Range<u64>> {
    let mut blocks = Vec::new();
    for base in arenas.iter().map(|arena| layout.base_of(*arena)) {
        let mut block = memory.word(base + BLOCKS_OFFSET).unwrap_or(0);
        for _ in 0..MOST_BLOCKS.min(MOST_BLOCKS_OF_ALL - blocks.len()) {
            let mut header = [0; 16];
            if block == 0 || memory.read(block, &mut header) < header.len() {
                break;
            }
            let (bytes, next) = (word_of(&header), word_of(&header[8..]));
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
