//! Modules in the segment.

use super::{SEGMENT, Slot, used_slots};
use crate::session;
use core::sync::atomic::Ordering;
use shm_protocol::clock;
use shm_protocol::layout::{
    IDENTITY_OFFSET, Identity, MODULE_CAPACITY, MODULE_PATH_BYTES, Module, ModuleTable,
};
use unwind::elf::Image;

/// Longest path that is recorded.
const MAX_PATH: usize = 4096;

/// The executable's build id, found through the program headers that the kernel told of.
pub fn executable_build_id() -> Option<&'static [u8]> {
    // SAFETY: cannot fail.
    let headers = unsafe { libc::getauxval(libc::AT_PHDR) };
    // The headers lie in the file's first page, after the ELF header.
    let start = headers & !4095;
    // SAFETY: the executable is mapped for ever, its first page readable.
    unsafe { Image::at(start, u64::MAX >> 1) }?.build_id()
}

/// Records every registered module that the segment does not have yet.
pub fn publish_missing() {
    let segment = SEGMENT.load(Ordering::Relaxed);
    for slot in used_slots().filter(|slot| slot.is_live()) {
        if slot.segment.load(Ordering::Relaxed) != segment {
            publish(slot);
        }
    }
}

/// Records a module. Its code is on the caller's stack or was when it was registered; only
/// what the loader keeps for it is read then.
pub fn publish(slot: &Slot) {
    let segment = SEGMENT.load(Ordering::Relaxed);
    let Some(table) = session::modules() else {
        return;
    };
    let (start, end) = (
        slot.start.load(Ordering::Relaxed),
        slot.end.load(Ordering::Relaxed),
    );
    // SAFETY: see above.
    let Some(image) = (unsafe { Image::at(start, end) }) else {
        return;
    };
    let Some(text) = image.text(slot.pc.load(Ordering::Relaxed)) else {
        return;
    };
    slot.segment.store(segment, Ordering::Relaxed);
    // SAFETY: the table is in the mapped segment, reserved while a session runs; the
    // counters hand out its parts.
    unsafe {
        let index = (*table).count.fetch_add(1, Ordering::Relaxed) as usize;
        if index >= MODULE_CAPACITY {
            lose(table);
            return;
        }
        let entry = (&raw mut (*table).entries[index]).cast::<Module>();
        let (path_offset, path_len) = store_path(table, slot);
        (*entry).start = text.start;
        (*entry).end = text.end;
        (*entry).file_offset = text.file_offset;
        (*entry).path_offset = path_offset;
        (*entry).path_len = path_len;
        let id = image.build_id().unwrap_or_default();
        let len = id.len().min(32);
        (&mut (*entry).build_id)[..len].copy_from_slice(&id[..len]);
        (*entry).build_id_len = len as u32;
        (*entry).instance = u32::from(slot.instance.load(Ordering::Relaxed));
        (*entry).ready.store(1, Ordering::Release);
        slot.entry.store(index as u32 + 1, Ordering::Relaxed);
    }
}

/// # Safety
/// `table` is the mapped table.
unsafe fn lose(table: *mut ModuleTable) {
    // SAFETY: the caller's.
    unsafe {
        (*table)
            .count
            .store(MODULE_CAPACITY as u32, Ordering::Relaxed)
    };
    if let Some(status) = session::status() {
        status.modules_lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// Copies the module's path to the table; relative ones get the current folder.
///
/// # Safety
/// `table` is the mapped table.
unsafe fn store_path(table: *mut ModuleTable, slot: &Slot) -> (u32, u32) {
    let mut buffer = [0u8; MAX_PATH / 4];
    let len = path_of(slot, &mut buffer);
    // SAFETY: the counter hands out parts of `paths`; the bound is checked.
    unsafe {
        let at = (*table).path_bytes.fetch_add(len as u32, Ordering::Relaxed) as usize;
        if at + len > MODULE_PATH_BYTES {
            (*table)
                .path_bytes
                .store(MODULE_PATH_BYTES as u32, Ordering::Relaxed);
            return (0, 0);
        }
        let to = (&raw mut (*table).paths).cast::<u8>().add(at);
        core::ptr::copy_nonoverlapping(buffer.as_ptr(), to, len);
        (at as u32, len as u32)
    }
}

fn path_of(slot: &Slot, buffer: &mut [u8]) -> usize {
    let name = slot.name.load(Ordering::Relaxed) as *const core::ffi::c_char;
    let name = match name.is_null() {
        true => c"",
        // SAFETY: the loader keeps a loaded module's name, terminated.
        false => unsafe { core::ffi::CStr::from_ptr(name) },
    };
    let name = name.to_bytes();
    if name.is_empty() {
        return executable_path(buffer);
    }
    let mut len = 0;
    if name[0] != b'/' && name.contains(&b'/') {
        len = link_target(c"/proc/self/cwd", &mut buffer[..MAX_PATH / 8]);
        buffer[len] = b'/';
        len += 1;
    }
    let rest = name.len().min(buffer.len() - len);
    buffer[len..len + rest].copy_from_slice(&name[..rest]);
    len + rest
}

fn executable_path(buffer: &mut [u8]) -> usize {
    let Some(identity) = session::at::<Identity>(IDENTITY_OFFSET) else {
        return 0;
    };
    // SAFETY: written once at the segment's birth.
    let identity = unsafe { &*identity };
    let len = (identity.exe_len as usize)
        .min(identity.exe.len())
        .min(buffer.len());
    buffer[..len].copy_from_slice(&identity.exe[..len]);
    len
}

fn link_target(link: &core::ffi::CStr, buffer: &mut [u8]) -> usize {
    // SAFETY: readlink writes at most the buffer's length.
    let len =
        unsafe { libc::readlink(link.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    usize::try_from(len).unwrap_or(0)
}

/// Notes in the segment that a module is gone, where it was recorded there.
pub fn note_unloaded(slot: &Slot) {
    let here = slot.segment.load(Ordering::Relaxed) == SEGMENT.load(Ordering::Relaxed);
    let index = slot.entry.load(Ordering::Relaxed);
    let Some(table) = session::modules().filter(|_| here && index > 0) else {
        return;
    };
    let tick = clock::tick_of(session::time::now_ns()).max(1);
    // SAFETY: an entry that `publish` filled.
    unsafe {
        if let Some(entry) = (*table).entries.get(index as usize - 1) {
            entry.unloaded_tick.store(tick, Ordering::Relaxed);
        }
    }
}
