//! Hints about `MALLOC_CONF`, which starts jemalloc's own profiler. The agent ignores this
//! variable, since it may be meant for a jemalloc in the program.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use mem_agents::text;

use crate::allocator;

/// Environment variable with jemalloc's options.
pub const VARIABLE: &str = "MALLOC_CONF";

/// Default of `lg_prof_sample`: log2 of the mean number of bytes between samples.
const DEFAULT_SAMPLE_POWER: u32 = 19;
/// Maximum exponent of 2 that is translated.
const MAX_POWER: u32 = 40;

/// Translates options of jemalloc's profiler into ours. Returns `None` if they do not start it.
///
/// Later options override earlier ones, as in jemalloc.
fn translate(options: &[u8]) -> Option<String> {
    let mut is_profiled = false;
    let mut is_active = true;
    let mut sample_power = DEFAULT_SAMPLE_POWER;
    let mut triggers: Vec<(&[u8], String)> = Vec::new();
    let mut prefix = None;
    for option in options.split(|byte| *byte == b',') {
        let Some(colon) = option.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let name = &option[..colon];
        let value = &option[colon + 1..];
        let parse_power = || {
            let number: Option<u32> = std::str::from_utf8(value).ok()?.parse().ok();
            number.filter(|power| *power <= MAX_POWER)
        };
        let is_true = value == b"true";
        match name {
            b"prof" => is_profiled = is_true,
            b"prof_active" => is_active = is_true,
            b"lg_prof_sample" => sample_power = parse_power().unwrap_or(sample_power),
            b"prof_prefix" => prefix = Some(value),
            b"prof_gdump" | b"lg_prof_interval" => {
                triggers.retain(|(earlier, _)| *earlier != name);
                let interval = parse_power().filter(|_| name != b"prof_gdump");
                if let Some(power) = interval {
                    triggers.push((name, format!(" --every-alloc {}", format_size(power))));
                } else if is_true {
                    triggers.push((name, " --peak".to_owned()));
                }
            }
            _ => {}
        }
    }
    (is_profiled && is_active).then(|| {
        let mut our_options = format!("-c {}", format_size(sample_power));
        for (_, trigger) in &triggers {
            our_options += trigger;
        }
        if let Some(prefix) = prefix {
            our_options += &format!(" -o {}", text::shell_word(OsStr::from_bytes(prefix)));
        }
        our_options
    })
}

/// Formats a power of two as our options are written: `512K`.
fn format_size(power: u32) -> String {
    match power {
        0..10 => (1u64 << power).to_string(),
        10..20 => format!("{}K", 1u64 << (power - 10)),
        20..30 => format!("{}M", 1u64 << (power - 20)),
        _ => format!("{}G", 1u64 << (power - 30)),
    }
}

/// Returns a hint for a program that `run` starts with these options of jemalloc.
pub fn hint_of_run(options: &[u8]) -> Option<String> {
    let our_options = translate(options)?;
    Some(format!(
        "hint: {VARIABLE} is for jemalloc's own profiler and starts nothing here; as options of \
         run, it is {our_options}"
    ))
}

/// Returns a hint about running processes that were started with such options and have no jemalloc
/// of their own, or `None` if there are none.
pub fn hint<'a>(processes: impl Iterator<Item = (i32, &'a [u8])>) -> Option<String> {
    let mut concerned = processes.filter_map(|(pid, name)| {
        let environment = proc::environment(pid)?;
        let our_options = translate(proc::value(&environment, VARIABLE)?)?;
        let has_own = allocator::of_process(pid, false).is_some();
        (!has_own).then_some((pid, name, our_options))
    });
    let (pid, name, our_options) = concerned.next()?;
    let others = match concerned.count() {
        0 => String::new(),
        1 => " and another process".to_owned(),
        n => format!(" and {n} other processes"),
    };
    let name = text::escape(name);
    Some(format!(
        "hint: {name} ({pid}){others}: {VARIABLE} is for jemalloc's own profiler; \
         the same is: mem_profiler {our_options} -p {pid}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_jemalloc_are_translated() {
        let cases = [
            ("prof:true", "-c 512K"),
            ("background_thread:true,prof:true,lg_prof_sample:0", "-c 1"),
            (
                "prof:true,lg_prof_sample:21,lg_prof_interval:30",
                "-c 2M --every-alloc 1G",
            ),
            (
                "prof:true,prof_gdump:true,prof_prefix:/tmp/a b",
                "-c 512K --peak -o '/tmp/a b'",
            ),
            ("prof:true,lg_prof_interval:-1,lg_prof_sample:99", "-c 512K"),
            ("prof:false,prof:true,lg_prof_sample:12", "-c 4K"),
        ];
        for (options, our_options) in cases {
            assert_eq!(
                translate(options.as_bytes()).as_deref(),
                Some(our_options),
                "{options}"
            );
        }
        for other in [
            "",
            "prof:false",
            "prof",
            "narenas:1",
            "prof:true,prof:false",
            "prof:true,prof_active:false",
            ":,,:",
        ] {
            assert_eq!(translate(other.as_bytes()), None, "{other}");
        }
    }
}
