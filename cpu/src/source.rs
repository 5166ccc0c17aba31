//! Access to untrusted files.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Contents of a file.
pub trait Source {
    /// Reads bytes at an offset, as many as the buffer and the file have. Returns their number.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize;
}

impl Source for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < buffer.len() {
            match FileExt::read_at(self, &mut buffer[filled..], offset + filled as u64) {
                Ok(count) if count > 0 => filled += count,
                _ => break,
            }
        }
        filled
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

/// Reads `len` bytes at an offset, or fewer if the file ends before. Returns `None` if `len`
/// exceeds `max_bytes`.
pub fn bytes(
    source: &(impl Source + ?Sized),
    offset: u64,
    len: u64,
    max_bytes: u64,
) -> Option<Vec<u8>> {
    if len > max_bytes {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(len).ok()?];
    let read = source.read_at(offset, &mut bytes);
    bytes.truncate(read);
    Some(bytes)
}
