//! Resident memory by purpose, from `/proc/PID/smaps`.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use mem_agents::agent_file;
use mem_agents::text;
use profile::maps::{Entry, strip_deleted};
use serde::Serialize;

/// Resident memory by kind of mapping, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// Executable file mappings.
    pub code: u64,
    /// Other file mappings, including shared memory.
    pub files: u64,
    /// Thread stacks that can be distinguished from other memory.
    pub stacks: u64,
    /// Anonymous memory: the allocator's and the program's own mappings.
    pub anonymous: u64,
    /// Memory of the agent: code, data and segment.
    pub agent: u64,
    /// Memory that is swapped out.
    pub swap: u64,
}

impl Resident {
    /// Returns the sum of all resident memory.
    pub fn total(&self) -> u64 {
        self.code + self.files + self.stacks + self.anonymous + self.agent
    }
}

/// Reads the smaps of a process. `stacks` are addresses within thread stacks.
pub fn read(pid: i32, stacks: &[u64]) -> std::io::Result<Resident> {
    let file = File::open(proc::path_of_memory(pid, "smaps"))?;
    let maps = proc::maps(pid).unwrap_or_default();
    let agent = agent_file::mapped(pid, &maps);
    parse(BufReader::new(file), stacks, agent.as_deref())
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

/// Sums up the text of smaps. `agent` is the path of the agent's file.
fn parse(reader: impl BufRead, stacks: &[u64], agent: Option<&Path>) -> std::io::Result<Resident> {
    let mut sums = Resident::default();
    let mut kind = Kind::Anonymous;
    // Read as bytes, since paths need not be UTF-8.
    for line in reader.split(b'\n') {
        let line = line?;
        if let Some(entry) = Entry::parse(&line) {
            kind = Kind::classify(&entry, stacks, agent);
            continue;
        }
        match parse_size(&line) {
            Some(("Rss", bytes)) => *sums.part_mut(kind) += bytes,
            Some(("Swap", bytes)) => sums.swap += bytes,
            _ => {}
        }
    }
    Ok(sums)
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
    fn classify(entry: &Entry<'_>, stacks: &[u64], agent: Option<&Path>) -> Self {
        let path = entry.path;
        let name = text::base_name(path);
        let file = strip_deleted(Path::new(OsStr::from_bytes(path))).0;
        let is_agent = agent == Some(file) || name.starts_with(b"mem_profiler.");
        let is_file = path.starts_with(b"/");
        match path {
            _ if is_agent && is_file => Self::Agent,
            b"[stack]" => Self::Stack,
            _ if stacks
                .iter()
                .any(|sp| (entry.start..entry.end).contains(sp)) =>
            {
                Self::Stack
            }
            b"[vdso]" | b"[vsyscall]" | b"[vvar]" => Self::Code,
            _ if is_file && entry.permissions.contains(&b'x') => Self::Code,
            _ if is_file => Self::File,
            _ => Self::Anonymous,
        }
    }
}

/// Maximum number of threads whose stack pointers are read.
const MAX_THREADS: usize = 100_000;

/// Returns the stack pointers of the threads for which the kernel reveals them.
pub fn stack_pointers(pid: i32) -> Vec<u64> {
    proc::threads(pid)
        .into_iter()
        .take(MAX_THREADS)
        .filter_map(|tid| String::from_utf8(proc::file(pid, &format!("task/{tid}/syscall"))?).ok())
        // The format is: number, six arguments, stack pointer, program counter; "-1 sp pc"; or
        // "running".
        .filter_map(|text| {
            let mut words = text.split_ascii_whitespace().rev();
            let pointer = words.nth(1)?;
            u64::from_str_radix(pointer.strip_prefix("0x")?, 16).ok()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mapping_has_its_purpose() {
        let text = "1000-2000 r-xp 0 08:01 5  /usr/bin/x y\nSize: 4 kB\nRss:   4 kB\nSwap: 1 kB\n\
            2000-3000 rw-p 0 08:01 5 /usr/bin/x y\nRss: 8 kB\n\
            3000-4000 rw-p 0 00:00 0 \nRss: 16 kB\nSwap: 2 kB\n\
            5000-6000 rw-p 0 00:00 0 \nRss: 32 kB\n\
            7000-8000 rw-p 0 00:00 0          [stack]\nRss: 64 kB\n\
            8000-9000 rw-s 0 00:1a 7 /dev/shm/mem_profiler.1.2.0\nRss: 128 kB\n\
            9000-a000 r-xp 0 08:01 9 /opt/libmp.so\nRss: 256 kB\nVmFlags: rd ex\n";
        let resident = parse(text.as_bytes(), &[0x5800], Some(Path::new("/opt/libmp.so"))).unwrap();
        let kb = |n: u64| n * 1024;
        let expected = Resident {
            code: kb(4),
            files: kb(8),
            anonymous: kb(16),
            stacks: kb(96),
            agent: kb(384),
            swap: kb(3),
        };
        assert_eq!(resident, expected);
        assert_eq!(resident.total(), kb(508));
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
        let resident = read(pid, &stack_pointers(pid)).unwrap();
        assert!(resident.code > 0 && resident.stacks > 0 && resident.anonymous > 0);
    }
}
