//! Writes heap dumps.

use std::borrow::Borrow;
use std::io::{self, Write};
use std::iter;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use super::numbers::{HEX_ROOM, HexText, write_decimal, write_fraction};
use super::split::{Record, split};
use crate::printable::replace_hidden;

use super::facts::{self, version};
use super::{
    END, FIRST_WITH_AGE_SPREADS, MAX_FIELDS, MIN_REPEATED_FIELDS, NO_SPREAD, SIGNATURE, STACK,
};
use crate::detail::{Detail, FIELDS};
use crate::leaks::Lost;
use crate::marker::HEAP_MARKERS;
use crate::profile::Profile;
use crate::python::PYTHON;
use crate::scale::weight;

/// Writes `profile` as a dump.
///
/// Guarantees: pprof, jeprof and google-pprof read the profile's totals from it, within rounding.
/// This crate reads back the exact values, facts, modules and symbols.
///
/// Requires a heap profile, with at least the columns `inuse_objects` and `inuse_space`. Returns an
/// error for others.
pub fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let text = Text::new(profile)?;
    let mut buffer = Vec::new();
    for piece in 0..text.pieces() {
        buffer.clear();
        text.piece(piece, &mut buffer);
        out.write_all(&buffer)?;
    }
    Ok(())
}

/// The text of a dump, in pieces that several threads can format at once. Joined in order, they are
/// what [`write()`] writes.
pub struct Text<P> {
    version: u32,
    profile: P,
    parts: Vec<Part>,
    /// First stack of each part.
    starts: Vec<usize>,
    /// Return address of each location.
    addresses: Vec<HexText>,
}

impl<P: Borrow<Profile>> Text<P> {
    /// Prepares the text of a heap profile. Returns an error for others.
    pub fn new(profile: P) -> io::Result<Self> {
        let heap = profile.borrow();
        let columns = Columns::find(heap).ok_or_else(|| invalid_input("not a heap profile"))?;
        let interval = heap.period.max(1) as u64;
        let groups = groups(heap);
        let lines = |group: &Range<usize>| {
            let estimates = if group.len() == 1 {
                columns.estimates(heap, group.start)
            } else {
                Estimates::new(&sum(&heap.details[group.clone()]))
            };
            (estimates.lines(interval), group.len())
        };
        let parts = groups
            .chunks(PART_STACKS)
            .map(|part| Part::add_up(part.iter().map(lines)));
        let parts = parts.collect();
        Ok(Self::from_parts(profile, parts))
    }

    /// Prepares the text of a heap profile whose records were computed before. `parts` must cover
    /// its stacks in order, with consecutive equal stacks as one group. Returns an error if they do
    /// not.
    pub fn with_parts(profile: P, parts: Vec<Part>) -> io::Result<Self> {
        let heap = profile.borrow();
        let mut start = 0;
        let mut is_group = |length: &u32| {
            let group = start..start + *length as usize;
            start = group.end;
            let fits = group.end <= heap.stacks.len() && group.end <= heap.details.len();
            fits && have_equal_frames(heap, group)
        };
        let equal = parts
            .iter()
            .flat_map(|part| &part.lengths)
            .all(&mut is_group);
        if !equal || start != heap.stacks.len() {
            return Err(invalid_input("not the records of its stacks"));
        }
        Ok(Self::from_parts(profile, parts))
    }

    fn from_parts(profile: P, parts: Vec<Part>) -> Self {
        let locations = profile.borrow().locations.iter();
        let addresses = locations
            .map(|l| HexText::new(l.address.wrapping_add(1)))
            .collect();
        let mut starts = Vec::with_capacity(parts.len());
        let mut start = 0;
        for part in &parts {
            starts.push(start);
            start += part.lengths.iter().map(|&n| n as usize).sum::<usize>();
        }
        Self {
            version: version(profile.borrow()),
            profile,
            parts,
            starts,
            addresses,
        }
    }

    /// Returns the number of pieces, at least one.
    pub fn pieces(&self) -> usize {
        self.parts.len().max(1)
    }

