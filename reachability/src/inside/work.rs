//! Search of the heap, as it runs in a copy of the process.
//!
//! All input is in the shared words, given by offsets from their start, since their address differs
//! in the copy. The code calls nothing outside this program's file, uses no variables, and neither
//! allocates nor panics: see [`crate::memory::Work`].

// Decision 37: the copy searches its own memory.
use std::mem::MaybeUninit;
use std::ptr;

use super::layout::{HEADERS, Header, Kind, LEAF, LEAF_BITS, PAGE, PAGE_BITS, Page, SINGLE_REGION};
use crate::heap::INVERSE_BITS;
use crate::object::{Content, find_by_words};

/// Size of a word in bytes.
const WORD: u64 = 8;
/// Number of regions whose memory is being prefetched.
const PREFETCHED_REGIONS: usize = 16;
/// Number of words whose tables are being prefetched.
const PREFETCHED_WORDS: usize = 64;
/// Number of regions that are searched at once in the order of their addresses. At most the
/// capacity of the queue.
pub const RUN: u64 = 256;

/// Region to search.
#[derive(Clone, Copy)]
struct Item {
    /// Address; the kind is in the bits above.
    place: u64,
    /// Number of the region; the bits above hold the extent, if this is its only region.
    number: u64,
}

/// Follows all pointers.
///
/// # Safety
/// `words` are the shared words that [`super::Tables`] has written, and the memory that they
/// describe as readable is readable.
pub unsafe extern "C" fn work(words: *mut u64) {
    // SAFETY: the shared words start with the header.
    let header = unsafe { words.cast::<Header>().read() };
    let mut flood = Flood {
        words,
        header,
        first: 0,
        count: 0,
        by_address: false,
        deferred: 0,
        met: [const { MaybeUninit::uninit() }; PREFETCHED_WORDS],
        met_count: 0,
    };
    // SAFETY: the tables are as `Tables` has written them, which the caller guarantees.
    unsafe {
        flood.search_ranges();
        loop {
            flood.sweep();
            if flood.deferred == 0 {
                break;
            }
            flood.by_address = flood.deferred >= flood.header.queue_room;
            flood.deferred = 0;
        }
        flood.tell();
    }
}

/// Word that may be a pointer, and its origin.
#[derive(Clone, Copy)]
struct Met {
    word: u64,
    from: u64,
    /// Address of the description of its page.
    page: *mut u64,
}

/// Region that a word points to.
#[derive(Clone, Copy)]
struct Found {
    item: Item,
    from: u64,
}

struct Flood {
    words: *mut u64,
    header: Header,
    /// Start of the queue, and number of regions in it.
    first: u64,
    count: u64,
    /// True if reached regions are not queued but deferred, to be searched in the order of their
    /// addresses. With many regions that is faster, since neighbours share TLB entries, though it
    /// takes as many rounds as the object graph is deep.
    by_address: bool,
    /// Number of deferred regions.
    deferred: u64,
    /// Collected words, up to `count`. Not initialized with zeros, since the compiler would call
    /// `memset`, which is not available here.
    met: [MaybeUninit<Met>; PREFETCHED_WORDS],
    met_count: usize,
}

// All unsafe functions here require what `work` does: that the tables are as `Tables` has written
// them. Every index into a table comes from another table.
impl Flood {
    /// Returns the address of a table's word.
    #[inline(always)]
    unsafe fn at(&self, table: u64, index: u64) -> *mut u64 {
        // SAFETY: the index is inside the shared words, which `work` requires.
        unsafe { self.words.add(table.wrapping_add(index) as usize) }
    }

    /// Converts an address of the process to one in place.
    #[inline(always)]
    fn here(&self, address: u64) -> *const u64 {
        ptr::with_exposed_provenance(address.wrapping_add(self.header.shift) as usize)
    }

    /// Reports progress.
    unsafe fn tell(&self) {
        // SAFETY: the first word is the progress counter.
        unsafe { self.words.write_volatile(self.header.scanned) };
    }

    unsafe fn search_ranges(&mut self) {
        for index in 0..self.header.range_count {
            // SAFETY: the tables are valid, as for all functions of `Flood`.
            unsafe {
                let range = self.at(self.header.ranges, index.wrapping_mul(3));
                let (start, end, from) = (*range, *range.add(1), *range.add(2));
                let mut at = start;
                while at < end {
                    let next = (at | (PAGE - 1)).wrapping_add(1).min(end);
                    self.search(at, next, from);
                    self.drain();
                    at = next;
                }
            }
        }
    }

