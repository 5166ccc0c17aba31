//! Groups lost objects by the stack that allocated them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use mem_agents::snapshot::Snapshot;
use profile::variance::half_width;
use profile::{AgeSpread, Detail, Loss, Lost as Label};
use reachability::causes::LossKind;
use reachability::lost::Lost;
use reachability::object::Sampled;
use shm_protocol::NodeId;
use shm_protocol::clock::{TICK_NS, tick_of};
use shm_protocol::header;

use super::base::{Amount, EPSILON, NewLosses, Share};

/// Losses of one stack, of one kind.
#[derive(Clone, Debug)]
pub struct Leak {
    /// Leaf node of the stack; 0 stands for `[table full]`.
    pub node: NodeId,
    /// Kind of loss: direct, in a cycle, or indirect.
    pub loss: Loss,
    /// Lost objects.
    pub lost: Sum,
    /// Other lost objects that are lost only because these are.
    pub kept: Sum,
    /// Address of the youngest object.
    pub example: u64,
    /// Birth of the youngest object, in ticks.
    born: u32,
}

impl Leak {
    fn add(&mut self, lost: &Lost, share: Share) {
        let born = lost.object.born;
        if self.lost.samples == 0 || born.wrapping_sub(self.born) as i32 >= 0 {
            self.example = lost.object.at;
            self.born = born;
        }
        self.lost.add_share(lost, share);
    }

    /// Adds the losses of a leak with the same stack.
    fn join(&mut self, other: &Self) {
        if other.born.wrapping_sub(self.born) as i32 > 0 {
            self.example = other.example;
            self.born = other.born;
        }
        self.lost.add_sum(&other.lost);
        self.kept.add_sum(&other.kept);
    }

    fn remove_rounding_errors(&mut self) {
        self.lost.remove_rounding_errors();
        self.kept.remove_rounding_errors();
    }
}

/// Corrects objects with overwritten or forged headers: gives them the mean weight of their stack
/// and size class. `stacks` has the leaf node and the size class of each record. Returns the number
/// of corrected objects by leaf node.
pub fn correct_weights(
    lost: &mut [Lost],
    stacks: &[(NodeId, u32)],
    snapshot: &Snapshot,
) -> BTreeMap<NodeId, u64> {
    let interval = snapshot.largest_interval();
    let now = tick_of(snapshot.end_ns);
    let mut means: HashMap<(NodeId, u32), f32> = HashMap::new();
    let is_overwritten = |object: &Sampled| {
        let largest = header::largest_weight(object.bytes, interval);
        let age = now.wrapping_sub(object.born) as i32;
        // A birth more than one tick after the snapshot cannot be right.
        object.weight == 0.0 || object.weight > largest || age < -1
    };
    if lost.iter().any(|lost| is_overwritten(&lost.object)) {
        for record in snapshot.records() {
            let sums = record.sums(snapshot.end_tick());
            let mean = sums.alloc_objects / sums.alloc_samples.max(1) as f64;
            means.insert((record.node, record.size_class), mean as f32);
        }
    }
    let mut overwritten = BTreeMap::new();
    for Lost { object, .. } in lost {
        if is_overwritten(object) {
            let stack = stacks.get(object.record as usize);
            let mean = stack.and_then(|stack| means.get(stack));
            object.weight = mean.copied().unwrap_or(1.0).max(1.0);
            object.born = now;
            *overwritten
                .entry(stack.map_or(0, |(node, _)| *node))
                .or_default() += 1;
        }
    }
    overwritten
}

/// Sums the losses by stack. `stacks` is as for [`correct_weights`].
pub fn amounts(lost: &[Lost], stacks: &[(NodeId, u32)]) -> HashMap<NodeId, Amount> {
    let mut amounts: HashMap<NodeId, Amount> = HashMap::new();
    for lost in lost {
        let stack = stacks.get(lost.object.record as usize);
        let node = stack.map_or(0, |(node, _)| *node);
        let amount = amounts.entry(node).or_default();
        let weight = f64::from(lost.object.weight);
        amount.samples += 1;
        amount.objects += weight;
        amount.bytes += weight * lost.object.bytes as f64;
    }
    amounts
}