    /// Appends a piece, with the stacks of one [`Part`].
    pub fn piece(&self, piece: usize, out: &mut Vec<u8>) {
        if piece == 0 {
            self.write_head(out);
        }
        if let Some(part) = self.parts.get(piece) {
            self.write_stacks(self.starts[piece], part, out);
        }
        if piece + 1 == self.pieces() {
            self.write_tail(out);
        }
    }

    fn write_head(&self, out: &mut Vec<u8>) {
        let mut total = [Record::default(); 2];
        self.parts
            .iter()
            .for_each(|part| add(&mut total, &part.total));
        out.extend_from_slice(b"heap profile: ");
        write_totals(out, &total);
        out.extend_from_slice(b"@ heap_v2/");
        write_decimal(out, self.profile.borrow().period.max(1) as u64);
        out.push(b'\n');
        out.extend_from_slice(SIGNATURE);
        write_decimal(out, self.version.into());
        out.push(b'\n');
    }

    fn write_stacks(&self, mut start: usize, part: &Part, out: &mut Vec<u8>) {
        let profile = self.profile.borrow();
        for ([first, second], &length) in part.lines.iter().zip(&part.lengths) {
            let frames = profile.stacks.get(start);
            write_line(out, first, frames, &self.addresses);
            if *second != [Record::default(); 2] {
                write_line(out, second, frames, &self.addresses);
            }
            let group = start..start + length as usize;
            start = group.end;
            let min_fields = iter::once(0).chain(iter::repeat(MIN_REPEATED_FIELDS));
            for (stack, min_fields) in group.zip(min_fields) {
                if let Some(detail) = profile.details.get(stack) {
                    let thread = profile.threads.get(stack).copied().unwrap_or(0);
                    let lost = profile.losses.get(stack).copied().unwrap_or_default();
                    let mut values = exact_values(detail, thread, lost);
                    if self.version >= FIRST_WITH_AGE_SPREADS {
                        values[MAX_FIELDS - 2..].copy_from_slice(&spread_values(detail));
                    }
                    write_exact_values(out, &values, min_fields);
                }
            }
        }
    }

    fn write_tail(&self, out: &mut Vec<u8>) {
        let profile = self.profile.borrow();
        out.extend_from_slice(b"\nMAPPED_LIBRARIES:\n");
        write_maps(profile, out);
        out.push(b'\n');
        facts::write(profile, out);
        out.extend_from_slice(END);
        out.push(b'\n');
    }
}

/// Returns groups of consecutive equal stacks with exact values, which share their lines.
fn groups(profile: &Profile) -> Vec<Range<usize>> {
    let exact = profile.details.len() == profile.stacks.len();
    let mut groups: Vec<Range<usize>> = Vec::new();
    for stack in 0..profile.stacks.len() {
        match groups.last_mut() {
            Some(group) if exact && have_equal_frames(profile, group.end - 1..stack + 1) => {
                group.end += 1
            }
            _ => groups.push(stack..stack + 1),
        }
    }
    groups
}

/// Returns true if all stacks of a group have the same frames.
fn have_equal_frames(profile: &Profile, mut group: Range<usize>) -> bool {
    let first = group.next().map(|stack| profile.stacks.get(stack));
    group.all(|stack| Some(profile.stacks.get(stack)) == first)
}

fn sum(details: &[Detail]) -> Detail {
    let mut sum = Detail::default();
    details.iter().for_each(|detail| sum.add(detail));
    sum
}

