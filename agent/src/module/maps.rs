//! Parses `/proc/self/maps` and finds modules in it.

// Decision 32: the maps are read within a budget.
use super::found::FoundModule;
use crate::sys;
use unwind::elf;

/// Calls `visit` with each line of the maps, which are read through `buffer` in pieces.
pub fn each_line(buffer: &mut [u8], mut visit: impl FnMut(&[u8])) {
    sys::read_through(c"/proc/self/maps", buffer, |piece| {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            visit(&rest[..end]);
            rest = &rest[end + 1..];
        }
        piece.len() - rest.len()
    });
}

/// Keeps the lines of files that have code, with an empty line after each file. Drops gaps within a
/// file.
pub struct Filter<'a> {
    text: &'a mut [u8],
    used: usize,
    /// Offset in the text of the current file's first line.
    start: usize,
    /// Range in the text that names the current file.
    file: (usize, usize),
    has_code: bool,
}

impl<'a> Filter<'a> {
    /// Creates a filter that writes to `text`.
    pub fn new(text: &'a mut [u8]) -> Self {
        Self {
            text,
            used: 0,
            start: 0,
            file: (0, 0),
            has_code: false,
        }
    }

    /// Adds a line. Drops it if it does not fit.
    pub fn add(&mut self, bytes: &[u8]) {
        let line = parse_line(bytes);
        if line.as_ref().is_some_and(Line::is_gap) {
            return;
        }
        let line = line.filter(|line| is_image(line.file));
        let is_same_file = |line: &Line<'_>| *line.file == self.text[self.file.0..self.file.1];
        if !line.as_ref().is_some_and(is_same_file) {
            self.end_file();
        }
        let Some(line) = line else {
            return;
        };
        let room = self.text.len() - self.used;
        // Leaves room for an empty line.
        if bytes.len() + 2 > room {
            return;
        }
        let end = self.used + bytes.len();
        self.text[self.used..end].copy_from_slice(bytes);
        self.text[end] = b'\n';
        self.file = (end - line.file.len(), end);
        self.used = end + 1;
        self.has_code |= line.executable;
    }

    fn end_file(&mut self) {
        if self.used > self.start && self.has_code {
            self.text[self.used] = b'\n';
            self.used += 1;
        } else {
            self.used = self.start;
        }
        self.start = self.used;
        self.file = (0, 0);
        self.has_code = false;
    }

    /// Returns how many bytes of the text are used.
    pub fn end(mut self) -> usize {
        self.end_file();
        self.used
    }
}

/// Finds the module that contains `pc`, and the text that names its file. `extent` returns its
/// start and end (see [`by_header`]).
pub fn search_text(
    text: &[u8],
    pc: u64,
    extent: impl Fn(&Line<'_>, u64, u64) -> Option<(u64, u64)>,
) -> Option<(FoundModule, &[u8])> {
    let run = runs(text).find(|run| (run.start..run.end).contains(&pc))?;
    let holds = |line: &Line<'_>| line.executable && (line.start..line.end).contains(&pc);
    let code = lines(run.text).find(holds)?;
    let header = run.headers().take_while(|line| line.start <= pc).last()?;
    let reported = extent(&header, pc, pc - code.start + code.offset);
    let reported = reported.filter(|(start, _)| run.headers().any(|line| line.start == *start));
    let (start, end) = reported.unwrap_or_else(|| {
        let next = run.headers().find(|line| line.start > pc);
        (header.start, next.map_or(u64::MAX, |next| next.start))
    });
    let is_inside = |line: &Line<'_>| (start..end).contains(&line.start);
    let end = lines(run.text).filter(is_inside).last()?.end;
    let found = FoundModule {
        start,
        end,
        identity: inode(run.file),
        ..FoundModule::default()
    };
    (start <= pc && pc < end).then_some((found, run.file))
}

/// Returns the start and end of the module that maps the byte at `offset` of its file to address
/// `pc`, according to the header in a mapping of the file's start. The module need not begin at
/// that mapping: linkers that leave no gaps in files (lld, zig) put the first code into
/// the header's page, which is mapped a second time for it. Nor is every mapping of a file's start
/// a module.
pub fn by_header(header: &Line<'_>, pc: u64, offset: u64) -> Option<(u64, u64)> {
    // SAFETY: according to the maps that were just read, the header is mapped, as a part of the
    // module that contains `pc` or before it. No `dlclose` can unmap it inside `reading`.
    let page = unsafe { elf::first_page(header.start, header.end) }?;
    elf::extent(page, pc, offset)
}

/// Adjacent mappings of one file: a module, or several if it was loaded more than once.
pub struct Run<'a> {
    /// First address.
    start: u64,
    /// One past the last.
    pub end: u64,
    /// Device, inode and path, as one string.
    file: &'a [u8],
    /// Lines of these mappings.
    pub text: &'a [u8],
}

