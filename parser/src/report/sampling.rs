//! Sampling of a CPU profile and its quality, by the recorded facts and by the stacks.

use profile::cpu::Sampling;
use profile::merge::BASE_LABEL;
use profile::{NOT_SAMPLED_ADDRESS, Profile, TRUNCATED_ADDRESS, marker_at};

use crate::measure::{self, Style, percentage};

/// Quality of a CPU profile by its stacks, regardless of filters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Number of samples.
    pub samples: i64,
    /// Nanoseconds of all stacks.
    pub ns: i64,
    /// Nanoseconds of stacks that could not be unwound to their end.
    pub truncated_ns: i64,
    /// Nanoseconds that no sample covers.
    pub not_sampled_ns: i64,
    /// Nanoseconds of functions without a name.
    pub unnamed_ns: i64,
}

impl Quality {
    /// Computes the quality of this project's CPU profiles. Returns `None` for others, and for
    /// differences.
    pub fn new(profile: &Profile) -> Option<Self> {
        let sampling = profile.facts.cpu.as_ref()?;
        let samples = profile.type_index("samples")?;
        let time = profile.type_index(sampling.mode.name())?;
        let compared = profile.labels.iter().any(|l| l.key == BASE_LABEL);
        let mut quality = Self::default();
        for (stack, frames) in profile.stacks.iter().enumerate() {
            let values = profile.values_of(stack);
            let n = values[samples];
            let ns = values[time];
            if compared || n < 0 || ns < 0 {
                return None;
            }
            let add = |sum: &mut i64, part: bool| {
                *sum = sum.saturating_add(if part { ns } else { 0 });
            };
            quality.samples = quality.samples.saturating_add(n);
            add(&mut quality.ns, true);
            let is_marker = |frame: Option<&u32>, marker: u64| {
                frame.is_some_and(|&f| profile.locations[f as usize].address == marker - 1)
            };
            add(
                &mut quality.truncated_ns,
                is_marker(frames.last(), TRUNCATED_ADDRESS),
            );
            add(
                &mut quality.not_sampled_ns,
                is_marker(frames.first(), NOT_SAMPLED_ADDRESS),
            );
            add(&mut quality.unnamed_ns, is_unnamed(profile, frames.first()));
        }
        Some(quality)
    }

    /// Formats a part of the time as a percentage.
    fn share(&self, ns: i64) -> String {
        percentage(ns, self.ns).trim().to_owned()
    }
}

fn is_unnamed(profile: &Profile, leaf: Option<&u32>) -> bool {
    leaf.is_none_or(|&leaf| {
        let location = &profile.locations[leaf as usize];
        profile.is_unnamed(location) && marker_at(location.address).is_none()
    })
}

/// Returns true if a column is of the sampled time. A combined profile also has columns of memory.
pub fn is_about(profile: &Profile, column: usize) -> bool {
    let kind = &profile.sample_types[column];
    kind.unit == "nanoseconds" || kind.kind == "samples"
}

/// Returns the facts as names and texts, most important first.
pub fn facts(profile: &Profile) -> Vec<(&'static str, String)> {
    let Some(sampling) = &profile.facts.cpu else {
        return Vec::new();
    };
    let mut facts = vec![("Engine", engine(sampling))];
    if let Some(quality) = Quality::new(profile) {
        facts.push(("Samples", samples(&quality, sampling)));
        facts.extend(clock(&quality, sampling).map(|text| ("Process clock", text)));
    }
    let hidden = sampling.kernel_hidden.as_ref();
    facts.extend(hidden.map(|why| ("Kernel", format!("hidden: {why}"))));
    let fallbacks = sampling.fallbacks.iter();
    facts.extend(fallbacks.map(|why| ("Not used", why.clone())));
    facts
}

fn engine(sampling: &Sampling) -> String {
    format!("{}, {}", sampling.engine, rate(sampling))
}

fn rate(sampling: &Sampling) -> String {
    let Sampling { mode, rate, .. } = sampling;
    format!("{rate} samples per second of {mode}")
}

