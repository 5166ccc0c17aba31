//! Writing a dump.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use super::numbers::{HEX_ROOM, HexText, decimal, fraction};
use super::split::{Record, split};
use super::{END, SIGNATURE, STACK, VERSION, facts};
use crate::profile::{MARKERS, Profile};
use crate::scale::weight;

const BUFFER: usize = 1 << 20;

/// Writes `profile` as a dump.
///
/// Promises: the scaled totals that pprof, jeprof and google-pprof read are
/// the profile's within rounding, and this crate reads back exact values,
/// facts, modules and symbols.
///
/// Needs a heap profile: one with the columns `inuse_objects` and
/// `inuse_space` at least. Others are refused.
pub fn write(profile: &Profile, out: &mut impl Write) -> io::Result<()> {
    let records = Records::new(profile)?;
    let mut buffer = Vec::with_capacity(BUFFER + (BUFFER >> 2));
    buffer.extend_from_slice(b"heap profile: ");
    totals(&mut buffer, &records.total);
    buffer.extend_from_slice(b"@ heap_v2/");
    decimal(&mut buffer, profile.period.max(1) as u64);
    buffer.push(b'\n');
    buffer.extend_from_slice(SIGNATURE);
    decimal(&mut buffer, VERSION.into());
    buffer.push(b'\n');
    stacks(profile, &records, &mut buffer, out)?;
    buffer.extend_from_slice(b"\nMAPPED_LIBRARIES:\n");
    maps(profile, &mut buffer);
    buffer.push(b'\n');
    facts::write(profile, &mut buffer);
    buffer.extend_from_slice(END);
    buffer.push(b'\n');
    out.write_all(&buffer)
}

/// In-use and allocated records of a stack, as many as it has lines.
type Lines = [[Record; 2]; 2];

struct Records {
    stacks: Vec<Lines>,
    total: [Record; 2],
}

impl Records {
    fn new(profile: &Profile) -> io::Result<Self> {
        let columns = Columns::find(profile)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not a heap profile"))?;
        let mut stacks = vec![Lines::default(); profile.stacks.len()];
        let of_part = &|first: usize, part: &mut [Lines]| {
            for (i, lines) in part.iter_mut().enumerate() {
                *lines = columns.lines(profile, first + i);
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS));
        let part = stacks.len().div_ceil(threads).max(PART);
        std::thread::scope(|scope| {
            let mut parts = stacks.chunks_mut(part).enumerate();
            // The first is this thread's own.
            let own = parts.next();
            for (number, stacks) in parts {
                scope.spawn(move || of_part(number * part, stacks));
            }
            own.into_iter().for_each(|(_, stacks)| of_part(0, stacks));
        });
        let mut total = [Record::default(); 2];
        for record in stacks.iter().flatten() {
            for (sum, part) in total.iter_mut().zip(record) {
                sum.count = sum.count.saturating_add(part.count);
                sum.size = sum.size.saturating_add(part.size);
            }
        }
        Ok(Self { stacks, total })
    }
}

/// Most threads that find records.
const THREADS: usize = 4;
/// Stacks that are worth a thread.
const PART: usize = 4096;

/// What one side of a stack, live or allocated, is estimated to hold.
#[derive(PartialEq)]
struct Estimate {
    samples: u64,
    objects: f64,
    bytes: f64,
}

/// Where the values of a heap profile stand.
struct Columns {
    live: (usize, usize),
    allocated: (usize, usize),
}

impl Columns {
    fn find(profile: &Profile) -> Option<Self> {
        let column = |name: &str| profile.type_index(name);
        let live = |name: &str| column(name).or_else(|| column(name.strip_prefix("inuse_")?));
        let live = (live("inuse_objects")?, live("inuse_space")?);
        let allocated = column("alloc_objects")
            .zip(column("alloc_space"))
            .unwrap_or(live);
        Some(Self { live, allocated })
    }

    /// The records of a stack.
    fn lines(&self, profile: &Profile, stack: usize) -> Lines {
        let interval = profile.period.max(1) as u64;
        let [live, allocated] = self.estimates(profile, stack);
        let records = |e: &Estimate| split(e.samples, e.objects, e.bytes, interval);
        let live_records = records(&live);
        let allocated_records = if live == allocated {
            live_records
        } else {
            records(&allocated)
        };
        [0, 1].map(|line| [live_records[line], allocated_records[line]])
    }

