//! Following pointers from the roots.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;

use crate::bits::Bits;
use crate::heap::{Extent, Heap};
use crate::memory::Memory;
use crate::object;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;
/// Of a slab with at least one in this many regions to read, all is read.
const DENSE: u32 = 4;
/// Most extents whose objects are read in one call.
const GROUP: usize = 256;

/// Where to begin, and how to look.
#[derive(Clone, Debug)]
pub struct Roots<'a> {
    /// Words that are at hand, such as registers, each with the number of its root. What ranges
    /// lead to, too, is theirs.
    pub words: &'a [(u64, u32)],
    /// Ranges to read, each with the number of its root: what several lead to is the first one's.
    pub ranges: &'a [(Range<u64>, u32)],
    /// Bits of a word that are no part of an address.
    pub ignored: u64,
    /// Whether to remember what led to each object.
    pub trace: bool,
}

/// What is reached.
#[derive(Debug, Default)]
pub struct Marks {
    reached: Bits,
    /// For each region what led to it, if that was asked for.
    from: Vec<u32>,
    /// Bytes of objects and ranges that were read.
    pub scanned: u64,
}

/// What led to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The root of this number.
    Root(u32),
    /// The region of this number.
    Region(u32),
}

const UNKNOWN: u32 = u32::MAX;
const ROOT: u32 = 1 << 31;

impl Marks {
    /// Nothing is reached.
    #[must_use]
    pub fn none(heap: &Heap) -> Self {
        Self {
            reached: Bits::new(heap.regions() as usize),
            ..Self::default()
        }
    }

    /// Whether a region was reached.
    #[must_use]
    pub fn has(&self, region: u32) -> bool {
        self.reached.get(region as usize)
    }

    /// What led to a region first, if that was asked for and it was reached.
    #[must_use]
    pub fn origin(&self, region: u32) -> Option<Origin> {
        match *self.from.get(region as usize)? {
            UNKNOWN => None,
            root if root & ROOT != 0 => Some(Origin::Root(root & !ROOT)),
            region => Some(Origin::Region(region)),
        }
    }
}

/// Reaches all that the roots lead to.
pub fn mark(memory: &dyn Memory, heap: &Heap, roots: &Roots<'_>) -> Marks {
    let mut flood = Flood {
        memory,
        heap,
        mask: !roots.ignored,
        marks: Marks {
            reached: Bits::new(heap.regions() as usize),
            // Regions above 2^31 cannot be told from roots.
            from: match roots.trace && heap.regions() < ROOT {
                true => vec![UNKNOWN; heap.regions() as usize],
                false => Vec::new(),
            },
            scanned: 0,
        },
        pending: Bits::new(heap.regions() as usize),
        waits: Bits::new(heap.extents().len()),
        queue: VecDeque::new(),
    };
    let mut buffer = vec![0; CHUNK];
    for (range, root) in roots.ranges {
        flood.read_range(range.clone(), ROOT | root, &mut buffer);
    }
    flood.spread(&mut buffer);
    for &(word, root) in roots.words {
        flood.meet(word, ROOT | root);
    }
    flood.spread(&mut buffer);
    flood.marks
}

/// The regions that words in some ranges point to, without following them further.
pub fn targets(memory: &dyn Memory, heap: &Heap, ranges: &[Range<u64>]) -> HashSet<u32> {
    let mut targets = HashSet::new();
    let mut buffer = vec![0; CHUNK];
    for range in ranges {
        let mut at = range.start.next_multiple_of(8);
        while at < range.end {
            let part = &mut buffer[..CHUNK.min((range.end - at) as usize)];
            memory.gather(&[(at, part.len())], part);
            let words = part.chunks_exact(8);
            let words = words.map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
            targets.extend(words.filter_map(|word| Some(heap.find(word)?.1)));
            at += part.len() as u64;
        }
    }
    targets
}

struct Flood<'a> {
    memory: &'a dyn Memory,
    heap: &'a Heap,
    mask: u64,
    marks: Marks,
    /// Regions that are reached and not read yet.
    pending: Bits,
    /// Extents that are in the queue: those with pending regions.
    waits: Bits,
    queue: VecDeque<u32>,
}

