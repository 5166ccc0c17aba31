//! `/proc/PID/smaps`: which memory is resident, by what it is for.

use std::fs::File;
use std::io::{BufRead, BufReader};

use serde::Serialize;

/// Bytes resident, by kind of mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Resident {
    /// Executable mappings of files.
    pub code: u64,
    /// Other mappings of files, shared memory included.
    pub files: u64,
    /// Stacks of threads, as far as they can be told from other memory.
    pub stacks: u64,
    /// Memory without a file: the allocator's, and what the program maps by itself.
    pub anonymous: u64,
    /// The agent: its code and data, and the segment.
    pub agent: u64,
    /// Swapped out.
    pub swap: u64,
}

impl Resident {
    /// All that is resident.
    pub fn total(&self) -> u64 {
        self.code + self.files + self.stacks + self.anonymous + self.agent
    }
}

/// Reads the smaps of a process; `stacks` are addresses inside threads' stacks.
pub fn read(pid: i32, stacks: &[u64]) -> std::io::Result<Resident> {
    let file = File::open(format!("/proc/{pid}/smaps"))?;
    parse(BufReader::new(file), stacks)
}

/// What a mapping is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    File,
    Stack,
    Anonymous,
    Agent,
}

fn parse(reader: impl BufRead, stacks: &[u64]) -> std::io::Result<Resident> {
    let mut sums = Resident::default();
    let mut kind = Kind::Anonymous;
    // Paths may hold any byte.
    for line in reader.split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        let Some((name, value)) = line.split_once(' ') else {
            continue;
        };
        if let Some(field) = name.strip_suffix(':') {
            let kilobytes = value
                .trim()
                .trim_end_matches(" kB")
                .parse::<u64>()
                .unwrap_or(0);
            let bytes = kilobytes.saturating_mul(1024);
            match field {
                "Rss" => *sums.of(kind) += bytes,
                "Swap" => sums.swap += bytes,
                _ => {}
            }
        } else if let Some(range) = range(name) {
            kind = kind_of(range, value, stacks);
        }
    }
    Ok(sums)
}

impl Resident {
    fn of(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Code => &mut self.code,
            Kind::File => &mut self.files,
            Kind::Stack => &mut self.stacks,
            Kind::Anonymous => &mut self.anonymous,
            Kind::Agent => &mut self.agent,
        }
    }
}

fn range(text: &str) -> Option<(u64, u64)> {
    let (start, end) = text.split_once('-')?;
    Some((
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    ))
}

/// `rest`: permissions, offset, device, inode, path.
fn kind_of((start, end): (u64, u64), rest: &str, stacks: &[u64]) -> Kind {
    let mut fields = rest.splitn(5, ' ');
    let permissions = fields.next().unwrap_or("");
    let path = fields.nth(3).unwrap_or("").trim();
    let name = path
        .strip_suffix(" (deleted)")
        .unwrap_or(path)
        .rsplit('/')
        .next()
        .unwrap_or("");
    let ours = name == "libmem_agent.so" || name.starts_with("mem_profiler.");
    match path {
        _ if ours && path.starts_with('/') => Kind::Agent,
        "[stack]" => Kind::Stack,
        _ if stacks.iter().any(|sp| (start..end).contains(sp)) => Kind::Stack,
        "[vdso]" | "[vsyscall]" | "[vvar]" => Kind::Code,
        _ if path.starts_with('/') && permissions.contains('x') => Kind::Code,
        _ if path.starts_with('/') => Kind::File,
        _ => Kind::Anonymous,
    }
}

/// An address in each thread's stack: the stack pointer, where the kernel tells it.
pub fn stack_pointers(pid: i32) -> Vec<u64> {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .flatten()
        .take(100_000)
        .filter_map(|task| std::fs::read_to_string(task.path().join("syscall")).ok())
        // number, six arguments, stack pointer, program counter; "-1 sp pc"; or "running".
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
    fn mappings_are_told_apart() {
        let text = "1000-2000 r-xp 0 08:01 5  /usr/bin/x y\nSize: 4 kB\nRss:   4 kB\nSwap: 1 kB\n\
            2000-3000 rw-p 0 08:01 5 /usr/bin/x y\nRss: 8 kB\n\
            3000-4000 rw-p 0 00:00 0 \nRss: 16 kB\nSwap: 2 kB\n\
            5000-6000 rw-p 0 00:00 0 \nRss: 32 kB\n\
            7000-8000 rw-p 0 00:00 0          [stack]\nRss: 64 kB\n\
            8000-9000 rw-s 0 00:1a 7 /dev/shm/mem_profiler.1.2.0\nRss: 128 kB\n\
            9000-a000 r-xp 0 08:01 9 /opt/libmem_agent.so\nRss: 256 kB\nVmFlags: rd ex\n";
        let resident = parse(text.as_bytes(), &[0x5800]).unwrap();
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
    fn own_memory_adds_up() {
        let pid = std::process::id() as i32;
        let resident = read(pid, &stack_pointers(pid)).unwrap();
        assert!(resident.code > 0 && resident.stacks > 0 && resident.anonymous > 0);
    }
}
