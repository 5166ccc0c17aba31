//! The command line: what is valid, and what it says about itself.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};

/// Longest session: births and deaths of objects are kept in 31 bits of 4.19 ms.
const LONGEST: Duration = Duration::from_secs(100 * 24 * 3600);

/// Profile the heap of running processes that carry the agent.
///
/// Without a command: samples the processes for some time, then writes one dump each.
#[derive(Debug, Parser)]
#[command(name = "mem_profiler", version, max_term_width = 100)]
pub struct Cli {
    /// Options of the plain form.
    #[command(flatten)]
    pub session: SessionArgs,
}

/// A session's options.
#[derive(Clone, Debug, Args)]
pub struct SessionArgs {
    /// How long to sample: seconds, or with a unit (90s, 5m, 2h); without it, until Ctrl-C
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<Duration>,

    /// Mean bytes between samples; 1 samples every allocation. K and M are understood
    #[arg(short = 'c', long, value_name = "BYTES", default_value = "1024", value_parser = interval)]
    pub interval: u64,

    /// How dumps are named: PREFIX<name>.<pid>.<number>.heap
    #[arg(short, long, value_name = "PREFIX", default_value = "./custom_prof")]
    pub output: PathBuf,

    /// Process, by pid or name; may be given several times [default: all of this user, as
    /// root: all]
    #[arg(short, long = "process", value_name = "PID|NAME", value_parser = process)]
    pub processes: Vec<String>,
}

/// A length of time above zero.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let split = text
        .find(|c: char| c != '.' && !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err("expected a number of seconds, such as 60, 1.5, 5m or 2h".to_owned()),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "expected a number of seconds".to_owned())?;
    let time = Duration::try_from_secs_f64(number * factor).map_err(|e| e.to_string())?;
    if time < Duration::from_millis(1) {
        return Err("must be longer than nothing".to_owned());
    }
    if time > LONGEST {
        return Err("at most 100 days".to_owned());
    }
    Ok(time)
}

/// A number of bytes, with or without a unit.
pub fn byte_count(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| c != '.' && !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err("expected a number of bytes, such as 1024, 64K or 1M".to_owned()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(1 << shift)
            .ok_or_else(|| "too many bytes".to_owned());
    }
    let number: f64 = number
        .parse()
        .map_err(|_| "expected a number of bytes".to_owned())?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes < u64::MAX as f64 {
        Ok(bytes as u64)
    } else {
        Err("too many bytes".to_owned())
    }
}

/// A sampling interval.
pub fn interval(text: &str) -> Result<u64, String> {
    match byte_count(text)? {
        0 => Err("must be at least 1, which samples every allocation".to_owned()),
        n if n > 1 << 40 => Err("at most 1T".to_owned()),
        n => Ok(n),
    }
}

/// A pid or a name.
fn process(text: &str) -> Result<String, String> {
    let number = text.strip_prefix('-').unwrap_or(text);
    let numeric = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    match text {
        "" => Err("expected a pid or a name".to_owned()),
        _ if numeric && text.parse::<i32>().is_ok_and(|pid| pid > 0) => Ok(text.to_owned()),
        _ if numeric => Err("no process has such a pid".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults() {
        let cli = Cli::try_parse_from(["mem_profiler"]).unwrap();
        assert_eq!(cli.session.interval, 1024);
        assert_eq!(cli.session.output, PathBuf::from("./custom_prof"));
        assert!(cli.session.seconds.is_none() && cli.session.processes.is_empty());
    }

    #[test]
    fn bad_values_are_usage_errors() {
        for bad in [
            ["-c", "0"],
            ["-c", "x"],
            ["-c", "-5"],
            ["-c", "1.5Q"],
            ["-c", "99999999999999999999"],
            ["-s", "-1"],
            ["-s", "0"],
            ["-s", "abc"],
            ["-s", "nan"],
            ["-s", "1e99"],
            ["-s", "101d"],
            ["-p", "0"],
            ["-p", ""],
            ["-p", "99999999999"],
        ] {
            let error = Cli::try_parse_from(["mem_profiler", bad[0], bad[1]]).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{bad:?}");
        }
        assert_eq!(
            Cli::try_parse_from(["mem_profiler", "stray"])
                .unwrap_err()
                .exit_code(),
            2
        );
    }

    #[test]
    fn units() {
        assert_eq!(interval("1"), Ok(1));
        assert_eq!(interval("64K"), Ok(65536));
        assert_eq!(interval("1.5m"), Ok(3 << 19));
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("2h"), Ok(Duration::from_secs(7200)));
    }
}
