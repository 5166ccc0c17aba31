//! The memory of a process at one moment.
//!
//! A copy of a large one searches its memory itself ([`capture::Worker`]), since reading that from
//! outside takes longer than searching it.
//!
//! Only pages that are there are read: reading a page that does not exist would create it, perhaps
//! in a file, or by a process that does not answer (`userfaultfd`), and it would be zero anyway. Of
//! a file that is mapped several times each page is read once: otherwise a small process could seem
//! to have any amount of memory.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use capture::{Copy, Failure, Worker};
use reachability::{Here, Memory, Place, ProcessMemory, Work};

use super::held::Held;
use super::intervals::Intervals;
use super::regions::{Pages, Region};

/// Bytes of memory from which on the copy is made to search it: less is read from outside in the
/// time that it takes to prepare that.
const MUCH: u64 = 8 << 20;
/// The time that a copy has for its work, besides that for what it reads.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes that it reads in a second, at least: a fifth of what was seen at worst, with nodes in random
/// order on a slow machine that others used.
const SLOWEST: u64 = 16 << 20;

/// The memory at the moment: the copy's, what is held of the rest (`MADV_DONTFORK`), and of what
/// is in neither the process's own.
pub struct MomentMemory {
    /// By address; none overlap.
    parts: Vec<Part>,
    /// The part that was read last.
    last: Cell<usize>,
    /// The copy's memory as a file.
    file: Option<File>,
    /// The copy itself, as long as there is one.
    worker: Weak<Copy>,
    /// Whether it searched its memory; why it did not, though it was to.
    searched: Cell<Option<Result<(), Failure>>>,
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
    /// The same, of memory that holds no file and is not the kernel's: the copy itself can read it.
    Own,
    /// In the copy. Of a device's memory, which must not be read, this reads nothing.
    Copy,
    /// In the process.
    Process,
    /// Held here.
    Held,
}

impl MomentMemory {
    /// For a copy of a process, which may be the process itself; regions of the addresses `absent`
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
            worker: Weak::new(),
            searched: Cell::new(None),
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
                (false, false) if memory.file.is_some() && is_own(region) => Source::Own,
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

    /// Where work can be done on the memory: in the copy that it is of, as long as that exists.
    pub fn let_work(&mut self, copy: &Arc<Copy>) {
        self.worker = Arc::downgrade(copy);
    }

    /// Whether the copy searched its memory. An error: it was to, and was searched from outside.
    pub fn searched(&self) -> Result<bool, Failure> {
        self.searched.get().transpose().map(|done| done.is_some())
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
                (Source::File | Source::Own, Some(file)) => read_file(file, start, wanted),
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

/// How many of the first pieces, of some, lie so close together that they are read at once, and the
/// bytes of those.
fn together(pieces: &[(u64, usize)]) -> (usize, usize) {
    /// A page more is read faster than one more time.
    const GAP: u64 = 4096;
    const MOST: u64 = 256 << 10;
    let (start, mut sum) = pieces[0];
    let (mut count, mut end) = (1, start.saturating_add(sum as u64));
    for &(at, len) in &pieces[1..] {
        let next = at.saturating_add(len as u64);
        if at < end || at - end > GAP || next - start > MOST {
            break;
        }
        (count, sum, end) = (count + 1, sum + len, next);
    }
    (count, sum)
}

/// Whether a private mapping without a file is a program's, not one that the kernel made.
fn is_own(region: &Region) -> bool {
    let names = [&b"[heap"[..], b"[stack", b"[anon"];
    region.name.is_empty() || names.iter().any(|name| region.name.starts_with(name))
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

    fn gather(&self, pieces: &[(u64, usize)], buffer: &mut [u8]) {
        let (mut rest, mut pieces) = (buffer, pieces);
        let mut room = Vec::new();
        while let Some(&(start, _)) = pieces.first() {
            let (count, len) = together(pieces);
            let (wanted, others) = rest.split_at_mut(len.min(rest.len()));
            rest = others;
            if count == 1 {
                self.fill(start, wanted);
            } else {
                let (last, bytes) = pieces[count - 1];
                room.resize((last - start) as usize + bytes, 0);
                self.fill(start, &mut room);
                let mut wanted = wanted;
                for (at, len) in &pieces[..count] {
                    let (piece, others) = wanted.split_at_mut((*len).min(wanted.len()));
                    let from = (at - start) as usize;
                    piece.copy_from_slice(&room[from..from + piece.len()]);
                    wanted = others;
                }
            }
            pieces = &pieces[count..];
        }
    }

    fn next(&self, range: Range<u64>) -> Option<Range<u64>> {
        let part = self.parts.get(self.index_of(range.start))?;
        let found = part.range.start.max(range.start)..part.range.end.min(range.end);
        (found.start < found.end).then_some(found)
    }

    fn here(&self) -> Option<Here> {
        self.worker.upgrade()?;
        let mut here = Here::default();
        for part in &self.parts {
            match part.source {
                Source::Own => here.parts.push(part.range.clone()),
                _ => here.others.push(part.range.clone()),
            }
        }
        let bytes: u64 = here.parts.iter().map(|part| part.end - part.start).sum();
        (bytes >= MUCH).then_some(here)
    }

    fn place(&self, work: Work, words: usize) -> Option<Box<dyn Place + '_>> {
        let failed = |failure| match failure {
            // It is known, and there is nothing to be done about it.
            Failure::Processor => {}
            failure => self.searched.set(Some(Err(failure))),
        };
        let worker = self.worker.upgrade()?.worker(work, words);
        let worker = worker.map_err(failed).ok()?;
        Some(Box::new(InCopy {
            worker,
            searched: &self.searched,
        }))
    }
}

/// A copy that is given work.
struct InCopy<'a> {
    worker: Worker,
    searched: &'a Cell<Option<Result<(), Failure>>>,
}

impl Place for InCopy<'_> {
    fn words(&self) -> &[AtomicU64] {
        self.worker.words()
    }

    fn run(&self, bytes: u64) -> bool {
        let limit = PATIENCE + Duration::from_secs(bytes / SLOWEST);
        let done = self.worker.run(limit);
        self.searched.set(Some(done));
        done.is_ok()
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
            // Close together, as one, and far apart.
            let pieces = [
                (0, 10),
                (10, 1),
                (20, 30),
                (9000, 5),
                (9005, 3),
                (80_000, 7),
                (3, 9),
            ];
            let wanted: Vec<u8> = pieces
                .iter()
                .flat_map(|&(from, len)| &bytes[from..from + len])
                .copied()
                .collect();
            let pieces = pieces.map(|(from, len)| (at + from as u64, len));
            let mut read = vec![1; wanted.len()];
            memory.gather(&pieces, &mut read);
            assert_eq!(read, wanted);
            let mut around = [1; 16];
            memory.gather(&[(at - (1 << 30), 8), (u64::MAX - 7, 8)], &mut around);
            assert_eq!(around, [0; 16]);
            let after = memory.next(at..u64::MAX).expect("all of it");
            assert_eq!(after.start, at);
            assert_eq!(memory.next(after.end..u64::MAX), None);
        }
    }
}
