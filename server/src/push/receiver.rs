//! Requirements of each kind of receiver: paths, bodies, limits.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::ValueEnum;
use mem_agents::clock::Time;
use profile::{Facts, Profile, ValueType, fold, merge, otlp, pprof};
use serde_json::json;

use crate::naming::FunctionNames;

/// Maximum number of samples of a profile: Pyroscope's default limit.
pub const MAX_SAMPLES: usize = 16_000;
/// Minimum number of samples to which a profile is reduced for a receiver.
pub const MIN_SAMPLES: usize = 64;
/// Maximum size of a profile before compression, in bytes: Pyroscope's limit.
const MAX_BYTES: usize = 4 << 20;

/// The protocol of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Receiver {
    /// Grafana Pyroscope, and others with its push API
    Pyroscope,
    /// Parca, and Polar Signals
    Parca,
    /// OpenTelemetry's collector, and others that accept OTLP profiles
    Otlp,
}

impl Receiver {
    /// Returns the path to append to the URL.
    pub fn path(self) -> &'static str {
        match self {
            Self::Pyroscope => "/push.v1.PusherService/Push",
            Self::Parca => "/profiles/writeraw",
            Self::Otlp => "/v1development/profiles",
        }
    }

    /// Returns the content type of the body.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Pyroscope | Self::Parca => "application/json",
            Self::Otlp => "application/x-protobuf",
        }
    }

    /// Returns true if the receiver adds up the allocations of the profiles that it gets.
    pub fn wants_increments(self) -> bool {
        self == Self::Pyroscope
    }
}

/// Labels given on the command line.
#[derive(Debug)]
pub struct Labels {
    from_user: Vec<(String, String)>,
}

impl Labels {
    /// Replaces characters of keys that not every receiver accepts: all but letters, digits and
    /// `_`.
    pub fn new(from_user: &[(String, String)]) -> Self {
        let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let labels = from_user.iter().map(|(key, value)| {
            let mut key: String = key.chars().map(safe).collect();
            if key.starts_with(|c: char| c.is_ascii_digit()) {
                key.insert(0, '_');
            }
            (key, value.clone())
        });
        Self {
            from_user: labels.collect(),
        }
    }

    /// Returns all labels of a profile.
    fn for_profile(&self, profile: &Profile) -> Vec<(String, String)> {
        let facts = &profile.facts;
        let mut labels = self.from_user.clone();
        let mut add = |key: &str, value: Option<String>| {
            let is_given = labels.iter().any(|(given, _)| given == key);
            if !is_given && let Some(value) = value {
                labels.push((key.to_owned(), value));
            }
        };
        let process = facts
            .process
            .clone()
            .unwrap_or_else(|| "unknown".to_owned());
        add("service_name", Some(process));
        add("pid", facts.pid.map(|pid| pid.to_string()));
        add("host", host());
        labels
    }
}

fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

/// Maximum difference, in ns, between a dump's recorded time and its time by the current system
/// clock; above it, the clock was set since.
const MAX_SKEW_NS: u64 = 2_000_000_000;

/// Returns the time at which a dump was taken, in ns since the Unix epoch. If the system clock was
/// set since, converts the time since boot by the current clock; that requires a dump of the
/// current boot.
fn dump_time_ns(facts: &Facts, now: &Time) -> u64 {
    let boot = proc::boot_id().map(|(_, text)| text);
    let is_same_boot = facts.boot_id.is_some() && facts.boot_id == boot;
    let end_boot_ns = if is_same_boot {
        facts.end_boot_ns
    } else {
        None
    };
    let ago = now
        .boot_ns
        .zip(end_boot_ns)
        .map(|(now, end)| now.saturating_sub(end));
    let by_boot = ago.map(|ago| now.unix_ns.saturating_sub(ago));
    match (facts.end_unix_ns, by_boot) {
        (Some(recorded), Some(by_boot)) if recorded.abs_diff(by_boot) > MAX_SKEW_NS => by_boot,
        (Some(recorded), _) => recorded,
        (None, by_boot) => by_boot.unwrap_or(now.unix_ns),
    }
}

/// A profile ready to be sent.
pub struct Prepared {
    /// The profile, with names, and with equal stacks merged.
    pub profile: Profile,
    /// Hash that identifies a session of a process.
    pub process: u64,
    /// Cumulative values by stack, if `profile` has only increments; otherwise empty.
    pub cumulative: HashMap<u64, Vec<i64>>,
    labels: Vec<(String, String)>,
}

