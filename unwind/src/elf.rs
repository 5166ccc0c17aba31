//! Loaded ELF images, read in place: code, unwind tables, build id.
//!
//! The loader maps the file's first page, which holds the program headers (ELF-64 gABI), at the
//! start of every module, the vdso included. That page is probed before it is read, since some
//! programs make it unreadable. Program headers past the first page are used only if they are
//! mapped as they are in the file.

// Decision 26: ELF headers without the `object` crate.
use crate::arch::Machine;
use crate::probe;
use core::slice::from_raw_parts;

/// Number of bytes of code that are decoded after a call.
const CODE_BYTES: usize = 48;

/// Type of loaded segments.
pub const PT_LOAD: u32 = 1;
/// Type of segments that hold notes.
pub const PT_NOTE: u32 = 4;
/// Type of the segment that is `.eh_frame_hdr`.
pub const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
/// Flag of executable segments.
pub const PF_X: u32 = 1;
/// Flag of readable segments.
pub const PF_R: u32 = 4;
const NT_GNU_BUILD_ID: u32 = 3;
const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
const MAX_PROGRAM_HEADERS: usize = 64;

/// Bytes of a module, with their address in the process that runs it.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Bytes, starting at `address`.
    pub bytes: &'a [u8],
    /// Address of the first byte.
    pub address: u64,
}

/// Access to a module's unwind tables and code: mapped in this process ([`Image`]), or read from a
/// file for another ([`Sections`]).
pub trait Module<'a> {
    /// Returns the section `.eh_frame_hdr`.
    fn eh_frame_hdr(&self) -> Option<Section<'a>>;

    /// Returns the bytes that start at an address of `.eh_frame`, up to the end of the section or
    /// beyond.
    fn bytes_from(&self, address: u64) -> Option<Section<'a>>;

    /// Returns the program's entry point, or `None` for a library or if not known.
    fn entry_point(&self) -> Option<u64> {
        None
    }

    /// Returns the four-byte instruction at an address, or `None` if there is no readable code.
    fn instruction(&self, _: u64) -> Option<u32> {
        None
    }

    /// Returns the eight bytes of code before an address, or `None` if there is no readable code.
    fn bytes_before(&self, _: u64) -> Option<[u8; 8]> {
        None
    }

    /// Returns eight bytes of code before an address and 24 that start at it, with zeros after the
    /// end of the readable code. Returns `None` if the first 16 are not readable code.
    fn code_around(&self, address: u64) -> Option<[[u8; 8]; 4]> {
        let after = |bytes: u64| self.bytes_before(address.checked_add(bytes)?);
        let [second, third] = [16, 24].map(|bytes| after(bytes).unwrap_or_default());
        Some([self.bytes_before(address)?, after(8)?, second, third])
    }

    /// Returns the code that follows a return address, with zeros after the end of the readable
    /// code. Returns `None` if the address does not follow a call of machine `A`.
    fn after_call<A: Machine>(&self, address: u64) -> Option<[u8; CODE_BYTES]> {
        let [before, near @ ..] = self.code_around(address)?;
        A::call(before, address)?;
        let mut code = [0; CODE_BYTES];
        let (first, second) = code.split_at_mut(CODE_BYTES / 2);
        first.copy_from_slice(near.as_flattened());
        let far = self.code_around(address.checked_add(CODE_BYTES as u64 / 2)?);
        let [_, far @ ..] = far.unwrap_or_default();
        second.copy_from_slice(far.as_flattened());
        Some(code)
    }
}

/// Unwind tables of a module of another process, read from its file. Addresses are valid in that
/// process.
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

/// Executable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Offset of `start` in the file.
    pub file_offset: u64,
}

