//! Result of a search for a module.

/// Mapped module that contains a given address.
#[derive(Clone, Copy, Debug, Default)]
pub struct FoundModule {
    /// First address, which is that of its ELF header.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// Number that differs from that of another module at the same addresses.
    pub identity: u64,
    /// Address of its terminated name, which stays valid; 0: the loader has the name.
    pub name: u64,
    /// Address of the loader's `link_map`; 0: not known.
    pub link_map: u64,
}

impl FoundModule {
    /// Returns the terminated name; empty for the executable, null if there is none.
    ///
    /// # Safety
    /// The module stays loaded during the call and while the name is used.
    pub unsafe fn name(&self) -> *const core::ffi::c_char {
        let map = self.link_map as *const LinkMap;
        if self.name != 0 || map.is_null() {
            return self.name as *const core::ffi::c_char;
        }
        // SAFETY: the module stays loaded, so the loader keeps its `link_map`.
        unsafe { (*map).name.cast() }
    }
}

/// Public fields at the start of `struct link_map`.
#[repr(C)]
pub(super) struct LinkMap {
    pub addr: u64,
    pub name: *const u8,
}