/// Estimated sum of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// Number of samples.
    pub samples: u64,
    /// Number of objects.
    pub objects: f64,
    /// Number of bytes.
    pub bytes: f64,
    /// Variance of `bytes`.
    pub variance: f64,
}

impl Sum {
    /// Adds an object.
    pub fn add(&mut self, lost: &Lost) {
        self.add_share(lost, Share::ALL);
    }

    /// Adds a fraction of an object.
    fn add_share(&mut self, lost: &Lost, share: Share) {
        let weight = f64::from(lost.object.weight);
        let bytes = lost.object.bytes as f64;
        self.samples += 1;
        self.objects += weight * share.objects;
        self.bytes += weight * bytes * share.bytes;
        self.variance += weight * (weight - 1.0) * bytes * bytes * share.bytes;
    }

    fn add_sum(&mut self, other: &Self) {
        self.samples += other.samples;
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.variance += other.variance;
    }

    /// Rounds values that differ from an integer only by rounding errors.
    fn remove_rounding_errors(&mut self) {
        for number in [&mut self.objects, &mut self.bytes] {
            if (*number - number.round()).abs() < EPSILON {
                *number = number.round();
            }
        }
    }

    /// Returns half the width of the 95 % confidence interval of `bytes`.
    pub fn margin(&self) -> f64 {
        half_width(self.bytes, self.variance)
    }
}

/// Losses of a process.
#[derive(Debug, Default)]
pub struct Leaks {
    /// Losses by stack and kind, the largest first.
    pub leaks: Vec<Leak>,
    /// Sum over all stacks.
    pub total: Sum,
    /// Losses by stack and size class, with their kinds, as in a profile.
    details: HashMap<(NodeId, u32), BTreeMap<Label, Detail>>,
}

impl Leaks {
    /// Groups lost objects. `loss_kinds` has the kind of each loss, if known; `stacks` has the leaf
    /// and size class of each record; `now` is the tick of the check. With `new_losses`, lists only
    /// new losses.
    pub fn of(
        lost: &[Lost],
        loss_kinds: Option<&[LossKind]>,
        stacks: &[(NodeId, u32)],
        now: u32,
        new_losses: Option<&NewLosses>,
    ) -> Self {
        let stack = |lost: &Lost| stacks.get(lost.object.record as usize).copied();
        let share = |node: NodeId| match new_losses {
            Some(new_losses) => new_losses.shares.get(&node).copied(),
            None => Some(Share::ALL),
        };
        let kind_and_cause =
            |index: usize| loss(loss_kinds.and_then(|loss_kinds| loss_kinds.get(index)));
        let mut leaks: HashMap<(NodeId, Loss), Leak> = HashMap::new();
        let mut all = Self::default();
        for (index, object) in lost.iter().enumerate() {
            let (node, class) = stack(object).unwrap_or_default();
            let (loss, cause) = kind_and_cause(index);
            // A group is named after the stack of the object that causes its losses.
            let group = match (cause, loss) {
                (Some(cause), _) => lost.get(cause as usize).and_then(stack),
                (None, Loss::Indirect) => None,
                (None, _) => stack(object),
            };
            let label = Label {
                how: Some(loss),
                group: group.unwrap_or_default().0,
            };
            let details = all.details.entry((node, class)).or_default();
            let detail = details.entry(label).or_default();
            detail.add(&detail_of(object, now));
            let Some(share) = share(node) else {
                continue;
            };
            all.total.add_share(object, share);
            leak_entry(&mut leaks, node, loss).add(object, share);
            if loss == Loss::Indirect
                && let Some(cause) = cause.map(|cause| cause as usize)
                && cause != index
                && let Some(causing) = lost.get(cause)
            {
                let (node, _) = stack(causing).unwrap_or_default();
                let (loss_of_cause, _) = kind_and_cause(cause);
                let leak = leak_entry(&mut leaks, node, loss_of_cause);
                leak.kept.add_share(object, share);
            }
        }
        if let Some(new_losses) = new_losses {
            all.total.samples = new_losses.samples;
            all.total.remove_rounding_errors();
            leaks.values_mut().for_each(Leak::remove_rounding_errors);
            // The cause of a new loss may be an older loss, which is not listed.
            leaks.retain(|_, leak| leak.lost.samples > 0);
        }
        all.leaks = sorted(leaks.into_values().collect());
        all
    }

