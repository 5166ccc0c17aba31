//! A program's file, mapped, and its sections.

use std::cell::Cell;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use gimli::{DwarfSections, SectionId};
use heap_format::opening;
use memmap2::Mmap;

use super::unpacking::{Content, Unpacked};

const EXEC: u64 = 2;
const DYN: u64 = 3;
/// A section that has no bytes in the file.
const NOBITS: u64 = 8;
const COMPRESSED: u64 = 0x800;
const ZLIB: u64 = 1;
const HEADER: usize = 64;
const SECTION_HEADER: usize = 64;
/// How many times its size a compressed section may claim to be: debug information shrinks to
/// a third, zeros to a thousandth.
const MOST_EXPANSION: u64 = 64;
/// Bytes that a section begins with when it is compressed.
const COMPRESSION_HEADER: usize = 24;

/// Sections of debug information that are read. Locations of variables, macros and
/// indexes are not, which are most of some files.
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

/// Debug information continues in another file.
const ELSEWHERE: [&str; 3] = [".gnu_debugaltlink", ".debug_sup", ".debug_types"];

/// A section's header.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    kind: u64,
    flags: u64,
    offset: u64,
    size: u64,
    /// The address that the file gives to it.
    pub address: u64,
    /// Bytes of one of its entries; 0 where it has none.
    pub entry: u64,
    /// Number of the section that it refers to.
    pub link: usize,
}

impl Section {
    /// Whether the section, as it is in memory, holds an address.
    pub fn holds(&self, address: u64) -> bool {
        let distance = address.checked_sub(self.address);
        distance.is_some_and(|distance| distance < self.size)
    }
}

/// What a file consists of.
enum Bytes {
    Mapped(Mmap),
    /// Unpacked from a section of another file.
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

/// A file's bytes and the table of its sections.
pub struct Image {
    path: PathBuf,
    bytes: Bytes,
    sections: Vec<(String, Section)>,
    /// Bytes that may still be unpacked.
    room: Cell<u64>,
}

/// The number of `size` bytes at `at`.
pub fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
    Some(bytes.iter().rev().fold(0, add))
}

impl Image {
    /// Maps a 64-bit little-endian program or library.
    pub fn open(path: &Path) -> Option<Self> {
        Self::of(path, Bytes::Mapped(Self::bytes_of(path)?))
    }

    /// The same for a program that lay packed in the file at `path`.
    pub fn unpacked(path: &Path, bytes: Vec<u8>) -> Option<Self> {
        Self::of(path, Bytes::Unpacked(bytes))
    }

