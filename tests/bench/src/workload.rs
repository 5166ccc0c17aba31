//! The programs that are measured, and how large a run of each is.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::config::Config;
use crate::process::{self, Usage};
use crate::redis;
use crate::segment;
use crate::tools::Tools;

/// A program to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// Pairs of malloc and free under a stack of 30 frames.
    Micro,
    /// Pairs of malloc and free under a stack of 200 frames.
    Deep,
    /// Like `Micro`, with two threads that share one stack.
    Two,
    /// Four threads.
    Four,
    /// Sixteen threads.
    Sixteen,
    /// Two threads allocate, with one stack, and two others free.
    Handed,
    /// Eight threads allocate, with one stack, and eight others free.
    HandedMore,
    /// Pairs of malloc and free on two stacks in turn, which have few frames in common.
    Alternating,
    /// Pairs of malloc and free on 1,024 stacks at random.
    Changing,
    /// Pairs of malloc and free on 16,384 stacks at random.
    ManyChanging,
    /// C++ containers built and dropped.
    Live,
    /// JSON in python, small objects through malloc too.
    Json,
    /// SET and LPUSH; the server's cost.
    Redis,
    /// A database in memory.
    Sqlite,
    /// A compiler.
    Cc1plus,
}

impl Workload {
    /// All, in the order of the tables.
    pub const ALL: [Self; 15] = [
        Self::Micro,
        Self::Deep,
        Self::Two,
        Self::Four,
        Self::Sixteen,
        Self::Handed,
        Self::HandedMore,
        Self::Alternating,
        Self::Changing,
        Self::ManyChanging,
        Self::Live,
        Self::Json,
        Self::Redis,
        Self::Sqlite,
        Self::Cc1plus,
    ];

