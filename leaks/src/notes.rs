//! Describes what a check could not examine, for display.

use std::collections::{BTreeSet, HashMap};

use mem_agents::text;
use shm_protocol::NodeId;

use super::Check;
use super::frame::Frame;

/// Maximum number of stacks of overwritten objects that are named.
const MAX_STACKS: usize = 4;
/// Maximum number of frames of each stack.
const MAX_FRAMES: usize = 4;

/// Returns remarks on the completeness of a check.
pub fn notes(check: &Check, names: &HashMap<NodeId, Vec<Frame>>) -> Vec<String> {
    let mut notes = Vec::new();
    if check.left_out > 0 {
        notes.push(format!(
            "{} parts of its memory cannot be read: what only they point to is reported as lost",
            check.left_out
        ));
    }
    if check.missed > 0 {
        notes.push(format!(
            "{} that copies lack (MADV_DONTFORK, MADV_WIPEONFORK) was read while it ran: \
             what only that keeps may be reported as lost; or use --stop",
            text::bytes(check.missed as f64)
        ));
    }
    if let Err(failure) = check.searched_by_copy {
        notes.push(format!(
            "its copy did not search its own memory ({failure}): it was read from outside, which \
             finds the same and takes longer"
        ));
    }
    if check.too_many {
        notes.push(
            "so many objects are lost that it is not known which of them keep others: all are shown \
             as direct leaks"
                .to_owned(),
        );
    }
    if check.own_allocator {
        notes.push(
            "it keeps its own allocator, so only sampled objects are known: whatever other memory \
             points to counts as reachable"
                .to_owned(),
        );
    }
    let untracked = check.snapshot.untracked();
    if untracked > 0 {
        notes.push(format!(
            "{untracked} samples have no place in the range of sampled objects: whether those are lost is not known; if ulimit -v is set, raise it"
        ));
    }
    notes.extend(overwritten(check, names));
    if let Some(error) = &check.suppressions_error {
        notes.push(format!("suppressions: {error}"));
    }
    if check.leaks.total.samples > 0 {
        add_causes_of_false_leaks(check, &mut notes);
    }
    notes
}

/// Adds remarks on why some of the reported objects may not be lost.
fn add_causes_of_false_leaks(check: &Check, notes: &mut Vec<String>) {
    if check.searches.is_some() {
        notes.push(
            "it was not stopped, so its registers are not known: what only they point to is reported as lost (not without --gentle)"
                .to_owned(),
        );
    }
    if check.shared > 0 {
        notes.push(format!(
            "{} of shared memory was read while it ran: what only that points to may be reported as lost; or use --stop",
            text::bytes(check.shared as f64)
        ));
    }
    if check.in_flight > 0 {
        notes.push(format!(
            "io_uring has requests under way ({}): what only these point to may be reported as \
             lost, since the kernel does not reveal it",
            check.in_flight
        ));
    }
}

/// Describes writes of the program outside its objects, as found by the agent when objects were
/// freed and by the search.
fn overwritten(check: &Check, names: &HashMap<NodeId, Vec<Frame>>) -> Option<String> {
    let mut all = check.snapshot.overwritten();
    all.before += check.overwritten.values().sum::<u64>();
    let leaves: BTreeSet<NodeId> = check.snapshot.overwritten.iter().copied().collect();
    let leaves = leaves.into_iter().chain(check.overwritten.keys().copied());
    let leaves: BTreeSet<NodeId> = leaves.collect();
    let stacks = leaves
        .iter()
        .filter_map(|leaf| names.get(leaf))
        .take(MAX_STACKS);
    let stacks: Vec<Vec<String>> = stacks
        .map(|stack| {
            let frames = stack.iter().take(MAX_FRAMES);
            frames.map(|frame| frame.function.clone()).collect()
        })
        .collect();
    let found = all.remark(&stacks);
    let unclear = (check.unclear > 0).then(|| {
        format!(
            "{} objects that nothing points to are left out: memory not used yet, or lost and overwritten before their beginning",
            check.unclear
        )
    });
    let parts: Vec<String> = found.into_iter().chain(unclear).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}
