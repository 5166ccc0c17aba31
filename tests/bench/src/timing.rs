//! Workloads under each configuration in turn, round after round.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use crate::config::Config;
use crate::process::Usage;
use crate::segment;
use crate::stats::{median, spread};
use crate::table::{Table, duration, ratio};
use crate::tools::Tools;
use crate::workload::Workload;

/// Amount of measurements.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds of everything.
    pub rounds: u32,
    /// Further rounds, of configurations and workloads with requirements.
    pub more: u32,
    /// Divisor of a full run's number of operations.
    pub shorter: u64,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Round of the run.
    pub round: u32,
    /// Number of operations.
    pub operations: u64,
    /// Resources used.
    pub usage: Usage,
    /// Counts of the agent.
    pub counts: segment::Counts,
}

impl Run {
    /// Returns the CPU seconds for an operation.
    pub fn cost(&self) -> f64 {
        self.usage.cpu / self.operations as f64
    }

    fn wall(&self) -> f64 {
        self.usage.wall / self.operations as f64
    }
}

/// All runs of a workload.
pub struct Timings {
    /// Workload of the runs.
    pub workload: Workload,
    runs: BTreeMap<Config, Vec<Run>>,
}

impl Timings {
    /// Measures: A B C …, then C B A …, so that a drift of the machine favours nobody.
    pub fn take(tools: &Tools, workload: Workload, effort: Effort) -> Result<Self> {
        let mut runs: BTreeMap<Config, Vec<Run>> = BTreeMap::new();
        for round in 0..effort.rounds + effort.more {
            let mut configs = Config::ALL.to_vec();
            configs.retain(|config| round < effort.rounds || config.is_ours());
            if round % 2 == 1 {
                configs.reverse();
            }
            for config in configs {
                let Some(divisor) = workload.divisor(config) else {
                    continue;
                };
                let operations = (workload.operations() / divisor / effort.shorter).max(1);
                let run = one(tools, workload, config, operations, round)?;
                runs.entry(config).or_default().push(run);
            }
        }
        Ok(Self { workload, runs })
    }

    /// Returns the runs under a configuration.
    pub fn of(&self, config: Config) -> &[Run] {
        self.runs.get(&config).map_or(&[], Vec::as_slice)
    }

    /// Returns the ratio of `of` between both configurations, for each round that ran both.
    pub fn ratios(&self, a: Config, b: Config, of: impl Fn(&Run) -> f64) -> Vec<f64> {
        let other = |round| self.of(b).iter().find(|run| run.round == round);
        let pairs = self.of(a).iter().filter_map(|run| {
            let base = other(run.round)?;
            Some(of(run) / of(base))
        });
        pairs.collect()
    }

    /// Returns the median ratio of CPU for an operation.
    pub fn cpu(&self, a: Config, b: Config) -> Option<f64> {
        some(median(&self.ratios(a, b, Run::cost)))
    }

    /// Returns the median ratio of peak memory, the agent's table excluded; only of runs of one
    /// length.
    pub fn memory(&self, a: Config, b: Config) -> Option<f64> {
        let same = self.workload.divisor(a)? == self.workload.divisor(b)?;
        let peak = |run: &Run| run.usage.memory.peak_without_table() as f64;
        same.then(|| median(&self.ratios(a, b, peak)))
            .and_then(some)
    }

    /// Returns the median over rounds of (CPU of `a` - CPU of `b`) for an operation.
    pub fn extra(&self, a: Config, b: Config) -> Option<f64> {
        let other = |round| self.of(b).iter().find(|run| run.round == round);
        let extra = self.of(a).iter();
        let extra = extra.filter_map(|run| Some(run.cost() - other(run.round)?.cost()));
        some(median(&extra.collect::<Vec<_>>()))
    }

    /// Samples that the agent took for an operation.
    pub fn samples(&self, config: Config) -> Option<f64> {
        let each = self.of(config).iter();
        let each = each.map(|run| run.counts.samples as f64 / run.operations as f64);
        some(median(&each.collect::<Vec<_>>())).filter(|samples| *samples > 0.0)
    }

    /// Returns the CPU of one sample, allocation and free included, over the agent switched off.
    pub fn per_sample(&self, config: Config) -> Option<f64> {
        Some(self.extra(config, Config::Off)? / self.samples(config)?)
    }

    /// Returns the table of this workload.
    pub fn table(&self) -> Table {
        let mut table = Table::new([
            self.workload.name(),
            "runs",
            &format!("CPU/{}", self.workload.operation()),
            "CPU ÷ glibc",
            "CPU ÷ off",
            "±",
            "wall ÷ off",
            "peak MiB",
            "peak ÷ off",
            "samples",
        ]);
        for (config, runs) in &self.runs {
            table.row(self.row(*config, runs));
        }
        table
    }

    fn row(&self, config: Config, runs: &[Run]) -> Vec<String> {
        let costs: Vec<f64> = runs.iter().map(Run::cost).collect();
        let peak = |run: &Run| run.usage.memory.peak_without_table() as f64 / 1024.0;
        let peaks: Vec<f64> = runs.iter().map(peak).collect();
        let over_off = self.ratios(config, Config::Off, Run::cost);
        let wall = median(&self.ratios(config, Config::Off, Run::wall));
        let samples = runs.last().map_or(0, |run| run.counts.samples);
        vec![
            config.name().to_owned(),
            runs.len().to_string(),
            duration(median(&costs)),
            ratio(self.cpu(config, Config::Glibc)),
            ratio(some(median(&over_off))),
            ratio(some(spread(&over_off))),
            ratio(some(wall)),
            format!("{:.1}", median(&peaks)),
            ratio(self.memory(config, Config::Off)),
            if samples > 0 {
                samples.to_string()
            } else {
                "–".to_owned()
            },
        ]
    }

    /// Samples that lost something, in the runs at 1024.
    pub fn losses(&self) -> Option<String> {
        let run = self.of(Config::Fine).last()?;
        let c = run.counts;
        Some(format!(
            "at 1024: of {} samples {} under `[table full]`, {} not followed to their free, {} with a truncated stack",
            c.samples, c.table_full, c.untracked, c.truncated
        ))
    }
}

fn some(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

fn one(
    tools: &Tools,
    workload: Workload,
    config: Config,
    operations: u64,
    round: u32,
) -> Result<Run> {
    let usage = workload
        .run(tools, config, operations)
        .with_context(|| format!("{} under {}", workload.name(), config.name()))?;
    let counts = segment::collect(tools)?;
    if config.interval().is_some() {
        let counts = counts.with_context(|| {
            format!(
                "the agent left no profile: {} under {}",
                workload.name(),
                config.name()
            )
        })?;
        anyhow::ensure!(counts.samples > 0, "the agent took no samples");
    }
    Ok(Run {
        round,
        operations,
        usage,
        counts: counts.unwrap_or_default(),
    })
}
