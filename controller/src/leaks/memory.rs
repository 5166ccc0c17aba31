//! The memory of a process at one moment.
//!
//! Only pages that are there are read: a page that is not there would be made by reading it, in a
//! file perhaps, or by somebody who does not answer (`userfaultfd`), and be zero anyway. Of a file
//! that is mapped several times each page is read once: otherwise a small process could seem to
//! have any amount of memory.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use reachability::{Memory, ProcessMemory};

use super::held::Held;
use super::intervals::Intervals;
use super::regions::{Pages, Region};

/// The memory at the moment: the copy's, what is held of the rest (`MADV_DONTFORK`), and of what
/// is in neither the process's own.
pub struct MomentMemory {
    /// By address; none overlap.
    parts: Vec<Part>,
    /// The part that was read last.
    last: Cell<usize>,
    /// The copy's memory as a file.
    file: Option<File>,
    copy: ProcessMemory,
    process: ProcessMemory,
    held: Held,
    /// Bytes of writable memory that is shared, and is neither in the copy nor held.
    shared: u64,
    left_out: usize,
}

/// Pages that are there.
struct Part {
    range: Range<u64>,
    source: Source,
}

/// Where a part is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// In the copy, through its file. `process_vm_readv` would make the kernel copy each page
    /// that the copy shares with the process before it is read (Linux 5.19 and later).
    File,
    /// In the copy. Of a device's memory, which must not be read, this reads nothing.
    Copy,
    /// In the process.
    Process,
    /// Held here.
    Held,
}

impl MomentMemory {
    /// Of a copy of a process, which may be the process itself; regions of the addresses `absent`
    /// are held, or else the process's.
    pub fn of(
        copy: i32,
        process: i32,
        regions: &[Region],
        (absent, held): (&[Range<u64>], Held),
    ) -> Self {
        let mut memory = Self {
            parts: Vec::new(),
            last: Cell::new(0),
            file: File::open(format!("/proc/{copy}/mem")).ok(),
            copy: ProcessMemory::of(copy),
            process: ProcessMemory::of(process),
            held,
            shared: 0,
            left_out: 0,
        };
        let (mut of_copy, mut of_process) = (Pages::of(copy), Pages::of(process));
        let mut files = HashMap::new();
        let mut readable: Vec<&Region> = regions.iter().filter(|r| r.is_readable).collect();
        // What there is too much of is large.
        readable.sort_by_key(|region| region.range.end.saturating_sub(region.range.start));
        for region in readable {
            let is_absent = absent
                .binary_search_by_key(&region.range.start, |range| range.start)
                .is_ok();
            if let Some(parts) = memory.held.parts(&region.range) {
                let source = Source::Held;
                let parts = parts.into_iter().map(|range| Part { range, source });
                memory.parts.extend(parts);
                continue;
            }
            let source = match (is_absent, region.is_shared || region.file.1 != 0) {
                (true, _) => Source::Process,
                (false, true) => Source::Copy,
                (false, false) if memory.file.is_some() => Source::File,
                (false, false) => Source::Copy,
            };
            // The copy's tables say nothing of memory that it shares.
            let pages = match is_absent || region.is_shared {
                true => &mut of_process,
                false => &mut of_copy,
            };
            let Some(present) = pages.present(region.range.clone(), !region.is_shared) else {
                memory.left_out += 1;
                continue;
            };
            let writable = u64::from(region.is_shared && region.is_writable);
            let mut shared = 0;
            let mut add = |range: Range<u64>| {
                shared += writable * (range.end - range.start);
                memory.parts.push(Part { range, source });
            };
            match region.is_shared {
                false => present.into_iter().for_each(add),
                true => {
                    let known: &mut Intervals = files.entry(region.file).or_default();
                    for part in present {
                        // Where in the file it is, modulo 2^64.
                        let shift = region.offset.wrapping_sub(region.range.start);
                        let start = part.start.wrapping_add(shift);
                        let end = start.saturating_add(part.end - part.start);
                        known.add(start..end, |new| {
                            add(new.start.wrapping_sub(shift)..new.end.wrapping_sub(shift));
                        });
                    }
                }
            }
            memory.shared += shared;
        }
        memory.parts = apart(memory.parts);
        memory.parts.dedup_by(|next, last| {
            let joins = last.source == next.source && last.range.end == next.range.start;
            if joins {
                last.range.end = next.range.end;
            }
            joins
        });
        memory
    }

