//! Measures the agent against plain jemalloc and other profilers, interleaved, and prints
//! tables in Markdown. Started by the script `run`, which installs and builds what it needs.

mod accuracy;
mod config;
mod dumping;
mod instructions;
mod latency;
mod process;
mod redis;
mod requirements;
mod resident;
mod segment;
mod stats;
mod table;
mod timing;
mod tools;
mod workload;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Parser;

use accuracy::Accuracy;
use dumping::Dumping;
use latency::Latency;
use requirements::Findings;
use resident::Resident;
use timing::{Effort, Timings};
use tools::Tools;
use workload::Workload;

/// Measures the agent against plain jemalloc and other profilers.
#[derive(Parser)]
struct Arguments {
    /// A look instead of a measurement: two short rounds.
    #[arg(long)]
    quick: bool,
    /// Rounds in which every configuration runs once.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Further rounds of what the requirements compare.
    #[arg(long, default_value_t = 4)]
    more: u32,
    /// Cargo's target directory, with what the script has built.
    #[arg(long, value_name = "DIR")]
    target: PathBuf,
    /// What to measure: micro, micro-200, micro-2-threads, micro-4-threads, micro-16-threads,
    /// handed-4-threads, handed-16-threads, changing-2, changing-1024, changing-16384, live, json,
    /// redis, sqlite, cc1plus, instructions, resident, accuracy, latency, dumping. Default: all.
    what: Vec<String>,
}

const OTHERS: [&str; 5] = ["instructions", "resident", "accuracy", "latency", "dumping"];

impl Arguments {
    fn check(&self) -> Result<()> {
        let known = |name: &String| {
            OTHERS.contains(&name.as_str()) || Workload::ALL.iter().any(|w| w.name() == name)
        };
        match self.what.iter().find(|name| !known(name)) {
            Some(unknown) => bail!("nothing here is called {unknown}; see --help"),
            None => Ok(()),
        }
    }

    fn wants(&self, name: &str) -> bool {
        self.what.is_empty() || self.what.iter().any(|w| w == name)
    }

    fn workloads(&self) -> Vec<Workload> {
        let mut workloads = Workload::ALL.to_vec();
        workloads.retain(|workload| self.wants(workload.name()));
        workloads
    }

    fn effort(&self) -> Effort {
        if self.quick {
            return Effort {
                rounds: 1,
                more: 1,
                shorter: 4,
            };
        }
        Effort {
            rounds: self.rounds,
            more: self.more,
            shorter: 1,
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    arguments.check()?;
    let tools = Tools::find(&arguments.target)?;
    println!("Load as it began: {}\n", load()?);
    let mut findings = Findings::default();
    timings(&arguments, &tools, &mut findings)?;
    others(&arguments, &tools, &mut findings)?;
    println!("{}", findings.table());
    println!("Load as it ended: {}", load()?);
    Ok(())
}

fn timings(arguments: &Arguments, tools: &Tools, findings: &mut Findings) -> Result<()> {
    for workload in arguments.workloads() {
        eprintln!("measuring {}", workload.name());
        let timings = Timings::take(tools, workload, arguments.effort())?;
        println!("{}", timings.table());
        if let Some(losses) = timings.losses() {
            println!("{losses}\n");
        }
        findings.timings.push(timings);
    }
    Ok(())
}

fn others(arguments: &Arguments, tools: &Tools, findings: &mut Findings) -> Result<()> {
    let quick = arguments.quick;
    let wants = |name| {
        let wanted = arguments.wants(name);
        if wanted {
            eprintln!("measuring {name}");
        }
        wanted
    };
    if wants("resident") {
        let resident = Resident::take(tools, if quick { 3 } else { 11 })?;
        println!("{}", resident.table);
        findings.resident = Some(resident);
    }
    if wants("latency") {
        let latency = Latency::take(tools, if quick { 10 } else { 100 })?;
        println!("{}", latency.table());
        findings.latency = Some(latency);
    }
    if wants("dumping") {
        let (rounds, pairs) = if quick {
            (2, 5_000_000)
        } else {
            (7, 30_000_000)
        };
        let dumping = Dumping::take(tools, rounds, pairs)?;
        println!("{}", dumping.table);
        findings.dumping = Some(dumping);
    }
    if wants("accuracy") {
        let accuracy = Accuracy::take(tools, if quick { 20 } else { 200 })?;
        println!("{}", accuracy.table);
        findings.accuracy = Some(accuracy);
    }
    if wants("instructions") {
        let mut workloads = arguments.workloads();
        if workloads.is_empty() {
            workloads = Workload::ALL.to_vec();
        }
        println!("{}", instructions::table(tools, &workloads)?);
    }
    Ok(())
}

/// Returns the machine's load, as the kernel tells it.
fn load() -> Result<String> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    Ok(text.split(' ').take(3).collect::<Vec<_>>().join(" "))
}
