//! Wrappers of system calls and memory, so that their `unsafe` is in one place.

mod text;

pub use text::Text;

use crate::arch;
use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::zeroed;
use core::ptr::{null_mut, with_exposed_provenance_mut, without_provenance_mut};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Largest page size of the machines that the agent runs on, in bytes.
pub const PAGE: usize = if cfg!(target_arch = "aarch64") {
    65536
} else {
    4096
};

unsafe extern "C" {
    /// syscall(2), which only makes the system call. `libc::syscall` is the function that the agent
    /// exports, which passes calls on to any library that replaces it.
    #[link_name = "__wrap_syscall"]
    pub fn syscall(number: c_long, ...) -> c_long;
    /// dlsym(3) of the loader. `libc::dlsym` is exported by the agent, too.
    #[link_name = "__wrap_dlsym"]
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Distance from the thread pointer to `errno`; 0 before [`find_errno`].
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static ERRNO: AtomicU64 = AtomicU64::new(0);

/// Determines where `errno` is, at start-up: calling `__errno_location` in a forked child would
/// take a page fault for code of the C library that nothing else there needs.
pub fn find_errno() {
    let address = errno_location().expose_provenance() as u64;
    ERRNO.store(
        address.wrapping_sub(arch::thread_pointer()),
        Ordering::Relaxed,
    );
}

fn errno_location() -> *mut c_int {
    // SAFETY: the call has no arguments and cannot fail.
    unsafe { libc::__errno_location() }
}

/// Returns the address of the calling thread's `errno`.
#[inline(always)]
fn errno_address() -> *mut c_int {
    match ERRNO.load(Ordering::Relaxed) {
        0 => errno_location(),
        // C libraries keep `errno` in thread-local storage that exists from the start, or in the
        // thread descriptor: at the same distance in all threads.
        distance => {
            with_exposed_provenance_mut(arch::thread_pointer().wrapping_add(distance) as usize)
        }
    }
}

/// Returns the calling thread's `errno`.
#[inline(always)]
pub fn errno() -> c_int {
    // SAFETY: glibc's `errno` is a word of the calling thread, valid until it exits.
    unsafe { *errno_address() }
}

/// Sets the calling thread's `errno`. Writes only if necessary: each page that a forked child
/// writes to is copied.
#[inline(always)]
pub fn set_errno(value: c_int) {
    let address = errno_address();
    // SAFETY: glibc's `errno` is a word of the calling thread, valid until it exits.
    unsafe {
        if *address != value {
            *address = value;
        }
    }
}

/// Makes system calls that may fail, without changing `errno`: `free` and requests that succeed
/// must not change it.
#[cfg_attr(test, allow(dead_code))]
pub fn keeping_errno<T>(calls: impl FnOnce() -> T) -> T {
    let saved = errno();
    let result = calls();
    set_errno(saved);
    result
}

/// Returns the process id in the process's own namespace. Makes a system call, which only a seccomp
/// filter can make fail; then the result is no valid id.
pub fn pid() -> u32 {
    // SAFETY: the call has no arguments.
    unsafe { libc::getpid() as u32 }
}

/// Returns a limit of the process in bytes; `u64::MAX` if unlimited. Changes `errno`.
pub fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    // SAFETY: zeros are a valid `rlimit`.
    let mut limit: libc::rlimit = unsafe { zeroed() };
    // SAFETY: the call fills a structure of ours.
    match unsafe { libc::getrlimit(resource, &mut limit) } {
        0 => limit.rlim_cur,
        _ => libc::RLIM_INFINITY,
    }
}

/// Returns the size of the machine's memory in bytes; `u64::MAX` if not known. Changes `errno`.
pub fn memory() -> u64 {
    // SAFETY: zeros are a valid `sysinfo`.
    let mut info: libc::sysinfo = unsafe { zeroed() };
    // SAFETY: the call fills a structure of ours.
    match unsafe { libc::sysinfo(&mut info) } {
        0 => info.totalram.saturating_mul(u64::from(info.mem_unit)),
        _ => u64::MAX,
    }
}

unsafe extern "C" {
    /// POSIX.1-2001.
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Guard that keeps `pthread_cancel` from ending the calling thread. Functions that open, read or
/// wait are cancellation points, and those of an allocator must not be: a program that allocates
/// while it holds a lock relies on being able to release it.
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    /// Disables cancellation until the guard is dropped.
    pub fn begin() -> Self {
        const DISABLE: c_int = 1;
        let mut before = 0;
        // SAFETY: a valid state, and a word of ours to fill.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Self { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that the thread had before.
        unsafe { pthread_setcancelstate(self.before, null_mut()) };
    }
}

/// Reads as much of a file as fits into the buffer, with one `read`: for small files in `/proc` and
/// `/sys`, which the kernel returns in one piece. Returns an empty slice if the file cannot be
/// read. Changes `errno`.
pub fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> &'a [u8] {
    let _uncancelled = Uncancelled::begin();
    // SAFETY: a terminated path; a descriptor of our own, closed here; `read` writes to the buffer.
    let len = unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return &[];
        }
        let len = libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len());
        libc::close(fd);
        len
    };
    &buffer[..usize::try_from(len).unwrap_or(0)]
}