    /// Mappings whose pages are not known, since there are too many.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Bytes that are read in the process, of another moment if it is not stopped.
    pub fn missed(&self) -> u64 {
        self.held.missed
    }

    /// Bytes of shared memory that are the process's, of another moment if it is not stopped.
    pub fn shared(&self) -> u64 {
        self.shared
    }

    /// The index of the first part that ends behind an address.
    fn index_of(&self, at: u64) -> usize {
        let last = self.last.get();
        if self
            .parts
            .get(last)
            .is_some_and(|part| part.range.contains(&at))
        {
            return last;
        }
        let index = self.parts.partition_point(|part| part.range.end <= at);
        self.last.set(index);
        index
    }

    fn fill(&self, at: u64, buffer: &mut [u8]) {
        let end = at.saturating_add(buffer.len() as u64);
        let mut done = 0;
        for part in &self.parts[self.index_of(at)..] {
            if part.range.start >= end {
                break;
            }
            let start = part.range.start.max(at);
            let from = (start - at) as usize;
            let to = (part.range.end.min(end) - at) as usize;
            buffer[done..from].fill(0);
            let wanted = &mut buffer[from..to];
            let read = match (part.source, &self.file) {
                (Source::File, Some(file)) => read_file(file, start, wanted),
                (Source::Held, _) => self.held.read(start, wanted),
                (Source::Process, _) => self.process.read(start, wanted),
                _ => self.copy.read(start, wanted),
            };
            wanted[read..].fill(0);
            done = to;
        }
        buffer[done..].fill(0);
    }
}

/// Parts by address, without what is in an earlier one too: among many threads, some pages were
/// seen to be told twice.
fn apart(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by_key(|part| part.range.start);
    let mut end = 0;
    parts.retain_mut(|part| {
        part.range.start = part.range.start.max(end);
        end = end.max(part.range.end);
        part.range.start < part.range.end
    });
    parts
}

fn read_file(file: &File, at: u64, buffer: &mut [u8]) -> usize {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(read) if read > 0 => done += read,
            _ => break,
        }
    }
    done
}

impl Memory for MomentMemory {
    /// What is not there is zero.
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        self.fill(at, buffer);
        buffer.len()
    }

    fn next(&self, range: Range<u64>) -> Option<Range<u64>> {
        let part = self.parts.get(self.index_of(range.start))?;
        let found = part.range.start.max(range.start)..part.range.end.min(range.end);
        (found.start < found.end).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(bytes: &[u8], twice: bool) -> (MomentMemory, u64) {
        let at = bytes.as_ptr().addr() as u64;
        let start = at & !4095;
        let region = Region {
            range: start..(at + bytes.len() as u64).next_multiple_of(4096),
            is_readable: true,
            is_writable: true,
            is_shared: false,
            file: ((0, 0), 0),
            offset: 0,
            name: Vec::new(),
            has_guard: false,
            module: None,
        };
        let regions = vec![region; if twice { 2 } else { 1 }];
        let pid = std::process::id() as i32;
        (
            MomentMemory::of(pid, pid, &regions, (&[], Held::default())),
            at,
        )
    }

    #[test]
    fn a_mapping_that_is_listed_twice_is_read_once() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        for twice in [false, true] {
            let (memory, at) = own(&bytes, twice);
            let mut read = vec![1; bytes.len()];
            memory.gather(&[(at, bytes.len())], &mut read);
            assert_eq!(read, bytes);
            let mut around = [1; 16];
            memory.gather(&[(at - (1 << 30), 8), (u64::MAX - 7, 8)], &mut around);
            assert_eq!(around, [0; 16]);
            let after = memory.next(at..u64::MAX).expect("all of it");
            assert_eq!(after.start, at);
            assert_eq!(memory.next(after.end..u64::MAX), None);
        }
    }
}
