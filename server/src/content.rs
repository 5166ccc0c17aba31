//! Content of a response as the connection sends it: in parts, so that a large file is never in
//! memory as a whole.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use flate2::read::GzDecoder;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use crate::reply::Body;

/// Size of a part, in bytes.
const PART_BYTES: usize = 64 << 10;

/// Content of a response, with the permit for its memory.
pub struct Content {
    source: Source,
    _memory_permit: Option<OwnedSemaphorePermit>,
}

/// Part of the content that was not sent yet.
enum Source {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A file, of which `bytes_left` are still to be sent.
    File { file: SharedFile, bytes_left: u64 },
    /// A compressed file that is decompressed while it is sent.
    Unpacked(Box<GzDecoder<BufReader<SharedFile>>>),
}

/// File that several responses read at the same time, with the position of one of them.
struct SharedFile {
    file: Arc<File>,
    position: u64,
}

impl SharedFile {
    fn new(file: Arc<File>) -> Self {
        Self { file, position: 0 }
    }
}

impl Read for SharedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Content {
    /// Returns the whole content. `memory_permit` is held until it is sent.
    pub fn new(body: Body, memory_permit: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            source: Source::new(body),
            _memory_permit: memory_permit,
        }
    }
}

impl Source {
    fn new(body: Body) -> Self {
        match body {
            Body::Bytes(bytes) => Self::Bytes(bytes),
            // `Reply::encoded` has replaced such bodies before.
            Body::Shared(_) => Self::Bytes(Bytes::new()),
            Body::File(file) => Self::File {
                bytes_left: file.metadata().map_or(0, |metadata| metadata.len()),
                file: SharedFile::new(file),
            },
            Body::Unpacked(file) => {
                let packed = BufReader::new(SharedFile::new(file));
                Self::Unpacked(Box::new(GzDecoder::new(packed)))
            }
        }
    }

    /// Returns the next part; an empty one at the end.
    fn next_part(&mut self) -> io::Result<Bytes> {
        let mut part = Vec::new();
        match self {
            // In parts, since the connection copies what it gets.
            Self::Bytes(bytes) => return Ok(bytes.split_to(bytes.len().min(PART_BYTES))),
            Self::File { file, bytes_left } => {
                file.take((*bytes_left).min(PART_BYTES as u64))
                    .read_to_end(&mut part)?;
                *bytes_left -= part.len() as u64;
                if part.is_empty() && *bytes_left > 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Self::Unpacked(unpacked) => {
                unpacked.take(PART_BYTES as u64).read_to_end(&mut part)?;
            }
        }
        Ok(part.into())
    }
}

impl HttpBody for Content {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(match self.source.next_part() {
            Ok(part) if part.is_empty() => None,
            part => Some(part.map(Frame::data)),
        })
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            Source::Bytes(bytes) => bytes.is_empty(),
            Source::File { bytes_left, .. } => *bytes_left == 0,
            Source::Unpacked(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::File { bytes_left, .. } => SizeHint::with_exact(*bytes_left),
            Source::Unpacked(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn all(mut content: Content) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let part = content.source.next_part().unwrap();
            assert!(part.len() <= PART_BYTES);
            if part.is_empty() {
                return all;
            }
            all.extend_from_slice(&part);
        }
    }

    #[test]
    fn files_are_sent_in_parts() {
        let text: Vec<u8> = (0..300_000u32).map(|i| (i / 7) as u8).collect();
        let mut plain = tempfile::tempfile().unwrap();
        plain.write_all(&text).unwrap();
        let mut packed = GzEncoder::new(tempfile::tempfile().unwrap(), Compression::fast());
        packed.write_all(&text).unwrap();
        let packed = Arc::new(packed.finish().unwrap());
        let plain = Content::new(Body::File(Arc::new(plain)), None);
        assert_eq!(plain.size_hint().exact(), Some(text.len() as u64));
        assert_eq!(all(plain), text);
        let whole = Content::new(Body::Bytes(text.clone().into()), None);
        assert_eq!(all(whole), text);
        // Several clients read one file.
        let mut first = Content::new(Body::Unpacked(Arc::clone(&packed)), None);
        first.source.next_part().unwrap();
        assert_eq!(all(Content::new(Body::Unpacked(packed), None)), text);
    }
}
