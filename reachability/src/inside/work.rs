//! Search of the heap, as it runs in a copy of the process.
//!
//! All input is in the shared words. Tables are given by offsets from their start, since the words
//! have a different address in the copy. The code calls nothing outside this program's file, uses
//! no global variables, and neither allocates nor panics: see [`crate::memory::Work`].

// Decision 37: the copy searches its own memory.
use std::mem::MaybeUninit;
use std::ptr;

use super::layout::{
    HEADERS, Header, LEAF, LEAF_BITS, PAGE, PAGE_BITS, Page, SINGLE_REGION, SlabClass,
};
use crate::heap::INVERSE_BITS;
use crate::object::{Content, find_by_words};

/// Size of a word in bytes.
const WORD: u64 = 8;
/// Number of regions whose memory is prefetched ahead of the search.
const PREFETCHED_REGIONS: usize = 16;
/// Number of words whose page descriptions are prefetched before they are looked up.
const PREFETCHED_WORDS: usize = 64;
/// Number of regions that are queued in a search by address before they are searched. At most the
/// capacity of the queue.
pub const REGIONS_PER_DRAIN: u64 = 256;

/// Region to search.
#[derive(Clone, Copy)]
struct Item {
    /// Address in the low 48 bits; number of the slab class in the high 16.
    address: u64,
    /// Number of the region in the low 32 bits; if it is the only region of its extent, the high 32
    /// bits hold the index of the extent.
    number: u64,
}

/// Searches the ranges and the pending regions, and follows all pointers.
///
/// # Safety
/// `words` are the shared words that [`super::Tables`] has written, and the memory that they
/// describe as readable is readable.
pub unsafe extern "C" fn work(words: *mut u64) {
    // SAFETY: the shared words start with the header.
    let header = unsafe { words.cast::<Header>().read() };
    let mut search = Search {
        words,
        header,
        first: 0,
        count: 0,
        by_address: false,
        deferred: 0,
        candidates: [const { MaybeUninit::uninit() }; PREFETCHED_WORDS],
        candidate_count: 0,
    };
    // SAFETY: the tables are as `Tables` has written them, which the caller guarantees.
    unsafe {
        search.search_ranges();
        loop {
            search.sweep();
            if search.deferred == 0 {
                break;
            }
            search.by_address = search.deferred >= search.header.queue_capacity;
            search.deferred = 0;
        }
        search.report_progress();
    }
}

/// Word that may be a pointer, and its origin.
#[derive(Clone, Copy)]
struct Candidate {
    word: u64,
    from: u64,
    /// Address of the description of its page.
    page: *mut u64,
}

/// Region that a word points to.
#[derive(Clone, Copy)]
struct Target {
    item: Item,
    from: u64,
}

/// Search that is under way.
struct Search {
    words: *mut u64,
    header: Header,
    /// Start of the queue, and number of regions in it.
    first: u64,
    count: u64,
    /// True if reached regions are not queued, but deferred to the next sweep, which visits them in
    /// the order of their addresses. If there are many regions, that is faster, since neighbours
    /// share TLB entries, although it takes as many sweeps as the object graph is deep.
    by_address: bool,
    /// Number of deferred regions.
    deferred: u64,
    /// Collected words; the first `candidate_count` are initialized. They are not zeroed, since the
    /// compiler would call `memset`, which is not available here.
    candidates: [MaybeUninit<Candidate>; PREFETCHED_WORDS],
    candidate_count: usize,
}

// All unsafe functions here have the same requirement as `work`: that the tables are as `Tables`
// has written them. Every index into a table comes from another table.
impl Search {
    /// Returns the address of a table's word.
    #[inline(always)]
    unsafe fn at(&self, table: u64, index: u64) -> *mut u64 {
        // SAFETY: the index is inside the shared words, which `work` requires.
        unsafe { self.words.add(table.wrapping_add(index) as usize) }
    }

    /// Converts an address of the process to the address of the same memory here.
    #[inline(always)]
    fn in_place(&self, address: u64) -> *const u64 {
        ptr::with_exposed_provenance(address.wrapping_add(self.header.shift) as usize)
    }

    /// Reports progress.
    unsafe fn report_progress(&self) {
        // SAFETY: the first word is the progress counter.
        unsafe { self.words.write_volatile(self.header.scanned) };
    }

