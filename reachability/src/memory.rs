//! Reading another process's memory.

use std::ops::Range;
use std::sync::atomic::AtomicU64;

use libc::{c_ulong, iovec};

/// Memory that can be read from outside.
pub trait Memory {
    /// Reads what is at `at`; returns how many bytes of `buffer`, from its start, could be read.
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize;

    /// Reads pieces, given as address and length, one after the other. What cannot be read is zero.
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

    /// The first part of `range` that may hold anything but zeros; `None`: nothing more does.
    fn next(&self, range: Range<u64>) -> Option<Range<u64>> {
        (range.start < range.end).then_some(range)
    }

    /// What of it can be read where it is, if work can be done there.
    fn here(&self) -> Option<Here> {
        None
    }

    /// A place where `work` can be done on what is [`here`](Self::here), with this many shared
    /// words.
    fn place(&self, _work: Work, _words: usize) -> Option<Box<dyn Place + '_>> {
        None
    }

    /// The 8-byte word at `at`.
    fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(at, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }
}

/// Memory that can be read where it is, by address. Its bounds are multiples of 4 KiB.
#[derive(Clone, Debug, Default)]
pub struct Here {
    /// What can be read there.
    pub parts: Vec<Range<u64>>,
    /// What can be read from outside only. The rest is zeros.
    pub others: Vec<Range<u64>>,
    /// What is to be added to an address there, modulo 2^64.
    pub shift: u64,
}

/// A place where work is done on memory itself.
pub trait Place {
    /// Words that the work shares with us. Others may change them, too, at any time.
    fn words(&self) -> &[AtomicU64];

    /// Does the work, which reads this many bytes at most. If it fails, or takes too long for that,
    /// which false indicates, nothing is known about the words.
    fn run(&self, bytes: u64) -> bool;
}

/// Work for a [`Place`]: a function that gets the address of the shared words. It may run in
/// another process, where there is nothing but its code and the words.
pub type Work = unsafe extern "C" fn(words: *mut u64);

/// Reads `range` through `buffer`, which is of more than one word and of whole ones, and passes
/// each part to `each` with its address, which is a multiple of `alignment`. Each word at such a
/// multiple is whole in one part. Parts without anything but zeros are left out.
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

/// The same, until `each` returns false.
pub fn scan_while(
    memory: &dyn Memory,
    range: Range<u64>,
    alignment: usize,
    buffer: &mut [u8],
    mut each: impl FnMut(u64, &[u8]) -> bool,
) {
    // Words that begin in one part end in the next, if they need not be aligned.
    let overlap = 8 - alignment as u64;
    let mut at = range.start;
    while let Some(part) = memory.next(at..range.end) {
        // Nothing follows the last address.
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

/// Ranges, and what to note of each.
type Noted = Vec<(Range<u64>, u32)>;

/// Parts of ranges that can be read where they are, and long enough for that to be worth it, and
/// all others.
pub(crate) fn split(memory: &dyn Memory, ranges: &[(Range<u64>, u32)]) -> (Noted, Noted) {
    const LONG: u64 = 1 << 20;
    let here = memory.here().unwrap_or_default();
    let (mut long, mut rest) = (Vec::new(), Vec::new());
    for (range, note) in ranges {
        let first = here.parts.partition_point(|part| part.end <= range.start);
        let parts = here.parts[first..].iter();
        let mut at = range.start;
        for part in parts.take_while(|part| part.start < range.end) {
            // Whole words, as they are searched from outside.
            let start = part.start.max(at).next_multiple_of(8);
            let end = part.end.min(range.end) & !7;
            if end.saturating_sub(start) >= LONG {
                rest.push((at..start, *note));
                long.push((start..end, *note));
                at = end;
            }
        }
        rest.push((at..range.end, *note));
    }
    (long, rest)
}

/// The first 8 bytes of some, of which there are this many.
pub(crate) fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(word)
}

/// The memory of a process, by its pid.
#[derive(Clone, Copy, Debug)]
pub struct ProcessMemory {
    pid: i32,
}

/// Maximum number of pieces that the kernel takes in one call.
const PIECES: usize = 1024;

impl ProcessMemory {
    /// That of `pid`, which the caller must have the right to trace.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        Self { pid }
    }

    /// One call of the kernel; how many bytes it read, 0 on any error.
    fn call(&self, buffer: &mut [u8], pieces: &[iovec]) -> usize {
        let local = iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        let count = pieces.len() as c_ulong;
        // SAFETY: the kernel writes to `buffer` alone, up to its length; the addresses of the
        // pieces are another process's.
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
        for group in pieces.chunks(PIECES) {
            let len = group.iter().map(|(_, len)| len).sum::<usize>();
            let (bytes, others) = rest.split_at_mut(len.min(rest.len()));
            self.gather_group(group, bytes);
            rest = others;
        }
    }
}

impl ProcessMemory {
    /// The kernel stops at the first piece that it cannot read: what it has not read of that is
    /// zero, and the reading continues after it.
    fn gather_group(&self, group: &[(u64, usize)], bytes: &mut [u8]) {
        let pieces: Vec<iovec> = group.iter().map(|&(at, len)| piece(at, len)).collect();
        let (mut next, mut done) = (0, 0);
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
