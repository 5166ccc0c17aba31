//! Sampled objects whose headers the program has overwritten, by writing before or behind its objects,
//! and such that it frees twice.
//!
//! Where the object's memory begins is asked of jemalloc then, and the memory goes back. Of the object's
//! sums, what the header still tells is enough if the word with its record is intact: the object's
//! weight and birth are taken to be those of the record's other objects on average.

use super::*;
use crate::object::{Met, Remains};
use crate::range::region::{self, Region};
use shm_protocol::header::{self, Counted, HEADER};

/// Bits of an offset in the smallest pages that jemalloc is built for.
const SMALLEST_PAGE_BITS: u32 = 12;

/// Largest mean bytes between samples of any session so far.
static LARGEST_INTERVAL: AtomicU64 = AtomicU64::new(1);

/// Objects may have the weights of this interval.
#[cold]
pub(super) fn expect_interval(interval: u64) {
    LARGEST_INTERVAL.fetch_max(interval, Ordering::Relaxed);
}

/// Whether an object of this size may have this weight. A word that was overwritten passes its check by
/// chance once in 256 times.
#[inline]
pub(super) fn is_plausible(object: &Object) -> bool {
    let bytes = object.bytes.max(1) as f32;
    let largest = LARGEST_INTERVAL.load(Ordering::Relaxed) as f32;
    // Where every allocation is sampled, each stands for itself.
    object.weight == 1.0
        || largest > 1.0 && object.weight * bytes <= (bytes + largest) * header::LARGEST_FACTOR
}

/// The memory of a live object, and how far behind its start the object is. `None`: no object is there.
///
/// # Safety
/// `at` is in the range, in memory of the arena.
unsafe fn memory(at: *const u8) -> Option<(Region, usize)> {
    // SAFETY: the caller's.
    if let Some(region) = unsafe { region::of(at) } {
        let offset = at.addr() - region.base.addr();
        let is_start = matches!(offset, 0 | HEADER) || offset > HEADER && offset.is_power_of_two();
        return is_start.then_some((region, offset));
    }
    // A large object's alignment may be larger than a page, of which only the first leads to it.
    let offset_of = |bits: u32| (1_usize << bits <= at.addr()).then_some(1_usize << bits);
    (SMALLEST_PAGE_BITS..at.addr().trailing_zeros() + 1)
        .filter_map(offset_of)
        .find_map(|offset| {
            // SAFETY: the tree has no memory at an address outside the range, which it is only asked about.
            let region = unsafe { region::of(at.wrapping_sub(offset)) }?;
            let is_its = region.base.addr() + offset == at.addr() && offset < region.bytes;
            is_its.then_some((region, offset))
        })
}

/// Usable size of such an object; 0 if it is none.
///
/// # Safety
/// `p` is in the range.
#[cold]
pub(super) unsafe fn usable_size(at: *const u8, met: Met) -> usize {
    if met == Met::Freed {
        return 0;
    }
    // SAFETY: the caller's.
    let memory = unsafe { memory(at) };
    memory.map_or(0, |(region, offset)| region.bytes - offset)
}

/// Frees such an object; not one that has been freed.
///
/// # Safety
/// `at` is in the range.
#[cold]
pub(super) unsafe fn free(at: *mut u8, met: Met) {
    // SAFETY: the caller's; the memory is a live object's, whose header may be written.
    unsafe {
        let memory = match met {
            Met::Freed => None,
            _ => memory(at),
        };
        let remains = match (met, memory) {
            (Met::Overwritten(remains), Some(_)) => Some(remains),
            (Met::Live(object), Some((_, offset))) => Some(without_weight(&object, offset)),
            _ => None,
        };
        if let Some((_, offset)) = memory {
            probes::free(at.cast());
            if offset != 0 {
                Object::retire(at);
            }
        }
        let done = guarded(|local| {
            count(local, remains);
            if let Some((region, offset)) = memory {
                let usable = region.bytes - offset;
                give_back_memory(local, region.base, Layout { offset, usable });
            }
            at
        });
        if let Some((region, _)) = memory.filter(|_| done.is_null()) {
            range::free(region.base, Flags::uncached());
        }
    }
}

/// Remains of an object's header with an implausible weight: the second word passed its check by
/// chance. The first has the longer check and tells its record.
fn without_weight(object: &Object, offset: usize) -> Remains {
    let counted = Counted {
        record: object.record,
        session: object.session,
        bytes: object.bytes,
        ignored: object.ignored,
        exact: object.exact,
        extended: offset > HEADER,
    };
    Remains {
        counted: Some(counted),
        drawn: None,
    }
}

/// Counts that a header was overwritten, and the object as freed if its record is known. `None`: an
/// object was freed that is none, or no longer.
fn count(local: &mut Local, remains: Option<Remains>) {
    let now = clock::now_ns();
    if !fork::leave_if_unseen(local) {
        return;
    }
    let epoch = session::control().epoch(Ordering::Relaxed);
    let params = session::control().params_of(epoch);
    let session = params.session.load(Ordering::Relaxed) as u8;
    let tick = clock::tick_of(now);
    if !session::is_counting(session, now) {
        return;
    }
    let Some((bank, start)) = session::of_object(session, tick, tick) else {
        return;
    };
    let counters = &bank.header.counters;
    let counter = match remains {
        None => &counters.freed_twice,
        // Passed its check by chance where its birth is yet to come.
        Some(Remains {
            drawn: Some(drawn), ..
        }) if tick.wrapping_sub(drawn.born) as i32 >= 0 => &counters.overwritten_behind,
        Some(_) => &counters.overwritten_before,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    let counted = remains.and_then(|remains| remains.counted);
    let counted = counted.filter(|counted| counted.session == session);
    let is_counted =
        counted.is_some_and(|counted| count_by_record(&bank, &counted, tick.wrapping_sub(start)));
    if remains.is_some() && !is_counted {
        counters
            .overwritten_uncounted
            .fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts an object as freed whose weight and birth are not known. Returns false if its record is not known
/// either.
fn count_by_record(bank: &Bank<'_>, counted: &Counted, tick: u32) -> bool {
    let record = bank.checked(counted.record);
    let (leaf, class) = bank.stack_of(record);
    let Some((weight, birth)) = bank.records.mean(record).filter(|_| record != TABLE_FULL) else {
        return false;
    };
    if class != size_class(counted.bytes) {
        return false;
    }
    for slot in &bank.header.overwritten {
        let known = slot.compare_exchange(0, leaf, Ordering::Relaxed, Ordering::Relaxed);
        if known.is_ok() || known == Err(leaf) {
            break;
        }
    }
    let freed = FreeSample {
        born: NewSample {
            bytes: counted.bytes,
            weight,
            tick: birth.min(tick),
        },
        tick,
    };
    let record = shared_record(bank, record);
    bank.count_free(record, SHARED_SHARD, &freed, false);
    true
}