    /// Returns the name on the command line and in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Micro => "micro",
            Self::Deep => "micro-200",
            Self::Two => "micro-2-threads",
            Self::Four => "micro-4-threads",
            Self::Sixteen => "micro-16-threads",
            Self::Handed => "handed-4-threads",
            Self::HandedMore => "handed-16-threads",
            Self::Alternating => "changing-2",
            Self::Changing => "changing-1024",
            Self::ManyChanging => "changing-16384",
            Self::Live => "live",
            Self::Json => "json",
            Self::Redis => "redis",
            Self::Sqlite => "sqlite",
            Self::Cc1plus => "cc1plus",
        }
    }

    /// Returns the name of one operation.
    pub fn operation(self) -> &'static str {
        match self {
            Self::Micro | Self::Deep | Self::Two | Self::Four | Self::Sixteen => "pair",
            Self::Handed | Self::HandedMore => "pair",
            Self::Alternating | Self::Changing | Self::ManyChanging => "pair",
            Self::Live => "element",
            Self::Json => "round",
            Self::Redis => "command",
            Self::Sqlite => "row",
            Self::Cc1plus => "file",
        }
    }

    /// Returns true if the workload is uniform, so that a shorter run is as meaningful.
    pub fn is_micro(self) -> bool {
        self <= Self::ManyChanging
    }

    /// Operations of a full run, all threads together.
    pub fn operations(self) -> u64 {
        match self {
            Self::Micro | Self::Deep => 40_000_000,
            Self::Two | Self::Four | Self::Sixteen => 48_000_000,
            Self::Handed | Self::HandedMore => 32_000_000,
            Self::Alternating | Self::Changing | Self::ManyChanging => 8_000_000,
            Self::Live => 3_000_000,
            Self::Json => 300,
            Self::Redis => 800_000,
            Self::Sqlite => 300_000,
            Self::Cc1plus => 1,
        }
    }

    /// Returns the divisor of the number of operations under `config`, chosen so that a run ends
    /// within seconds, or `None` if the workload is not run under it.
    pub fn divisor(self, config: Config) -> Option<u64> {
        match (self, config) {
            (Self::Json, Config::Memray) => Some(30),
            (_, Config::Memray) => None,
            (Self::Cc1plus, Config::HeapProfile) => None,
            (Self::Json, Config::HeapProfile) => Some(300),
            (Self::Json, Config::Tcmalloc | Config::Heaptrack) => Some(5),
            (Self::Live | Self::Redis | Self::Sqlite, Config::HeapProfile) => Some(60),
            (Self::Cc1plus | Self::Live | Self::Json | Self::Redis | Self::Sqlite, _) => Some(1),
            (_, Config::Every) => Some(4),
            (_, Config::JemallocFine) => Some(10),
            (_, Config::Tcmalloc) => Some(60),
            (_, Config::HeapProfile) => Some(2000),
            (_, Config::Heaptrack) => Some(30),
            _ => Some(1),
        }
    }

    fn threads(self) -> u64 {
        match self {
            Self::Two => 2,
            Self::Four | Self::Handed => 4,
            Self::Sixteen | Self::HandedMore => 16,
            _ => 1,
        }
    }

    /// Returns the command for this many operations, without the additions of a configuration.
    fn command(self, tools: &Tools, config: Config, operations: u64) -> Result<Command> {
        let mut command;
        match self {
            Self::Handed | Self::HandedMore => {
                command = Command::new(tools.program("handed"));
                let each = operations / (self.threads() / 2);
                command.args([30, self.threads(), each].map(|n| n.to_string()));
            }
            Self::Micro | Self::Deep | Self::Two | Self::Four | Self::Sixteen => {
                let depth = if self == Self::Deep { 200 } else { 30 };
                command = Command::new(tools.program("micro"));
                let each = operations / self.threads();
                command.args([depth, self.threads(), each].map(|n| n.to_string()));
            }
            Self::Alternating | Self::Changing | Self::ManyChanging => {
                let stacks = match self {
                    Self::Alternating => 2,
                    Self::Changing => 1 << 10,
                    _ => 1 << 14,
                };
                command = Command::new(tools.program("changing"));
                command.args([stacks, operations].map(|n| n.to_string()));
            }
            Self::Live => {
                command = Command::new(tools.program("live"));
                // Five containers.
                command.arg((operations / 5).to_string());
            }
            Self::Json => {
                command = python(tools, config);
                command.env("PYTHONMALLOC", "malloc");
                command
                    .arg(tools.source("loop.py"))
                    .arg(operations.to_string());
            }
            Self::Redis => command = redis::server(tools),
            Self::Sqlite => {
                command = Command::new("sqlite3");
                command
                    .arg(":memory:")
                    .stdin(process::input(&script(tools, operations)?)?);
            }
            Self::Cc1plus => {
                let size = if operations == 0 { "small" } else { "big" };
                command = Command::new(&tools.cc1plus);
                command.args(["-quiet", "-O1", "-fpreprocessed", "-o", "/dev/null"]);
                command.arg(tools.program(&format!("{size}.ii")));
            }
        }
        Ok(command)
    }

    /// Runs the workload under a configuration. If the agent is to sample, the session is started
    /// like the controller does it, when the program has just started.
    pub fn run(self, tools: &Tools, config: Config, operations: u64) -> Result<Usage> {
        let mut command = self.command(tools, config, operations)?;
        config.apply(tools, &mut command)?;
        process::run_with(tools, &mut command, |pid| {
            if let Some(interval) = config.interval() {
                segment::start(tools, pid, interval)?;
            }
            self.load(tools, operations)
        })
    }

    /// Runs it under a configuration, sampling from the start on, inside another program:
    /// `wrapper` with arguments.
    pub fn run_inside(
        self,
        tools: &Tools,
        wrapper: &[&str],
        config: Config,
        operations: u64,
    ) -> Result<Usage> {
        let inner = self.command(tools, config, operations)?;
        let mut command = Command::new(wrapper[0]);
        command
            .args(&wrapper[1..])
            .arg(inner.get_program())
            .args(inner.get_args());
        for (name, value) in inner.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        if self == Self::Sqlite {
            command.stdin(process::input(&script(tools, operations)?)?);
        }
        config.apply_from_start(tools, &mut command)?;
        process::run_with(tools, &mut command, |_| self.load(tools, operations))
    }

    /// Sends the load to a server. Other programs get their work by arguments.
    fn load(self, tools: &Tools, operations: u64) -> Result<()> {
        match self {
            Self::Redis => redis::load(tools, operations),
            _ => Ok(()),
        }
    }
}

/// Returns the SQL for this many rows.
fn script(tools: &Tools, rows: u64) -> Result<PathBuf> {
    let path = tools.scratch(&format!("rows.{rows}.sql"));
    if !path.exists() {
        let sql = Command::new("/usr/bin/python3")
            .arg(tools.source("rows.py"))
            .arg(rows.to_string())
            .output()?;
        ensure!(sql.status.success(), "rows.py: {}", sql.status);
        std::fs::write(&path, sql.stdout)?;
    }
    Ok(path)
}

fn python(tools: &Tools, config: Config) -> Command {
    if config != Config::Memray {
        return Command::new("/usr/bin/python3");
    }
    let mut command = Command::new(tools.memray_python());
    command
        .args([
            "-m", "memray", "run", "--native", "--quiet", "--force", "-o",
        ])
        .arg(tools.scratch("memray.bin"));
    command
}
