//! A loaded ELF image, read in place: where its code and unwind tables are.
//!
//! The loader maps the file's first page, which holds the program headers (ELF-64 gABI), at the
//! start of every module, the vdso included. Whether that page can be read is checked first;
//! headers beyond it are not looked for.

// Decision 26: ELF headers without the `object` crate.
use crate::probe;
use core::slice::from_raw_parts;

/// Kind of a segment that is loaded.
pub const PT_LOAD: u32 = 1;
/// Kind of a segment that holds notes.
pub const PT_NOTE: u32 = 4;
/// Kind of the segment that is `.eh_frame_hdr`.
pub const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
/// Flag of a segment that may be executed.
pub const PF_X: u32 = 1;
/// Flag of a segment that may be read.
pub const PF_R: u32 = 4;
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

    /// Where a program begins to run; `None`: it is a library, or not known.
    fn entry(&self) -> Option<u64> {
        None
    }

    /// The instruction of four bytes at an address of the module's code; `None` where there is no
    /// code, or its bytes cannot be read.
    fn instruction(&self, _: u64) -> Option<u32> {
        None
    }

    /// The bytes of the module's code that lie before an address; `None` as above.
    fn before(&self, _: u64) -> Option<[u8; 8]> {
        None
    }

    /// Eight bytes of the module's code before an address and 24 from it on, zeros where its code
    /// ends; `None` as above.
    fn around(&self, address: u64) -> Option<[[u8; 8]; 4]> {
        let after = |bytes: u64| self.before(address.checked_add(bytes)?);
        let [second, third] = [16, 24].map(|bytes| after(bytes).unwrap_or_default());
        Some([self.before(address)?, after(8)?, second, third])
    }
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
    /// As the file has it; 0: none.
    entry: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// One program header.
#[derive(Clone, Copy)]
pub struct Segment {
    /// Its kind.
    pub kind: u32,
    /// What may be done with its memory.
    pub flags: u32,
    /// Where it begins in the file.
    pub offset: u64,
    /// The address that the file gives to it.
    pub address: u64,
    /// Its bytes in the file.
    pub file_size: u64,
    memory_size: u64,
}

/// The first page of what is mapped at `start..end`; `None` where it cannot be read.
///
/// # Safety
/// It stays mapped for as long as the bytes are used.
#[must_use]
pub unsafe fn first_page(start: u64, end: u64) -> Option<&'static [u8]> {
    // Memory is mapped in whole pages: one can be read whole though the module ends within it, as
    // aarch64's vdso does.
    let length = end.checked_sub(start)?;
    let is_whole = length >= 4096 || length > 0 && start.is_multiple_of(4096);
    if !is_whole || start == 0 {
        return None;
    }
    // Programs hide it (some packers and sandboxes do).
    if !probe::are_readable(start, start.saturating_add(4096)) {
        return None;
    }
    // SAFETY: found readable, and the caller vouches that it stays.
    Some(unsafe { from_raw_parts(start as *const u8, 4096) })
}

/// Where a module begins and ends whose code at `pc` has this offset in its file, by the file's
/// first page.
#[must_use]
pub fn extent(page: &[u8], pc: u64, offset: u64) -> Option<(u64, u64)> {
    let headers = program_headers(page)?;
    let loaded = || segments(headers).filter(|s| s.kind == PT_LOAD);
    let code = loaded()
        .find(|s| s.flags & PF_X != 0 && offset >= s.offset && offset - s.offset < s.file_size)?;
    let bias = pc.wrapping_sub(code.address.wrapping_add(offset - code.offset));
    let end = loaded()
        .map(|s| s.address.saturating_add(s.memory_size))
        .max()?;
    Some((
        bias.wrapping_add(first_address(headers)?),
        bias.wrapping_add(end),
    ))
}

/// Where the program headers are in the file, and how many bytes they have, if the page is the
/// first of an ELF file. Tools that rewrite programs (BOLT, patchelf) put them far behind it.
#[must_use]
pub fn program_headers_place(page: &[u8]) -> Option<(u64, usize)> {
    if page.len() < HEADER_BYTES || !page.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let offset = u64_at(page, 32)?;
    let count = usize::from(u16::from_le_bytes([page[56], page[57]])).min(MAX_PROGRAM_HEADERS);
    let size = usize::from(u16::from_le_bytes([page[54], page[55]]));
    let is_usual = size == PROGRAM_HEADER_BYTES && offset >= HEADER_BYTES as u64;
    is_usual.then_some((offset, count * PROGRAM_HEADER_BYTES))
}

