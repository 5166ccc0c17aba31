//! System calls and memory, each with its `unsafe` once. Depends on no other module.

mod text;

pub use text::Text;

use core::ffi::{CStr, c_int, c_long, c_void};
use core::mem::zeroed;
use core::ptr::{null_mut, without_provenance_mut};
use core::sync::atomic::{AtomicBool, Ordering};

/// Largest page of the machines that we run on.
pub const PAGE: usize = if cfg!(target_arch = "aarch64") {
    65536
} else {
    4096
};

/// The calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: glibc's `errno` is a word of the calling thread, there as long as it runs.
    unsafe { *libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}

/// The process id, in the process's own namespace. A system call.
pub fn pid() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getpid() as u32 }
}

/// A limit of the process, in bytes; `u64::MAX`: none. Changes `errno`.
pub fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    // SAFETY: all zero is a valid rlimit.
    let mut limit: libc::rlimit = unsafe { zeroed() };
    // SAFETY: the call fills the struct.
    match unsafe { libc::getrlimit(resource, &mut limit) } {
        0 => limit.rlim_cur,
        _ => libc::RLIM_INFINITY,
    }
}

/// Bytes of the machine's memory; `u64::MAX`: not known. Changes `errno`.
pub fn memory() -> u64 {
    // SAFETY: integers only, so zero is a value.
    let mut info: libc::sysinfo = unsafe { zeroed() };
    // SAFETY: a structure to fill.
    match unsafe { libc::sysinfo(&mut info) } {
        0 => info.totalram.saturating_mul(u64::from(info.mem_unit)),
        _ => u64::MAX,
    }
}

unsafe extern "C" {
    /// POSIX.1-2001.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// While this lives, `pthread_cancel` does not end the calling thread. Functions that open, read or
/// wait are cancellation points, and those of an allocator must not be: a program that allocates
/// while it holds a lock counts on releasing it.
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    /// From now on.
    pub fn begin() -> Self {
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: a state that exists, and a word to fill.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that it had.
        unsafe { pthread_setcancelstate(self.before, null_mut()) };
    }
}

/// Contents of a file, as far as they fit into the buffer. Empty if it cannot be read. Changes
/// `errno`.
pub fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    let mut len = 0;
    read_through(path, buffer, |text| {
        len = text.len();
        0
    });
    &buffer[..len]
}

/// Reads a file through the buffer: `seen` gets what is in it, and says how much of that it is
/// done with. Ends where that is nothing though the buffer is full. Changes `errno`.
pub fn read_through(path: &CStr, buffer: &mut [u8], mut seen: impl FnMut(&[u8]) -> usize) {
    let _uncancelled = Uncancelled::begin();
    // SAFETY: a terminated path; the descriptor is ours until it is closed here; `read` writes
    // within the rest of the buffer.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return;
        }
        let mut len = 0;
        while len < buffer.len() {
            let n = libc::read(fd, buffer[len..].as_mut_ptr().cast(), buffer.len() - len);
            if n <= 0 {
                break;
            }
            len += n as usize;
            let done = seen(&buffer[..len]).min(len);
            buffer.copy_within(done..len, 0);
            len -= done;
        }
        libc::close(fd);
    }
}

/// Copies the target of a symbolic link into the buffer; its length, 0 if it cannot be read.
/// Changes `errno`.
pub fn read_link(link: &CStr, buffer: &mut [u8]) -> usize {
    // SAFETY: a terminated path; at most the buffer's length is written.
    let len = unsafe { libc::readlink(link.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(len).unwrap_or(0)
}

/// Status of a file, following links. Changes `errno`.
pub fn status(path: &CStr) -> Option<libc::stat> {
    // SAFETY: integers only, so zero is a value.
    let mut status: libc::stat = unsafe { zeroed() };
    // SAFETY: a terminated path, and a structure to fill.
    (unsafe { libc::stat(path.as_ptr(), &mut status) } == 0).then_some(status)
}

/// Status of a file, of a link itself. Changes `errno`.
pub fn link_status(path: &CStr) -> Option<libc::stat> {
    // SAFETY: integers only, so zero is a value.
    let mut status: libc::stat = unsafe { zeroed() };
    // SAFETY: a terminated path, and a structure to fill.
    (unsafe { libc::lstat(path.as_ptr(), &mut status) } == 0).then_some(status)
}

/// Removes a file. Changes `errno`.
pub fn unlink(path: &CStr) {
    // SAFETY: a terminated path.
    unsafe { libc::unlink(path.as_ptr()) };
}

/// Address of a symbol in the program's search order; null if there is none. Calls the loader.
///
/// In vain it allocates the loader's message from the program's heap, and the loader keeps a
/// pointer into it, which outlives it: recorded, that hides the loss of an object that comes to lie
/// there. So it is for names that may be missing only before a session can begin; after that, a
/// weak reference (`glibc_function!`) asks nobody.
pub fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated name and a handle that is always valid. A failure is taken back, so
    // that the program does not find it.
    unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        if found.is_null() {
            libc::dlerror();
        }
        found
    }
}

