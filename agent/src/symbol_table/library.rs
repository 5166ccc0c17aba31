//! Looks up functions of a loaded library by its hash table, in the versions that a program linked
//! today would get.

use super::{DT_GNU_HASH, DT_STRTAB, DT_SYMTAB};
use core::ffi::CStr;

const DT_SONAME: u64 = 14;
const DT_VERSYM: u64 = 0x6fff_fff0;
const STT_NOTYPE: u8 = 0;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
/// Flag of a version that is not a symbol's default, and that only programs linked long ago get.
const HIDDEN_VERSION: u16 = 0x8000;
/// Maximum number of entries of a hash chain that are followed.
const MAX_CHAIN: usize = 4096;

/// Function that a library exports.
#[derive(Clone, Copy, Debug)]
pub struct Exported {
    /// Address of the function, or of its resolver.
    pub address: u64,
    /// True if `address` leads to a resolver, which returns the function's address.
    pub is_indirect: bool,
}

/// Symbol tables of a loaded library.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    bias: u64,
    strings: u64,
    symbols: *const super::Symbol,
    /// Versions of the symbols; null if the library has none.
    versions: *const u16,
    hash: *const u32,
    /// Offset of the library's `DT_SONAME` in the string table; 0 if it has none.
    name: u64,
}

impl Library {
    /// Finds the tables from a dynamic section. Returns `None` if one is missing.
    ///
    /// # Safety
    /// `dynamic` is the dynamic section of a library that stays loaded, and `bias` its load bias.
    pub unsafe fn from_dynamic_section(bias: u64, mut dynamic: *const [u64; 2]) -> Option<Self> {
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
        // glibc's loader has converted the values of the section into addresses, musl's has not.
        let address = |value: u64| if value >= bias { value } else { bias + value };
        // SAFETY: the section ends with an entry of tag 0.
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

    /// Returns true if the library has this name (`DT_SONAME`).
    ///
    /// # Safety
    /// The library is still loaded.
    pub unsafe fn is_called(&self, name: &CStr) -> bool {
        // SAFETY: the name's offset lies in the string table of a loaded library.
        self.name != 0 && unsafe { self.is_string(self.name, name) }
    }

    /// Compares the string at `offset`. Calls no function of the C library.
    ///
    /// # Safety
    /// `offset` lies in the string table, and the library is still loaded.
    unsafe fn is_string(&self, offset: u64, text: &CStr) -> bool {
        let string = (self.strings + offset) as *const u8;
        let mut bytes = text.to_bytes_with_nul().iter().enumerate();
        // SAFETY: the string is terminated. Its terminating zero equals no byte of the text but the
        // last, so the comparison ends there at the latest.
        bytes.all(|(at, byte)| unsafe { string.add(at).read_volatile() } == *byte)
    }

    /// Returns the function with a name.
    ///
    /// # Safety
    /// The library is still loaded.
    pub unsafe fn function(&self, name: &CStr) -> Option<Exported> {
        let name_hash = gnu_hash(name);
        // SAFETY: the first words say where the buckets and the chains are. The loader uses the
        // same tables.
        unsafe {
            let buckets = *self.hash;
            let first = *self.hash.add(1) as usize;
            let bloom = *self.hash.add(2) as usize;
            if buckets == 0 {
                return None;
            }
            let heads = self.hash.add(4 + 2 * bloom);
            let chains = heads.add(buckets as usize);
            let head = *heads.add((name_hash % buckets) as usize) as usize;
            if head < first {
                return None;
            }
            for index in head..head + MAX_CHAIN {
                let hash = *chains.add(index - first);
                if hash | 1 == name_hash | 1
                    && let Some(symbol) = self.exported_function(index, name)
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

    /// Returns a symbol if it is a function with this name, in its default version.
    ///
    /// # Safety
    /// `index` is the index of a symbol, and the library is still loaded.
    unsafe fn exported_function(&self, index: usize, name: &CStr) -> Option<Exported> {
        // SAFETY: the index is valid in both tables.
        let (symbol, version) = unsafe {
            let version = if self.versions.is_null() {
                1
            } else {
                *self.versions.add(index)
            };
            (&*self.symbols.add(index), version)
        };
        let kind = symbol.info & 0xf;
        let is_function = matches!(kind, STT_NOTYPE | STT_FUNC | STT_GNU_IFUNC);
        if symbol.section == 0 || !is_function || version & HIDDEN_VERSION != 0 {
            return None;
        }
        // SAFETY: a symbol's name is in the string table.
        if !unsafe { self.is_string(u64::from(symbol.name), name) } {
            return None;
        }
        Some(Exported {
            address: self.bias + symbol.value,
            is_indirect: kind == STT_GNU_IFUNC,
        })
    }
}

/// Returns the hash of a name for `DT_GNU_HASH`.
fn gnu_hash(name: &CStr) -> u32 {
    let step = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(*byte));
    name.to_bytes().iter().fold(5381, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_void;

    /// Fields at the start of a module in the loader's list (`link.h`).
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
            Library::from_dynamic_section((*map).bias, (*map).dynamic).expect("its tables")
        }
    }

    #[test]
    fn functions_are_those_that_dlsym_finds() {
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
                let ours = if found.is_indirect {
                    crate::arch::ifunc_target(found.address)
                } else {
                    found.address as *mut c_void
                };
                assert_eq!(ours, loaders, "{name:?}");
            }
            assert!(library.function(c"no_such_function").is_none());
        }
    }
}
