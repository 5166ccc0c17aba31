//! The memory limit of the process's control group: what is in the directory of the segments counts for
//! it, too.

use crate::sys::{Text, read_file};

/// Where systemd, Docker and all others mount version 2, and a directory for each controller of version 1.
const MOUNT: &[u8] = b"/sys/fs/cgroup";

/// A file with the limit.
type Path = Text<1024>;

/// The limit in bytes; `u64::MAX`: none is known. Groups further up, whose limit may be lower, are not
/// asked. Changes `errno`.
pub fn memory_limit() -> u64 {
    let mut buffer = [0u8; 4096];
    let groups = read_file(c"/proc/self/cgroup", &mut buffer);
    let mut limit = u64::MAX;
    for line in groups.split(|byte| *byte == b'\n') {
        if let Some(group) = line.strip_prefix(b"0::") {
            limit = limit.min(limit_of(b"", group, b"memory.max"));
        } else if let Some(group) = of_memory(line) {
            limit = limit.min(limit_of(b"/memory", group, b"memory.limit_in_bytes"));
        }
    }
    limit
}

/// The group in a line of version 1, `NUMBER:CONTROLLERS:GROUP`, if memory is among its controllers.
fn of_memory(line: &[u8]) -> Option<&[u8]> {
    let mut fields = line.splitn(3, |byte| *byte == b':');
    let mut controllers = fields.nth(1)?.split(|byte| *byte == b',');
    let group = fields.next()?;
    controllers.any(|one| one == b"memory").then_some(group)
}

/// A container has its own group mounted, not those above it, which its path may name.
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

/// The limit in a file; `None`: it has the word `max`.
fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_found_among_the_controllers_of_version_1() {
        assert_eq!(of_memory(b"7:memory:/a/b:c"), Some(&b"/a/b:c"[..]));
        assert_eq!(of_memory(b"3:cpu,memory:/"), Some(&b"/"[..]));
        for line in [
            &b"8:cpuset:/"[..],
            b"1:name=memory:/",
            b"",
            b"x",
            b"7:memory",
        ] {
            assert_eq!(of_memory(line), None);
        }
    }

    #[test]
    fn limits_are_numbers_or_none() {
        assert_eq!(number(b"67108864\n"), Some(64 << 20));
        assert_eq!(number(b"max\n"), None);
        assert!(memory_limit() > 0);
    }
}
