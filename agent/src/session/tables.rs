//! Tracks and changes which parts of the segment's tables are accessible (*open*).
//!
//! The whole segment is mapped, but most of it is neither backed with memory nor accessible. The
//! tables of a bank grow by units, which are made accessible once they are backed: if all were
//! accessible, `mlockall` would back all of them. The whole mapping counts towards `RLIMIT_AS`. So
//! when the program limits its address space, the inaccessible parts are unmapped, and tables no
//! longer grow.

// Decision 20: tables are created by the first session.
use super::{BASE, BYTES, SEGMENT_STATE};
use crate::sys::{self, PAGE};
use core::ffi::c_void;
use core::mem::size_of;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use shm_protocol::layout::{BANK_HEADER_BYTES, Node, Record};
use shm_protocol::{Bank, Geometry};

/// Advice that backs pages with memory, in Linux 5.14 and newer.
const MADV_POPULATE_WRITE: libc::c_int = 23;
/// A mapping of at most 1 / `LIMIT_SHARE` of a limited address space is not shrunk.
const LIMIT_SHARE: u64 = 16;
/// Each bank keeps at most 1 / `KEPT_SHARE` of a limited address space for later sessions.
const KEPT_SHARE: u64 = 64;
/// Maximum number of bytes that each bank keeps for later sessions.
const MAX_KEPT_BYTES: u64 = 4 << 20;

/// Number of accessible units of each bank.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static OPEN_UNITS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
/// Number of accessible bytes of code objects: the maximum over both banks.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static OPEN_CODE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// True after [`shrink`]: other mappings may use the addresses now.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static IS_SHRUNK: AtomicBool = AtomicBool::new(false);
/// Number of threads that are making a part accessible.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static OPENING: AtomicU32 = AtomicU32::new(0);

/// Guard of a thread that makes parts of the mapping accessible. [`shrink`] does nothing while one
/// exists.
struct Opening;

impl Opening {
    /// Returns `None` after [`shrink`].
    fn begin() -> Option<Self> {
        OPENING.fetch_add(1, Ordering::SeqCst);
        let opening = Self;
        (!IS_SHRUNK.load(Ordering::SeqCst)).then_some(opening)
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        OPENING.fetch_sub(1, Ordering::SeqCst);
    }
}

fn geometry() -> Geometry {
    Geometry::of_segment(BYTES.load(Ordering::Relaxed))
}

/// Returns the counter of accessible units of a session's bank.
pub(super) fn accessible_units(session: u64) -> &'static AtomicU32 {
    &OPEN_UNITS[session as usize & 1]
}

/// Forgets which units of an earlier segment were accessible. Called before a new segment is used.
pub(super) fn forget_open_units() {
    for open in &OPEN_UNITS {
        if open.load(Ordering::Relaxed) != 0 {
            open.store(0, Ordering::Release);
        }
    }
}

/// Makes the banks of a new mapping inaccessible, except for their headers. A failure does no harm:
/// the units are then accessible before they are [opened](open_units). Changes no counter: another
/// thread may have published its own mapping of the segment, and opened units of that one.
pub(super) fn close_banks(base: *mut u8) {
    let geometry = geometry();
    const HEADER: usize = BANK_HEADER_BYTES.next_multiple_of(PAGE);
    for bank in 0..OPEN_UNITS.len() as u64 {
        let at = geometry.bank_offset(bank) + HEADER;
        let bytes = geometry.bank_bytes.saturating_sub(HEADER);
        // SAFETY: the pages lie in the mapping just made, whose address no other thread has.
        unsafe { libc::mprotect(base.add(at).cast(), bytes, libc::PROT_NONE) };
    }
}

/// Makes the first `units` units of a bank accessible, which must be backed with memory. Returns
/// false if that fails.
pub(super) fn open_units(base: *mut u8, bank: &Bank<'_>, session: u64, units: u32) -> bool {
    let accessible = accessible_units(session);
    if accessible.load(Ordering::Relaxed) >= units {
        return true;
    }
    let Some(_opening) = Opening::begin() else {
        return false;
    };
    let at = bank.geometry().bank_offset(session);
    let mut parts = parts(bank.geometry(), 0..units);
    let are_accessible = parts.all(|part| make_accessible(base, at + part.start, at + part.end));
    if are_accessible {
        accessible.fetch_max(units, Ordering::Release);
    }
    are_accessible
}

