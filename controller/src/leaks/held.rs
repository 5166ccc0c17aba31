//! Memory that a copy of a process lacks (`MADV_DONTFORK`), read while the process stands still:
//! it would be another moment's later.

use std::collections::HashSet;
use std::ops::Range;

use reachability::{Memory, ProcessMemory};

use super::regions::{Pages, Region};

/// Most bytes that are held. To read them takes some tenths of a second.
const MOST: u64 = 512 << 20;

/// What was read.
#[derive(Debug, Default)]
pub struct Held {
    /// By address.
    parts: Vec<(u64, Vec<u8>)>,
    /// Where the regions begin.
    regions: HashSet<u64>,
    /// Bytes of the regions for which there was no room.
    pub missed: u64,
}

impl Held {
    /// The pages that are there of those private regions of a process that begin where one of
    /// `absent` does.
    pub fn of(pid: i32, regions: &[Region], absent: &[Range<u64>]) -> Self {
        let absent: HashSet<u64> = absent.iter().map(|range| range.start).collect();
        let regions = regions.iter().filter(|region| {
            region.is_readable && !region.is_shared && absent.contains(&region.range.start)
        });
        let (memory, mut pages) = (ProcessMemory::of(pid), Pages::of(pid));
        let (mut held, mut left) = (Self::default(), MOST);
        for region in regions.map(|region| &region.range) {
            let size = region.end.saturating_sub(region.start);
            let present = pages.present(region.clone(), true);
            let bytes = present.as_deref().map(|parts| {
                let sizes = parts.iter().map(|part| part.end - part.start);
                sizes.sum::<u64>()
            });
            let Some((present, rest)) =
                present.zip(bytes.and_then(|bytes| left.checked_sub(bytes)))
            else {
                held.missed = held.missed.saturating_add(bytes.unwrap_or(size));
                continue;
            };
            left = rest;
            held.regions.insert(region.start);
            for part in present {
                let mut bytes = vec![0; (part.end - part.start) as usize];
                memory.read(part.start, &mut bytes);
                held.parts.push((part.start, bytes));
            }
        }
        held
    }

    /// What is held of the region of these addresses; `None`: it is not held.
    pub fn parts(&self, region: &Range<u64>) -> Option<Vec<Range<u64>>> {
        self.regions.contains(&region.start).then(|| {
            let first = self.parts.partition_point(|part| part.0 < region.start);
            let parts = self.parts[first..].iter();
            parts
                .map(|(start, bytes)| *start..*start + bytes.len() as u64)
                .take_while(|part| part.start < region.end)
                .collect()
        })
    }

    /// Reads what is held at an address.
    pub fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let after = self.parts.partition_point(|part| part.0 <= at);
        let part = after.checked_sub(1).map(|index| &self.parts[index]);
        let own = part.and_then(|(start, bytes)| bytes.get((at - start) as usize..));
        let own = own.unwrap_or_default();
        let len = own.len().min(buffer.len());
        buffer[..len].copy_from_slice(&own[..len]);
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_stays_as_it_was() {
        let mut bytes = vec![7_u8; 3 << 12];
        let start = (bytes.as_ptr().addr() as u64).next_multiple_of(4096);
        let line = format!("{start:x}-{:x} rw-p 0 00:00 0\n", start + (2 << 12));
        let regions = super::super::regions::parse(line.as_bytes());
        let own = std::process::id() as i32;
        let region = regions[0].range.clone();
        let held = Held::of(own, &regions, std::slice::from_ref(&region));
        bytes.fill(8);
        let mut read = [0; 100];
        assert_eq!(held.read(start + 4050, &mut read), 100);
        assert_eq!(read, [7; 100]);
        assert_eq!(held.read(start + (2 << 12) - 40, &mut read), 40);
        assert_eq!(held.read(start - 1, &mut read), 0);
        assert_eq!(held.parts(&region), Some(vec![region.clone(); 1]));
        assert_eq!(held.parts(&(0..4096)), None);
        assert_eq!(Held::of(own, &regions, &[]).parts(&region), None);
    }
}