/// Loaded module.
#[derive(Clone, Copy)]
pub struct Image {
    headers: &'static [u8],
    start: u64,
    end: u64,
    bias: u64,
    /// Entry point, relative to `bias`; 0 if none.
    entry: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Program header of a segment.
#[derive(Clone, Copy)]
pub struct Segment {
    /// Type ([`PT_LOAD`], …).
    pub kind: u32,
    /// Access flags ([`PF_X`], [`PF_R`]).
    pub flags: u32,
    /// Offset in the file.
    pub offset: u64,
    /// Address before relocation.
    pub address: u64,
    /// Size in the file, in bytes.
    pub file_size: u64,
    memory_size: u64,
}

/// Returns the first page of a module mapped at `start..end`, or `None` if it is unreadable.
///
/// # Safety
/// The page stays mapped for as long as the bytes are used.
#[must_use]
pub unsafe fn first_page(start: u64, end: u64) -> Option<&'static [u8]> {
    // Memory is mapped in whole pages, so a whole one can be read even if the module ends within
    // it, as aarch64's vdso does.
    let length = end.checked_sub(start)?;
    let is_whole = length >= 4096 || length > 0 && start.is_multiple_of(4096);
    if !is_whole || start == 0 {
        return None;
    }
    // Some packers and sandboxes make the page unreadable.
    if !probe::are_readable(start, start.saturating_add(4096)) {
        return None;
    }
    // SAFETY: the page is readable, and the caller keeps it mapped.
    Some(unsafe { from_raw_parts(start as *const u8, 4096) })
}

/// Returns the address range of the module whose code at `pc` has this file offset. `page` is the
/// file's first page.
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

/// Returns the file offset and size in bytes of the program headers, if `page` is the first of an
/// ELF file. Tools that rewrite programs (BOLT, patchelf) move them far past the first page.
#[must_use]
pub fn program_headers_range(page: &[u8]) -> Option<(u64, usize)> {
    if page.len() < HEADER_BYTES || !page.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let offset = u64_at(page, 32)?;
    let count = usize::from(u16::from_le_bytes([page[56], page[57]])).min(MAX_PROGRAM_HEADERS);
    let size = usize::from(u16::from_le_bytes([page[54], page[55]]));
    let is_usual = size == PROGRAM_HEADER_BYTES && offset >= HEADER_BYTES as u64;
    is_usual.then_some((offset, count * PROGRAM_HEADER_BYTES))
}

/// Returns the program headers, if `page` is the first of an ELF file and contains them.
#[must_use]
pub fn program_headers(page: &[u8]) -> Option<&[u8]> {
    let (offset, bytes) = program_headers_range(page)?;
    let offset = usize::try_from(offset).ok()?;
    page.get(offset..offset.checked_add(bytes)?)
}