/// Formats the sampling interval or rate of a column; `None` if it is unknown.
pub fn interval(profile: &Profile, column: usize) -> Option<String> {
    if let Some(sampling) = &profile.facts.cpu
        && is_about(profile, column)
    {
        return Some(format!("Sampling: {}", rate(sampling)));
    }
    let unit = profile.period_type.as_ref().map(|kind| kind.unit.as_str());
    let text = match (unit.unwrap_or("bytes"), profile.period) {
        (_, ..=0) => return None,
        ("nanoseconds", period) => Style::Own.label(period, "nanoseconds", "auto"),
        ("bytes", 1) => "1 byte".to_owned(),
        (unit, _) => format!("{} {unit}", profile.period_text()),
    };
    Some(format!("Interval: {text}"))
}

fn samples(quality: &Quality, sampling: &Sampling) -> String {
    let due = quality.samples.saturating_add_unsigned(sampling.lost);
    let lost = i64::try_from(sampling.lost).unwrap_or(i64::MAX);
    let lost = match lost {
        0 => "0".to_owned(),
        lost => format!("{lost} ({})", percentage(lost, due).trim()),
    };
    format!(
        "{}, lost {lost}; of the time {} truncated, {} not sampled, {} without a name",
        quality.samples,
        quality.share(quality.truncated_ns),
        quality.share(quality.not_sampled_ns),
        quality.share(quality.unnamed_ns),
    )
}

/// Formats the CPU time by the clock of the process, to compare with the sum of the samples.
fn clock(quality: &Quality, sampling: &Sampling) -> Option<String> {
    let ns = i64::try_from(sampling.process_ns?).unwrap_or(i64::MAX);
    let used = measure::Style::Own.label(ns, "nanoseconds", "auto");
    Some(match sampling.mode {
        profile::cpu::Mode::Cpu => {
            format!(
                "{used} of CPU time, the stacks have {}",
                percentage(quality.ns, ns).trim()
            )
        }
        _ => format!("{used} of CPU time"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::cpu::{CpuBuilder, Frame};

    fn profile(lost: u64) -> Profile {
        let mut builder = CpuBuilder::new(Sampling {
            engine: "ptrace".into(),
            rate: 99,
            process_ns: Some(1_010_000_000),
            lost,
            kernel_hidden: Some("perf_event_paranoid is 2".into()),
            fallbacks: vec!["perf_event: not permitted".into()],
            ..Sampling::default()
        });
        let stacks: [(&[Frame], u64, u64); 4] = [
            (
                &[Frame::Kernel("read"), Frame::User(0x1000)],
                60,
                600_000_000,
            ),
            (&[Frame::User(0x1000), Frame::Truncated], 30, 300_000_000),
            (&[Frame::NotSampled], 0, 50_000_000),
            (&[], 9, 50_000_000),
        ];
        for (frames, samples, ns) in stacks {
            let stack: Vec<_> = frames.iter().map(|&f| builder.location(f)).collect();
            builder.stack(&stack, samples, ns, 0);
        }
        builder.finish()
    }

    #[test]
    fn missing_parts_are_reported() {
        let text = |lost| {
            let lines = facts(&profile(lost));
            let lines = lines.iter().map(|(name, text)| format!("{name}: {text}"));
            lines.collect::<Vec<_>>()
        };
        let expected = [
            "Engine: ptrace, 99 samples per second of CPU time",
            "Samples: 99, lost 1 (1.00%); of the time 30.00% truncated, 5.00% not sampled, \
             35.00% without a name",
            "Process clock: 1.01 s of CPU time, the stacks have 99.01%",
            "Kernel: hidden: perf_event_paranoid is 2",
            "Not used: perf_event: not permitted",
        ];
        assert_eq!(text(1), expected);
        assert!(text(0)[1].starts_with("Samples: 99, lost 0; "));
    }

    #[test]
    fn a_difference_has_no_quality_of_its_own() {
        let mut profile = profile(0);
        profile.values[1] = -1;
        assert_eq!(Quality::new(&profile), None);
        assert_eq!(facts(&profile).len(), 3);
        assert!(facts(&Profile::default()).is_empty());
    }
}