    /// Searches the pending regions in the order of their addresses, and what they lead to as far
    /// as that is queued.
    unsafe fn sweep(&mut self) {
        for index in 0..self.header.extent_count {
            // SAFETY: the tables are valid, as for all functions of `Flood`.
            unsafe {
                let extent = self.at(self.header.extents, index.wrapping_mul(3));
                let (start, size, numbers) = (*extent, *extent.add(1) & !HEADERS, *extent.add(2));
                let (first, count) = (numbers & 0xffff_ffff, numbers >> 32);
                let mut region = first;
                while region < first.wrapping_add(count) {
                    let word = self.at(self.header.pending, region / 64);
                    let rest = *word >> (region % 64);
                    if rest == 0 {
                        region = (region | 63).wrapping_add(1);
                        continue;
                    }
                    region = region.wrapping_add(u64::from(rest.trailing_zeros()));
                    if region >= first.wrapping_add(count) {
                        break;
                    }
                    let word = self.at(self.header.pending, region / 64);
                    *word &= !(1 << (region % 64));
                    let at = start.wrapping_add(region.wrapping_sub(first).wrapping_mul(size));
                    let page = self.page(at);
                    let number = match page.kind() {
                        SINGLE_REGION => region | index << 32,
                        _ => region,
                    };
                    self.write(Item {
                        place: at | page.kind() << 48,
                        number,
                    });
                    self.add(1);
                    if self.by_address && self.count >= RUN {
                        self.drain();
                    }
                    region = region.wrapping_add(1);
                }
            }
        }
        // SAFETY: the tables are valid, as for all functions of `Flood`.
        unsafe { self.drain() };
    }

    /// Returns the description of the page of an address in the heap.
    #[inline(always)]
    unsafe fn page(&self, address: u64) -> Page {
        let offset = address.wrapping_sub(self.header.low);
        if offset >= self.header.span {
            return Page(0);
        }
        // SAFETY: the tables are valid, as for all functions of `Flood`; the roots are for all of
        // the span.
        unsafe {
            let leaf = *self.at(self.header.roots, offset >> LEAF_BITS);
            match leaf {
                0 => Page(0),
                leaf => Page(*self.at(leaf, offset >> PAGE_BITS & (LEAF - 1))),
            }
        }
    }

    /// Collects a word that may be a pointer.
    #[inline(always)]
    unsafe fn meet(&mut self, word: u64, from: u64) {
        let offset = word.wrapping_sub(self.header.low);
        if offset >= self.header.span {
            return;
        }
        if self.count == 0 && !self.by_address {
            // There may be nothing else to search meanwhile, as in a list, so the memory is
            // prefetched already.
            fetch(self.here(word));
        }
        // SAFETY: the tables are valid, as for all functions of `Flood`; the roots are for all of
        // the span, and there is room for one more.
        unsafe {
            let leaf = *self.at(self.header.roots, offset >> LEAF_BITS);
            if leaf == 0 {
                return;
            }
            let page = self.at(leaf, offset >> PAGE_BITS & (LEAF - 1));
            fetch(page);
            let met = self.met.as_mut_ptr().add(self.met_count);
            (*met).write(Met { word, from, page });
            self.met_count = self.met_count.wrapping_add(1);
            if self.met_count == PREFETCHED_WORDS {
                self.settle();
            }
        }
    }

    /// Marks the regions that the collected words point to. Their pages' descriptions have been
    /// prefetched by now; while the regions are looked up, their bits are prefetched.
    #[inline(never)]
    unsafe fn settle(&mut self) {
        let mut found = [const { MaybeUninit::<Found>::uninit() }; PREFETCHED_WORDS];
        let mut count = 0_usize;
        // SAFETY: the tables are valid, as for all functions of `Flood`; no more are found than
        // were met.
        unsafe {
            for index in 0..self.met_count {
                let met = (*self.met.as_ptr().add(index)).assume_init();
                let Some(item) = self.look_up(met.word, Page(*met.page)) else {
                    continue;
                };
                let bits = (item.number & 0xffff_ffff) / 64;
                fetch(self.at(self.header.taken, bits));
                if self.by_address {
                    fetch(self.at(self.header.pending, bits));
                }
                let from = met.from;
                (*found.as_mut_ptr().add(count)).write(Found { item, from });
                count = count.wrapping_add(1);
            }
            self.met_count = 0;
            for index in 0..count {
                let found = (*found.as_ptr().add(index)).assume_init();
                self.take(found.item, found.from);
            }
        }
    }

