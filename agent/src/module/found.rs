//! The result of finding a module.

/// A mapped module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    /// First address: its ELF header.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Distinguishes it from another module at the same addresses.
    pub identity: u64,
    /// Address of its terminated name, which stays valid; 0: the loader has the name.
    pub name: u64,
    /// The loader's record of it, 0: none.
    pub link_map: u64,
}

impl Found {
    /// Terminated name, empty for the executable; null: none.
    ///
    /// # Safety
    /// The module stays loaded during the call and while the name is used.
    pub unsafe fn name(&self) -> *const core::ffi::c_char {
        let map = self.link_map as *const LinkMap;
        if self.name != 0 || map.is_null() {
            return self.name as *const core::ffi::c_char;
        }
        // SAFETY: the caller's: the loader keeps the record of a loaded module.
        unsafe { (*map).name.cast() }
    }
}

/// The public head of `struct link_map`.
#[repr(C)]
pub(super) struct LinkMap {
    pub addr: u64,
    pub name: *const u8,
}
