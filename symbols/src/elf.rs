//! Reads the headers of an ELF file: build id, loaded segments, and the dynamic loader it needs.
//!
//! Reads only headers and notes, each with a size limit. Offsets and sizes in the file are not
//! trusted.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use profile::{BuildId, Mapping, opening, printable};

const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PF_X: u64 = 1;
const NT_GNU_BUILD_ID: u32 = 3;
const MAX_NOTES: u64 = 1 << 20;
const MAX_INTERPRETER: usize = 4096;

/// A `PT_LOAD` segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: u64,
    address: u64,
    size: u64,
    /// Size in memory, in bytes. The only size that a separate debug file keeps.
    memory_size: u64,
    executable: bool,
}

impl Segment {
    /// Returns start address and size of the segment's mapping, for this page size.
    fn mapping_range(&self, page: u64) -> Option<(u64, u64)> {
        let start = self.address & !(page - 1);
        let end = self.address.checked_add(self.memory_size)?;
        Some((start, end.checked_next_multiple_of(page)? - start))
    }
}

/// Properties read from the headers of an ELF file.
#[derive(Clone, Debug, Default)]
pub struct Elf {
    /// Set for a 64-bit file.
    pub is_wide: bool,
    /// The architecture: `e_machine`.
    pub machine: u16,
    /// Set if the program needs a dynamic loader, so it is not linked statically.
    pub has_interpreter: bool,
    /// Set if that loader is musl's.
    pub uses_musl: bool,
    /// Build id; empty if there is none.
    pub build_id: BuildId,
    segments: Vec<Segment>,
}

impl Elf {
    /// Reads the headers of the file at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let file = opening::regular(path)
            .with_context(|| format!("{} cannot be opened", printable::path(path)))?;
        read(&file).with_context(|| format!("{} is not a usable ELF file", printable::path(path)))
    }

    /// Returns mappings of the file's code at the addresses that it was linked for.
    pub fn code(&self, path: &Path) -> Vec<Mapping> {
        let code = self.segments.iter().filter(|s| s.executable);
        let mappings = code.filter_map(|segment| {
            let (start, size) = segment.mapping_range(PAGES[0])?;
            Some(Mapping {
                start,
                end: start.checked_add(size)?,
                file_offset: segment.offset & !(PAGES[0] - 1),
                path: path.to_path_buf(),
                build_id: self.build_id.clone(),
                past: false,
            })
        });
        mappings.collect()
    }

    /// Returns the minimum size of the file, in bytes: the end of its last segment. A process that
    /// touches missing bytes dies of SIGBUS.
    pub fn min_file_bytes(&self) -> u64 {
        let ends = self
            .segments
            .iter()
            .map(|s| s.offset.saturating_add(s.size));
        ends.max().unwrap_or(0)
    }

    /// Returns the part of the file that the last segment maps: the variables of a library.
    pub fn last_file_range(&self) -> Option<Range<u64>> {
        let range = |s: &Segment| s.offset..s.offset.saturating_add(s.size);
        let ranges = self.segments.iter().map(range);
        ranges.max_by_key(|range| range.end)
    }

    /// Returns the distance from the address at which the start of the file is mapped to the end of
    /// its last segment, in bytes.
    pub fn memory_bytes(&self) -> Option<u64> {
        let base = |s: &Segment| s.address.checked_sub(s.offset);
        let start = self.segments.iter().find_map(base)?;
        let ends = self.segments.iter().map(|s| {
            let end = s.address.saturating_add(s.memory_size);
            end.saturating_sub(start)
        });
        ends.max()
    }

    /// Returns the virtual address of the byte at file offset `offset`.
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let holds = |s: &&Segment| offset.checked_sub(s.offset).is_some_and(|at| at < s.size);
        let segment = self.segments.iter().find(holds)?;
        segment.address.checked_add(offset - segment.offset)
    }

    /// Returns the virtual address of a byte of the profiled file, which was at file offset
    /// `offset`, `distance` bytes from the start of a mapping of code of `size` bytes.
    ///
    /// The file at hand and the profiled one may differ in being stripped, with the same build
    /// id. `strip` closes gaps between segments, so their file offsets differ. If no segment
    /// begins at the file offset of the mapping, the segment is found by the mapping's length.
    pub fn address_in_mapping(&self, offset: u64, distance: u64, size: u64) -> Option<u64> {
        let start = offset.wrapping_sub(distance);
        let begins = |s: &Segment| PAGES.iter().any(|page| s.offset & !(page - 1) == start);
        let has_start = self.segments.iter().any(begins);
        let by_length = if has_start {
            None
        } else {
            self.address_in_code(distance, size)
        };
        by_length.or_else(|| self.address_of(offset))
    }

    /// Returns the virtual address of the byte `distance` bytes from the start of a mapping of
    /// code of `size` bytes. Used for separate debug files, whose segments are empty and whose
    /// file offsets are meaningless.
    ///
    /// Finds the segment by its length in whole pages. This also yields the page size, and with
    /// it the address at which the mapping begins. Returns `None` if no segment has that
    /// length, or if several with different addresses have it.
    pub fn address_in_code(&self, distance: u64, size: u64) -> Option<u64> {
        let code = self.segments.iter().filter(|s| s.executable);
        let mapped = code.flat_map(|s| PAGES.iter().filter_map(|page| s.mapping_range(*page)));
        let mut starts = mapped
            .filter(|(_, mapped_size)| *mapped_size == size)
            .map(|(start, _)| start);
        let start = starts.next()?;
        let is_unique = starts.all(|other| other == start);
        start.checked_add(distance).filter(|_| is_unique)
    }
}

