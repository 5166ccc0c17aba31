//! gperftools' binary CPU profile: pointer-sized words, then the maps text.
//!
//! ```text
//! 0 3 0 PERIOD 0            the period in microseconds
//! SAMPLES DEPTH PC …        a stack, leaf first; all but the leaf are return addresses
//! 0 1 0                     end
//! ```

mod write;

use std::collections::HashMap;

pub use write::write;

use crate::builder::intern;
use crate::error::Fault;
use crate::intern::Interner;
use crate::maps;
use crate::marker;
use crate::profile::{Format, Profile};
use crate::value_type::ValueType;

/// Functions of the profiler itself, which reports hide.
const PROFILER_FRAMES: &str = "ProfileData::Add|(ProfileData|CpuProfiler)::prof_handler\
    |(__)?pthread_sighandler|__restore|__restore_rt";

/// Byte order and size of the file's words.
#[derive(Clone, Copy)]
struct Layout {
    size: usize,
    big: bool,
}

impl Layout {
    const ALL: [Layout; 4] = [
        Layout {
            size: 8,
            big: false,
        },
        Layout { size: 8, big: true },
        Layout {
            size: 4,
            big: false,
        },
        Layout { size: 4, big: true },
    ];

    fn word(self, bytes: &mut &[u8]) -> Option<u64> {
        let (word, rest) = bytes.split_at_checked(self.size)?;
        *bytes = rest;
        let add = |sum: u64, byte: &u8| (sum << 8) | u64::from(*byte);
        Some(if self.big {
            word.iter().fold(0, add)
        } else {
            word.iter().rev().fold(0, add)
        })
    }

    /// Returns the period in microseconds, if `start` is a header of this layout.
    fn header(self, mut start: &[u8]) -> Option<u64> {
        let mut word = || self.word(&mut start);
        let header = [word()?, word()?, word()?, word()?, word()?];
        (header[..3] == [0, 3, 0] && header[3] > 0 && header[4] == 0).then_some(header[3])
    }
}

/// Size of the largest header, in bytes.
pub(crate) const HEADER_SIZE: usize = 5 * 8;

/// Returns true if a file that starts with these bytes is a CPU profile.
pub(crate) fn looks_like(start: &[u8]) -> bool {
    Layout::ALL
        .iter()
        .any(|layout| layout.header(start).is_some())
}

/// Reads a whole file.
pub(crate) fn read(bytes: &[u8]) -> Result<Profile, Fault> {
    read_until(bytes, End::Trailer)
}

/// Reads the output of `google-pprof --raw` for a profile of any kind. Its samples have no trailer,
/// and no frames of the signal handler.
pub(crate) fn read_raw(bytes: &[u8]) -> Result<Profile, Fault> {
    let mut profile = read_until(bytes, End::OfFile)?;
    if profile.period == RAW_PERIOD {
        // Without a period, it is a heap profile, whose sample counts are bytes.
        profile.default_type = 0;
    }
    Ok(profile)
}

/// End of the samples.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Trailer,
    /// The end of the file, or a trailer.
    OfFile,
}

/// Period that `google-pprof --raw` writes if the profile has none, in nanoseconds.
const RAW_PERIOD: i64 = 1000;

fn read_until(bytes: &[u8], end: End) -> Result<Profile, Fault> {
    let found = Layout::ALL
        .iter()
        .find_map(|l| Some((*l, l.header(bytes)?)));
    let (layout, period_us) = found.ok_or_else(|| Fault::whole("is not a CPU profile"))?;
    let period = i64::try_from(period_us)
        .ok()
        .and_then(|us| us.checked_mul(1000));
    let period = period.ok_or_else(|| Fault::whole("has an impossible sampling period"))?;
    let mut profile = Profile {
        format: Format::CpuProfile,
        sample_types: vec![
            ValueType::new("samples", "count"),
            ValueType::new("cpu", "nanoseconds"),
        ],
        default_type: 1,
        period,
        period_type: Some(ValueType::new("cpu", "nanoseconds")),
        drop_frames: PROFILER_FRAMES.into(),
        ..Profile::default()
    };
    let mut rest = &bytes[5 * layout.size..];
    let mut records = records(layout, &mut rest, end)?;
    if end == End::Trailer {
        strip_handler(&mut records);
    }
    let mut interner = Interner::new();
    for record in records {
        let count = i64::try_from(record.count).unwrap_or(i64::MAX);
        for address in record.stack {
            let number = intern(&mut profile, &mut interner, address);
            profile.stacks.push_frame(number);
        }
        profile.stacks.close();
        profile.values.extend([count, count.saturating_mul(period)]);
    }
    profile.facts.maps_text = rest.to_vec();
    profile.mappings = maps::parse(&profile.facts.maps_text);
    for mapping in &mut profile.mappings {
        let size = mapping.end.wrapping_sub(mapping.start);
        mapping.start = marker::from_gperftools(mapping.start);
        mapping.end = mapping.start.wrapping_add(size);
    }
    profile.mappings.sort_by_key(|mapping| mapping.start);
    maps::assign(&mut profile);
    Ok(profile)
}

/// A stack and the number of its samples.
struct SampledStack {
    count: u64,
    /// Lookup addresses, leaf first.
    stack: Vec<u64>,
}

/// Reads all records up to the trailer. `rest` is then what follows the trailer.
fn records(layout: Layout, rest: &mut &[u8], end: End) -> Result<Vec<SampledStack>, Fault> {
    let truncated = || Fault::whole("ends in the middle of its samples: it was cut off");
    let mut records = Vec::new();
    loop {
        if end == End::OfFile && rest.is_empty() {
            return Ok(records);
        }
        let count = layout.word(rest).ok_or_else(truncated)?;
        let depth = layout.word(rest).ok_or_else(truncated)?;
        if depth > (rest.len() / layout.size) as u64 {
            return Err(truncated());
        }
        let mut stack = Vec::with_capacity(depth as usize);
        for i in 0..depth {
            let address = layout.word(rest).ok_or_else(truncated)?;
            // The leaf is the interrupted instruction; the others are return addresses.
            let address = marker::from_gperftools(address);
            stack.push(if i == 0 {
                address
            } else {
                address.wrapping_sub(1)
            });
        }
        if count == 0 && stack == [0] {
            return Ok(records);
        }
        records.push(SampledStack { count, stack });
    }
}

/// Removes frames of the signal handler: up to two frames after the leaf that nearly all stacks
/// share, and leaves that occur twice.
fn strip_handler(records: &mut [SampledStack]) {
    let margin = records.len() / 32;
    for _ in 0..2 {
        let mut second: HashMap<u64, usize> = HashMap::new();
        for record in records.iter().filter(|r| r.stack.len() > 1) {
            *second.entry(record.stack[1]).or_default() += 1;
        }
        let shared = second
            .into_iter()
            .find(|&(_, n)| n >= records.len() - margin);
        let Some((address, _)) = shared else { break };
        for record in records
            .iter_mut()
            .filter(|r| r.stack.get(1) == Some(&address))
        {
            record.stack.remove(1);
        }
    }
    for record in records {
        if record.stack.len() > 1 && record.stack[0] == record.stack[1].wrapping_add(1) {
            record.stack.remove(1);
        }
    }
}
