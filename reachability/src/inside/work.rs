//! The search itself, as it runs in a copy of the process.
//!
//! All it knows is in the shared words, at distances from their start, since they are elsewhere
//! there. It calls nothing outside this program's file and uses no variables, neither allocates nor
//! panics: see [`crate::memory::Work`].

// Decision 37: the copy searches its own memory.
use std::mem::MaybeUninit;
use std::ptr;

use super::layout::{HEADERS, Header, Kind, LEAF, LEAF_BITS, ONE, PAGE, PAGE_BITS, Page};
use crate::heap::INVERSE_BITS;
use crate::object::{Content, find_by_words};

/// Bytes of a word.
const WORD: u64 = 8;
/// Regions whose memory is being fetched.
const AHEAD: usize = 16;
/// Words whose tables are being fetched.
const MET: usize = 64;
/// Regions that are searched at once in the order of their addresses; no more than the queue has
/// room for.
pub const RUN: u64 = 256;

/// A region to search.
#[derive(Clone, Copy)]
struct Item {
    /// Its address, and above it its kind.
    place: u64,
    /// Its number, and above it, if it is an extent's only one, that extent's.
    number: u64,
}

/// Follows all pointers.
///
/// # Safety
/// `words` are those that [`super::Tables`] has laid out, and what they say is here can be read.
pub unsafe extern "C" fn work(words: *mut u64) {
    // SAFETY: the words begin with it.
    let header = unsafe { words.cast::<Header>().read() };
    let mut flood = Flood {
        words,
        header,
        first: 0,
        count: 0,
        by_address: false,
        put_off: 0,
        met: [const { MaybeUninit::uninit() }; MET],
        met_count: 0,
    };
    // SAFETY: as the caller says.
    unsafe {
        flood.search_ranges();
        loop {
            flood.sweep();
            if flood.put_off == 0 {
                break;
            }
            flood.by_address = flood.put_off >= flood.header.queue_room;
            flood.put_off = 0;
        }
        flood.tell();
    }
}

/// A word that may be a pointer, and what led to it.
#[derive(Clone, Copy)]
struct Met {
    word: u64,
    from: u64,
    /// Where the word of its page is.
    page: *mut u64,
}

/// A region that a word points to.
#[derive(Clone, Copy)]
struct Found {
    item: Item,
    from: u64,
}

struct Flood {
    words: *mut u64,
    header: Header,
    /// Where the queue begins, and how many regions it has.
    first: u64,
    count: u64,
    /// Whether what is reached is not queued, but put off, to be searched in the order of
    /// addresses. With many regions that is faster, though it takes as many rounds as a tree is
    /// deep: neighbours share pages, whose addresses the processor takes long to translate.
    by_address: bool,
    /// Regions that were put off.
    put_off: u64,
    /// Words that are noted, the first this many. Not zeros at first: to write them, the compiler
    /// would call `memset`, which is not here.
    met: [MaybeUninit<Met>; MET],
    met_count: usize,
}

// All of its functions have the same duty, that of `work`: the tables are as laid out. Every
// number that leads into one comes from another one of them.
impl Flood {
    /// The word at a distance in a table.
    #[inline(always)]
    unsafe fn at(&self, table: u64, index: u64) -> *mut u64 {
        // SAFETY: in the shared words, as `work` demands.
        unsafe { self.words.add(table.wrapping_add(index) as usize) }
    }

    /// The word at an address of the process.
    #[inline(always)]
    fn here(&self, address: u64) -> *const u64 {
        ptr::with_exposed_provenance(address.wrapping_add(self.header.shift) as usize)
    }

    /// Says that it is at work.
    unsafe fn tell(&self) {
        // SAFETY: the first word is for that.
        unsafe { self.words.write_volatile(self.header.scanned) };
    }

