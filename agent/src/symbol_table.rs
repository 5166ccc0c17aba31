//! Looks up functions in a loaded library's own symbol tables. `dlsym` may allocate, and is itself
//! one of the functions that are looked up.

mod library;

#[cfg(not(test))]
pub use library::{Exported, Library};

use core::ffi::{CStr, c_char, c_void};
use core::ptr::null_mut;
use core::slice::from_raw_parts;

const ET_EXEC: u16 = 2;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Upper bound of the number of symbols, far more than a C library or a sanitizer has.
const MAX_SYMBOLS: u32 = 1 << 16;

/// Entry of the symbol table (ELF-64 gABI).
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Returns the address of a function in the same library as `known`; null if there is none.
///
/// # Safety
/// The library stays loaded.
pub unsafe fn function_in_library_of(known: *const c_void, name: &CStr) -> *mut c_void {
    // SAFETY: zeros are a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: the call accepts any address, and fills a structure of ours.
    if unsafe { libc::dladdr(known, &mut info) } == 0 {
        return null_mut();
    }
    // SAFETY: the library stays loaded and begins with its ELF header; the loader has used its
    // tables.
    unsafe { look_up(info.dli_fbase as u64, name) }.unwrap_or(null_mut())
}

/// Returns the size in bytes of a function; `None` if it is not exported.
///
/// # Safety
/// The library stays loaded.
pub unsafe fn size_of_function(function: *const c_void) -> Option<u64> {
    // SAFETY: zeros are a valid `Dl_info`.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: the call accepts any address, and fills a structure of ours.
    if function.is_null() || unsafe { libc::dladdr(function, &mut info) } == 0 {
        return None;
    }
    let base = info.dli_fbase as u64;
    // SAFETY: the library stays loaded and begins with its ELF header.
    let symbol = unsafe { find(base, |symbol, _| address(base, symbol) == function as u64) }?;
    Some(symbol.size)
}

/// Returns the address and size of an exported symbol.
///
/// # Safety
/// A loaded library begins at `base` and stays loaded during the call.
pub unsafe fn find_exported(base: u64, name: &CStr) -> Option<(u64, u64)> {
    // SAFETY: a loaded library begins at `base`.
    let symbol = unsafe { find_by_name(base, name) }?;
    Some((address(base, symbol), symbol.size))
}

/// Returns the address of a symbol. The table of a program at fixed addresses has addresses, others
/// have offsets.
fn address(base: u64, symbol: &Symbol) -> u64 {
    if symbol.value >= base {
        symbol.value
    } else {
        base + symbol.value
    }
}

/// Returns the address of a symbol of a library.
///
/// # Safety
/// A loaded library begins at `base` and stays loaded.
unsafe fn look_up(base: u64, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a loaded library begins at `base`.
    let symbol = unsafe { find_by_name(base, name) }?;
    Some((base + symbol.value) as *mut c_void)
}

/// Returns the symbol with a name.
///
/// # Safety
/// A loaded library begins at `base` and stays loaded.
unsafe fn find_by_name(base: u64, name: &CStr) -> Option<&'static Symbol> {
    // SAFETY: a loaded library begins at `base`; names are in its string table.
    unsafe {
        find(base, |symbol, strings| {
            let text = (strings + u64::from(symbol.name)) as *const c_char;
            CStr::from_ptr(text) == name
        })
    }
}

/// Returns the first defined symbol for which `is_wanted` returns true. `is_wanted` is also passed
/// the address of the string table.
///
/// # Safety
/// A loaded library begins at `base` and stays loaded.
unsafe fn find(base: u64, is_wanted: impl Fn(&Symbol, u64) -> bool) -> Option<&'static Symbol> {
    // SAFETY: the tables of a loaded library are complete, with the lengths that they state.
    unsafe {
        let dynamic = dynamic_section(base)?;
        // glibc's loader has converted the values of the dynamic section into addresses, musl's has
        // not.
        let table = |tag| match value_of(dynamic, tag)? {
            address if address >= base => Some(address),
            distance => Some(base + distance),
        };
        let strings = table(DT_STRTAB)?;
        let symbols = table(DT_SYMTAB)? as *const Symbol;
        let count = match table(DT_HASH) {
            Some(hash) => *(hash as *const u32).add(1),
            None => count_by_gnu_hash(table(DT_GNU_HASH)? as *const u32),
        };
        let symbols = from_raw_parts(symbols, count.min(MAX_SYMBOLS) as usize);
        let is_defined = |symbol: &&Symbol| symbol.section != 0 && is_wanted(symbol, strings);
        symbols.iter().find(is_defined)
    }
}

/// Returns the dynamic section.
///
/// # Safety
/// A loaded library begins at `base` and stays loaded.
unsafe fn dynamic_section(base: u64) -> Option<*const [u64; 2]> {
    /// Offsets in the ELF header: `e_type`, `e_phoff` and `e_phnum`.
    const TYPE: u64 = 16;
    const HEADERS: u64 = 32;
    const HEADER_COUNT: u64 = 56;
    /// Size of a program header in bytes.
    const HEADER_BYTES: u64 = 56;
    /// Offset of `p_vaddr` in a program header.
    const ADDRESS: u64 = 16;
    // SAFETY: the library begins with an ELF header, which says where the program headers are.
    unsafe {
        let headers = base + *((base + HEADERS) as *const u64);
        let count = *((base + HEADER_COUNT) as *const u16);
        let mut each_header = (0..u64::from(count)).map(|index| headers + index * HEADER_BYTES);
        let header = each_header.find(|at| *(*at as *const u32) == PT_DYNAMIC)?;
        // The headers of a program at fixed addresses have addresses, others have offsets.
        let bias = if *((base + TYPE) as *const u16) == ET_EXEC {
            0
        } else {
            base
        };
        Some((bias + *((header + ADDRESS) as *const u64)) as *const [u64; 2])
    }
}

/// Returns the value of a tag in a dynamic section.
///
/// # Safety
/// `dynamic` is the dynamic section of a library that stays loaded.
unsafe fn value_of(mut dynamic: *const [u64; 2], tag: u64) -> Option<u64> {
    // SAFETY: the section ends with an entry of tag 0.
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

/// Returns the number of symbols: one more than the last index in any chain.
///
/// # Safety
/// `table` is the `DT_GNU_HASH` of a library that stays loaded.
unsafe fn count_by_gnu_hash(table: *const u32) -> u32 {
    // SAFETY: the first words say where the buckets and the chains are.
    unsafe {
        let buckets = *table;
        let first = *table.add(1);
        let bloom = *table.add(2);
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
    fn functions_are_found_in_the_library_of_another() {
        let known = libc::getpid as *const c_void;
        // SAFETY: the C library stays loaded.
        let found = |name| unsafe { function_in_library_of(known, name) };
        assert_eq!(found(c"getpid"), known.cast_mut());
        assert_eq!(found(c"getppid"), libc::getppid as *mut c_void);
        assert!(found(c"no_such_function").is_null());
        // SAFETY: the C library stays loaded.
        assert!(unsafe { function_in_library_of(null_mut(), c"getpid") }.is_null());
    }
}
