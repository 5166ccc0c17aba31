//! `/proc/PID/stat`.

use super::{FILE_LIMIT, other_thread, read};

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name of the main thread, as the process chose it.
    pub comm: Vec<u8>,
    /// One letter: `R`, `S`, `T`, `Z`, …
    pub state: u8,
    /// Parent.
    pub parent: i32,
    /// CPU time used, in clock ticks.
    pub cpu_ticks: u64,
    /// Threads, the first one included as long as the process has a number.
    pub threads: u64,
    /// Start, in clock ticks since boot: together with the pid, it uniquely identifies the
    /// process.
    pub start_time: u64,
    /// Resident pages.
    pub rss_pages: u64,
    /// Exit status, as from `wait`; meaningless while it runs.
    pub wait_status: Option<i32>,
}

impl Stat {
    /// Reads it; `None` if there is no such process.
    pub fn of(pid: i32) -> Option<Self> {
        let mut stat = Self::parse(&read(pid, "stat", FILE_LIMIT)?)?;
        if stat.first_has_ended()
            && let Some(other) = other_thread(pid)
            && let Some(other) = read(pid, &format!("task/{other}/stat"), FILE_LIMIT)
        {
            stat.rss_pages = Self::parse(&other).map_or(0, |other| other.rss_pages);
        }
        Some(stat)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The name may contain anything, including parentheses and blanks.
        let open = text.iter().position(|b| *b == b'(')?;
        let close = text.iter().rposition(|b| *b == b')')?;
        let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            comm: text.get(open + 1..close)?.to_vec(),
            state: *fields.first()?.as_bytes().first()?,
            parent: fields.get(1)?.parse().ok()?,
            cpu_ticks: number(11)?.checked_add(number(12)?)?,
            threads: number(17)?,
            start_time: crate::clock::shift().start_time(number(19)?),
            rss_pages: number(21).unwrap_or(0),
            wait_status: number(49).map(|status| status as i32),
        })
    }

    /// Resident memory.
    pub fn rss_bytes(&self) -> Option<u64> {
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
        Some(self.rss_pages.saturating_mul(page.max(1) as u64))
    }

    /// Whether the process has ended and waits for its parent to reap it. Its first thread may have
    /// ended before the others (`pthread_exit` in `main`), which looks the same except for those.
    pub fn is_dead(&self) -> bool {
        self.first_has_ended() && self.threads < 2
    }

    /// Whether its first thread has ended: the kernel shows nothing of the process's memory there.
    pub fn first_has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// Resident memory of a process.
pub fn rss_bytes(pid: i32) -> Option<u64> {
    Stat::of(pid)?.rss_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_do_not_shift_the_fields() {
        let text = b"42 (a) R 1 (x) S 7 0 0 0 -1 0 1 2 3 4 50 60 0 0 20 0 1 0 9999 4096 77 1";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat.comm, b"a) R 1 (x");
        assert_eq!((stat.state, stat.parent), (b'S', 7));
        assert_eq!(
            (stat.cpu_ticks, stat.start_time, stat.rss_pages),
            (110, 9999, 77)
        );
        assert_eq!(Stat::parse(b"42 (a"), None);
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_not_dead() {
        let of = |threads: &str| {
            let text = format!("42 (a) Z 1 1 1 0 -1 0 1 2 3 4 50 60 0 0 20 0 {threads} 0 9999 0 0");
            Stat::parse(text.as_bytes()).unwrap()
        };
        assert!(of("2").first_has_ended() && !of("2").is_dead());
        assert!(of("1").is_dead() && of("0").is_dead());
    }
}
