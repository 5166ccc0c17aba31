//! Writing a dump's text while it is made.
//!
//! This thread and a helper thread take turns: each makes a piece in memory of its own, learns its
//! offset from the piece before, and writes it while the other makes the next. The kernel lets one
//! thread at a time write to a file, so more would wait.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use heap_format::Profile;
use heap_format::dump::Text;

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
    helper::share(text.pieces() > 1, || writer.work(), || writer.work());
    match writer.failed.into_inner() {
        None => Ok(()),
        Some(error) if room::is_short(&error) => Err(room::short_of(bytes_of(text))),
        Some(error) => Err(error),
    }
}

/// Bytes of the whole text, which is made once more to count them.
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

struct Writer<'a> {
    text: &'a Text<Profile>,
    file: &'a File,
    /// The piece to make next.
    next: AtomicUsize,
    /// The piece that goes to `offset`.
    turn: AtomicUsize,
    offset: AtomicU64,
    /// The first error of the kernel.
    failed: OnceLock<io::Error>,
}

impl Writer<'_> {
    /// Makes and writes pieces until there are no more.
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

    /// Offset of a piece of this length: the end of the piece before, which is known as soon
    /// as that is made, which takes the other thread less than a millisecond.
    fn offset_of(&self, number: usize, bytes: u64) -> u64 {
        let mut patience = 1000;
        while self.turn.load(Ordering::Acquire) != number {
            match patience {
                0 => std::thread::yield_now(),
                _ => {
                    patience -= 1;
                    std::hint::spin_loop();
                }
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
    use heap_format::{Detail, ProfileBuilder, dump};

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
        let mut whole = Vec::new();
        dump::write(&profile(5000), &mut whole).unwrap();
        let needed = room::needed(&failed.unwrap_err());
        assert_eq!(needed, Some(whole.len() as u64));
    }
}