impl<'a> Run<'a> {
    /// Returns the mappings of the file's start.
    pub fn headers(&self) -> impl Iterator<Item = Line<'a>> + use<'a> {
        lines(self.text).filter(|line| line.offset == 0 && line.readable)
    }
}

/// Returns the runs of mappings in a text of maps.
pub fn runs(text: &[u8]) -> impl Iterator<Item = Run<'_>> {
    let mut rest = text;
    core::iter::from_fn(move || {
        loop {
            let from = rest;
            let first = next_line(&mut rest)?;
            let Some(line) = parse_line(first).filter(|line| is_image(line.file)) else {
                continue;
            };
            let mut following = rest;
            let mut end = line.end;
            while let Some(next) = next_line(&mut following).and_then(parse_line) {
                if next.is_gap() {
                    continue;
                }
                if next.file != line.file {
                    break;
                }
                end = next.end;
                rest = following;
            }
            return Some(Run {
                start: line.start,
                end,
                file: line.file,
                text: &from[..from.len() - rest.len()],
            });
        }
    })
}

fn next_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    if rest.is_empty() {
        return None;
    }
    let end = rest.iter().position(|byte| *byte == b'\n');
    let line = &rest[..end.unwrap_or(rest.len())];
    *rest = end.map_or(&[], |end| &rest[end + 1..]);
    Some(line)
}

fn lines(text: &[u8]) -> impl Iterator<Item = Line<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line)
}

/// Returns true if a mapping is of a file or of the kernel's vDSO.
fn is_image(file: &[u8]) -> bool {
    let path = path_of(file);
    path.starts_with(b"/") || path == b"[vdso]"
}

/// One line of the maps.
pub struct Line<'a> {
    /// First address.
    pub start: u64,
    end: u64,
    readable: bool,
    executable: bool,
    offset: u64,
    /// Device, inode and path, as one string.
    file: &'a [u8],
}

impl Line<'_> {
    /// Returns true for reserved addresses between two parts of a module (qemu's loader leaves
    /// them).
    fn is_gap(&self) -> bool {
        !self.readable && !self.executable && path_of(self.file).is_empty()
    }
}

fn parse_line(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.splitn(4, |byte| *byte == b' ');
    let mut range = fields.next()?.splitn(2, |byte| *byte == b'-');
    let start = hex(range.next()?)?;
    let end = hex(range.next()?)?;
    let permissions = fields.next()?;
    Some(Line {
        start,
        end,
        readable: permissions.contains(&b'r'),
        executable: permissions.contains(&b'x'),
        offset: hex(fields.next()?)?,
        file: fields.next()?,
    })
}

/// Returns the path, as it was when the file was mapped.
pub fn path_of(file: &[u8]) -> &[u8] {
    let path = file.splitn(3, |byte| *byte == b' ').nth(2);
    let path = path.unwrap_or_default().trim_ascii_start();
    path.strip_suffix(b" (deleted)").unwrap_or(path)
}

fn hex(text: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| (*byte as char).to_digit(16).map(u64::from);
    text.iter()
        .try_fold(0u64, |n, byte| Some(n.checked_mul(16)? | digit(byte)?))
}

/// Returns a number that differs between files: a hash of device and inode, which stay the same
/// when the file is renamed or deleted.
fn inode(file: &[u8]) -> u64 {
    let mut spaces = (0..file.len()).filter(|at| file[*at] == b' ');
    let end = spaces.nth(1).unwrap_or(file.len());
    file[..end]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        })
}

#[cfg(test)]
mod tests;
