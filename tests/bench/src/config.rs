//! The allocators and profilers that a workload runs under.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::tools::Tools;

/// One way to run a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Config {
    /// Nothing preloaded.
    Glibc,
    /// The agent's jemalloc, same version and features, without the agent.
    Jemalloc,
    /// The agent, not sampling.
    Off,
    /// The agent, a sample every 512 KiB.
    Coarse,
    /// The agent, a sample every 1024 bytes.
    Fine,
    /// The agent, every allocation.
    Every,
    /// jemalloc's own profiler, libunwind, every 1024 bytes.
    JemallocFine,
    /// jemalloc's own profiler, libunwind, every 512 KiB.
    JemallocCoarse,
    /// tcmalloc, sampling every 1024 bytes.
    Tcmalloc,
    /// tcmalloc's heap profiler: every allocation; one dump, at the end.
    HeapProfile,
    /// heaptrack's recorder alone, writing to nowhere: every allocation.
    Heaptrack,
    /// memray with native stacks: every allocation.
    Memray,
}

/// jemalloc's options in the agent (agent/src/backend.rs), so that its jemalloc alone is the same.
const AGENTS_OPTIONS: &str = "disable_large_size_classes:false,oversize_threshold:33554432";

impl Config {
    /// All, in the order of the tables.
    pub const ALL: [Self; 12] = [
        Self::Glibc,
        Self::Jemalloc,
        Self::Off,
        Self::Coarse,
        Self::Fine,
        Self::Every,
        Self::JemallocFine,
        Self::JemallocCoarse,
        Self::Tcmalloc,
        Self::HeapProfile,
        Self::Heaptrack,
        Self::Memray,
    ];

    /// Returns the name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Glibc => "glibc malloc",
            Self::Jemalloc => "jemalloc alone",
            Self::Off => "**agent, off**",
            Self::Coarse => "**agent, 512 KiB**",
            Self::Fine => "**agent, 1024**",
            Self::Every => "**agent, every**",
            Self::JemallocFine => "jemalloc profiler, lg 10",
            Self::JemallocCoarse => "jemalloc profiler, lg 19",
            Self::Tcmalloc => "tcmalloc, 1024",
            Self::HeapProfile => "HEAPPROFILE, every",
            Self::Heaptrack => "heaptrack recorder, every",
            Self::Memray => "memray --native, every",
        }
    }

    /// Returns true if the requirements apply to the configuration.
    pub fn is_ours(self) -> bool {
        (Self::Jemalloc..=Self::Every).contains(&self)
    }

    /// Sets the environment that makes a program run under the configuration. The agent does not
    /// sample yet.
    pub fn apply(self, tools: &Tools, command: &mut Command) -> Result<()> {
        let mut set = |name: &str, value: OsString| {
            command.env(name, value);
        };
        match self {
            Self::Glibc | Self::Memray => {}
            Self::Jemalloc => {
                set("LD_PRELOAD", tools.jemalloc().into());
                set("MALLOC_CONF", AGENTS_OPTIONS.into());
            }
            Self::Off | Self::Coarse | Self::Fine | Self::Every => {
                set("LD_PRELOAD", tools.agent().into());
                set("MEM_PROFILER_DIR", tools.segments());
            }
            Self::JemallocFine | Self::JemallocCoarse => {
                let lg = if self == Self::JemallocFine { 10 } else { 19 };
                let conf = format!("prof:true,prof_active:true,lg_prof_sample:{lg}");
                set("LD_PRELOAD", tools.jemalloc_profiling().into());
                set("MALLOC_CONF", conf.into());
            }
            Self::Tcmalloc => {
                set("LD_PRELOAD", "libtcmalloc.so.4".into());
                set("TCMALLOC_SAMPLE_PARAMETER", "1024".into());
            }
            Self::HeapProfile => {
                set("LD_PRELOAD", "libtcmalloc.so.4".into());
                set("HEAPPROFILE", tools.scratch("heapprofile").into());
                set("HEAP_PROFILE_ALLOCATION_INTERVAL", "0".into());
                set("HEAP_PROFILE_INUSE_INTERVAL", "0".into());
            }
            Self::Heaptrack => {
                set("LD_PRELOAD", tools.heaptrack()?.into());
                set("DUMP_HEAPTRACK_OUTPUT", "/dev/null".into());
            }
        }
        Ok(())
    }

    /// Like [`Self::apply`], but the agent samples from the start. It then prepares its table
    /// itself, which takes a few milliseconds and is otherwise done by the controller.
    pub fn apply_from_start(self, tools: &Tools, command: &mut Command) -> Result<()> {
        self.apply(tools, command)?;
        if let Some(interval) = self.interval() {
            command.env("MEM_PROFILER_START", "1");
            command.env("MEM_PROFILER_INTERVAL", interval.to_string());
        }
        Ok(())
    }

    /// Returns the mean bytes between the agent's samples; `None` where it does not sample.
    pub fn interval(self) -> Option<u64> {
        match self {
            Self::Coarse => Some(512 << 10),
            Self::Fine => Some(1024),
            Self::Every => Some(1),
            _ => None,
        }
    }
}
