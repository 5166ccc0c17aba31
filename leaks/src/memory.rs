//! Reads the memory of a process as of one moment.
//!
//! The memory is that of a copy-on-write copy of the process. A large copy searches itself
//! ([`capture::Worker`]), since reading it from outside takes longer than searching it.
//!
//! Only pages that exist are read. Reading another page would create it, possibly in a file or
//! through a process that does not answer (`userfaultfd`), and would return only zeros. If a file
//! is mapped several times, each of its pages is read once; otherwise a small process could claim
//! any amount of memory.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};
use std::time::Duration;

use capture::{Copy, Failure, Worker};
use proc::Pages;
use reachability::{InPlace, Memory, ProcessMemory, Runner, Work};

use super::intervals::Intervals;
use super::regions::Region;
use super::saved::{SavedMemory, read_file};

/// Minimum number of bytes for which the copy searches its own memory. For less, reading from
/// outside is faster than preparing the copy.
const MIN_WORKER_BYTES: u64 = 8 << 20;
/// Time limit of a copy's search, in addition to the time for its memory at [`MIN_SPEED`].
const SEARCH_TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum speed of a copy's search, in bytes per second. A fifth of the worst measurement:
/// randomly ordered nodes on a slow, busy machine.
const MIN_SPEED: u64 = 16 << 20;

/// Memory as of one moment. It is read from the copy, from regions that were read during the stop
/// ([`SavedMemory`]), and otherwise from the process itself.
pub struct MomentMemory {
    /// Existing pages by address, without overlaps.
    parts: Vec<Part>,
    /// Index of the part that was read last.
    last: Cell<usize>,
    /// `/proc/PID/mem` of the copy.
    file: Option<File>,
    /// The copy, which can search its own memory while it exists.
    worker: Weak<Copy>,
    /// Result of the copy's search; `None` if it has not searched.
    searched: Cell<Option<Result<(), Failure>>>,
    copy: ProcessMemory,
    process: ProcessMemory,
    saved: SavedMemory,
    /// Size of shared writable memory that was neither copied nor saved, in bytes.
    shared: u64,
    /// Number of mappings whose pages are unknown, or which no other process can read.
    left_out: usize,
}

/// Range of existing pages.
struct Part {
    range: Range<u64>,
    source: Source,
}

/// Source of a part's bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// The copy, through its `/proc/PID/mem`. With `process_vm_readv`, the kernel would first copy
    /// each page that the copy shares with the process (Linux 5.19 and newer).
    File,
    /// Like `File`, for anonymous memory of the program, which can also be searched in the copy.
    Searchable,
    /// The copy, by `process_vm_readv`. Reads nothing from device memory, which must not be
    /// touched.
    Copy,
    /// The process itself.
    Process,
    /// Memory that was read during the stop.
    Saved,
}

impl MomentMemory {
    /// Prepares reading from a copy of a process; `copy` may be the process itself. Regions whose
    /// ranges are in `absent` are missing from the copy; they are read from `saved` or from the
    /// process.
    pub fn of(
        copy: i32,
        process: i32,
        regions: &[Region],
        absent: &[Range<u64>],
        saved: SavedMemory,
    ) -> Self {
        let mut memory = Self {
            parts: Vec::new(),
            last: Cell::new(0),
            file: File::open(format!("/proc/{copy}/mem")).ok(),
            worker: Weak::new(),
            searched: Cell::new(None),
            copy: ProcessMemory::of(copy),
            process: ProcessMemory::of(process),
            saved,
            shared: 0,
            left_out: 0,
        };
        let mut pages_of_copy = Pages::of(copy);
        let mut pages_of_process = Pages::of(process);
        let mut files = HashMap::new();
        let mut searched: Vec<&Region> = regions.iter().filter(|r| r.is_searched()).collect();
        // The regions at the end are skipped if the limit on pages is reached: inaccessible ones,
        // which are nearly always empty address reservations, and the largest of the others.
        searched.sort_by_key(|region| (!region.is_readable, region.size()));
        for region in searched {
            let is_absent = absent
                .binary_search_by_key(&region.range.start, |range| range.start)
                .is_ok();
            if let Some(parts) = memory.saved.parts(&region.range) {
                let source = Source::Saved;
                let parts = parts.into_iter().map(|range| Part { range, source });
                memory.parts.extend(parts);
                continue;
            }
            let source = if is_absent {
                Source::Process
            } else if region.is_shared || region.file.1 != 0 || memory.file.is_none() {
                Source::Copy
            } else if is_program_memory(region) && region.is_readable {
                Source::Searchable
            } else {
                Source::File
            };
            // The copy's page tables have no entries for shared memory.
            let pages = if is_absent || region.is_shared {
                &mut pages_of_process
            } else {
                &mut pages_of_copy
            };
            if !region.is_readable && !pages.is_known() {
                continue;
            }
            let Some(present) = pages.present(region.range.clone(), region.pages_wanted()) else {
                memory.left_out += usize::from(region.is_readable);
                continue;
            };
            let Some(first) = present.first() else {
                continue;
            };
            // The kernel may be set to refuse access to what the process itself may not read
            // (`proc_mem.force_override`).
            if region.is_secret() || !region.is_readable && !memory.can_read(first.start) {
                memory.left_out += 1;
                continue;
            }
            if !region.is_shared {
                let parts = present.into_iter().map(|range| Part { range, source });
                memory.parts.extend(parts);
                continue;
            }
            let known: &mut Intervals = files.entry(region.file).or_default();
            for part in present {
                // Distance from the address to the file offset, modulo 2^64.
                let shift = region.offset.wrapping_sub(region.range.start);
                let start = part.start.wrapping_add(shift);
                let end = start.saturating_add(part.end - part.start);
                known.add(start..end, |new| {
                    let range = new.start.wrapping_sub(shift)..new.end.wrapping_sub(shift);
                    if region.is_writable {
                        memory.shared += range.end - range.start;
                    }
                    memory.parts.push(Part { range, source });
                });
            }
        }
        memory.parts = without_overlaps(memory.parts);
        memory.parts.dedup_by(|next, last| {
            let joins = last.source == next.source && last.range.end == next.range.start;
            if joins {
                last.range.end = next.range.end;
            }
            joins
        });
        memory
    }