    /// Returns the region that a word points to. `page` describes the word's page.
    #[inline(always)]
    unsafe fn look_up(&self, word: u64, page: Page) -> Option<Item> {
        // SAFETY: the tables are valid, as for all functions of `Flood`.
        unsafe {
            match page.kind() {
                0 => None,
                SINGLE_REGION => {
                    let extent = self.at(self.header.extents, page.first().wrapping_mul(3));
                    let (start, size) = (*extent, *extent.add(1) & !HEADERS);
                    let region = *extent.add(2) & 0xffff_ffff;
                    (word.wrapping_sub(start) < size).then_some(Item {
                        place: start | SINGLE_REGION << 48,
                        number: region | page.first() << 32,
                    })
                }
                number => {
                    let kind = self.kind(number);
                    let distance = page.index() << PAGE_BITS | word & (PAGE - 1);
                    let index = distance.wrapping_mul(kind.inverse) >> INVERSE_BITS;
                    let back = distance.wrapping_sub(index.wrapping_mul(kind.size()));
                    (index < kind.count()).then_some(Item {
                        place: word.wrapping_sub(back) | number << 48,
                        number: page.first().wrapping_add(index),
                    })
                }
            }
        }
    }

    /// Marks a region, and queues it if it is new.
    #[inline(always)]
    unsafe fn take(&mut self, item: Item, from: u64) {
        let region = item.number & 0xffff_ffff;
        let bit = 1 << (region % 64);
        // SAFETY: the tables are valid, as for all functions of `Flood`.
        unsafe {
            let taken = self.at(self.header.taken, region / 64);
            let old = *taken;
            *taken = old | bit;
            let is_new = old & bit == 0;
            if self.header.from != 0 && is_new {
                let origins = self.at(self.header.from, 0).cast::<u32>();
                *origins.add(region as usize) = from as u32;
            }
            if self.by_address {
                *self.at(self.header.pending, region / 64) |= bit & !old;
                self.deferred = self.deferred.wrapping_add(u64::from(is_new));
                return;
            }
            // Written in any case, since it cannot be predicted whether the region is new.
            self.write(item);
            self.add(u64::from(is_new));
        }
    }

    /// Writes to the end of the queue, which has room for one more.
    #[inline(always)]
    unsafe fn write(&mut self, item: Item) {
        // SAFETY: the tables are valid, as for all functions of `Flood`.
        unsafe {
            let words = self.queued(self.count);
            *words = item.place;
            *words.add(1) = item.number;
        }
    }

    /// Adds what was written to the queue. A full queue accepts nothing more until it has been
    /// searched.
    #[inline(always)]
    fn add(&mut self, count: u64) {
        self.count = self.count.wrapping_add(count);
        self.by_address |= self.count == self.header.queue_room;
    }

    /// Returns the words of a queue entry.
    #[inline(always)]
    unsafe fn queued(&self, index: u64) -> *mut u64 {
        let room = self.header.queue_room;
        let place = self.first.wrapping_add(index) & room.wrapping_sub(1);
        // SAFETY: the tables are valid, as for all functions of `Flood`.
        unsafe { self.at(self.header.queue, place.wrapping_mul(2)) }
    }

    #[inline(always)]
    unsafe fn kind(&self, kind: u64) -> Kind {
        // SAFETY: the tables are valid, as for all functions of `Flood`; kinds are counted from 1
        // on.
        unsafe {
            let words = self.at(self.header.kinds, kind.wrapping_sub(1).wrapping_mul(2));
            Kind {
                inverse: *words,
                shape: *words.add(1),
            }
        }
    }

    /// Searches all regions in the queue, and those added meanwhile. The memory of some is
    /// prefetched while others are searched.
    unsafe fn drain(&mut self) {
        let mut ahead = [const { MaybeUninit::<Item>::uninit() }; PREFETCHED_REGIONS];
        let (mut first, mut count) = (0_usize, 0_usize);
        loop {
            while count < PREFETCHED_REGIONS && self.count > 0 {
                // SAFETY: the tables are valid, as for all functions of `Flood`.
                let item = unsafe {
                    let words = self.queued(0);
                    Item {
                        place: *words,
                        number: *words.add(1),
                    }
                };
                self.first = self.first.wrapping_add(1);
                self.count = self.count.wrapping_sub(1);
                fetch(self.here(item.place & ((1 << 48) - 1)));
                ahead[first.wrapping_add(count) % PREFETCHED_REGIONS].write(item);
                count = count.wrapping_add(1);
            }
            if count == 0 {
                if self.met_count == 0 {
                    return;
                }
                // SAFETY: the tables are valid, as for all functions of `Flood`.
                unsafe { self.settle() };
                continue;
            }
            // SAFETY: this entry, like the next `count` ones, was initialized above.
            let item = unsafe { ahead[first % PREFETCHED_REGIONS].assume_init() };
            first = first.wrapping_add(1);
            count = count.wrapping_sub(1);
            // SAFETY: the tables are valid, as for all functions of `Flood`.
            unsafe {
                self.search_item(item);
                self.tell();
            }
        }
    }

