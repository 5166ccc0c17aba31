//! Writes gperftools' binary CPU profile.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use crate::cpu::kernel_function;
use crate::marker::{KERNEL_ADDRESS, MARKERS, NOT_SAMPLED_ADDRESS, marker_at, to_gperftools};
use crate::printable::replace_hidden;
use crate::profile::{Mapping, Profile};
use crate::python::PYTHON;

/// Period of profiles that do not have one, in microseconds: gperftools' default.
const PERIOD_US: u64 = 10_000;

/// Writes a CPU profile in the format of gperftools.
///
/// Guarantees: gperftools' and Go's pprof read the profile's total time, and the time of each
/// subtree of the call tree to within one period. The format counts periods, so each stack's number
/// of periods is rounded such that the running sum is right. A profile read from this format keeps
/// its counts.
///
/// Limits: The format has only addresses, so all kernel functions become one pseudo-frame, and
/// Python frames, which have no address, are dropped. Threads are not distinguished.
///
/// Requires a column of nanoseconds without negative values, and addresses. Returns an error for
/// other profiles.
pub fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let Some(column) = profile.time_column() else {
        return Err(unsupported(
            "it is not a CPU profile: it has no column of nanoseconds",
        ));
    };
    if profile.values.iter().any(|&value| value < 0) {
        return Err(unsupported(
            "it is a difference, which the format cannot hold",
        ));
    }
    let period_us = period_us(profile);
    let frames = frames(profile)?;
    let counts = counts(profile, column, &frames, period_us.saturating_mul(1000));
    let mut text = Vec::new();
    write_words(&mut text, [0, 3, 0, period_us, 0]);
    for (stack, count) in &counts {
        write_words(&mut text, [*count, stack.len() as u64]);
        // The stacks are stored root first; the format has the leaf first.
        let leaf_first = stack.iter().rev();
        write_words(&mut text, leaf_first.map(|&address| to_gperftools(address)));
    }
    let padded = pad(&mut text, counts.keys());
    write_words(&mut text, [0, 1, 0]);
    write_maps(profile, counts.keys().flatten().chain(&padded), &mut text);
    out.write_all(&text)
}

fn unsupported(why: &str) -> io::Error {
    let what = format!("gperftools' format cannot hold this profile: {why}");
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

fn write_words(out: &mut Vec<u8>, words: impl IntoIterator<Item = u64>) {
    words
        .into_iter()
        .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
}

fn period_us(profile: &Profile) -> u64 {
    let of_time = profile
        .period_type
        .as_ref()
        .is_some_and(|t| t.unit == "nanoseconds");
    match u64::try_from(profile.period) {
        Ok(ns) if of_time && ns > 0 => (ns / 1000).max(1),
        _ => PERIOD_US,
    }
}

/// Returns the lookup address of each location; `None` for one without an address in this format.
fn frames(profile: &Profile) -> io::Result<Vec<Option<u64>>> {
    let mut addresses = Vec::with_capacity(profile.locations.len());
    for location in &profile.locations {
        addresses.push(match kernel_function(profile, location) {
            Some(_) => Some(KERNEL_ADDRESS - 1),
            None if profile.is_python(location) => None,
            None if location.address == 0 && location.line_count > 0 => {
                return Err(unsupported("it has names without addresses"));
            }
            None => Some(location.address),
        });
    }
    Ok(addresses)
}

/// Returns the stacks, root first with the format's addresses, and their numbers of periods. Drops
/// stacks with none.
fn counts(
    profile: &Profile,
    column: usize,
    addresses: &[Option<u64>],
    period_ns: u64,
) -> BTreeMap<Vec<u64>, u64> {
    let mut times: BTreeMap<Vec<u64>, u128> = BTreeMap::new();
    for (stack, locations) in profile.stacks.iter().enumerate() {
        // No value is negative, as `write` has checked.
        let ns = profile.values_of(stack)[column] as u128;
        *times.entry(root_first(locations, addresses)).or_default() += ns;
    }
    // In this order, each subtree of the call tree is a range.
    let mut sum = 0u128;
    let mut periods_before = 0u128;
    let count = |(stack, ns)| {
        sum += ns;
        let periods = (sum + u128::from(period_ns) / 2) / u128::from(period_ns);
        let count = periods - periods_before;
        periods_before = periods;
        (stack, u64::try_from(count).unwrap_or(u64::MAX))
    };
    let counts = times.into_iter().map(count);
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Returns a stack, root first, with return addresses for all but the leaf. Never empty.
fn root_first(locations: &[u32], addresses: &[Option<u64>]) -> Vec<u64> {
    let lookups = locations
        .iter()
        .filter_map(|&location| addresses[location as usize]);
    let mut stack: Vec<u64> = lookups.collect();
    stack.dedup_by(|a, b| a == b && *a == KERNEL_ADDRESS - 1);
    if stack.is_empty() {
        stack.push(NOT_SAMPLED_ADDRESS - 1);
    }
    stack[1..]
        .iter_mut()
        .for_each(|address| *address = address.wrapping_add(1));
    stack.reverse();
    stack
}

/// Adds records without samples that keep readers from removing a real frame.
///
/// Readers take a frame after the leaf that nearly all stacks share for a frame of the signal
/// handler, and remove it. One different record in 32 prevents this. Returns the address in these
/// records, if they were needed.
fn pad<'a>(out: &mut Vec<u8>, stacks: impl ExactSizeIterator<Item = &'a Vec<u64>>) -> Option<u64> {
    let all = stacks.len();
    let mut seconds: HashMap<u64, usize> = HashMap::new();
    for stack in stacks {
        if let Some(at) = stack.len().checked_sub(2) {
            *seconds.entry(stack[at]).or_default() += 1;
        }
    }
    let max_shared = seconds.into_values().max().unwrap_or(0);
    let padding = NOT_SAMPLED_ADDRESS - 1;
    let is_shared = max_shared > 0 && max_shared >= all - all / 32;
    is_shared.then(|| {
        (0..=all / 31).for_each(|_| write_words(out, [0, 1, to_gperftools(padding)]));
        padding
    })
}

/// Writes the maps, with ranges for the pseudo-frames that are used.
fn write_maps<'a>(profile: &Profile, addresses: impl Iterator<Item = &'a u64>, out: &mut Vec<u8>) {
    let is_code = |m: &&Mapping| {
        let is_python = m.path.as_os_str() == PYTHON;
        m.start < m.end && marker_at(m.start).is_none() && !is_python
    };
    for m in profile.mappings.iter().filter(is_code) {
        let range = format!(
            "{:x}-{:x} r-xp {:08x} 00:00 0 ",
            m.start, m.end, m.file_offset
        );
        out.extend_from_slice(range.as_bytes());
        // A newline in a path would start another entry.
        replace_hidden(out, m.path.as_os_str().as_bytes(), b"");
        out.push(b'\n');
    }
    let mut used = [false; MARKERS.len()];
    for marker in addresses.filter_map(|&address| marker_at(address)) {
        let number = MARKERS.iter().position(|m| m == marker);
        number.into_iter().for_each(|number| used[number] = true);
    }
    for (marker, _) in MARKERS.iter().zip(used).filter(|(_, used)| *used) {
        let start = to_gperftools(marker.address);
        let end = start + marker.len;
        let name = marker.name.replace(' ', "_");
        let entry = format!("{start:08x}-{end:08x} r-xp 00000000 00:00 0 {name}\n");
        out.extend_from_slice(entry.as_bytes());
    }
}