/// Formats a build id for messages.
pub fn format_id(id: &BuildId) -> String {
    if id.is_empty() {
        "none".into()
    } else {
        id.to_string()
    }
}

/// Page sizes to try: a mapping begins at the page of the segment's address.
const PAGES: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];

/// Byte order and word size of a file.
#[derive(Clone, Copy)]
struct Layout {
    wide: bool,
    big: bool,
}

impl Layout {
    /// Decodes the unsigned number in `bytes`, at most 8 bytes long.
    fn number(self, bytes: &[u8]) -> u64 {
        let add = |sum: u64, byte: &u8| (sum << 8) | u64::from(*byte);
        if self.big {
            bytes.iter().fold(0, add)
        } else {
            bytes.iter().rev().fold(0, add)
        }
    }
}

/// Reads the headers of a file.
fn read(file: &File) -> Result<Elf> {
    let mut header = [0u8; 64];
    let bytes_read = read_up_to(file, &mut header, 0)?;
    if bytes_read < 52 || !header.starts_with(b"\x7fELF") {
        bail!("it has no ELF header");
    }
    let layout = Layout {
        wide: header[4] == 2,
        big: header[5] == 2,
    };
    let field = |at: usize, size: usize| layout.number(&header[at..at + size]);
    let (table, entry_size, count) = if layout.wide {
        (field(32, 8), field(54, 2), field(56, 2))
    } else {
        (field(28, 4), field(42, 2), field(44, 2))
    };
    let min_size = if layout.wide { 56 } else { 32 };
    if entry_size < min_size || entry_size > 4096 {
        bail!("its program headers have the size {entry_size}");
    }
    let headers = read_existing(file, table, entry_size * count)?;
    let mut elf = Elf {
        is_wide: layout.wide,
        machine: field(18, 2) as u16,
        ..Elf::default()
    };
    for header in headers.chunks_exact(entry_size as usize) {
        add_program_header(file, layout, header, &mut elf)?;
    }
    Ok(elf)
}

