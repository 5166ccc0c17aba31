//! Reader of the data of glibc's allocator from outside: its heaps, and what is free in them.
//!
//! No symbol leads to the first arena (`main_arena`), but its shape is distinctive: of the 127
//! lists of free chunks (`bins`), each empty one points to itself. All other arenas, and all heaps,
//! can be reached from there.
//!
//! Source: glibc 2.17 to 2.42, `malloc/malloc.c` (`struct malloc_state`, `struct malloc_chunk`) and
//! `malloc/arena.c` (`heap_info`), for 64-bit processes.

// Decision 92: arenas are found by their shape, without symbols.
use std::ops::Range;

use crate::memory::Memory;

/// Number of lists of free chunks in an arena.
const BINS: usize = 127;
/// Size of `bins`, in bytes: the first and the last chunk of each list.
const BINS_BYTES: usize = BINS * 16;
/// Distances from the start of an arena to `bins`, in bytes: since glibc 2.27, and before.
const BINS_OFFSETS: [u64; 2] = [112, 104];
/// Distance from `bins` to the pointer to the next arena, in bytes.
const NEXT_OFFSET: u64 = BINS_BYTES as u64 + 16;
/// Number of the first list of large chunks, of 1 KiB or more. As in glibc, numbers start at 1.
/// List 1 holds unsorted chunks.
const FIRST_LARGE_BIN: usize = 64;
/// Flags in the size of a chunk.
const FLAGS: u64 = 7;
/// Flag of a chunk that has a mapping of its own.
const IS_MAPPED: u64 = 2;
/// Alignment and maximum size of the heaps of all arenas but the first, in bytes.
const HEAP_ALIGNMENT: u64 = 64 << 20;
/// Bytes at the start of a free chunk that contain its size and links.
const LINKS_BYTES: u64 = 48;

/// Maximum number of arenas. glibc makes at most eight for each processor.
const MAX_ARENAS: usize = 1 << 14;
/// Maximum number of addresses that are examined for the start of a heap.
const MAX_HEAPS: usize = 1 << 16;
/// Maximum number of free chunks that are read: about a second's work.
const MAX_FREE_CHUNKS: usize = 1 << 18;
/// Maximum number of bytes of variables that are searched for the first arena.
const MAX_VARIABLES_BYTES: u64 = 16 << 20;
/// Maximum number of chunks with mappings of their own.
const MAX_MAPPED_CHUNKS: usize = 1 << 16;
/// Maximum number of pages that are examined for the start of a mapped chunk: 4 GiB.
const MAX_PROBED_PAGES: u64 = 1 << 20;
/// Number of pages that are examined at a time.
const PAGES_PER_READ: u64 = 512;
/// Minimum size of a mapped chunk, in bytes (`DEFAULT_MMAP_THRESHOLD`). Programs can lower the
/// threshold, but the contents of other memory could be mistaken for a smaller chunk.
const MIN_MAPPED_BYTES: u64 = 128 << 10;
/// Smallest size and alignment of pages, in bytes.
const PAGE: u64 = 4096;

/// Memory that glibc's allocator manages, as address ranges that are sorted and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GlibcHeap {
    /// Heaps of all arenas.
    pub heaps: Vec<Range<u64>>,
    /// Contents of free chunks in `heaps`, except those in lists of small chunks.
    pub free: Vec<Range<u64>>,
    /// Chunks with a mapping of their own.
    pub mapped: Vec<Range<u64>>,
    /// Number of arenas.
    pub arenas: usize,
    /// False if a list could not be followed to its end, or if a limit was reached. Then other
    /// memory of the process may belong to the heap.
    pub is_complete: bool,
}

/// Mappings of a process.
#[derive(Clone, Debug, Default)]
pub struct Mappings {
    /// Variables of the module that contains the allocator: the C library, or a static program.
    pub variables: Vec<Range<u64>>,
    /// Writable anonymous memory, sorted by address.
    pub anonymous: Vec<Range<u64>>,
    /// Memory that `brk` allocates (`[heap]`); empty if there is none.
    pub program_break: Range<u64>,
}

