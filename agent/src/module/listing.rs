//! Modules as last read from `/proc/self/maps`, for C libraries that cannot look up addresses.
//!
//! The maps are read again when an address is in no known module, or in one that was unloaded. A
//! process may have any number of mappings, so a reading may take arbitrarily long; all of them
//! together are limited to 1 % of elapsed time ([`Budget`]). An address that would need a reading
//! before the budget allows one truncates one stack.

use super::found::FoundModule;
use super::maps::{self, Filter, by_header, path_of, runs, search_text};
use crate::own;
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use shm_protocol::clock;
use unwind::elf;
use unwind::fingerprint::Fingerprint;
use unwind::probe;

/// Size of the buffer for the lines of files with code.
const TEXT_BYTES: usize = 1 << 20;
/// Size of the buffer for the names of modules.
const NAMES_BYTES: usize = 256 << 10;
/// Size of the buffer for reading.
const PIECE_BYTES: usize = 64 << 10;
/// Maximum number of modules of one reading.
const MAX_ENTRIES: usize = 4096;

/// State of the listing, mapped at the first search and never unmapped: too large for a thread's
/// stack. All zeros is an empty listing.
#[repr(C)]
struct Listing {
    budget: Budget,
    count: usize,
    text_used: usize,
    names_used: usize,
    entries: [Entry; MAX_ENTRIES],
    names: [u8; NAMES_BYTES],
    text: [u8; TEXT_BYTES],
    piece: [u8; PIECE_BYTES],
}

/// Module: from a mapping of a file's start to the next one of the same file.
#[derive(Clone, Copy)]
struct Entry {
    start: u64,
    end: u64,
    /// Range of the file's lines in the text.
    lines: (u32, u32),
    /// Fingerprint; empty if the header could not be read.
    fingerprint: Fingerprint,
}

impl Entry {
    /// Returns true if the module is still loaded. Does not touch its memory: the kernel compares.
    fn is_loaded(&self) -> bool {
        if self.fingerprint.is_empty() {
            // A header that could not be read must still be unreadable.
            !probe::is_readable(self.start)
        } else {
            self.fingerprint.is_still_mapped()
        }
    }
}

/// Result of searching the maps as last read.
enum SearchResult {
    /// Module that contains the address; `None` if no module's code does.
    Valid(Option<FoundModule>),
    /// The maps must be read again: the address is in no known module, or in one that was
    /// unloaded.
    Outdated,
}

impl Listing {
    /// Finds the module that contains `pc`. Must be called inside `close::reading`.
    fn find(&mut self, pc: u64) -> Option<FoundModule> {
        if let SearchResult::Valid(found) = self.search(pc) {
            return found;
        }
        let start = clock::now_ns();
        if !self.budget.allows(start) {
            return None;
        }
        self.read();
        self.budget.spend(start, clock::now_ns());
        match self.search(pc) {
            SearchResult::Valid(found) => found,
            SearchResult::Outdated => None,
        }
    }

    /// Searches the maps as last read.
    fn search(&mut self, pc: u64) -> SearchResult {
        let entries = &self.entries[..self.count];
        let Some(entry) = entries.iter().find(|e| (e.start..e.end).contains(&pc)) else {
            return SearchResult::Outdated;
        };
        if !entry.is_loaded() {
            return SearchResult::Outdated;
        }
        let (from, to) = entry.lines;
        let found = search_text(&self.text[from as usize..to as usize], pc, by_header);
        let names = &mut self.names;
        let names_used = &mut self.names_used;
        SearchResult::Valid(found.map(|(found, file)| FoundModule {
            name: keep_name(names, names_used, path_of(file)),
            ..found
        }))
    }

    /// Reads the maps. Modules that cannot be read, or do not fit, are not found.
    fn read(&mut self) {
        self.count = 0;
        let mut filter = Filter::new(&mut self.text);
        maps::each_line(&mut self.piece, |line| filter.add(line));
        self.text_used = filter.end();
        let text = &self.text[..self.text_used];
        let mut free = self.entries.iter_mut();
        let mut count = 0;
        for run in runs(text) {
            let from = run.text.as_ptr() as usize - text.as_ptr() as usize;
            let lines = (from as u32, (from + run.text.len()) as u32);
            let mut headers = run.headers().peekable();
            while let Some(header) = headers.next() {
                let end = headers.peek().map_or(run.end, |next| next.start);
                let Some(entry) = free.next() else {
                    self.count = count;
                    return;
                };
                *entry = Entry {
                    start: header.start,
                    end,
                    lines,
                    fingerprint: fingerprint(header.start, run.end),
                };
                count += 1;
            }
        }
        self.count = count;
    }
}