impl Flood<'_> {
    /// Reaches what a word points to.
    #[inline]
    fn meet(&mut self, word: u64, from: u32) {
        let Some((extent, region)) = self.heap.find(word & self.mask) else {
            return;
        };
        if self.marks.reached.set(region as usize) {
            return;
        }
        if let Some(origin) = self.marks.from.get_mut(region as usize) {
            *origin = from;
        }
        self.pending.set(region as usize);
        if !self.waits.set(extent as usize) {
            self.queue.push_back(extent);
        }
    }

    fn meet_all(&mut self, bytes: &[u8], from: u32) {
        self.marks.scanned += bytes.len() as u64;
        for word in bytes.chunks_exact(8) {
            let word = u64::from_le_bytes(word.try_into().unwrap_or_default());
            // Small numbers are no addresses, and are the most frequent words.
            if word > 0xffff {
                self.meet(word, from);
            }
        }
    }

    fn read_range(&mut self, range: Range<u64>, from: u32, buffer: &mut [u8]) {
        let mut at = range.start.next_multiple_of(8);
        while at < range.end {
            let len = ((range.end - at) as usize).min(buffer.len());
            self.memory.gather(&[(at, len)], &mut buffer[..len]);
            self.meet_all(&buffer[..len], from);
            at += len as u64;
        }
    }

    /// Reads what is pending until nothing is.
    fn spread(&mut self, buffer: &mut [u8]) {
        while !self.queue.is_empty() {
            let mut pieces: Vec<Piece> = Vec::new();
            let mut bytes = 0;
            for _ in 0..GROUP {
                let Some(&number) = self.queue.front() else {
                    break;
                };
                let extent = &self.heap.extents()[number as usize];
                if extent.count == 1 && extent.size as usize > buffer.len() / 4 {
                    if pieces.is_empty() {
                        self.take(number);
                        self.read_large(extent, buffer);
                    }
                    break;
                }
                let most = extent.size * u64::from(extent.count);
                if bytes + most as usize > buffer.len() {
                    break;
                }
                self.take(number);
                bytes += self.pieces_of(number, &mut pieces);
            }
            self.read_pieces(&pieces, &mut buffer[..bytes]);
        }
    }

    fn take(&mut self, extent: u32) {
        self.queue.pop_front();
        self.waits.clear(extent as usize);
    }

    fn read_large(&mut self, extent: &Extent, buffer: &mut [u8]) {
        self.pending.clear(extent.first as usize);
        let (start, end) = (extent.start, extent.start + extent.size);
        if self.heap.is_sampled(extent) && sampled_at(self.memory, start, extent.size).is_none() {
            return;
        }
        self.read_range(start..end, extent.first, buffer);
    }

    /// Adds the pieces to read for an extent's pending regions; returns their bytes.
    fn pieces_of(&mut self, number: u32, pieces: &mut Vec<Piece>) -> usize {
        let extent = &self.heap.extents()[number as usize];
        let pending: Vec<u32> = extent
            .regions()
            .filter(|region| self.pending.get(*region as usize))
            .collect();
        for region in &pending {
            self.pending.clear(*region as usize);
        }
        let begins = |region: u32| extent.start + u64::from(region - extent.first) * extent.size;
        let before = pieces.len();
        if extent.count > 1 && pending.len() as u32 * DENSE >= extent.count {
            let (first, last) = (pending[0], pending[pending.len() - 1]);
            pieces.push(Piece {
                at: begins(first),
                len: (begins(last) + extent.size - begins(first)) as usize,
                extent: number,
                regions: pending,
            });
        } else {
            pieces.extend(pending.into_iter().map(|region| Piece {
                at: begins(region),
                len: extent.size as usize,
                extent: number,
                regions: vec![region],
            }));
        }
        pieces[before..].iter().map(|piece| piece.len).sum()
    }

    fn read_pieces(&mut self, pieces: &[Piece], buffer: &mut [u8]) {
        let wanted: Vec<(u64, usize)> = pieces.iter().map(|piece| (piece.at, piece.len)).collect();
        self.memory.gather(&wanted, buffer);
        let mut rest = &*buffer;
        for piece in pieces {
            let (bytes, others) = rest.split_at(piece.len);
            rest = others;
            let extent = &self.heap.extents()[piece.extent as usize];
            for &region in &piece.regions {
                let begins = extent.start + u64::from(region - extent.first) * extent.size;
                let offset = (begins - piece.at) as usize;
                let own = &bytes[offset..offset + extent.size as usize];
                if !self.heap.is_sampled(extent) || sampled_in(begins, own).is_some() {
                    self.meet_all(own, region);
                }
            }
        }
    }
}

/// Memory to read: regions of one extent.
struct Piece {
    at: u64,
    len: usize,
    extent: u32,
    regions: Vec<u32>,
}

/// The sampled object in memory that has been read.
pub(crate) fn sampled_in(base: u64, bytes: &[u8]) -> Option<object::Sampled> {
    object::find(base, bytes.len() as u64, |offset| {
        let offset = usize::try_from(offset).ok()?;
        bytes.get(offset..offset.checked_add(16)?)?.try_into().ok()
    })
}

/// The sampled object in memory that has not been read.
pub(crate) fn sampled_at(memory: &dyn Memory, base: u64, room: u64) -> Option<object::Sampled> {
    object::find(base, room, |offset| {
        let mut bytes = [0; 16];
        (memory.read(base + offset, &mut bytes) == 16).then_some(bytes)
    })
}