/// Reads the heap of a process. Returns `None` if there is no arena of glibc's, or if its data is
/// not consistent: the process may be changing it.
pub fn read(memory: &dyn Memory, mappings: &Mappings) -> Option<GlibcHeap> {
    let reader = Reader { memory, mappings };
    let mut bytes_left = MAX_VARIABLES_BYTES;
    let mut variables = mappings.variables.iter();
    let first = variables.find_map(|range| reader.first_arena(range.clone(), &mut bytes_left))?;
    let arenas = reader.arenas(first)?;
    let mut heap = GlibcHeap {
        heaps: reader.heaps(&arenas),
        arenas: arenas.len(),
        is_complete: !reader.is_scattered(&arenas),
        ..GlibcHeap::default()
    };
    let mut left = MAX_FREE_CHUNKS;
    for arena in &arenas {
        reader.add_free_chunks(arena, &mut heap, &mut left);
    }
    heap.free = crate::jemalloc::joined(std::mem::take(&mut heap.free));
    reader.add_mapped_chunks(&mut heap);
    Some(heap)
}

/// Arena, by its address and that of its lists of free chunks.
struct Arena {
    /// Address of the arena.
    address: u64,
    /// Address of `bins`.
    bins: u64,
}

struct Reader<'a> {
    memory: &'a dyn Memory,
    mappings: &'a Mappings,
}

