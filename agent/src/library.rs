//! File and address range of this library, as the loader knows them.

use crate::arch;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::{offset_of, size_of};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Path of our file, as the loader knows it; null before [`find`].
static PATH: AtomicPtr<c_char> = AtomicPtr::new(null_mut());
/// First address of this library.
static START: AtomicU64 = AtomicU64::new(0);
/// End of this library's last segment.
static END: AtomicU64 = AtomicU64::new(0);
/// Offset from a thread pointer to the thread's copy of our thread-local variables; 0 if not known.
static VARIABLES: AtomicU64 = AtomicU64::new(0);
/// Size of the thread-local variables, in bytes.
static VARIABLES_BYTES: AtomicU64 = AtomicU64::new(0);

/// Stores what the loader reports about this library. Called at start-up.
pub fn find() {
    // SAFETY: the callback keeps nothing that it is passed.
    unsafe { libc::dl_iterate_phdr(Some(store_own), null_mut()) };
}

/// Returns the path of our file according to the loader; empty if it has none.
pub fn path() -> &'static CStr {
    let path = PATH.load(Ordering::Relaxed);
    if path.is_null() {
        return c"";
    }
    // SAFETY: a terminated string that the loader keeps while the module is loaded; a preloaded
    // library is never unloaded.
    unsafe { CStr::from_ptr(path) }
}

/// Returns our library's first address and the end of its last segment.
pub fn bounds() -> (u64, u64) {
    (START.load(Ordering::Relaxed), END.load(Ordering::Relaxed))
}

/// Returns the offset from a thread pointer to the thread's copy of our thread-local variables, and
/// their size in bytes; 0 if not known.
pub fn variables() -> (u64, u64) {
    let at = VARIABLES.load(Ordering::Relaxed);
    (at, VARIABLES_BYTES.load(Ordering::Relaxed))
}

/// Stores what the loader reports about the module that contains this code, and ends the iteration
/// there.
unsafe extern "C" fn store_own(
    info: *mut libc::dl_phdr_info,
    size: usize,
    _: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes the description of a module, with the address of its program
    // headers.
    let (info, headers) = unsafe {
        let info = &*info;
        if info.dlpi_phdr.is_null() {
            return 0;
        }
        let count = usize::from(info.dlpi_phnum);
        (info, core::slice::from_raw_parts(info.dlpi_phdr, count))
    };
    let loaded = || headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
    let start = loaded().map(|h| h.p_vaddr & !4095).min().unwrap_or(0);
    let end = loaded().map(|h| h.p_vaddr.saturating_add(h.p_memsz)).max();
    let start = info.dlpi_addr.wrapping_add(start);
    let end = info.dlpi_addr.wrapping_add(end.unwrap_or(0));
    if !(start..end).contains(&((&raw const START).addr() as u64)) {
        return 0;
    }
    PATH.store(info.dlpi_name.cast_mut(), Ordering::Relaxed);
    START.store(start, Ordering::Relaxed);
    END.store(end, Ordering::Relaxed);
    let variables = headers.iter().find(|h| h.p_type == libc::PT_TLS);
    let has_tls_data = size >= offset_of!(libc::dl_phdr_info, dlpi_tls_data) + size_of::<usize>();
    if let Some(variables) = variables
        && has_tls_data
        && !info.dlpi_tls_data.is_null()
    {
        let at = info.dlpi_tls_data.addr() as u64;
        VARIABLES.store(at.wrapping_sub(arch::thread_pointer()), Ordering::Relaxed);
        VARIABLES_BYTES.store(variables.p_memsz, Ordering::Relaxed);
    }
    1
}
