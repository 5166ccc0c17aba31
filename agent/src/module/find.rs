//! Finds the module that contains an address.

mod program;

use super::found::{FoundModule, LinkMap};
use super::listing::search_maps;
use crate::sys;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

/// glibc's `struct dl_find_object`, with room for what later versions may add.
#[repr(C)]
struct DlFound {
    flags: u64,
    map_start: *mut c_void,
    map_end: *mut c_void,
    link_map: *const LinkMap,
    eh_frame: *mut c_void,
    reserved: [u64; 16],
}

type DlFind = unsafe extern "C" fn(*mut c_void, *mut DlFound) -> c_int;

/// Address of `_dl_find_object`; 0 if the C library has none.
static DL_FIND_OBJECT: AtomicUsize = AtomicUsize::new(0);

/// Looks up `_dl_find_object`, at start-up. Linkers would turn a weak reference into a version
/// requirement on the C library that they saw, and the agent would not load with an older one.
pub fn init() {
    DL_FIND_OBJECT.store(sys::symbol(c"_dl_find_object") as usize, Ordering::Relaxed);
    program::find(|pc| find_by_loader(dl_find_object()?, pc));
}

fn dl_find_object() -> Option<DlFind> {
    let address = DL_FIND_OBJECT.load(Ordering::Relaxed);
    // SAFETY: 0 or the address of a function of this type.
    unsafe { core::mem::transmute::<usize, Option<DlFind>>(address) }
}

/// Returns true if a lookup takes nanoseconds rather than reading a file.
pub fn is_cheap() -> bool {
    dl_find_object().is_some()
}

/// Finds the module that contains `pc`.
pub fn find(pc: u64) -> Option<FoundModule> {
    match dl_find_object() {
        Some(function) => find_by_loader(function, pc),
        None => search_maps(pc),
    }
}

fn find_by_loader(function: DlFind, pc: u64) -> Option<FoundModule> {
    // SAFETY: zeros are a valid `DlFound`.
    let mut result: DlFound = unsafe { core::mem::zeroed() };
    // SAFETY: async-signal-safe according to the glibc manual ("Dynamic Linker Introspection"),
    // with a structure of ours to fill.
    if unsafe { function(pc as *mut c_void, &mut result) } != 0 {
        return None;
    }
    let link_map = result.link_map as u64;
    let reported = (result.map_start as u64, result.map_end as u64);
    let (start, end) = program::range(link_map).unwrap_or(reported);
    // The pointers are not followed here: another thread may be unloading the module.
    Some(FoundModule {
        start,
        end,
        identity: result.eh_frame as u64 ^ link_map.rotate_left(16),
        name: 0,
        link_map,
    })
}
