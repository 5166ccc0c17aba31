//! Stacks of a bank, and their counters.

use super::{Invalid, u16_at, u32_at, u64_at};
use crate::layout::{Node, Record, THREAD_ADDRESS, THREADS_KEPT};
use crate::record::{BYTE_ONE, CPU_CLASS, OBJECT_ONE, SIZE_CLASSES, TIME_ONE, VARIANCE_ONE};
use crate::tree::{FIRST_NODE, NodeId, TRUNCATED};
use core::mem::{offset_of, size_of};

/// View of private copies of a bank's tree and records.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    nodes: &'a [u8],
    records: &'a [u8],
}

impl<'a> Table<'a> {
    /// Returns a view of copies of a bank's nodes and records in use
    /// ([`BankSummary::nodes`](super::BankSummary::nodes) and
    /// [`records`](super::BankSummary::records)).
    #[must_use]
    pub fn new(nodes: &'a [u8], records: &'a [u8]) -> Self {
        Self { nodes, records }
    }

    /// Returns the number of nodes, fixed ones included.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len() / size_of::<Node>()
    }

    /// Returns the caller's node and the address of a node, or `None` if there is no such node or
    /// it is a root.
    ///
    /// # Errors
    /// [`Invalid::Cycle`] if the caller's index is not smaller.
    pub fn node(&self, id: NodeId) -> Result<Option<(NodeId, u64)>, Invalid> {
        if id < FIRST_NODE || id as usize >= self.node_count() {
            return Ok(None);
        }
        let at = id as usize * size_of::<Node>();
        let address = u64_at(self.nodes, at + offset_of!(Node, address));
        let parent = u32_at(self.nodes, at + offset_of!(Node, parent));
        match (address, parent < id) {
            (0, _) => Ok(None),
            (_, false) => Err(Invalid::Cycle(id)),
            (_, true) => Ok(Some((parent, address))),
        }
    }

    /// Passes the addresses of a stack to `push`, innermost first.
    ///
    /// # Errors
    /// [`Invalid::Cycle`] if the tree is corrupt.
    pub fn stack(&self, leaf: NodeId, mut push: impl FnMut(u64)) -> Result<StackEnd, Invalid> {
        let mut node = leaf;
        let mut thread = None;
        while let Some((parent, address)) = self.node(node)? {
            match thread_of(address) {
                None => push(address),
                index => thread = index,
            }
            node = parent;
        }
        Ok(StackEnd {
            truncated: node == TRUNCATED,
            thread,
        })
    }

    /// Returns all records in use. The first one is `[table full]`. A stack may have several.
    pub fn records(&self) -> impl Iterator<Item = RecordView> + use<'a> {
        let bytes = self.records;
        (0..bytes.len() / size_of::<Record>()).map(move |i| RecordView::at(bytes, i, 0))
    }

    /// Like [`records`](Self::records), but with the sums as of peak `epoch`, which must be the
    /// bank's last.
    pub fn records_at_peak(&self, epoch: u32) -> impl Iterator<Item = RecordView> + use<'a> {
        let bytes = self.records;
        (0..bytes.len() / size_of::<Record>()).map(move |i| {
            let base = i * size_of::<Record>();
            let word = |field: usize| u32_at(bytes, base + field);
            let has_changed = epoch != 0
                && word(offset_of!(Record, peak_epoch)) == epoch
                && word(offset_of!(Record, kept_epoch)) == epoch;
            RecordView::at(bytes, i, if has_changed { KEPT } else { 0 })
        })
    }
}

/// Outer end of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackEnd {
    /// True if outer frames are missing.
    pub truncated: bool,
    /// Index of the thread among
    /// [`BankSummary::thread_entries`](super::BankSummary::thread_entries); `None` if the stack was
    /// not recorded per thread.
    pub thread: Option<u32>,
}

/// Returns the index of the thread whose stacks are below the node with this address. Returns
/// `None` for an address of code.
#[must_use]
pub fn thread_of(address: u64) -> Option<u32> {
    let index = address.wrapping_sub(THREAD_ADDRESS);
    (index < THREADS_KEPT as u64).then_some(index as u32)
}

/// Sums of a record, in fixed point. Those of one stack must be added ([`RecordView::merge`])
/// before they are converted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecordView {
    /// Leaf node of the stack; 0 for `[table full]`.
    pub node: NodeId,
    /// Size class of the objects ([`crate::record::size_class`]), or [`CPU_CLASS`].
    pub size_class: u32,
    sums: [u64; 12],
    /// Variance of the number of objects allocated, and the part due to freed ones.
    object_variances: [f64; 2],
}

