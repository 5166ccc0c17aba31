//! jemalloc's own data, read from outside: all extents, and the blocks that hold its metadata.
//!
//! Source: jemalloc 5.3.1, `rtree.h`, `edata.h`, `base.h`, `emap.h`. The tests compare with what
//! jemalloc itself says of its objects.

use std::collections::HashSet;
use std::ops::Range;

use crate::memory::Memory;
use crate::size;

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
    /// Small objects of one size, those whose bit is zero.
    Slab(u64, Vec<u64>),
}

/// All that jemalloc manages.
#[derive(Clone, Debug, Default)]
pub struct Map {
    /// Extents by address; none overlap.
    pub extents: Vec<Extent>,
    /// Blocks of metadata.
    pub metadata: Vec<Range<u64>>,
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
}

const ADDRESS_BITS: u32 = 48;
/// Bytes of `rtree_t` before its root: a pointer and a mutex.
const ROOT_OFFSET: u64 = if cfg!(target_arch = "aarch64") {
    128
} else {
    120
};
const EDATA_BYTES: usize = 128;
const BITMAP_OFFSET: usize = 64;
/// Pages of a slab, at most; real ones have up to 16.
const MOST_SLAB_BYTES: u64 = 1 << 20;
/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// `arenas` has an entry for each number that a call can name.
const ARENAS: usize = 4095;
/// All blocks of metadata begin at a multiple of this.
const BLOCK: u64 = 2 << 20;
/// Size of the `base_block_t` at the start of each block, up to a cache line.
const BLOCK_HEADER: u64 = 192;
/// In `base_t`, the pointer to its newest block.
const BLOCKS_OFFSET: u64 = if cfg!(target_arch = "aarch64") {
    168
} else {
    160
};
/// Blocks of one arena, at most: their sizes grow.
const MOST_BLOCKS: usize = 4096;

/// Reads the map.
///
/// # Errors
/// If nothing can be read, or what there is is not jemalloc's.
pub fn read(memory: &dyn Memory, globals: &Globals) -> Result<Map, Unreadable> {
    if !(12..=16).contains(&globals.page.trailing_zeros()) || !globals.page.is_power_of_two() {
        return Err(Unreadable::Layout);
    }
    let descriptors = descriptors(memory, globals)?;
    let mut map = Map {
        metadata: metadata(memory, globals),
        ..Map::default()
    };
    if map.metadata.is_empty() {
        return Err(Unreadable::Layout);
    }
    read_extents(memory, globals.page, &descriptors, &mut map);
    map.extents.sort_by_key(|extent| extent.pages.start);
    let mut end = 0;
    let before = map.extents.len();
    map.extents.retain(|extent| {
        let fits = extent.pages.start >= end;
        if fits {
            end = extent.pages.end;
        }
        fits
    });
    map.damaged += before - map.extents.len();
    Ok(map)
}

/// The addresses of all extents' descriptors (`edata_t`), from the radix tree's leaves.
fn descriptors(memory: &dyn Memory, globals: &Globals) -> Result<Vec<u64>, Unreadable> {
    let bits = ADDRESS_BITS - globals.page.trailing_zeros();
    let (upper, lower) = (bits / 2, bits / 2 + bits % 2);
    let mut found = HashSet::new();
    let mut roots = Vec::new();
    let whole = words(memory, globals.emap + ROOT_OFFSET, 1 << upper, |_, word| {
        if word != 0 {
            roots.push(word);
        }
    });
    if !whole {
        return Err(Unreadable::Globals);
    }
    for leaf in roots {
        let whole = words(memory, leaf, 1 << lower, |_, word| {
            let descriptor = word & ((1 << ADDRESS_BITS) - 1) & !(EDATA_BYTES as u64 - 1);
            if descriptor != 0 {
                found.insert(descriptor);
            }
        });
        if !whole {
            return Err(Unreadable::Layout);
        }
    }
    let mut all: Vec<u64> = found.into_iter().collect();
    all.sort_unstable();
    Ok(all)
}

/// Hands `count` words from `at` on to `each`, with their index; false if not all could be read.
fn words(memory: &dyn Memory, at: u64, count: usize, mut each: impl FnMut(usize, u64)) -> bool {
    let mut buffer = vec![0; CHUNK];
    let (mut done, bytes) = (0, count * 8);
    while done < bytes {
        let part = &mut buffer[..CHUNK.min(bytes - done)];
        if memory.read(at.wrapping_add(done as u64), part) < part.len() {
            return false;
        }
        for (index, word) in part.chunks_exact(8).enumerate() {
            each(done / 8 + index, word_of(word));
        }
        done += part.len();
    }
    true
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// Reads the descriptors and adds what they describe.
fn read_extents(memory: &dyn Memory, page: u64, descriptors: &[u64], map: &mut Map) {
    for group in descriptors.chunks(CHUNK / EDATA_BYTES) {
        let pieces: Vec<(u64, usize)> = group.iter().map(|&at| (at, EDATA_BYTES)).collect();
        let mut bytes = vec![0; group.len() * EDATA_BYTES];
        memory.gather(&pieces, &mut bytes);
        for descriptor in bytes.chunks_exact(EDATA_BYTES) {
            match extent(descriptor, page) {
                Some(extent) => map.extents.push(extent),
                None => map.damaged += 1,
            }
        }
    }
}

/// A descriptor's extent, if it makes sense.
fn extent(descriptor: &[u8], page: u64) -> Option<Extent> {
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
            true => slab(
                descriptor,
                bytes,
                size::of_class((bits >> 20 & 0xff) as u32)?,
            )?,
            false => Content::Large(address, end - address),
        }
    };
    Some(Extent {
        pages: start..end,
        content,
    })
}

fn slab(descriptor: &[u8], bytes: u64, usable: u64) -> Option<Content> {
    let count = (bytes / usable) as usize;
    let bitmap = &descriptor[BITMAP_OFFSET..];
    if bytes > MOST_SLAB_BYTES || count == 0 || count.div_ceil(64) > bitmap.len() / 8 {
        return None;
    }
    let groups = bitmap.chunks_exact(8).take(count.div_ceil(64));
    Some(Content::Slab(usable, groups.map(word_of).collect()))
}

/// The blocks of memory in which arenas keep their metadata.
fn metadata(memory: &dyn Memory, globals: &Globals) -> Vec<Range<u64>> {
    let mut arenas = Vec::new();
    words(memory, globals.arenas, ARENAS, |index, word| {
        if word != 0 {
            arenas.push((index, word));
        }
    });
    let mut blocks = Vec::new();
    for (index, arena) in arenas {
        // An arena lies in the first block of its own base allocator, behind that.
        let base = (arena & !(BLOCK - 1)) + BLOCK_HEADER;
        if memory
            .word(base)
            .is_none_or(|word| word as u32 as usize != index)
        {
            continue;
        }
        let mut block = memory.word(base + BLOCKS_OFFSET).unwrap_or(0);
        for _ in 0..MOST_BLOCKS {
            let sizes = memory.word(block).zip(memory.word(block.wrapping_add(8)));
            let Some((bytes, next)) = sizes.filter(|_| block != 0) else {
                break;
            };
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
mod tests;