/// The program headers, if the page is the first of an ELF file, and holds them.
#[must_use]
pub fn program_headers(page: &[u8]) -> Option<&[u8]> {
    let (offset, bytes) = program_headers_place(page)?;
    let offset = usize::try_from(offset).ok()?;
    page.get(offset..offset.checked_add(bytes)?)
}

/// The program headers of what is mapped at `start..end`, whose first page this is. They are where
/// the file has them only if the headers themselves say so.
///
/// # Safety
/// It stays mapped for as long as they are used.
unsafe fn mapped_headers(page: &'static [u8], start: u64, end: u64) -> Option<&'static [u8]> {
    if let Some(headers) = program_headers(page) {
        return Some(headers);
    }
    let (offset, bytes) = program_headers_place(page)?;
    let from = start.checked_add(offset)?;
    let to = from.checked_add(bytes as u64)?;
    if to > end || !from.is_multiple_of(8) || !probe::are_readable(from, to) {
        return None;
    }
    // SAFETY: found readable, and the caller vouches that it stays.
    let headers = unsafe { from_raw_parts(from as *const u8, bytes) };
    let first = first_address(headers)?;
    let mut loaded = segments(headers).filter(|s| s.kind == PT_LOAD);
    let holds = |s: Segment| {
        let inside = offset.checked_sub(s.offset);
        inside.is_some_and(|inside| inside < s.file_size)
            && s.address.wrapping_sub(s.offset) == first
    };
    loaded.any(holds).then_some(headers)
}

/// Program headers one by one.
pub fn segments<'a>(headers: &'a [u8]) -> impl Iterator<Item = Segment> + use<'a> {
    headers.chunks_exact(PROGRAM_HEADER_BYTES).filter_map(|h| {
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

/// The address that the file gives to its first page.
fn first_address(headers: &[u8]) -> Option<u64> {
    let first = segments(headers).find(|s| s.kind == PT_LOAD)?;
    Some(first.address.wrapping_sub(first.offset) & !4095)
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
        // SAFETY: the caller's.
        let page = unsafe { first_page(start, end) }?;
        // SAFETY: the caller's.
        let headers = unsafe { mapped_headers(page, start, end) }?;
        let mut image = Self {
            headers,
            start,
            end,
            bias: 0,
            entry: u64_at(page, 24)?,
        };
        image.bias = start.wrapping_sub(first_address(headers)?);
        Some(image)
    }

    fn segments(&self) -> impl Iterator<Item = Segment> + use<> {
        segments(self.headers)
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

    /// Whether this many bytes of code are there, and can be read: programs may hide their code,
    /// which segments do not show.
    fn has_code(&self, address: u64, bytes: u64) -> bool {
        let relative = address.wrapping_sub(self.bias);
        let holds = |s: &Segment| {
            s.kind == PT_LOAD
                && s.flags & (PF_X | PF_R) == PF_X | PF_R
                && relative >= s.address
                && s.file_size >= bytes
                && relative - s.address <= s.file_size - bytes
        };
        let is_mapped = address >= self.start && address < self.end;
        is_mapped
            && self.segments().any(|s| holds(&s))
            && probe::are_readable(address, address.saturating_add(bytes))
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

    /// Its file's first page.
    pub(crate) fn first_page(&self) -> &'static [u8] {
        // SAFETY: `at` found the page readable, and its caller keeps it mapped.
        unsafe { from_raw_parts(self.start as *const u8, 4096) }
    }

    /// Its program headers, where they are mapped.
    pub(crate) fn headers(&self) -> &'static [u8] {
        self.headers
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

    fn entry(&self) -> Option<u64> {
        (self.entry != 0).then(|| self.bias.wrapping_add(self.entry))
    }

    fn instruction(&self, address: u64) -> Option<u32> {
        let is_there = address.is_multiple_of(4) && self.has_code(address, 4);
        // SAFETY: code of a module that the caller of `at` keeps mapped, just found readable.
        is_there.then(|| unsafe { (address as *const u32).read_volatile() })
    }

    fn before(&self, address: u64) -> Option<[u8; 8]> {
        let from = address.checked_sub(8)?;
        // SAFETY: as above; bytes need no alignment.
        self.has_code(from, 8)
            .then(|| unsafe { (from as *const [u8; 8]).read_volatile() })
    }
}

/// The build id among notes (`NT_GNU_BUILD_ID`).
#[must_use]
pub fn find_build_id(mut notes: &[u8]) -> Option<&[u8]> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// The first page of a file with these segments: flags, offset, address, size.
    fn page(loaded: &[(u32, u64, u64, u64)]) -> Vec<u8> {
        let mut page = std::vec![0u8; 4096];
        page[..6].copy_from_slice(b"\x7fELF\x02\x01");
        page[32] = HEADER_BYTES as u8;
        page[54] = PROGRAM_HEADER_BYTES as u8;
        page[56] = loaded.len() as u8;
        let headers = page[HEADER_BYTES..].chunks_exact_mut(PROGRAM_HEADER_BYTES);
        for (header, &(flags, offset, address, size)) in headers.zip(loaded) {
            header[..4].copy_from_slice(&PT_LOAD.to_le_bytes());
            header[4..8].copy_from_slice(&flags.to_le_bytes());
            for (at, value) in [(8, offset), (16, address), (32, size), (40, size + 0x100)] {
                header[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
        }
        page
    }

    /// As lld lays out a small program for pages of 64 KiB: all of it is in the file's first page.
    const SMALL: [(u32, u64, u64, u64); 3] = [
        (4, 0, 0x20_0000, 0x6c0),
        (4 | PF_X, 0x6c0, 0x21_06c0, 0x200),
        (6, 0x8c0, 0x22_08c0, 0x80),
    ];

    #[test]
    fn a_module_begins_where_its_header_says_whatever_the_page_was_mapped_for() {
        let page = page(&SMALL);
        let (bias, pc) = (0x7000_0000_0000, 0x7000_0021_0700);
        let expected = (bias + 0x20_0000, bias + 0x22_0a40);
        assert_eq!(extent(&page, pc, 0x700), Some(expected));
        // As another process maps it that has its own idea of addresses.
        assert_eq!(
            extent(&page, 0x21_0700, 0x700),
            Some((0x20_0000, 0x22_0a40))
        );
    }

    #[test]
    fn offsets_without_code_and_pages_that_are_no_header_say_nothing() {
        let good = page(&SMALL);
        for offset in [0, 0x6bf, 0x8c0, 0x1000, u64::MAX] {
            assert_eq!(extent(&good, 0x21_0700, offset), None, "{offset:x}");
        }
        assert_eq!(extent(&good[..40], 0x21_0700, 0x700), None);
        assert_eq!(extent(&std::vec![0; 4096], 0x21_0700, 0x700), None);
        let huge = page(&[(4 | PF_X, u64::MAX, u64::MAX, u64::MAX - 0x100)]);
        assert_eq!(extent(&huge, 1, 0x700), None);
    }

    /// The vdso of aarch64 has no more than half a page, and signals' handlers return to it.
    #[test]
    fn a_module_may_end_within_its_first_page() {
        const PAGE: u64 = 4096;
        const END: u64 = 0x928;
        let header = page(&[(PF_R | PF_X, 0, 0, END)]);
        let mut memory = std::vec![0u8; 2 * PAGE as usize];
        let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
        let at = (start - memory.as_ptr() as u64) as usize;
        memory[at..at + header.len()].copy_from_slice(&header);
        memory[at + 0x7bc..][..4].copy_from_slice(&0xd280_1168_u32.to_le_bytes());
        // SAFETY: `memory` outlives both images, and holds all that is read of them.
        let (whole, elsewhere) = unsafe {
            (
                Image::at(start, start + END),
                Image::at(start + 8, start + 8 + END),
            )
        };
        let whole = whole.expect("a page that is mapped");
        assert_eq!(whole.instruction(start + 0x7bc), Some(0xd280_1168));
        assert_eq!(whole.instruction(start + END), None);
        assert!(elsewhere.is_none(), "no page begins there");
    }
}