fn fingerprint(start: u64, end: u64) -> Fingerprint {
    // SAFETY: the address is mapped according to the maps that were just read, and no `dlclose` can
    // unmap it inside `reading`.
    let page = unsafe { elf::first_page(start, end) };
    page.map(|page| Fingerprint::of(page, start))
        .unwrap_or_default()
}

/// Limits the time for reading the maps to 1 % of elapsed time.
struct Budget {
    /// Time at which the time spent so far is earned back, in ns. The coarse clock is inaccurate
    /// for a single reading, but accurate for the sum of many.
    earned_ns: u64,
}

impl Budget {
    /// Elapsed time that must pass for each unit of time spent on reading.
    const ELAPSED_PER_SPENT: u64 = 100;
    /// Time in which the largest credit is earned, in ns: 20 ms of reading.
    const MAX_CREDIT_NS: u64 = 2_000_000_000;

    fn allows(&self, now_ns: u64) -> bool {
        self.earned_ns <= now_ns
    }

    fn spend(&mut self, start_ns: u64, end_ns: u64) {
        let spent = end_ns
            .saturating_sub(start_ns)
            .saturating_mul(Self::ELAPSED_PER_SPENT);
        let min = end_ns.saturating_sub(Self::MAX_CREDIT_NS);
        self.earned_ns = self.earned_ns.max(min).saturating_add(spent);
    }
}

static LISTING: AtomicPtr<Listing> = AtomicPtr::new(null_mut());
/// True while a thread uses the listing.
static CLAIMED: AtomicBool = AtomicBool::new(false);
/// True if the last reading must not be used any more.
static STALE: AtomicBool = AtomicBool::new(false);

/// Finds the module that contains `pc` in the maps. Must be called inside `close::reading`. Returns
/// `None`, which truncates one stack, if another thread uses the listing.
pub fn search_maps(pc: u64) -> Option<FoundModule> {
    // A seccomp filter of the program may forbid opening the maps.
    if crate::seccomp::is_installed() || CLAIMED.swap(true, Ordering::Acquire) {
        return None;
    }
    let found = listing().and_then(|listing| {
        if STALE.swap(false, Ordering::Relaxed) {
            listing.count = 0;
        }
        listing.find(pc)
    });
    CLAIMED.store(false, Ordering::Release);
    found
}

/// Forgets modules that were unloaded: another one may look the same. Takes about 1 µs for each
/// module.
pub fn forget_unloaded() {
    if LISTING.load(Ordering::Relaxed).is_null() {
        return;
    }
    if CLAIMED.swap(true, Ordering::Acquire) {
        return STALE.store(true, Ordering::Relaxed);
    }
    if let Some(listing) = listing() {
        let entries = &mut listing.entries[..listing.count];
        let gone = entries.iter_mut().filter(|entry| !entry.is_loaded());
        gone.for_each(|entry| entry.end = entry.start);
    }
    CLAIMED.store(false, Ordering::Release);
}

/// Returns the listing, which the caller must have claimed.
fn listing() -> Option<&'static mut Listing> {
    let mut at = LISTING.load(Ordering::Relaxed);
    if at.is_null() {
        at = own::map(size_of::<Listing>()).cast();
        LISTING.store(at, Ordering::Relaxed);
    }
    // SAFETY: null, or a mapping of this size that is never unmapped. Nobody else uses it while it
    // is claimed, and zeros are valid.
    unsafe { at.as_mut() }
}

/// Releases the listing in a forked child if another thread of the parent was using it. That
/// thread's unfinished reading counts as empty. Must not be called by a thread that is using the
/// listing.
pub fn release_in_child() {
    if CLAIMED.load(Ordering::Relaxed) {
        CLAIMED.store(false, Ordering::Relaxed);
    }
}

/// Returns the address of the terminated `path` in `names`. Adds it if it is new.
fn keep_name(names: &mut [u8], used: &mut usize, path: &[u8]) -> u64 {
    let mut at = 0;
    for name in names[..*used].split_inclusive(|byte| *byte == 0) {
        if name.strip_suffix(&[0]) == Some(path) {
            return &raw const names[at] as u64;
        }
        at += name.len();
    }
    let Some(room) = names[at..].get_mut(..=path.len()) else {
        return c"[unnamed]".as_ptr() as u64;
    };
    room[..path.len()].copy_from_slice(path);
    *used = at + path.len() + 1;
    &raw const names[at] as u64
}

#[cfg(test)]
mod tests;