impl Prepared {
    /// Names, merges and dates the stacks of a dump.
    pub fn new(
        mut profile: Profile,
        naming: Option<&FunctionNames>,
        labels: &Labels,
        receiver: Receiver,
    ) -> anyhow::Result<Self> {
        if let Some(error) = naming.and_then(|naming| naming.symbolize(&mut profile)) {
            super::print(&error);
        }
        let labels = labels.for_profile(&profile);
        let facts = profile.facts.clone();
        let start = facts.start_unix_ns.unwrap_or(0);
        let process = fixed_hash((facts.pid, start, facts.boot_id.as_deref()));
        // Dropping threads and size classes reduces the number of samples.
        profile.labels.clear();
        profile.threads.clear();
        let mut profile = merge::merge(&[profile])?;
        // Receivers date the values by the start; these are of the end, so the start is set to it.
        let end = dump_time_ns(&facts, &Time::now());
        profile.facts.start_unix_ns = Some(end);
        profile.facts.duration_ns = facts.duration_ns;
        if receiver == Receiver::Otlp {
            // Pyroscope names a profile that arrives by OTLP after the period's type.
            profile.period_type = Some(ValueType::new("memory", "bytes"));
            profile.period = profile.period.max(1);
        }
        Ok(Self {
            profile,
            process,
            cumulative: HashMap::new(),
            labels,
        })
    }

    /// Returns the body of a request with at most `max_samples` samples. Lowers that number if the
    /// body is too large.
    pub fn body(&self, receiver: Receiver, max_samples: &mut usize) -> anyhow::Result<Vec<u8>> {
        loop {
            let folded = fold::fold(&self.profile, *max_samples);
            let (body, bytes) = match receiver {
                Receiver::Pyroscope | Receiver::Parca => {
                    let mut packed = Vec::new();
                    pprof::write(&folded, &mut packed)?;
                    let bytes = unpacked_bytes(&packed)?;
                    (self.json(receiver, &packed), bytes)
                }
                Receiver::Otlp => {
                    let body = self.otlp(&folded);
                    let bytes = body.len();
                    (body, bytes)
                }
            };
            if bytes <= MAX_BYTES || *max_samples <= MIN_SAMPLES {
                return Ok(body);
            }
            *max_samples = folded.stacks.len().min(*max_samples) / 2;
        }
    }

    fn json(&self, receiver: Receiver, packed: &[u8]) -> Vec<u8> {
        let name = ("__name__".to_owned(), "memory".to_owned());
        let labels = [&name].into_iter().chain(&self.labels);
        let labels: Vec<_> = labels
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        let raw = BASE64_STANDARD.encode(packed);
        let body = match receiver {
            Receiver::Parca => json!({
                "series": [{"labels": {"labels": labels}, "samples": [{"rawProfile": raw}]}],
            }),
            _ => json!({
                "series": [{"labels": labels, "samples": [{"rawProfile": raw, "ID": uuid()}]}],
            }),
        };
        body.to_string().into_bytes()
    }

    fn otlp(&self, folded: &Profile) -> Vec<u8> {
        let otlp_name = |key: &str| match key {
            "service_name" => "service.name",
            "host" => "host.name",
            "pid" => "process.pid",
            _ => "",
        };
        let attributes = self.labels.iter().map(|(key, value)| match otlp_name(key) {
            "" => (key.as_str(), value.as_str()),
            name => (name, value.as_str()),
        });
        let attributes: Vec<_> = attributes.collect();
        let random = (u128::from(random()) << 64) | u128::from(random());
        let mut id = [0; 15];
        id.copy_from_slice(&random.to_le_bytes()[..15]);
        otlp::encode(folded, &attributes, "memory", id)
    }
}

/// Returns the uncompressed size from gzip's trailer.
fn unpacked_bytes(packed: &[u8]) -> anyhow::Result<usize> {
    let trailer = packed.last_chunk::<4>().context("gzip has a trailer")?;
    Ok(u32::from_le_bytes(*trailer) as usize)
}

fn fixed_hash(value: impl std::hash::Hash) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn random() -> u64 {
    RandomState::new().hash_one(super::now_ns())
}

/// Returns a random UUID (version 4).
fn uuid() -> String {
    let high = random();
    let low = random();
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | ((low >> 48) & 0x3fff),
        low & 0xffff_ffff_ffff
    )
}