impl Reader<'_> {
    /// Searches variables for the first arena, in pages that the program has changed. Returns the
    /// address of its `bins`. `bytes_left` is the number of bytes that may still be read.
    fn first_arena(&self, variables: Range<u64>, bytes_left: &mut u64) -> Option<u64> {
        let mut next = variables.start;
        while let Some(part) = self.memory.next(next..variables.end) {
            let bytes = (part.end - part.start).min(*bytes_left);
            if bytes == 0 {
                return None;
            }
            *bytes_left -= bytes;
            if let Some(bins) = self.bins_in(part.start, bytes) {
                return Some(bins);
            }
            next = part.end;
        }
        None
    }

    /// Returns the address of the `bins` of the arena in a piece of memory.
    fn bins_in(&self, start: u64, bytes: u64) -> Option<u64> {
        let mut contents = vec![0; bytes as usize];
        let read = self.memory.read(start, &mut contents);
        let words: Vec<u64> = contents[..read]
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let is_bin = |index: usize| {
            let at = start + index as u64 * 8;
            let pair = words.get(index..index + 2);
            pair.is_some_and(|pair| self.is_bin(at, pair[0], pair[1]))
        };
        let is_empty_bin = |index: usize| {
            let at = start + index as u64 * 8;
            words[index] == at.wrapping_sub(16) && words[index + 1] == words[index]
        };
        // The last list, which glibc never uses, is followed by numbers.
        let last_bins = (0..words.len().saturating_sub(2))
            .filter(|last| is_empty_bin(*last) && !is_bin(last + 2));
        for last in last_bins {
            let Some(first) = last.checked_sub((BINS - 1) * 2) else {
                continue;
            };
            if (first..last).step_by(2).all(is_bin) {
                return Some(start + first as u64 * 8);
            }
        }
        None
    }

    /// Returns true if the words at `at` are the ends of a list of free chunks.
    fn is_bin(&self, at: u64, first: u64, last: u64) -> bool {
        let head = at.wrapping_sub(16);
        let is_empty = first == head && last == head;
        is_empty || self.is_chunk(first) && self.is_chunk(last)
    }

    /// Returns true if there may be a chunk at this address.
    fn is_chunk(&self, at: u64) -> bool {
        let is_mapped = || {
            let anonymous = &self.mappings.anonymous;
            let next = anonymous.partition_point(|range| range.start <= at);
            next.checked_sub(1)
                .is_some_and(|index| at < anonymous[index].end)
        };
        at.is_multiple_of(16) && (self.mappings.program_break.contains(&at) || is_mapped())
    }

    /// Follows the list of all arenas, which ends at the first one.
    fn arenas(&self, first_bins: u64) -> Option<Vec<Arena>> {
        BINS_OFFSETS.into_iter().find_map(|offset| {
            let first = first_bins.checked_sub(offset)?;
            let mut arenas = vec![Arena {
                address: first,
                bins: first_bins,
            }];
            while arenas.len() < MAX_ARENAS {
                let bins = arenas.last()?.bins;
                let next = self.memory.word(bins.checked_add(NEXT_OFFSET)?)?;
                if next == first {
                    return Some(arenas);
                }
                if !self.is_chunk(next) {
                    return None;
                }
                arenas.push(Arena {
                    address: next,
                    bins: next.checked_add(offset)?,
                });
            }
            None
        })
    }

    /// Returns the heaps of these arenas. A heap begins with the address of its arena.
    fn heaps(&self, arenas: &[Arena]) -> Vec<Range<u64>> {
        let mut addresses: Vec<u64> = arenas.iter().map(|arena| arena.address).collect();
        addresses.sort_unstable();
        // `[heap]` may belong to another allocator. glibc then uses other memory, as it also does
        // if `brk` fails.
        let top = arenas.first().and_then(|first| self.top(first));
        let mut heaps = Vec::new();
        if top.is_some_and(|top| self.mappings.program_break.contains(&top)) {
            heaps.push(self.mappings.program_break.clone());
        }
        let mut probes_left = MAX_HEAPS;
        for mapping in &self.mappings.anonymous {
            // The first page of a heap is present, since it holds the arena's address.
            let mut next = mapping.start;
            while let Some(part) = self.memory.next(next..mapping.end) {
                let aligned = part.start.checked_next_multiple_of(HEAP_ALIGNMENT);
                let Some(at) = aligned.filter(|at| *at < mapping.end && probes_left > 0) else {
                    break;
                };
                next = at;
                if at >= part.end {
                    continue;
                }
                probes_left -= 1;
                let arena = self.memory.word(at).unwrap_or(0);
                let bytes = self.memory.word(at + 16).unwrap_or(0);
                if addresses.binary_search(&arena).is_ok() && bytes <= HEAP_ALIGNMENT {
                    heaps.push(at..mapping.end.min(at + bytes));
                }
                next = at.saturating_add(1);
            }
        }
        heaps.retain(|heap| heap.start < heap.end);
        crate::jemalloc::joined(heaps)
    }

    /// Returns true if the first arena has memory outside `[heap]`, because `brk` failed. The
    /// pieces of that memory are not linked to each other.
    fn is_scattered(&self, arenas: &[Arena]) -> bool {
        let top = arenas.first().and_then(|first| self.top(first));
        top.is_some_and(|top| self.is_chunk(top) && !self.mappings.program_break.contains(&top))
    }

    /// Adds the contents of an arena's large free chunks. `left` is the number of chunks that may
    /// still be read.
    fn add_free_chunks(&self, arena: &Arena, heap: &mut GlibcHeap, left: &mut usize) {
        let top = self.top(arena);
        if let Some(chunk) = top.and_then(|top| self.chunk(top, &heap.heaps)) {
            heap.free.push(chunk.start + 16..chunk.end);
        }
        for bin in std::iter::once(0).chain(FIRST_LARGE_BIN - 1..BINS) {
            let at = arena.bins + bin as u64 * 16;
            let head = at.wrapping_sub(16);
            let mut next = self.memory.word(at);
            while let Some(address) = next.filter(|next| *next != head) {
                let Some(chunk) = self.chunk(address, &heap.heaps).filter(|_| *left > 0) else {
                    heap.is_complete = false;
                    break;
                };
                *left -= 1;
                let content = chunk.start + LINKS_BYTES..chunk.end;
                if content.start < content.end {
                    heap.free.push(content);
                }
                next = self.memory.word(address + 16);
            }
        }
    }

    /// Returns the address of the free chunk at an arena's end.
    fn top(&self, arena: &Arena) -> Option<u64> {
        self.memory.word(arena.bins.checked_sub(16)?)
    }

    /// Returns the address range of the chunk at `at` if it is within a heap.
    fn chunk(&self, at: u64, heaps: &[Range<u64>]) -> Option<Range<u64>> {
        let next = heaps.partition_point(|heap| heap.start <= at);
        let heap = &heaps[next.checked_sub(1)?];
        let bytes = self.memory.word(at.checked_add(8)?)? & !FLAGS;
        let end = at.checked_add(bytes)?;
        (bytes >= 32 && end <= heap.end).then_some(at..end)
    }

    /// Adds the chunks that have mappings of their own. The kernel merges adjacent mappings, so
    /// each page may be the start of a chunk.
    fn add_mapped_chunks(&self, heap: &mut GlibcHeap) {
        let mut pages_left = MAX_PROBED_PAGES;
        for mapping in self.mappings_outside(&heap.heaps) {
            let mut at = mapping.start;
            while let Some(part) = self.memory.next(at..mapping.end) {
                let count = ((part.end - part.start) / PAGE).min(PAGES_PER_READ);
                if pages_left < count || heap.mapped.len() == MAX_MAPPED_CHUNKS {
                    heap.is_complete = false;
                    return;
                }
                if count == 0 {
                    break;
                }
                pages_left -= count;
                at = match self.first_mapped_chunk(part.start, count, mapping.end) {
                    Some(chunk) => {
                        heap.mapped.push(chunk.clone());
                        chunk.end
                    }
                    None => part.start + count * PAGE,
                };
            }
        }
    }

    /// Returns the anonymous mappings that contain no heap. Adjacent ones are joined, since `madvise`
    /// splits a chunk's mapping.
    fn mappings_outside(&self, heaps: &[Range<u64>]) -> Vec<Range<u64>> {
        let mut joined: Vec<Range<u64>> = Vec::new();
        for mapping in &self.mappings.anonymous {
            let next = heaps.partition_point(|heap| heap.end <= mapping.start);
            if heaps.get(next).is_some_and(|heap| heap.start < mapping.end) {
                continue;
            }
            match joined.last_mut() {
                Some(last) if last.end == mapping.start => last.end = mapping.end,
                _ => joined.push(mapping.clone()),
            }
        }
        joined
    }

    /// Returns the first chunk with a mapping of its own that begins with one of `count` pages.
    fn first_mapped_chunk(&self, start: u64, count: u64, end: u64) -> Option<Range<u64>> {
        let starts: Vec<u64> = (0..count).map(|page| start + page * PAGE).collect();
        let pieces: Vec<(u64, usize)> = starts.iter().map(|at| (*at, 16)).collect();
        let mut heads = vec![0; pieces.len() * 16];
        self.memory.gather(&pieces, &mut heads);
        let heads = heads.chunks_exact(16).zip(starts);
        heads
            .filter_map(|(head, at)| {
                let bytes_before = u64::from_le_bytes(head[..8].try_into().ok()?);
                let size = u64::from_le_bytes(head[8..].try_into().ok()?);
                let chunk = at..at.checked_add(size & !FLAGS)?;
                let is_mapped = bytes_before == 0
                    && size % PAGE == IS_MAPPED
                    && size >= MIN_MAPPED_BYTES
                    && chunk.end <= end;
                is_mapped.then_some(chunk)
            })
            .next()
    }
}

