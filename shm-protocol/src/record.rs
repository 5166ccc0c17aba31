//! Records: counters of one stack, for objects of one size class.
//!
//! A thread with a shard of its own writes its own records, with plain loads and stores, so that
//! threads that sample the same stack share no cache line. Other threads share the records of
//! [`SHARED_SHARD`] and use locked additions. A free by another thread than the allocating one
//! counts in a record of the freeing thread, so only the sums over all records of a stack are
//! meaningful.
//!
//! Fixed point: objects have 12 fractional bits, also in sums of times; bytes have 8; variances are
//! in units of 256 bytes². Sums wrap modulo 2^64; differences (allocated - freed) stay correct. The
//! variances of the number of objects are floats. The sum of squared births wraps modulo 2^96.

// Decision 07: counters that one thread owns.
use crate::layout::{KEPT_SUMS, Node, Record, SHARED_SHARD};
use crate::squares;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Index of a record.
pub type RecordId = u32;

/// Record of stacks for which there is no room, shown as `[table full]`. Always shared.
pub const TABLE_FULL: RecordId = 0;
/// Index of the first record that is allocated.
pub const FIRST_RECORD: RecordId = 1;
/// Maximum number of records, which is what a sampled object's header can hold.
pub const MAX_RECORDS: u32 = 1 << 24;

/// Fixed-point value of one object in sums of objects.
pub const OBJECT_ONE: f64 = 4096.0;
/// Fixed-point value of one byte in sums of bytes.
pub const BYTE_ONE: f64 = 256.0;
/// Fixed-point value of one object in time sums, which hold products of weights and ticks. Equal to
/// [`OBJECT_ONE`], so that differences of time sums and sums of objects are exact however long the
/// session is.
pub const TIME_ONE: f64 = OBJECT_ONE;
/// Fixed-point value of one byte² in variances of bytes.
pub const VARIANCE_ONE: f64 = 1.0 / 256.0;

/// Maximum lifetime of a short-lived object, in ticks.
pub const SHORT_TICKS: u32 = 1;
/// Number of size classes: objects of 0 or 1 byte, of 2 or 3, of 4 to 7 and so on.
pub const SIZE_CLASSES: u32 = 64;
/// Value in place of a size class in records of CPU time, which count nanoseconds instead of bytes.
pub const CPU_CLASS: u32 = SIZE_CLASSES;

/// Returns the size class of an object: the binary logarithm of its size, rounded down.
#[inline]
#[must_use]
pub fn size_class(bytes: u64) -> u32 {
    (bytes | 1).ilog2()
}

/// Identity of a record's objects: their stack and their size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordKey {
    /// Leaf node of the stack.
    pub leaf: u32,
    /// Size class ([`size_class`]), or [`CPU_CLASS`].
    pub class: u32,
}

impl RecordKey {
    /// Returns the key of objects of a size class from the stack that ends in `leaf`.
    #[inline]
    #[must_use]
    pub const fn new(leaf: u32, class: u32) -> Self {
        Self { leaf, class }
    }
}

/// Sampled allocation.
#[derive(Clone, Copy, Debug)]
pub struct NewSample {
    /// Requested size in bytes.
    pub bytes: u64,
    /// Number of objects that the sample stands for: 1 / (1 - exp(-bytes / interval)).
    pub weight: f32,
    /// Birth, in ticks since the session's start.
    pub tick: u32,
}

impl NewSample {
    /// Sample that stands for nothing.
    pub const NONE: Self = Self {
        bytes: 0,
        weight: 0.0,
        tick: 0,
    };
}

/// Free of a sampled object.
#[derive(Clone, Copy, Debug)]
pub struct FreeSample {
    /// Sample as it was counted at its birth.
    pub born: NewSample,
    /// Death, in ticks since the session's start.
    pub tick: u32,
}

/// Amounts that one sample adds to the sums. Computed in the same way at birth and death, so that
/// exactly what was added is subtracted.
struct Amounts {
    objects: u64,
    bytes: u64,
    variance: u64,
    object_variance: f64,
}

impl Amounts {
    #[inline]
    fn of(sample: &NewSample) -> Self {
        let weight = f64::from(sample.weight);
        // The signed conversion is a single instruction; no object has 2^63 bytes.
        let bytes = sample.bytes as i64 as f64;
        let estimate = bytes * weight;
        Self {
            objects: fixed(weight * OBJECT_ONE),
            bytes: fixed(estimate * BYTE_ONE),
            variance: fixed(estimate * (estimate - bytes) * VARIANCE_ONE),
            object_variance: weight * (weight - 1.0),
        }
    }
}

