//! Memory that the agent keeps while it is off.

use std::process::Command;

use anyhow::Result;

use crate::config::Config;
use crate::process::{self, Memory};
use crate::segment;
use crate::stats::median;
use crate::table::Table;
use crate::tools::Tools;

// They run long enough to be met before they end.
const PROGRAMS: [(&str, &[&str]); 2] = [
    ("micro", &["30", "1", "4000000"]),
    ("/usr/bin/python3", &["-c", "pass"]),
];

/// Median KiB over plain jemalloc: of the peak, of what is resident at the end by kind.
pub struct Resident {
    /// Peak, the worst program.
    pub peak: f64,
    /// The table.
    pub table: Table,
}

impl Resident {
    /// Measures with this many runs of each.
    pub fn take(tools: &Tools, runs: u32) -> Result<Self> {
        let mut table = Table::new([
            "resident, KiB: off − jemalloc alone",
            "peak",
            "anonymous",
            "file",
            "shared",
        ]);
        let mut worst = f64::NEG_INFINITY;
        for (program, arguments) in PROGRAMS {
            let mut seen = [Vec::new(), Vec::new()];
            for _ in 0..runs {
                for (config, seen) in [Config::Jemalloc, Config::Off].into_iter().zip(&mut seen) {
                    seen.push(one(tools, program, arguments, config)?);
                }
            }
            let of = |field: fn(&Memory) -> u64| {
                let middle = |seen: &Vec<Memory>| {
                    median(&seen.iter().map(|m| field(m) as f64).collect::<Vec<_>>())
                };
                middle(&seen[1]) - middle(&seen[0])
            };
            let peak = of(|m| m.peak);
            worst = worst.max(peak);
            let name = program.rsplit('/').next().unwrap_or(program);
            let mut row = vec![name.to_owned()];
            for value in [peak, of(|m| m.anonymous), of(|m| m.file), of(|m| m.shared)] {
                row.push(format!("{value:.0}"));
            }
            table.row(row);
        }
        Ok(Self { peak: worst, table })
    }
}

fn one(tools: &Tools, program: &str, arguments: &[&str], config: Config) -> Result<Memory> {
    let path = if program.starts_with('/') {
        program.into()
    } else {
        tools.program(program)
    };
    let mut command = Command::new(path);
    command.args(arguments);
    config.apply(tools, &mut command)?;
    let usage = process::run(tools, &mut command)?;
    segment::collect(tools)?;
    Ok(usage.memory)
}
