//! An ELF file in memory, and its sections.

use std::cell::Cell;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use gimli::{DwarfSections, SectionId};
use memmap2::Mmap;
use profile::opening;

use super::unpacking::{self, Content, Unpacked};

/// `ET_REL`.
const REL: u64 = 1;
/// `ET_EXEC`.
const EXEC: u64 = 2;
/// `ET_DYN`.
const DYN: u64 = 3;
/// `SHT_NOBITS`: a section without bytes in the file.
const NOBITS: u64 = 8;
/// `SHF_COMPRESSED`.
const COMPRESSED: u64 = 0x800;
/// `ELFCOMPRESS_ZLIB`.
const ZLIB: u64 = 1;
/// `ELFCOMPRESS_ZSTD`.
const ZSTD: u64 = 2;
/// Start of a section that was compressed before ELF had a flag for that, and whose name begins
/// with `.zdebug_`. The size follows, as a big-endian number of 8 bytes.
const OLD_MAGIC: &[u8] = b"ZLIB";
/// Size of the ELF header, in bytes.
const HEADER_SIZE: usize = 64;
/// Size of a section header, in bytes.
const SECTION_HEADER_SIZE: usize = 64;
/// Maximum ratio of a section's stated size to its compressed size. Debug information compresses to
/// a third, zeros to a thousandth.
const MAX_EXPANSION: u64 = 64;
/// Size of the header of a compressed section, in bytes.
const COMPRESSION_HEADER_SIZE: usize = 24;

/// Sections of debug information that are read. Locations of variables, macros and indexes are not
/// needed, though they are most of some files.
const NEEDED: [SectionId; 10] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// Fields of a section header.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    kind: u64,
    flags: u64,
    /// Offset in the file.
    pub offset: u64,
    size: u64,
    /// Virtual address of the section.
    pub address: u64,
    /// Size of one entry, in bytes; 0 if the section is not a table.
    pub entry: u64,
    /// Index of the linked section.
    pub link: usize,
    /// Set if the name begins with `.zdebug_`.
    has_old_compression: bool,
}

impl Section {
    /// Returns true if the section covers a virtual address.
    pub fn holds(&self, address: u64) -> bool {
        let distance = address.checked_sub(self.address);
        distance.is_some_and(|distance| distance < self.size)
    }
}

/// Contents of an ELF file.
enum Bytes {
    Mapped(Mmap),
    /// Decompressed from a section of another file.
    Unpacked(Vec<u8>),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(map) => map,
            Bytes::Unpacked(bytes) => bytes,
        }
    }
}

/// An ELF file's contents and its section table.
pub struct Image {
    path: PathBuf,
    bytes: Bytes,
    /// Name and header of each section.
    sections: Vec<(String, Section)>,
    /// Bytes that sections may still be decompressed to.
    decompression_budget: Cell<u64>,
}

/// Decodes the little-endian number of `size` bytes at `at`. Returns `None` beyond the end.
pub fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    let add = |sum: u64, byte: &u8| (sum << 8) | u64::from(*byte);
    Some(bytes.iter().rev().fold(0, add))
}

impl Image {
    /// Maps a 64-bit little-endian program or library.
    pub fn open(path: &Path) -> Option<Self> {
        let image = Self::open_part(path)?;
        let kind = number(&image.bytes, 16, 2)?;
        [EXEC, DYN].contains(&kind).then_some(image)
    }

    /// Maps a file that has a part of a program's debug information.
    pub fn open_part(path: &Path) -> Option<Self> {
        Self::of(path, Bytes::Mapped(Self::bytes_of(path)?))
    }

    /// Parses a program that was stored compressed in the file at `path`.
    pub fn from_unpacked(path: &Path, bytes: Vec<u8>) -> Option<Self> {
        Self::of(path, Bytes::Unpacked(bytes))
    }

