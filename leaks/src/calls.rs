//! Calls by which stacks of the same functions differ: a function may allocate in several places.

use std::collections::{BTreeMap, HashMap};

use super::report::Frame;
use heap_format::{NO_MAPPING, Profile};
use mem_agents::collect;
use mem_agents::discovery::Agent;
use mem_agents::snapshot::Snapshot;
use mem_agents::text;
use shm_protocol::NodeId;
use shm_protocol::snapshot::Header;

/// Returns, for each stack with the same functions and lines as another one, the calls that not all
/// of them have: file and offset of the call, innermost first. `stacks` has the frames by leaf node.
pub fn telling_apart(
    agent: &Agent,
    header: &Header<'_>,
    snapshot: &Snapshot,
    stacks: &HashMap<NodeId, Vec<Frame>>,
) -> HashMap<NodeId, Vec<String>> {
    let mut groups: BTreeMap<&[Frame], Vec<NodeId>> = BTreeMap::new();
    for (node, frames) in stacks {
        groups.entry(frames).or_default().push(*node);
    }
    let groups = groups.into_values().filter(|nodes| nodes.len() > 1);
    let mut own = HashMap::new();
    for nodes in groups {
        let stacks = nodes.iter().map(|node| {
            let mut frames = Vec::new();
            snapshot.frames(*node, &mut frames);
            frames
        });
        let stacks: Vec<Vec<u64>> = stacks.collect();
        own.extend(nodes.into_iter().zip(without_common(&stacks)));
    }
    let addresses: Vec<u64> = own.values().flatten().copied().collect();
    if addresses.is_empty() {
        return HashMap::new();
    }
    let profile = collect::code(header, agent.pid, &addresses, snapshot.codes());
    let place = |stack: usize| place(&profile, stack);
    let places: HashMap<u64, String> = addresses
        .iter()
        .enumerate()
        .filter_map(|(stack, address)| Some((*address, place(stack)?)))
        .collect();
    let named = own.into_iter().map(|(node, addresses)| {
        let places = addresses.iter().filter_map(|at| places.get(at).cloned());
        (node, places.collect())
    });
    named.collect()
}

/// Returns the addresses of each stack that are not in all of them.
fn without_common(stacks: &[Vec<u64>]) -> Vec<Vec<u64>> {
    let is_common = |address: &u64| stacks.iter().all(|stack| stack.contains(address));
    let rest = stacks.iter().map(|stack| {
        let own = stack.iter().filter(|address| !is_common(address));
        own.copied().collect()
    });
    rest.collect()
}

/// Returns file and offset of a call, given the number of the profile's stack that consists of its
/// return address. `None` if it is in no file.
fn place(profile: &Profile, stack: usize) -> Option<String> {
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
    fn what_all_stacks_have_tells_none_apart() {
        let stacks = [vec![1, 7, 8], vec![2, 7, 8], vec![1, 7, 9]];
        let expected = [vec![1, 8], vec![2, 8], vec![1, 9]];
        assert_eq!(without_common(&stacks), expected);
    }
}
