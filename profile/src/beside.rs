//! Combines a CPU profile with a heap profile of the same process.

use std::collections::HashMap;

use crate::detail::Detail;
use crate::merge::MappingKey;
use crate::profile::{Label, LabelValue, Line, Location, NO_MAPPING, Profile};

/// Key of the label that marks the stacks of the CPU profile; its value is [`CPU`].
pub const PROFILE_LABEL: &str = "profile";
/// Value of [`PROFILE_LABEL`].
pub const CPU: &str = "cpu";

/// Returns the stacks of both profiles with the columns of both; each stack is zero in the columns
/// of the other profile. The heap profile's stacks come first, unchanged. Those of the CPU profile
/// follow, with [`PROFILE_LABEL`].
///
/// The facts are from the heap profile, except for [`Facts::cpu`](crate::Facts::cpu). Equal
/// mappings and locations are shared.
pub fn combine(mut heap: Profile, cpu: &Profile) -> Profile {
    let heap_columns = heap.sample_types.len();
    let cpu_columns = cpu.sample_types.len();
    widen(&mut heap.values, heap_columns, cpu_columns, 0);
    widen(&mut heap.variances, heap_columns, cpu_columns, 0.0);
    heap.sample_types.extend_from_slice(&cpu.sample_types);
    heap.facts.cpu.clone_from(&cpu.facts.cpu);
    let locations = locations(&mut heap, cpu);
    let stacks = heap.stacks.len();
    let mut labels = cpu.labels.iter().peekable();
    for (number, frames) in cpu.stacks.iter().enumerate() {
        let frames = frames.iter().map(|&f| locations[f as usize]);
        heap.stacks.push_frames(frames);
        heap.stacks.close();
        heap.values.extend(std::iter::repeat_n(0, heap_columns));
        heap.values.extend_from_slice(cpu.values_of(number));
        let stack = (stacks + number) as u32;
        while let Some(label) = labels.next_if(|l| l.stack as usize == number) {
            heap.labels.push(Label {
                stack,
                ..label.clone()
            });
        }
        heap.labels.push(Label {
            stack,
            key: PROFILE_LABEL.to_owned(),
            value: LabelValue::Text(CPU.to_owned()),
        });
    }
    if heap.details.len() == stacks {
        heap.details.resize(heap.stacks.len(), Detail::default());
    }
    if heap.block_sizes.len() == stacks {
        heap.block_sizes.resize(heap.stacks.len(), 0);
    }
    if !heap.threads.is_empty() {
        heap.threads.resize(heap.stacks.len(), 0);
    }
    if !heap.variances.is_empty() {
        for number in 0..cpu.stacks.len() {
            let variances = (cpu.variances).get(number * cpu_columns..(number + 1) * cpu_columns);
            heap.variances
                .extend(std::iter::repeat_n(0.0, heap_columns));
            match variances {
                Some(variances) => heap.variances.extend_from_slice(variances),
                None => heap.variances.extend(std::iter::repeat_n(0.0, cpu_columns)),
            }
        }
    }
    heap
}

/// Returns for each stack whether it belongs to the CPU profile. Empty unless the profile is a
/// combined one.
pub fn cpu_stacks(profile: &Profile) -> Vec<bool> {
    let mut stacks = Vec::new();
    for label in profile.labels.iter().filter(|l| l.key == PROFILE_LABEL) {
        stacks.resize(profile.stacks.len(), false);
        if let Some(stack) = stacks.get_mut(label.stack as usize) {
            *stack = label.value == LabelValue::Text(CPU.to_owned());
        }
    }
    stacks
}

/// Appends `new` columns to rows of `old` ones.
fn widen<T: Copy>(rows: &mut Vec<T>, old: usize, new: usize, zero: T) {
    let mut wide = Vec::with_capacity(rows.len() / old.max(1) * (old + new));
    for row in rows.chunks(old.max(1)) {
        wide.extend_from_slice(row);
        wide.extend(std::iter::repeat_n(zero, new));
    }
    *rows = wide;
}

/// Adds the locations of `cpu` to `heap`, with the mappings and functions that they refer to.
/// Returns the index of each location in `heap`.
fn locations(heap: &mut Profile, cpu: &Profile) -> Vec<u32> {
    let mut known: HashMap<MappingKey, u32> = HashMap::new();
    for (number, mapping) in heap.mappings.iter().enumerate() {
        known
            .entry(MappingKey::new(mapping))
            .or_insert(number as u32);
    }
    // A module mapped at another address counts as another module, so that addresses stay valid.
    let is_at =
        |heap: &Profile, number: u32, start: u64| heap.mappings[number as usize].start == start;
    let mut mappings = Vec::with_capacity(cpu.mappings.len());
    for mapping in &cpu.mappings {
        let found = known.get(&MappingKey::new(mapping)).copied();
        mappings.push(
            found
                .filter(|&n| is_at(heap, n, mapping.start))
                .unwrap_or_else(|| {
                    heap.mappings.push(mapping.clone());
                    heap.mappings.len() as u32 - 1
                }),
        );
    }
    let first_function = heap.functions.len() as u32;
    heap.functions.extend_from_slice(&cpu.functions);
    let mut location_numbers: HashMap<(u32, u64), u32> = HashMap::new();
    for (number, l) in heap
        .locations
        .iter()
        .enumerate()
        .filter(|(_, l)| l.address != 0)
    {
        location_numbers.insert((l.mapping, l.address), number as u32);
    }
    let mut numbers = Vec::with_capacity(cpu.locations.len());
    for location in &cpu.locations {
        let mapping = match location.mapping {
            NO_MAPPING => NO_MAPPING,
            number => mappings[number as usize],
        };
        let known = location_numbers.get(&(mapping, location.address));
        // A Python location is identified by its names: its address is only a number.
        if !cpu.is_python(location)
            && let Some(&number) = known
        {
            numbers.push(number);
            continue;
        }
        let first_line = heap.lines.len() as u32;
        heap.lines
            .extend(cpu.lines_of(location).iter().map(|l| Line {
                function: first_function + l.function,
                ..*l
            }));
        numbers.push(heap.locations.len() as u32);
        heap.locations.push(Location {
            mapping,
            first_line,
            ..*location
        });
    }
    numbers
}