/// Reads a file of any size through the buffer. `take` is passed the contents of the buffer, and
/// returns how many bytes of them it has used. Ends if `take` uses none although the buffer is
/// full. Changes `errno`.
pub fn read_through(path: &CStr, buffer: &mut [u8], mut take: impl FnMut(&[u8]) -> usize) {
    let _uncancelled = Uncancelled::begin();
    // SAFETY: a terminated path; a descriptor of our own, closed here; `read` writes to the rest of
    // the buffer.
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
            let taken = take(&buffer[..len]).min(len);
            buffer.copy_within(taken..len, 0);
            len -= taken;
        }
        libc::close(fd);
    }
}

/// Copies the target of a symbolic link into the buffer. Returns its length; 0 if it cannot be
/// read. Changes `errno`.
pub fn read_link(link: &CStr, buffer: &mut [u8]) -> usize {
    // SAFETY: a terminated path, and at most the length of the buffer is written.
    let len = unsafe { libc::readlink(link.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    usize::try_from(len).unwrap_or(0)
}

/// Returns the status of a file; follows symbolic links. Changes `errno`.
pub fn status(path: &CStr) -> Option<libc::stat> {
    // SAFETY: zeros are a valid `stat`.
    let mut status: libc::stat = unsafe { zeroed() };
    // SAFETY: the path is terminated, and the call fills a structure of ours.
    (unsafe { libc::stat(path.as_ptr(), &mut status) } == 0).then_some(status)
}

/// Returns the status of a file or of a symbolic link itself. Changes `errno`.
pub fn link_status(path: &CStr) -> Option<libc::stat> {
    // SAFETY: zeros are a valid `stat`.
    let mut status: libc::stat = unsafe { zeroed() };
    // SAFETY: the path is terminated, and the call fills a structure of ours.
    (unsafe { libc::lstat(path.as_ptr(), &mut status) } == 0).then_some(status)
}

/// Removes a file. Changes `errno`.
pub fn unlink(path: &CStr) {
    // SAFETY: a terminated path.
    unsafe { libc::unlink(path.as_ptr()) };
}

/// Returns the address of a symbol in the program's search order; null if there is none. Calls the
/// loader.
///
/// A failing lookup allocates the loader's message from the program's heap. The loader keeps a
/// stale pointer to it, which would hide the leak of an object that is allocated there later. So
/// symbols that may be missing must only be looked up before a session can begin; afterwards, weak
/// references (`glibc_function!`) are used.
pub fn symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated name and a handle that is always valid. The message of a failure is
    // cleared, so that the program does not see it.
    unsafe {
        let address = dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        if address.is_null() {
            libc::dlerror();
        }
        address
    }
}

/// Returns the address of a symbol in the libraries after this one; null if there is none. Calls
/// the loader.
pub fn next_symbol(name: &CStr) -> *mut c_void {
    // SAFETY: a terminated name and a handle that is always valid.
    unsafe { dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// Ends the process immediately, without destructors and handlers.
pub fn end(code: c_int) -> ! {
    loop {
        // SAFETY: ends the process; no memory is passed.
        unsafe { syscall(libc::SYS_exit_group, code) };
    }
}

/// mmap(2). Sets `errno`, unlike `libc::mmap`, which `wrapped.rs` replaces.
///
/// Writable memory is mapped without `MAP_NORESERVE`, which jemalloc adds if the kernel
/// overcommits. So a request for more than the machine has is refused, as with glibc, rather than
/// granted until the program touches the memory and is killed.
///
/// # Safety
/// With `MAP_FIXED`, nobody else uses the memory that is already mapped there.
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
    // SAFETY: the call replaces no memory that anybody else uses.
    let result = unsafe { syscall(libc::SYS_mmap, at, bytes, access, flags, file, offset) };
    without_provenance_mut(result as usize)
}

/// Maps private memory, which the kernel does not count as committed if it overcommits. Returns
/// `MAP_FAILED` if there is none.
#[cfg_attr(test, allow(dead_code))]
pub fn map_unreserved(bytes: usize) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let [access, flags, file] = [access, flags, -1].map(c_long::from);
    let at: *mut c_void = null_mut();
    // SAFETY: no address is requested, so no mapping is replaced.
    let result = unsafe { syscall(libc::SYS_mmap, at, bytes, access, flags, file, 0) };
    without_provenance_mut(result as usize)
}

/// Maps private memory, which is zero and becomes resident when it is touched. Returns null if that
/// fails, with the reason in `errno`.
pub fn map_private(bytes: usize) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: no address is requested, so no mapping is replaced.
    let at = unsafe { map(null_mut(), bytes, access, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        null_mut()
    } else {
        at
    }
}

/// True if the process may be killed for `madvise` or `mremap`, because it has installed a seccomp
/// filter.
static IS_FILTERED: AtomicBool = AtomicBool::new(false);

/// Makes [`map_unlocked`] and [`is_locked`] avoid `madvise` and `mremap`: memory may then be
/// locked, and no page is known to be.
pub fn record_filter() {
    IS_FILTERED.store(true, Ordering::Relaxed);
}

/// Like [`map_private`], for large mappings with `access`, near `hint` if possible. If the process
/// has locked its future mappings (`mlockall` with `MCL_FUTURE`), the kernel would back the whole
/// mapping immediately, which takes milliseconds, or refuse it. A mapping that grows keeps the
/// properties of its first page. So one page is mapped, unlocked if necessary, and enlarged. Works
/// on Linux 2.6 and newer.
pub fn map_unlocked(hint: *mut c_void, bytes: usize, access: c_int) -> *mut c_void {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    if IS_FILTERED.load(Ordering::Relaxed) {
        // SAFETY: the new mapping replaces nothing.
        let whole = unsafe { map(hint, bytes, access, flags, -1, 0) };
        return if whole == libc::MAP_FAILED {
            null_mut()
        } else {
            whole
        };
    }
    // SAFETY: a new mapping, which replaces nothing and whose address no other thread has.
    unsafe {
        let first_page = map(hint, PAGE, access, flags, -1, 0);
        if first_page == libc::MAP_FAILED {
            return null_mut();
        }
        if is_locked(first_page) {
            libc::munlock(first_page, PAGE);
        }
        let whole = libc::mremap(first_page, PAGE, bytes, libc::MREMAP_MAYMOVE);
        if whole != libc::MAP_FAILED {
            return whole;
        }
        let saved = errno();
        libc::munmap(first_page, PAGE);
        set_errno(saved);
        null_mut()
    }
}

/// Returns true if a page is known to be locked: the kernel then refuses to drop it. Changes
/// `errno`.
///
/// # Safety
/// Nobody else writes to the page, and it contains only zeros or what its file has.
pub unsafe fn is_locked(page: *mut c_void) -> bool {
    if IS_FILTERED.load(Ordering::Relaxed) {
        return false;
    }
    // SAFETY: the kernel fills the page with the same contents again, zeros or its file's.
    let result = unsafe { syscall(libc::SYS_madvise, page, PAGE, libc::MADV_DONTNEED) };
    result != 0 && errno() == libc::EINVAL
}

/// Replaces a mapping by new private memory. Returns false if that fails.
///
/// # Safety
/// Nobody uses the mapping any more, or needs its contents.
pub unsafe fn cover(at: *mut c_void, bytes: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: nobody uses the mapping that is replaced.
    unsafe { libc::mmap(at, bytes, access, flags, -1, 0) != libc::MAP_FAILED }
}

/// Unmaps memory that is not jemalloc's: `libc::munmap` is replaced by `wrapped.rs`, which counts
/// what jemalloc returns. Returns false if that fails. Changes `errno`.
///
/// # Safety
/// Nobody uses the memory any more.
#[inline(always)]
pub unsafe fn unmap(at: *mut c_void, bytes: usize) -> bool {
    // SAFETY: the caller's contract.
    unsafe { syscall(libc::SYS_munmap, at, bytes) == 0 }
}

/// Maps the first `bytes` bytes of a view of a shared file a second time, readable only. Returns
/// null if that fails. Changes `errno`.
///
/// # Safety
/// `view` is a view of a shared file.
#[inline(always)]
pub unsafe fn map_again(view: *mut c_void, bytes: usize) -> *mut c_void {
    let may_move = c_long::from(libc::MREMAP_MAYMOVE);
    // SAFETY: an old size of 0 requests a second mapping, which replaces none. Nobody else has its
    // address.
    unsafe {
        let second = syscall(libc::SYS_mremap, view, 0_usize, bytes, may_move);
        let second: *mut c_void = without_provenance_mut(second as usize);
        if second == libc::MAP_FAILED {
            return null_mut();
        }
        if syscall(
            libc::SYS_mprotect,
            second,
            bytes,
            c_long::from(libc::PROT_READ),
        ) != 0
        {
            unmap(second, bytes);
            return null_mut();
        }
        second
    }
}

/// Zeroed memory for temporary use.
pub struct Pages {
    at: *mut c_void,
    bytes: usize,
}

impl Pages {
    /// Maps memory of this size; `None` if that fails.
    pub fn new(bytes: usize) -> Option<Self> {
        let at = map_private(bytes);
        (!at.is_null()).then_some(Self { at, bytes })
    }

    /// Returns the memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a mapping of this size that this value owns.
        unsafe { core::slice::from_raw_parts_mut(self.at.cast(), self.bytes) }
    }

    /// Returns the memory as an array.
    ///
    /// # Safety
    /// Any bytes are a valid `T`, and a page is sufficiently aligned for it.
    pub unsafe fn array<T>(&mut self) -> &mut [T] {
        let count = self.bytes / size_of::<T>();
        // SAFETY: a mapping of at least this size that this value owns; any bytes are valid and
        // aligned.
        unsafe { core::slice::from_raw_parts_mut(self.at.cast(), count) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: a mapping that only this value owned.
        unsafe { libc::munmap(self.at, self.bytes) };
    }
}
