//! Image of this program's own code, which can be mapped at any address.
//!
//! The compiler generates position-independent code. So a function that calls nothing outside this
//! program's file and changes no variables works wherever the file's code and constants are mapped
//! together.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::arch;

/// Maximum size of an image in bytes: more than this program has.
const MAX_IMAGE_BYTES: u64 = 256 << 20;
/// Maximum page size of any kernel in bytes.
pub const PAGE: usize = 64 << 10;
/// Page size that instructions use for page-relative addresses, in bytes.
const CODE_PAGE: u64 = 4 << 10;

/// Code and constants of the file that contains a function. Data that the loader relocates and
/// makes read-only is excluded: it contains addresses of this process, which must not be disclosed.
/// A call through one of them fails in the copy instead of running something else.
pub struct Image {
    parts: Vec<Part>,
    is_program: bool,
    start: u64,
    end: u64,
    function: u64,
}

/// Segment of the file: its addresses and its file offset.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    end: u64,
    offset: u64,
}

/// Segments of the file that contains an address.
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
        // SAFETY: `look_at` gets the finder, which lives until the call returns and which nothing
        // else uses meanwhile.
        unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut finder).cast()) };
        let mut parts = finder.parts;
        parts.sort_unstable_by_key(|part| part.start);
        let (start, end) = (parts.first()?.start & !(CODE_PAGE - 1), parts.last()?.end);
        let is_apart = parts.windows(2).all(|pair| pair[0].end <= pair[1].start);
        (is_apart && end - start <= MAX_IMAGE_BYTES).then_some(Self {
            parts,
            is_program: finder.is_program,
            start,
            end,
            function,
        })
    }

    /// Returns the size in bytes: a page with the instruction to return to, then the file.
    pub fn len(&self) -> usize {
        (PAGE as u64 + self.end - self.start).next_multiple_of(PAGE as u64) as usize
    }

    /// Returns the offset of the function.
    pub fn entry(&self) -> u64 {
        PAGE as u64 + self.function - self.start
    }

    /// Writes the image to a file of that length, which is zero.
    pub fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(arch::TRAP_CODE, 0)?;
        // Read from the program's file, since most of its code is never used, and mapped pages
        // would become resident.
        let program = self.is_program.then(|| File::open("/proc/self/exe"));
        let program = program.and_then(Result::ok);
        for part in &self.parts {
            let to = PAGE as u64 + part.start - self.start;
            match &program {
                Some(program) => copy(program, part, file, to)?,
                None => file.write_all_at(part.bytes(), to)?,
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
        // SAFETY: the range is code and constants of the running program, which stay mapped,
        // readable and unchanged as long as the function can be called.
        unsafe { std::slice::from_raw_parts(bytes, (self.end - self.start) as usize) }
    }
}

/// Copies a segment of the program's file to another file.
fn copy(program: &File, part: &Part, file: &File, to: u64) -> io::Result<()> {
    let mut piece = vec![0; PAGE];
    let mut done = 0;
    while done < part.end - part.start {
        let len = PAGE.min((part.end - part.start - done) as usize);
        program.read_exact_at(&mut piece[..len], part.offset + done)?;
        file.write_all_at(&piece[..len], to + done)?;
        done += len as u64;
    }
    Ok(())
}

/// Checks a loaded file. Returns a non-zero value if it is the wanted one.
///
/// # Safety
/// `info` comes from the loader, and `finder` points to a [`Finder`] that nothing else uses.
unsafe extern "C" fn look_at(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    finder: *mut c_void,
) -> c_int {
    // SAFETY: the caller passes the loader's `info` and an exclusive `finder`. The loader keeps a
    // file's headers as long as it is loaded.
    let (info, finder) = unsafe { (&*info, &mut *finder.cast::<Finder>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's headers have this address and number.
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
        // SAFETY: if not null, the name is a string of the loader.
        finder.is_program = !info.dlpi_name.is_null() && unsafe { *info.dlpi_name } == 0;
    }
    c_int::from(is_wanted)
}