/// Distance in bytes from the current sums to those of the last peak.
const KEPT: usize = offset_of!(Record, kept) - offset_of!(Record, alloc_samples);

/// Offsets of the sums in [`RecordView::sums`].
const FIELDS: [usize; 12] = [
    offset_of!(Record, alloc_samples),
    offset_of!(Record, alloc_objects),
    offset_of!(Record, alloc_bytes),
    offset_of!(Record, alloc_birth),
    offset_of!(Record, alloc_variance),
    offset_of!(Record, free_samples),
    offset_of!(Record, free_objects),
    offset_of!(Record, free_bytes),
    offset_of!(Record, free_birth),
    offset_of!(Record, free_death),
    offset_of!(Record, free_variance),
    offset_of!(Record, free_short),
];

const FLOATS: [usize; 2] = [
    offset_of!(Record, alloc_object_variance),
    offset_of!(Record, free_object_variance),
];

/// Sums of a stack's records, in plain units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StackSums {
    /// Number of samples.
    pub alloc_samples: u64,
    /// Number of samples that were freed.
    pub free_samples: u64,
    /// Estimated objects allocated.
    pub alloc_objects: f64,
    /// Estimated bytes allocated.
    pub alloc_bytes: f64,
    /// Variance of `alloc_bytes`, bytes².
    pub alloc_variance: f64,
    /// Variance of `alloc_objects`.
    pub alloc_object_variance: f64,
    /// Estimated objects freed.
    pub free_objects: f64,
    /// Estimated bytes freed.
    pub free_bytes: f64,
    /// Variance of the live bytes, bytes².
    pub live_variance: f64,
    /// Variance of the live objects.
    pub live_object_variance: f64,
    /// Sum of the ages of live objects, in object-ticks.
    pub live_age_ticks: f64,
    /// Sum of the lifetimes of freed objects, in object-ticks.
    pub freed_lifetime_ticks: f64,
    /// Estimated objects freed within [`crate::record::SHORT_TICKS`] of their birth.
    pub short_lived_objects: f64,
}

impl RecordView {
    /// Returns record `index`, whose sums are read `shift` bytes after the current ones.
    fn at(bytes: &[u8], index: usize, shift: usize) -> Self {
        let base = index * size_of::<Record>();
        Self {
            node: u32_at(bytes, base + offset_of!(Record, node)),
            size_class: u32::from(u16_at(bytes, base + offset_of!(Record, size_class)))
                % (SIZE_CLASSES + 1),
            sums: FIELDS.map(|field| u64_at(bytes, base + shift + field)),
            object_variances: FLOATS.map(|field| variance(u64_at(bytes, base + shift + field))),
        }
    }

    /// Returns the number of CPU samples and their time in ns, or `None` if this is not a CPU
    /// record.
    #[must_use]
    pub fn cpu(&self) -> Option<(u64, u64)> {
        let [samples, _, ns, ..] = self.sums;
        (self.size_class == CPU_CLASS).then_some((samples, ns))
    }

    /// Returns true if nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sums.iter().all(|sum| *sum == 0)
    }

    /// Adds another record of the same stack, which should be of the same size class.
    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in self.sums.iter_mut().zip(other.sums) {
            *sum = sum.wrapping_add(more);
        }
        for (sum, more) in self.object_variances.iter_mut().zip(other.object_variances) {
            *sum += more;
        }
    }

    /// Converts the sums to plain units, as of `now_tick` ticks after the session's start. Sums
    /// that a torn copy or a hostile target made negative become zero.
    #[must_use]
    pub fn sums(&self, now_tick: u32) -> StackSums {
        let [
            n,
            objects,
            bytes,
            birth,
            variance,
            f_n,
            f_objects,
            f_bytes,
            f_birth,
            death,
            f_var,
            f_short,
        ] = self.sums;
        let difference = |all: u64, freed: u64| (all.wrapping_sub(freed) as i64).max(0) as f64;
        let live_objects = difference(objects, f_objects) / OBJECT_ONE;
        // Sum of the ages: live objects × now − births of live objects. The sums wrap, but their
        // difference does not, and it is exact before it becomes a float. Values in the last
        // sixteenth of the range are negative.
        let live = objects.wrapping_sub(f_objects);
        let live_times_now = live.wrapping_mul(u64::from(now_tick));
        let ages = live_times_now.wrapping_sub(birth.wrapping_sub(f_birth));
        let age = if ages >> 60 == 0xf { 0 } else { ages } as f64 / TIME_ONE;
        let [object_variance, f_object_variance] = self.object_variances;
        StackSums {
            alloc_samples: n,
            free_samples: f_n.min(n),
            alloc_objects: objects as f64 / OBJECT_ONE,
            alloc_bytes: bytes as f64 / BYTE_ONE,
            alloc_variance: variance as f64 / VARIANCE_ONE,
            alloc_object_variance: object_variance,
            free_objects: f_objects.min(objects) as f64 / OBJECT_ONE,
            free_bytes: f_bytes.min(bytes) as f64 / BYTE_ONE,
            live_variance: difference(variance, f_var) / VARIANCE_ONE,
            live_object_variance: (object_variance - f_object_variance).max(0.0),
            live_age_ticks: age.min(live_objects * f64::from(now_tick)),
            freed_lifetime_ticks: difference(death, f_birth) / TIME_ONE,
            short_lived_objects: f_short.min(f_objects).min(objects) as f64 / OBJECT_ONE,
        }
    }
}

