//! Frees of sampled objects whose headers the program has overwritten, and double frees.
//!
//! A buffer underflow, or an overflow of the preceding object, destroys a header. The agent still
//! has to free the memory and keep its sums right. It asks jemalloc where the object's memory
//! begins. If the header word with the record number is intact, the object is counted as freed,
//! with the mean weight and birth of the record's other objects.

use super::*;
use crate::object::{HeaderState, IntactParts};
use crate::range::region::{self, Region};
use shm_protocol::header::{self, FirstWord, HEADER};
use shm_protocol::record::RecordKey;

/// Binary logarithm of the smallest page size that jemalloc may be built for.
const MIN_PAGE_BITS: u32 = 12;

/// Largest mean number of bytes between samples of any session so far.
static LARGEST_INTERVAL: AtomicU64 = AtomicU64::new(1);

/// Records the interval of a session, whose objects may have larger weights.
#[cold]
pub(super) fn record_interval(interval: u64) {
    LARGEST_INTERVAL.fetch_max(interval, Ordering::Relaxed);
}

/// Returns true if an object of this size may have this weight. One overwritten header word in 256
/// passes its checksum, and is detected here.
#[inline]
pub(super) fn is_plausible(object: &Object) -> bool {
    // With an interval of 1, every weight is 1.
    let largest = LARGEST_INTERVAL.load(Ordering::Relaxed);
    object.weight.to_bits() == 1.0_f32.to_bits()
        || largest > 1 && may_weigh(object.weight, object.bytes.max(1), largest)
}

/// Returns true if `weight` is at most 1 + `largest` / `bytes`, times [`header::LARGEST_FACTOR`].
/// Computes with integers: the caller has not saved the program's floating-point environment.
#[inline]
fn may_weigh(weight: f32, bytes: u64, largest: u64) -> bool {
    const MANTISSA_BITS: u32 = f32::MANTISSA_DIGITS - 1;
    /// Bits of the exponent of 1.
    const BIAS: u32 = 127;
    /// More than the binary logarithm of any weight: no interval is larger than 2^56 bytes.
    const MAX_EXPONENT: u32 = 60;
    const THOUSAND: u128 = 1000;
    const FACTOR: u128 = (header::LARGEST_FACTOR * THOUSAND as f32) as u128;
    // A header has no weight below 1.
    let bits = weight.to_bits();
    let exponent = (bits >> MANTISSA_BITS).wrapping_sub(BIAS);
    if exponent > MAX_EXPONENT || bytes > 1 << 40 {
        return false;
    }
    let mantissa = u128::from(bits & ((1 << MANTISSA_BITS) - 1) | 1 << MANTISSA_BITS);
    let product = mantissa * u128::from(bytes) * THOUSAND;
    let times_bytes = if exponent < MANTISSA_BITS {
        product >> (MANTISSA_BITS - exponent)
    } else {
        product << (exponent - MANTISSA_BITS)
    };
    times_bytes <= (u128::from(bytes) + u128::from(largest)) * FACTOR
}