    /// Allows searching the memory in the copy itself, while the copy exists.
    pub fn search_in_copy(&mut self, copy: &Arc<Copy>) {
        self.worker = Arc::downgrade(copy);
    }

    /// Returns true if the copy searched its own memory. Returns an error if it could not; the
    /// memory was then searched from outside.
    pub fn searched_by_copy(&self) -> Result<bool, Failure> {
        self.searched
            .get()
            .transpose()
            .map(|result| result.is_some())
    }

    /// Returns the number of mappings that were skipped, because looking up their pages would take
    /// too long, or because no other process can read them.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Returns the number of bytes that were read from the process after it continued, because
    /// [`SavedMemory`] has a limit.
    pub fn missed_bytes(&self) -> u64 {
        self.saved.missed
    }

    /// Returns the number of bytes of shared memory that are read from the process, which may have
    /// continued.
    pub fn shared_bytes(&self) -> u64 {
        self.shared
    }

    /// Returns true if the copy's memory at an address can be read through its file.
    fn can_read(&self, at: u64) -> bool {
        let file = self.file.as_ref();
        file.is_some_and(|file| read_file(file, at, &mut [0]) == 1)
    }

    /// Returns the index of the first part that ends after an address.
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
        let mut filled = 0;
        for part in &self.parts[self.index_of(at)..] {
            if part.range.start >= end {
                break;
            }
            let start = part.range.start.max(at);
            let from = (start - at) as usize;
            let to = (part.range.end.min(end) - at) as usize;
            buffer[filled..from].fill(0);
            let wanted = &mut buffer[from..to];
            let read = match (part.source, &self.file) {
                (Source::File | Source::Searchable, Some(file)) => read_file(file, start, wanted),
                (Source::Saved, _) => self.saved.read(start, wanted),
                (Source::Process, _) => self.process.read(start, wanted),
                _ => self.copy.read(start, wanted),
            };
            wanted[read..].fill(0);
            filled = to;
        }
        buffer[filled..].fill(0);
    }
}

/// Pieces that are read with one call.
struct Batch {
    /// Number of pieces.
    count: usize,
    /// Total size of the pieces in bytes.
    bytes: usize,
}

/// Returns how many of the first pieces are close enough to be read with one call.
fn first_batch(pieces: &[(u64, usize)]) -> Batch {
    /// Maximum gap, in bytes: reading a page more is cheaper than another read.
    const MAX_GAP: u64 = 4096;
    /// Maximum distance from the first piece to the end of the last, in bytes.
    const MAX_EXTENT: u64 = 256 << 10;
    let (start, mut bytes) = pieces[0];
    let mut count = 1;
    let mut end = start.saturating_add(bytes as u64);
    for &(at, len) in &pieces[1..] {
        let next = at.saturating_add(len as u64);
        if at < end || at - end > MAX_GAP || next - start > MAX_EXTENT {
            break;
        }
        count += 1;
        bytes += len;
        end = next;
    }
    Batch { count, bytes }
}

/// Returns true if a private mapping without a file belongs to the program, not to the kernel.
fn is_program_memory(region: &Region) -> bool {
    let names = [&b"[heap"[..], b"[stack", b"[anon"];
    region.name.is_empty() || names.iter().any(|name| region.name.starts_with(name))
}

