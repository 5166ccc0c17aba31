//! Access to untrusted files.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Contents of a file.
pub trait Source {
    /// Reads as much of the buffer as possible from an offset on. Returns the number of bytes.
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

/// Reads `len` bytes from an offset on, fewer if the file ends before. Returns `None` if `len`
/// exceeds `most`.
pub fn bytes(source: &(impl Source + ?Sized), offset: u64, len: u64, most: u64) -> Option<Vec<u8>> {
    if len > most {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    let read = source.read_at(offset, &mut bytes);
    bytes.truncate(read);
    Some(bytes)
}
