//! Facts of a module: read once, when it is registered, into memory of our own.

use crate::module::found::Found;
use crate::{own, sys};
use core::ffi::CStr;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use unwind::elf::{Image, Text};
use unwind::fingerprint::Fingerprint;

/// Longest name that is kept.
const MAX_NAME: usize = 1024;
/// Longest directory that is put before a relative name.
const MAX_DIRECTORY: usize = 512;
/// Room for all names.
const NAMES_BYTES: usize = 256 << 10;

/// See above.
#[derive(Clone, Copy)]
pub struct Facts {
    /// Executable part; `None`: the headers cannot be read.
    pub text: Option<Text>,
    /// Build id, of the length below.
    pub build_id: [u8; 32],
    pub build_id_len: u8,
    /// By which the module is known again.
    pub fingerprint: Fingerprint,
    /// Path; empty for the executable.
    pub name: &'static [u8],
}

impl Facts {
    /// Reads a mapped module whose code contains `pc`. It must stay loaded meanwhile.
    pub fn read(found: &Found, pc: u64, image: Option<&Image>) -> Self {
        let id = image.and_then(Image::build_id).unwrap_or_default();
        let len = id.len().min(32);
        let mut build_id = [0; 32];
        build_id[..len].copy_from_slice(&id[..len]);
        Self {
            text: image.and_then(|image| image.text(pc)),
            build_id,
            build_id_len: len as u8,
            fingerprint: image.map(Fingerprint::of_image).unwrap_or_default(),
            name: name_of(found),
        }
    }
}

fn name_of(found: &Found) -> &'static [u8] {
    // SAFETY: the caller of `read` sees to it that nobody unloads the module.
    let name = unsafe { found.name() };
    if name.is_null() {
        return b"";
    }
    // SAFETY: the loader's or our own terminated name, as above.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    keep(&name[..name.len().min(MAX_NAME)])
}

/// Copies a name to memory of our own; relative ones get the current directory.
fn keep(name: &[u8]) -> &'static [u8] {
    if name.is_empty() {
        return b"";
    }
    let relative = name[0] != b'/' && name.contains(&b'/');
    let directory = if relative { MAX_DIRECTORY + 1 } else { 0 };
    let Some(room) = room_for(directory + name.len()) else {
        return b"[unnamed]";
    };
    let mut len = 0;
    // Under a filter that the program has installed, the name is left as it is.
    if relative && !crate::seccomp::is_installed() {
        len = sys::read_link(c"/proc/self/cwd", &mut room[..MAX_DIRECTORY]);
        room[len] = b'/';
        len += 1;
    }
    room[len..len + name.len()].copy_from_slice(name);
    &room[..len + name.len()]
}

/// Memory for a name, never unmapped. `None`: there is none left.
fn room_for(bytes: usize) -> Option<&'static mut [u8]> {
    static USED: AtomicUsize = AtomicUsize::new(0);
    let names = names()?;
    let take = |used: usize| used.checked_add(bytes).filter(|end| *end <= NAMES_BYTES);
    let at = USED
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
        .ok()?;
    // SAFETY: inside the mapping, which stays, and handed out once.
    Some(unsafe { core::slice::from_raw_parts_mut(names.add(at), bytes) })
}

fn names() -> Option<*mut u8> {
    static NAMES: AtomicPtr<u8> = AtomicPtr::new(null_mut());
    let known = NAMES.load(Ordering::Acquire);
    if !known.is_null() {
        return Some(known);
    }
    let new = own::map(NAMES_BYTES);
    if new.is_null() {
        return None;
    }
    match NAMES.compare_exchange(null_mut(), new.cast(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(new.cast()),
        Err(other) => {
            // SAFETY: our own mapping, which nobody has seen.
            unsafe { own::unmap(new, NAMES_BYTES) };
            Some(other)
        }
    }
}
