//! Image of this program's own code, which can be mapped at any address of a copied process.
//!
//! The code is position-independent. So a function that calls nothing outside this program's file
//! and changes no global variables works wherever the file's code and constants are mapped
//! together.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::arch;

/// Maximum size of an image in bytes: more than this program needs.
const MAX_IMAGE_BYTES: u64 = 256 << 20;
/// Largest page size of any kernel, in bytes.
pub const PAGE: usize = 64 << 10;
/// Page size in bytes that page-relative instructions assume (`adrp`).
const CODE_PAGE: u64 = 4 << 10;

/// Code and constants of the file that contains a function. Data that the loader relocates and then
/// makes read-only is excluded: it contains addresses of this process, which must not be disclosed.
/// A call through such an address fails in the copy instead of running something else.
pub struct Image {
    parts: Vec<Part>,
    /// True if the file is the executable, not a library.
    is_program: bool,
    start: u64,
    end: u64,
    function: u64,
}

/// A loaded segment of the file.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    end: u64,
    offset: u64,
}

/// Argument of [`visit_file`]: the address searched for, and the segments of the file that contains
/// it.
struct Finder {
    address: u64,
    parts: Vec<Part>,
    is_program: bool,
}

impl Image {
    /// Returns the image of the file that contains `function`.
    pub fn of(function: u64) -> Option<Self> {
        let mut finder = Finder {
            address: function,
            parts: Vec::new(),
            is_program: false,
        };
        // SAFETY: `finder` lives until the call returns, and only `visit_file` uses it until then.
        unsafe { libc::dl_iterate_phdr(Some(visit_file), (&raw mut finder).cast()) };
        let mut parts = finder.parts;
        parts.sort_unstable_by_key(|part| part.start);
        let start = parts.first()?.start & !(CODE_PAGE - 1);
        let end = parts.last()?.end;
        let are_disjoint = parts.windows(2).all(|pair| pair[0].end <= pair[1].start);
        (are_disjoint && end - start <= MAX_IMAGE_BYTES).then_some(Self {
            parts,
            is_program: finder.is_program,
            start,
            end,
            function,
        })
    }

    /// Returns the size in bytes: one page with the instruction to which the function returns, then
    /// the file.
    pub fn len(&self) -> usize {
        (PAGE as u64 + self.end - self.start).next_multiple_of(PAGE as u64) as usize
    }

    /// Returns the offset of the function in the image.
    pub fn entry(&self) -> u64 {
        PAGE as u64 + self.function - self.start
    }

    /// Writes the image to a file of [`len`](Self::len) bytes, which are zero.
    pub fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(arch::TRAP_CODE, 0)?;
        // The code is read from the program's file: most of it is never used, and reading it from
        // memory would make its pages resident.
        let program = if self.is_program {
            File::open("/proc/self/exe").ok()
        } else {
            None
        };
        for part in &self.parts {
            let offset = PAGE as u64 + part.start - self.start;
            match &program {
                Some(program) => copy(program, part, file, offset)?,
                None => file.write_all_at(part.bytes(), offset)?,
            }
        }
        Ok(())
    }
}

impl Part {
    fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    fn bytes(&self) -> &[u8] {
        let bytes = std::ptr::with_exposed_provenance::<u8>(self.start as usize);
        // SAFETY: the range contains code and constants of this process, which stay mapped,
        // readable and unchanged as long as the function can be called.
        unsafe { std::slice::from_raw_parts(bytes, (self.end - self.start) as usize) }
    }
}

/// Copies a segment of the program's file to another file, at `offset`.
fn copy(program: &File, part: &Part, file: &File, offset: u64) -> io::Result<()> {
    let mut piece = vec![0; PAGE];
    let mut copied = 0;
    while copied < part.end - part.start {
        let len = PAGE.min((part.end - part.start - copied) as usize);
        program.read_exact_at(&mut piece[..len], part.offset + copied)?;
        file.write_all_at(&piece[..len], offset + copied)?;
        copied += len as u64;
    }
    Ok(())
}

/// Callback of `dl_iterate_phdr`: checks a loaded file. Returns 1, which ends the iteration, if the
/// file contains the address.
///
/// # Safety
/// `info` comes from the loader, and `finder` points to a [`Finder`] that nothing else uses.
unsafe extern "C" fn visit_file(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    finder: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes the loader's `info` and a `finder` that nothing else uses.
    let (info, finder) = unsafe { (&*info, &mut *finder.cast::<Finder>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader reports the address and the number of its headers, which stay valid while
    // the file is loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let parts = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD)
        .filter(|header| header.p_flags & (libc::PF_R | libc::PF_W) == libc::PF_R)
        .map(|header| {
            let start = info.dlpi_addr.wrapping_add(header.p_vaddr);
            Part {
                start,
                end: start.saturating_add(header.p_filesz),
                offset: header.p_offset,
            }
        });
    let parts: Vec<Part> = parts.collect();
    let is_wanted = parts.iter().any(|part| part.contains(finder.address));
    if is_wanted {
        finder.parts = parts;
        // The executable's name is empty.
        // SAFETY: if not null, the name is a NUL-terminated string of the loader.
        finder.is_program = !info.dlpi_name.is_null() && unsafe { *info.dlpi_name } == 0;
    }
    c_int::from(is_wanted)
}
