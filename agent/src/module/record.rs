//! Records modules in the segment.

mod facts;

pub use facts::Facts;

use super::{Slot, used_slots};
use crate::session;
use core::sync::atomic::Ordering;
use shm_protocol::clock;
use shm_protocol::layout::{
    IDENTITY_OFFSET, Identity, MODULE_CAPACITY, MODULE_PATH_BYTES, Module, ModuleTable,
};

/// Records all registered modules that the current segment does not have yet.
pub fn publish_missing() {
    let segment = session::segment_number();
    for slot in used_slots().filter(|slot| slot.is_live()) {
        if slot.segment.load(Ordering::Relaxed) != segment {
            // SAFETY: the slot was live.
            unsafe { publish(slot) };
        }
    }
}

/// Records a module from the facts that were read when it was registered. Reads neither its memory
/// nor the loader's data for it.
///
/// # Safety
/// The slot is or was live.
pub unsafe fn publish(slot: &Slot) {
    let segment = session::segment_number();
    // SAFETY: the slot is live.
    let facts = unsafe { slot.facts() };
    let (Some(table), Some(text)) = (session::modules(), facts.text) else {
        return;
    };
    slot.segment.store(segment, Ordering::Relaxed);
    // SAFETY: the table is in the segment, and backed while a session runs. The counters hand out
    // each of its parts once.
    unsafe {
        let index = (*table).count.fetch_add(1, Ordering::Relaxed) as usize;
        if index >= MODULE_CAPACITY {
            count_lost(table);
            return;
        }
        let entry = (&raw mut (*table).entries[index]).cast::<Module>();
        let path = match facts.name {
            [] => executable_path(),
            name => name,
        };
        let (path_offset, path_len) = store_path(table, path);
        (*entry).start = text.start;
        (*entry).end = text.end;
        (*entry).file_offset = text.file_offset;
        (*entry).path_offset = path_offset;
        (*entry).path_len = path_len;
        (*entry).build_id = facts.build_id;
        (*entry).build_id_len = u32::from(facts.build_id_len);
        (*entry).instance = u32::from(slot.instance.load(Ordering::Relaxed));
        (*entry).ready.store(1, Ordering::Release);
        slot.entry.store(index as u32 + 1, Ordering::Relaxed);
    }
}

/// Counts a module that does not fit.
///
/// # Safety
/// `table` is the table in the segment.
unsafe fn count_lost(table: *mut ModuleTable) {
    // SAFETY: the counter is an atomic in the mapped table.
    unsafe {
        (*table)
            .count
            .store(MODULE_CAPACITY as u32, Ordering::Relaxed)
    };
    if let Some(status) = session::status() {
        status.modules_lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// Copies a path to the table. Returns its offset and length; (0, 0) if it does not fit.
///
/// # Safety
/// `table` is the table in the segment.
unsafe fn store_path(table: *mut ModuleTable, path: &[u8]) -> (u32, u32) {
    let len = path.len();
    // SAFETY: the counter hands out each part of `paths` once, and the bound is checked.
    unsafe {
        let offset = (*table).path_bytes.fetch_add(len as u32, Ordering::Relaxed) as usize;
        if offset + len > MODULE_PATH_BYTES {
            (*table)
                .path_bytes
                .store(MODULE_PATH_BYTES as u32, Ordering::Relaxed);
            return (0, 0);
        }
        let to = (&raw mut (*table).paths).cast::<u8>().add(offset);
        core::ptr::copy_nonoverlapping(path.as_ptr(), to, len);
        (offset as u32, len as u32)
    }
}

/// Returns the path of the executable, as it is recorded in the segment.
fn executable_path() -> &'static [u8] {
    // SAFETY: the layout puts the identity at this offset of the view.
    let Some(identity) = (unsafe { session::at::<Identity>(IDENTITY_OFFSET) }) else {
        return &[];
    };
    // SAFETY: the identity is written once, when the segment is created, and the view is never
    // unmapped.
    let identity = unsafe { &*identity };
    let len = (identity.exe_len as usize).min(identity.exe.len());
    &identity.exe[..len]
}

/// Records in the segment that a module was unloaded, if it was recorded there.
pub fn record_unloaded(slot: &Slot) {
    let is_recorded_here = slot.segment.load(Ordering::Relaxed) == session::segment_number();
    let index = slot.entry.load(Ordering::Relaxed);
    if !is_recorded_here || index == 0 {
        return;
    }
    let Some(table) = session::modules() else {
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
