//! Names of segment files.

use std::ffi::OsStr;

use shm_protocol::segment::FILE_PREFIX;

/// Name prefix of the directories that `run` creates in the shared directory.
pub const RUN_PREFIX: &str = "mem_profiler.run.";

/// Identity of a process image, as encoded in the segment's file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentName {
    /// Pid in the process's own namespace.
    pub pid: i32,
    /// Start time of the process, in clock ticks since boot.
    pub start_time: u64,
    /// Number of the program image: how many times the process has called exec with the agent.
    pub image: u32,
}

impl SegmentName {
    /// Parses a file name as written by `Display`. Returns `None` for any other name.
    pub fn parse(name: &OsStr) -> Option<Self> {
        let rest = name.to_str()?.strip_prefix(FILE_PREFIX)?;
        let mut parts = rest.split('.');
        let mut number = || {
            let part = parts.next()?;
            part.bytes().all(|b| b.is_ascii_digit()).then_some(part)
        };
        let name = Self {
            pid: number()?.parse().ok().filter(|pid| *pid > 0)?,
            start_time: number()?.parse().ok()?,
            image: number()?.parse().ok()?,
        };
        parts.next().is_none().then_some(name)
    }
}

impl std::fmt::Display for SegmentName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{FILE_PREFIX}{}.{}.{}",
            self.pid, self.start_time, self.image
        )
    }
}

/// Directory entry of a segment. A name alone is not unique over time: after an exec, the name of
/// an earlier image may be free again. Name and inode recur only after the file was removed, and
/// not on a tmpfs. Directories of different mount namespaces are different file systems, so the
/// device is needed, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// File name.
    pub name: SegmentName,
    /// Inode, as the directory states it.
    pub inode: u64,
    /// Device of the directory.
    pub device: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_names_are_rejected() {
        let parse = |text: &str| SegmentName::parse(OsStr::new(text));
        let name = parse("mem_profiler.42.9999.1").unwrap();
        assert_eq!((name.pid, name.start_time, name.image), (42, 9999, 1));
        assert_eq!(name.to_string(), "mem_profiler.42.9999.1");
        for bad in [
            "mem_profiler.42.9999",
            "mem_profiler.42.9999.1.2",
            "mem_profiler.-1.2.3",
            "mem_profiler.+1.2.3",
            "mem_profiler.0.2.3",
            "mem_profiler.1.2.",
            "other.1.2.3",
            "mem_profiler.99999999999.2.3",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
