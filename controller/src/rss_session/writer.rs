//! Assigns the memory of a process to stacks, and writes its profile.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::time::Duration;

use cpu::faults::{ByOrigin, Origin};
use cpu::kernel::Symbols;
use cpu::{Faults, Process};
use mem_agents::output::Output;
use mem_agents::thread_stacks::Stacks;
use mem_agents::{room, text, unreadable};
use profile::cpu::Frame;
use profile::rss::{Bytes, MappingLabels, RssBuilder};

use super::{Written, kind};
use crate::cpu_session::{Description, facts, location, modules};
use crate::smaps::{self, Area};

/// Facts about a session that hold for all its processes.
pub struct Session {
    /// Start, in nanoseconds since the Unix epoch.
    pub start_unix_ns: u64,
    /// Number of lost samples.
    pub lost: u64,
    /// True if faults that the kernel takes for the processes are not sampled.
    pub hides_kernel: bool,
}

/// Memory of a process.
#[derive(Debug, Default)]
struct Memory {
    /// Memory by origin and mapping.
    rows: BTreeMap<(Origin, MappingLabels), Bytes>,
    /// Resident memory, in bytes.
    resident: u64,
    /// Part of `resident` that was resident before the session.
    before: u64,
    /// Part of `resident` that appeared during the session without a sample.
    not_sampled: u64,
}

impl Memory {
    fn add(&mut self, origin: Origin, place: &MappingLabels, resident: u64, swapped: u64) {
        self.resident += resident;
        match origin {
            Origin::Stack(_) => {}
            Origin::Before => self.before += resident,
            Origin::NotSampled => self.not_sampled += resident,
        }
        let row = self.rows.entry((origin, place.clone())).or_default();
        row.resident += resident;
        row.swapped += swapped;
    }

    /// Sets how many bytes each stack has touched, from pairs of leaf node and bytes. Touched
    /// memory that no longer exists gets a row without a mapping.
    fn set_touched(&mut self, touched: impl Iterator<Item = (u32, u64)>) {
        let mut existing: HashMap<u32, u64> = HashMap::new();
        for ((origin, _), row) in &mut self.rows {
            if let Origin::Stack(node) = *origin {
                row.touched = row.resident + row.swapped;
                *existing.entry(node).or_default() += row.touched;
            }
        }
        for (node, bytes) in touched {
            let existing = existing.get(&node).copied().unwrap_or(0);
            if bytes > existing {
                let row = self
                    .rows
                    .entry((Origin::Stack(node), MappingLabels::default()))
                    .or_default();
                row.touched = bytes - existing;
            }
        }
    }
}

/// Memory of a program at one moment.
pub struct Snapshot {
    memory: Memory,
    description: Description,
    /// Counters of the kernel, in bytes.
    counters: Vec<(&'static str, u64)>,
    /// Time since the session began.
    time: Duration,
    /// True if the process has ended since.
    has_ended: bool,
}

impl Snapshot {
    /// Reads the memory of a running process. `time` is that since the session began.
    pub fn read(process: &Process, faults: &mut Faults, time: Duration) -> io::Result<Self> {
        let description =
            Description::read(process.pid).unwrap_or_else(|| Description::from_mappings(process));
        Ok(Self {
            memory: read_memory(process, faults)?,
            description,
            counters: proc::memory_counters(process.pid),
            time,
            has_ended: false,
        })
    }

    /// Returns the snapshot as one of a process that has ended since.
    pub fn of_ended_process(self) -> Self {
        Self {
            has_ended: true,
            ..self
        }
    }

    /// Returns the time between the session's beginning and the snapshot.
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Returns the resident memory, in bytes.
    pub fn resident(&self) -> u64 {
        self.memory.resident
    }
}

impl Session {
    /// Writes the profile of a program's memory at one moment.
    pub fn write(
        &self,
        process: &Process,
        symbols: &Symbols,
        snapshot: &Snapshot,
        output: &Output,
    ) -> io::Result<Written> {
        let pid = process.pid;
        let Snapshot {
            memory,
            description,
            ..
        } = snapshot;
        let write = |number: u64, file: &mut std::fs::File| {
            let mut builder = RssBuilder::new();
            modules(process).for_each(|module| builder.module(module));
            let mut facts = facts(
                process,
                description,
                number,
                self.start_unix_ns,
                snapshot.time,
            );
            let counters = snapshot.counters.iter();
            facts.memory = counters.map(|(name, n)| ((*name).to_owned(), *n)).collect();
            builder.facts(facts);
            add_rows(process, symbols, memory, &mut builder);
            let profile = builder.finish();
            let encode = |out: &mut dyn Write| {
                let mut out = BufWriter::new(out);
                profile::rss::write(&profile, &mut out)?;
                out.flush()
            };
            match encode(file) {
                Err(error) if room::is_short(&error) => {
                    let needed = room::measure(|mut out| encode(&mut out))?;
                    Err(room::short_of(needed))
                }
                result => result,
            }
        };
        let path = output.write(&description.name, pid, write)?;
        Ok(Written {
            path,
            pid,
            title: description.title(pid),
            resident: memory.resident,
            remark: self.remark(process, snapshot),
        })
    }

