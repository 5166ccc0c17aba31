//! Requirements, and the values reached.

use crate::accuracy::Accuracy;
use crate::config::Config;
use crate::dumping::Dumping;
use crate::latency::Latency;
use crate::resident::Resident;
use crate::stats::{mean, median};
use crate::table::Table;
use crate::timing::Timings;
use crate::workload::Workload;

/// Frames that the deep stack has more than the other.
const MORE_FRAMES: f64 = 170.0;

/// Results of all measurements. `None`: not measured.
#[derive(Default)]
pub struct Findings {
    /// By workload.
    pub timings: Vec<Timings>,
    /// Memory while off.
    pub resident: Option<Resident>,
    /// Estimates against the truth.
    pub accuracy: Option<Accuracy>,
    /// Command to first sample.
    pub latency: Option<Latency>,
    /// Cost of dumps.
    pub dumping: Option<Dumping>,
}

impl Findings {
    /// Returns the table: one row a requirement.
    pub fn table(&self) -> Table {
        let mut rows = Rows(Table::new(["what", "must", "measured", ""]));
        self.while_off(&mut rows);
        self.micro(&mut rows);
        self.programs(&mut rows);
        self.memory(&mut rows);
        self.estimates(&mut rows);
        self.control(&mut rows);
        rows.0
    }

    fn of(&self, workload: Workload) -> Option<&Timings> {
        self.timings.iter().find(|t| t.workload == workload)
    }

    fn while_off(&self, rows: &mut Rows) {
        for t in &self.timings {
            let name = t.workload.name();
            let off = t.cpu(Config::Off, Config::Jemalloc);
            rows.at_most(&format!("off ÷ jemalloc alone, {name}"), 1.01, off, "");
        }
        for t in &self.timings {
            let name = t.workload.name();
            let coarse = t.cpu(Config::Coarse, Config::Off);
            rows.at_most(&format!("512 KiB ÷ off, {name}"), 1.01, coarse, "");
        }
    }

    fn micro(&self, rows: &mut Rows) {
        const NS: f64 = 1e9;
        let (micro, deep) = (self.of(Workload::Micro), self.of(Workload::Deep));
        let sample = |t: Option<&Timings>| Some(t?.per_sample(Config::Fine)? * NS);
        let pair = |config, samples| Some(micro?.per_sample(config)? * samples * NS);
        rows.at_most("1024: a sample at depth 30", 100.0, sample(micro), " ns");
        let fine = pair(Config::Fine, samples_a_pair(1024.0));
        rows.at_most("1024: over off, a pair", 13.0, fine, " ns");
        let frame = sample(deep)
            .zip(sample(micro))
            .map(|(deep, micro)| (deep - micro) / MORE_FRAMES);
        rows.at_most("1024: each further unchanged frame", 1.0, frame, " ns");
        let every = pair(Config::Every, 1.0);
        rows.at_most("every: over off, a pair", 120.0, every, " ns");
        for workload in [
            Workload::Two,
            Workload::Four,
            Workload::Sixteen,
            Workload::Handed,
            Workload::HandedMore,
        ] {
            let threads = sample(self.of(workload))
                .zip(sample(micro))
                .map(|(many, one)| many / one);
            let name = format!("1024: a sample, {} ÷ micro", workload.name());
            rows.at_most(&name, 1.3, threads, "");
        }
    }

    fn programs(&self, rows: &mut Rows) {
        for (workload, limit) in [
            (Workload::Live, 1.10),
            (Workload::Json, 1.05),
            (Workload::Redis, 1.05),
            (Workload::Sqlite, 1.05),
            (Workload::Cc1plus, 1.05),
        ] {
            let fine = self
                .of(workload)
                .and_then(|t| t.cpu(Config::Fine, Config::Off));
            rows.at_most(&format!("1024 ÷ off, {}", workload.name()), limit, fine, "");
        }
    }

    fn memory(&self, rows: &mut Rows) {
        for t in self.timings.iter().filter(|t| !t.workload.is_micro()) {
            let name = format!("1024 ÷ off, peak memory, {}", t.workload.name());
            let peak = t.memory(Config::Fine, Config::Off);
            rows.at_most(&name, 1.05, peak, "");
        }
        let peak = self.resident.as_ref().map(|r| r.peak / 1024.0);
        rows.at_most("resident while off, over jemalloc alone", 1.0, peak, " MiB");
    }

    fn estimates(&self, rows: &mut Rows) {
        let of = |value: fn(&Accuracy) -> f64| self.accuracy.as_ref().map(value);
        let rms = of(|a| a.rms);
        rows.at_most("RMS error ÷ √(1024÷bytes), all places", 1.15, rms, "");
        let worst = of(|a| a.worst_rms);
        rows.at_most("the same, worst place", 1.15, worst, "");
        let mean = of(|a| a.mean.abs());
        rows.at_most("mean error, all places, in standard errors", 2.0, mean, "");
        let worst = of(|a| a.worst_mean);
        rows.at_most("the same, worst place", 2.0, worst, "");
    }

    fn control(&self, rows: &mut Rows) {
        const MS: f64 = 1e3;
        let latency = self.latency.as_ref();
        let first = latency.map(|l| median(&l.command) * MS);
        rows.at_most("session published to first sample", 5.0, first, " ms");
        let first = latency.map(|l| median(&l.controller) * MS);
        rows.at_most("mem_profiler started to first sample", 5.0, first, " ms");
        let dumping = self.dumping.as_ref();
        let cpu = dumping.map(|d| d.ratio);
        rows.at_most("dumped 100 times a second ÷ left alone", 1.01, cpu, "");
        let waits = dumping.map(|d| d.waits as f64);
        rows.at_most("stops by dumps", 0.0, waits, "");
    }
}

/// Samples in a pair of the micro workload, by the sizes that it asks for.
fn samples_a_pair(interval: f64) -> f64 {
    let chances = (16..=256).map(|bytes| -(-f64::from(bytes) / interval).exp_m1());
    mean(&chances.collect::<Vec<_>>())
}

struct Rows(Table);

impl Rows {
    fn at_most(&mut self, what: &str, limit: f64, value: Option<f64>, unit: &str) {
        let Some(value) = value else { return };
        let verdict = if value <= limit { "met" } else { "**not met**" };
        let limit = match unit {
            "" if limit > 0.0 => format!("≤ {limit:.2}"),
            _ => format!("≤ {limit}{unit}"),
        };
        self.0.row(vec![
            what.to_owned(),
            limit,
            format!("{value:.3}{unit}"),
            verdict.to_owned(),
        ]);
    }
}
