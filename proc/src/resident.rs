//! Resident memory of a process, for repeated reads.

use crate::files::Reread;
use crate::stat::{Stat, page_bytes, rss_bytes};

/// Resident memory of one process. Reading it costs one system call if descriptors are left to keep
/// the file open.
pub struct Resident {
    pid: i32,
    /// `/proc/PID/statm`, which the kernel generates much faster than `stat`.
    file: Reread,
}

impl Resident {
    /// Opens the process's file. Returns `None` if there is no such process.
    pub fn new(pid: i32) -> Option<Self> {
        let file = Reread::open_sparingly(format!("/proc/{pid}/statm")).ok()?;
        Some(Self { pid, file })
    }

    /// Returns the resident memory in bytes, or `None` if the process has exited.
    pub fn bytes(&self) -> Option<u64> {
        let mut buffer = [0; 128];
        let length = self.file.read(&mut buffer).ok()?;
        let text = std::str::from_utf8(&buffer[..length]).ok()?;
        let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
        if pages > 0 {
            return pages.checked_mul(page_bytes()?);
        }
        // A zombie, or only the main thread has exited.
        let has_exited = Stat::read(self.pid).map_or(true, |stat| stat.is_dead());
        if has_exited {
            None
        } else {
            rss_bytes(self.pid)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn resident_memory_is_that_of_stat_until_the_process_exits() {
        let own_pid = std::process::id() as i32;
        let own = Resident::new(own_pid).expect("a process");
        let pages = vec![1_u8; 32 << 20];
        std::hint::black_box(&pages);
        let bytes = own.bytes().expect("a number");
        let expected = rss_bytes(own_pid).expect("a number");
        assert!(bytes.abs_diff(expected) < 8 << 20, "{bytes} {expected}");
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        let of_child = Resident::new(child.id() as i32).expect("a process");
        assert!(of_child.bytes().is_some_and(|bytes| bytes > 0));
        child.kill().expect("a child of ours");
        while !crate::has_exited(child.id() as i32) {
            std::thread::yield_now();
        }
        assert_eq!(of_child.bytes(), None, "a zombie");
        child.wait().expect("a child of ours");
        assert_eq!(of_child.bytes(), None);
        assert!(Resident::new(child.id() as i32).is_none());
    }
}
