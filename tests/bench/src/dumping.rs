//! Cost of dumps for their target.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::config::Config;
use crate::process::{self, Usage};
use crate::segment::{self, Segment};
use crate::stats::median;
use crate::table::{Table, duration};
use crate::tools::Tools;

/// Time between two dumps.
const DUMP_INTERVAL: Duration = Duration::from_millis(10);

/// CPU time of a program that is dumped a hundred times a second, relative to one that is not.
pub struct Dumping {
    /// Median ratio.
    pub ratio: f64,
    /// Maximum number of waits and stops of the dumped program, minus those of the other program.
    pub waits: i64,
    /// In full.
    pub table: Table,
}

impl Dumping {
    /// Measures in this many rounds, with this many pairs.
    pub fn take(tools: &Tools, rounds: u32, pairs: u64) -> Result<Self> {
        let (mut left, mut read, mut dumps) = (Vec::new(), Vec::new(), 0);
        for _ in 0..rounds {
            left.push(one(tools, pairs, |_| Ok(()))?);
            read.push(one(tools, pairs, |pid| {
                dumps += dump_until_its_end(tools, pid)?;
                Ok(())
            })?);
        }
        ensure!(dumps > 0, "no dump was taken in time");
        let cost = |usage: &Usage| usage.cpu / pairs as f64;
        let ratios: Vec<f64> = left
            .iter()
            .zip(&read)
            .map(|(a, b)| cost(b) / cost(a))
            .collect();
        let waits = |usages: &[Usage]| usages.iter().map(|u| u.waits).max().unwrap_or(0);
        let mut table = Table::new(["micro at 1024", "CPU/pair", "waits", "dumps a run"]);
        for (name, usages, dumps) in [("left alone", &left, 0), ("dumped", &read, dumps)] {
            let costs: Vec<f64> = usages.iter().map(cost).collect();
            table.row(vec![
                name.to_owned(),
                duration(median(&costs)),
                waits(usages).to_string(),
                (dumps / u64::from(rounds)).to_string(),
            ]);
        }
        Ok(Self {
            ratio: median(&ratios),
            waits: waits(&read) - waits(&left),
            table,
        })
    }
}

fn one(tools: &Tools, pairs: u64, driver: impl FnOnce(u32) -> Result<()> + Send) -> Result<Usage> {
    let mut command = std::process::Command::new(tools.program("micro"));
    command.args(["30", "1", &pairs.to_string()]);
    Config::Fine.apply_from_start(tools, &mut command)?;
    let usage = process::run_with(tools, &mut command, driver)?;
    segment::collect(tools)?;
    Ok(usage)
}

/// Reads the whole table again and again, as the controller does for a dump.
fn dump_until_its_end(tools: &Tools, pid: u32) -> Result<u64> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let mut dumps = 0;
    while process.exists() {
        if let Some(segment) = Segment::of(tools, pid)?
            && let Some(session) = segment.session()?
        {
            let mut stacks = 0;
            segment.stacks(session.number, |_, _| stacks += 1)?;
            dumps += u64::from(stacks > 0);
        }
        std::thread::sleep(DUMP_INTERVAL);
    }
    Ok(dumps)
}