/// Returns the program headers of a module mapped at `start..end`, whose first page is `page`. If
/// they are not in that page, they are used only if a segment that they describe maps them.
///
/// # Safety
/// The module stays mapped for as long as the headers are used.
unsafe fn mapped_headers(page: &'static [u8], start: u64, end: u64) -> Option<&'static [u8]> {
    if let Some(headers) = program_headers(page) {
        return Some(headers);
    }
    let (offset, bytes) = program_headers_range(page)?;
    let from = start.checked_add(offset)?;
    let to = from.checked_add(bytes as u64)?;
    if to > end || !from.is_multiple_of(8) || !probe::are_readable(from, to) {
        return None;
    }
    // SAFETY: the range is readable, and the caller keeps it mapped.
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

/// Returns an iterator over program headers.
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

/// Returns the address before relocation of the file's first page.
fn first_address(headers: &[u8]) -> Option<u64> {
    let first = segments(headers).find(|s| s.kind == PT_LOAD)?;
    Some(first.address.wrapping_sub(first.offset) & !4095)
}

impl Image {
    /// Returns the module mapped at `start..end`, or `None` if its first page is unreadable or not
    /// an ELF file's.
    ///
    /// # Safety
    /// The module's first page and `PT_LOAD` segments stay mapped for as long as the image and what
    /// it returns are used.
    #[must_use]
    pub unsafe fn at(start: u64, end: u64) -> Option<Self> {
        // SAFETY: the caller keeps the first page mapped.
        let page = unsafe { first_page(start, end) }?;
        // SAFETY: the caller keeps the module mapped.
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

    /// Returns the file-backed bytes of a loaded segment that start at `address`.
    fn mapped_from(&self, address: u64) -> Option<Section<'static>> {
        let relative = address.wrapping_sub(self.bias);
        let segment = self.segments().find(|s| {
            s.kind == PT_LOAD && relative >= s.address && relative - s.address < s.file_size
        })?;
        let len = segment.file_size - (relative - segment.address);
        if address < self.start || address.checked_add(len)? > self.end {
            return None;
        }
        // SAFETY: the bytes are in a PT_LOAD segment, which the caller of `at` keeps mapped.
        let bytes = unsafe { from_raw_parts(address as *const u8, len as usize) };
        Some(Section { bytes, address })
    }

    /// Returns true if `bytes` bytes of code at `address` are in an executable segment and
    /// readable. Programs may make their code unreadable; the program headers do not show that.
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

    /// Returns the executable segment that holds `pc`.
    #[must_use]
    pub fn text(&self, pc: u64) -> Option<Text> {
        let relative = pc.wrapping_sub(self.bias);
        let segment = self.segments().find(|s| {
            s.kind == PT_LOAD
                && s.flags & PF_X != 0
                && relative >= s.address
                && relative - s.address < s.memory_size
        })?;
        // Rounded to whole pages, as in /proc/PID/maps.
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

    /// Returns the build id (note `NT_GNU_BUILD_ID`).
    #[must_use]
    pub fn build_id(&self) -> Option<&'static [u8]> {
        self.segments().filter(|s| s.kind == PT_NOTE).find_map(|s| {
            let notes = self.mapped_from(self.bias.wrapping_add(s.address))?;
            let len = usize::try_from(s.memory_size).ok()?;
            find_build_id(notes.bytes.get(..len)?)
        })
    }

    /// Returns the file's first page.
    pub(crate) fn first_page(&self) -> &'static [u8] {
        // SAFETY: `at` found the page readable, and its caller keeps it mapped.
        unsafe { from_raw_parts(self.start as *const u8, 4096) }
    }

    /// Returns the program headers.
    pub(crate) fn headers(&self) -> &'static [u8] {
        self.headers
    }

    /// Returns the module's first address.
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

    fn entry_point(&self) -> Option<u64> {
        (self.entry != 0).then(|| self.bias.wrapping_add(self.entry))
    }

    fn instruction(&self, address: u64) -> Option<u32> {
        let is_there = address.is_multiple_of(4) && self.has_code(address, 4);
        // SAFETY: `has_code` found the word readable, and the caller of `at` keeps the module
        // mapped.
        is_there.then(|| unsafe { (address as *const u32).read_volatile() })
    }

    fn bytes_before(&self, address: u64) -> Option<[u8; 8]> {
        let from = address.checked_sub(8)?;
        // SAFETY: `has_code` found the bytes readable, the caller of `at` keeps the module mapped,
        // and bytes need no alignment.
        self.has_code(from, 8)
            .then(|| unsafe { (from as *const [u8; 8]).read_volatile() })
    }
}

/// Returns the build id (`NT_GNU_BUILD_ID`) in a note section.
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

    /// Returns the first page of a file with these segments: flags, offset, address, size.
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

    /// Segments of a small program that lld linked for pages of 64 KiB: all of it is in the file's
    /// first page.
    const SMALL_PROGRAM: [(u32, u64, u64, u64); 3] = [
        (4, 0, 0x20_0000, 0x6c0),
        (4 | PF_X, 0x6c0, 0x21_06c0, 0x200),
        (6, 0x8c0, 0x22_08c0, 0x80),
    ];

    #[test]
    fn a_modules_extent_follows_its_headers_not_its_mappings() {
        let page = page(&SMALL_PROGRAM);
        let bias = 0x7000_0000_0000;
        let pc = 0x7000_0021_0700;
        let expected = (bias + 0x20_0000, bias + 0x22_0a40);
        assert_eq!(extent(&page, pc, 0x700), Some(expected));
        // The module is mapped at another address in another process.
        assert_eq!(
            extent(&page, 0x21_0700, 0x700),
            Some((0x20_0000, 0x22_0a40))
        );
    }

    #[test]
    fn pages_without_a_header_and_offsets_without_code_give_no_extent() {
        let good = page(&SMALL_PROGRAM);
        for offset in [0, 0x6bf, 0x8c0, 0x1000, u64::MAX] {
            assert_eq!(extent(&good, 0x21_0700, offset), None, "{offset:x}");
        }
        assert_eq!(extent(&good[..40], 0x21_0700, 0x700), None);
        assert_eq!(extent(&std::vec![0; 4096], 0x21_0700, 0x700), None);
        let huge = page(&[(4 | PF_X, u64::MAX, u64::MAX, u64::MAX - 0x100)]);
        assert_eq!(extent(&huge, 1, 0x700), None);
    }

    /// The vdso of aarch64, to which signal handlers return, is only half a page long.
    #[test]
    fn a_module_may_end_in_its_first_page() {
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
