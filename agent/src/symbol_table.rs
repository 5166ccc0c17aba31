//! Looks up functions of a loaded library in its own tables, without `dlsym`, which may allocate,
//! and which is itself one of the functions looked for.

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
/// More than a C library or a sanitizer has, by far.
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

/// Size of an exported function, according to its library; `None`: it is none.
///
/// # Safety
/// The library stays loaded.
pub unsafe fn size_of_function(function: *const c_void) -> Option<u64> {
    // SAFETY: all zero is a valid Dl_info.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: any address will do, and a structure to fill.
    if function.is_null() || unsafe { libc::dladdr(function, &mut info) } == 0 {
        return None;
    }
    let base = info.dli_fbase as u64;
    // SAFETY: as in `function_beside`.
    let symbol = unsafe { find(base, |symbol, _| address(base, symbol) == function as u64) }?;
    Some(symbol.size)
}

/// Address and size of what a library exports by this name.
///
/// # Safety
/// A loaded library begins at `base`, and stays meanwhile.
pub unsafe fn exported(base: u64, name: &CStr) -> Option<(u64, u64)> {
    // SAFETY: the caller's.
    let found = unsafe { named(base, name) }?;
    Some((address(base, found), found.size))
}

/// A program at fixed addresses has them in its table.
fn address(base: u64, symbol: &Symbol) -> u64 {
    match symbol.value >= base {
        true => symbol.value,
        false => base + symbol.value,
    }
}

/// # Safety
/// A loaded library that stays begins at `base`.
unsafe fn look_up(base: u64, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the caller's.
    let found = unsafe { named(base, name) }?;
    Some((base + found.value) as *mut c_void)
}

/// # Safety
/// That of [`look_up`].
unsafe fn named(base: u64, name: &CStr) -> Option<&'static Symbol> {
    // SAFETY: the caller's; the names are in the library's table of strings.
    unsafe {
        find(base, |symbol, strings| {
            let at = (strings + u64::from(symbol.name)) as *const c_char;
            CStr::from_ptr(at) == name
        })
    }
}

/// The first symbol of a library's own that `is_it`, which gets the address of the table of
/// strings too.
///
/// # Safety
/// A loaded library that stays begins at `base`.
unsafe fn find(base: u64, is_it: impl Fn(&Symbol, u64) -> bool) -> Option<&'static Symbol> {
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
        let symbols = from_raw_parts(symbols, count.min(MAX_SYMBOLS) as usize);
        let own = |symbol: &&Symbol| symbol.section != 0 && is_it(symbol, strings);
        symbols.iter().find(own)
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
        // A program at fixed addresses has those in its headers.
        let bias = if *((base + 16) as *const u16) == ET_EXEC {
            0
        } else {
            base
        };
        Some((bias + *((header + 16) as *const u64)) as *const [u64; 2])
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
    fn functions_are_found_beside_others() {
        let known = libc::getpid as *const c_void;
        // SAFETY: the C library stays loaded.
        let found = |name| unsafe { function_beside(known, name) };
        assert_eq!(found(c"getpid"), known.cast_mut());
        assert_eq!(found(c"getppid"), libc::getppid as *mut c_void);
        assert!(found(c"no_such_function").is_null());
        // SAFETY: as above.
        assert!(unsafe { function_beside(null_mut(), c"getpid") }.is_null());
    }
}
