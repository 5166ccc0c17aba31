//! Resident memory by purpose, from `/proc/PID/smaps`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use mem_agents::agent_file;
use mem_agents::text;
use mem_agents::thread_stacks::Stacks;
use profile::maps::{Entry, strip_deleted};
use serde::Serialize;

/// Resident memory by kind of mapping, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// Executable file mappings.
    pub code: u64,
    /// Other file mappings, including shared memory.
    pub files: u64,
    /// Private copies of pages of files that are no programs or libraries.
    pub modified: u64,
    /// Thread stacks that can be distinguished from other memory.
    pub stacks: u64,
    /// Anonymous memory: the allocator's and the program's own mappings, and variables of programs
    /// and libraries.
    pub anonymous: u64,
    /// Memory of the agent: code, data and segment.
    pub agent: u64,
    /// Memory that is swapped out.
    pub swap: u64,
}

impl Resident {
    /// Returns the sum of all resident memory.
    pub fn total(&self) -> u64 {
        self.code + self.files + self.modified + self.stacks + self.anonymous + self.agent
    }
}

/// Reads the smaps of a process.
pub fn read(pid: i32, stacks: &Stacks) -> std::io::Result<Resident> {
    let areas = areas(pid)?;
    let maps = proc::maps(pid).unwrap_or_default();
    let agent = agent_file::mapped(pid, &maps);
    Ok(sum_up(&areas, stacks, agent.as_deref()))
}

/// Mapping with its memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Area {
    /// First address.
    pub start: u64,
    /// First address after the mapping.
    pub end: u64,
    /// Permissions, such as `rw-p`.
    pub permissions: Vec<u8>,
    /// Path, or the kernel's name in brackets; empty if there is none.
    pub path: Vec<u8>,
    /// Resident memory.
    pub rss: u64,
    /// Resident memory that is the process's own: no page of a file or of shared memory.
    pub anonymous: u64,
    /// Memory that is swapped out.
    pub swap: u64,
    /// True if its memory consists of reserved huge pages (hugetlbfs), which do not count as
    /// resident.
    pub is_hugetlb: bool,
    /// True if it maps memory of a device, which does not count as resident.
    pub is_device: bool,
}

/// Reads the mappings of a process.
pub fn areas(pid: i32) -> std::io::Result<Vec<Area>> {
    let file = File::open(proc::path_of_memory(pid, "smaps"))?;
    parse_areas(BufReader::new(file))
}

fn parse_areas(reader: impl BufRead) -> std::io::Result<Vec<Area>> {
    let mut areas: Vec<Area> = Vec::new();
    for line in reader.split(b'\n') {
        let line = line?;
        if let Some(entry) = Entry::parse(&line) {
            areas.push(Area {
                start: entry.start,
                end: entry.end,
                permissions: entry.permissions.to_vec(),
                path: entry.path.to_vec(),
                ..Area::default()
            });
            continue;
        }
        let Some(area) = areas.last_mut() else {
            continue;
        };
        match parse_size(&line) {
            Some(("Rss", bytes)) => area.rss = bytes,
            Some(("Anonymous", bytes)) => area.anonymous = bytes,
            Some(("Swap", bytes)) => area.swap = bytes,
            _ => {}
        }
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let mut flags = flags.split(u8::is_ascii_whitespace);
            area.is_hugetlb = flags.clone().any(|flag| flag == b"ht");
            area.is_device = flags.any(|flag| flag == b"pf" || flag == b"io");
        }
    }
    Ok(areas)
}

/// Purpose of a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    File,
    Stack,
    Anonymous,
    Agent,
}

/// Returns the paths of the programs and libraries among the mappings, sorted.
pub fn modules(areas: &[Area]) -> Vec<&[u8]> {
    let is_module = |area: &&Area| area.path.starts_with(b"/") && area.permissions.contains(&b'x');
    let mut paths: Vec<&[u8]> = areas
        .iter()
        .filter(is_module)
        .map(|area| &area.path[..])
        .collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

/// Sums up mappings. `agent` is the path of the agent's file.
fn sum_up(areas: &[Area], stacks: &Stacks, agent: Option<&Path>) -> Resident {
    let modules = modules(areas);
    let mut sums = Resident::default();
    for area in areas {
        sums.swap += area.swap;
        let kind = Kind::classify(area, stacks, agent);
        let mut bytes = area.rss;
        if kind == Kind::File && area.permissions.ends_with(b"p") {
            let copies = area.anonymous.min(bytes);
            bytes -= copies;
            let is_module = modules.binary_search(&&area.path[..]).is_ok();
            if is_module {
                sums.anonymous += copies;
            } else {
                sums.modified += copies;
            }
        }
        *sums.part_mut(kind) += bytes;
    }
    sums
}

/// Parses a line such as `Rss:  4 kB` into name and bytes.
fn parse_size(line: &[u8]) -> Option<(&str, u64)> {
    let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
    let kilobytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some((name, kilobytes.saturating_mul(1024)))
}

impl Resident {
    fn part_mut(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Code => &mut self.code,
            Kind::File => &mut self.files,
            Kind::Stack => &mut self.stacks,
            Kind::Anonymous => &mut self.anonymous,
            Kind::Agent => &mut self.agent,
        }
    }
}

