//! Parser of perf records. Each size is checked; malformed records are ignored.

use crate::event::{SAMPLE_ADDRESS, SAMPLE_CALLCHAIN, SAMPLE_PERIOD, SAMPLE_READ};
use crate::registers::{LiveRegisters, MASK};

const MMAP: u32 = 1;
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const READ: u32 = 8;
const SAMPLE: u32 = 9;
const MMAP2: u32 = 10;
const LOST_SAMPLES: u32 = 13;

/// `PERF_RECORD_MISC_COMM_EXEC`
const MISC_EXEC: u16 = 1 << 13;
/// Lowest value in a call chain that marks a change of context and is no address
/// (`PERF_CONTEXT_MAX`).
const FIRST_CONTEXT: u64 = (-4095i64).cast_unsigned();
/// `PERF_SAMPLE_REGS_ABI_32`, `PERF_SAMPLE_REGS_ABI_64`
const ABI_32: u64 = 1;
const ABI_64: u64 = 2;
const PROT_EXEC: u32 = 4;

/// Record that the engine processes.
#[derive(Debug, PartialEq)]
pub(crate) enum Record<'a> {
    /// `PERF_RECORD_SAMPLE`.
    Sample(Sample<'a>),
    /// `PERF_RECORD_READ`: final count of an exited thread's event.
    Clock {
        pid: i32,
        tid: i32,
        id: u64,
        count: u64,
    },
    /// `PERF_RECORD_FORK`: creation of a thread or process.
    Fork {
        pid: i32,
        tid: i32,
        parent: i32,
        parent_tid: i32,
    },
    /// `PERF_RECORD_EXIT` of a thread.
    Exit { pid: i32, tid: i32 },
    /// `PERF_RECORD_COMM` of an exec.
    Exec { pid: i32 },
    /// `PERF_RECORD_MMAP` of executable memory.
    Mapped(Mapped<'a>),
    /// Number of records that did not fit into the ring.
    Lost(u64),
}

/// Sample as written by the kernel.
#[derive(Debug, PartialEq)]
pub(crate) struct Sample<'a> {
    pub pid: i32,
    pub tid: i32,
    /// Id of the opened event. Inherited events have the id of the one they come from.
    pub id: u64,
    /// Address that was accessed, if requested.
    pub address: Option<u64>,
    /// Number of events that the sample stands for, if requested.
    pub period: Option<u64>,
    /// Count of this event for the thread, if requested.
    pub count: Option<u64>,
    /// Kernel call chain, innermost first: 8 bytes each.
    pub kernel: &'a [u8],
    /// User registers. `None` for kernel threads and 32-bit code.
    pub registers: Option<LiveRegisters>,
    /// Copy of the stack, beginning at the stack pointer.
    pub stack: &'a [u8],
    /// True if the copy has the maximum size, so that more of the stack may exist.
    pub stack_is_full: bool,
    /// True if the thread runs 32-bit code.
    pub is_32_bit: bool,
}

/// New executable mapping.
#[derive(Debug, PartialEq)]
pub(crate) struct Mapped<'a> {
    pub pid: i32,
    pub start: u64,
    pub len: u64,
    pub offset: u64,
    pub device: (u32, u32),
    pub inode: u64,
    pub path: &'a [u8],
}

/// Bytes that are parsed from the front.
#[derive(Clone, Copy)]
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn word(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.bytes(8)?.try_into().ok()?))
    }

    fn word32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.bytes(4)?.try_into().ok()?))
    }

    /// Reads a process or thread id.
    fn number(&mut self) -> Option<i32> {
        Some(self.word32()?.cast_signed())
    }
}

/// Time and contents of a record.
type Timed<'a> = (u64, Record<'a>);

/// Function from the id of an event to its `sample_type`.
pub(crate) type SampleTypes<'a> = dyn Fn(u64) -> u64 + 'a;

/// Parses the first record in `bytes`. Returns it (`None` if it is malformed or of a kind that is
/// not used) and the remaining bytes. Returns `None` at the end, or if the record's size is wrong.
pub(crate) fn parse_first<'a>(
    bytes: &'a [u8],
    fields: &SampleTypes<'_>,
) -> Option<(Option<Timed<'a>>, &'a [u8])> {
    let mut cursor = Cursor(bytes);
    let kind = cursor.word32()?;
    let rest = cursor.word32()?.to_ne_bytes();
    let misc = u16::from_ne_bytes([rest[0], rest[1]]);
    let size = usize::from(u16::from_ne_bytes([rest[2], rest[3]]));
    if size < 8 || size > bytes.len() {
        return None;
    }
    let (record, rest) = bytes.split_at(size);
    Some((body(kind, misc, &record[8..], fields), rest))
}

