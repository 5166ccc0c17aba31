//! This project's CPU profile: stacks with their samples and nanoseconds, as text.
//!
//! ```text
//! mem-profiler cpu profile 1
//! # pid 4711
//! # cpu_engine perf_event
//! # cpu_mode cpu
//! # cpu_rate 99
//! # cpu_process_ns 12040000000
//! # module 55c0 55f0 0 - loaded /usr/bin/server
//! # function 0 do_syscall_64
//! …
//! 12 121212121 1 k0 55d0 55e0
//! …
//! # end
//! ```
//!
//! - The first line promises the last one: a profile without `# end` was cut off.
//! - Facts come first, in lines `# NAME VALUE` with the escapes of heap dumps.
//! - A stack is `SAMPLES NANOSECONDS THREAD FRAME …`, leaf first: numbers alone, so that there
//!   is no stack that cannot be read back. A frame is a lookup address in hexadecimal, or `kN`:
//!   the function `N` of the facts, in the kernel, whose addresses say nothing elsewhere.

mod builder;
pub mod gperftools;
mod read;
mod write;

use std::fmt;

pub use builder::{CpuBuilder, Frame};
pub(crate) use read::read;
pub use write::write;

use crate::dump::facts::Writer;
use crate::profile::{Location, Profile, ValueType};

/// Start of the first line, before the version.
pub(crate) const START: &[u8] = b"mem-profiler cpu profile ";

/// The version that this crate writes, and the newest that it reads.
const VERSION: u32 = 1;

/// Last line.
const END: &[u8] = b"# end";

/// What the names of facts about the sampling start with.
pub(crate) const PREFIX: &[u8] = b"cpu_";

/// Path of the mapping that the kernel's functions are in.
pub const KERNEL: &str = "[kernel]";

/// Which time the samples stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// CPU time.
    #[default]
    Cpu,
    /// Elapsed time of each thread, running or not.
    Wall,
    /// Elapsed time of each thread while it did not run.
    OffCpu,
}

impl Mode {
    const ALL: [Mode; 3] = [Mode::Cpu, Mode::Wall, Mode::OffCpu];

    /// The name in files and of the column of nanoseconds.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Cpu => "cpu",
            Mode::Wall => "wall",
            Mode::OffCpu => "offcpu",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }

    /// The columns of a profile of this kind.
    pub fn sample_types(self) -> Vec<ValueType> {
        vec![
            ValueType::new("samples", "count"),
            ValueType::new(self.name(), "nanoseconds"),
        ]
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Cpu => "CPU time",
            Mode::Wall => "wall time",
            Mode::OffCpu => "time off CPU",
        })
    }
}

/// How a CPU profile was taken. What can be counted in the stacks (samples, truncated ones, time
/// without samples) is counted there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// What took the samples: `perf_event`, `timers`, `ptrace`, `/proc`, or several with ` + `.
    pub engine: String,
    /// Which time they stand for.
    pub mode: Mode,
    /// Samples asked for per second, of each thread.
    pub rate: u32,
    /// CPU time that the process used during the session, by its own clock.
    pub process_ns: Option<u64>,
    /// Samples that were due and are not here: dropped by the kernel, or the table was full.
    pub lost: u64,
    /// Why there are no frames of the kernel in the stacks; `None`: there are.
    pub kernel_hidden: Option<String>,
    /// Why a better engine was not used, one sentence for each.
    pub fallbacks: Vec<String>,
}

/// Takes a fact whose name is `cpu_` and `name`; unknown names are ignored.
pub(crate) fn fact(
    sampling: &mut Sampling,
    name: &[u8],
    number: impl Fn() -> Option<u64>,
    text: impl Fn() -> String,
) -> Option<()> {
    match name {
        b"engine" => sampling.engine = text(),
        b"mode" => sampling.mode = Mode::from_name(&text())?,
        b"rate" => sampling.rate = number()?.try_into().ok()?,
        b"process_ns" => sampling.process_ns = Some(number()?),
        b"lost" => sampling.lost = number()?,
        b"kernel_hidden" => sampling.kernel_hidden = Some(text()),
        b"fallback" => sampling.fallbacks.push(text()),
        _ => {}
    }
    Some(())
}

/// Writes what [`fact`] reads.
fn write_facts(sampling: &Sampling, writer: &mut Writer) {
    writer.text("cpu_engine", Some(&sampling.engine));
    writer.text("cpu_mode", Some(sampling.mode.name()));
    writer.number("cpu_rate", Some(sampling.rate.into()));
    writer.number("cpu_process_ns", sampling.process_ns);
    writer.number("cpu_lost", Some(sampling.lost));
    writer.text("cpu_kernel_hidden", sampling.kernel_hidden.as_deref());
    for reason in &sampling.fallbacks {
        writer.text("cpu_fallback", Some(reason));
    }
}

/// How the sum of `profiles` was taken, if all are CPU profiles of the same kind of time.
pub(crate) fn sum(profiles: &[Profile]) -> Option<Sampling> {
    let mut all = profiles.iter().map(|profile| profile.facts.cpu.as_ref());
    let mut sum = all.next()??.clone();
    for next in all {
        let next = next.filter(|next| next.mode == sum.mode)?;
        if !sum.engine.split(" + ").any(|engine| engine == next.engine) {
            sum.engine = format!("{} + {}", sum.engine, next.engine);
        }
        sum.rate = sum.rate.min(next.rate);
        let used = sum.process_ns.zip(next.process_ns);
        sum.process_ns = used.map(|(a, b)| a.saturating_add(b));
        sum.lost = sum.lost.saturating_add(next.lost);
        sum.kernel_hidden = sum.kernel_hidden.or_else(|| next.kernel_hidden.clone());
        for reason in &next.fallbacks {
            if !sum.fallbacks.contains(reason) {
                sum.fallbacks.push(reason.clone());
            }
        }
    }
    Some(sum)
}

/// Mean distance between samples at this rate, in nanoseconds.
fn period(rate: u32) -> i64 {
    1_000_000_000i64.checked_div(rate.into()).unwrap_or(0)
}

/// The function of the kernel that a location is, by its number: one without an address.
fn kernel_function(profile: &Profile, location: &Location) -> Option<u32> {
    match profile.lines_of(location) {
        [line] if location.address == 0 && profile.is_kernels(location) => Some(line.function),
        _ => None,
    }
}
