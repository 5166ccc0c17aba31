//! Reads lines from a stream without keeping the stream in memory.

use std::io::{self, Read};

/// Number of bytes per read. Fits into the processor's L2 cache.
const CHUNK_SIZE: usize = 1 << 17;

/// Maximum length of a line, in bytes: a stack of millions of frames.
const MAX_LINE: usize = 64 << 20;

/// Maximum size of an input that is held in memory as a whole, because its format does not consist
/// of lines, in bytes.
const MAX_WHOLE: u64 = 4 << 30;

/// A line without its newline.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) text: &'a [u8],
    /// Set if a newline ended the line. The last line of a truncated file may have none.
    pub(crate) complete: bool,
}

/// Reader of the lines of a stream, which counts them.
pub(crate) struct Lines<R> {
    reader: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    eof: bool,
    number: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            start: 0,
            end: 0,
            eof: false,
            number: 0,
        }
    }

    /// Returns the number of the line read last, from 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns up to `length` bytes of what follows, without consuming them.
    pub(crate) fn peek(&mut self, length: usize) -> io::Result<&[u8]> {
        while self.end - self.start < length && !self.eof {
            self.fill()?;
        }
        Ok(&self.buffer[self.start..self.end.min(self.start + length)])
    }

    /// Skips these bytes, if they come next.
    pub(crate) fn skip(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.peek(bytes.len())? == bytes {
            self.start += bytes.len();
        }
        Ok(())
    }

    /// Returns the next line, without a carriage return at its end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        let mut scanned = 0;
        let length = loop {
            let pending = &self.buffer[self.start..self.end];
            if let Some(at) = memchr::memchr(b'\n', &pending[scanned..]) {
                break scanned + at;
            }
            scanned = pending.len();
            if self.eof {
                break scanned;
            }
            if scanned > MAX_LINE {
                self.number += 1;
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("line {} is longer than {} MiB", self.number, MAX_LINE >> 20),
                ));
            }
            self.fill()?;
        };
        let from = self.start;
        let complete = from + length < self.end;
        if length == 0 && !complete {
            return Ok(None);
        }
        self.number += 1;
        self.start = from + length + usize::from(complete);
        let text = &self.buffer[from..from + length];
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        Ok(Some(Line { text, complete }))
    }

    /// Returns everything that has not been read yet.
    pub(crate) fn rest(&mut self) -> io::Result<Vec<u8>> {
        let mut all = self.buffer[self.start..self.end].to_vec();
        self.start = self.end;
        let reader = self.reader.by_ref();
        if reader.take(MAX_WHOLE).read_to_end(&mut all)? as u64 == MAX_WHOLE {
            let what = format!("it is larger than {} GiB", MAX_WHOLE >> 30);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        Ok(all)
    }

    /// Reads more bytes into the buffer.
    fn fill(&mut self) -> io::Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.buffer.len() - self.end < CHUNK_SIZE {
            self.buffer.resize(self.end + CHUNK_SIZE.max(self.end), 0);
        }
        loop {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.eof = true,
                Ok(n) => self.end += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that hands out one byte at a time.
    struct Trickle<'a>(&'a [u8]);

    impl Read for Trickle<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let Some((&first, rest)) = self.0.split_first() else {
                return Ok(0);
            };
            out[0] = first;
            self.0 = rest;
            Ok(1)
        }
    }

    #[test]
    fn lines_survive_any_chunking() {
        let mut lines = Lines::new(Trickle(b"one\r\n\nthree"));
        let mut seen = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            seen.push((line.text.to_vec(), line.complete));
        }
        let expected: [(&[u8], bool); 3] = [(b"one", true), (b"", true), (b"three", false)];
        assert_eq!(seen, expected.map(|(t, c)| (t.to_vec(), c)));
        assert_eq!(lines.number(), 3);
    }
}
