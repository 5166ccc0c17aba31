//! What `/proc` says about a process.

use std::fs::File;
use std::io::Read;

use crate::Refusal;

/// Files of `/proc` are read up to these many bytes.
const MOST_STATUS: u64 = 64 << 10;
const MOST_MAPS: u64 = 64 << 20;

/// `/proc/PID/task/TID/status`.
pub struct Status(String);

impl Status {
    /// Reads it, unless the thread is gone.
    pub fn of(pid: i32, tid: i32) -> Option<Self> {
        read(&format!("/proc/{pid}/task/{tid}/status"), MOST_STATUS).map(Self)
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    fn number(&self, name: &str) -> Option<i32> {
        self.field(name)?.parse().ok()
    }

    /// The letter of its state; `X` if there is none.
    pub fn state(&self) -> char {
        self.field("State")
            .and_then(|state| state.chars().next())
            .unwrap_or('X')
    }

    /// Whether it no longer runs.
    pub fn is_dead(&self) -> bool {
        matches!(self.state(), 'Z' | 'X' | 'x')
    }

    /// The process that a thread belongs to.
    pub fn process(&self) -> Option<i32> {
        self.number("Tgid")
    }

    /// How many threads its process has, including ended ones that have not been reaped.
    pub fn threads(&self) -> Option<usize> {
        self.field("Threads")?.parse().ok()
    }

    /// The parent.
    pub fn parent(&self) -> Option<i32> {
        self.number("PPid")
    }

    /// Who traces it, if anyone does.
    pub fn tracer(&self) -> Option<i32> {
        self.number("TracerPid").filter(|&tracer| tracer != 0)
    }

    /// Whether a filter checks its system calls.
    pub fn has_seccomp(&self) -> bool {
        self.number("Seccomp").is_some_and(|mode| mode != 0)
    }

    /// Whether the processor checks its return addresses.
    pub fn has_shadow_stack(&self) -> bool {
        let features = self.field("x86_Thread_features").unwrap_or_default();
        features
            .split_whitespace()
            .any(|feature| feature == "shstk")
    }

    /// Whether it is the first process of its pid namespace.
    pub fn is_first(&self) -> bool {
        let numbers = self.field("NSpid").unwrap_or_default();
        numbers.split_whitespace().next_back() == Some("1")
    }
}

/// A line of `/proc/PID/maps`.
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End.
    pub end: u64,
    /// Whether it can be written.
    pub writable: bool,
    /// Whether it can be executed.
    pub executable: bool,
    /// The file, or a name in brackets.
    pub name: String,
}

/// The mappings of a process, in the order of addresses.
pub fn mappings(pid: i32) -> Result<Vec<Mapping>, Refusal> {
    let shown = living_thread(pid);
    let text = read(&format!("/proc/{shown}/maps"), MOST_MAPS).ok_or(Refusal::Ended { pid })?;
    Ok(text.lines().filter_map(mapping).collect())
}

fn mapping(line: &str) -> Option<Mapping> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let rights = fields.next()?.as_bytes();
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let has = |index: usize, right| rights.get(index) == Some(&right);
    let name = fields.nth(3).unwrap_or_default().to_owned();
    (start < end).then_some(Mapping {
        start,
        end,
        writable: has(1, b'w'),
        executable: has(2, b'x'),
        name,
    })
}

/// Maximum number of threads that are examined for one that lives.
const MOST_TRIED: usize = 1024;

/// A number by which the kernel knows a process's memory, files and root: the process's own, or
/// that of another thread if the first one has ended before the others (`pthread_exit` in `main`)
/// and has released them. `/proc` has a directory for each thread, though it lists only processes.
#[must_use]
pub fn living_thread(pid: i32) -> i32 {
    let lives = |tid: &i32| Status::of(pid, *tid).is_some_and(|status| !status.is_dead());
    if lives(&pid) {
        return pid;
    }
    let others = threads(pid).into_iter().filter(|tid| *tid != pid);
    others.take(MOST_TRIED).find(lives).unwrap_or(pid)
}

/// The threads of a process; none if it is gone.
pub fn threads(pid: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect()
}

/// A process's name; empty if it cannot be read.
pub fn name(pid: i32) -> String {
    read(&format!("/proc/{pid}/comm"), MOST_STATUS)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// Makes the kernel prefer this process when it runs out of memory. Needs no right.
pub fn offer_to_oom_killer(pid: i32) {
    // Without it the copy is merely as likely to be chosen as the target.
    let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
}

fn read(path: &str, most: u64) -> Option<String> {
    // Most are read at once: a process stands still meanwhile.
    let mut bytes = Vec::with_capacity(16 << 10);
    File::open(path)
        .ok()?
        .take(most)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
