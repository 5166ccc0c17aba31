//! Keeps what is mapped of a file from filling the memory of a small machine.
//!
//! Debug information is passed through once, piece by piece, and the pages of a mapped file that
//! were read stay in the process's memory as long as it is not needed elsewhere. So it is checked
//! from time to time how many there are, and beyond a limit they are given back: what is needed
//! once more is read again, as a rule from the kernel's cache.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use memmap2::{Mmap, UncheckedAdvice};

/// Maximum number of bytes of mapped files in memory, our own program among them.
const MOST: u64 = 24 << 20;
/// How many entries, rows or symbols are passed, at least, between two looks: they take less than
/// 1 MiB.
const BETWEEN: u32 = 8192;
/// How many of them count for one that may be anywhere, as may the text of its name: around each
/// the kernel maps up to 64 KiB.
const JUMP: u32 = BETWEEN / 16;

/// What is in memory of a mapped file.
pub struct Residency<'a> {
    /// `None`: there is nothing to give back.
    map: Option<&'a Mmap>,
    /// `/proc/self/statm`; `None`: nothing is known, and nothing given back.
    source: Option<File>,
    passed: Cell<u32>,
    /// As many are passed before the next look.
    until: Cell<u32>,
}

impl<'a> Residency<'a> {
    /// For this mapping, if it is one.
    pub fn of(map: Option<&'a Mmap>) -> Self {
        Self {
            map,
            source: File::open("/proc/self/statm").ok(),
            passed: Cell::new(0),
            until: Cell::new(BETWEEN),
        }
    }

    /// Called for each entry, row or symbol that is passed.
    #[inline]
    pub fn pass(&self) {
        self.count(1);
    }

    /// Called for each entry that is far from the one before.
    pub fn jump(&self) {
        self.count(JUMP);
    }

    /// Called for each MiB of entries that is passed.
    pub fn piece(&self) {
        self.count(BETWEEN);
    }

    #[inline]
    fn count(&self, passed: u32) {
        self.passed.set(self.passed.get() + passed);
        if self.passed.get() >= self.until.get() {
            self.look();
        }
    }

    /// Gives the mapping's pages back if there are too many.
    #[cold]
    fn look(&self) {
        self.passed.set(0);
        self.until.set(BETWEEN);
        let (Some(map), Some(resident)) = (self.map, self.resident()) else {
            return;
        };
        // To look takes time, too, and is of no use while there is room for what will be passed.
        if let Some(room) = MOST.checked_sub(resident) {
            let pieces = u32::try_from(room >> 20).unwrap_or(0);
            self.until.set(BETWEEN * pieces.max(1));
        } else {
            // SAFETY: a mapping of a file that is only read: what is given back is read from the
            // file again when it is touched. Whoever made the mapping accepts that the bytes
            // change with the file, which they do with or without this.
            let _ = unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) };
        }
    }

    /// Bytes of mapped files in memory.
    fn resident(&self) -> Option<u64> {
        let mut line = [0; 128];
        let got = self.source.as_ref()?.read_at(&mut line, 0).ok()?;
        let line = std::str::from_utf8(&line[..got]).ok()?;
        let pages: u64 = line.split(' ').nth(2)?.parse().ok()?;
        // SAFETY: queries a number.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        pages.checked_mul(u64::try_from(size).ok()?)
    }
}
