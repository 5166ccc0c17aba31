//! Computes what was allocated since the last profile that a receiver accepted, for receivers that
//! add up profiles.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use profile::Profile;

use super::receiver::Prepared;

/// Maximum number of processes to remember.
const MAX_PROCESSES: usize = 4096;

/// Cumulative values already sent, by process and stack.
#[derive(Debug, Default)]
pub struct Increments {
    sent: HashMap<u64, HashMap<u64, Vec<i64>>>,
}

impl Increments {
    /// Replaces cumulative values by their increase since the last accepted profile, and saves the
    /// full values in `prepared.cumulative`. An increase is never negative, because cumulative
    /// values of a session only grow.
    pub fn apply(&self, prepared: &mut Prepared) {
        let columns = cumulative_columns(prepared);
        let mut sent = self
            .sent
            .get(&prepared.process)
            .cloned()
            .unwrap_or_default();
        let profile = &mut prepared.profile;
        let width = profile.sample_types.len();
        prepared.cumulative.clear();
        for stack in 0..profile.stacks.len() {
            let key = stack_key(profile, stack);
            let values = &mut profile.values[stack * width..(stack + 1) * width];
            let cumulative = prepared
                .cumulative
                .entry(key)
                .or_insert_with(|| vec![0; columns.len()]);
            let sent = sent.entry(key).or_insert_with(|| vec![0; columns.len()]);
            for (index, &column) in columns.iter().enumerate() {
                // Several stacks may have the same key, if labels separate them. The value that was
                // already sent is subtracted from the first of them until it is used up.
                let value = values[column];
                let already_sent = sent[index].clamp(0, value.max(0));
                cumulative[index] = cumulative[index].saturating_add(value);
                sent[index] -= already_sent;
                values[column] -= already_sent;
            }
        }
    }

    /// Records that the receiver has accepted a profile.
    pub fn accepted(&mut self, prepared: &Prepared) {
        if prepared.cumulative.is_empty() {
            return;
        }
        if self.sent.len() >= MAX_PROCESSES && !self.sent.contains_key(&prepared.process) {
            self.sent.clear();
        }
        self.sent
            .insert(prepared.process, prepared.cumulative.clone());
    }
}

/// Returns the key of a stack: a hash of its addresses.
fn stack_key(profile: &Profile, stack: usize) -> u64 {
    let mut key = DefaultHasher::new();
    for &frame in profile.stacks.get(stack) {
        profile.locations[frame as usize].address.hash(&mut key);
    }
    key.finish()
}

/// Returns the columns whose values only grow.
fn cumulative_columns(prepared: &Prepared) -> Vec<usize> {
    let types = prepared.profile.sample_types.iter().enumerate();
    let growing = types.filter(|(_, sample_type)| sample_type.kind.starts_with("alloc_"));
    growing.map(|(column, _)| column).collect()
}
