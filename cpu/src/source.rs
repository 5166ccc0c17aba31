//! Bytes of files that are not trusted.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes by their offset in a file.
pub trait Source {
    /// Fills the buffer from an offset on as far as possible; the number of bytes.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize;
}

impl Source for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while done < buffer.len() {
            match FileExt::read_at(self, &mut buffer[done..], offset + done as u64) {
                Ok(count) if count > 0 => done += count,
                _ => break,
            }
        }
        done
    }
}

impl Source for [u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.get(from..).unwrap_or_default();
        let count = bytes.len().min(buffer.len());
        buffer[..count].copy_from_slice(&bytes[..count]);
        count
    }
}

/// This many bytes from an offset on, fewer where the file ends; `None`: more than `most`.
pub fn bytes(source: &(impl Source + ?Sized), offset: u64, len: u64, most: u64) -> Option<Vec<u8>> {
    if len > most {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    let read = source.read_at(offset, &mut bytes);
    bytes.truncate(read);
    Some(bytes)
}
