//! Kinds of mappings, and their names, for labels.

use mem_agents::text;
use mem_agents::thread_stacks::Stacks;
use profile::rss::MappingLabels;

use crate::smaps::Area;

/// Returns the label values of a mapping. `stacks` are those of the threads.
pub fn place(area: &Area, stacks: &Stacks) -> MappingLabels {
    let path = &area.path[..];
    let is_stack = || stacks.fill(&(area.start..area.end));
    let kind = match path {
        b"[heap]" => "heap",
        b"[stack]" => "stack",
        b"[vdso]" | b"[vvar]" | b"[vvar_vclock]" => "kernel",
        _ if path.starts_with(b"/memfd:") => "memfd",
        _ if path.starts_with(b"/dev/shm/") || path.starts_with(b"/SYSV") => "shared memory",
        // A shared anonymous mapping.
        _ if path.starts_with(b"/dev/zero") => "shared memory",
        _ if path.starts_with(b"/dev/") => "device",
        _ if path.starts_with(b"/") && area.permissions.contains(&b'x') => "code",
        _ if path.starts_with(b"/") => "file",
        _ if path.is_empty() && is_stack() => "stack",
        _ => "anonymous",
    };
    let is_named = path.starts_with(b"/") || path.starts_with(b"[anon");
    MappingLabels {
        kind: kind.to_owned(),
        mapping: if is_named {
            text::escape(path)
        } else {
            String::new()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_have_a_kind_and_perhaps_a_name() {
        for (permissions, path, kind, name) in [
            ("rw-p", "[heap]", "heap", ""),
            ("rw-p", "[stack]", "stack", ""),
            ("rw-p", "", "anonymous", ""),
            ("rw-p", "[anon: Go: heap]", "anonymous", "[anon: Go: heap]"),
            ("r-xp", "/lib/libc.so.6", "code", "/lib/libc.so.6"),
            ("rw-p", "/lib/libc.so.6", "file", "/lib/libc.so.6"),
            ("rw-s", "/dev/shm/a", "shared memory", "/dev/shm/a"),
            (
                "rw-s",
                "/SYSV00000000 (deleted)",
                "shared memory",
                "/SYSV00000000 (deleted)",
            ),
            (
                "rw-s",
                "/dev/zero (deleted)",
                "shared memory",
                "/dev/zero (deleted)",
            ),
            ("rw-s", "/memfd:x (deleted)", "memfd", "/memfd:x (deleted)"),
            ("rw-s", "/dev/nvidia0", "device", "/dev/nvidia0"),
        ] {
            let area = Area {
                start: 0x1000,
                end: 0x2000,
                permissions: permissions.into(),
                path: path.into(),
                ..Area::default()
            };
            let found = place(&area, &Stacks::default());
            assert_eq!((&found.kind[..], &found.mapping[..]), (kind, name));
            if path.is_empty() {
                assert_eq!(place(&area, &Stacks::at(vec![0x1800])).kind, "stack");
            }
        }
    }
}