/// Converts the untrusted bits of a variance. Returns 0 if they are implausible.
fn variance(bits: u64) -> f64 {
    let variance = f64::from_bits(bits);
    if (0.0..1e100).contains(&variance) {
        variance
    } else {
        0.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::AtomicU32;
    use std::vec::Vec;

    use super::*;
    use crate::layout::Node;
    use crate::record::{FreeSample, NewSample, RecordKey, Records, Room, size_class};
    use helpers::random::Random;

    /// Lifetime of the test's objects, in ticks. One is allocated in each tick.
    const LIFETIME: u32 = 250;

    /// Returns the estimated mean age of live objects in ticks, after `ticks` ticks of a session in
    /// which one object is allocated and one freed per tick.
    fn mean_age(bytes: u64, interval: f64, ticks: u32) -> f64 {
        // SAFETY: zeros are valid for both types.
        let (memory, node): (Vec<Record>, Node) = unsafe {
            (
                (0..4).map(|_| std::mem::zeroed()).collect(),
                std::mem::zeroed(),
            )
        };
        let count = AtomicU32::new(0);
        let peak = AtomicU32::new(0);
        let records = Records::new(&memory, &count, &peak);
        let room = Room {
            limit: 4,
            crowded: 4,
        };
        let id = records
            .of_shard(&node, RecordKey::new(1, 0), 0, room)
            .expect("a record");
        let weight = (1.0 / (1.0 - (-(bytes as f64) / interval).exp())) as f32;
        let mut ring = VecDeque::new();
        for tick in ticks - 3 * LIFETIME..=ticks {
            let born = NewSample {
                bytes,
                weight,
                tick,
            };
            records.count_new(id, &born, true);
            ring.push_back(born);
            if ring.len() > LIFETIME as usize {
                let born = ring.pop_front().expect("an object");
                records.count_free(id, &FreeSample { born, tick }, true);
            }
        }
        // SAFETY: the memory is initialised and has this size, and nothing writes to it any more.
        let bytes = unsafe {
            std::slice::from_raw_parts(memory.as_ptr().cast::<u8>(), size_of_val(&memory[..]))
        };
        let sums = RecordView::at(bytes, id as usize, 0).sums(ticks);
        sums.live_age_ticks / (sums.alloc_objects - sums.free_objects)
    }

    /// Any rounding of weights would be multiplied by the ticks since the session's start. For
    /// example, weights rounded to 1/512 of an object would make ages wrong by half a second after
    /// a day.
    #[test]
    fn ages_are_exact_in_sessions_of_any_length() {
        let a_day = 24 * 3600 * 250;
        let expected = f64::from(LIFETIME - 1) / 2.0;
        for ticks in [1000, 15_000, 900_000, a_day, 30 * a_day] {
            for (bytes, interval) in [(4096, 1024.0), (2048, 1024.0), (1000, 1024.0), (24, 512e3)] {
                let age = mean_age(bytes, interval, ticks);
                let error = (age - expected).abs();
                assert!(error < 1e-6, "{bytes} at {interval}, {ticks}: {age}");
            }
        }
    }

    /// Sums from a torn copy or a hostile target yield no age beyond the session's length.
    #[test]
    fn impossible_sums_give_no_age_beyond_the_session() {
        let mut record = RecordView::default();
        record.sums[1] = 4096;
        for birth in [0, 1, 5000 * 4096, 1 << 40, 1 << 63, u64::MAX] {
            record.sums[3] = birth;
            let age = record.sums(1000).live_age_ticks;
            assert!((0.0..=1000.0).contains(&age), "{birth}: {age}");
        }
    }

    /// Sizes of a stack's objects in bytes, and how many of each size are allocated, evenly spread
    /// over a session.
    const SIZES: [(u64, u32); 3] = [(64, 1500), (512, 400), (3000, 100)];
    /// Length of a session, in ticks.
    const SESSION: u32 = 15_000;

    /// Simulates sampling of a stack's objects, every third of which is freed later. Returns the
    /// estimated mean age of live objects, its standard error, and the true mean age, in ticks.
    fn sampled_age(random: &mut Random) -> [f64; 3] {
        // SAFETY: zeros are valid for both types.
        let (memory, node): (Vec<Record>, Node) = unsafe {
            (
                (0..8).map(|_| std::mem::zeroed()).collect(),
                std::mem::zeroed(),
            )
        };
        let count = AtomicU32::new(0);
        let peak = AtomicU32::new(0);
        let records = Records::new(&memory, &count, &peak);
        let room = Room {
            limit: 8,
            crowded: 8,
        };
        let mut live = 0.0;
        let mut live_age = 0.0;
        let mut samples = Vec::new();
        let mut ids = Vec::new();
        for (bytes, objects) in SIZES {
            let key = RecordKey::new(1, size_class(bytes));
            let id = records.of_shard(&node, key, 0, room).expect("a record");
            ids.push(id);
            let weight = 1.0 / (1.0 - (-(bytes as f64) / 1024.0).exp());
            for number in 0..objects {
                let tick = number * (SESSION / objects);
                let death = (number % 3 == 0).then_some((tick + 2000).min(SESSION - 1));
                let age = f64::from(SESSION - tick);
                if death.is_none() {
                    live += 1.0;
                    live_age += age;
                }
                if random.uniform() > 1.0 / weight {
                    continue;
                }
                let born = NewSample {
                    bytes,
                    weight: weight as f32,
                    tick,
                };
                records.count_new(id, &born, true);
                match death {
                    Some(tick) => {
                        records.count_free(id, &FreeSample { born, tick }, true);
                    }
                    None => samples.push((weight, age)),
                }
            }
        }
        // SAFETY: the memory is initialised and has this size, and nothing writes to it any more.
        let bytes = unsafe {
            std::slice::from_raw_parts(memory.as_ptr().cast::<u8>(), size_of_val(&memory[..]))
        };
        let sums: Vec<StackSums> = ids
            .iter()
            .map(|id| RecordView::at(bytes, *id as usize, 0).sums(SESSION))
            .collect();
        let objects: f64 = sums.iter().map(|s| s.alloc_objects - s.free_objects).sum();
        let age = sums.iter().map(|s| s.live_age_ticks).sum::<f64>() / objects;
        // Variance of a ratio of two sums over independent samples.
        let variance = |(weight, sample_age): &(f64, f64)| {
            weight * (weight - 1.0) * (sample_age - age).powi(2)
        };
        let error = samples.iter().map(variance).sum::<f64>().sqrt() / objects;
        [age, error, live_age / live]
    }

    /// The 95 % confidence interval of the mean age must contain the true mean age in about 95 % of
    /// runs, with mixed sizes and some of the objects freed. With 2,000 runs, the standard error of
    /// that share is 0.5 %.
    #[test]
    fn confidence_intervals_of_ages_have_the_right_coverage() {
        let is_full = std::env::var("MEM_TESTS_PLANTED").is_ok_and(|what| what == "all");
        let runs = if is_full { 40_000 } else { 2000 };
        let mut random = Random(0xa9e5_0f5a_3b1e_d001);
        let mut covered = 0;
        let mut deviations = 0.0;
        for _ in 0..runs {
            let [age, error, truth] = sampled_age(&mut random);
            covered += usize::from((age - truth).abs() <= 1.959_964 * error);
            deviations += (age - truth) / error;
        }
        let share = covered as f64 / runs as f64;
        assert!((0.93..=0.97).contains(&share), "{share}");
        // The estimates must not be biased.
        let bias = deviations / runs as f64;
        assert!(bias.abs() < 0.1, "{bias} standard errors");
    }
}