/// Parses the contents of several rings, which end at `ends` in `bytes`. Returns each record with
/// its time and bytes.
pub(crate) fn parse_all<'a>(
    bytes: &'a [u8],
    ends: &[usize],
    fields: &SampleTypes<'_>,
) -> Vec<(u64, &'a [u8], Record<'a>)> {
    let mut records = Vec::new();
    let mut start = 0;
    for &end in ends {
        let mut rest = bytes.get(start..end).unwrap_or_default();
        while let Some((record, after)) = parse_first(rest, fields) {
            let size = rest.len() - after.len();
            records.extend(record.map(|(time, record)| (time, &rest[..size], record)));
            rest = after;
        }
        start = end;
    }
    records
}

fn body<'a>(
    kind: u32,
    misc: u16,
    bytes: &'a [u8],
    fields: &SampleTypes<'_>,
) -> Option<(u64, Record<'a>)> {
    let mut cursor = Cursor(bytes);
    if kind == SAMPLE {
        return sample(cursor, fields);
    }
    // All other records end with pid, tid, time, id.
    let mut trailer = Cursor(cursor.0.get(cursor.0.len().checked_sub(24)?..)?);
    trailer.word()?;
    let time = trailer.word()?;
    let id = trailer.word()?;
    let record = match kind {
        READ => Record::Clock {
            pid: cursor.number()?,
            tid: cursor.number()?,
            id,
            count: cursor.word()?,
        },
        FORK => Record::Fork {
            pid: cursor.number()?,
            parent: cursor.number()?,
            tid: cursor.number()?,
            parent_tid: cursor.number()?,
        },
        EXIT => {
            let pid = cursor.number()?;
            let _parent = cursor.number()?;
            let tid = cursor.number()?;
            Record::Exit { pid, tid }
        }
        COMM if misc & MISC_EXEC != 0 => Record::Exec {
            pid: cursor.number()?,
        },
        MMAP | MMAP2 => Record::Mapped(mapped(cursor, kind)?),
        LOST => {
            cursor.word()?;
            Record::Lost(cursor.word()?)
        }
        LOST_SAMPLES => Record::Lost(cursor.word()?),
        _ => return None,
    };
    Some((time, record))
}

fn sample<'a>(mut cursor: Cursor<'a>, fields: &SampleTypes<'_>) -> Option<(u64, Record<'a>)> {
    let id = cursor.word()?;
    let sample_type = fields(id);
    let _ip = cursor.word()?;
    let pid = cursor.number()?;
    let tid = cursor.number()?;
    let time = cursor.word()?;
    let mut optional = |field: u64| match sample_type & field {
        0 => Some(None),
        _ => cursor.word().map(Some),
    };
    let address = optional(SAMPLE_ADDRESS)?;
    let period = optional(SAMPLE_PERIOD)?;
    let count = optional(SAMPLE_READ)?;
    let kernel = match sample_type & SAMPLE_CALLCHAIN {
        0 => &[][..],
        _ => {
            let count = cursor.word()?;
            cursor.bytes(count.checked_mul(8)?)?
        }
    };
    let abi = cursor.word()?;
    let registers = match abi {
        0 => None,
        _ => {
            let mut values = [0; MASK.count_ones() as usize];
            for value in &mut values {
                *value = cursor.word()?;
            }
            LiveRegisters::of_perf(&values).filter(|_| abi == ABI_64)
        }
    };
    let room = cursor.word()?;
    let stack = cursor.bytes(room)?;
    let used = if room > 0 { cursor.word()? } else { 0 };
    let stack = stack.get(..usize::try_from(used).ok()?)?;
    let sample = Sample {
        pid,
        tid,
        id,
        address,
        period,
        count,
        kernel,
        registers,
        stack,
        stack_is_full: used == room,
        is_32_bit: abi == ABI_32,
    };
    Some((time, Record::Sample(sample)))
}

