//! Frees of sampled objects whose headers the program has overwritten, and double frees.
//!
//! A buffer underflow, or an overflow of the object before, destroys a header. The agent still has
//! to free the memory and keep its sums right. It asks jemalloc where the object's memory begins.
//! If the header word with the record number is intact, the object is counted as freed, with the
//! mean weight and birth of the record's other objects.

use super::*;
use crate::object::{HeaderState, Remains};
use crate::range::region::{self, Region};
use shm_protocol::header::{self, Counted, HEADER};
use shm_protocol::record::RecordKey;

/// Number of offset bits of the smallest pages that jemalloc may be built for.
const MIN_PAGE_BITS: u32 = 12;

/// Largest mean number of bytes between samples of any session so far.
static LARGEST_INTERVAL: AtomicU64 = AtomicU64::new(1);

/// Records the interval of a session, whose objects may have larger weights.
#[cold]
pub(super) fn expect_interval(interval: u64) {
    LARGEST_INTERVAL.fetch_max(interval, Ordering::Relaxed);
}

/// Returns true if an object of this size may have this weight. One overwritten header word in 256
/// passes its checksum, and is detected here.
#[inline]
pub(super) fn is_plausible(object: &Object) -> bool {
    let bytes = object.bytes.max(1) as f32;
    let largest = LARGEST_INTERVAL.load(Ordering::Relaxed) as f32;
    // With an interval of 1, every weight is 1.
    object.weight == 1.0
        || (largest > 1.0 && object.weight * bytes <= (bytes + largest) * header::LARGEST_FACTOR)
}

/// Returns the memory of a live object, and the object's offset in it. Returns `None` if there is
/// no object at `at`.
///
/// # Safety
/// `at` is in the range, in memory of the arena.
unsafe fn memory(at: *const u8) -> Option<(Region, usize)> {
    // SAFETY: `at` lies in memory of the arena, as `region::of` requires.
    if let Some(region) = unsafe { region::of(at) } {
        let offset = at.addr() - region.base.addr();
        let is_start =
            matches!(offset, 0 | HEADER) || (offset > HEADER && offset.is_power_of_two());
        return is_start.then_some((region, offset));
    }
    // A large object may be aligned to more than a page. jemalloc only knows its first page, so all
    // powers of two that the address is a multiple of are tried as the object's offset.
    let offset_of = |bits: u32| (1_usize << bits <= at.addr()).then_some(1_usize << bits);
    (MIN_PAGE_BITS..at.addr().trailing_zeros() + 1)
        .filter_map(offset_of)
        .find_map(|offset| {
            // SAFETY: the address is only looked up in jemalloc's tree, which has no memory outside
            // the range.
            let region = unsafe { region::of(at.wrapping_sub(offset)) }?;
            let begins_there = region.base.addr() + offset == at.addr() && offset < region.bytes;
            begins_there.then_some((region, offset))
        })
}

/// Returns the usable size of an object with an overwritten header; 0 if it is not a live object.
///
/// # Safety
/// `at` is in the range.
#[cold]
pub(super) unsafe fn usable_size(at: *const u8, state: HeaderState) -> usize {
    if state == HeaderState::Freed {
        return 0;
    }
    // SAFETY: `at` is in the range.
    let memory = unsafe { memory(at) };
    memory.map_or(0, |(region, offset)| region.bytes - offset)
}

/// Frees an object with an overwritten header. Does nothing for a double free.
///
/// # Safety
/// `at` is in the range.
#[cold]
pub(super) unsafe fn free(at: *mut u8, state: HeaderState) {
    // SAFETY: `at` is in the range. If `memory` finds a live object there, the object may be freed,
    // and its header may be written.
    unsafe {
        let memory = match state {
            HeaderState::Freed => None,
            _ => memory(at),
        };
        let remains = match (state, memory) {
            (HeaderState::Overwritten(remains), Some(_)) => Some(remains),
            (HeaderState::Live(object), Some((_, offset))) => Some(without_weight(&object, offset)),
            _ => None,
        };
        if let Some((_, offset)) = memory {
            probes::free(at.cast());
            if offset != 0 {
                Object::retire(at);
            }
        }
        let result = guarded(|local| {
            count(local, remains);
            if let Some((region, offset)) = memory {
                let usable = region.bytes - offset;
                give_back_memory(local, region.base, Layout { offset, usable });
            }
            at
        });
        if let Some((region, _)) = memory
            && result.is_null()
        {
            range::free(region.base, Flags::uncached());
        }
    }
}

/// Returns what can be trusted of a header with an implausible weight. Its second word passed its
/// checksum by chance; the first word has a longer checksum and the record number.
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

/// Counts an overwritten header or a double free (`remains` is `None`). If the object's record is
/// known, also counts the object as freed.
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
        // The second word is intact, unless the birth in it is yet to come.
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

/// Counts an object as freed whose weight and birth are not known. Returns false if its record is
/// not known either.
fn count_by_record(bank: &Bank<'_>, counted: &Counted, tick: u32) -> bool {
    let record = bank.checked(counted.record);
    let RecordKey { leaf, class } = bank.stack_of(record);
    if record == TABLE_FULL {
        return false;
    }
    let Some((weight, birth)) = bank.records.mean(record) else {
        return false;
    };
    if class != size_class(counted.bytes) {
        return false;
    }
    for slot in &bank.header.overwritten {
        let previous = slot.compare_exchange(0, leaf, Ordering::Relaxed, Ordering::Relaxed);
        if previous.is_ok() || previous == Err(leaf) {
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
