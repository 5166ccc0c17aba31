//! Writes a dump's text while it is being formatted.
//!
//! The calling thread and a helper thread take turns. Each formats a piece in its own memory, gets
//! the piece's offset from the piece before it, and writes it while the other thread formats the
//! next one. More threads would not help, since the kernel lets only one at a time write to a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use profile::Profile;
use profile::dump::Text;

use crate::helper;
use crate::room;

/// Writes the text to the beginning of an empty file.
pub fn write(text: &Text<Profile>, file: &File) -> io::Result<()> {
    let writer = Writer {
        text,
        file,
        next: AtomicUsize::new(0),
        turn: AtomicUsize::new(0),
        offset: AtomicU64::new(0),
        failed: OnceLock::new(),
    };
    helper::run_with_helper(text.pieces() > 1, || writer.work(), || writer.work());
    match writer.failed.into_inner() {
        None => Ok(()),
        Some(error) if room::is_short(&error) => Err(room::short_of(bytes_of(text))),
        Some(error) => Err(error),
    }
}

/// Counts the bytes of the whole text by formatting it once more.
fn bytes_of(text: &Text<Profile>) -> u64 {
    let mut piece = Vec::new();
    let mut bytes = 0;
    for number in 0..text.pieces() {
        piece.clear();
        text.piece(number, &mut piece);
        bytes += piece.len() as u64;
    }
    bytes
}

/// State shared by the two threads.
struct Writer<'a> {
    text: &'a Text<Profile>,
    file: &'a File,
    /// Number of the next piece to format.
    next: AtomicUsize,
    /// Number of the piece that starts at `offset`.
    turn: AtomicUsize,
    /// End of the pieces that have an offset so far.
    offset: AtomicU64,
    /// First write error.
    failed: OnceLock<io::Error>,
}

impl Writer<'_> {
    /// Formats and writes pieces until none are left.
    fn work(&self) {
        let mut piece = Vec::new();
        while self.failed.get().is_none() {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.text.pieces() {
                return;
            }
            piece.clear();
            self.text.piece(number, &mut piece);
            let offset = self.offset_of(number, piece.len() as u64);
            if let Err(error) = self.file.write_all_at(&piece, offset) {
                // Only the first error is reported.
                let _ = self.failed.set(error);
            }
        }
    }

    /// Returns the offset of a piece of `bytes` bytes. Waits until the previous piece has its
    /// offset: less than a millisecond, since the other thread is formatting it.
    fn offset_of(&self, number: usize, bytes: u64) -> u64 {
        let mut spins_left = 1000;
        while self.turn.load(Ordering::Acquire) != number {
            if spins_left == 0 {
                std::thread::yield_now();
            } else {
                spins_left -= 1;
                std::hint::spin_loop();
            }
        }
        let offset = self.offset.fetch_add(bytes, Ordering::Relaxed);
        self.turn.store(number + 1, Ordering::Release);
        offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{Detail, ProfileBuilder, dump};

    fn profile(stacks: u64) -> Profile {
        let mut builder = ProfileBuilder::new(1);
        for stack in 0..stacks {
            let detail = Detail {
                alloc_samples: stack + 1,
                alloc_objects: (stack + 1) as f64,
                alloc_bytes: (8 * stack + 8) as f64,
                ..Detail::default()
            };
            builder.stack((0..20).map(|frame| 0x1000 + frame * stack), &detail);
        }
        builder.finish()
    }

    #[test]
    fn pieces_arrive_whole_and_in_order() {
        for stacks in [0, 1, dump::PART_STACKS as u64, 20_000] {
            let profile = profile(stacks);
            let mut expected = Vec::new();
            dump::write(&profile, &mut expected).unwrap();
            let file = tempfile::NamedTempFile::new().unwrap();
            write(&Text::new(profile).unwrap(), file.as_file()).unwrap();
            assert!(std::fs::read(file.path()).unwrap() == expected, "{stacks}");
        }
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let failed = write(&Text::new(profile(5000)).unwrap(), &full);
        let mut text = Vec::new();
        dump::write(&profile(5000), &mut text).unwrap();
        let needed = room::needed(&failed.unwrap_err());
        assert_eq!(needed, Some(text.len() as u64));
    }
}
