//! List of what the program exempts from leak checks: objects, memory that may hold pointers, and
//! strings with suppressions and options. A check from outside reads it from the process's memory.
//!
//! No lock is taken: each entry is claimed with one atomic operation. Objects of a thread that has
//! exempted all of its allocations are not listed: their headers say so ([`crate::object`]).

use crate::own;
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use shm_protocol::clock;
use shm_protocol::layout::{EXEMPT_OBJECT, EXEMPT_REGION, Exemption};

/// Maximum number of entries: 1.5 MiB of address space, of which the used part becomes resident.
const MAX_ENTRIES: usize = 1 << 16;
/// Kind of an entry that is being written.
const CLAIMED: u64 = u64::MAX;

/// List, with the layout that outside readers expect.
#[repr(C)]
struct List {
    entries: AtomicPtr<Exemption>,
    /// Number of entries that are or were in use.
    count: AtomicU64,
}

static LIST: List = List {
    entries: AtomicPtr::new(null_mut()),
    count: AtomicU64::new(0),
};

/// Returns the address of the list.
pub fn list_address() -> u64 {
    (&raw const LIST).addr() as u64
}

/// Exempts the object that contains an address. Returns false if the list is full.
pub fn add_object(at: u64) -> bool {
    let tick = clock::tick_of(clock::now_ns());
    add(EXEMPT_OBJECT, at, u64::from(tick))
}

/// Removes the exemption of an object.
pub fn remove_object(at: u64) {
    remove(|entry| entry.kind == EXEMPT_OBJECT && entry.at == at);
}

/// Adds memory that may hold pointers. Returns false if the list is full.
pub fn add_region(at: u64, bytes: u64) -> bool {
    add(EXEMPT_REGION, at, bytes)
}

/// Adds a string of the program, which must not be freed. `kind` is one of the `DECLARED_`
/// constants. Returns false if the list is full.
pub fn add_text(kind: u64, at: u64, bytes: u64) -> bool {
    add(kind, at, bytes)
}

/// Removes memory that may hold pointers.
pub fn remove_region(at: u64, bytes: u64) {
    remove(|entry| entry.kind == EXEMPT_REGION && entry.at == at && entry.extent == bytes);
}

/// Adds an entry. Returns false if the list is full.
fn add(kind: u64, at: u64, extent: u64) -> bool {
    let Some(entries) = entries_or_new() else {
        return false;
    };
    let Some(entry) = claim_unused(entries).or_else(|| claim_freed(entries)) else {
        return false;
    };
    entry.at.store(at, Ordering::Relaxed);
    entry.extent.store(extent, Ordering::Relaxed);
    entry.kind.store(kind, Ordering::Release);
    true
}

/// Returns an entry that was never in use.
fn claim_unused(entries: &[Exemption]) -> Option<&Exemption> {
    let next = |count: u64| (count < MAX_ENTRIES as u64).then_some(count + 1);
    let index = LIST
        .count
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    entries.get(index.ok()? as usize)
}

/// Claims an entry that is no longer in use.
#[cold]
fn claim_freed(entries: &[Exemption]) -> Option<&Exemption> {
    entries.iter().find(|entry| {
        let claim = entry
            .kind
            .compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed);
        claim.is_ok()
    })
}

/// Contents of an entry in use.
struct Entry {
    kind: u64,
    at: u64,
    /// Size of a region or string in bytes; tick of an object.
    extent: u64,
}

/// Removes one entry that passes the test.
fn remove(test: impl Fn(Entry) -> bool) {
    let used = LIST.count.load(Ordering::Relaxed) as usize;
    let entries = entries().unwrap_or_default();
    for entry in entries.iter().take(used) {
        let kind = entry.kind.load(Ordering::Acquire);
        let [at, extent] = [&entry.at, &entry.extent].map(|word| word.load(Ordering::Relaxed));
        if kind == 0 || kind == CLAIMED || !test(Entry { kind, at, extent }) {
            continue;
        }
        let released = entry
            .kind
            .compare_exchange(kind, 0, Ordering::Relaxed, Ordering::Relaxed);
        if released.is_ok() {
            return;
        }
    }
}

/// Returns all entries, or `None` before the first was added.
fn entries() -> Option<&'static [Exemption]> {
    let at = LIST.entries.load(Ordering::Acquire);
    // SAFETY: null, or a mapping of this many entries that is never unmapped. They consist of
    // atomics, for which zeros are valid.
    (!at.is_null()).then(|| unsafe { core::slice::from_raw_parts(at, MAX_ENTRIES) })
}

/// Returns all entries, which are mapped first if necessary.
fn entries_or_new() -> Option<&'static [Exemption]> {
    if LIST.entries.load(Ordering::Acquire).is_null() {
        let bytes = MAX_ENTRIES * size_of::<Exemption>();
        let mapped: *mut Exemption = own::map(bytes).cast();
        if mapped.is_null() {
            return None;
        }
        let result =
            LIST.entries
                .compare_exchange(null_mut(), mapped, Ordering::AcqRel, Ordering::Acquire);
        if result.is_err() {
            // SAFETY: just mapped, and no other thread has its address.
            unsafe { own::unmap(mapped.cast(), bytes) };
        }
    }
    entries()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the only list of the process, so there is only this test.
    #[test]
    fn exemptions_are_listed_until_they_are_removed() {
        let listed = || -> std::vec::Vec<(u64, u64)> {
            let used = LIST.count.load(Ordering::Relaxed) as usize;
            let entries = entries().unwrap_or_default();
            let all = entries.iter().take(used).map(|entry| {
                let [kind, at] = [&entry.kind, &entry.at].map(|word| word.load(Ordering::Relaxed));
                (kind, at)
            });
            all.filter(|(kind, _)| *kind != 0).collect()
        };
        remove_object(1);
        assert_eq!(listed(), []);
        assert!(add_object(0x1000) && add_region(0x2000, 64) && add_object(0x3000));
        remove_region(0x2000, 65);
        remove_object(0x2000);
        assert_eq!(listed().len(), 3);
        remove_region(0x2000, 64);
        assert_eq!(listed(), [(EXEMPT_OBJECT, 0x1000), (EXEMPT_OBJECT, 0x3000)]);
        assert!(add_region(0x4000, 8));
        assert_eq!(listed()[2], (EXEMPT_REGION, 0x4000));
        let added = (0..MAX_ENTRIES as u64).filter(|n| add_object(0x10_0000 + n * 16));
        assert_eq!(added.count(), MAX_ENTRIES - 3, "freed ones are used again");
        assert!(!add_object(0x5000));
        (0..MAX_ENTRIES as u64).for_each(|n| remove_object(0x10_0000 + n * 16));
        assert!(add_object(0x5000));
    }
}