fn invalid_input(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

/// Live and allocated record of each of the two lines of a stack.
type Lines = [[Record; 2]; 2];

/// Maximum number of groups of equal stacks in a [`Part`].
pub const PART_STACKS: usize = 1024;

/// Records of some stacks. Computing them takes most of the time of writing a dump, and requires only
/// the stacks' values, not their frames.
pub struct Part {
    lines: Vec<Lines>,
    /// Number of stacks in each group.
    lengths: Vec<u32>,
    /// Sum of all live and of all allocated records.
    total: [Record; 2],
}

impl Part {
    /// Computes the records of groups of equal stacks, sampled once every `interval` bytes. Each
    /// group is given as the sum of its values and its number of stacks.
    pub fn new(groups: impl Iterator<Item = (Detail, usize)>, interval: u64) -> Self {
        Self::add_up(groups.map(|(sum, length)| (Estimates::new(&sum).lines(interval), length)))
    }

    fn add_up(groups: impl Iterator<Item = (Lines, usize)>) -> Self {
        let mut part = Self {
            lines: Vec::with_capacity(PART_STACKS),
            lengths: Vec::with_capacity(PART_STACKS),
            total: [Record::default(); 2],
        };
        for (lines, length) in groups {
            part.lines.push(lines);
            part.lengths.push(length as u32);
        }
        for record in part.lines.iter().flatten() {
            add(&mut part.total, record);
        }
        part
    }
}

fn add(total: &mut [Record; 2], more: &[Record; 2]) {
    for (sum, part) in total.iter_mut().zip(more) {
        sum.count = sum.count.saturating_add(part.count);
        sum.size = sum.size.saturating_add(part.size);
    }
}

/// Live or allocated estimates of a stack.
#[derive(PartialEq)]
struct Estimate {
    samples: u64,
    objects: f64,
    bytes: f64,
}

/// Indices of a column of objects and the column of their bytes.
#[derive(Clone, Copy)]
struct Pair {
    objects: usize,
    bytes: usize,
}

/// Columns of a heap profile.
struct Columns {
    live: Pair,
    allocated: Pair,
}

impl Columns {
    fn find(profile: &Profile) -> Option<Self> {
        let column = |name: &str| profile.type_index(name);
        let live = |name: &str| column(name).or_else(|| column(name.strip_prefix("inuse_")?));
        let live = Pair {
            objects: live("inuse_objects")?,
            bytes: live("inuse_space")?,
        };
        let allocated = column("alloc_objects").zip(column("alloc_space"));
        let allocated = allocated.map_or(live, |(objects, bytes)| Pair { objects, bytes });
        Some(Self { live, allocated })
    }

    /// Returns the live and allocated estimates of a stack.
    fn estimates(&self, profile: &Profile, stack: usize) -> Estimates {
        if let Some(detail) = profile.details.get(stack) {
            return Estimates::new(detail);
        }
        let values = profile.values_of(stack);
        Estimates([self.live, self.allocated].map(|Pair { objects, bytes }| {
            let objects = values[objects] as f64;
            let bytes = values[bytes] as f64;
            let samples = objects / weight(bytes / objects / profile.period.max(1) as f64);
            Estimate {
                samples: samples.round() as u64,
                objects,
                bytes,
            }
        }))
    }
}

/// Live and allocated estimates of a stack.
struct Estimates([Estimate; 2]);

impl Estimates {
    fn new(d: &Detail) -> Self {
        let live = (d.live_samples(), d.live_objects(), d.live_bytes());
        let allocated = (d.alloc_samples, d.alloc_objects, d.alloc_bytes);
        Self([live, allocated].map(|(samples, objects, bytes)| Estimate {
            samples,
            objects,
            bytes,
        }))
    }

    fn lines(&self, interval: u64) -> Lines {
        let Self([live, allocated]) = self;
        let records = |e: &Estimate| split(e.samples, e.objects, e.bytes, interval);
        let live_records = records(live);
        let allocated_records = if live == allocated {
            live_records
        } else {
            records(allocated)
        };
        [0, 1].map(|line| [live_records[line], allocated_records[line]])
    }
}

fn write_totals(buffer: &mut Vec<u8>, [live, allocated]: &[Record; 2]) {
    write_decimal(buffer, live.count);
    buffer.extend_from_slice(b": ");
    write_decimal(buffer, live.size);
    buffer.extend_from_slice(b" [");
    write_decimal(buffer, allocated.count);
    buffer.extend_from_slice(b": ");
    write_decimal(buffer, allocated.size);
    buffer.extend_from_slice(b"] ");
}

fn write_line(buffer: &mut Vec<u8>, record: &[Record; 2], frames: &[u32], addresses: &[HexText]) {
    write_totals(buffer, record);
    buffer.push(b'@');
    let start = buffer.len();
    buffer.resize(start + (frames.len() + 1) * HEX_ROOM, 0);
    let room = &mut buffer[start..];
    let end = frames
        .iter()
        .fold(0, |at, &frame| addresses[frame as usize].write(room, at));
    room[end] = b'\n';
    buffer.truncate(start + end + 1);
}

/// Returns the exact values of a stack in the order of a dump, without the spread of ages.
fn exact_values(detail: &Detail, thread: u32, lost: Lost) -> [f64; MAX_FIELDS] {
    let mut values = [0.0; MAX_FIELDS];
    values[..FIELDS].copy_from_slice(&detail.to_fields());
    let [how, group] = lost.to_numbers();
    let more = [thread, how, group].map(f64::from);
    values[FIELDS..FIELDS + more.len()].copy_from_slice(&more);
    values
}

/// Returns the spread of ages as the last values of a dump's line.
fn spread_values(detail: &Detail) -> [f64; 2] {
    match (detail.live_samples(), detail.age_spread) {
        (0, _) => [0.0; 2],
        (_, None) => [NO_SPREAD, 0.0],
        (_, Some(spread)) => [spread.squares.max(0.0), spread.deviations],
    }
}

/// Writes the exact values of a stack without trailing zeros, but at least `min_fields` of them.
fn write_exact_values(buffer: &mut Vec<u8>, values: &[f64], min_fields: usize) {
    buffer.extend_from_slice(STACK);
    let last = values.iter().rposition(|&value| value != 0.0);
    let used = last.map_or(min_fields, |at| min_fields.max(at + 1));
    for &value in &values[..used] {
        buffer.push(b' ');
        write_fraction(buffer, value);
    }
    buffer.push(b'\n');
}

/// Writes the maps text, or one generated from the modules. Adds ranges for the pseudo-frames, so
/// that other readers have names for them.
fn write_maps(profile: &Profile, buffer: &mut Vec<u8>) {
    let text = &profile.facts.maps_text;
    if text.is_empty() {
        for m in profile.mappings.iter().filter(|m| !m.past) {
            let range = format!("{:x}-{:x} r-xp {:08x}", m.start, m.end, m.file_offset);
            buffer.extend_from_slice(range.as_bytes());
            buffer.extend_from_slice(b" 00:00 0 ");
            // A newline in a path would start another entry.
            replace_hidden(buffer, m.path.as_os_str().as_bytes(), b"");
            buffer.push(b'\n');
        }
    } else {
        replace_hidden(buffer, text.trim_ascii_end(), b"\n\t");
        buffer.push(b'\n');
    }
    let mut mappings = profile.mappings.iter();
    let python = mappings.find(|m| m.path.as_os_str() == PYTHON);
    // A maps text that was read from a dump already has the entry.
    let mut lines = text.split(|byte| *byte == b'\n');
    let is_listed = text.is_empty() || lines.any(|line| line.ends_with(PYTHON.as_bytes()));
    if !is_listed && let Some(m) = python {
        let entry = format!("{:x}-{:x} r-xp 00000000 00:00 0 {PYTHON}\n", m.start, m.end);
        buffer.extend_from_slice(entry.as_bytes());
    }
    let used = |start: u64| profile.locations.iter().any(|l| l.address == start);
    for marker in HEAP_MARKERS.iter().filter(|m| used(m.address)) {
        let name = marker.name.replace(' ', "_");
        let start = marker.address;
        let end = marker.address + marker.len;
        let entry = format!("{start:08x}-{end:08x} r-xp 00000000 00:00 0 {name}\n");
        buffer.extend_from_slice(entry.as_bytes());
    }
}
