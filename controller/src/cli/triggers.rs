//! Options for writing dumps during a session.

use std::time::Duration;

use clap::Args;
use mem_agents::values::{self, amount};
use nix::sys::signal::Signal;

use crate::triggers::{Threshold, Triggers};

/// Help heading of these options. Set on each option, because the heading of a group would also
/// apply to the options that follow it.
const DUMPS: &str = "Dumps during the session";

/// When to write a dump besides the one at the end. All may be combined.
#[derive(Clone, Debug, Default, Args)]
pub struct TriggerArgs {
    /// At this interval
    #[arg(help_heading = DUMPS, long, value_name = "TIME", value_parser = values::seconds)]
    pub every: Option<Duration>,

    /// Each time this much has been allocated
    #[arg(help_heading = DUMPS, long, value_name = "BYTES", value_parser = amount)]
    pub every_alloc: Option<u64>,

    /// Each time the live heap has grown by this much
    #[arg(help_heading = DUMPS, long, value_name = "BYTES", value_parser = amount)]
    pub every_growth: Option<u64>,

    /// Write the profile of the live heap's high-water mark, too, at the end
    #[arg(help_heading = DUMPS, long)]
    pub peak: bool,

    /// When the resident memory exceeds this
    #[arg(help_heading = DUMPS, long, value_name = "BYTES", value_parser = amount)]
    pub on_rss: Option<u64>,

    /// When the control group's memory exceeds this, or this share of its limit (90%)
    #[arg(help_heading = DUMPS, long, value_name = "BYTES|PERCENT", value_parser = threshold)]
    pub on_cgroup: Option<Threshold>,

    /// When this signal is sent to mem_profiler
    #[arg(help_heading = DUMPS, long, value_name = "SIGNAL", value_parser = dump_signal)]
    pub signal: Option<Signal>,

    /// Keep at most this many dumps of each process; the oldest are removed
    #[arg(help_heading = DUMPS, long, value_name = "N", value_parser = count)]
    pub keep: Option<usize>,
}

impl From<TriggerArgs> for Triggers {
    fn from(args: TriggerArgs) -> Self {
        Self {
            every: args.every,
            every_alloc: args.every_alloc,
            every_growth: args.every_growth,
            peak: args.peak,
            on_rss: args.on_rss,
            on_cgroup: args.on_cgroup,
            signal: args.signal,
            keep: args.keep,
        }
    }
}

/// Minimum threshold for a control group's memory, in bytes. Any process uses more.
const MIN_THRESHOLD_BYTES: u64 = 4096;

/// Parses a threshold: a share of the limit (`90%`), or a number of bytes with a unit.
pub fn threshold(text: &str) -> Result<Threshold, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return match amount(text)? {
            n if n < MIN_THRESHOLD_BYTES => Err(format!(
                "less than a page: a share is written {text}%, an amount such as 2G"
            )),
            n => Ok(Threshold::Bytes(n)),
        };
    };
    match percent.parse::<f64>() {
        Ok(p) if p > 0.0 && p <= 100.0 => Ok(Threshold::Share(p / 100.0)),
        _ => Err("expected a share such as 90%".to_owned()),
    }
}

/// Parses the name of a signal that requests a dump, with or without `SIG`.
pub fn dump_signal(text: &str) -> Result<Signal, String> {
    let name = text.to_ascii_uppercase();
    let name = if name.starts_with("SIG") {
        name
    } else {
        format!("SIG{name}")
    };
    match name.as_str() {
        "SIGUSR1" => Ok(Signal::SIGUSR1),
        "SIGUSR2" => Ok(Signal::SIGUSR2),
        "SIGQUIT" => Ok(Signal::SIGQUIT),
        "SIGALRM" => Ok(Signal::SIGALRM),
        _ => Err("expected SIGUSR1, SIGUSR2, SIGQUIT or SIGALRM".to_owned()),
    }
}

/// Parses the number of dumps to keep.
pub fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a number of dumps, at least 1".to_owned()),
        Ok(n) => Ok(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_and_signals() {
        assert_eq!(threshold("90%"), Ok(Threshold::Share(0.9)));
        assert_eq!(threshold("1G"), Ok(Threshold::Bytes(1 << 30)));
        for bad in ["0%", "101%", "%", "x%", "0", "nan%"] {
            assert!(threshold(bad).is_err(), "{bad}");
        }
        assert_eq!(dump_signal("usr2"), Ok(Signal::SIGUSR2));
        assert!(dump_signal("SIGKILL").is_err());
        assert!(count("0").is_err());
    }
}