    /// Searches a region.
    #[inline(always)]
    unsafe fn search_item(&mut self, item: Item) {
        let at = item.place & ((1 << 48) - 1);
        let (kind, region) = (item.place >> 48, item.number & 0xffff_ffff);
        // SAFETY: the tables are valid, as for all functions of `Flood`.
        unsafe {
            if kind == SINGLE_REGION {
                let extent = self.at(self.header.extents, (item.number >> 32).wrapping_mul(3));
                let size = *extent.add(1);
                self.search_pages(at, size & !HEADERS, size & HEADERS != 0, region);
                return;
            }
            let kind = self.kind(kind);
            let size = kind.size();
            if kind.shape & Kind::PARTIAL != 0 {
                let is_sampled = kind.shape & Kind::SAMPLED != 0;
                self.search_pages(at, size, is_sampled, region);
                return;
            }
            if kind.shape & Kind::SAMPLED != 0 && !self.is_alive(at, size) {
                return;
            }
            self.search(at, at.wrapping_add(size), region);
        }
    }

    /// Returns true if memory that is all readable contains a live sampled object.
    #[inline(always)]
    unsafe fn is_alive(&self, at: u64, size: u64) -> bool {
        // SAFETY: the caller guarantees that the memory is readable in place.
        let word = |address: u64| unsafe { *self.here(address) };
        is_alive_in(at, size, word)
    }

    /// Searches a region of which some pages may not be readable in place.
    #[inline(never)]
    unsafe fn search_pages(&mut self, at: u64, size: u64, is_sampled: bool, region: u64) {
        let end = at.wrapping_add(size);
        // SAFETY: the tables are valid, as for all functions of `Flood`.
        unsafe {
            let mut next = at;
            let mut is_here = true;
            while next < end {
                let page = self.page(next);
                if page.0 & Page::ELSEWHERE != 0 {
                    *self.at(self.header.foreign, region / 64) |= 1 << (region % 64);
                    return;
                }
                is_here &= page.0 & Page::HERE != 0;
                next = (next | (PAGE - 1)).wrapping_add(1);
            }
            if is_sampled
                && !(if is_here {
                    self.is_alive(at, size)
                } else {
                    self.is_alive_in_part(at, size)
                })
            {
                return;
            }
            next = at;
            while next < end {
                let stop = (next | (PAGE - 1)).wrapping_add(1).min(end);
                if self.page(next).0 & Page::HERE != 0 {
                    self.search(next, stop, region);
                    self.tell();
                }
                next = stop;
            }
        }
    }

    /// Returns true if memory of which some pages are zeros contains a live sampled object.
    #[inline(always)]
    unsafe fn is_alive_in_part(&self, at: u64, size: u64) -> bool {
        // SAFETY: the tables are valid, as for all functions of `Flood`; a word is in one page,
        // since regions and offsets are multiples of 8.
        let word = |address: u64| unsafe {
            match self.page(address).0 & Page::HERE {
                0 => 0,
                _ => *self.here(address),
            }
        };
        is_alive_in(at, size, word)
    }

    /// Searches memory that is readable in place, of whole words.
    #[inline(always)]
    unsafe fn search(&mut self, start: u64, end: u64, from: u64) {
        let bytes = end.wrapping_sub(start);
        self.header.scanned = self.header.scanned.wrapping_add(bytes);
        let mut at = self.here(start);
        // SAFETY: the caller guarantees that the memory is readable in place, and the tables are
        // valid as `work` requires.
        unsafe {
            let last = at.byte_add(bytes as usize);
            while at < last {
                let word = *at;
                if word.wrapping_sub(self.header.low) < self.header.span {
                    self.meet(word, from);
                }
                at = at.add(1);
            }
        }
    }
}

/// Returns true if memory whose words `word` returns contains a live sampled object.
#[inline(always)]
fn is_alive_in(at: u64, size: u64, word: impl Fn(u64) -> u64) -> bool {
    let peek = |offset: u64| {
        let start = at.wrapping_add(offset);
        let is_inside = offset.wrapping_add(2 * WORD) <= size;
        is_inside.then(|| [word(start), word(start.wrapping_add(WORD))])
    };
    // A reached object without a valid header is one whose header was overwritten.
    !matches!(find_by_words(at, size, peek), Content::Nothing)
}

/// Prefetches memory, which need not be mapped.
#[inline(always)]
fn fetch(address: *const u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: changes nothing, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: changes nothing, whatever the address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}
