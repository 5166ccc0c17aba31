//! The heap of a Java process, as the counters of its virtual machine (HotSpot) describe it.
//!
//! The machine keeps its counters in a file that it maps, `/tmp/hsperfdata_USER/PID`, unless it was
//! started with `-XX:-UsePerfData` or `-XX:+PerfDisableSharedMem`. They are read from the mapping:
//! that works for containers too.
//!
//! Source: OpenJDK 8 to 25, `src/hotspot/share/runtime/perfMemory.hpp` (`PerfDataPrologue`,
//! `PerfDataEntry`) and the names of the counters as `jcmd PID PerfCounter.print` prints them.

// Decision 93: the heap is found by its size, which the counters state.
use std::ops::Range;

use profile::maps::Entry;
use reachability::{Memory, ProcessMemory};

use crate::text;

/// Maximum size of the counters that is read, in bytes. The default of `-XX:PerfDataMemorySize` is
/// 32 KiB.
const MAX_COUNTERS_BYTES: u64 = 1 << 20;
/// Size of the header of the counters, in bytes.
const HEADER_BYTES: usize = 32;
/// Size of the fixed part of an entry, in bytes.
const ENTRY_BYTES: usize = 20;
/// First word of the counters, and the byte order that follows it on little-endian machines.
const MAGIC: [u8; 5] = [0xca, 0xfe, 0xc0, 0xc0, 1];
/// Maximum number of counters.
const MAX_ENTRIES: u32 = 1 << 14;
/// Minimum alignment of a heap's size, in bytes.
const MIN_HEAP_ALIGNMENT: u64 = 4 << 10;

/// Heap of a Java process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JavaHeap {
    /// Address range that the machine has reserved for it.
    pub range: Range<u64>,
    /// Bytes in use when the machine counted last, which it does at each collection.
    pub used: u64,
}

impl JavaHeap {
    /// Finds the heap of a process. `maps` is the text of its maps, and `others` is memory that is
    /// known to be something else, sorted and disjoint. Returns `None` if the process runs no Java,
    /// or keeps no counters, if no other mappings have the heap's size, or if the heap is a file in
    /// memory, as with ZGC (`/memfd:java_heap`).
    pub fn find(pid: i32, maps: &[u8], others: &[Range<u64>]) -> Option<Self> {
        let is_file_in_memory = |entry: Entry<'_>| entry.path.starts_with(b"/memfd:java_heap");
        if Entry::all(maps).any(is_file_in_memory) {
            return None;
        }
        let counters = Entry::all(maps).find(|entry| {
            let mut parts = entry.path.rsplit(|byte| *byte == b'/');
            let (_, directory) = (parts.next(), parts.next());
            directory.is_some_and(|name| name.starts_with(b"hsperfdata_"))
        })?;
        let bytes = (counters.end - counters.start).min(MAX_COUNTERS_BYTES);
        let mut buffer = vec![0; bytes as usize];
        let memory = ProcessMemory::of(proc::living_thread(pid));
        let read = memory.read(counters.start, &mut buffer);
        let sizes = Sizes::parse(&buffer[..read])?;
        Some(Self {
            range: range_of(sizes.max, maps, others)?,
            used: sizes.used,
        })
    }
}

/// Sizes of a heap, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sizes {
    used: u64,
    /// Maximum size of the heap. Collectors with regions (G1) state the size of the whole heap for
    /// each generation.
    max: MaxSizes,
}

/// Maximum sizes of the generations of a heap, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct MaxSizes {
    largest: u64,
    sum: u64,
}

impl Sizes {
    /// Parses the counters. Returns `None` if they are not those of a little-endian machine, or say
    /// nothing about the heap.
    fn parse(counters: &[u8]) -> Option<Self> {
        if !counters.starts_with(&MAGIC) {
            return None;
        }
        let mut sizes = Self::default();
        let mut at = word(counters, 24)? as usize;
        let entries = word(counters, 28)?.min(MAX_ENTRIES);
        if at < HEADER_BYTES {
            return None;
        }
        for _ in 0..entries {
            let length = word(counters, at)? as usize;
            if length < ENTRY_BYTES {
                return None;
            }
            let entry = counters.get(at..at.checked_add(length)?)?;
            sizes.add(entry);
            at += length;
        }
        (sizes.max.largest > 0).then_some(sizes)
    }

