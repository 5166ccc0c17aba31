//! Reads the memory limit of the process's control group. Segments in `/dev/shm` count towards it.

use crate::sys::{Text, read_file};

/// Usual mount point of version 2, and of one directory for each controller of version 1.
const MOUNT: &[u8] = b"/sys/fs/cgroup";

/// Path of a file with a limit.
type Path = Text<1024>;

/// Returns the limit in bytes; `u64::MAX` if none is known. Does not read the limits of parent
/// groups, which may be lower. Changes `errno`.
pub fn memory_limit() -> u64 {
    let mut buffer = [0u8; 4096];
    let groups = read_file(c"/proc/self/cgroup", &mut buffer);
    let mut limit = u64::MAX;
    for line in groups.split(|byte| *byte == b'\n') {
        if let Some(group) = line.strip_prefix(b"0::") {
            limit = limit.min(limit_of(b"", group, b"memory.max"));
        } else if let Some(group) = memory_group(line) {
            limit = limit.min(limit_of(b"/memory", group, b"memory.limit_in_bytes"));
        }
    }
    limit
}

/// Returns the group in a line of version 1, `NUMBER:CONTROLLERS:GROUP`, if memory is one of its
/// controllers.
fn memory_group(line: &[u8]) -> Option<&[u8]> {
    let mut fields = line.splitn(3, |byte| *byte == b':');
    let mut controllers = fields.nth(1)?.split(|byte| *byte == b',');
    let group = fields.next()?;
    controllers
        .any(|controller| controller == b"memory")
        .then_some(group)
}

/// Reads the limit of a group. A container has its own group mounted as the root, so the path in
/// `/proc/self/cgroup` may not exist there; then the root is read.
fn limit_of(controller: &[u8], group: &[u8], file: &[u8]) -> u64 {
    [group, b"/"]
        .into_iter()
        .find_map(|group| {
            let mut path = Path::new();
            for part in [MOUNT, controller, group, b"/", file] {
                path.push(part);
            }
            let mut buffer = [0u8; 32];
            let text = read_file(path.as_c_str()?, &mut buffer);
            (!text.is_empty()).then(|| number(text).unwrap_or(u64::MAX))
        })
        .unwrap_or(u64::MAX)
}

/// Parses a limit. Returns `None` for the word `max`.
fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_found_among_the_controllers_of_version_1() {
        assert_eq!(memory_group(b"7:memory:/a/b:c"), Some(&b"/a/b:c"[..]));
        assert_eq!(memory_group(b"3:cpu,memory:/"), Some(&b"/"[..]));
        for line in [
            &b"8:cpuset:/"[..],
            b"1:name=memory:/",
            b"",
            b"x",
            b"7:memory",
        ] {
            assert_eq!(memory_group(line), None);
        }
    }

    #[test]
    fn limits_are_numbers_or_none() {
        assert_eq!(number(b"67108864\n"), Some(64 << 20));
        assert_eq!(number(b"max\n"), None);
        assert!(memory_limit() > 0);
    }
}
