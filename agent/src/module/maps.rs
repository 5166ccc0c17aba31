//! Parses `/proc/self/maps` and finds modules in it.

// Decision 32: the maps are read within a budget.
use super::found::Found;
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
) -> Option<(Found, &[u8])> {
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
    let found = Found {
        start,
        end,
        identity: inode(run.file),
        ..Found::default()
    };
    (start <= pc && pc < end).then_some((found, run.file))
}

/// Returns the start and end of the module that has the byte at `offset` of its file at
/// address `pc`, according to the header in a mapping of the file's start. The module need not
/// begin at that mapping: linkers that leave no gaps in files (lld, zig) put the first code into
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
mod tests {
    use super::*;

    #[test]
    fn addresses_outside_every_file_are_not_found() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        assert!(search_text(&text, 0x10, by_header).is_none());
        let local = 1u8;
        assert!(search_text(&text, &raw const local as u64, by_header).is_none());
    }

    const MAPS: &[u8] = b"\
1000-2000 r--p 00000000 fd:01 7    /opt/with space/a.so (deleted)
2000-3000 r-xp 00001000 fd:01 7    /opt/with space/a.so (deleted)
3000-4000 ---p 00002000 fd:01 7    /opt/with space/a.so (deleted)
4000-5000 rw-p 00002000 fd:01 7    /opt/with space/a.so (deleted)
5000-6000 rw-p 00000000 00:00 0 \n\
6000-7000 ---p 00000000 fd:01 8    /data
7000-8000 r-xp 00001000 fd:01 8    /data
8000-9000 r-xp 00000000 00:00 0    [vdso]
";

    #[test]
    fn a_module_is_all_mappings_of_its_file() {
        let (found, file) = search_text(MAPS, 0x2abc, without_header).unwrap();
        assert_eq!((found.start, found.end), (0x1000, 0x5000));
        assert_eq!(path_of(file), b"/opt/with space/a.so");
        let (found, file) = search_text(MAPS, 0x8010, without_header).unwrap();
        assert_eq!((found.start, found.end), (0x8000, 0x9000));
        assert_eq!(path_of(file), b"[vdso]");
    }

    /// Stands for a header that cannot be read.
    fn without_header(_: &Line<'_>, _: u64, _: u64) -> Option<(u64, u64)> {
        None
    }

    /// Mappings of a small program linked by lld or zig, after another mapping of its file.
    const SHARED_PAGE: &[u8] = b"\
10000-30000 r--p 00000000 fd:01 7    /opt/a
30000-31000 r--p 00000000 fd:01 7    /opt/a
31000-38000 ---p 00001000 fd:01 7    /opt/a
38000-40000 ---p 00000000 00:00 0 \n\
40000-42000 r-xp 00000000 fd:01 7    /opt/a
50000-51000 rw-p 00001000 fd:01 7    /opt/a
51000-53000 r--p 00000000 fd:01 7    /opt/a
";

    #[test]
    fn code_in_the_headers_page_belongs_to_the_headers_module() {
        let extent_of = |header: &Line<'_>, pc: u64, offset: u64| {
            assert_eq!((header.start, pc, offset), (0x40000, 0x40980, 0x980));
            Some((0x30000, 0x50800))
        };
        let (found, _) = search_text(SHARED_PAGE, 0x40980, extent_of).unwrap();
        assert_eq!((found.start, found.end), (0x30000, 0x51000));
        // A wrong header is treated like none.
        for wrong in [(0x20000, 0x50800), (0x31000, 0x50800)] {
            let extent_of = |_: &Line<'_>, _, _| Some(wrong);
            let (found, _) = search_text(SHARED_PAGE, 0x40980, extent_of).unwrap();
            assert_eq!((found.start, found.end), (0x40000, 0x51000));
        }
        let extent_of = |_: &Line<'_>, _, _| Some((0x30000, 0x31000));
        assert!(search_text(SHARED_PAGE, 0x40980, extent_of).is_none());
    }

    #[test]
    fn a_file_keeps_its_identity_when_it_is_renamed_or_deleted() {
        let ranges: std::vec::Vec<_> = runs(MAPS).map(|run| (run.start, run.end)).collect();
        assert_eq!(
            ranges,
            [(0x1000, 0x5000), (0x6000, 0x8000), (0x8000, 0x9000)]
        );
        assert_eq!(
            inode(b"fd:01 7    /a.so"),
            inode(b"fd:01 7    /b.so (deleted)")
        );
        assert_ne!(inode(b"fd:01 7    /a.so"), inode(b"fd:01 77    /a.so"));
    }

    fn filtered(text: &[u8], room: usize) -> std::vec::Vec<u8> {
        let mut kept = std::vec![0; room];
        let mut filter = Filter::new(&mut kept);
        text.split(|byte| *byte == b'\n')
            .for_each(|line| filter.add(line));
        let used = filter.end();
        kept.truncate(used);
        kept
    }

    #[test]
    fn only_lines_of_files_with_code_are_kept() {
        let mut long = std::vec::Vec::new();
        for page in 0..60_000u64 {
            let at = 0x10_0000 + page * 0x1000;
            let line = std::format!("{at:x}-{:x} rw-p 00000000 fd:01 9 /data\n", at + 4096);
            long.extend_from_slice(line.as_bytes());
            long.extend_from_slice(b"4000-5000 rw-p 00000000 00:00 0 \n");
        }
        long.extend_from_slice(MAPS);
        let kept = filtered(&long, 4096);
        let text = |bytes| std::string::String::from_utf8(bytes).unwrap();
        let expected: std::vec::Vec<&[u8]> = MAPS.split(|byte| *byte == b'\n').collect();
        let expected = [
            &expected[..4],
            &[b""],
            &expected[5..7],
            &[b""],
            &expected[7..8],
        ]
        .concat();
        let expected = text(expected.join(&b'\n'));
        assert_eq!(text(kept), std::format!("{expected}\n\n"));
        let ranges_of = |bytes: &[u8]| runs(bytes).map(|run| (run.start, run.end)).collect();
        let ranges: std::vec::Vec<_> = ranges_of(&filtered(&long, 4096));
        assert_eq!(ranges, ranges_of(MAPS));
        let ranges: std::vec::Vec<_> = ranges_of(&filtered(SHARED_PAGE, 4096));
        assert_eq!(ranges, ranges_of(SHARED_PAGE));
    }

    #[test]
    fn lines_that_do_not_fit_are_left_out_entirely() {
        for room in 0..MAPS.len() + 8 {
            let kept = filtered(MAPS, room);
            assert!(kept.len() <= room);
            let mut kept = kept.split(|byte| *byte == b'\n');
            let mut all = MAPS.split(|byte| *byte == b'\n');
            assert!(kept.all(|line| line.is_empty() || all.any(|other| other == line)));
        }
    }

    #[test]
    fn data_and_files_without_a_readable_header_hold_no_code() {
        for pc in [0x1500, 0x3500, 0x4500, 0x5500, 0x6500, 0x7500] {
            assert!(search_text(MAPS, pc, without_header).is_none(), "{pc:x}");
        }
    }
}