    /// Adds up losses of one kind whose stacks are the same. `merged_nodes` maps each leaf node to
    /// the node that represents its stack.
    pub fn join(&mut self, merged_nodes: &HashMap<NodeId, NodeId>) {
        let mut joined: HashMap<(NodeId, Loss), Leak> = HashMap::new();
        for mut leak in std::mem::take(&mut self.leaks) {
            leak.node = merged_nodes.get(&leak.node).copied().unwrap_or(leak.node);
            match joined.entry((leak.node, leak.loss)) {
                Entry::Occupied(mut entry) => entry.get_mut().join(&leak),
                Entry::Vacant(entry) => {
                    entry.insert(leak);
                }
            }
        }
        self.leaks = sorted(joined.into_values().collect());
    }

    /// Returns the losses of a stack and size class, by kind.
    pub fn details(&self, node: NodeId, class: u32) -> Vec<(Detail, Label)> {
        let details = self.details.get(&(node, class)).into_iter().flatten();
        details.map(|(label, detail)| (*detail, *label)).collect()
    }
}

/// Sorts by size. Indirect leaks come last, since fixing the other leaks fixes them too.
fn sorted(mut leaks: Vec<Leak>) -> Vec<Leak> {
    let size = |leak: &Leak| leak.lost.bytes + leak.kept.bytes;
    leaks.sort_by(|a, b| {
        let by_loss = (a.loss == Loss::Indirect).cmp(&(b.loss == Loss::Indirect));
        by_loss
            .then(size(b).total_cmp(&size(a)))
            .then(a.node.cmp(&b.node))
    });
    leaks
}

fn leak_entry(leaks: &mut HashMap<(NodeId, Loss), Leak>, node: NodeId, loss: Loss) -> &mut Leak {
    leaks.entry((node, loss)).or_insert_with(|| Leak {
        node,
        loss,
        lost: Sum::default(),
        kept: Sum::default(),
        example: 0,
        born: 0,
    })
}

/// Returns the kind of a loss and the index of the object that causes it.
fn loss(loss_kind: Option<&LossKind>) -> (Loss, Option<u32>) {
    match loss_kind {
        None | Some(LossKind::Directly) => (Loss::Direct, None),
        Some(LossKind::InCycle(first)) => (Loss::Cycle, Some(*first)),
        Some(LossKind::Indirectly(cause)) => (Loss::Indirect, Some(*cause)),
        Some(LossKind::ThroughUnknown) => (Loss::Indirect, None),
    }
}

fn detail_of(lost: &Lost, now: u32) -> Detail {
    let weight = f64::from(lost.object.weight);
    let bytes = lost.object.bytes as f64;
    let spread = weight * (weight - 1.0);
    let age = now.wrapping_sub(lost.object.born) as i32;
    Detail {
        alloc_samples: 1,
        alloc_objects: weight,
        alloc_bytes: weight * bytes,
        live_age_ms_sum: weight * f64::from(age.max(0)) * (TICK_NS as f64 / 1e6),
        alloc_variance: spread * bytes * bytes,
        live_variance: spread * bytes * bytes,
        alloc_object_variance: spread,
        live_object_variance: spread,
        age_spread: Some(AgeSpread::default()),
        ..Detail::default()
    }
}
