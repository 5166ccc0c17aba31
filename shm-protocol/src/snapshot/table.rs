//! Stacks of a bank, and their counters.

use super::ages::{Ages, Births, Weights};
use super::{Invalid, u16_at, u32_at, u64_at};
use crate::layout::{MAX_RECORDED_THREADS, Node, Record, THREAD_ADDRESS};
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
            let u32_field = |field: usize| u32_at(bytes, base + field);
            let has_changed = epoch != 0
                && u32_field(offset_of!(Record, peak_epoch)) == epoch
                && u32_field(offset_of!(Record, kept_epoch)) == epoch;
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
    (index < MAX_RECORDED_THREADS as u64).then_some(index as u32)
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
    /// Sum of weight × birth² of live objects, modulo 2^96.
    squares: u128,
    /// True if `squares` does not belong to the other sums: these are of a peak.
    has_no_squares: bool,
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

/// Offsets of the sums in [`RecordView::object_variances`].
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
    /// Sum over live objects of w·(w − 1)·(age − mean age)², where w is the weight, in
    /// object²-ticks²; `None` if it is not known. Divided by the square of the live objects, it is
    /// the variance of the mean age.
    pub live_age_spread: Option<f64>,
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
            squares: u128::from(u32_at(bytes, base + offset_of!(Record, live_squares_high))) << 64
                | u128::from(u64_at(bytes, base + offset_of!(Record, live_squares))),
            // A record keeps no copy of this sum at a peak.
            has_no_squares: shift != 0,
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

    /// Adds another record of the same stack, which should be of the same size class: the spread of
    /// the ages is estimated as if size and age were independent.
    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in self.sums.iter_mut().zip(other.sums) {
            *sum = sum.wrapping_add(more);
        }
        for (sum, more) in self.object_variances.iter_mut().zip(other.object_variances) {
            *sum += more;
        }
        self.squares = self.squares.wrapping_add(other.squares);
        self.has_no_squares |= other.has_no_squares;
    }

    /// Converts the sums to plain units, as of `now_tick` ticks after the session's start. Sums
    /// that a torn copy or a hostile target made negative become zero.
    #[must_use]
    pub fn sums(&self, now_tick: u32) -> StackSums {
        let [
            samples,
            objects,
            bytes,
            births,
            variance,
            freed_samples,
            freed_objects,
            freed_bytes,
            freed_births,
            deaths,
            freed_variance,
            short_lived,
        ] = self.sums;
        let difference = |all: u64, freed: u64| (all.wrapping_sub(freed) as i64).max(0) as f64;
        let live_objects = difference(objects, freed_objects) / OBJECT_ONE;
        let ages = Ages::of(&Births {
            objects: objects.wrapping_sub(freed_objects),
            births: births.wrapping_sub(freed_births),
            squares: (!self.has_no_squares).then_some(self.squares),
            now: now_tick,
        });
        let [object_variance, freed_object_variance] = self.object_variances;
        let live_object_variance = (object_variance - freed_object_variance).max(0.0);
        let weights = Weights {
            samples: samples.saturating_sub(freed_samples) as f64,
            sum: live_objects,
            variance: live_object_variance,
        };
        StackSums {
            alloc_samples: samples,
            free_samples: freed_samples.min(samples),
            alloc_objects: objects as f64 / OBJECT_ONE,
            alloc_bytes: bytes as f64 / BYTE_ONE,
            alloc_variance: variance as f64 / VARIANCE_ONE,
            alloc_object_variance: object_variance,
            free_objects: freed_objects.min(objects) as f64 / OBJECT_ONE,
            free_bytes: freed_bytes.min(bytes) as f64 / BYTE_ONE,
            live_variance: difference(variance, freed_variance) / VARIANCE_ONE,
            live_object_variance,
            live_age_ticks: ages.sum,
            live_age_spread: ages.spread(&weights),
            freed_lifetime_ticks: difference(deaths, freed_births) / TIME_ONE,
            short_lived_objects: short_lived.min(freed_objects).min(objects) as f64 / OBJECT_ONE,
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
