//! Functions of a loaded library by its hash table, in the versions that a program linked today
//! gets.

use super::{DT_GNU_HASH, DT_STRTAB, DT_SYMTAB};
use core::ffi::CStr;

const DT_SONAME: u64 = 14;
const DT_VERSYM: u64 = 0x6fff_fff0;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
/// Flag of a version that only programs linked long ago get.
const HIDDEN_VERSION: u16 = 0x8000;
/// Longest chain of the hash table that is followed.
const MAX_CHAIN: usize = 4096;

/// A function that a library exports.
#[derive(Clone, Copy, Debug)]
pub struct Exported {
    /// Where it is, or its resolver.
    pub address: u64,
    /// Whether there is a resolver, which says where it is.
    pub is_indirect: bool,
}

/// The tables of a loaded library.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    bias: u64,
    strings: u64,
    symbols: *const super::Symbol,
    /// Versions of the symbols; null if there are none.
    versions: *const u16,
    hash: *const u32,
    /// Offset of its name among the strings; 0 if it has none.
    name: u64,
}

impl Library {
    /// The tables that a dynamic section names; `None` if one is missing.
    ///
    /// # Safety
    /// The dynamic section of a loaded library that stays, and its bias as the loader says.
    pub unsafe fn of(bias: u64, mut dynamic: *const [u64; 2]) -> Option<Self> {
        let mut library = Self {
            bias,
            strings: 0,
            symbols: core::ptr::null(),
            versions: core::ptr::null(),
            hash: core::ptr::null(),
            name: 0,
        };
        if dynamic.is_null() {
            return None;
        }
        // glibc's loader makes addresses of what is in the section, musl's leaves it.
        let address = |value: u64| if value >= bias { value } else { bias + value };
        // SAFETY: an entry of tag 0 ends the section.
        unsafe {
            while (*dynamic)[0] != 0 {
                let [tag, value] = *dynamic;
                match tag {
                    DT_STRTAB => library.strings = address(value),
                    DT_SYMTAB => library.symbols = address(value) as *const super::Symbol,
                    DT_VERSYM => library.versions = address(value) as *const u16,
                    DT_GNU_HASH => library.hash = address(value) as *const u32,
                    DT_SONAME => library.name = value,
                    _ => {}
                }
                dynamic = dynamic.add(1);
            }
        }
        let is_whole =
            library.strings != 0 && !library.symbols.is_null() && !library.hash.is_null();
        is_whole.then_some(library)
    }

    /// Whether this is the library's own name (`DT_SONAME`).
    ///
    /// # Safety
    /// The library is still loaded.
    pub unsafe fn is_called(&self, name: &CStr) -> bool {
        // SAFETY: the names are in the library's table of strings.
        self.name != 0 && unsafe { self.is_string(self.name, name) }
    }

    /// Whether this is the string at `offset`. Calls no function of the C library.
    ///
    /// # Safety
    /// An offset in the table of strings of a library that is still loaded.
    unsafe fn is_string(&self, offset: u64, text: &CStr) -> bool {
        let string = (self.strings + offset) as *const u8;
        let mut bytes = text.to_bytes_with_nul().iter().enumerate();
        // SAFETY: the caller's; the comparison ends with the string's own terminator at the latest,
        // which equals no byte of the text but its last.
        bytes.all(|(at, byte)| unsafe { string.add(at).read_volatile() } == *byte)
    }

    /// The function that the library exports by this name.
    ///
    /// # Safety
    /// The library is still loaded.
    pub unsafe fn function(&self, name: &CStr) -> Option<Exported> {
        let wanted = gnu_hash(name);
        // SAFETY: buckets and chains lie where the table's four first words say, and are as long as
        // the loader takes them to be.
        unsafe {
            let (buckets, first, bloom) = (
                *self.hash,
                *self.hash.add(1) as usize,
                *self.hash.add(2) as usize,
            );
            if buckets == 0 {
                return None;
            }
            let heads = self.hash.add(4 + 2 * bloom);
            let chains = heads.add(buckets as usize);
            let head = *heads.add((wanted % buckets) as usize) as usize;
            if head < first {
                return None;
            }
            for index in head..head + MAX_CHAIN {
                let hash = *chains.add(index - first);
                if hash | 1 == wanted | 1
                    && let Some(symbol) = self.exported(index, name)
                {
                    return Some(symbol);
                }
                if hash & 1 != 0 {
                    break;
                }
            }
        }
        None
    }

    /// Symbol `index`, if it is a function of this name in its default version.
    ///
    /// # Safety
    /// An index of a library that is still loaded.
    unsafe fn exported(&self, index: usize, name: &CStr) -> Option<Exported> {
        // SAFETY: the caller's index is in both tables.
        let (symbol, version) = unsafe {
            let version = match self.versions.is_null() {
                true => 1,
                false => *self.versions.add(index),
            };
            (&*self.symbols.add(index), version)
        };
        let kind = symbol.info & 0xf;
        let is_function = matches!(kind, STT_NOTYPE | STT_FUNC | STT_GNU_IFUNC);
        if symbol.section == 0 || !is_function || version & HIDDEN_VERSION != 0 {
            return None;
        }
        // SAFETY: a symbol's name is among the strings.
        if !unsafe { self.is_string(u64::from(symbol.name), name) } {
            return None;
        }
        Some(Exported {
            address: self.bias + symbol.value,
            is_indirect: kind == STT_GNU_IFUNC,
        })
    }
}

/// Hash of a name in `DT_GNU_HASH`.
fn gnu_hash(name: &CStr) -> u32 {
    let step = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(*byte));
    name.to_bytes().iter().fold(5381, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;

    /// A module in the loader's list (`link.h`), as far as it is needed.
    #[repr(C)]
    struct LinkMap {
        bias: u64,
        name: *const core::ffi::c_char,
        dynamic: *const [u64; 2],
    }

    fn c_library() -> Library {
        // SAFETY: the C library is loaded, and stays; `dlinfo` fills a pointer.
        unsafe {
            let handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY);
            let mut map: *const LinkMap = core::ptr::null();
            let failed = libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast());
            assert_eq!(failed, 0);
            Library::of((*map).bias, (*map).dynamic).expect("its tables")
        }
    }

    #[test]
    fn functions_are_those_that_the_loader_finds() {
        let library = c_library();
        // SAFETY: the C library stays loaded; names are terminated.
        unsafe {
            assert!(library.is_called(c"libc.so.6"));
            assert!(!library.is_called(c"libm.so.6"));
            for name in [
                c"open",
                c"pthread_cond_wait",
                c"getpid",
                c"realpath",
                c"memcpy",
            ] {
                let found = library.function(name).expect("it is exported");
                let loaders = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
                let ours = match found.is_indirect {
                    true => crate::arch::ifunc_target(found.address),
                    false => found.address as *mut c_void,
                };
                assert_eq!(ours, loaders, "{name:?}");
            }
            assert!(library.function(c"no_such_function").is_none());
        }
    }
}