#[cfg(test)]
mod tests {
    use std::iter::once;

    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// Memory of another process through its file in `/proc`: qemu's user emulation, under which
    /// this test runs for aarch64, has no `process_vm_readv`.
    struct Image(File);

    impl Memory for Image {
        fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
            self.0.read_at(buffer, at).unwrap_or(0)
        }
    }

    /// Copy of this process that stands still. glibc takes the locks of its arenas for a fork.
    struct Copy(libc::pid_t);

    impl Copy {
        fn make() -> Self {
            // SAFETY: the child only waits to be killed.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                loop {
                    // SAFETY: waits for a signal.
                    unsafe { libc::pause() };
                }
            }
            assert!(pid > 0, "no process could be made");
            Self(pid)
        }
    }

    impl Drop for Copy {
        fn drop(&mut self) {
            // SAFETY: a child of ours that has not been waited for.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                libc::waitpid(self.0, std::ptr::null_mut(), 0);
            }
        }
    }

    /// Mappings of a copy of this process. What ends at the program's break is known by its
    /// address: qemu's user emulation shows other processes' mappings without a name for it.
    fn mappings_of(pid: libc::pid_t) -> Mappings {
        // SAFETY: changes nothing.
        let program_break = unsafe { libc::sbrk(0) } as u64;
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("our child's");
        let mut mappings = Mappings::default();
        for line in maps.lines() {
            let mut fields = line.split_ascii_whitespace();
            let (start, end) = fields
                .next()
                .and_then(|range| range.split_once('-'))
                .unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            let range = number(start)..number(end);
            let is_writable = fields.next().unwrap().starts_with("rw");
            if is_writable && range.contains(&(program_break - 1)) {
                mappings.program_break = range;
                continue;
            }
            match fields.nth(3) {
                Some(path) if path.contains("/libc.so") && is_writable => {
                    mappings.variables.push(range);
                }
                None if is_writable => mappings.anonymous.push(range),
                _ => {}
            }
        }
        mappings
    }

    /// The test's own allocator is glibc's.
    #[test]
    fn objects_of_this_process_are_in_its_heaps() {
        let small = Box::new([1u8; 100]);
        // Above the maximum of the size from which glibc maps an object by itself, 32 MiB.
        let large = vec![1u8; 40 << 20];
        // As by numpy, which asks for huge pages: the object is in two mappings then.
        let middle = (large.as_ptr() as usize + (20 << 20)).next_multiple_of(1 << 20);
        // SAFETY: the advice concerns core files alone, and the range is within `large`.
        let advised = unsafe { libc::madvise(middle as *mut _, 1 << 20, libc::MADV_DONTDUMP) };
        assert_eq!(advised, 0);
        let freed = vec![1u8; 100_000];
        let at_freed = freed.as_ptr() as u64;
        // Some of these are behind it, so that it does not become part of the heap's end.
        let behind: Vec<_> = (0..16).map(|_| vec![1u8; 100_000]).collect();
        drop(freed);
        let copy = Copy::make();
        let mappings = mappings_of(copy.0);
        let image = Image(File::open(format!("/proc/{}/mem", copy.0)).expect("our child's"));
        let heap = read(&image, &mappings).expect("glibc's allocator");
        let has = |ranges: &[Range<u64>], at: u64| ranges.iter().any(|range| range.contains(&at));
        let address = |object: &[u8]| object.as_ptr() as u64;
        assert!(
            has(&heap.heaps, address(&small[..]))
                && behind
                    .iter()
                    .all(|object| has(&heap.heaps, address(object)))
        );
        let is_mapped = |at: u64| has(&heap.mapped, address(&large) + at);
        assert!(is_mapped(0) && is_mapped((40 << 20) - 1) && !has(&heap.heaps, address(&large)));
        assert!(has(&heap.free, at_freed + 50_000), "{heap:x?} {at_freed:x}");
        assert!(!has(&heap.free, address(&small[..])));
        assert!(heap.arenas >= 1 && heap.is_complete);
    }

    /// Memory whose every word is a function of its address.
    struct Computed(fn(u64) -> u64);

    impl Memory for Computed {
        fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
            for (index, word) in buffer.chunks_mut(8).enumerate() {
                let bytes = self.0(at.wrapping_add(index as u64 * 8)).to_le_bytes();
                word.copy_from_slice(&bytes[..word.len()]);
            }
            buffer.len()
        }
    }

    /// Address of the bins in [`hostile`].
    const BINS_AT: u64 = 0x20_0000 + 112;

    fn hostile(at: u64) -> u64 {
        match at {
            // All lists but the last lead to one chunk, and the next arena is the first again.
            BINS_AT..0x20_0850 => 0x100_0000,
            0x20_0850 | 0x20_0858 => 0x20_0840,
            0x20_0870 => 0x20_0000,
            0x20_0060 => 0x100_8000,
            // A chunk that is its own successor.
            0x100_0008 => 0x1001,
            0x100_0010 => 0x100_0000,
            _ => 0,
        }
    }

    #[test]
    fn lists_without_end_are_left() {
        let mappings = Mappings {
            variables: once(0x20_0000..0x20_1000).collect(),
            anonymous: once(0x4000_0000..u64::MAX - 4095).collect(),
            program_break: 0x100_0000..0x200_0000,
        };
        let heap = read(&Computed(hostile), &mappings).expect("an arena");
        assert_eq!((heap.arenas, heap.is_complete), (1, false));
        assert_eq!(heap.free.len(), 1);
        assert_eq!(heap.free[0], 0x100_0030..0x100_1000);
        let words: [fn(u64) -> u64; 4] = [|at| at, |at| at.wrapping_sub(16), |_| u64::MAX, |_| 0];
        for word in words {
            assert_eq!(read(&Computed(word), &mappings), None);
        }
    }
}
