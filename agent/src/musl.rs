//! The C library musl, with which the agent loads and does nothing.
//!
//! musl's loader takes itself for every `libc.so.6`, so it loads a library that was linked with glibc, and ends
//! the program if a function is missing. Those that only glibc has are weak references here; one
//! that is null says which C library it is. The agent then stands aside ([`crate::backend`]).

use crate::arch::glibc_function;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::slice::from_raw_parts;

/// glibc's `dlvsym`.
pub type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;
/// A fork handler.
pub type Handler = unsafe extern "C" fn();
/// What `pthread_atfork` is in glibc, for a library with this handle.
pub type RegisterAtfork =
    unsafe extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, *mut c_void) -> c_int;

/// Whether this is the process's C library.
pub fn is_here() -> bool {
    dlvsym().is_none()
}

/// `None` with musl.
pub fn dlvsym() -> Option<Dlvsym> {
    let at = glibc_function!("dlvsym");
    // SAFETY: null, or the function of this name.
    unsafe { transmute::<usize, Option<Dlvsym>>(at) }
}

/// `None` with musl.
pub fn register_atfork() -> Option<RegisterAtfork> {
    let at = glibc_function!("__register_atfork");
    // SAFETY: null, or the function of this name.
    unsafe { transmute::<usize, Option<RegisterAtfork>>(at) }
}

const PT_DYNAMIC: u32 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// More than musl has, by far.
const MAX_SYMBOLS: u32 = 1 << 16;

/// An entry of the symbol table (ELF-64 gABI).
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Address of a function of the C library: looked up in its own tables, since `dlsym`, which
/// would say it, is the one that is looked for. Null if there is none.
pub fn function(name: &CStr) -> *mut c_void {
    // SAFETY: a C library stays loaded.
    unsafe { function_beside(libc::getpid as *const c_void, name) }
}

/// Address of another function of a library that a function is known of, without `dlsym`, which may
/// allocate. Null if there is none.
///
/// # Safety
/// The library stays loaded.
pub unsafe fn function_beside(known: *const c_void, name: &CStr) -> *mut c_void {
    // SAFETY: all zero is a valid Dl_info.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: any address will do, and a structure to fill.
    if unsafe { libc::dladdr(known, &mut info) } == 0 {
        return null_mut();
    }
    // SAFETY: the caller's; a library's header is first, and these tables are in its loaded
    // segments, as the loader has used them.
    unsafe { look_up(info.dli_fbase as u64, name) }.unwrap_or(null_mut())
}

/// # Safety
/// A loaded library that stays begins at `base`.
unsafe fn look_up(base: u64, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the caller's; the tables are as long as they say themselves.
    unsafe {
        let dynamic = dynamic_section(base)?;
        // glibc's loader makes addresses of what is in the dynamic section, musl's leaves it.
        let table = |tag| match value_of(dynamic, tag)? {
            address if address >= base => Some(address),
            distance => Some(base + distance),
        };
        let (strings, symbols) = (table(DT_STRTAB)?, table(DT_SYMTAB)? as *const Symbol);
        let count = match table(DT_HASH) {
            Some(hash) => *(hash as *const u32).add(1),
            None => count_by_gnu_hash(table(DT_GNU_HASH)? as *const u32),
        };
        let named = |symbol: &&Symbol| {
            let at = (strings + u64::from(symbol.name)) as *const c_char;
            symbol.section != 0 && CStr::from_ptr(at) == name
        };
        let symbols = from_raw_parts(symbols, count.min(MAX_SYMBOLS) as usize);
        let found = symbols.iter().find(named)?;
        Some((base + found.value) as *mut c_void)
    }
}

/// # Safety
/// That of [`look_up`].
unsafe fn dynamic_section(base: u64) -> Option<*const [u64; 2]> {
    // SAFETY: an ELF header, and the program headers where it says.
    unsafe {
        let headers = base + *((base + 32) as *const u64);
        let count = *((base + 56) as *const u16);
        let mut all = (0..u64::from(count)).map(|index| headers + index * 56);
        let header = all.find(|at| *(*at as *const u32) == PT_DYNAMIC)?;
        Some((base + *((header + 16) as *const u64)) as *const [u64; 2])
    }
}

/// # Safety
/// That of [`look_up`].
unsafe fn value_of(mut dynamic: *const [u64; 2], tag: u64) -> Option<u64> {
    // SAFETY: an entry of tag 0 ends the section.
    unsafe {
        while (*dynamic)[0] != 0 {
            if (*dynamic)[0] == tag {
                return Some((*dynamic)[1]);
            }
            dynamic = dynamic.add(1);
        }
    }
    None
}

/// Number of symbols: one more than the last in a chain.
///
/// # Safety
/// That of [`look_up`].
unsafe fn count_by_gnu_hash(table: *const u32) -> u32 {
    // SAFETY: buckets and chains lie where the table's four first words say.
    unsafe {
        let (buckets, first, bloom) = (*table, *table.add(1), *table.add(2));
        let bucket = table.add(4 + 2 * bloom as usize);
        let chain = bucket.add(buckets as usize);
        let heads = from_raw_parts(bucket, buckets as usize);
        let mut last = heads.iter().copied().max().unwrap_or(0);
        if last < first {
            return first;
        }
        while *chain.add((last - first) as usize) & 1 == 0 && last < MAX_SYMBOLS {
            last += 1;
        }
        last + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_glibc_its_functions_are_there() {
        assert!(!is_here());
        assert!(register_atfork().is_some());
    }
}