    unsafe fn search_ranges(&mut self) {
        for index in 0..self.header.range_count {
            // SAFETY: the tables are valid, as for all functions of `Search`.
            unsafe {
                let range = self.at(self.header.ranges, index.wrapping_mul(3));
                let start = *range;
                let end = *range.add(1);
                let from = *range.add(2);
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

    /// Searches the pending regions in the order of their addresses, and those regions that are
    /// queued in the meantime.
    unsafe fn sweep(&mut self) {
        for index in 0..self.header.extent_count {
            // SAFETY: the tables are valid, as for all functions of `Search`.
            unsafe {
                let extent = self.at(self.header.extents, index.wrapping_mul(3));
                let start = *extent;
                let size = *extent.add(1) & !HEADERS;
                let numbers = *extent.add(2);
                let first = numbers & 0xffff_ffff;
                let count = numbers >> 32;
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
                    let number = match page.class() {
                        SINGLE_REGION => region | (index << 32),
                        _ => region,
                    };
                    self.write(Item {
                        address: at | (page.class() << 48),
                        number,
                    });
                    self.add(1);
                    if self.by_address && self.count >= REGIONS_PER_DRAIN {
                        self.drain();
                    }
                    region = region.wrapping_add(1);
                }
            }
        }
        // SAFETY: the tables are valid, as for all functions of `Search`.
        unsafe { self.drain() };
    }

    /// Returns the description of the page of an address in the heap.
    #[inline(always)]
    unsafe fn page(&self, address: u64) -> Page {
        let offset = address.wrapping_sub(self.header.low);
        if offset >= self.header.span {
            return Page(0);
        }
        // SAFETY: the tables are valid, as for all functions of `Search`; the leaf table covers the
        // whole span.
        unsafe {
            let leaf = *self.at(self.header.leaf_table, offset >> LEAF_BITS);
            match leaf {
                0 => Page(0),
                leaf => Page(*self.at(leaf, (offset >> PAGE_BITS) & (LEAF - 1))),
            }
        }
    }

    /// Collects a word that may be a pointer.
    #[inline(always)]
    unsafe fn collect(&mut self, word: u64, from: u64) {
        let offset = word.wrapping_sub(self.header.low);
        if offset >= self.header.span {
            return;
        }
        if self.count == 0 && !self.by_address {
            // In a linked list, there may be nothing else to search before this region, so its
            // memory is prefetched at once.
            prefetch(self.in_place(word));
        }
        // SAFETY: the tables are valid, as for all functions of `Search`; the leaf table covers the
        // whole span, and there is room for one more candidate.
        unsafe {
            let leaf = *self.at(self.header.leaf_table, offset >> LEAF_BITS);
            if leaf == 0 {
                return;
            }
            let page = self.at(leaf, (offset >> PAGE_BITS) & (LEAF - 1));
            prefetch(page);
            let slot = self.candidates.as_mut_ptr().add(self.candidate_count);
            (*slot).write(Candidate { word, from, page });
            self.candidate_count = self.candidate_count.wrapping_add(1);
            if self.candidate_count == PREFETCHED_WORDS {
                self.mark_collected();
            }
        }
    }

    /// Marks the regions that the collected words point to. The descriptions of their pages have
    /// been prefetched by now. While the regions are looked up, the words of the bitmaps are
    /// prefetched.
    #[inline(never)]
    unsafe fn mark_collected(&mut self) {
        let mut targets = [const { MaybeUninit::<Target>::uninit() }; PREFETCHED_WORDS];
        let mut count = 0_usize;
        // SAFETY: the tables are valid, as for all functions of `Search`; there are at most as many
        // targets as candidates.
        unsafe {
            for index in 0..self.candidate_count {
                let candidate = (*self.candidates.as_ptr().add(index)).assume_init();
                let Some(item) = self.look_up(candidate.word, Page(*candidate.page)) else {
                    continue;
                };
                let bits = (item.number & 0xffff_ffff) / 64;
                prefetch(self.at(self.header.marked, bits));
                if self.by_address {
                    prefetch(self.at(self.header.pending, bits));
                }
                let from = candidate.from;
                (*targets.as_mut_ptr().add(count)).write(Target { item, from });
                count = count.wrapping_add(1);
            }
            self.candidate_count = 0;
            for index in 0..count {
                let target = (*targets.as_ptr().add(index)).assume_init();
                self.mark(target.item, target.from);
            }
        }
    }

    /// Returns the region that a word points to. `page` describes the word's page.
    #[inline(always)]
    unsafe fn look_up(&self, word: u64, page: Page) -> Option<Item> {
        // SAFETY: the tables are valid, as for all functions of `Search`.
        unsafe {
            match page.class() {
                0 => None,
                SINGLE_REGION => {
                    let extent = self.at(self.header.extents, page.first().wrapping_mul(3));
                    let start = *extent;
                    let size = *extent.add(1) & !HEADERS;
                    let region = *extent.add(2) & 0xffff_ffff;
                    (word.wrapping_sub(start) < size).then_some(Item {
                        address: start | (SINGLE_REGION << 48),
                        number: region | (page.first() << 32),
                    })
                }
                number => {
                    let class = self.class(number);
                    let distance = (page.index() << PAGE_BITS) | (word & (PAGE - 1));
                    let index = distance.wrapping_mul(class.inverse) >> INVERSE_BITS;
                    let offset = distance.wrapping_sub(index.wrapping_mul(class.size()));
                    (index < class.count()).then_some(Item {
                        address: word.wrapping_sub(offset) | (number << 48),
                        number: page.first().wrapping_add(index),
                    })
                }
            }
        }
    }

    /// Marks a region, and queues it if it is new.
    #[inline(always)]
    unsafe fn mark(&mut self, item: Item, from: u64) {
        let region = item.number & 0xffff_ffff;
        let bit = 1 << (region % 64);
        // SAFETY: the tables are valid, as for all functions of `Search`.
        unsafe {
            let marked = self.at(self.header.marked, region / 64);
            let old = *marked;
            *marked = old | bit;
            let is_new = old & bit == 0;
            if self.header.origins != 0 && is_new {
                let origins = self.at(self.header.origins, 0).cast::<u32>();
                *origins.add(region as usize) = from as u32;
            }
            if self.by_address {
                *self.at(self.header.pending, region / 64) |= bit & !old;
                self.deferred = self.deferred.wrapping_add(u64::from(is_new));
                return;
            }
            // Written in any case: a branch on whether the region is new would be unpredictable.
            self.write(item);
            self.add(u64::from(is_new));
        }
    }

    /// Writes an item after the end of the queue, which has room for one more.
    #[inline(always)]
    unsafe fn write(&mut self, item: Item) {
        // SAFETY: the tables are valid, as for all functions of `Search`.
        unsafe {
            let words = self.entry(self.count);
            *words = item.address;
            *words.add(1) = item.number;
        }
    }

    /// Adds the items that were written to the queue. When the queue is full, further regions are
    /// deferred.
    #[inline(always)]
    fn add(&mut self, count: u64) {
        self.count = self.count.wrapping_add(count);
        self.by_address |= self.count == self.header.queue_capacity;
    }

    /// Returns the words of a queue entry.
    #[inline(always)]
    unsafe fn entry(&self, index: u64) -> *mut u64 {
        let mask = self.header.queue_capacity.wrapping_sub(1);
        let slot = self.first.wrapping_add(index) & mask;
        // SAFETY: the tables are valid, as for all functions of `Search`.
        unsafe { self.at(self.header.queue, slot.wrapping_mul(2)) }
    }

    /// Returns the slab class with this number.
    #[inline(always)]
    unsafe fn class(&self, number: u64) -> SlabClass {
        // SAFETY: the tables are valid, as for all functions of `Search`; numbers start at 1.
        unsafe {
            let words = self.at(
                self.header.slab_classes,
                number.wrapping_sub(1).wrapping_mul(2),
            );
            SlabClass {
                inverse: *words,
                shape: *words.add(1),
            }
        }
    }

    /// Searches all regions in the queue, including those that are added during the search. The
    /// memory of upcoming regions is prefetched while others are searched.
    unsafe fn drain(&mut self) {
        let mut ahead = [const { MaybeUninit::<Item>::uninit() }; PREFETCHED_REGIONS];
        let mut first = 0_usize;
        let mut count = 0_usize;
        loop {
            while count < PREFETCHED_REGIONS && self.count > 0 {
                // SAFETY: the tables are valid, as for all functions of `Search`.
                let item = unsafe {
                    let words = self.entry(0);
                    Item {
                        address: *words,
                        number: *words.add(1),
                    }
                };
                self.first = self.first.wrapping_add(1);
                self.count = self.count.wrapping_sub(1);
                prefetch(self.in_place(item.address & ((1 << 48) - 1)));
                ahead[first.wrapping_add(count) % PREFETCHED_REGIONS].write(item);
                count = count.wrapping_add(1);
            }
            if count == 0 {
                if self.candidate_count == 0 {
                    return;
                }
                // SAFETY: the tables are valid, as for all functions of `Search`.
                unsafe { self.mark_collected() };
                continue;
            }
            // SAFETY: this entry, like the next `count` ones, was initialized above.
            let item = unsafe { ahead[first % PREFETCHED_REGIONS].assume_init() };
            first = first.wrapping_add(1);
            count = count.wrapping_sub(1);
            // SAFETY: the tables are valid, as for all functions of `Search`.
            unsafe {
                self.search_item(item);
                self.report_progress();
            }
        }
    }

    /// Searches a region.
    #[inline(always)]
    unsafe fn search_item(&mut self, item: Item) {
        let at = item.address & ((1 << 48) - 1);
        let class = item.address >> 48;
        let region = item.number & 0xffff_ffff;
        // SAFETY: the tables are valid, as for all functions of `Search`.
        unsafe {
            if class == SINGLE_REGION {
                let extent = self.at(self.header.extents, (item.number >> 32).wrapping_mul(3));
                let size = *extent.add(1);
                self.search_pages(at, size & !HEADERS, size & HEADERS != 0, region);
                return;
            }
            let class = self.class(class);
            let size = class.size();
            if class.shape & SlabClass::PARTIAL != 0 {
                let is_sampled = class.shape & SlabClass::SAMPLED != 0;
                self.search_pages(at, size, is_sampled, region);
                return;
            }
            if class.shape & SlabClass::SAMPLED != 0 && !self.is_alive(at, size) {
                return;
            }
            self.search(at, at.wrapping_add(size), region);
        }
    }

    /// Returns true if memory that is entirely readable contains a live sampled object.
    #[inline(always)]
    unsafe fn is_alive(&self, at: u64, size: u64) -> bool {
        // SAFETY: the caller guarantees that the memory is readable in place.
        let word = |address: u64| unsafe { *self.in_place(address) };
        is_alive_in(at, size, word)
    }

    /// Searches a region of which some pages may not be readable in place.
    #[inline(never)]
    unsafe fn search_pages(&mut self, at: u64, size: u64, is_sampled: bool, region: u64) {
        let end = at.wrapping_add(size);
        // SAFETY: the tables are valid, as for all functions of `Search`.
        unsafe {
            let mut next = at;
            let mut is_in_place = true;
            while next < end {
                let page = self.page(next);
                if page.0 & Page::OUTSIDE != 0 {
                    *self.at(self.header.outside, region / 64) |= 1 << (region % 64);
                    return;
                }
                is_in_place &= page.0 & Page::IN_PLACE != 0;
                next = (next | (PAGE - 1)).wrapping_add(1);
            }
            if is_sampled {
                let is_alive = if is_in_place {
                    self.is_alive(at, size)
                } else {
                    self.is_alive_with_zeros(at, size)
                };
                if !is_alive {
                    return;
                }
            }
            next = at;
            while next < end {
                let stop = (next | (PAGE - 1)).wrapping_add(1).min(end);
                if self.page(next).0 & Page::IN_PLACE != 0 {
                    self.search(next, stop, region);
                    self.report_progress();
                }
                next = stop;
            }
        }
    }

    /// Returns true if memory of which some pages are zeros contains a live sampled object.
    #[inline(always)]
    unsafe fn is_alive_with_zeros(&self, at: u64, size: u64) -> bool {
        // SAFETY: the tables are valid, as for all functions of `Search`. A word does not cross a
        // page boundary, since regions and offsets are multiples of 8.
        let word = |address: u64| unsafe {
            match self.page(address).0 & Page::IN_PLACE {
                0 => 0,
                _ => *self.in_place(address),
            }
        };
        is_alive_in(at, size, word)
    }

    /// Searches memory that is readable in place and consists of whole words.
    #[inline(always)]
    unsafe fn search(&mut self, start: u64, end: u64, from: u64) {
        let bytes = end.wrapping_sub(start);
        self.header.scanned = self.header.scanned.wrapping_add(bytes);
        let mut at = self.in_place(start);
        // SAFETY: the caller guarantees that the memory is readable in place, and the tables are
        // valid, as for all functions of `Search`.
        unsafe {
            let last = at.byte_add(bytes as usize);
            while at < last {
                let word = *at;
                if word.wrapping_sub(self.header.low) < self.header.span {
                    self.collect(word, from);
                }
                at = at.add(1);
            }
        }
    }
}

/// Returns true if memory that is read with `word` contains a live sampled object.
#[inline(always)]
fn is_alive_in(at: u64, size: u64, word: impl Fn(u64) -> u64) -> bool {
    let peek = |offset: u64| {
        let start = at.wrapping_add(offset);
        let is_inside = offset.wrapping_add(2 * WORD) <= size;
        is_inside.then(|| [word(start), word(start.wrapping_add(WORD))])
    };
    // If a reached object has no valid header, its header was overwritten, so it counts as alive.
    !matches!(find_by_words(at, size, peek), Content::Nothing)
}

/// Prefetches memory, which may be unmapped.
#[inline(always)]
fn prefetch(address: *const u64) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect on memory and does not fault at any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a prefetch has no effect on memory and does not fault at any address.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
}
