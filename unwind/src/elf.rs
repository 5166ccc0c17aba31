//! A loaded ELF image, read in place: where its code and unwind tables are.
//!
//! The loader maps the file's first page, which holds the program headers (ELF-64
//! gABI), at the start of every module, the vdso included. Whether it can be read is asked
//! first; headers beyond it are not looked for.

use crate::probe;
use core::slice::from_raw_parts;

const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
const PF_X: u32 = 1;
const NT_GNU_BUILD_ID: u32 = 3;
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const MAX_PROGRAM_HEADERS: usize = 64;

/// Bytes of a module, and the address that they have in the process which runs it.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// Their address.
    pub address: u64,
}

/// A module's unwind tables, wherever its bytes are: mapped in this process ([`Image`]), or
/// read from a file for another ([`Sections`]).
pub trait Module<'a> {
    /// The section `.eh_frame_hdr`.
    fn eh_frame_hdr(&self) -> Option<Section<'a>>;

    /// Bytes from an address of `.eh_frame` on, to the end of the section or beyond.
    fn bytes_from(&self, address: u64) -> Option<Section<'a>>;
}

/// The unwind tables of a module that another process runs, read from its file. Addresses are
/// those of that process.
#[derive(Clone, Copy, Debug)]
pub struct Sections<'a> {
    /// `.eh_frame_hdr`.
    pub eh_frame_hdr: Section<'a>,
    /// `.eh_frame`.
    pub eh_frame: Section<'a>,
}

impl<'a> Module<'a> for Sections<'a> {
    fn eh_frame_hdr(&self) -> Option<Section<'a>> {
        Some(self.eh_frame_hdr)
    }

    fn bytes_from(&self, address: u64) -> Option<Section<'a>> {
        let offset = address.checked_sub(self.eh_frame.address)?;
        let bytes = self.eh_frame.bytes.get(usize::try_from(offset).ok()?..)?;
        Some(Section { bytes, address })
    }
}

/// An executable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Offset of `start` in the file.
    pub file_offset: u64,
}

/// A loaded module.
#[derive(Clone, Copy)]
pub struct Image {
    headers: &'static [u8],
    start: u64,
    end: u64,
    bias: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// One program header.
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_size: u64,
    memory_size: u64,
}

impl Image {
    /// The module mapped at `start..end`.
    ///
    /// `None` also where the first page cannot be read.
    ///
    /// # Safety
    /// The module, first page and `PT_LOAD` segments, stays mapped for as long as the image and
    /// what it returns are used.
    #[must_use]
    pub unsafe fn at(start: u64, end: u64) -> Option<Self> {
        if end.checked_sub(start)? < 4096 || start == 0 {
            return None;
        }
        // Programs hide it (some packers and sandboxes do).
        if !probe::are_readable(start, start + 4096) {
            return None;
        }
        // SAFETY: found readable, and the caller vouches that it stays.
        let page: &'static [u8] = unsafe { from_raw_parts(start as *const u8, 4096) };
        if !page.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let offset = usize::try_from(u64_at(page, 32)?).ok()?;
        let count = usize::from(u16::from_le_bytes([page[56], page[57]])).min(MAX_PROGRAM_HEADERS);
        let size = usize::from(u16::from_le_bytes([page[54], page[55]]));
        let bytes = count * PROGRAM_HEADER_BYTES;
        if size != PROGRAM_HEADER_BYTES || offset < HEADER_BYTES {
            return None;
        }
        let headers = page.get(offset..offset.checked_add(bytes)?)?;
        let mut image = Self {
            headers,
            start,
            end,
            bias: 0,
        };
        let first = image.segments().find(|s| s.kind == PT_LOAD)?;
        image.bias = start.wrapping_sub((first.address.wrapping_sub(first.offset)) & !4095);
        Some(image)
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + use<> {
        self.headers
            .chunks_exact(PROGRAM_HEADER_BYTES)
            .filter_map(|h| {
                Some(Segment {
                    kind: u32_at(h, 0)?,
                    flags: u32_at(h, 4)?,
                    offset: u64_at(h, 8)?,
                    address: u64_at(h, 16)?,
                    file_size: u64_at(h, 32)?,
                    memory_size: u64_at(h, 40)?,
                })
            })
    }

    /// The file-backed bytes of the loaded segment from `address` on.
    fn mapped_from(&self, address: u64) -> Option<Section<'static>> {
        let relative = address.wrapping_sub(self.bias);
        let segment = self.segments().find(|s| {
            s.kind == PT_LOAD && relative >= s.address && relative - s.address < s.file_size
        })?;
        let len = segment.file_size - (relative - segment.address);
        if address < self.start || address.checked_add(len)? > self.end {
            return None;
        }
        // SAFETY: inside a PT_LOAD segment of a module that the caller of `at` keeps mapped.
        let bytes = unsafe { from_raw_parts(address as *const u8, len as usize) };
        Some(Section { bytes, address })
    }

    /// The executable segment that holds `pc`.
    #[must_use]
    pub fn text(&self, pc: u64) -> Option<Text> {
        let relative = pc.wrapping_sub(self.bias);
        let segment = self.segments().find(|s| {
            s.kind == PT_LOAD
                && s.flags & PF_X != 0
                && relative >= s.address
                && relative - s.address < s.memory_size
        })?;
        // As /proc/PID/maps shows it: whole pages.
        let down = segment.address & 4095;
        let end = segment
            .address
            .checked_add(segment.memory_size)?
            .checked_add(4095)?
            & !4095;
        Some(Text {
            start: self.bias.wrapping_add(segment.address - down),
            end: self.bias.wrapping_add(end),
            file_offset: segment.offset.checked_sub(down)?,
        })
    }

    /// Its build id (note `NT_GNU_BUILD_ID`), if it has one.
    #[must_use]
    pub fn build_id(&self) -> Option<&'static [u8]> {
        self.segments().filter(|s| s.kind == PT_NOTE).find_map(|s| {
            let notes = self.mapped_from(self.bias.wrapping_add(s.address))?;
            let len = usize::try_from(s.memory_size).ok()?;
            find_build_id(notes.bytes.get(..len)?)
        })
    }

    /// Where the module begins.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }
}

impl Module<'static> for Image {
    fn eh_frame_hdr(&self) -> Option<Section<'static>> {
        let header = self.segments().find(|s| s.kind == PT_GNU_EH_FRAME)?;
        let mut section = self.mapped_from(self.bias.wrapping_add(header.address))?;
        section.bytes = section
            .bytes
            .get(..usize::try_from(header.memory_size).ok()?)?;
        Some(section)
    }

    fn bytes_from(&self, address: u64) -> Option<Section<'static>> {
        self.mapped_from(address)
    }
}

fn find_build_id(mut notes: &'static [u8]) -> Option<&'static [u8]> {
    let aligned = |n: u32| (n as usize).checked_add(3).map(|n| n & !3);
    while notes.len() >= 12 {
        let name_len = u32_at(notes, 0)?;
        let len = u32_at(notes, 4)?;
        let kind = u32_at(notes, 8)?;
        let at = 12usize.checked_add(aligned(name_len)?)?;
        let value = notes.get(at..at.checked_add(len as usize)?)?;
        if kind == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            return Some(value);
        }
        notes = notes.get(at.checked_add(aligned(len)?)?..)?;
    }
    None
}