/// Backs the first `units` units of a bank with memory and makes them accessible. Returns false if
/// that fails.
pub(super) fn populate_units(bank: &Bank<'_>, session: u64, units: u32) -> bool {
    let backed = bank.header.units();
    let Some(base) = BASE.get() else { return false };
    if backed >= units {
        return open_units(base, bank, session, units);
    }
    let Some(opening) = Opening::begin() else {
        return false;
    };
    let at = bank.geometry().bank_offset(session);
    let is_populated = parts(bank.geometry(), backed..units).all(|part| {
        let from = at + part.start;
        let to = at + part.end;
        make_accessible(base, from, to) && populate(base, from, to)
    });
    drop(opening);
    if is_populated {
        bank.header.grown_units.fetch_max(units, Ordering::Release);
        return open_units(base, bank, session, units);
    }
    false
}

/// Backs `bytes` of a session's code objects with memory. Returns false if that fails.
#[cold]
pub(super) fn populate_codes(bank: &Bank<'_>, session: u64, bytes: usize) -> bool {
    let geometry = bank.geometry();
    if bytes > geometry.codes {
        return false;
    }
    let Some(base) = BASE.get() else {
        return false;
    };
    let reserved = bank.codes.reserved();
    if reserved >= bytes {
        return true;
    }
    let opening = Opening::begin();
    // After `shrink`, only the part that was accessible before it is still mapped.
    let is_mapped = opening.is_some() || bytes <= OPEN_CODE_BYTES.load(Ordering::Relaxed);
    let from = geometry.bank_offset(session) + geometry.codes_offset();
    // A seccomp filter of the program may not allow the calls.
    let is_populated = is_mapped
        && !crate::seccomp::is_installed()
        && make_accessible(base, from + reserved, from + bytes)
        && populate(base, from + reserved, from + bytes);
    if is_populated {
        OPEN_CODE_BYTES.fetch_max(bytes, Ordering::Relaxed);
        bank.codes.reserve(bytes);
    }
    is_populated
}

/// Returns the offsets in a bank of the slots, nodes and records of some units.
fn parts(geometry: &Geometry, units: Range<u32>) -> impl Iterator<Item = Range<usize>> {
    let slots = |units| match units {
        0 => geometry.slots_offset(),
        _ => geometry.slots_offset() + geometry.slot_bytes_in(units),
    };
    let nodes =
        |units| geometry.nodes_offset() + geometry.nodes_in(units) as usize * size_of::<Node>();
    let records = |units| {
        geometry.records_offset() + geometry.records_in(units) as usize * size_of::<Record>()
    };
    let Range { start, end } = units;
    let parts = [
        slots(start)..slots(end),
        nodes(start)..nodes(end),
        records(start)..records(end),
    ];
    parts.into_iter().filter(|part| !part.is_empty())
}

/// Returns the accessible parts of the segment in whole pages, as ascending ranges of offsets.
fn open_pages(geometry: &Geometry) -> impl Iterator<Item = Range<usize>> {
    let codes = OPEN_CODE_BYTES.load(Ordering::Relaxed);
    // The part of bank 0 begins with the control pages.
    let in_bank = move |bank: u64| {
        let at = geometry.bank_offset(bank);
        let header = if bank == 0 { 0 } else { at }..at + BANK_HEADER_BYTES;
        let units = accessible_units(bank).load(Ordering::Relaxed);
        let tables = parts(geometry, 0..units).map(move |part| at + part.start..at + part.end);
        let codes_at = at + geometry.codes_offset();
        let codes = codes_at..codes_at + codes;
        core::iter::once(header).chain(tables).chain([codes])
    };
    let to_pages = |part: Range<usize>| part.start & !(PAGE - 1)..part.end.next_multiple_of(PAGE);
    let parts = (0..2).flat_map(in_bank).filter(|part| !part.is_empty());
    parts.map(to_pages)
}

