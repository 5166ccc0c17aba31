//! Tab with the allocator's statistics.

use std::borrow::Cow;

use profile::Profile;
use profile::printable::printable;
use profile::resident::ByOwner;
use profile::variance::half_width;
use serde::Serialize;

use super::tab::{Data, PageContext, ProfileKind, Tab};
use crate::breakdown::rounding_of_mean;
use crate::json;
use crate::report::rss;

/// The tab of the allocator.
pub const TAB: Tab = Tab {
    script: include_str!("allocator.js"),
    profiles: ProfileKind::Memory,
    data: Some(Data {
        key: "allocator",
        json: figures,
    }),
};

/// Returns the bytes that live objects lose by rounding up to jemalloc's size classes. Uses the
/// mean size of each stack's objects, whose sizes are within a factor of two if the profile
/// separates size classes.
fn rounding(profile: &Profile) -> i64 {
    let columns = profile
        .type_index("inuse_objects")
        .zip(profile.type_index("inuse_space"));
    let Some((objects, bytes)) = columns else {
        return 0;
    };
    let stack_value = |stack: usize| {
        let values = profile.values_of(stack);
        let (samples, objects, bytes) = match profile.details.get(stack) {
            // Values of a base are negative, but its details are not.
            Some(d) if values[objects] > 0 => (d.alloc_samples, d.live_objects(), d.live_bytes()),
            _ => (
                0,
                values[objects].max(0) as f64,
                values[bytes].max(0) as f64,
            ),
        };
        if objects <= 0.0 {
            return 0.0;
        }
        let mean = bytes / objects;
        // Rounding must not move an object of exactly a class's size into the next class.
        let size = mean - rounding_of_mean(samples, objects, bytes);
        (size_class(size) - mean).max(0.0) * objects
    };
    (0..profile.stacks.len()).map(stack_value).sum::<f64>() as i64
}

/// Returns jemalloc's size class: multiples of 16 up to 128, then four classes per doubling.
fn size_class(bytes: f64) -> f64 {
    // Requests are whole bytes: between 4,096 and 4,097 starts the class of 4,097.
    let bytes = bytes.ceil();
    let step = match bytes {
        ..=128.0 => 16.0,
        _ => (2.0_f64).powi((bytes - 1.0).log2() as i32 - 2),
    };
    (bytes / step).ceil().max(1.0) * step
}

/// Statistics in bytes by name, and the live bytes by the samples.
#[derive(Serialize)]
struct Allocator<'a> {
    /// Live bytes by the samples.
    sampled: Option<i64>,
    /// Half-width of the 95 % confidence interval of `sampled`.
    error: i64,
    /// Bytes lost by rounding up to size classes, if all objects of a stack and size have their
    /// mean size.
    rounding: i64,
    figures: Vec<(Cow<'a, str>, u64)>,
    /// Time between the statistics and the samples, if it is known and is not zero.
    taken: Option<String>,
    /// Set if `taken` is too long to compare the statistics with the samples.
    apart: bool,
    /// Heap that was resident when the dump was written, by the kernel.
    resident: Option<u64>,
}

/// Returns the live bytes of a profile and their variance, without those of a base, which are
/// negative.
fn live(profile: &Profile, column: usize) -> (i64, f64) {
    let columns = profile.sample_types.len();
    let mut live = 0i64;
    let mut live_variance = 0.0;
    for stack in 0..profile.stacks.len() {
        let value = profile.values_of(stack)[column];
        if value > 0 {
            let variance = profile.variances.get(stack * columns + column);
            live = live.saturating_add(value);
            live_variance += variance.copied().unwrap_or(0.0);
        }
    }
    (live, live_variance)
}

fn figures(page: &PageContext) -> String {
    let profile = page.context.view.profile();
    let figures = &profile.facts.allocator;
    let allocator = (!figures.is_empty()).then(|| {
        let live = profile
            .type_index("inuse_space")
            .map(|column| live(profile, column));
        let error = live.map_or(0.0, |(bytes, variance)| half_width(bytes as f64, variance));
        let owners = ByOwner::of(|name| profile.facts.memory.get(name).copied());
        Allocator {
            sampled: live.map(|(bytes, _)| bytes),
            error: error.round() as i64,
            rounding: rounding(profile),
            figures: figures.iter().map(|(k, &v)| (printable(k), v)).collect(),
            taken: rss::time_between(&profile.facts),
            apart: rss::stale_by(&profile.facts).is_some(),
            resident: owners.map(|owners| owners.heap()),
        }
    });
    json::embedded(&allocator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_as_jemalloc_does() {
        let sizes = [0.5, 16.0, 17.0, 128.0, 129.0, 1000.0, 1025.0, 4097.0, 5e6];
        let classes = [
            16.0,
            16.0,
            32.0,
            128.0,
            160.0,
            1024.0,
            1280.0,
            5120.0,
            5.0 * 1048576.0,
        ];
        assert_eq!(sizes.map(size_class), classes);
    }
}
