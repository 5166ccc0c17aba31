//! Sampling of a CPU profile: engine, mode, rate, and losses.

use std::fmt;

use crate::value_type::ValueType;

/// Prefix of the names of facts about sampling.
pub(crate) const PREFIX: &[u8] = b"cpu_";

/// Path of the mapping that contains kernel functions.
pub const KERNEL: &str = "[kernel]";

/// Kind of time that samples stand for.
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

    /// Returns the name used in files and for the column of nanoseconds.
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

    /// Returns the columns of a profile of this mode.
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

/// Facts about the sampling of a CPU profile. What can be counted in the stacks (samples, truncated
/// stacks, time without samples) is not repeated here.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Engine that took the samples: `perf_event`, `timers`, `ptrace`, `/proc`, or several joined
    /// by ` + `.
    pub engine: String,
    /// Kind of time that samples stand for.
    pub mode: Mode,
    /// Requested samples per second and thread.
    pub rate: u32,
    /// CPU time that the process used during the session, by its own clock.
    pub process_ns: Option<u64>,
    /// Number of due samples that were lost: dropped by the kernel, or without room in the table.
    pub lost: u64,
    /// Reason why stacks have no kernel frames; `None` if they have them.
    pub kernel_hidden: Option<String>,
    /// Reasons why better engines were not used, one sentence each.
    pub fallbacks: Vec<String>,
}

/// Parses the fact `cpu_` + `name`. Ignores unknown names.
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

/// Combines the sampling facts of several profiles. Returns `None` unless all are CPU profiles of
/// the same mode.
pub(crate) fn sum<'a>(mut all: impl Iterator<Item = Option<&'a Sampling>>) -> Option<Sampling> {
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

/// Returns the mean distance between samples at a rate, in nanoseconds.
pub(crate) fn period(rate: u32) -> i64 {
    1_000_000_000i64.checked_div(rate.into()).unwrap_or(0)
}