impl Kind {
    fn classify(area: &Area, stacks: &Stacks, agent: Option<&Path>) -> Self {
        let path = &area.path[..];
        let name = text::base_name(path);
        let file = strip_deleted(Path::new(OsStr::from_bytes(path))).0;
        let is_agent = agent == Some(file) || name.starts_with(b"mem_profiler.");
        let is_file = path.starts_with(b"/");
        match path {
            _ if is_agent && is_file => Self::Agent,
            b"[stack]" => Self::Stack,
            _ if !is_file && stacks.fill(&(area.start..area.end)) => Self::Stack,
            b"[vdso]" | b"[vsyscall]" | b"[vvar]" | b"[vvar_vclock]" => Self::Code,
            _ if is_file && area.permissions.contains(&b'x') => Self::Code,
            _ if is_file => Self::File,
            _ => Self::Anonymous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mapping_has_its_purpose() {
        let text = "1000-2000 r-xp 0 08:01 5  /usr/bin/x y\nSize: 4 kB\nRss:   4 kB\nSwap: 1 kB\n\
            2000-3000 rw-p 0 08:01 5 /usr/bin/x y\nRss: 8 kB\nAnonymous: 4 kB\n\
            2800-2c00 rw-p 0 08:01 6 /data\nRss: 2048 kB\nAnonymous: 1024 kB\n\
            2c00-3000 rw-s 0 08:01 6 /data\nRss: 512 kB\n\
            3000-4000 rw-p 0 00:00 0 \nRss: 16 kB\nSwap: 2 kB\n\
            5000-6000 rw-p 0 00:00 0 \nRss: 32 kB\n\
            7000-8000 rw-p 0 00:00 0          [stack]\nRss: 64 kB\n\
            8000-9000 rw-s 0 00:1a 7 /dev/shm/mem_profiler.1.2.0\nRss: 128 kB\n\
            9000-a000 r-xp 0 08:01 9 /opt/libmp.so\nRss: 256 kB\nVmFlags: rd ex\n";
        let areas = parse_areas(text.as_bytes()).unwrap();
        let stacks = Stacks::at(vec![0x5800]);
        let resident = sum_up(&areas, &stacks, Some(Path::new("/opt/libmp.so")));
        let kb = |n: u64| n * 1024;
        let expected = Resident {
            code: kb(4),
            files: kb(4 + 1024 + 512),
            modified: kb(1024),
            anonymous: kb(16 + 4),
            stacks: kb(96),
            agent: kb(384),
            swap: kb(3),
        };
        assert_eq!(resident, expected);
        assert_eq!(resident.total(), kb(508 + 2048 + 512));
    }

    #[test]
    fn mappings_have_their_memory() {
        let text = "1000-2000 rw-s 0 00:1a 7 /dev/shm/x y\nRss: 4 kB\nSwap: 1 kB\nVmFlags: rd ht\n\
            3000-4000 rw-p 0 00:00 0 \nRss: 16 kB\nVmFlags: rd pf \n";
        let areas = parse_areas(text.as_bytes()).unwrap();
        let first = Area {
            start: 0x1000,
            end: 0x2000,
            permissions: b"rw-s".to_vec(),
            path: b"/dev/shm/x y".to_vec(),
            rss: 4096,
            anonymous: 0,
            swap: 1024,
            is_hugetlb: true,
            is_device: false,
        };
        assert_eq!(areas[0], first);
        assert!(areas[1].is_device && areas[1].path.is_empty() && areas[1].rss == 16384);
        assert_eq!(areas.len(), 2);
    }

    #[test]
    fn this_process_has_memory_of_each_kind() {
        let pid = std::process::id() as i32;
        let resident = read(pid, &Stacks::of(pid)).unwrap();
        assert!(resident.code > 0 && resident.stacks > 0 && resident.anonymous > 0);
    }
}
