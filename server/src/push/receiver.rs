//! What each kind of receiver expects: paths, bodies, limits.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::ValueEnum;
use heap_format::{Facts, Profile, ValueType, fold, merge, otlp, pprof};
use mem_agents::clock::Time;
use serde_json::json;

use crate::naming::Naming;

/// Maximum number of samples that a receiver takes, unless it is set otherwise: Pyroscope's limit.
pub const MOST_SAMPLES: usize = 16_000;
/// A receiver that does not take as few as these takes nothing.
pub const LEAST_SAMPLES: usize = 64;
/// Maximum number of bytes of a profile before compression: Pyroscope's limit.
const MOST_BYTES: usize = 4 << 20;

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
    /// The path after the URL.
    pub fn path(self) -> &'static str {
        match self {
            Self::Pyroscope => "/push.v1.PusherService/Push",
            Self::Parca => "/profiles/writeraw",
            Self::Otlp => "/v1development/profiles",
        }
    }

    /// Type of the body.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Pyroscope | Self::Parca => "application/json",
            Self::Otlp => "application/x-protobuf",
        }
    }

    /// Whether it adds up the allocations of the profiles that it gets.
    pub fn wants_increments(self) -> bool {
        self == Self::Pyroscope
    }
}

/// The labels that were requested.
#[derive(Debug)]
pub struct Labels {
    given: Vec<(String, String)>,
}

impl Labels {
    /// With names that every receiver takes: letters, digits, `_`.
    pub fn new(given: &[(String, String)]) -> Self {
        let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let given = given.iter().map(|(key, value)| {
            let mut key: String = key.chars().map(safe).collect();
            if key.starts_with(|c: char| c.is_ascii_digit()) {
                key.insert(0, '_');
            }
            (key, value.clone())
        });
        Self {
            given: given.collect(),
        }
    }

    /// All labels of a profile.
    fn of(&self, profile: &Profile) -> Vec<(String, String)> {
        let facts = &profile.facts;
        let mut labels = self.given.clone();
        let mut add = |key: &str, value: Option<String>| {
            if let Some(value) = value.filter(|_| !labels.iter().any(|(k, _)| k == key)) {
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

/// Largest difference between the system clock of a dump and the present one that is let stand, in ns.
const MAX_SKEW_NS: u64 = 2_000_000_000;

/// When a dump was taken, in ns of Unix time: by the present system clock if that was set since, on a machine
/// that is still running.
fn taken_ns(facts: &Facts, now: &Time) -> u64 {
    let boot = proc::boot_id().map(|(_, text)| text);
    let is_of_boot = facts.boot_id.is_some() && facts.boot_id == boot;
    let then = facts.end_boot_ns.filter(|_| is_of_boot);
    let ago = now
        .boot_ns
        .zip(then)
        .map(|(now, then)| now.saturating_sub(then));
    let by_boot = ago.map(|ago| now.unix_ns.saturating_sub(ago));
    match (facts.end_unix_ns, by_boot) {
        (Some(shown), Some(by_boot)) if shown.abs_diff(by_boot) > MAX_SKEW_NS => by_boot,
        (Some(shown), _) => shown,
        (None, by_boot) => by_boot.unwrap_or(now.unix_ns),
    }
}

/// A profile that is to be sent.
pub struct Prepared {
    /// Equal stacks merged, with names.
    pub profile: Profile,
    /// Which session of which process it is of.
    pub process: u64,
    /// What the process allocated from the start, by stack, where the profile has only a part of
    /// it.
    pub whole: HashMap<u64, Vec<i64>>,
    labels: Vec<(String, String)>,
}

impl Prepared {
    /// Names, merges and dates a dump.
    pub fn new(
        mut profile: Profile,
        naming: Option<&Naming>,
        labels: &Labels,
        receiver: Receiver,
    ) -> anyhow::Result<Self> {
        if let Some(trouble) = naming.and_then(|naming| naming.name(&mut profile)) {
            super::say(&trouble);
        }
        let labels = labels.of(&profile);
        let facts = profile.facts.clone();
        let start = facts.start_unix_ns.unwrap_or(0);
        let process = fixed_hash((facts.pid, start, facts.boot_id.as_deref()));
        // Fewer samples: threads and size classes are not kept apart.
        profile.labels.clear();
        profile.threads.clear();
        let mut profile = merge::merge(&[profile])?;
        // The numbers are true at the end; receivers take the start for their time.
        let end = taken_ns(&facts, &Time::now());
        profile.facts.start_unix_ns = Some(end);
        profile.facts.duration_ns = facts.duration_ns;
        if receiver == Receiver::Otlp {
            // Pyroscope takes the period's type for the profile's name.
            profile.period_type = Some(ValueType::new("memory", "bytes"));
            profile.period = profile.period.max(1);
        }
        Ok(Self {
            profile,
            process,
            whole: HashMap::new(),
            labels,
        })
    }

    /// The body of a request with at most `most` samples, and fewer where its bytes are too many.
    pub fn body(&self, receiver: Receiver, most: &mut usize) -> anyhow::Result<Vec<u8>> {
        loop {
            let folded = fold::fold(&self.profile, *most);
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
            if bytes <= MOST_BYTES || *most <= LEAST_SAMPLES {
                return Ok(body);
            }
            *most = folded.stacks.len().min(*most) / 2;
        }
    }

    fn json(&self, receiver: Receiver, packed: &[u8]) -> Vec<u8> {
        let name = ("__name__".to_owned(), "memory".to_owned());
        let labels = [&name].into_iter().chain(&self.labels);
        let labels: Vec<_> = labels
            .map(|(k, v)| json!({"name": k, "value": v}))
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
        let named = |key: &str| match key {
            "service_name" => "service.name",
            "host" => "host.name",
            "pid" => "process.pid",
            _ => "",
        };
        let attributes = self.labels.iter().map(|(key, value)| match named(key) {
            "" => (key.as_str(), value.as_str()),
            name => (name, value.as_str()),
        });
        let attributes: Vec<_> = attributes.collect();
        let random = u128::from(random()) << 64 | u128::from(random());
        let mut id = [0; 15];
        id.copy_from_slice(&random.to_le_bytes()[..15]);
        otlp::encode(folded, &attributes, "memory", id)
    }
}

/// The size in gzip's trailer.
fn unpacked_bytes(packed: &[u8]) -> anyhow::Result<usize> {
    let trailer = packed.last_chunk::<4>().context("gzip has a trailer")?;
    Ok(u32::from_le_bytes(*trailer) as usize)
}

fn fixed_hash(of: impl std::hash::Hash) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

fn random() -> u64 {
    RandomState::new().hash_one(super::now_ns())
}

/// A random UUID (version 4).
fn uuid() -> String {
    let (high, low) = (random(), random());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        0x8000 | low >> 48 & 0x3fff,
        low & 0xffff_ffff_ffff
    )
}