/// Sorts parts and removes overlaps. With many threads, the kernel may report pages twice.
fn without_overlaps(mut parts: Vec<Part>) -> Vec<Part> {
    parts.sort_by_key(|part| part.range.start);
    let mut end = 0;
    parts.retain_mut(|part| {
        part.range.start = part.range.start.max(end);
        end = end.max(part.range.end);
        part.range.start < part.range.end
    });
    parts
}

impl Memory for MomentMemory {
    /// Reads missing pages as zeros. Always fills the buffer.
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        self.fill(at, buffer);
        buffer.len()
    }

    fn gather(&self, pieces: &[(u64, usize)], buffer: &mut [u8]) {
        let mut rest = buffer;
        let mut pieces = pieces;
        // Memory from the first to the last piece of a batch, with the gaps between them.
        let mut extent = Vec::new();
        while let Some(&(start, _)) = pieces.first() {
            let batch = first_batch(pieces);
            let (mut wanted, others) = rest.split_at_mut(batch.bytes.min(rest.len()));
            rest = others;
            if batch.count == 1 {
                self.fill(start, wanted);
            } else {
                let (last, last_len) = pieces[batch.count - 1];
                extent.resize((last - start) as usize + last_len, 0);
                self.fill(start, &mut extent);
                for (at, len) in &pieces[..batch.count] {
                    let (piece, others) = wanted.split_at_mut((*len).min(wanted.len()));
                    let from = (at - start) as usize;
                    piece.copy_from_slice(&extent[from..from + piece.len()]);
                    wanted = others;
                }
            }
            pieces = &pieces[batch.count..];
        }
    }

    fn next(&self, range: Range<u64>) -> Option<Range<u64>> {
        let part = self.parts.get(self.index_of(range.start))?;
        let found = part.range.start.max(range.start)..part.range.end.min(range.end);
        (found.start < found.end).then_some(found)
    }

    fn in_place(&self) -> Option<InPlace> {
        self.worker.upgrade()?;
        let mut in_place = InPlace::default();
        for part in &self.parts {
            match part.source {
                Source::Searchable => in_place.parts.push(part.range.clone()),
                _ => in_place.remote_only.push(part.range.clone()),
            }
        }
        let bytes: u64 = in_place
            .parts
            .iter()
            .map(|part| part.end - part.start)
            .sum();
        (bytes >= MIN_WORKER_BYTES).then_some(in_place)
    }

    fn runner(&self, work: Work, words: usize) -> Option<Box<dyn Runner + '_>> {
        let failed = |failure| match failure {
            // A known limitation that needs no warning.
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

/// Copy that searches its own memory.
struct InCopy<'a> {
    worker: Worker,
    searched: &'a Cell<Option<Result<(), Failure>>>,
}

impl Runner for InCopy<'_> {
    fn words(&self) -> &[AtomicU64] {
        self.worker.words()
    }

    fn run(&self, bytes: u64) -> bool {
        let limit = SEARCH_TIMEOUT + Duration::from_secs(bytes / MIN_SPEED);
        let result = self.worker.run(limit);
        self.searched.set(Some(result));
        result.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::tests::written;

    /// Returns this process's memory around `bytes`, and their address. With `twice`, the mapping
    /// is listed twice.
    fn memory_around(bytes: &[u8], twice: bool) -> (MomentMemory, u64) {
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
            MomentMemory::of(pid, pid, &regions, &[], SavedMemory::default()),
            at,
        )
    }

    #[test]
    fn memory_without_access_is_read_but_not_in_the_copy() {
        let (at, mut region) = written();
        let (start, size) = (region.range.start, region.size() as usize);
        // SAFETY: the test's own mapping, which it does not access any more.
        unsafe { assert_eq!(libc::mprotect(at, size, libc::PROT_NONE), 0) };
        (region.is_readable, region.is_writable) = (false, false);
        let pid = std::process::id() as i32;
        let memory = MomentMemory::of(pid, pid, &[region], &[], SavedMemory::default());
        assert_eq!(memory.next(start..u64::MAX), Some(start..start + 4096));
        assert!(memory.parts[0].source == Source::File);
        assert_eq!((memory.word(start), memory.left_out()), (Some(7), 0));
        // SAFETY: the mapping was made above, and nothing refers to it.
        unsafe { libc::munmap(at, size) };
    }

    #[test]
    fn a_mapping_that_is_listed_twice_is_read_once() {
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
        for twice in [false, true] {
            let (memory, at) = memory_around(&bytes, twice);
            let mut read = vec![1; bytes.len()];
            memory.gather(&[(at, bytes.len())], &mut read);
            assert_eq!(read, bytes);
            // Pieces that are adjacent, close together, and far apart.
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