    /// Live and allocated estimates of a stack.
    fn estimates(&self, profile: &Profile, stack: usize) -> [Estimate; 2] {
        if let Some(d) = profile.details.get(stack) {
            let live = (d.live_samples(), d.live_objects(), d.live_bytes());
            let allocated = (d.alloc_samples, d.alloc_objects, d.alloc_bytes);
            return [live, allocated].map(|(samples, objects, bytes)| Estimate {
                samples,
                objects,
                bytes,
            });
        }
        let values = profile.values_of(stack);
        [self.live, self.allocated].map(|(objects, bytes)| {
            let (objects, bytes) = (values[objects] as f64, values[bytes] as f64);
            let samples = objects / weight(bytes / objects / profile.period.max(1) as f64);
            Estimate {
                samples: samples.round() as u64,
                objects,
                bytes,
            }
        })
    }
}

fn totals(buffer: &mut Vec<u8>, [live, allocated]: &[Record; 2]) {
    decimal(buffer, live.count);
    buffer.extend_from_slice(b": ");
    decimal(buffer, live.size);
    buffer.extend_from_slice(b" [");
    decimal(buffer, allocated.count);
    buffer.extend_from_slice(b": ");
    decimal(buffer, allocated.size);
    buffer.extend_from_slice(b"] ");
}

fn stacks(
    profile: &Profile,
    records: &Records,
    buffer: &mut Vec<u8>,
    out: &mut impl Write,
) -> io::Result<()> {
    let addresses: Vec<HexText> = profile
        .locations
        .iter()
        .map(|l| HexText::new(l.address.wrapping_add(1)))
        .collect();
    for (i, [first, second]) in records.stacks.iter().enumerate() {
        let frames = profile.stacks.get(i);
        line(buffer, first, frames, &addresses);
        if *second != [Record::default(); 2] {
            line(buffer, second, frames, &addresses);
        }
        if let Some(detail) = profile.details.get(i) {
            exact(buffer, &detail.to_fields());
        }
        if buffer.len() >= BUFFER {
            out.write_all(buffer)?;
            buffer.clear();
        }
    }
    Ok(())
}

fn line(buffer: &mut Vec<u8>, record: &[Record; 2], frames: &[u32], addresses: &[HexText]) {
    totals(buffer, record);
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

fn exact(buffer: &mut Vec<u8>, fields: &[f64]) {
    buffer.extend_from_slice(STACK);
    let used = fields
        .iter()
        .rposition(|&f| f != 0.0)
        .map_or(0, |at| at + 1);
    for &field in &fields[..used] {
        buffer.push(b' ');
        fraction(buffer, field);
    }
    buffer.push(b'\n');
}

/// The maps text, or one made of the modules, with ranges for the
/// pseudo-frames, so that other readers have a name for these.
fn maps(profile: &Profile, buffer: &mut Vec<u8>) {
    let text = &profile.facts.maps_text;
    if text.is_empty() {
        for m in profile.mappings.iter().filter(|m| !m.past) {
            let range = format!("{:x}-{:x} r-xp {:08x}", m.start, m.end, m.file_offset);
            buffer.extend_from_slice(range.as_bytes());
            buffer.extend_from_slice(b" 00:00 0 ");
            // A newline in a path would start another entry.
            let path = m.path.as_os_str().as_bytes();
            buffer.extend(path.iter().map(|&c| if c == b'\n' { b'?' } else { c }));
            buffer.push(b'\n');
        }
    } else {
        buffer.extend_from_slice(text.trim_ascii_end());
        buffer.push(b'\n');
    }
    let used = |start: u64| profile.locations.iter().any(|l| l.address == start);
    for marker in MARKERS.iter().filter(|m| used(m.address)) {
        let name = marker.name.replace(' ', "_");
        let (start, end) = (marker.address, marker.address + marker.len);
        let entry = format!("{start:08x}-{end:08x} r-xp 00000000 00:00 0 {name}\n");
        buffer.extend_from_slice(entry.as_bytes());
    }
}
