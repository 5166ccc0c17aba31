//! Identity of this process, read from `/proc` without using the heap.

use crate::sys::{self, read_file};
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::AtomicU64;
use shm_protocol::clock;
use shm_protocol::layout::{ABI_VERSION, AgentMemory, HEADER_BYTES, IDENTITY_OFFSET, Identity};
use unwind::elf::Image;

/// Addresses of the agent's own memory.
struct Memory(UnsafeCell<AgentMemory>);
// SAFETY: the addresses are written at start-up, while the process has one thread, and only read
// afterwards.
unsafe impl Sync for Memory {}
static MEMORY: Memory = Memory(UnsafeCell::new(AgentMemory::NONE));

/// Stores the addresses of the agent's own memory, at start-up.
pub fn start(memory: AgentMemory) {
    // SAFETY: the process has one thread, and nobody reads the addresses yet.
    unsafe { *MEMORY.0.get() = memory };
}

/// Returns field 22 of `/proc/self/stat`, in the time of this process's time namespace. The command
/// in field 2 may contain anything, so fields are counted from the last parenthesis.
pub fn start_time() -> u64 {
    let mut buffer = [0u8; 1024];
    let text = read_file(c"/proc/self/stat", &mut buffer);
    let Some(end) = text.iter().rposition(|byte| *byte == b')') else {
        return 0;
    };
    let field = text[end + 1..]
        .split(|byte| *byte == b' ')
        .nth(20)
        .unwrap_or_default();
    field.iter().fold(0, |n, digit| {
        n * 10 + u64::from(digit.wrapping_sub(b'0') % 10)
    })
}

/// Returns the kernel's boot id in binary form.
pub fn boot_id() -> [u8; 16] {
    let mut buffer = [0u8; 64];
    let text = read_file(c"/proc/sys/kernel/random/boot_id", &mut buffer);
    shm_protocol::clock::parse_boot_id(text).unwrap_or_default()
}

/// Returns the inode of this process's pid namespace; 0 if not known.
pub fn pid_namespace() -> u64 {
    sys::status(c"/proc/self/ns/pid").map_or(0, |status| status.st_ino)
}

/// Writes the executable's path, and returns its length. Of a path that does not fit, writes the
/// last components, with no slash before them.
fn executable(out: &mut [u8]) -> usize {
    let mut path = [0; libc::PATH_MAX as usize];
    let len = program_path(&mut path);
    let mut end = &path[len.saturating_sub(out.len())..len];
    if end.len() < len {
        let slash = end.iter().position(|byte| *byte == b'/');
        end = &end[slash.map_or(0, |at| at + 1)..];
    }
    out[..end.len()].copy_from_slice(end);
    end.len()
}

/// Returns the executable's build id, from the program headers whose address the kernel passed.
fn executable_build_id() -> Option<&'static [u8]> {
    // SAFETY: only reads the auxiliary vector.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) };
    // The headers lie in the file's first page, after the ELF header.
    let start = headers & !4095;
    // SAFETY: the executable's first page is readable and stays mapped as long as the process runs.
    unsafe { Image::at(start, u64::MAX >> 1) }?.build_id()
}

/// Copies the path of the program. Returns its length; 0 if it is unknown.
///
/// If the dynamic loader was executed, and told to load the program, the kernel knows only the
/// loader. The kernel then gives no base address of a loader, and the loader puts the program's
/// name in place of its own.
fn program_path(path: &mut [u8]) -> usize {
    // SAFETY: `getauxval` takes any number.
    let (loader, name) = unsafe {
        (
            libc::getauxval(libc::AT_BASE),
            libc::getauxval(libc::AT_EXECFN),
        )
    };
    if loader != 0 || name == 0 {
        return sys::read_link(c"/proc/self/exe", path);
    }
    // SAFETY: the kernel or the loader gives a terminated string that lives as long as the process.
    let name = unsafe { CStr::from_ptr(name as *const libc::c_char) }.to_bytes();
    let start = if name.starts_with(b"/") {
        0
    } else {
        sys::read_link(c"/proc/self/cwd", path)
    };
    let relative = name.strip_prefix(b"./").unwrap_or(name);
    let separator: &[u8] = if start > 1 { b"/" } else { b"" };
    let mut end = start;
    for part in [separator, relative] {
        let Some(room) = path.get_mut(end..end + part.len()) else {
            return 0;
        };
        room.copy_from_slice(part);
        end += part.len();
    }
    end
}

/// Describes this process in a new segment of `bytes` bytes. Writes everything but the magic, which
/// it returns: the caller stores it last.
///
/// # Safety
/// `base` is the view of a new segment, which is writable, is never unmapped, and is written by
/// nobody else.
pub unsafe fn write(
    base: *mut u8,
    bytes: usize,
    start_time: u64,
    forked_from: u32,
) -> &'static AtomicU64 {
    // SAFETY: `base` is a writable view that nobody else writes. The identity lies in it and is all
    // zeros, which is valid.
    let identity = unsafe { &mut *base.add(IDENTITY_OFFSET).cast::<Identity>() };
    identity.abi_version = ABI_VERSION;
    identity.header_bytes = HEADER_BYTES as u32;
    identity.segment_bytes = bytes as u64;
    identity.pid = sys::pid();
    // SAFETY: the call has no arguments and cannot fail.
    identity.uid = unsafe { libc::geteuid() };
    identity.start_time = start_time;
    identity.boot_id = boot_id();
    identity.created_unix_ns = clock::unix_ns();
    identity.created_ns = super::time::now_ns();
    identity.allocator = u32::from(crate::backend::is_system());
    identity.forked_from = forked_from;
    identity.pid_namespace = pid_namespace();
    let comm = read_file(c"/proc/self/comm", &mut identity.comm);
    let len = comm.strip_suffix(b"\n").unwrap_or(comm).len();
    identity.comm[len.min(16)..].fill(0);
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    identity.agent_version[..version.len()].copy_from_slice(version);
    identity.exe_len = executable(&mut identity.exe) as u32;
    let id = executable_build_id().unwrap_or_default();
    let id = &id[..id.len().min(32)];
    identity.exe_build_id[..id.len()].copy_from_slice(id);
    identity.exe_build_id_len = id.len() as u32;
    let (mode, filters) = crate::seccomp::at_start();
    identity.seccomp_mode = mode;
    identity.seccomp_filters = filters;
    identity.heap = crate::range::globals(crate::backend::is_system());
    // SAFETY: the addresses are written at start-up, before the first segment is created, and only
    // read since.
    identity.agent_memory = unsafe { *MEMORY.0.get() };
    &identity.magic
}