/// Address of a symbol in the libraries after this one; null if there is none. Calls the loader.
pub fn next_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated name and a handle that is always valid.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Ends the process at once: no destructors, no handlers, no notification.
pub fn end(code: c_int) -> ! {
    loop {
        // SAFETY: ends the process; no memory is passed.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

/// mmap(2). Sets `errno`, unlike `libc::mmap`, which `wrapped.rs` replaces.
///
/// Memory that is to be written to is mapped without `MAP_NORESERVE`, which jemalloc adds where the
/// kernel overcommits: a request for more than the machine has is refused then, as with glibc, not
/// granted until the program touches it and is killed.
///
/// # Safety
/// With `MAP_FIXED`, the memory that is mapped there is the caller's.
pub unsafe fn map(
    at: *mut c_void,
    bytes: usize,
    access: c_int,
    flags: c_int,
    file: c_int,
    offset: i64,
) -> *mut c_void {
    let flags = match access & libc::PROT_WRITE {
        0 => flags,
        _ => flags & !libc::MAP_NORESERVE,
    };
    let [access, flags, file] = [access, flags, file].map(c_long::from);
    // SAFETY: the caller's.
    let result = unsafe { libc::syscall(libc::SYS_mmap, at, bytes, access, flags, file, offset) };
    without_provenance_mut(result as usize)
}

/// New private memory, all zero and not backed by memory until it is touched; null if none is
/// available, and `errno` says why.
pub fn map_private(bytes: usize) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: no address is requested, so nothing that is mapped is replaced.
    let at = unsafe { map(null_mut(), bytes, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        null_mut()
    } else {
        at
    }
}

/// Whether the process may be ended for `madvise` or `mremap`: it has installed a filter.
static IS_FILTERED: AtomicBool = AtomicBool::new(false);

/// From now on, memory may be mapped locked, and no page is known to be locked: finding out takes calls of
/// `madvise`, and avoiding it of `mremap`.
pub fn note_filter() {
    IS_FILTERED.store(true, Ordering::Relaxed);
}

/// Like [`map_private`], for much memory with `access`, near `hint` if possible, where the process
/// may have all that it maps locked (`mlockall` with `MCL_FUTURE`): then the kernel would back the
/// whole mapping with memory at once, which takes milliseconds, or refuse it. What a mapping grows
/// by is as its first page is, so one page is mapped, unlocked if need be, and enlarged. Works from
/// Linux 2.6 on.
pub fn map_unlocked(hint: *mut c_void, bytes: usize, access: c_int) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    if IS_FILTERED.load(Ordering::Relaxed) {
        // SAFETY: a new mapping where nothing is.
        let whole = unsafe { map(hint, bytes, access, flags, -1, 0) };
        return if whole == libc::MAP_FAILED {
            null_mut()
        } else {
            whole
        };
    }
    // SAFETY: a new mapping where nothing is, which no other thread knows.
    unsafe {
        let first = map(hint, PAGE, access, flags, -1, 0);
        if first == libc::MAP_FAILED {
            return null_mut();
        }
        if is_locked(first) {
            libc::munlock(first, PAGE);
        }
        let whole = libc::mremap(first, PAGE, bytes, libc::MREMAP_MAYMOVE);
        if whole != libc::MAP_FAILED {
            return whole;
        }
        let why = errno();
        libc::munmap(first, PAGE);
        set_errno(why);
        null_mut()
    }
}

/// Whether a page is known to be locked in memory: then the kernel does not give it up. Changes `errno`.
///
/// # Safety
/// The page is the caller's, and nothing is in it but zeros or what its file has.
pub unsafe fn is_locked(page: *mut c_void) -> bool {
    if IS_FILTERED.load(Ordering::Relaxed) {
        return false;
    }
    // SAFETY: the caller's: it comes back as it was.
    let result = unsafe { libc::syscall(libc::SYS_madvise, page, PAGE, libc::MADV_DONTNEED) };
    result != 0 && errno() == libc::EINVAL
}

/// Puts new private memory in the place of a mapping; whether it could.
///
/// # Safety
/// The mapping is the caller's, and nobody relies on what is in it.
pub unsafe fn cover(at: *mut c_void, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the caller's.
    unsafe { libc::mmap(at, bytes, access, flags, -1, 0) != libc::MAP_FAILED }
}

/// Zeroed memory for a moment.
pub struct Pages {
    at: *mut c_void,
    bytes: usize,
}

impl Pages {
    /// Memory of this size; `None` if there is none to be had.
    pub fn new(bytes: usize) -> Option<Self> {
        let at = map_private(bytes);
        (!at.is_null()).then_some(Self { at, bytes })
    }

    /// The memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a mapping of this size that this value owns; zero bytes are bytes.
        unsafe { core::slice::from_raw_parts_mut(self.at.cast(), self.bytes) }
    }

    /// The memory as an array.
    ///
    /// # Safety
    /// Any bytes are a `T`, and a page is aligned for it.
    pub unsafe fn array<T>(&mut self) -> &mut [T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: a mapping of at least this size that this value owns; the rest is the caller's.
        unsafe { core::slice::from_raw_parts_mut(self.at.cast(), count) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: a mapping that this value alone owned.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}
