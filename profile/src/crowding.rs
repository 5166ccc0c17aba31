//! Computes how much of a profile was lost to a full table in the target.

use crate::marker::{MERGED_ADDRESS, TABLE_FULL_ADDRESS};
use crate::profile::Profile;

/// Returns the share of a profile, from 0 to 1, in stacks that found no room in the target's table:
/// the largest share of all columns.
pub fn without_room(profile: &Profile) -> f64 {
    let is_marker = |frame: &u32| {
        let address = profile.locations[*frame as usize].address;
        [TABLE_FULL_ADDRESS - 1, MERGED_ADDRESS - 1].contains(&address)
    };
    let columns = profile.sample_types.len();
    let mut totals = vec![0u128; columns];
    let mut crowded = vec![0u128; columns];
    for (stack, frames) in profile.stacks.iter().enumerate() {
        let is_crowded = frames.first().is_some_and(is_marker);
        for (column, value) in profile.values_of(stack).iter().take(columns).enumerate() {
            let value = u128::from(value.unsigned_abs());
            totals[column] += value;
            crowded[column] += if is_crowded { value } else { 0 };
        }
    }
    let shares = crowded
        .iter()
        .zip(&totals)
        .map(|(part, all)| *part as f64 / (*all).max(1) as f64);
    shares.fold(0.0, f64::max)
}

/// Returns a remark if at least 1 % of a profile's bytes, objects or time is in stacks that found
/// no room in the table.
pub fn remark(profile: &Profile) -> Option<String> {
    remark_of(without_room(profile))
}

/// Formats the remark for a share from 0 to 1. Returns `None` below 1 %.
pub fn remark_of(share: f64) -> Option<String> {
    (share >= 0.01).then(|| {
        format!(
            "up to {:.0}% of the values are of stacks that found no room in the table: use a larger \
             -c or MEM_PROFILER_TABLE",
            (share * 100.0).floor()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Detail, ProfileBuilder};

    fn detail(objects: f64) -> Detail {
        Detail {
            alloc_samples: objects as u64,
            alloc_objects: objects,
            alloc_bytes: 8.0 * objects,
            ..Detail::default()
        }
    }

    #[test]
    fn stacks_without_room_are_reported_if_at_least_one_in_a_hundred() {
        let mut builder = ProfileBuilder::new(1);
        builder.stack([0x1001, 0x2001], &detail(993.0));
        builder.stack([MERGED_ADDRESS, 0x2001], &detail(4.0));
        builder.stack([TABLE_FULL_ADDRESS], &detail(3.0));
        let profile = builder.finish();
        assert!((without_room(&profile) - 0.007).abs() < 1e-9);
        assert_eq!(remark(&profile), None);
        let mut builder = ProfileBuilder::new(1);
        builder.stack([0x1001, MERGED_ADDRESS], &detail(10.0));
        builder.stack([MERGED_ADDRESS, 0x2001], &detail(30.0));
        let message = remark(&builder.finish()).expect("there is something to say");
        assert!(message.starts_with("up to 75% of the values"), "{message}");
    }
}
