//! Names of the symbols that a module uses and does not define.

use super::lazy::{DT_JMPREL, DT_PLTRELSZ, Relocation};
use super::{DT_STRTAB, DT_SYMTAB, Module};
use core::ffi::CStr;
use core::mem::size_of;
use core::ptr::with_exposed_provenance;
use libc::Elf64_Sym;

const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;

impl Module {
    /// Returns true if the module has a relocation by a symbol that it does not define, and for
    /// whose name `is_wanted` returns true.
    pub fn imports(&self, is_wanted: impl Fn(&[u8]) -> bool) -> bool {
        let tags = [
            DT_SYMTAB,
            DT_STRTAB,
            DT_JMPREL,
            DT_PLTRELSZ,
            DT_RELA,
            DT_RELASZ,
        ];
        let Some([symbols, strings, calls, call_bytes, data, data_bytes]) =
            self.dynamic_values(tags)
        else {
            return false;
        };
        if symbols == 0 || strings == 0 {
            return false;
        }
        let [symbols, strings, calls, data] =
            [symbols, strings, calls, data].map(|at| self.address_in(at));
        let symbols = symbols as *const Elf64_Sym;
        let has = |table: u64, bytes: u64| {
            let table = table as *const Relocation;
            let count = if table.is_null() { 0 } else { bytes as usize };
            (0..count / size_of::<Relocation>()).any(|index| {
                // SAFETY: an entry of the module's relocation table, which the loader reads as
                // well.
                let number = unsafe { (*table.add(index)).info } >> 32;
                // SAFETY: the symbol of this relocation, and its name in the string table.
                let name = unsafe {
                    let symbol = &*symbols.add(number as usize);
                    if number == 0 || symbol.st_shndx != 0 {
                        return false;
                    }
                    let at = strings + u64::from(symbol.st_name);
                    CStr::from_ptr(with_exposed_provenance(at as usize))
                };
                is_wanted(name.to_bytes())
            })
        };
        has(calls, call_bytes) || has(data, data_bytes)
    }
}
