//! Facts about a module, read once into memory of our own when it is registered.

use crate::module::found::FoundModule;
use crate::{own, sys};
use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use unwind::elf::{Image, Text};
use unwind::fingerprint::Fingerprint;

/// Maximum length of a name that is kept, in bytes.
const MAX_NAME_BYTES: usize = 1024;
/// Maximum length of the directory that is put before a relative name, in bytes.
const MAX_DIRECTORY_BYTES: usize = 512;
/// Size of the memory for all names.
const NAMES_BYTES: usize = 256 << 10;

/// Facts about a module.
#[derive(Clone, Copy)]
pub struct Facts {
    /// Executable part; `None` if the headers could not be read.
    pub text: Option<Text>,
    /// Build id, of which `build_id_len` bytes are valid.
    pub build_id: [u8; 32],
    pub build_id_len: u8,
    /// Fingerprint by which the module is recognised.
    pub fingerprint: Fingerprint,
    /// Path; empty for the executable.
    pub name: &'static [u8],
}

impl Facts {
    /// Reads the facts of a module whose code contains `pc`.
    ///
    /// # Safety
    /// The module stays loaded during the call.
    pub unsafe fn read(found: &FoundModule, pc: u64, image: Option<&Image>) -> Self {
        let id = image.and_then(Image::build_id).unwrap_or_default();
        let len = id.len().min(32);
        let mut build_id = [0; 32];
        build_id[..len].copy_from_slice(&id[..len]);
        Self {
            text: image.and_then(|image| image.text(pc)),
            build_id,
            build_id_len: len as u8,
            fingerprint: image.map(Fingerprint::of_image).unwrap_or_default(),
            // SAFETY: the module stays loaded.
            name: unsafe { name_of(found) },
        }
    }
}

/// Returns a copy of a module's name.
///
/// # Safety
/// The module stays loaded during the call.
unsafe fn name_of(found: &FoundModule) -> &'static [u8] {
    // SAFETY: the module stays loaded.
    let name = unsafe { found.name() };
    if name.is_null() {
        return b"";
    }
    // SAFETY: a terminated name of the loader or of ours; the module stays loaded.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    copy_name(&name[..name.len().min(MAX_NAME_BYTES)])
}

/// Copies a name to memory of our own. A relative path is appended to the current directory.
fn copy_name(name: &[u8]) -> &'static [u8] {
    if name.is_empty() {
        return b"";
    }
    let is_relative = name[0] != b'/' && name.contains(&b'/');
    let directory = if is_relative {
        MAX_DIRECTORY_BYTES + 1
    } else {
        0
    };
    let Some(room) = allocate_name(directory + name.len()) else {
        return b"[unnamed]";
    };
    let mut len = 0;
    // A seccomp filter of the program may forbid reading the directory; the name then stays
    // relative.
    if is_relative && !crate::seccomp::is_installed() {
        len = sys::read_link(c"/proc/self/cwd", &mut room[..MAX_DIRECTORY_BYTES]);
        room[len] = b'/';
        len += 1;
    }
    room[len..len + name.len()].copy_from_slice(name);
    &room[..len + name.len()]
}

/// Returns memory for a name, which is never unmapped, or `None` if all is used.
fn allocate_name(bytes: usize) -> Option<&'static mut [u8]> {
    static USED: AtomicUsize = AtomicUsize::new(0);
    let names = names()?;
    let take = |used: usize| used.checked_add(bytes).filter(|end| *end <= NAMES_BYTES);
    let offset = USED
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        .ok()?;
    // SAFETY: inside the mapping, which is never unmapped, and handed out once.
    Some(unsafe { core::slice::from_raw_parts_mut(names.add(offset), bytes) })
}

fn names() -> Option<*mut u8> {
    static NAMES: AtomicPtr<u8> = AtomicPtr::new(null_mut());
    let mapped = NAMES.load(Ordering::Acquire);
    if !mapped.is_null() {
        return Some(mapped);
    }
    let new = own::map(NAMES_BYTES);
    if new.is_null() {
        return None;
    }
    match NAMES.compare_exchange(null_mut(), new.cast(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(new.cast()),
        Err(other) => {
            // SAFETY: just mapped, and no other thread has its address.
            unsafe { own::unmap(new, NAMES_BYTES) };
            Some(other)
        }
    }
}