    /// Formats one line about a profile.
    fn remark(&self, process: &Process, snapshot: &Snapshot) -> String {
        let bytes = |bytes: u64| text::bytes(bytes as f64);
        let memory = &snapshot.memory;
        let touched = memory.resident - memory.before - memory.not_sampled;
        let length = text::short_time(snapshot.time);
        let samples = process.counts.samples;
        let moment = if snapshot.has_ended {
            " at the highest reading before it ended"
        } else {
            ""
        };
        let mut parts = vec![format!(
            "{} resident{moment}, of which {} touched in {length} ({}), {} before",
            bytes(memory.resident),
            bytes(touched),
            text::count(samples, "sample", "samples"),
            bytes(memory.before),
        )];
        if memory.not_sampled > 0 {
            parts.push(format!("{} without a sample", bytes(memory.not_sampled)));
        }
        if samples > 0 {
            let complete = samples - process.counts.all_truncated().min(samples);
            let share = 100.0 * complete as f64 / samples as f64;
            parts.push(format!("{share:.1} % of stacks complete"));
        }
        match self.lost {
            0 => {}
            lost => parts.push(text::count(lost, "sample lost", "samples lost")),
        }
        if self.hides_kernel {
            parts.push("kernel hidden".to_owned());
        }
        if proc::setting("numa_balancing").is_some_and(|mode| mode > 0) {
            parts.push(
                "memory that the kernel moves between NUMA nodes counts for its last user"
                    .to_owned(),
            );
        }
        parts.join(", ")
    }
}

/// Reads which pages of a process are resident or swapped out, and assigns them to origins.
fn read_memory(process: &Process, faults: &mut Faults) -> io::Result<Memory> {
    let pid = process.pid;
    let unreadable = |file: &str, error: &io::Error| {
        io::Error::other(unreadable::explain(&proc::path_of_memory(pid, file), error))
    };
    let stacks = Stacks::of(pid);
    let mut areas = smaps::areas(pid).map_err(|error| unreadable("smaps", &error))?;
    areas.retain(|area| area.rss > 0 || area.swap > 0);
    // Huge pages of hugetlbfs and memory of devices have entries in the page table, but are not
    // resident memory.
    let (scanned, unscanned): (Vec<Area>, Vec<Area>) = areas
        .into_iter()
        .partition(|area| !area.is_hugetlb && !area.is_device);
    let ranges: Vec<Range<u64>> = scanned.iter().map(|area| area.start..area.end).collect();
    let assigned: Vec<ByOrigin> = faults.assign(process.serial, &ranges).ok_or_else(|| {
        io::Error::other(format!(
            "{} cannot be read: it has ended, or executes another program",
            proc::path_of_memory(pid, "pagemap")
        ))
    })?;
    let size = proc::page_size();
    let mut memory = Memory::default();
    for (area, origins) in scanned.iter().zip(assigned) {
        let place = kind::place(area, &stacks);
        for (origin, count) in origins {
            memory.add(origin, &place, count.resident * size, count.swapped * size);
        }
    }
    for area in &unscanned {
        let place = kind::place(area, &stacks);
        memory.add(Origin::NotSampled, &place, area.rss, area.swap);
    }
    let touched = faults.touched(process.serial).into_iter();
    memory.set_touched(touched.map(|(node, pages)| (node, pages.saturating_mul(size))));
    Ok(memory)
}

fn add_rows(process: &Process, symbols: &Symbols, memory: &Memory, builder: &mut RssBuilder) {
    let mut frames = Vec::new();
    for ((origin, place), bytes) in &memory.rows {
        match *origin {
            Origin::Stack(node) => {
                let thread = process.stacks.frames(node, &mut frames);
                let locations: Vec<_> = frames
                    .iter()
                    .map(|frame| location(process, symbols, *frame, builder.frames()))
                    .collect();
                if !locations.is_empty() {
                    builder.stack(&locations, *bytes, place, thread);
                    continue;
                }
                builder.without_stack(Frame::Truncated, *bytes, place);
            }
            Origin::Before => builder.without_stack(Frame::ResidentBefore, *bytes, place),
            Origin::NotSampled => builder.without_stack(Frame::NotSampled, *bytes, place),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_touched_and_freed_is_a_row_of_its_own() {
        let mut memory = Memory::default();
        let heap = MappingLabels {
            kind: "heap".into(),
            mapping: String::new(),
        };
        memory.add(Origin::Stack(3), &heap, 4096, 8192);
        memory.add(Origin::Before, &heap, 100, 0);
        memory.add(Origin::NotSampled, &heap, 10, 0);
        // The last stack has touched less than what is assigned to it, which is an estimate.
        memory.add(Origin::Stack(5), &heap, 4096, 0);
        memory.set_touched([(3, 20_000), (4, 7), (5, 1)].into_iter());
        assert_eq!(memory.resident, 4096 + 100 + 10 + 4096);
        assert_eq!((memory.before, memory.not_sampled), (100, 10));
        let row = |node, place: &MappingLabels| memory.rows[&(Origin::Stack(node), place.clone())];
        let existing = Bytes {
            resident: 4096,
            swapped: 8192,
            touched: 4096 + 8192,
        };
        assert_eq!(row(3, &heap), existing);
        let gone = |touched| Bytes {
            touched,
            ..Bytes::default()
        };
        assert_eq!(
            row(3, &MappingLabels::default()),
            gone(20_000 - 4096 - 8192)
        );
        assert_eq!(row(4, &MappingLabels::default()), gone(7));
        assert_eq!(row(5, &heap).touched, 4096);
        assert_eq!(memory.rows.len(), 6);
    }
}