fn mapped(mut cursor: Cursor<'_>, kind: u32) -> Option<Mapped<'_>> {
    let pid = cursor.number()?;
    cursor.word32()?;
    let start = cursor.word()?;
    let len = cursor.word()?;
    let offset = cursor.word()?;
    let mut device = (0, 0);
    let mut inode = 0;
    if kind == MMAP2 {
        device = (cursor.word32()?, cursor.word32()?);
        inode = cursor.word()?;
        cursor.word()?;
        if cursor.word32()? & PROT_EXEC == 0 {
            return None;
        }
        cursor.word32()?;
    }
    let path = cursor.0.get(..cursor.0.len().checked_sub(24)?)?;
    let end = path.iter().position(|b| *b == 0).unwrap_or(path.len());
    Some(Mapped {
        pid,
        start,
        len,
        offset,
        device,
        inode,
        path: &path[..end],
    })
}

/// Returns the addresses in a kernel call chain, innermost first.
pub(crate) fn kernel_addresses(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let words = bytes.as_chunks().0.iter();
    words
        .map(|word| u64::from_ne_bytes(*word))
        .filter(|word| *word < FIRST_CONTEXT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::SAMPLE_ALWAYS;

    const REGISTERS: usize = MASK.count_ones() as usize;

    /// Returns a record: a header followed by words.
    fn record(kind: u32, misc: u16, words: &[u64]) -> Vec<u8> {
        let size = (8 + words.len() * 8) as u16;
        let mut bytes = kind.to_ne_bytes().to_vec();
        bytes.extend(misc.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    /// Returns two 4-byte numbers as one word.
    fn pair(first: u32, second: u32) -> u64 {
        let [first, second] = [first, second].map(u32::to_ne_bytes);
        u64::from_ne_bytes([first, second].concat().try_into().unwrap())
    }

    fn only(bytes: &[u8], sample_type: u64) -> Option<(u64, Record<'_>)> {
        let (record, rest) = parse_first(bytes, &|_| sample_type).expect("a record");
        assert!(rest.is_empty());
        record
    }

    fn sample_words(room: u64, used: u64) -> Vec<u64> {
        let mut words = vec![
            77,
            0x1000,
            pair(5, 6),
            123,
            456,
            2,
            (-128i64) as u64,
            0xffff_8000,
        ];
        words.push(ABI_64);
        words.extend(0..REGISTERS as u64);
        words.push(room);
        words.extend((0..room / 8).map(|n| 100 + n));
        words.push(used);
        words
    }

    const ALL: u64 = SAMPLE_ALWAYS | SAMPLE_READ | SAMPLE_CALLCHAIN;

    #[test]
    fn a_sample_is_read() {
        let bytes = record(SAMPLE, 0, &sample_words(32, 16));
        let Some((123, Record::Sample(sample))) = only(&bytes, ALL) else {
            panic!("no sample")
        };
        assert_eq!((sample.pid, sample.tid, sample.id), (5, 6, 77));
        assert_eq!(sample.count, Some(456));
        let kernel: Vec<u64> = kernel_addresses(sample.kernel).collect();
        assert_eq!(kernel, [0xffff_8000]);
        assert_eq!(sample.stack.len(), 16);
        assert!(!sample.stack_is_full && sample.registers.is_some() && !sample.is_32_bit);
        let mut words = sample_words(32, 16);
        let registers = words.len() - (REGISTERS + 32 / 8 + 2);
        words[registers - 1] = ABI_32;
        let bytes = record(SAMPLE, 0, &words);
        let Some((_, Record::Sample(sample))) = only(&bytes, ALL) else {
            panic!("no sample")
        };
        assert!(sample.is_32_bit && sample.registers.is_none());
    }

    #[test]
    fn a_sample_of_a_fault_has_its_address() {
        let mut words = sample_words(32, 16);
        words.splice(4..5, [0x7f00_1234, 16]);
        let bytes = record(SAMPLE, 0, &words);
        let fields = SAMPLE_ALWAYS | SAMPLE_ADDRESS | SAMPLE_PERIOD | SAMPLE_CALLCHAIN;
        let Some((123, Record::Sample(sample))) = only(&bytes, fields) else {
            panic!("no sample")
        };
        assert_eq!(sample.address, Some(0x7f00_1234));
        assert_eq!(sample.period, Some(16));
        assert_eq!((sample.count, sample.stack.len()), (None, 16));
        for len in 0..words.len() {
            let bytes = record(SAMPLE, 0, &words[..len]);
            assert_eq!(only(&bytes, fields), None, "{len} words");
        }
    }

    #[test]
    fn truncated_samples_and_impossible_sizes_are_rejected() {
        let words = sample_words(32, 32);
        for len in 0..words.len() {
            let bytes = record(SAMPLE, 0, &words[..len]);
            assert_eq!(only(&bytes, ALL), None, "{len} words");
        }
        // Sizes that exceed the record.
        for index in [5, 9 + REGISTERS, words.len() - 1] {
            for wild in [33u64, 1 << 20, 1 << 61, u64::MAX] {
                let mut words = words.clone();
                words[index] = wild;
                let bytes = record(SAMPLE, 0, &words);
                assert_eq!(only(&bytes, ALL), None, "{index}: {wild}");
            }
        }
    }

    #[test]
    fn impossible_record_sizes_end_the_parsing() {
        let good = record(LOST, 0, &[1, 2, 3, 4, 5]);
        for size in [0u16, 7, 49, u16::MAX] {
            let mut bytes = good.clone();
            bytes[6..8].copy_from_slice(&size.to_ne_bytes());
            assert!(parse_first(&bytes, &|_| ALL).is_none(), "{size}");
        }
        assert!(
            parse_first(&good[..7], &|_| ALL).is_none() && parse_first(&[], &|_| ALL).is_none()
        );
    }

    #[test]
    fn damage_in_one_ring_does_not_affect_the_next() {
        let lost = |time| record(LOST, 0, &[1, 2, pair(5, 6), time, 77]);
        let first = lost(1);
        let second = lost(2);
        let mut damaged = lost(3);
        damaged[6] = 0;
        let bytes = [&first[..], &damaged, &first, &second].concat();
        let ends = [2 * first.len(), bytes.len()];
        let all = parse_all(&bytes, &ends, &|_| ALL);
        let times: Vec<u64> = all.iter().map(|(time, ..)| *time).collect();
        assert_eq!(times, [1, 1, 2]);
        assert_eq!(all[2].1, second);
    }

    #[test]
    fn the_other_records_are_read() {
        // All records end with pid and tid, time, and id.
        let end = [pair(5, 6), 99, 77];
        let with_end = |kind, misc, words: &[u64]| record(kind, misc, &[words, &end[..]].concat());
        let read = |bytes: &[u8]| match only(bytes, ALL) {
            Some((99, record)) => format!("{record:?}"),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            read(&with_end(READ, 0, &[pair(5, 6), 1000])),
            "Clock { pid: 5, tid: 6, id: 77, count: 1000 }"
        );
        let fork = with_end(FORK, 0, &[pair(5, 4), pair(6, 3), 0]);
        assert_eq!(
            read(&fork),
            "Fork { pid: 5, tid: 6, parent: 4, parent_tid: 3 }"
        );
        let exit = with_end(EXIT, 0, &[pair(5, 4), pair(6, 4), 0]);
        assert_eq!(read(&exit), "Exit { pid: 5, tid: 6 }");
        let name = u64::from_ne_bytes(*b"program\0");
        let exec = with_end(COMM, MISC_EXEC, &[pair(5, 6), name]);
        assert_eq!(read(&exec), "Exec { pid: 5 }");
        assert_eq!(only(&with_end(COMM, 0, &[pair(5, 6), name]), ALL), None);
        assert_eq!(read(&with_end(LOST, 0, &[77, 3])), "Lost(3)");
        let words = [
            pair(5, 6),
            0x1000,
            0x2000,
            0x3000,
            pair(8, 1),
            42,
            0,
            pair(PROT_EXEC, 0),
            name,
        ];
        let mapped = with_end(MMAP2, 0, &words);
        let Some((99, Record::Mapped(mapped))) = only(&mapped, ALL) else {
            panic!("no mapping")
        };
        assert_eq!(
            (mapped.start, mapped.len, mapped.offset),
            (0x1000, 0x2000, 0x3000)
        );
        assert_eq!(
            (mapped.device, mapped.inode, mapped.path),
            ((8, 1), 42, &b"program"[..])
        );
        for len in 0..words.len() - 1 {
            assert_eq!(only(&with_end(MMAP2, 0, &words[..len]), ALL), None);
        }
    }
}