    /// Adds a counter, if it is one of a generation or space.
    fn add(&mut self, entry: &[u8]) -> Option<()> {
        let name = entry.get(word(entry, 4)? as usize..)?;
        let end = name.iter().position(|byte| *byte == 0)?;
        let name = std::str::from_utf8(&name[..end]).ok()?;
        let rest = name.strip_prefix("sun.gc.generation.")?;
        let data = entry.get(word(entry, 16)? as usize..)?;
        let value = u64::from_le_bytes(*data.first_chunk()?);
        let mut parts = rest.split('.');
        parts.next()?.parse::<u32>().ok()?;
        match (parts.next()?, parts.next(), parts.next()) {
            ("maxCapacity", None, None) => {
                self.max.largest = self.max.largest.max(value);
                self.max.sum = self.max.sum.saturating_add(value);
            }
            ("space", Some(_), Some("used")) => self.used = self.used.saturating_add(value),
            _ => {}
        }
        Some(())
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Finds adjacent private mappings that together have the size of the heap. They are anonymous, or
/// contain archived objects (`classes.jsa`). Excludes `others`, such as the heaps of glibc's
/// arenas, which are adjacent, too.
fn range_of(max: MaxSizes, maps: &[u8], others: &[Range<u64>]) -> Option<Range<u64>> {
    let may_hold_heap = |entry: &Entry<'_>| {
        let is_archive = text::base_name(entry.path).ends_with(b".jsa");
        entry.permissions.ends_with(b"p") && (entry.path.is_empty() || is_archive)
    };
    let mappings: Vec<Range<u64>> = Entry::all(maps)
        .filter(may_hold_heap)
        .map(|entry| entry.start..entry.end)
        .collect();
    // For each mapping: end of the run of adjacent mappings that it is in.
    let mut ends: Vec<u64> = mappings.iter().map(|mapping| mapping.end).collect();
    for number in (1..mappings.len()).rev() {
        if mappings[number - 1].end == mappings[number].start {
            ends[number - 1] = ends[number];
        }
    }
    // The counters add a few words to the size of each space.
    let sizes = [max.largest, max.sum].map(|size| size & !(MIN_HEAP_ALIGNMENT - 1));
    mappings.iter().zip(ends).find_map(|(mapping, last)| {
        let candidates = sizes.map(|size| mapping.start.saturating_add(size));
        let is_end = |end: &u64| {
            let found = mappings.binary_search_by_key(end, |mapping| mapping.end);
            let next = others.partition_point(|other| other.end <= mapping.start);
            let is_other = others.get(next).is_some_and(|other| other.start < *end);
            mapping.start < *end && *end <= last && found.is_ok() && !is_other
        };
        let end = candidates.into_iter().find(is_end)?;
        Some(mapping.start..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counters with these names and values.
    fn counters(entries: &[(&str, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[..5].copy_from_slice(&MAGIC);
        bytes[24..28].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
        bytes[28..32].copy_from_slice(&(entries.len() as u32).to_le_bytes());
        for (name, value) in entries {
            let data = (ENTRY_BYTES + name.len() + 1).next_multiple_of(8);
            let mut entry = vec![0; data];
            entry[..4].copy_from_slice(&(data as u32 + 8).to_le_bytes());
            entry[4..8].copy_from_slice(&(ENTRY_BYTES as u32).to_le_bytes());
            entry[16..20].copy_from_slice(&(data as u32).to_le_bytes());
            entry[ENTRY_BYTES..ENTRY_BYTES + name.len()].copy_from_slice(name.as_bytes());
            bytes.extend(entry);
            bytes.extend(value.to_le_bytes());
        }
        bytes
    }

    fn typical() -> Vec<u8> {
        counters(&[
            ("java.ci.totalTime", 1),
            ("sun.gc.generation.0.maxCapacity", 0x5018),
            ("sun.gc.generation.0.space.0.used", 10),
            ("sun.gc.generation.0.space.0.maxCapacity", 1 << 40),
            ("sun.gc.generation.1.maxCapacity", 0x3008),
            ("sun.gc.generation.1.space.0.used", 20),
        ])
    }

    #[test]
    fn the_sizes_of_the_generations_are_read() {
        let expected = Sizes {
            used: 30,
            max: MaxSizes {
                largest: 0x5018,
                sum: 0x8020,
            },
        };
        assert_eq!(Sizes::parse(&typical()), Some(expected));
        assert_eq!(Sizes::parse(&counters(&[("sun.gc.cause", 1)])), None);
    }

    #[test]
    fn damaged_counters_are_read_within_their_bounds() {
        let counters = typical();
        for at in 0..counters.len() {
            let _ = Sizes::parse(&counters[..at]);
            for value in [0, 0x7f, 0xff] {
                let mut damaged = counters.clone();
                damaged[at] = value;
                let _ = Sizes::parse(&damaged);
            }
        }
    }

    #[test]
    fn the_heap_is_where_adjacent_mappings_have_its_size() {
        let maps = b"1000-2000 rw-p 0 00:00 0 \n10000-14000 rw-p 0 00:00 0 \n\
            14000-15000 rw-p 0 08:01 5 /jvm/classes.jsa\n15000-18000 ---p 0 00:00 0 \n\
            18000-19000 rw-p 0 08:01 5 /jvm/java\n";
        let found_beside =
            |largest, sum, others: &[Range<u64>]| range_of(MaxSizes { largest, sum }, maps, others);
        let found = |largest, sum| found_beside(largest, sum, &[]);
        // Of two generations, and of one for all.
        assert_eq!(found(0x5018, 0x8020), Some(0x10000..0x15000));
        assert_eq!(found(0x6018, 0x8020), Some(0x10000..0x18000));
        assert_eq!(found(0x8008, 0x10010), Some(0x10000..0x18000));
        assert_eq!(found(0x9000, 0x9000), None);
        assert_eq!(found(u64::MAX, u64::MAX), None);
        assert_eq!(found(0, 0), None);
        let other = 0x12000..0x13000;
        assert_eq!(
            found_beside(0x5018, 0x8020, std::slice::from_ref(&other)),
            None
        );
        assert_eq!(
            found_beside(0x3008, 0x8020, &[other]),
            Some(0x15000..0x18000)
        );
    }
}
