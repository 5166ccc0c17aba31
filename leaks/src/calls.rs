//! Finds the calls that tell stacks with the same functions apart, since a function may allocate at
//! several call sites.

use std::collections::{BTreeMap, HashMap};

use super::frame::Frame;
use mem_agents::collect;
use mem_agents::discovery::Agent;
use mem_agents::snapshot::Snapshot;
use mem_agents::text;
use profile::{NO_MAPPING, Profile};
use shm_protocol::NodeId;
use shm_protocol::snapshot::Header;

/// Returns the calls by which stacks with the same functions and lines differ, by leaf node: file
/// and offset of each call, innermost first. `stacks` has the frames by leaf node.
pub fn differing_calls(
    agent: &Agent,
    header: &Header<'_>,
    snapshot: &Snapshot,
    stacks: &HashMap<NodeId, Vec<Frame>>,
) -> HashMap<NodeId, Vec<String>> {
    let mut groups: BTreeMap<&[Frame], Vec<NodeId>> = BTreeMap::new();
    for (node, frames) in stacks {
        groups.entry(frames).or_default().push(*node);
    }
    let mut differing = HashMap::new();
    for nodes in groups.into_values().filter(|nodes| nodes.len() > 1) {
        let stacks = nodes.iter().map(|node| {
            let mut frames = Vec::new();
            snapshot.frames(*node, &mut frames);
            frames
        });
        let stacks: Vec<Vec<u64>> = stacks.collect();
        differing.extend(nodes.into_iter().zip(without_common(&stacks)));
    }
    let addresses: Vec<u64> = differing.values().flatten().copied().collect();
    if addresses.is_empty() {
        return HashMap::new();
    }
    let profile = collect::profile_of_addresses(header, agent.pid, &addresses, snapshot.codes());
    let names: HashMap<u64, String> = addresses
        .iter()
        .enumerate()
        .filter_map(|(stack, address)| Some((*address, call_name(&profile, stack)?)))
        .collect();
    let named = differing.into_iter().map(|(node, addresses)| {
        let calls = addresses.iter().filter_map(|at| names.get(at).cloned());
        (node, calls.collect())
    });
    named.collect()
}

/// Returns the addresses of each stack that are not in all of the stacks.
fn without_common(stacks: &[Vec<u64>]) -> Vec<Vec<u64>> {
    let is_common = |address: &u64| stacks.iter().all(|stack| stack.contains(address));
    let differing = stacks.iter().map(|stack| {
        let addresses = stack.iter().filter(|address| !is_common(address));
        addresses.copied().collect()
    });
    differing.collect()
}

/// Returns the file and offset of a call. `stack` is the index of a stack of `profile` that has
/// only the call's return address. Returns `None` if the address is not in a file.
fn call_name(profile: &Profile, stack: usize) -> Option<String> {
    let location = *profile.stacks.get(stack).first()?;
    let location = profile.locations.get(location as usize)?;
    let mapping = Some(location.mapping).filter(|mapping| *mapping != NO_MAPPING)?;
    let mapping = profile.mappings.get(mapping as usize)?;
    let from_start = location.address.checked_sub(mapping.start)?;
    let offset = from_start + mapping.file_offset;
    let path = mapping.path.to_string_lossy();
    let name = text::escape(text::base_name(path.as_bytes()));
    Some(format!("{name}+{offset:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_addresses_are_removed() {
        let stacks = [vec![1, 7, 8], vec![2, 7, 8], vec![1, 7, 9]];
        let expected = [vec![1, 8], vec![2, 8], vec![1, 9]];
        assert_eq!(without_common(&stacks), expected);
    }
}
