//! Unwinding with `framehop`, given the sections of the mapped files.

use crate::libgcc;
use crate::maps::{self, Mapped};
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{
    Error, ExplicitModuleSectionInfo, FrameAddress, MayAllocateDuringUnwind, Module, Unwinder,
};
use object::elf::PT_LOAD;
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{LittleEndian, Object, ObjectSection, ReadCache, ReadRef};
use std::fs::File;
use std::ops::Range;
use unwind::Registers;

/// Maximum number of frames of a stack: more than any comparison needs.
const MAX_FRAMES: usize = 20_000;

type Bytes = &'static [u8];

/// A thread's framehop.
pub struct Peer {
    unwinder: UnwinderX86_64<Bytes, MayAllocateDuringUnwind>,
    cache: CacheX86_64<MayAllocateDuringUnwind>,
    files: Vec<Mapped>,
    changes: (u64, u64),
}

/// Stack that framehop found.
pub struct Trace {
    /// Return addresses, like [`libgcc::Trace::frames`].
    pub frames: Vec<u64>,
    /// Error that ended the stack before the outermost frame.
    pub error: Option<Error>,
}

impl Peer {
    pub fn new() -> Self {
        Self {
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new_in(),
            files: Vec::new(),
            changes: (0, 0),
        }
    }

    /// Takes note of libraries loaded and unloaded since.
    pub fn refresh(&mut self) {
        let changes = load_changes();
        if changes == self.changes {
            return;
        }
        self.changes = changes;
        let mut files = maps::read();
        files.retain(|file| file.has_code);
        for gone in self.files.iter().filter(|file| !files.contains(file)) {
            self.unwinder.remove_module(gone.range.start);
        }
        for new in files.iter().filter(|file| !self.files.contains(file)) {
            if let Some(module) = module(new) {
                self.unwinder.add_module(module);
            }
        }
        self.files = files;
    }

    /// Unwinds from `start`. framehop takes every address for a return address unless told
    /// otherwise: libgcc knows which ones a signal interrupted.
    pub fn trace(&mut self, start: &Registers, known: &libgcc::Trace) -> Trace {
        let mut registers = UnwindRegsX86_64::new(start.ip, start.sp, start.fp);
        let mut frames = vec![start.ip];
        let mut at = FrameAddress::from_return_address(start.ip);
        while frames.len() < MAX_FRAMES
            && let Some(address) = at.take()
        {
            let step = self.unwinder.unwind_frame(
                address,
                &mut registers,
                &mut self.cache,
                &mut read_word,
            );
            match step {
                Ok(Some(0)) => return Trace::stopped(frames, Error::ReturnAddressIsNull),
                Ok(Some(ip)) if known.interrupted.contains(&frames.len()) => {
                    frames.push(ip + 1);
                    at = Some(FrameAddress::from_instruction_pointer(ip));
                }
                Ok(Some(ip)) => {
                    frames.push(ip);
                    at = FrameAddress::from_return_address(ip);
                }
                Ok(None) => break,
                Err(error) => return Trace::stopped(frames, error),
            }
        }
        Trace {
            frames,
            error: None,
        }
    }
}

impl Trace {
    fn stopped(frames: Vec<u64>, error: Error) -> Self {
        let error = Some(error);
        Self { frames, error }
    }
}

/// Reads a word of this process, whatever the address.
fn read_word(address: u64) -> Result<u64, ()> {
    let mut word = 0u64;
    let local = libc::iovec {
        iov_base: (&raw mut word).cast(),
        iov_len: 8,
    };
    let remote = libc::iovec {
        iov_base: address as *mut libc::c_void,
        iov_len: 8,
    };
    // SAFETY: writes 8 bytes to `word`; a bad address is refused.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if read == 8 { Ok(word) } else { Err(()) }
}

/// Returns the numbers of libraries ever loaded and unloaded.
fn load_changes() -> (u64, u64) {
    extern "C" fn first(
        info: *mut libc::dl_phdr_info,
        _: usize,
        data: *mut libc::c_void,
    ) -> libc::c_int {
        // SAFETY: the loader passes its record, and we the pair below.
        unsafe { *data.cast() = ((*info).dlpi_adds, (*info).dlpi_subs) };
        1
    }
    let mut changes = (0u64, 0u64);
    // SAFETY: `first` writes a pair.
    unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut changes).cast()) };
    changes
}

fn module(file: &Mapped) -> Option<Module<Bytes>> {
    let sections = if file.name == "[vdso]" {
        sections(memory(file.range.clone()), file)
    } else {
        sections(&ReadCache::new(File::open(&file.name).ok()?), file)
    }?;
    let range = file.range.clone();
    Some(Module::new(
        file.name.clone(),
        range.clone(),
        range.start,
        sections,
    ))
}

fn sections<'data, R: ReadRef<'data>>(
    data: R,
    file: &Mapped,
) -> Option<ExplicitModuleSectionInfo<Bytes>> {
    let elf = ElfFile64::<LittleEndian, R>::parse(data).ok()?;
    let headers = elf.elf_header().program_headers(LittleEndian, data).ok()?;
    let first = headers.iter().find(|h| h.p_type(LittleEndian) == PT_LOAD)?;
    let base_svma = first.p_vaddr(LittleEndian) & !4095;
    let range = |name: &str| {
        let section = elf.section_by_name(name)?;
        Some(section.address()..section.address() + section.size())
    };
    let loaded = |range: &Range<u64>| {
        let shift = file.range.start - base_svma;
        memory(range.start + shift..range.end + shift)
    };
    let (eh_frame_svma, eh_frame_hdr_svma) = (range(".eh_frame"), range(".eh_frame_hdr"));
    Some(ExplicitModuleSectionInfo {
        base_svma,
        text_svma: range(".text"),
        got_svma: range(".got"),
        eh_frame: eh_frame_svma.as_ref().map(loaded),
        eh_frame_hdr: eh_frame_hdr_svma.as_ref().map(loaded),
        eh_frame_svma,
        eh_frame_hdr_svma,
        ..Default::default()
    })
}

/// Returns the mapped bytes, for as long as their module stays.
fn memory(range: Range<u64>) -> Bytes {
    // SAFETY: inside a loaded module, which `refresh` drops when it goes.
    unsafe {
        std::slice::from_raw_parts(range.start as *const u8, (range.end - range.start) as usize)
    }
}
