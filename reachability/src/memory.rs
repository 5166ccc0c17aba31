//! Access to another process's memory.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use libc::{c_ulong, iovec};

/// Memory of another process.
pub trait Memory {
    /// Reads memory at `at`. Returns the number of bytes of `buffer`, from its start, that could be
    /// read.
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize;

    /// Reads pieces, given as address and length, one after another. Unreadable bytes are zero.
    /// `buffer` is as long as all pieces together.
    fn gather(&self, pieces: &[(u64, usize)], buffer: &mut [u8]) {
        let mut rest = buffer;
        for &(at, len) in pieces {
            let (piece, others) = rest.split_at_mut(len.min(rest.len()));
            let done = self.read(at, piece);
            piece[done..].fill(0);
            rest = others;
        }
    }

    /// Returns the first part of `range` that may contain anything but zeros, or `None` if there is
    /// none.
    fn next(&self, range: Range<u64>) -> Option<Range<u64>> {
        (range.start < range.end).then_some(range)
    }

    /// Returns the parts of the memory that a function run by a [`Runner`] can read by address,
    /// without copying; `None` if there is no runner.
    fn in_place(&self) -> Option<InPlace> {
        None
    }

    /// Returns a runner of `work` with this many shared words. The function can read the memory of
    /// [`in_place`](Self::in_place).
    fn runner(&self, _work: Work, _words: usize) -> Option<Box<dyn Runner + '_>> {
        None
    }

    /// Returns the 8-byte word at `at`.
    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(at, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }
}

/// Memory that can be read in place: by address, from a function that a [`Runner`] runs. Its bounds
/// are multiples of 4 KiB.
#[derive(Clone, Debug, Default)]
pub struct InPlace {
    /// Ranges that can be read in place.
    pub parts: Vec<Range<u64>>,
    /// Ranges that can be read from outside only. All other memory contains zeros.
    pub remote_only: Vec<Range<u64>>,
    /// Added to an address of the process to get the address of the same memory in place, modulo
    /// 2^64.
    pub shift: u64,
}

/// Runs a function where it can read the memory itself, rather than a copy of its contents.
pub trait Runner {
    /// Returns the words shared with the function. Other processes may change them at any time.
    fn words(&self) -> &[AtomicU64];

    /// Runs the function, which reads at most `bytes` bytes. Returns false if it fails or takes too
    /// long; the contents of the words are then undefined.
    fn run(&self, bytes: u64) -> bool;
}

/// Function for a [`Runner`]. Its argument is the address of the shared words. It may run in a
/// process that has nothing of this one but the code of this program's file, and the words.
pub type Work = unsafe extern "C" fn(words: *mut u64);

/// Reads `range` through `buffer`, whose length is a multiple of the word size. Passes each part to
/// `each` with its address, which is a multiple of `alignment`. No word at such an address is split
/// between two parts. Parts that contain only zeros are skipped.
pub fn scan(
    memory: &dyn Memory,
    range: Range<u64>,
    alignment: usize,
    buffer: &mut [u8],
    mut each: impl FnMut(u64, &[u8]),
) {
    scan_while(memory, range, alignment, buffer, |at, bytes| {
        each(at, bytes);
        true
    });
}

/// Like [`scan`], but stops when `each` returns false.
pub fn scan_while(
    memory: &dyn Memory,
    range: Range<u64>,
    alignment: usize,
    buffer: &mut [u8],
    mut each: impl FnMut(u64, &[u8]) -> bool,
) {
    // Unaligned words may cross the end of a part.
    let overlap = 8 - alignment as u64;
    let mut at = range.start;
    while let Some(part) = memory.next(at..range.end) {
        // Rounding up overflows only at the end of the address space.
        let start = part.start.max(at);
        let Some(start) = start.checked_next_multiple_of(alignment as u64) else {
            return;
        };
        at = start;
        while at < part.end {
            let len = buffer.len().min((part.end - at) as usize);
            if len == 0 {
                return;
            }
            memory.gather(&[(at, len)], &mut buffer[..len]);
            if !each(at, &buffer[..len]) {
                return;
            }
            at += len as u64;
            if at < part.end {
                at -= overlap;
            }
        }
    }
}