/// Rounds a non-negative value. Saturates near 2^63.
#[inline]
fn fixed(value: f64) -> u64 {
    rounded_down(value + 0.5) as u64
}

/// Rounds towards zero in one instruction; `as` takes six. Values out of range become 2^63.
#[cfg(target_arch = "x86_64")]
#[inline]
fn rounded_down(value: f64) -> i64 {
    use core::arch::x86_64::{_mm_cvttsd_si64, _mm_set_sd};
    // SAFETY: every x86-64 has SSE2.
    unsafe { _mm_cvttsd_si64(_mm_set_sd(value)) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn rounded_down(value: f64) -> i64 {
    value as i64
}

impl Record {
    /// Returns the sums, in the order of `kept`.
    fn sums(&self) -> [&AtomicU64; KEPT_SUMS] {
        [
            &self.alloc_samples,
            &self.alloc_objects,
            &self.alloc_bytes,
            &self.alloc_birth,
            &self.alloc_variance,
            &self.alloc_object_variance,
            &self.free_samples,
            &self.free_objects,
            &self.free_bytes,
            &self.free_birth,
            &self.free_death,
            &self.free_variance,
            &self.free_object_variance,
            &self.free_short,
        ]
    }

    /// Copies the sums before they change for the first time since peak `epoch`.
    ///
    /// Several threads may call this at once. Each first reads the sums; the one that then sets
    /// `peak_epoch` stores what it has read. These are the sums of the peak, because a thread that
    /// has seen the peak changes them only after `peak_epoch` was set. If the storing thread is
    /// preempted, readers use the current sums until it continues.
    #[cold]
    #[inline(never)]
    fn keep(&self, epoch: u32, exclusive: bool) {
        let sums = self.sums().map(|sum| sum.load(Ordering::Relaxed));
        if !exclusive {
            let known = self.peak_epoch.load(Ordering::Acquire);
            let success = Ordering::AcqRel;
            let failure = Ordering::Relaxed;
            if known >= epoch
                || self
                    .peak_epoch
                    .compare_exchange(known, epoch, success, failure)
                    .is_err()
            {
                return;
            }
        }
        for (kept, sum) in self.kept.iter().zip(sums) {
            kept.store(sum, Ordering::Relaxed);
        }
        self.kept_epoch.store(epoch, Ordering::Release);
        if exclusive {
            self.peak_epoch.store(epoch, Ordering::Release);
        }
    }

    /// Returns the number of samples and the estimated live bytes.
    #[inline]
    pub(crate) fn samples_and_live_bytes(&self) -> (u64, u64) {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let live = read(&self.alloc_bytes).wrapping_sub(read(&self.free_bytes));
        // A record may have more frees than allocations, since it also counts frees of objects that
        // other threads allocated.
        let live = (live as i64).max(0) as f64 / BYTE_ONE;
        (read(&self.alloc_samples), live as u64)
    }
}

/// Limits on the use of records.
#[derive(Clone, Copy, Debug)]
pub struct RecordLimits {
    /// Maximum number of records, all of which are committed.
    pub limit: u32,
    /// Number of records at which shards no longer get records of their own.
    pub crowded: u32,
}

/// Records of one bank.
#[derive(Clone, Copy)]
pub struct Records<'a> {
    records: &'a [Record],
    count: &'a AtomicU32,
    peak_epoch: &'a AtomicU32,
}

impl<'a> Records<'a> {
    /// Returns a view of records in memory that is zeroed or already in use. `peak_epoch` is the
    /// number of the last peak, for which each record keeps its sums before they change.
    #[must_use]
    pub fn new(records: &'a [Record], count: &'a AtomicU32, peak_epoch: &'a AtomicU32) -> Self {
        Self {
            records,
            count,
            peak_epoch,
        }
    }

    /// Finds or creates the record of `shard` for these objects. Returns `None` if there is no
    /// room.
    pub fn find_or_create(
        &self,
        node: &Node,
        key: RecordKey,
        shard: u32,
        limits: RecordLimits,
    ) -> Option<RecordId> {
        let limit = self.limit(limits);
        let crowded = self.count.load(Ordering::Relaxed) >= limits.crowded.min(limit);
        if let Some(found) = self.find(node, key.class, shard) {
            return Some(found);
        }
        let shard = if crowded { SHARED_SHARD } else { shard };
        if crowded && let Some(found) = self.find(node, key.class, shard) {
            return Some(found);
        }
        let id = self.claim(key, shard, limit)?;
        self.link(node, id);
        Some(id)
    }

    /// Copies the sums of a record that is about to change, if this is the first change since the
    /// last peak.
    #[inline]
    fn keep(&self, record: &Record, exclusive: bool) {
        let epoch = self.peak_epoch.load(Ordering::Acquire);
        if record.peak_epoch.load(Ordering::Relaxed) < epoch {
            record.keep(epoch, exclusive);
        }
    }

    /// Counts an allocation and returns its estimated bytes, fixed point. `exclusive` is true if
    /// the calling thread owns the record's shard.
    #[inline]
    pub fn count_new(&self, id: RecordId, sample: &NewSample, exclusive: bool) -> u64 {
        let Some(record) = self.records.get(id as usize) else {
            return 0;
        };
        self.keep(record, exclusive);
        let amounts = Amounts::of(sample);
        let births = amounts.objects.wrapping_mul(u64::from(sample.tick));
        squares::of_object(amounts.objects, sample.tick).add_to(record, exclusive);
        add(&record.alloc_samples, 1, exclusive);
        add(&record.alloc_objects, amounts.objects, exclusive);
        add(&record.alloc_bytes, amounts.bytes, exclusive);
        add(&record.alloc_birth, births, exclusive);
        add(&record.alloc_variance, amounts.variance, exclusive);
        add_float(
            &record.alloc_object_variance,
            amounts.object_variance,
            exclusive,
        );
        amounts.bytes
    }

    /// Counts a free and returns its estimated bytes, fixed point. `exclusive` is true if the
    /// calling thread owns the record's shard.
    #[inline]
    pub fn count_free(&self, id: RecordId, sample: &FreeSample, exclusive: bool) -> u64 {
        let Some(record) = self.records.get(id as usize) else {
            return 0;
        };
        self.keep(record, exclusive);
        let amounts = Amounts::of(&sample.born);
        let births = amounts.objects.wrapping_mul(u64::from(sample.born.tick));
        let deaths = amounts.objects.wrapping_mul(u64::from(sample.tick));
        let squares = squares::of_object(amounts.objects, sample.born.tick);
        squares.negate().add_to(record, exclusive);
        add(&record.free_samples, 1, exclusive);
        add(&record.free_objects, amounts.objects, exclusive);
        add(&record.free_bytes, amounts.bytes, exclusive);
        add(&record.free_birth, births, exclusive);
        add(&record.free_death, deaths, exclusive);
        add(&record.free_variance, amounts.variance, exclusive);
        if sample.tick.wrapping_sub(sample.born.tick) <= SHORT_TICKS {
            add(&record.free_short, amounts.objects, exclusive);
        }
        add_float(
            &record.free_object_variance,
            amounts.object_variance,
            exclusive,
        );
        amounts.bytes
    }

    /// Counts a sample of `ns` nanoseconds of CPU time. `exclusive` is true if the calling thread
    /// owns the record's shard.
    #[inline]
    pub fn count_cpu(&self, id: RecordId, ns: u64, exclusive: bool) {
        if let Some(record) = self.records.get(id as usize) {
            add(&record.alloc_samples, 1, exclusive);
            add(&record.alloc_bytes, ns, exclusive);
        }
    }

    /// Returns the mean weight and the mean birth (in ticks since the session's start) of a
    /// record's samples in use, or `None` if it has none. The sum of all births wraps in long
    /// sessions; that of the samples in use does not.
    #[cold]
    #[must_use]
    pub fn mean_weight_and_birth(&self, id: RecordId) -> Option<(f32, u32)> {
        let record = self.records.get(id as usize)?;
        let in_use = |allocated: &AtomicU64, freed: &AtomicU64| {
            let allocated = allocated.load(Ordering::Relaxed);
            allocated.wrapping_sub(freed.load(Ordering::Relaxed))
        };
        let samples = in_use(&record.alloc_samples, &record.free_samples);
        let objects = in_use(&record.alloc_objects, &record.free_objects);
        if samples as i64 <= 0 || objects as i64 <= 0 {
            return None;
        }
        let objects = objects as f64 / OBJECT_ONE;
        let births = in_use(&record.alloc_birth, &record.free_birth) as f64 / TIME_ONE;
        Some(((objects / samples as f64) as f32, (births / objects) as u32))
    }

    /// Returns the record with this index.
    #[inline]
    #[must_use]
    pub fn record(&self, id: RecordId) -> Option<&'a Record> {
        self.records.get(id as usize)
    }

    fn limit(&self, limits: RecordLimits) -> u32 {
        limits.limit.min(self.records.len() as u32).min(MAX_RECORDS)
    }

    /// Returns the number of unused records, or `None` if there are none.
    #[must_use]
    pub fn free_records(&self, limits: RecordLimits) -> Option<u32> {
        let used = self
            .count
            .load(Ordering::Relaxed)
            .saturating_add(FIRST_RECORD);
        self.limit(limits)
            .checked_sub(used)
            .filter(|free| *free > 0)
    }

    fn find(&self, node: &Node, class: u32, shard: u32) -> Option<RecordId> {
        let mut id = node.records.load(Ordering::Acquire);
        // A list longer than one record for each shard and class is corrupt.
        for _ in 0..=SHARED_SHARD * (SIZE_CLASSES + 1) {
            let record = self.records.get(id as usize).filter(|_| id != 0)?;
            if u32::from(record.shard.load(Ordering::Relaxed)) == shard
                && u32::from(record.size_class.load(Ordering::Relaxed)) == class
            {
                return Some(id);
            }
            id = record.next.load(Ordering::Relaxed);
        }
        None
    }

    fn claim(&self, key: RecordKey, shard: u32, limit: u32) -> Option<RecordId> {
        if self
            .count
            .load(Ordering::Relaxed)
            .saturating_add(FIRST_RECORD)
            >= limit
        {
            return None;
        }
        let id = self
            .count
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(FIRST_RECORD);
        let record = self.records.get(id as usize).filter(|_| id < limit)?;
        record.node.store(key.leaf, Ordering::Relaxed);
        record.shard.store(shard as u16, Ordering::Relaxed);
        record.size_class.store(key.class as u16, Ordering::Relaxed);
        Some(id)
    }

    /// Pushes a record to its node's list. Two records of the shared shard may be pushed by racing
    /// threads; both count, and readers add them up.
    fn link(&self, node: &Node, id: RecordId) {
        let Some(record) = self.records.get(id as usize) else {
            return;
        };
        let mut head = node.records.load(Ordering::Relaxed);
        loop {
            record.next.store(head, Ordering::Relaxed);
            match node
                .records
                .compare_exchange_weak(head, id, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// Adds to a counter and returns the sum. Uses locked instructions unless `exclusive`.
#[inline]
pub(crate) fn add(counter: &AtomicU64, amount: u64, exclusive: bool) -> u64 {
    if exclusive {
        let sum = counter.load(Ordering::Relaxed).wrapping_add(amount);
        counter.store(sum, Ordering::Relaxed);
        sum
    } else {
        let before = counter.fetch_add(amount, Ordering::Relaxed);
        before.wrapping_add(amount)
    }
}

/// Adds to a sum that is stored as the bits of an `f64`. Variances of objects range from millionths
/// to 2^60 per sample, which is too much for fixed point.
#[inline]
fn add_float(counter: &AtomicU64, amount: f64, exclusive: bool) {
    let mut known = counter.load(Ordering::Relaxed);
    loop {
        let sum = (f64::from_bits(known) + amount).to_bits();
        if exclusive {
            return counter.store(sum, Ordering::Relaxed);
        }
        match counter.compare_exchange_weak(known, sum, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => known = now,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::Node;
    use std::vec::Vec;

    static NO_PEAK: AtomicU32 = AtomicU32::new(0);

    fn zeroed<T>() -> T {
        // SAFETY: used for Record and Node only, for which zeros are valid.
        unsafe { core::mem::zeroed() }
    }

    fn memory(n: usize) -> (Vec<Record>, AtomicU32, Node) {
        (
            (0..n).map(|_| zeroed()).collect(),
            AtomicU32::new(0),
            zeroed(),
        )
    }

    /// The age of an object with an overwritten header is estimated from its record's samples in
    /// use. Freed objects must not count: their births are unrelated, and the sum of these wraps.
    #[test]
    fn the_mean_covers_samples_in_use_only() {
        let (records, count, node) = memory(8);
        let records = Records::new(&records, &count, &NO_PEAK);
        let id = records
            .find_or_create(&node, RecordKey::new(1, 4), 0, room(8))
            .unwrap();
        let sample = |weight, tick| NewSample {
            bytes: 1000,
            weight,
            tick,
        };
        for tick in 0..10_000 {
            let born = sample(1e9, tick);
            records.count_new(id, &born, true);
            records.count_free(id, &FreeSample { born, tick }, true);
        }
        assert_eq!(records.mean_weight_and_birth(id), None);
        records.count_new(id, &sample(1.5, 20_000), true);
        records.count_new(id, &sample(1.5, 20_002), true);
        assert_eq!(records.mean_weight_and_birth(id), Some((1.5, 20_001)));
    }

    fn room(limit: u32) -> RecordLimits {
        RecordLimits {
            limit,
            crowded: limit / 2,
        }
    }

    #[test]
    fn each_shard_has_its_own_record() {
        let (records, count, node) = memory(64);
        let records = Records::new(&records, &count, &NO_PEAK);
        let a = records
            .find_or_create(&node, RecordKey::new(5, 0), 0, room(64))
            .unwrap();
        let b = records
            .find_or_create(&node, RecordKey::new(5, 0), 1, room(64))
            .unwrap();
        assert_ne!(a, b);
        assert_eq!(
            records.find_or_create(&node, RecordKey::new(5, 0), 0, room(64)),
            Some(a)
        );
        assert_eq!(
            records.find_or_create(&node, RecordKey::new(5, 0), 1, room(64)),
            Some(b)
        );
        assert_eq!(records.record(b).unwrap().node.load(Ordering::Relaxed), 5);
    }

    #[test]
    fn each_size_class_has_a_record_of_its_own() {
        let classes = [0, 1, 2, 3, 4, 1023, 1024, 1 << 40].map(size_class);
        assert_eq!(classes, [0, 0, 1, 1, 2, 9, 10, 40]);
        let (records, count, node) = memory(64);
        let records = Records::new(&records, &count, &NO_PEAK);
        let small = records
            .find_or_create(&node, RecordKey::new(5, 3), 0, room(64))
            .unwrap();
        let large = records
            .find_or_create(&node, RecordKey::new(5, 20), 0, room(64))
            .unwrap();
        let others = records
            .find_or_create(&node, RecordKey::new(5, 20), 1, room(64))
            .unwrap();
        assert!(small != large && large != others && small != others);
        assert_eq!(
            records.find_or_create(&node, RecordKey::new(5, 3), 0, room(64)),
            Some(small)
        );
        assert_eq!(
            records.find_or_create(&node, RecordKey::new(5, 20), 0, room(64)),
            Some(large)
        );
        let class = &records.record(others).unwrap().size_class;
        assert_eq!(class.load(Ordering::Relaxed), 20);
    }

    #[test]
    fn cpu_time_and_objects_of_a_stack_have_separate_records() {
        let (records, count, node) = memory(8);
        let records = Records::new(&records, &count, &NO_PEAK);
        let objects = records
            .find_or_create(&node, RecordKey::new(5, 4), 0, room(8))
            .unwrap();
        let time = records
            .find_or_create(&node, RecordKey::new(5, CPU_CLASS), 0, room(8))
            .unwrap();
        assert_ne!(objects, time);
        for (ns, exclusive) in [(3, true), (5, false)] {
            records.count_cpu(time, ns, exclusive);
        }
        records.count_cpu(99, 7, true);
        let record = records.record(time).unwrap();
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        assert_eq!(
            (get(&record.alloc_samples), get(&record.alloc_bytes)),
            (2, 8)
        );
        let record = records.record(objects).unwrap();
        assert_eq!(get(&record.alloc_samples), 0);
    }

    #[test]
    fn objects_freed_within_a_tick_are_short_lived() {
        let (records, count, node) = memory(8);
        let records = Records::new(&records, &count, &NO_PEAK);
        let id = records
            .find_or_create(&node, RecordKey::new(1, 4), 0, room(8))
            .unwrap();
        for (born, died) in [(7, 7), (7, 8), (7, 9), (u32::MAX, 0), (9, 200)] {
            let born = NewSample {
                bytes: 16,
                weight: 1.0,
                tick: born,
            };
            records.count_new(id, &born, true);
            records.count_free(id, &FreeSample { born, tick: died }, true);
        }
        let short = &records.record(id).unwrap().free_short;
        assert_eq!(short.load(Ordering::Relaxed), 3 << 12);
    }

    #[test]
    fn crowded_bank_shares_and_full_bank_refuses() {
        let (records, count, node) = memory(8);
        let records = Records::new(&records, &count, &NO_PEAK);
        let nodes: Vec<Node> = (0..8).map(|_| zeroed()).collect();
        for (i, other) in nodes.iter().enumerate().take(4) {
            records
                .find_or_create(other, RecordKey::new(i as u32, 0), 0, room(8))
                .unwrap();
        }
        let shared = records
            .find_or_create(&node, RecordKey::new(9, 0), 3, room(8))
            .unwrap();
        assert_eq!(
            records
                .record(shared)
                .unwrap()
                .shard
                .load(Ordering::Relaxed),
            SHARED_SHARD as u16
        );
        assert_eq!(
            records.find_or_create(&node, RecordKey::new(9, 0), 4, room(8)),
            Some(shared)
        );
        while records.claim(RecordKey::new(0, 0), 0, 8).is_some() {}
        assert_eq!(
            records.find_or_create(&nodes[7], RecordKey::new(7, 0), 0, room(8)),
            None
        );
    }

    #[test]
    fn frees_subtract_exactly_what_allocations_added() {
        let (records, count, node) = memory(8);
        let records = Records::new(&records, &count, &NO_PEAK);
        let id = records
            .find_or_create(&node, RecordKey::new(1, 0), 0, room(8))
            .unwrap();
        for bytes in [0u64, 1, 16, 1000, 1 << 20, 1 << 40] {
            let born = NewSample {
                bytes,
                weight: 1.0 + 1.0 / (bytes as f32 + 0.3),
                tick: 77,
            };
            records.count_new(id, &born, true);
            records.count_free(id, &FreeSample { born, tick: 80 }, bytes % 2 == 0);
        }
        let r = records.record(id).unwrap();
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        assert_eq!(get(&r.alloc_samples), 6);
        assert_eq!(get(&r.alloc_samples), get(&r.free_samples));
        assert_eq!(get(&r.alloc_objects), get(&r.free_objects));
        assert_eq!(get(&r.alloc_bytes), get(&r.free_bytes));
        assert_eq!(get(&r.alloc_birth), get(&r.free_birth));
        assert_eq!(get(&r.alloc_variance), get(&r.free_variance));
        assert_eq!(get(&r.alloc_object_variance), get(&r.free_object_variance));
        assert_eq!(get(&r.live_squares), 0);
        assert_eq!(r.live_squares_high.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn object_variances_of_all_sizes_add_up() {
        let (records, count, node) = memory(8);
        let records = Records::new(&records, &count, &NO_PEAK);
        let id = records
            .find_or_create(&node, RecordKey::new(1, 0), 0, room(8))
            .unwrap();
        let mut expected = 0.0;
        for weight in [1.0f32, 1.000_01, 1.5, 64.5, 4096.25, 1_048_576.5] {
            for exclusive in [true, false] {
                let sample = NewSample {
                    bytes: 16,
                    weight,
                    tick: 0,
                };
                records.count_new(id, &sample, exclusive);
                expected += f64::from(weight) * (f64::from(weight) - 1.0);
            }
        }
        let sum = &records.record(id).unwrap().alloc_object_variance;
        let sum = f64::from_bits(sum.load(Ordering::Relaxed));
        assert!((sum / expected - 1.0).abs() < 1e-12, "{sum} {expected}");
    }

    #[test]
    fn exact_sampling_counts_exactly() {
        let (records, count, node) = memory(8);
        let records = Records::new(&records, &count, &NO_PEAK);
        let id = records
            .find_or_create(&node, RecordKey::new(1, 0), 0, room(8))
            .unwrap();
        for bytes in 0..1000u64 {
            records.count_new(
                id,
                &NewSample {
                    bytes,
                    weight: 1.0,
                    tick: 0,
                },
                true,
            );
        }
        let r = records.record(id).unwrap();
        assert_eq!(r.alloc_objects.load(Ordering::Relaxed), 1000 << 12);
        assert_eq!(r.alloc_bytes.load(Ordering::Relaxed), 499_500 << 8);
        assert_eq!(r.alloc_variance.load(Ordering::Relaxed), 0);
    }
}
