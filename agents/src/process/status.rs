//! `/proc/PID/status`.

use std::fs::File;
use std::io::Read;

use super::{FILE_LIMIT, read};

/// The fields of `/proc/PID/status` that are used here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Process that this thread belongs to.
    pub tgid: i32,
    /// Real, effective, saved and filesystem user.
    pub uids: [u32; 4],
    /// Pids from our namespace to the process's own.
    pub ns_pids: Vec<i32>,
}

impl Status {
    /// Reads it; `None` if there is no such process.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&read(pid, "status", FILE_LIMIT)?)
    }

    /// Reads our own, by whatever pid `/proc` knows us.
    pub fn of_self() -> Option<Self> {
        let mut text = Vec::new();
        let file = File::open("/proc/self/status").ok()?;
        file.take(FILE_LIMIT).read_to_end(&mut text).ok()?;
        Self::parse(&text)
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
        uids_seen.then_some(status)
    }

    /// Effective user.
    pub fn uid(&self) -> u32 {
        self.uids[1]
    }

    /// Pid as the process itself sees it.
    pub fn own_pid(&self) -> i32 {
        self.ns_pids.last().copied().unwrap_or(self.tgid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_a_process_in_a_container() {
        let text = b"Name:\tx\nTgid:\t400\nUid:\t1\t2\t3\t4\nNSpid:\t400\t7\n";
        let status = Status::parse(text).unwrap();
        assert_eq!((status.uid(), status.own_pid(), status.tgid), (2, 7, 400));
        assert_eq!(Status::parse(b"Uid:\t1\t2\n"), None);
    }
}
