//! Estimates against the truth, place by place.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::config::Config;
use crate::process;
use crate::segment::Segment;
use crate::stats::{mean, rms};
use crate::table::Table;
use crate::tools::Tools;

const INTERVAL: f64 = 1024.0;

/// One place in one run.
struct Place {
    start: u64,
    stop: u64,
    bytes: f64,
    variance: f64,
    estimate: f64,
}

/// One place over all runs.
#[derive(Default)]
struct Errors {
    bytes: Vec<f64>,
    /// (estimate − truth) ÷ truth.
    relative: Vec<f64>,
    /// Relative error ÷ √(1024 ÷ bytes), the bound for small objects.
    to_bound: Vec<f64>,
    /// Standard error by the sizes as they were, relative to the truth.
    expected: Vec<f64>,
}

impl Errors {
    fn add(&mut self, place: &Place) {
        let relative = (place.estimate - place.bytes) / place.bytes;
        self.bytes.push(place.bytes);
        self.relative.push(relative);
        self.to_bound
            .push(relative / (INTERVAL / place.bytes).sqrt());
        self.expected.push(place.variance.sqrt() / place.bytes);
    }

    /// Returns the mean error in standard errors of a mean.
    fn mean_in_errors(&self) -> Option<f64> {
        let expected = rms(&self.expected) / (self.relative.len() as f64).sqrt();
        (expected > 0.0).then(|| mean(&self.relative) / expected)
    }
}

/// Results of the runs.
pub struct Accuracy {
    /// Worst place: RMS error ÷ √(1024 ÷ bytes).
    pub worst_rms: f64,
    /// All places together.
    pub rms: f64,
    /// Worst place: mean error, in standard errors.
    pub worst_mean: f64,
    /// All places together.
    pub mean: f64,
    /// Place by place.
    pub table: Table,
}

impl Accuracy {
    /// Runs the program whose account is known this many times.
    pub fn take(tools: &Tools, runs: u32) -> Result<Self> {
        let mut places: BTreeMap<String, Errors> = BTreeMap::new();
        for seed in 0..runs {
            for (name, place) in one(tools, seed)? {
                places.entry(name).or_default().add(&place);
            }
        }
        let mut table = Table::new([
            "live bytes of",
            "MB",
            "RMS error %",
            "√(1024÷bytes) %",
            "RMS ÷ that",
            "by its sizes %",
            "mean error %",
            "in std errors",
        ]);
        for (name, errors) in &places {
            table.row(row(name, errors));
        }
        let bounded: Vec<f64> = places.values().map(|e| rms(&e.to_bound)).collect();
        let means: Vec<f64> = places.values().filter_map(Errors::mean_in_errors).collect();
        Ok(Self {
            worst_rms: bounded.iter().copied().fold(0.0, f64::max),
            rms: rms(&bounded),
            worst_mean: means.iter().map(|m| m.abs()).fold(0.0, f64::max),
            mean: means.iter().sum::<f64>() / (means.len() as f64).sqrt(),
            table,
        })
    }
}

fn row(name: &str, errors: &Errors) -> Vec<String> {
    let bytes = mean(&errors.bytes);
    vec![
        name.to_owned(),
        format!("{:.1}", bytes / 1e6),
        format!("{:.2}", 100.0 * rms(&errors.relative)),
        format!("{:.2}", 100.0 * (INTERVAL / bytes).sqrt()),
        format!("{:.2}", rms(&errors.to_bound)),
        format!("{:.2}", 100.0 * rms(&errors.expected)),
        format!("{:+.2}", 100.0 * mean(&errors.relative)),
        errors
            .mean_in_errors()
            .map_or("exact".to_owned(), |m| format!("{m:+.1}")),
    ]
}

fn one(tools: &Tools, seed: u32) -> Result<BTreeMap<String, Place>> {
    let mut command = Command::new(tools.program("accuracy"));
    command.arg(seed.to_string());
    Config::Fine.apply_from_start(tools, &mut command)?;
    process::run(tools, &mut command)?;
    let mut places = expected(&process::output(tools)?)?;
    let [segment] = <[Segment; 1]>::try_from(Segment::all(tools)?)
        .ok()
        .context("the agent left no profile")?;
    let session = segment.session()?.context("the agent did not sample")?;
    segment.stacks(session.number, |stack, sums| {
        // A return address is one past the call.
        let within = |place: &&mut Place| {
            let inside = |ip: &u64| (place.start..place.stop).contains(&(ip - 1));
            stack.iter().any(inside)
        };
        if let Some(place) = places.values_mut().find(within) {
            place.estimate += sums.alloc_bytes - sums.free_bytes;
        }
    })?;
    segment.remove()?;
    Ok(places)
}

/// Reads what the program prints.
fn expected(text: &str) -> Result<BTreeMap<String, Place>> {
    let mut places = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let ["site", name, start, stop, bytes, variance] = fields[..] else {
            anyhow::bail!("not a line of totals: {line}");
        };
        let place = Place {
            start: u64::from_str_radix(start, 16)?,
            stop: u64::from_str_radix(stop, 16)?,
            bytes: bytes.parse()?,
            variance: variance.parse()?,
            estimate: 0.0,
        };
        ensure!(place.bytes >= 1e6, "{name} is too small to tell");
        places.insert(name.to_owned(), place);
    }
    ensure!(!places.is_empty(), "no totals");
    Ok(places)
}
