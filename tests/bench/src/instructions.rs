//! Instructions instead of seconds: what is left of a comparison when noise is not.

use anyhow::{Context, Result};

use crate::config::Config;
use crate::process;
use crate::segment;
use crate::table::{Table, ratio};
use crate::tools::Tools;
use crate::workload::Workload;

/// callgrind, which counts and keeps no profile.
const COUNTER: [&str; 3] = [
    "valgrind",
    "--tool=callgrind",
    "--callgrind-out-file=/dev/null",
];

/// Returns the table: each workload with jemalloc alone, with the agent off, with the agent on.
pub fn table(tools: &Tools, workloads: &[Workload]) -> Result<Table> {
    let mut table = Table::new([
        "instructions of",
        "jemalloc alone",
        "agent, off",
        "off ÷ alone",
        "512 KiB ÷ off",
        "agent, 1024",
        "1024 ÷ off",
    ]);
    for workload in workloads {
        let alone = count(tools, *workload, Config::Jemalloc)?;
        let off = count(tools, *workload, Config::Off)?;
        let coarse = count(tools, *workload, Config::Coarse)?;
        let on = count(tools, *workload, Config::Fine)?;
        table.row(vec![
            workload.name().to_owned(),
            format!("{alone:.1}"),
            format!("{off:.1}"),
            ratio(Some(off / alone)),
            ratio(Some(coarse / off)),
            format!("{on:.1}"),
            ratio(Some(on / off)),
        ]);
    }
    Ok(table)
}

/// Instructions for an operation: of a long run over those of a short one, so that the
/// start is not in it. Of the compiler: all those of a small file.
fn count(tools: &Tools, workload: Workload, config: Config) -> Result<f64> {
    if workload == Workload::Cc1plus {
        return total(tools, workload, config, 0);
    }
    let operations = operations(workload);
    let long = total(tools, workload, config, 3 * operations)?;
    let short = total(tools, workload, config, operations)?;
    Ok((long - short) / (2 * operations) as f64)
}

/// Returns the number of operations of the short run. They warm the thread caches of the allocator.
fn operations(workload: Workload) -> u64 {
    match workload {
        Workload::Json => 2,
        Workload::Live => 20_000,
        Workload::Sqlite => 5_000,
        Workload::Redis => 20_000,
        _ => 200_000,
    }
}

fn total(tools: &Tools, workload: Workload, config: Config, operations: u64) -> Result<f64> {
    workload.run_inside(tools, &COUNTER, config, operations)?;
    segment::collect(tools)?;
    let said = process::errors(tools)?;
    let line = said
        .lines()
        .find_map(|line| line.split_once("Collected : "))
        .with_context(|| format!("callgrind counted nothing:\n{said}"))?;
    Ok(line.1.trim().parse()?)
}
