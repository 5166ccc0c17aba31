//! Parser of `/proc/PID/status`.

use crate::files::{MAX_FILE_BYTES, file, read};

/// The fields of `/proc/PID/status` that are used here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    text: String,
    /// Pid of the process that this thread belongs to.
    pub tgid: i32,
    /// Real, effective, saved and filesystem user id.
    pub uids: [u32; 4],
    /// Pids of the process, from the namespace of `/proc` to the process's own.
    pub ns_pids: Vec<i32>,
}

impl Status {
    /// Reads the status of a process. Returns `None` if there is no such process.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&file(pid, "status")?)
    }

    /// Reads the status of a thread. Returns `None` if there is no such thread.
    pub fn of_thread(pid: i32, tid: i32) -> Option<Self> {
        Self::parse(&file(pid, &format!("task/{tid}/status"))?)
    }

    /// Reads the status of this process, whatever its pid in `/proc` is.
    pub fn of_self() -> Option<Self> {
        Self::parse(&read("/proc/self/status", MAX_FILE_BYTES).ok()?)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut status = Self::default();
        let mut uids_seen = false;
        for line in text.split(|b| *b == b'\n') {
            let Some(colon) = line.iter().position(|b| *b == b':') else {
                continue;
            };
            let Ok(value) = std::str::from_utf8(&line[colon + 1..]) else {
                continue;
            };
            let mut words = value.split_ascii_whitespace();
            match &line[..colon] {
                b"Tgid" => status.tgid = words.next()?.parse().ok()?,
                b"Uid" => {
                    for uid in &mut status.uids {
                        *uid = words.next()?.parse().ok()?;
                    }
                    uids_seen = true;
                }
                b"NSpid" => status.ns_pids = words.filter_map(|w| w.parse().ok()).collect(),
                _ => {}
            }
        }
        status.text = String::from_utf8_lossy(text).into_owned();
        uids_seen.then_some(status)
    }

    /// Returns the effective user id.
    pub fn uid(&self) -> u32 {
        self.uids[1]
    }

    /// Returns the pid that the process itself sees.
    pub fn own_pid(&self) -> i32 {
        self.ns_pids.last().copied().unwrap_or(self.tgid)
    }

    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.text.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()))
    }

    fn number(&self, name: &str) -> Option<i32> {
        self.field(name)?.parse().ok()
    }

    /// Returns the letter of the state; `X` (dead) if there is none.
    pub fn state(&self) -> char {
        self.field("State")
            .and_then(|state| state.chars().next())
            .unwrap_or('X')
    }

    /// Returns true if the thread has exited.
    pub fn is_dead(&self) -> bool {
        matches!(self.state(), 'Z' | 'X' | 'x')
    }

    /// Returns the number of threads of the process, including exited ones that are not reaped yet.
    pub fn threads(&self) -> Option<usize> {
        self.field("Threads")?.parse().ok()
    }

    /// Returns the size of the process's private writable memory without stacks, resident or not,
    /// in bytes.
    pub fn data_bytes(&self) -> Option<u64> {
        let kib = self.field("VmData")?.strip_suffix("kB")?;
        kib.trim().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// Returns the pid of the parent.
    pub fn parent(&self) -> Option<i32> {
        self.number("PPid")
    }

    /// Returns the pid of the tracer, if there is one.
    pub fn tracer(&self) -> Option<i32> {
        self.number("TracerPid").filter(|&tracer| tracer != 0)
    }

    /// Returns true if the thread is under seccomp.
    pub fn has_seccomp(&self) -> bool {
        self.number("Seccomp").is_some_and(|mode| mode != 0)
    }

    /// Returns true if the thread has a shadow stack, against which the processor checks return
    /// addresses.
    pub fn has_shadow_stack(&self) -> bool {
        let features = self.field("x86_Thread_features").unwrap_or_default();
        features
            .split_whitespace()
            .any(|feature| feature == "shstk")
    }

    /// Returns true for the init process of a pid namespace.
    pub fn is_namespace_init(&self) -> bool {
        self.ns_pids.last() == Some(&1)
    }
}

/// Returns the value of a line in `/proc/PID/status`.
pub fn status_field<'a>(text: &'a [u8], name: &str) -> Option<&'a str> {
    let mut lines = text.split(|b| *b == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
    Some(std::str::from_utf8(value).ok()?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pids_and_uids_of_a_process_in_a_container_are_parsed() {
        let text = b"Name:\tx\nTgid:\t400\nUid:\t1\t2\t3\t4\nNSpid:\t400\t7\n";
        let status = Status::parse(text).unwrap();
        assert_eq!((status.uid(), status.own_pid(), status.tgid), (2, 7, 400));
        assert_eq!(Status::parse(b"Uid:\t1\t2\n"), None);
    }
}
