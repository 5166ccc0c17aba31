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

/// Size of the header of a sampled object, in bytes.
const HEADER_BYTES: f64 = 16.0;
/// Minimum size of sampled objects whose header is twice as large, in bytes.
const MIN_EXTENDED_BYTES: f64 = 131_072.0;
/// Largest size class, in bytes, of sampled objects whose header is in a separate table if it does
/// not fit into the class.
const MAX_TABLE_CLASS: f64 = 14_336.0;

/// Returns the bytes that live objects lose by rounding up to jemalloc's size classes, including
/// the headers of sampled objects. Uses the mean size of each stack's objects, whose sizes are
/// within a factor of two if the profile separates size classes.
fn rounding(profile: &Profile) -> i64 {
    let columns = profile
        .type_index("inuse_objects")
        .zip(profile.type_index("inuse_space"));
    let Some((objects, bytes)) = columns else {
        return 0;
    };
    let stack_value = |stack: usize| {
        let values = profile.values_of(stack);
        let (samples, live_samples, objects, bytes) = match profile.details.get(stack) {
            // Values of a base are negative, but its details are not.
            Some(d) if values[objects] > 0 => (
                d.alloc_samples,
                d.alloc_samples.saturating_sub(d.free_samples),
                d.live_objects(),
                d.live_bytes(),
            ),
            _ => (
                0,
                0,
                values[objects].max(0) as f64,
                values[bytes].max(0) as f64,
            ),
        };
        if objects <= 0.0 {
            return 0.0;
        }
        let mean = bytes / objects;
        // Rounding must not move an object of exactly a class's size into the next class. Weights
        // of 1 are not rounded.
        let rounded = if profile.period == 1 { 0 } else { samples };
        let tolerance = rounding_of_mean(rounded, objects, bytes);
        let class = size_class(mean - tolerance);
        let fills_class = class - mean <= tolerance;
        let size = if fills_class { class } else { mean };
        let lost = |class: f64| (class - mean).max(0.0);
        let sampled = (live_samples as f64).min(objects);
        lost(class) * (objects - sampled) + lost(sampled_class(size)) * sampled
    };
    (0..profile.stacks.len()).map(stack_value).sum::<f64>() as i64
}

/// Returns jemalloc's size class: multiples of 16 up to 128, then four classes per doubling.
fn size_class(bytes: f64) -> f64 {
    // Requests are whole bytes, so a size above 4,096 belongs to the class of 4,097.
    let bytes = bytes.ceil();
    let step = match bytes {
        ..=128.0 => 16.0,
        _ => (2.0_f64).powi((bytes - 1.0).log2() as i32 - 2),
    };
    (bytes / step).ceil().max(1.0) * step
}

/// Returns the size class of a sampled object, with its header.
fn sampled_class(bytes: f64) -> f64 {
    let class = size_class(bytes);
    let may_use_table = class <= MAX_TABLE_CLASS && class % 1024.0 == 0.0;
    if may_use_table && bytes + HEADER_BYTES > class {
        return class;
    }
    let header = if bytes < MIN_EXTENDED_BYTES {
        HEADER_BYTES
    } else {
        2.0 * HEADER_BYTES
    };
    size_class(bytes + header)
}

/// Statistics in bytes by name, and the live bytes by the samples.
#[derive(Serialize)]
struct Allocator<'a> {
    /// Live bytes by the samples.
    sampled: Option<i64>,
    /// Half-width of the 95 % confidence interval of `sampled`.
    error: i64,
    /// Bytes lost by rounding up to size classes, including headers of sampled objects. Assumes
    /// that all objects of a stack and size class have their mean size.
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
        let owners = ByOwner::from_counters(|name| profile.facts.memory.get(name).copied());
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

    #[test]
    fn sampled_objects_are_rounded_with_their_headers() {
        const KIB: f64 = 1024.0;
        let pairs = [
            (1.0, 32.0),
            (100.0, 128.0),
            (1008.0, KIB),
            (KIB, KIB),
            (4096.0, 4096.0),
            (10_240.0, 10_240.0),
            (14_336.0, 14_336.0),
            (16.0 * KIB, 20.0 * KIB),
            (64.0 * KIB, 80.0 * KIB),
            (128.0 * KIB - 16.0, 128.0 * KIB),
            (128.0 * KIB - 15.0, 160.0 * KIB),
            (1024.0 * KIB, 1280.0 * KIB),
        ];
        for (bytes, class) in pairs {
            assert_eq!(sampled_class(bytes), class, "{bytes}");
        }
    }
}