/// Adds the facts of one program header to `elf`.
fn add_program_header(file: &File, layout: Layout, header: &[u8], elf: &mut Elf) -> Result<()> {
    let field = |at: usize, size: usize| layout.number(&header[at..at + size]);
    let kind = field(0, 4) as u32;
    let (offset, address, size, flags) = if layout.wide {
        (field(8, 8), field(16, 8), field(32, 8), field(4, 4))
    } else {
        (field(4, 4), field(8, 4), field(16, 4), field(24, 4))
    };
    let memory_size = if layout.wide {
        field(40, 8)
    } else {
        field(20, 4)
    };
    match kind {
        PT_LOAD => elf.segments.push(Segment {
            offset,
            address,
            size,
            memory_size,
            executable: flags & PF_X != 0,
        }),
        PT_INTERP => {
            let mut path = [0; MAX_INTERPRETER];
            let len = size.min(MAX_INTERPRETER as u64) as usize;
            let bytes_read = read_up_to(file, &mut path[..len], offset)?;
            let name = path[..bytes_read].rsplit(|byte| *byte == b'/').next();
            elf.has_interpreter = true;
            elf.uses_musl = name.is_some_and(|name| name.starts_with(b"ld-musl-"));
        }
        PT_NOTE if elf.build_id.is_empty() => {
            let mut notes = vec![0u8; size.min(MAX_NOTES) as usize];
            let bytes_read = read_up_to(file, &mut notes, offset)?;
            elf.build_id = build_id(layout, &notes[..bytes_read]).unwrap_or_default();
        }
        _ => {}
    }
    Ok(())
}

/// Finds the GNU build id among notes.
fn build_id(layout: Layout, mut notes: &[u8]) -> Option<BuildId> {
    while notes.len() >= 12 {
        let field = |at: usize| layout.number(&notes[at..at + 4]) as usize;
        let name_size = field(0);
        let size = field(4);
        let kind = field(8) as u32;
        let name_end = 12usize.checked_add(name_size)?;
        let start = 12usize.checked_add(name_size.checked_next_multiple_of(4)?)?;
        let end = start.checked_add(size)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..name_end) == Some(b"GNU\0") {
            return notes
                .get(start..end)
                .filter(|id| id.len() <= 64)
                .map(|id| BuildId(id.to_vec()));
        }
        notes = notes.get(start.checked_add(size.checked_next_multiple_of(4)?)?..)?;
    }
    None
}

/// Reads the bytes at `offset`, up to `size` or the end of the file. Allocates only for bytes that
/// exist, whatever `size` a header claims.
pub(super) fn read_existing(file: &File, offset: u64, size: u64) -> io::Result<Vec<u8>> {
    const STEP: u64 = 64 << 10;
    let mut bytes = Vec::new();
    loop {
        let had = bytes.len();
        let step = STEP.min(size - had as u64) as usize;
        bytes.resize(had + step, 0);
        let bytes_read = read_up_to(file, &mut bytes[had..], offset.saturating_add(had as u64))?;
        bytes.truncate(had + bytes_read);
        if bytes_read < step || step == 0 {
            return Ok(bytes);
        }
    }
}