    fn of(path: &Path, bytes: Bytes) -> Option<Self> {
        let room = (bytes.len() as u64).saturating_mul(MOST_EXPANSION);
        let mut image = Self {
            path: path.to_path_buf(),
            bytes,
            sections: Vec::new(),
            room: Cell::new(room),
        };
        image.sections = image.table()?;
        Some(image)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The mapping, unless its bytes were unpacked.
    pub fn map(&self) -> Option<&Mmap> {
        match &self.bytes {
            Bytes::Mapped(map) => Some(map),
            Bytes::Unpacked(_) => None,
        }
    }

    /// The architecture: `e_machine`.
    pub fn machine(&self) -> u16 {
        number(&self.bytes, 18, 2).unwrap_or_default() as u16
    }

    /// Maps any file.
    pub fn bytes_of(path: &Path) -> Option<Mmap> {
        let file = opening::regular(path).ok()?;
        // SAFETY: the bytes may change or go while they are read; they are read
        // as bytes only, and a signal ends a process that has nothing else to do.
        unsafe { Mmap::map(&file) }.ok()
    }

    fn table(&self) -> Option<Vec<(String, Section)>> {
        let bytes = &self.bytes[..];
        let header = bytes.get(..HEADER)?;
        let field = |at, size| number(header, at, size);
        let usual =
            header.starts_with(b"\x7fELF\x02\x01") && field(58, 2)? == SECTION_HEADER as u64;
        if !usual || ![EXEC, DYN].contains(&field(16, 2)?) {
            return None;
        }
        let start = usize::try_from(field(40, 8)?).ok()?;
        let count = field(60, 2)? as usize;
        let end = start.checked_add(count * SECTION_HEADER)?;
        let headers = bytes.get(start..end)?.chunks_exact(SECTION_HEADER);
        let section = |header: &[u8]| {
            Some(Section {
                kind: number(header, 4, 4)?,
                flags: number(header, 8, 8)?,
                offset: number(header, 24, 8)?,
                size: number(header, 32, 8)?,
                address: number(header, 16, 8)?,
                entry: number(header, 56, 8)?,
                link: number(header, 40, 4)? as usize,
            })
        };
        let sections: Vec<Section> = headers.clone().map(section).collect::<Option<_>>()?;
        let names = self.raw(sections.get(field(62, 2)? as usize)?)?;
        let name = |header: &[u8]| {
            let rest = names.get(number(header, 0, 4)? as usize..)?;
            let name = rest.split(|&b| b == 0).next()?;
            // A name is a short word.
            Some(String::from_utf8_lossy(&name[..name.len().min(64)]).into_owned())
        };
        // One without a name costs itself.
        let named = |(header, section)| (name(header).unwrap_or_default(), section);
        Some(headers.zip(sections).map(named).collect())
    }

    fn raw(&self, section: &Section) -> Option<&[u8]> {
        if section.kind == NOBITS {
            return None;
        }
        let start = usize::try_from(section.offset).ok()?;
        let size = usize::try_from(section.size).ok()?;
        self.bytes.get(start..start.checked_add(size)?)
    }

    /// The section of this name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        let mut sections = self.sections.iter();
        sections.find(|(own, _)| own == name).map(|(_, s)| s)
    }

    /// The section of this number.
    pub fn numbered(&self, number: usize) -> Option<&Section> {
        self.sections.get(number).map(|(_, section)| section)
    }

    /// Content of a section; `None` where it cannot be read.
    pub fn data(&self, section: &Section) -> Option<Content<'_>> {
        if section.flags & COMPRESSED == 0 {
            return self.raw(section).map(Content::File);
        }
        let mut unpacked = self.unpack(section)?;
        unpacked.reach(unpacked.bytes().len())?;
        Some(unpacked.into_content())
    }

    /// Begins to unpack a section; `None` where it is not compressed or cannot be read.
    pub fn unpack(&self, section: &Section) -> Option<Unpacked<'_>> {
        let raw = self.raw(section)?;
        if section.flags & COMPRESSED == 0 || number(raw, 0, 4)? != ZLIB {
            return None;
        }
        let size = number(raw, 8, 8)?;
        if size > (raw.len() as u64).saturating_mul(MOST_EXPANSION) {
            return None;
        }
        // Sections that lie over each other are not to claim it again and again.
        self.room.set(self.room.get().checked_sub(size)?);
        let packed = raw.get(COMPRESSION_HEADER..)?;
        Unpacked::new(packed, usize::try_from(size).ok()?)
    }

    /// Whether there is any debug information in it.
    pub fn has_debug_info(&self) -> bool {
        let info = self.section(".debug_info");
        info.is_some_and(|s| s.kind != NOBITS && s.size > 0)
    }

    /// The debug information, if all of it is here; `info` stands for the section of units.
    pub fn sections<'i>(&'i self, info: Option<Content<'i>>) -> Option<DwarfSections<Content<'i>>> {
        if ELSEWHERE.iter().any(|name| self.section(name).is_some()) {
            return None;
        }
        let mut info = info;
        DwarfSections::load(|id: SectionId| {
            if let Some(info) = info.take_if(|_| id == SectionId::DebugInfo) {
                return Ok(info);
            }
            let section = self.section(id.name()).filter(|_| NEEDED.contains(&id));
            section.map_or(Ok(Content::File(&[])), |s| self.data(s).ok_or(()))
        })
        .ok()
    }
}
