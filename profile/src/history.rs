//! Joins the moments of all dumps of one session.

use std::collections::{BTreeMap, HashMap};

use crate::moment::{MAX_MOMENTS, Moment, StackBytes, drop_half, heaviest};
use crate::profile::Profile;

/// Adds the moments of a session's earlier dumps to those of its last dump. Each earlier dump itself
/// is a moment at which the values of all stacks are known.
pub fn join<'a>(last: &mut Profile, earlier: impl Iterator<Item = &'a Profile>) {
    let mut numbers: HashMap<(u32, Vec<u64>), u32> = HashMap::new();
    for (number, stack) in (0..).zip(stack_keys(last)) {
        // Stacks that differ only in size class map to the first of them.
        numbers.entry(stack).or_insert(number);
    }
    let mut all: BTreeMap<u64, Moment> = BTreeMap::new();
    let mut add = |moment: Moment| {
        let known = all.entry(moment.at_ns).or_insert_with(|| moment.clone());
        if known.stacks.is_none() {
            *known = moment;
        }
    };
    for profile in earlier {
        let number: Vec<Option<u32>> = stack_keys(profile)
            .map(|stack| numbers.get(&stack).copied())
            .collect();
        let number = |stack: u32| number.get(stack as usize).copied().flatten();
        let mut moments = profile.moments.clone();
        if let Some(end) = moments.last_mut().filter(|end| end.stacks.is_none()) {
            end.stacks = live_bytes_by_stack(profile);
        }
        for moment in &moments {
            let mut moment = moment.renumbered(number);
            moment.stacks = moment.stacks.map(|all| heaviest(all.into_iter()));
            add(moment);
        }
    }
    std::mem::take(&mut last.moments)
        .into_iter()
        .for_each(&mut add);
    last.moments = all.into_values().collect();
    while last.moments.len() > MAX_MOMENTS {
        drop_half(&mut last.moments);
    }
}

/// Returns thread and addresses of each stack, which identify it in another dump of the session.
fn stack_keys(profile: &Profile) -> impl Iterator<Item = (u32, Vec<u64>)> + '_ {
    let address = |&location: &u32| profile.locations[location as usize].address;
    let stacks = profile.stacks.iter().enumerate();
    stacks.map(move |(stack, frames)| {
        let thread = profile.threads.get(stack).copied().unwrap_or(0);
        (thread, frames.iter().map(address).collect())
    })
}

/// Returns the live bytes of each stack of a heap profile, or `None` without that column.
fn live_bytes_by_stack(profile: &Profile) -> Option<Vec<StackBytes>> {
    let column = profile.type_index("inuse_space")?;
    let held = |(stack, index): (u32, usize)| StackBytes {
        stack,
        bytes: u64::try_from(profile.values_of(index)[column]).unwrap_or(0),
    };
    Some((0..).zip(0..profile.stacks.len()).map(held).collect())
}
