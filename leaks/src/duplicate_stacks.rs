//! Finds stacks that differ only by their thread or by the address of a library that was loaded
//! several times: to a reader of a report, they are one.

use std::collections::HashMap;

use mem_agents::snapshot::Snapshot;
use shm_protocol::NodeId;
use shm_protocol::codes::frame_of;
use shm_protocol::snapshot::Header;

use super::base::{ModuleFrame, Modules};

/// Stack as the reader of a report sees it.
#[derive(PartialEq, Eq, Hash)]
struct ReportedStack {
    frames: Vec<ModuleFrame>,
    /// Interpreter frames: index and address.
    interpreted: Vec<(usize, u64)>,
}

/// Maps each leaf node to the lowest leaf node with the same stack.
pub fn merge(
    leaves: impl Iterator<Item = NodeId>,
    snapshot: &Snapshot,
    header: &Header<'_>,
    pid: i32,
) -> HashMap<NodeId, NodeId> {
    let mut leaves: Vec<NodeId> = leaves.collect();
    leaves.sort_unstable();
    leaves.dedup();
    let stacks = Modules::default().stacks(leaves.into_iter(), snapshot, header, pid);
    let mut first: HashMap<ReportedStack, NodeId> = HashMap::new();
    let mut merged_nodes = HashMap::new();
    for (leaf, frames) in stacks {
        let interpreted = interpreted(snapshot, leaf);
        let stack = ReportedStack {
            frames,
            interpreted,
        };
        merged_nodes.insert(leaf, *first.entry(stack).or_insert(leaf));
    }
    merged_nodes
}

/// Returns the interpreter frames of a stack: index and address.
fn interpreted(snapshot: &Snapshot, leaf: NodeId) -> Vec<(usize, u64)> {
    let mut frames = Vec::new();
    snapshot.frames(leaf, &mut frames);
    let frames = frames.into_iter().enumerate();
    frames
        .filter(|&(_, address)| frame_of(address).is_some())
        .collect()
}