/// Returns the memory of a live object, and the object's offset in it. Returns `None` if there is
/// no object at `at`.
///
/// # Safety
/// `at` is in the range, in memory of the arena.
unsafe fn find_memory(at: *const u8) -> Option<(Region, usize)> {
    // SAFETY: `at` lies in memory of the arena, as `region::find` requires.
    if let Some(region) = unsafe { region::find(at) } {
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
            // SAFETY: the address is only looked up in jemalloc's tree, which has no entries for
            // this arena outside the range.
            let region = unsafe { region::find(at.wrapping_sub(offset)) }?;
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
    let memory = unsafe { find_memory(at) };
    memory.map_or(0, |(region, offset)| region.bytes - offset)
}

/// Frees an object with an overwritten header. Does nothing for a double free.
///
/// # Safety
/// `at` is in the range.
#[cold]
pub(super) unsafe fn free(at: *mut u8, state: HeaderState) {
    // SAFETY: `at` is in the range. If `find_memory` finds a live object there, the object may be
    // freed, and its header may be written.
    unsafe {
        let memory = match state {
            HeaderState::Freed => None,
            _ => find_memory(at),
        };
        let intact = match (state, memory) {
            (HeaderState::Overwritten(intact), Some(_)) => Some(intact),
            (HeaderState::Live(object), Some((_, offset))) => Some(without_weight(&object, offset)),
            _ => None,
        };
        if let Some((_, offset)) = memory {
            probes::free(at.cast());
            if offset != 0 {
                Object::retire(at);
            }
        }
        let result = run_guarded(|local| {
            count(local, intact);
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
fn without_weight(object: &Object, offset: usize) -> IntactParts {
    let first = FirstWord {
        record: object.record,
        session: object.session,
        bytes: object.bytes,
        ignored: object.ignored,
        exact: object.exact,
        extended: offset > HEADER,
    };
    IntactParts {
        first: Some(first),
        second: None,
    }
}

/// Counts an overwritten header or a double free (`intact` is `None`). If the object's record is
/// known, also counts the object as freed.
fn count(local: &mut Local, intact: Option<IntactParts>) {
    let now = clock::now_ns();
    if !fork::leave_if_copy(local) {
        return;
    }
    let epoch = session::control().epoch(Ordering::Relaxed);
    let params = session::control().params_of(epoch);
    let session = params.session.load(Ordering::Relaxed) as u8;
    let tick = clock::tick_of(now);
    if !session::is_counting(session, now) {
        return;
    }
    let Some((bank, start)) = session::bank_of_object(session, tick, tick) else {
        return;
    };
    let counters = &bank.header.counters;
    let counter = match intact {
        None => &counters.freed_twice,
        // If the second word is intact (its birth is not in the future), the preceding object
        // overflowed.
        Some(IntactParts {
            second: Some(second),
            ..
        }) if tick.wrapping_sub(second.born) as i32 >= 0 => &counters.overwritten_behind,
        Some(_) => &counters.overwritten_before,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    let first = intact.and_then(|intact| intact.first);
    let first = first.filter(|first| first.session == session);
    let is_counted =
        first.is_some_and(|first| count_by_record(&bank, &first, tick.wrapping_sub(start)));
    if intact.is_some() && !is_counted {
        counters
            .overwritten_uncounted
            .fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts an object as freed with the mean weight and birth of its record. Returns false if the
/// record is not known.
fn count_by_record(bank: &Bank<'_>, first: &FirstWord, tick: u32) -> bool {
    let record = bank.committed_or_table_full(first.record);
    let RecordKey { leaf, class } = bank.stack_of(record);
    if record == TABLE_FULL {
        return false;
    }
    let Some((weight, birth)) = bank.records.mean_weight_and_birth(record) else {
        return false;
    };
    if class != size_class(first.bytes) {
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
            bytes: first.bytes,
            weight,
            tick: birth.min(tick),
        },
        tick,
    };
    let record = shared_record(bank, record);
    bank.count_free(record, SHARED_SHARD, &freed, false);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use sampling::weight;

    #[test]
    fn weights_are_plausible_up_to_the_largest_factor() {
        for interval in [2_u64, 1024, 524_288, 1 << 40] {
            for bytes in [1_u64, 7, 100, 1025, 40_000, 1 << 30] {
                let size_weight = weight(bytes, interval as f64);
                let largest =
                    (1.0 + interval as f64 / bytes as f64) * f64::from(header::LARGEST_FACTOR);
                let scaled = |share: f64| (largest * share) as f32;
                for plausible in [1.0, size_weight, 8.0 * size_weight, scaled(0.9999)] {
                    assert!(
                        may_weigh(plausible, bytes, interval),
                        "{plausible} {bytes} {interval}"
                    );
                }
                for not in [scaled(1.0001), scaled(3.0), f32::MAX, f32::INFINITY, 0.0] {
                    assert!(!may_weigh(not, bytes, interval), "{not} {bytes} {interval}");
                }
            }
        }
        assert!(!may_weigh(2.0, u64::MAX, 1024));
    }
}
