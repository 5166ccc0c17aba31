//! Parses values of command-line options: times, sizes, rates, processes, users.

use std::time::Duration;

/// Maximum length of a session. Object ages are 31-bit counts of 4.19 ms ticks.
const MAX_SESSION: Duration = Duration::from_secs(100 * 24 * 3600);

const EXPECTED_TIME: &str = "expected a number of seconds above zero, such as 60, 1.5, 5m or 2h";

/// Parses a length of time above zero.
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
        _ => return Err(EXPECTED_TIME.to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| EXPECTED_TIME.to_owned())?;
    let time = Duration::try_from_secs_f64(number * factor).map_err(|e| e.to_string())?;
    if time < Duration::from_millis(1) {
        return Err("must be longer than zero".to_owned());
    }
    if time > MAX_SESSION {
        return Err("at most 100 days".to_owned());
    }
    Ok(time)
}

/// Parses a number of bytes, with or without a unit.
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

/// Parses a sampling interval.
pub fn interval(text: &str) -> Result<u64, String> {
    match byte_count(text)? {
        0 => Err("must be at least 1, which samples every allocation".to_owned()),
        n if n > 1 << 40 => Err("at most 1T".to_owned()),
        n => Ok(n),
    }
}

/// Maximum sampling rate, per second. Every sample copies at least 16 KiB of stack.
const MAX_RATE: u32 = 10_000;

/// Parses a number of samples per second of CPU time.
pub fn rate(text: &str) -> Result<u32, String> {
    match text.parse::<u64>() {
        Ok(0) => Err("must be at least 1: one sample in a second".to_owned()),
        Ok(rate) if rate > u64::from(MAX_RATE) => Err(format!(
            "at most {MAX_RATE}: above that, profiles would show mostly the sampling; 99 to 999 \
             is usual"
        )),
        Ok(rate) => Ok(rate as u32),
        Err(_) => Err("expected a whole number of samples per second, such as 99".to_owned()),
    }
}

/// Parses a percentage of CPU time and returns it as a fraction.
pub fn overhead(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).trim();
    match percent.parse::<f64>() {
        Ok(p) if (0.01..=50.0).contains(&p) => Ok(p / 100.0),
        Ok(p) if p > 50.0 => Err("at most 50%: a higher limit would limit nothing".to_owned()),
        Ok(p) if p <= 0.0 => Err("must be above zero: sampling always costs something".to_owned()),
        Ok(p) if p < 0.01 => Err("at least 0.01%: less cannot be measured".to_owned()),
        _ => Err("expected a percentage, such as 2% or 0.5%".to_owned()),
    }
}

/// Checks a pid, a name or a pattern.
pub fn process(text: &str) -> Result<String, String> {
    let number = text.strip_prefix('-').unwrap_or(text);
    let numeric = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    match text {
        "" => Err("expected a pid or a name".to_owned()),
        _ if numeric && text.parse::<i32>().is_ok_and(|pid| pid > 0) => Ok(text.to_owned()),
        _ if numeric => Err("no process has such a pid".to_owned()),
        _ => Ok(text.to_owned()),
    }
}

/// Parses a user name or a uid.
pub fn user(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        _ => Err("there is no such user".to_owned()),
    }
}

/// Parses an amount of memory above zero.
pub fn amount(text: &str) -> Result<u64, String> {
    match byte_count(text)? {
        0 => Err("must be above zero".to_owned()),
        n => Ok(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!(interval("1"), Ok(1));
        assert_eq!(interval("64K"), Ok(65536));
        assert_eq!(interval("1.5m"), Ok(3 << 19));
        assert_eq!(amount("200MB"), Ok(200 << 20));
        assert_eq!(amount("2GiB"), Ok(2 << 30));
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("2h"), Ok(Duration::from_secs(7200)));
    }

    #[test]
    fn shares_of_cpu_time() {
        assert_eq!(overhead("2%"), Ok(0.02));
        assert_eq!(overhead("0.5"), Ok(0.005));
        assert!(overhead("0").unwrap_err().contains("above zero"));
        assert!(overhead("0.0001%").unwrap_err().contains("measured"));
        assert!(overhead("100%").unwrap_err().contains("at most 50%"));
        assert!(overhead("inf").unwrap_err().contains("at most 50%"));
        assert!(overhead("nan").unwrap_err().contains("expected"));
    }

    #[test]
    fn users() {
        assert!(user("root") == Ok(0) && user("no-such-user-here").is_err());
    }
}