/// Unmaps all inaccessible parts.
///
/// # Safety
/// `base` is the mapping of the whole segment, and no thread makes parts of it accessible.
unsafe fn unmap_closed(base: *mut u8, geometry: &Geometry) {
    let bytes = BYTES.load(Ordering::Relaxed);
    let mut end = 0;
    let after_last = core::iter::once(bytes..bytes);
    for open in open_pages(geometry).chain(after_last) {
        if open.start > end {
            // SAFETY: the part is inaccessible, so nobody reads or writes it, and no thread makes
            // it accessible.
            unsafe { libc::munmap(base.add(end).cast(), open.start - end) };
        }
        end = end.max(open.end);
    }
}

/// Unmaps the inaccessible parts when the program is about to limit its address space to
/// `address_space` bytes. Each bank keeps a few units for later sessions.
#[cold]
#[cfg_attr(test, allow(dead_code))]
pub fn shrink(address_space: u64) {
    if !SEGMENT_STATE.is_own() {
        return;
    }
    let Some(base) = BASE.get() else {
        return;
    };
    let bytes = BYTES.load(Ordering::Relaxed) as u64;
    if bytes <= address_space / LIMIT_SHARE || IS_SHRUNK.load(Ordering::Relaxed) {
        return;
    }
    let geometry = geometry();
    let kept = geometry.units_within(MAX_KEPT_BYTES.min(address_space / KEPT_SHARE));
    for session in 0..2 {
        open_units(base, &super::bank(base, session), session, kept);
    }
    IS_SHRUNK.store(true, Ordering::SeqCst);
    if OPENING.load(Ordering::SeqCst) != 0 {
        // Another thread is making a part accessible: the mapping is left as it is.
        IS_SHRUNK.store(false, Ordering::SeqCst);
        return;
    }
    // SAFETY: `base` is the mapping of the segment. `IS_SHRUNK` keeps threads from making parts
    // accessible.
    unsafe { unmap_closed(base, &geometry) };
}

/// Gives up the mapping in a forked child. With `is_in_use`, its accessible parts are replaced by
/// private memory instead, because an interrupted sample may continue there. Returns false if that
/// fails.
///
/// # Safety
/// `base` is the mapping of the whole segment, no longer in `BASE`, in a process with one thread.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub(super) unsafe fn give_up(base: *mut u8, is_in_use: bool) -> bool {
    let geometry = geometry();
    let is_shrunk = IS_SHRUNK.load(Ordering::Relaxed);
    if !is_in_use && !is_shrunk {
        // SAFETY: no thread uses the mapping any more.
        unsafe { sys::unmap(base.cast(), BYTES.load(Ordering::Relaxed)) };
        return true;
    }
    // SAFETY: the calls unmap or cover only accessible parts, which are still ours after `shrink`;
    // addresses between them may belong to others.
    unsafe {
        if !is_shrunk {
            unmap_closed(base, &geometry);
        }
        let is_given_up = open_pages(&geometry).all(|part| {
            let at: *mut c_void = base.add(part.start).cast();
            if is_in_use {
                sys::cover(at, part.len())
            } else {
                sys::unmap(at, part.len())
            }
        });
        if is_shrunk {
            IS_SHRUNK.store(false, Ordering::Relaxed);
        }
        is_given_up
    }
}

/// Makes a part of the segment accessible. Returns false if that fails.
fn make_accessible(base: *mut u8, from: usize, to: usize) -> bool {
    let from = from & !(PAGE - 1);
    let len = to.next_multiple_of(PAGE) - from;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the part is inside the mapping of the segment, and no access is taken away.
    unsafe { libc::mprotect(base.add(from).cast(), len, access) == 0 }
}

/// Backs a part of the segment with memory. Returns false if that fails.
fn populate(base: *mut u8, from: usize, to: usize) -> bool {
    let from = from & !(PAGE - 1);
    let len = to.next_multiple_of(PAGE) - from;
    // SAFETY: the part is inside the mapping of the segment, and populating pages changes none of
    // their bytes.
    unsafe { libc::madvise(base.add(from).cast(), len, MADV_POPULATE_WRITE) == 0 }
}

/// Returns true if the kernel supports [`populate`]. Tries it on `page`, a page that belongs to the
/// agent.
pub(super) fn can_populate(page: *mut c_void) -> bool {
    // SAFETY: the page is mapped and writable.
    unsafe { libc::madvise(page, PAGE, MADV_POPULATE_WRITE) == 0 }
}
