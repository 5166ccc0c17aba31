//! This program's own code, as bytes that run at any address.
//!
//! The compiler generates code that finds what it needs by relative addresses. So a function that
//! calls nothing outside this program's file and changes no variables works wherever the file's
//! code and constants lie together.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::arch;

/// More than this program's code; a limit for the room that it takes.
const MOST: u64 = 256 << 20;
/// Every kernel's pages are of this size at most.
pub const PAGE: usize = 64 << 10;
/// Instructions may find things by the distance of their pages of this size.
const CODE_PAGE: u64 = 4 << 10;

/// Code and constants of the file that a function is in. Not what is written while the file is
/// loaded, and only read afterwards: that contains addresses of this process, which must not be
/// disclosed; a call through one of them fails there instead of running something else.
pub struct Image {
    parts: Vec<Part>,
    is_program: bool,
    start: u64,
    end: u64,
    function: u64,
}

/// A part of the file: its addresses, and where it lies there.
#[derive(Clone, Copy)]
struct Part {
    start: u64,
    end: u64,
    offset: u64,
}

/// The parts of the file that an address is in.
struct Finder {
    address: u64,
    parts: Vec<Part>,
    is_program: bool,
}

impl Image {
    /// Of the file that `function` is in.
    pub fn of(function: u64) -> Option<Self> {
        let mut finder = Finder {
            address: function,
            parts: Vec::new(),
            is_program: false,
        };
        // SAFETY: `look_at` gets the finder, which lives until the call returns and which nobody
        // else uses meanwhile.
        unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut finder).cast()) };
        let mut parts = finder.parts;
        parts.sort_unstable_by_key(|part| part.start);
        let (start, end) = (parts.first()?.start & !(CODE_PAGE - 1), parts.last()?.end);
        let is_apart = parts.windows(2).all(|pair| pair[0].end <= pair[1].start);
        (is_apart && end - start <= MOST).then_some(Self {
            parts,
            is_program: finder.is_program,
            start,
            end,
            function,
        })
    }

    /// Bytes that it takes: a page with the instruction to return to, then the file.
    pub fn len(&self) -> usize {
        (PAGE as u64 + self.end - self.start).next_multiple_of(PAGE as u64) as usize
    }

    /// Where the function begins.
    pub fn entry(&self) -> u64 {
        PAGE as u64 + self.function - self.start
    }

    /// Writes it to a file of that length, which is zero.
    pub fn write(&self, file: &File) -> io::Result<()> {
        file.write_all_at(arch::TRAP_CODE, 0)?;
        // Most of a program's code is never used. Read from its file, it takes no memory of ours.
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
        // SAFETY: code and constants of the running program, which stay mapped, readable and
        // unchanged as long as the function that lies among them can be called.
        unsafe { std::slice::from_raw_parts(bytes, (self.end - self.start) as usize) }
    }
}

/// Copies a part of the program's file to another file.
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

/// Looks at a loaded file; not zero if it is the one that is looked for.
///
/// # Safety
/// `info` is what the loader gives, `finder` a [`Finder`] that nobody else uses.
unsafe extern "C" fn look_at(
    info: *mut libc::dl_phdr_info,
    _size: libc::size_t,
    finder: *mut c_void,
) -> c_int {
    // SAFETY: as the caller says; the loader keeps a file's headers as long as it is loaded.
    let (info, finder) = unsafe { (&*info, &mut *finder.cast::<Finder>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: as above.
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
        // SAFETY: a string of the loader's, if it gives one.
        finder.is_program = !info.dlpi_name.is_null() && unsafe { *info.dlpi_name } == 0;
    }
    c_int::from(is_wanted)
}
