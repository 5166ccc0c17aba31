//! Address range of the program itself, which the loader does not report as a whole.
//!
//! If a program's segments have gaps between them, `_dl_find_object` gives the range of one
//! segment, and the ELF header is in another. Linkers leave gaps for the largest pages of a machine
//! (64 KiB on aarch64). Libraries have no gaps: the loader reserves their whole range.

use crate::module::found::FoundModule;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU64, Ordering};

/// First address of the program; 0: not known.
static START: AtomicU64 = AtomicU64::new(0);
/// End of the program's last segment.
static END: AtomicU64 = AtomicU64::new(0);
/// Address of the program's `link_map`; 0: not known.
static LINK_MAP: AtomicU64 = AtomicU64::new(0);

/// Determines the range, at start-up. `find_by_loader` returns the loader's answer for an address.
pub fn find(find_by_loader: impl Fn(u64) -> Option<FoundModule>) {
    // SAFETY: the callback keeps nothing that it is passed.
    unsafe { libc::dl_iterate_phdr(Some(store_first), null_mut()) };
    if let Some(found) = find_by_loader(START.load(Ordering::Relaxed)) {
        LINK_MAP.store(found.link_map, Ordering::Relaxed);
    }
}

/// Stores the range of the first module, which is the program, and ends the iteration.
unsafe extern "C" fn store_first(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    _data: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes the description of a module, with the address of its program
    // headers.
    let (bias, headers) = unsafe {
        let info = &*info;
        if info.dlpi_phdr.is_null() {
            return 1;
        }
        let count = usize::from(info.dlpi_phnum);
        (
            info.dlpi_addr,
            core::slice::from_raw_parts(info.dlpi_phdr, count),
        )
    };
    let loaded = || headers.iter().filter(|h| h.p_type == libc::PT_LOAD);
    let start = loaded().map(|h| h.p_vaddr & !4095).min();
    let end = loaded().map(|h| h.p_vaddr.saturating_add(h.p_memsz)).max();
    if let (Some(start), Some(end)) = (start, end) {
        START.store(bias.wrapping_add(start), Ordering::Relaxed);
        END.store(bias.wrapping_add(end), Ordering::Relaxed);
    }
    1
}

/// Returns the whole range of the module with this `link_map`, if it is the program.
pub fn range(link_map: u64) -> Option<(u64, u64)> {
    let range = (START.load(Ordering::Relaxed), END.load(Ordering::Relaxed));
    (link_map != 0 && link_map == LINK_MAP.load(Ordering::Relaxed)).then_some(range)
}
