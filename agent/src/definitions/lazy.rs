//! Binds lazy calls: PLT entries whose function the loader would look up at the first call.

use super::Module;
use core::ffi::{CStr, c_void};
use core::mem::size_of;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::{AtomicPtr, Ordering};
use libc::{Elf64_Phdr, Elf64_Sym};

/// Relocation entry (`Elf64_Rela`).
#[repr(C)]
pub(super) struct Relocation {
    offset: u64,
    /// Type, and above it the index of the symbol.
    pub(super) info: u64,
    addend: i64,
}

pub(super) const DT_PLTRELSZ: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
pub(super) const DT_JMPREL: u64 = 23;
const DT_FLAGS: u64 = 30;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
/// The loader binds all calls of the module when it relocates it.
const DF_BIND_NOW: u64 = 8;
const DF_1_NOW: u64 = 1;
/// Type of the relocation of a PLT entry.
const JUMP_SLOT: u64 = if cfg!(target_arch = "aarch64") {
    1026 // R_AARCH64_JUMP_SLOT
} else {
    7 // R_X86_64_JUMP_SLOT
};

impl Module {
    /// Binds calls to functions of other modules that the loader has not bound yet, if `target`
    /// returns an address. Calls that are bound already are not changed.
    pub fn bind_lazy_calls(&self, target: impl Fn(&CStr) -> Option<*mut c_void>) {
        let tags = [
            DT_JMPREL,
            DT_PLTRELSZ,
            DT_SYMTAB,
            DT_STRTAB,
            DT_FLAGS,
            DT_FLAGS_1,
        ];
        let Some([calls, bytes, symbols, strings, flags, more_flags]) = self.dynamic_values(tags)
        else {
            return;
        };
        if flags & DF_BIND_NOW != 0 || more_flags & DF_1_NOW != 0 {
            return;
        }
        if calls == 0 || symbols == 0 || strings == 0 {
            return;
        }
        let [calls, symbols, strings] = [calls, symbols, strings].map(|at| self.address_in(at));
        let calls = calls as *const Relocation;
        let symbols = symbols as *const Elf64_Sym;
        for index in 0..bytes as usize / size_of::<Relocation>() {
            // SAFETY: an entry of the module's relocation table, which the loader reads as well.
            let call = unsafe { &*calls.add(index) };
            let slot = self.bias.wrapping_add(call.offset);
            if call.info & 0xffff_ffff != JUMP_SLOT || !self.may_change(slot) {
                continue;
            }
            // SAFETY: a writable word of the module, which the loader also changes while other
            // threads read it.
            let slot = unsafe { AtomicPtr::<c_void>::from_ptr(slot as *mut *mut c_void) };
            // A call that is not bound leads into the module itself, to code that calls the loader.
            if !self.contains(slot.load(Ordering::Relaxed)) {
                continue;
            }
            // SAFETY: the symbol of this relocation, and its name in the string table.
            let name = unsafe {
                let symbol = &*symbols.add((call.info >> 32) as usize);
                if symbol.st_shndx != 0 {
                    continue;
                }
                let at = strings + u64::from(symbol.st_name);
                CStr::from_ptr(with_exposed_provenance(at as usize))
            };
            if let Some(target) = target(name) {
                slot.store(target, Ordering::Relaxed);
            }
        }
    }

    /// Returns true if a word lies in data that the loader has left writable.
    fn may_change(&self, address: u64) -> bool {
        let offset = address.wrapping_sub(self.bias);
        let is_in = |h: &Elf64_Phdr| offset.wrapping_sub(h.p_vaddr) < h.p_memsz;
        let is_protected = |h: &Elf64_Phdr| h.p_type == libc::PT_GNU_RELRO && is_in(h);
        let segment = self.segment_of(address);
        segment.is_some_and(|h| h.p_flags & libc::PF_W != 0)
            && !self.headers().iter().any(is_protected)
    }
}