/// Ranges, each with the number of its root, which is recorded as the origin of what is found
/// there.
type Origins = Vec<(Range<u64>, u32)>;

/// Returns the parts of ranges that can be read in place and are large enough to be worth it, and
/// all other parts.
pub(crate) fn split_in_place(
    memory: &dyn Memory,
    ranges: &[(Range<u64>, u32)],
) -> (Origins, Origins) {
    const MIN_IN_PLACE_BYTES: u64 = 1 << 20;
    let readable = memory.in_place().unwrap_or_default();
    let mut in_place = Vec::new();
    let mut rest = Vec::new();
    for (range, root) in ranges {
        let first = readable
            .parts
            .partition_point(|part| part.end <= range.start);
        let parts = readable.parts[first..].iter();
        let mut at = range.start;
        for part in parts.take_while(|part| part.start < range.end) {
            // Rounded to whole words, as in a search from outside.
            let start = part.start.max(at).next_multiple_of(8);
            let end = part.end.min(range.end) & !7;
            if end.saturating_sub(start) >= MIN_IN_PLACE_BYTES {
                rest.push((at..start, *root));
                in_place.push((start..end, *root));
                at = end;
            }
        }
        rest.push((at..range.end, *root));
    }
    (in_place, rest)
}

/// Converts the first 8 bytes to a word.
pub(crate) fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// Memory of a process, accessed by pid.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMemory {
    pid: i32,
}

/// Maximum number of pieces in one system call.
const MAX_PIECES: usize = 1024;

impl ProcessMemory {
    /// Returns the memory of `pid`, which this process must be permitted to trace.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        Self { pid }
    }

    /// Makes one system call. Returns the number of bytes read; 0 on any error.
    fn call(&self, buffer: &mut [u8], pieces: &[iovec]) -> usize {
        let local = iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let count = pieces.len() as c_ulong;
        // SAFETY: the kernel writes only to `buffer`, up to its length. The addresses of the pieces
        // are another process's.
        let read =
            unsafe { libc::process_vm_readv(self.pid, &local, 1, pieces.as_ptr(), count, 0) };
        usize::try_from(read).unwrap_or(0)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            let piece = piece(at.wrapping_add(done as u64), buffer.len() - done);
            match self.call(&mut buffer[done..], &[piece]) {
                0 => break,
                read => done += read,
            }
        }
        done
    }

    fn gather(&self, pieces: &[(u64, usize)], buffer: &mut [u8]) {
        let mut rest = buffer;
        for group in pieces.chunks(MAX_PIECES) {
            let len = group.iter().map(|(_, len)| len).sum::<usize>();
            let (bytes, others) = rest.split_at_mut(len.min(rest.len()));
            self.gather_group(group, bytes);
            rest = others;
        }
    }
}

impl ProcessMemory {
    /// Reads a group of pieces. The kernel stops at the first piece that it cannot read. Its unread
    /// bytes are zero, and reading continues after it.
    fn gather_group(&self, group: &[(u64, usize)], bytes: &mut [u8]) {
        let pieces: Vec<iovec> = group.iter().map(|&(at, len)| piece(at, len)).collect();
        let mut next = 0;
        let mut done = 0;
        while next < pieces.len() {
            let mut read = self.call(&mut bytes[done..], &pieces[next..]);
            while next < pieces.len() && read >= pieces[next].iov_len {
                read -= pieces[next].iov_len;
                done += pieces[next].iov_len;
                next += 1;
            }
            if let Some(cut) = pieces.get(next) {
                bytes[done + read..done + cut.iov_len].fill(0);
                done += cut.iov_len;
                next += 1;
            }
        }
    }
}

fn piece(at: u64, len: usize) -> iovec {
    iovec {
        iov_base: std::ptr::without_provenance_mut(at as usize),
        iov_len: len,
    }
}