    unsafe fn search_ranges(&mut self) {
        for index in 0..self.header.range_count {
            // SAFETY: as for all.
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

    /// Searches what is pending, by address, and what it leads to as far as that is queued.
    unsafe fn sweep(&mut self) {
        for index in 0..self.header.extent_count {
            // SAFETY: as for all.
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
                        ONE => region | index << 32,
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
        // SAFETY: as for all.
        unsafe { self.drain() };
    }

    /// What is known of the page that an address of the heap lies in.
    #[inline(always)]
    unsafe fn page(&self, address: u64) -> Page {
        let offset = address.wrapping_sub(self.header.low);
        if offset >= self.header.span {
            return Page(0);
        }
        // SAFETY: as for all; the roots are for all of the span.
        unsafe {
            let leaf = *self.at(self.header.roots, offset >> LEAF_BITS);
            match leaf {
                0 => Page(0),
                leaf => Page(*self.at(leaf, offset >> PAGE_BITS & (LEAF - 1))),
            }
        }
    }

    /// Notes a word that may be a pointer.
    #[inline(always)]
    unsafe fn meet(&mut self, word: u64, from: u64) {
        let offset = word.wrapping_sub(self.header.low);
        if offset >= self.header.span {
            return;
        }
        if self.count == 0 && !self.by_address {
            // Perhaps there is nothing else to search, as along a list: then this is waited for.
            fetch(self.here(word));
        }
        // SAFETY: as for all; the roots are for all of the span, and there is room for one more.
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
            if self.met_count == MET {
                self.settle();
            }
        }
    }

    /// Reaches what the noted words point to. By now their pages' words have been fetched, and
    /// while the regions are looked up, so are the bits.
    #[inline(never)]
    unsafe fn settle(&mut self) {
        let mut found = [const { MaybeUninit::<Found>::uninit() }; MET];
        let mut count = 0_usize;
        // SAFETY: as for all; no more are found than were met.
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

    /// The region that a word points to, which lies in a page.
    #[inline(always)]
    unsafe fn look_up(&self, word: u64, page: Page) -> Option<Item> {
        // SAFETY: as for all.
        unsafe {
            match page.kind() {
                0 => None,
                ONE => {
                    let extent = self.at(self.header.extents, page.first().wrapping_mul(3));
                    let (start, size) = (*extent, *extent.add(1) & !HEADERS);
                    let region = *extent.add(2) & 0xffff_ffff;
                    (word.wrapping_sub(start) < size).then_some(Item {
                        place: start | ONE << 48,
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

    /// Reaches a region, if that is new.
    #[inline(always)]
    unsafe fn take(&mut self, item: Item, from: u64) {
        let region = item.number & 0xffff_ffff;
        let bit = 1 << (region % 64);
        // SAFETY: as for all.
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
                self.put_off = self.put_off.wrapping_add(u64::from(is_new));
                return;
            }
            // Written in any case: whether it is new cannot be foreseen.
            self.write(item);
            self.add(u64::from(is_new));
        }
    }

    /// Writes to where the queue ends; it has room for one.
    #[inline(always)]
    unsafe fn write(&mut self, item: Item) {
        // SAFETY: as for all.
        unsafe {
            let words = self.queued(self.count);
            *words = item.place;
            *words.add(1) = item.number;
        }
    }

    /// Counts what was written. A full queue takes nothing more until it has been searched.
    #[inline(always)]
    fn add(&mut self, count: u64) {
        self.count = self.count.wrapping_add(count);
        self.by_address |= self.count == self.header.queue_room;
    }

    /// The words of a region in the queue, whose room is a power of two.
    #[inline(always)]
    unsafe fn queued(&self, index: u64) -> *mut u64 {
        let room = self.header.queue_room;
        let place = self.first.wrapping_add(index) & room.wrapping_sub(1);
        // SAFETY: as for all.
        unsafe { self.at(self.header.queue, place.wrapping_mul(2)) }
    }

    #[inline(always)]
    unsafe fn kind(&self, kind: u64) -> Kind {
        // SAFETY: as for all; kinds are counted from 1 on.
        unsafe {
            let words = self.at(self.header.kinds, kind.wrapping_sub(1).wrapping_mul(2));
            Kind {
                inverse: *words,
                shape: *words.add(1),
            }
        }
    }

    /// Searches all regions of the queue and what comes to it. The memory of some is fetched while
    /// others are searched.
    unsafe fn drain(&mut self) {
        let mut ahead = [const { MaybeUninit::<Item>::uninit() }; AHEAD];
        let (mut first, mut count) = (0_usize, 0_usize);
        loop {
            while count < AHEAD && self.count > 0 {
                // SAFETY: as for all.
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
                ahead[first.wrapping_add(count) % AHEAD].write(item);
                count = count.wrapping_add(1);
            }
            if count == 0 {
                if self.met_count == 0 {
                    return;
                }
                // SAFETY: as for all.
                unsafe { self.settle() };
                continue;
            }
            // SAFETY: written above, as are the next `count` ones.
            let item = unsafe { ahead[first % AHEAD].assume_init() };
            first = first.wrapping_add(1);
            count = count.wrapping_sub(1);
            // SAFETY: as for all.
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
        // SAFETY: as for all.
        unsafe {
            if kind == ONE {
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

    /// Whether a sampled object is in memory that can all be read.
    #[inline(always)]
    unsafe fn is_alive(&self, at: u64, size: u64) -> bool {
        // SAFETY: readable, as the caller says.
        let word = |address: u64| unsafe { *self.here(address) };
        is_alive_in(at, size, word)
    }

    /// Searches a region of which perhaps not all is here.
    #[inline(never)]
    unsafe fn search_pages(&mut self, at: u64, size: u64, is_sampled: bool, region: u64) {
        let end = at.wrapping_add(size);
        // SAFETY: as for all.
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

    /// Whether a sampled object is in memory of which some pages are zeros.
    #[inline(always)]
    unsafe fn is_alive_in_part(&self, at: u64, size: u64) -> bool {
        // SAFETY: as for all; a word is in one page, since regions and offsets are multiples of 8.
        let word = |address: u64| unsafe {
            match self.page(address).0 & Page::HERE {
                0 => 0,
                _ => *self.here(address),
            }
        };
        is_alive_in(at, size, word)
    }

    /// Searches memory that is here, of whole words.
    #[inline(always)]
    unsafe fn search(&mut self, start: u64, end: u64, from: u64) {
        let bytes = end.wrapping_sub(start);
        self.header.scanned = self.header.scanned.wrapping_add(bytes);
        let mut at = self.here(start);
        // SAFETY: readable, as the caller says; and as for all.
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

/// Whether a sampled object is in memory of which `word` gives the words.
#[inline(always)]
fn is_alive_in(at: u64, size: u64, word: impl Fn(u64) -> u64) -> bool {
    let peek = |offset: u64| {
        let start = at.wrapping_add(offset);
        let is_inside = offset.wrapping_add(2 * WORD) <= size;
        is_inside.then(|| [word(start), word(start.wrapping_add(WORD))])
    };
    // What is reached and has no header that makes sense is an object whose header was overwritten.
    !matches!(find_by_words(at, size, peek), Content::Nothing)
}

/// Asks the processor to fetch memory, which need not be there.
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