    fn of(path: &Path, bytes: Bytes) -> Option<Self> {
        let decompression_budget = (bytes.len() as u64).saturating_mul(MAX_EXPANSION);
        let mut image = Self {
            path: path.to_path_buf(),
            bytes,
            sections: Vec::new(),
            decompression_budget: Cell::new(decompression_budget),
        };
        image.sections = image.parse_sections()?;
        Some(image)
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the file's mapping, or `None` if the contents were decompressed.
    pub fn map(&self) -> Option<&Mmap> {
        match &self.bytes {
            Bytes::Mapped(map) => Some(map),
            Bytes::Unpacked(_) => None,
        }
    }

    /// Returns the architecture (`e_machine`).
    pub fn machine(&self) -> u16 {
        number(&self.bytes, 18, 2).unwrap_or_default() as u16
    }

    /// Maps any regular file.
    pub fn bytes_of(path: &Path) -> Option<Mmap> {
        let file = opening::regular(path).ok()?;
        // SAFETY: the file may be changed or truncated while it is mapped. The bytes are
        // only read as integers, so no value is invalid, and this is a child process that
        // SIGBUS may kill.
        unsafe { Mmap::map(&file) }.ok()
    }

    /// Parses the section table.
    fn parse_sections(&self) -> Option<Vec<(String, Section)>> {
        let bytes = &self.bytes[..];
        let header = bytes.get(..HEADER_SIZE)?;
        let field = |at, size| number(header, at, size);
        let is_supported =
            header.starts_with(b"\x7fELF\x02\x01") && field(58, 2)? == SECTION_HEADER_SIZE as u64;
        if !is_supported || ![REL, EXEC, DYN].contains(&field(16, 2)?) {
            return None;
        }
        let start = usize::try_from(field(40, 8)?).ok()?;
        let count = field(60, 2)? as usize;
        let end = start.checked_add(count * SECTION_HEADER_SIZE)?;
        let headers = bytes.get(start..end)?.chunks_exact(SECTION_HEADER_SIZE);
        let section = |header: &[u8]| {
            Some(Section {
                kind: number(header, 4, 4)?,
                flags: number(header, 8, 8)?,
                offset: number(header, 24, 8)?,
                size: number(header, 32, 8)?,
                address: number(header, 16, 8)?,
                entry: number(header, 56, 8)?,
                link: number(header, 40, 4)? as usize,
                has_old_compression: false,
            })
        };
        let sections: Vec<Section> = headers.clone().map(section).collect::<Option<_>>()?;
        let names = self.raw_bytes(sections.get(field(62, 2)? as usize)?)?;
        let name = |header: &[u8]| {
            let rest = names.get(number(header, 0, 4)? as usize..)?;
            let name = rest.split(|&b| b == 0).next()?;
            // Section names are short; a crafted one could be as long as the file.
            Some(String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned())
        };
        // A section with an unreadable name gets an empty one.
        let named = |(header, section)| {
            let name: String = name(header).unwrap_or_default();
            let has_old_compression = name.starts_with(".zdebug_");
            (
                name,
                Section {
                    has_old_compression,
                    ..section
                },
            )
        };
        Some(headers.zip(sections).map(named).collect())
    }

    /// Returns the bytes of a section as they are in the file.
    fn raw_bytes(&self, section: &Section) -> Option<&[u8]> {
        if section.kind == NOBITS {
            return None;
        }
        let start = usize::try_from(section.offset).ok()?;
        let size = usize::try_from(section.size).ok()?;
        self.bytes.get(start..start.checked_add(size)?)
    }

    /// Returns the first section with this name, or with the corresponding `.zdebug_` name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        let find = |name: &str| {
            let mut sections = self.sections.iter();
            sections
                .find(|(candidate, _)| candidate == name)
                .map(|(_, s)| s)
        };
        find(name).or_else(|| {
            let rest = name.strip_prefix(".debug_")?;
            find(&format!(".zdebug_{rest}"))
        })
    }

    /// Returns the section with this index.
    pub fn section_by_index(&self, number: usize) -> Option<&Section> {
        self.sections.get(number).map(|(_, section)| section)
    }

    /// Returns the contents of a section, decompressed if necessary. `None` if they cannot be
    /// read.
    pub fn data(&self, section: &Section) -> Option<Content<'_>> {
        let raw = self.raw_bytes(section)?;
        let Some(packed) = Packed::of(section, raw) else {
            return Some(Content::File(raw));
        };
        if packed.method == ZSTD {
            let size = self.spend_budget(&packed)?;
            return unpacking::zstd(packed.bytes, size);
        }
        let mut unpacked = self.unpack(section)?;
        unpacked.decompress_to(unpacked.bytes().len())?;
        Some(unpacked.into_content())
    }

    /// Starts to decompress a section. Returns `None` if it is not compressed by zlib or cannot be
    /// read.
    pub fn unpack(&self, section: &Section) -> Option<Unpacked<'_>> {
        let packed = Packed::of(section, self.raw_bytes(section)?)?;
        if packed.method != ZLIB {
            return None;
        }
        let size = self.spend_budget(&packed)?;
        Unpacked::new(packed.bytes, size)
    }

    /// Returns the size of a section's contents, which is taken from the budget for all sections.
    fn spend_budget(&self, packed: &Packed) -> Option<usize> {
        if packed.size > (packed.bytes.len() as u64).saturating_mul(MAX_EXPANSION) {
            return None;
        }
        // Bounds the total, because the sections of a crafted file may overlap.
        self.decompression_budget
            .set(self.decompression_budget.get().checked_sub(packed.size)?);
        usize::try_from(packed.size).ok()
    }

    /// Returns true if the file has a `.debug_info` section with contents.
    pub fn has_debug_info(&self) -> bool {
        let info = self.section(".debug_info");
        info.is_some_and(|s| s.kind != NOBITS && s.size > 0)
    }

    /// Loads the sections of debug information, with `info` as `.debug_info` if given. Returns
    /// `None` if some of them cannot be read.
    pub fn sections<'i>(&'i self, info: Option<Content<'i>>) -> Option<DwarfSections<Content<'i>>> {
        let mut info = info;
        DwarfSections::load(|id: SectionId| {
            if id == SectionId::DebugInfo
                && let Some(info) = info.take()
            {
                return Ok(info);
            }
            self.debug_section(id, Some(id.name())).ok_or(())
        })
        .ok()
    }

    /// Returns the contents of a section of debug information; nothing if it is not needed, or
    /// missing. `name` is the section's name in a file of this kind.
    pub fn debug_section(&self, id: SectionId, name: Option<&str>) -> Option<Content<'_>> {
        let name = name.filter(|_| NEEDED.contains(&id));
        match name.and_then(|name| self.section(name)) {
            Some(section) => self.data(section),
            None => Some(Content::File(&[])),
        }
    }
}

/// A compressed section.
struct Packed<'a> {
    /// `ch_type`.
    method: u64,
    /// Size of the contents, in bytes.
    size: u64,
    bytes: &'a [u8],
}

impl<'a> Packed<'a> {
    /// Returns `None` if the section is not compressed.
    fn of(section: &Section, raw: &'a [u8]) -> Option<Self> {
        if section.flags & COMPRESSED != 0 {
            return Some(Self {
                method: number(raw, 0, 4)?,
                size: number(raw, 8, 8)?,
                bytes: raw.get(COMPRESSION_HEADER_SIZE..)?,
            });
        }
        let rest = raw
            .strip_prefix(OLD_MAGIC)
            .filter(|_| section.has_old_compression)?;
        let (size, bytes) = rest.split_first_chunk::<8>()?;
        Some(Self {
            method: ZLIB,
            size: u64::from_be_bytes(*size),
            bytes,
        })
    }
}