/// Fills `buffer` with the bytes at `offset`. Returns their number, which is less at the end of the
/// file.
pub(super) fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    // No file is that long, and the read would fail.
    if offset > i64::MAX as u64 - buffer.len() as u64 {
        return Ok(0);
    }
    let mut bytes_read = 0;
    while bytes_read < buffer.len() {
        let Some(at) = offset.checked_add(bytes_read as u64) else {
            break;
        };
        match file.read_at(&mut buffer[bytes_read..], at) {
            Ok(0) => break,
            Ok(n) => bytes_read += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Beyond the greatest possible offset.
            Err(_) if i64::try_from(at).is_err() => break,
            Err(e) => return Err(e),
        }
    }
    Ok(bytes_read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_has_segments() {
        let elf = Elf::open(&std::env::current_exe().unwrap()).unwrap();
        let first = elf.segments[0];
        assert!(elf.is_wide && elf.has_interpreter && !elf.uses_musl);
        assert_eq!(elf.address_of(first.offset), Some(first.address));
        assert_eq!(elf.address_of(u64::MAX), None);
        let code = elf.segments.iter().find(|s| s.executable).unwrap();
        let (page, size) = code.mapping_range(4096).unwrap();
        assert_eq!(elf.address_in_code(5, size), Some(page + 5));
        assert_eq!(elf.address_in_code(5, size + 1), None);
    }

    #[test]
    fn memory_is_bounded_by_the_files_size() {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        let content: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
        file.write_all(&content).unwrap();
        let read = |offset, size| read_existing(&file, offset, size).unwrap();
        for size in [0, 1, 65_535, 65_536, 65_537, 99_999, 100_000] {
            assert_eq!(read(0, size), content[..size as usize]);
        }
        let all = read(0, u64::MAX);
        assert_eq!(all, content);
        assert!(all.capacity() < 300_000, "{}", all.capacity());
        assert_eq!(read(99_990, 1 << 40), content[99_990..]);
        assert_eq!(read(100_000, 1 << 40), []);
        assert_eq!(read(u64::MAX, u64::MAX), []);
    }

    /// Returns a file with code segments at these addresses and of these sizes.
    fn debug_file(code: &[(u64, u64)]) -> Elf {
        let segment = |&(address, memory_size): &(u64, u64)| Segment {
            offset: 0,
            address,
            size: 0,
            memory_size,
            executable: true,
        };
        Elf {
            segments: code.iter().map(segment).collect(),
            ..Elf::default()
        }
    }

    #[test]
    fn a_mappings_length_identifies_its_pages_and_segment() {
        // Code that begins within a page, as with lld.
        let one = debug_file(&[(0x21_56c0, 0x3_0000)]);
        for (page, size) in [
            (0x21_5000, 0x3_1000),
            (0x21_4000, 0x3_4000),
            (0x21_0000, 0x4_0000),
        ] {
            assert_eq!(
                one.address_in_code(0x700, size),
                Some(page + 0x700),
                "{size:x}"
            );
        }
        for size in [0, 0x3_0000, 0x3_2000, u64::MAX] {
            assert_eq!(one.address_in_code(0x700, size), None, "{size:x}");
        }
        let two = debug_file(&[(0x1000, 0x400), (0x20_0000, 0x9_0000)]);
        assert_eq!(two.address_in_code(0x10, 0x1000), Some(0x1010));
        assert_eq!(two.address_in_code(0x10, 0x9_0000), Some(0x20_0010));
        let alike = debug_file(&[(0x1000, 0x400), (0x20_0000, 0x400)]);
        assert_eq!(alike.address_in_code(0x10, 0x1000), None);
        let lies = debug_file(&[(u64::MAX - 8, u64::MAX), (u64::MAX - 8, 4)]);
        assert_eq!(lies.address_in_code(0x10, 0x1000), None);
    }

    #[test]
    fn a_gap_closed_by_strip_changes_no_address() {
        let segment = |offset, address, memory_size| Segment {
            offset,
            address,
            size: memory_size,
            memory_size,
            executable: true,
        };
        let whole = Elf {
            segments: vec![
                segment(0x76_f000, 0xb6_f000, 0x1e90),
                segment(0x77_2000, 0xb7_2000, 0x1a8_bca0),
            ],
            ..Elf::default()
        };
        let mut stripped = whole.clone();
        stripped.segments[1].offset = 0x77_1000;
        let address = |elf: &Elf| elf.address_in_mapping(0x77_3123, 0x1123, 0x1a8_c000);
        assert_eq!(address(&whole), Some(0xb7_3123));
        assert_eq!(address(&stripped), Some(0xb7_3123));
        // The reverse case, and a mapping of a part of a segment, found by its offset.
        let address = whole.address_in_mapping(0x77_2123, 0x1123, 0x1a8_c000);
        assert_eq!(address, Some(0xb7_3123));
        let part = whole.address_in_mapping(0x78_0123, 0x123, 0x5000);
        assert_eq!(part, Some(0xb8_0123));
    }

    #[test]
    fn files_that_are_not_programs_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("text");
        std::fs::write(&text, "#!/bin/sh\n").unwrap();
        for path in [text.as_path(), directory.path(), Path::new("/nonexistent")] {
            let error = format!("{:#}", Elf::open(path).unwrap_err());
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn notes_with_a_wrong_size_give_no_build_id() {
        let layout = Layout {
            wide: true,
            big: false,
        };
        let note = |name: u32, size: u32| {
            let mut bytes = [name, size, NT_GNU_BUILD_ID].map(u32::to_le_bytes).concat();
            bytes.extend(b"GNU\0\x01\x02\x03\x04");
            bytes
        };
        assert_eq!(
            build_id(layout, &note(4, 4)),
            Some(BuildId(vec![1, 2, 3, 4]))
        );
        assert_eq!(build_id(layout, &note(4, 5)), None);
        assert_eq!(build_id(layout, &note(u32::MAX, u32::MAX)), None);
    }
}
