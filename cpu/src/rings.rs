//! Ring buffers of all processors: their allocation, and the order of their records.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::event::{self, EventConfig};
use crate::record::{self, Record, SampleTypes};
use crate::refusal::Refusal;
use crate::ring::Ring;

/// Size of a ring buffer in bytes, which an unprivileged user may lock for each processor.
pub(crate) const RING_BYTES: usize = 512 << 10;
/// Size of a ring buffer in bytes if locked memory is not limited: a controller that is scheduled
/// late then loses fewer records.
const LARGE_RING_BYTES: usize = 2 << 20;
/// Large ring buffers together take at most one byte in this many of the machine's memory.
const MEMORY_PER_RING_BYTE: usize = 64;
/// Minimum useful size of a ring buffer in bytes: room for a few samples.
pub(crate) const MIN_RING_BYTES: usize = 128 << 10;
/// Maximum size in bytes of a sample without its stack copy: 127 kernel addresses, registers, and
/// single fields.
const MAX_FIXED_BYTES: usize = 2 << 10;

/// Processor, with its ring buffer.
pub(crate) struct Processor {
    pub number: u32,
    pub ring: Ring,
    /// Event that owns the ring buffer.
    pub owner: OwnedFd,
}

impl Processor {
    /// Opens an event for a thread on the processor, which writes to its ring. Returns it with its
    /// id.
    pub(crate) fn open(&self, config: &EventConfig, tid: i32) -> io::Result<(OwnedFd, u64)> {
        let fd = config.open(tid, self.number)?;
        event::redirect(&fd, &self.owner)?;
        let id = event::id(&fd)?;
        Ok((fd, id))
    }
}

/// Ring buffers of all processors.
#[derive(Default)]
pub(crate) struct Rings {
    /// Processors that were online.
    pub processors: Vec<Processor>,
    /// Records of the first pass, preceded by those that waited.
    first_pass: Vec<u8>,
    /// Records of the second pass.
    second_pass: Vec<u8>,
}

/// Records of a round, by time.
pub(crate) struct Round<'a> {
    /// Records with their times.
    pub records: Vec<(u64, Record<'a>)>,
    /// Number of rings in which there may have been no room for another sample.
    pub full: usize,
    /// Records that must wait for the next round, for [`Rings::end_round`].
    pub waiting: Vec<u8>,
}

impl Rings {
    /// Maps the rings.
    pub(crate) fn open(numbers: &[u32]) -> Result<Self, Refusal> {
        let processors = processors(numbers).map_err(|error| {
            Refusal::of_rings(error, numbers.len() * Ring::size(MIN_RING_BYTES))
        })?;
        Ok(Self {
            processors,
            ..Self::default()
        })
    }

    /// Returns the actual and the desired size in bytes of each ring, if the actual one is smaller.
    pub(crate) fn small(&self) -> Option<(usize, usize)> {
        let bytes = self.processors.first()?.ring.bytes();
        (bytes < RING_BYTES).then_some((bytes, RING_BYTES))
    }

    /// Returns the descriptors that become readable when a ring has much data.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let processors = self.processors.iter();
        processors.map(|processor| processor.owner.as_fd())
    }

    /// Reads all records written so far, in the order of their times.
    ///
    /// The rings are read one after another. While one is read, the kernel may write an older record
    /// to another that was already read. So all rings are read twice: afterwards, no record is
    /// missing that is older than the newest one of the first pass. Newer records wait for the next
    /// round.
    pub(crate) fn read(&mut self, fields: &SampleTypes<'_>, stack_bytes: u32) -> Round<'_> {
        let mut full = 0;
        let ends = append_contents(
            &self.processors,
            &mut self.first_pass,
            stack_bytes,
            &mut full,
        );
        let mut records = record::parse_all(&self.first_pass, &ends, fields);
        let newest = records.iter().map(|(time, ..)| *time).max().unwrap_or(0);
        self.second_pass.clear();
        let ends = append_contents(
            &self.processors,
            &mut self.second_pass,
            stack_bytes,
            &mut full,
        );
        let mut waiting = Vec::new();
        for (time, bytes, record) in record::parse_all(&self.second_pass, &ends, fields) {
            if time <= newest {
                records.push((time, bytes, record))
            } else {
                waiting.extend_from_slice(bytes)
            }
        }
        records.sort_by_key(|(time, ..)| *time);
        let timed = |(time, _, record)| (time, record);
        Round {
            records: records.into_iter().map(timed).collect(),
            full,
            waiting,
        }
    }

    /// Ends a round. Keeps the records that must wait.
    pub(crate) fn end_round(&mut self, waiting: &[u8]) {
        self.first_pass.clear();
        self.first_pass.extend_from_slice(waiting);
    }
}

/// Appends the contents of the rings, and returns the end of each. Adds the number of rings without
/// room for another sample to `full`: the kernel reports lost records only with the next record
/// that it writes, which may come after the process has exited, or never.
fn append_contents(
    processors: &[Processor],
    bytes: &mut Vec<u8>,
    stack_bytes: u32,
    full: &mut usize,
) -> Vec<usize> {
    let max_sample_bytes = stack_bytes as usize + MAX_FIXED_BYTES;
    let mut ends = vec![bytes.len()];
    for processor in processors {
        let free = processor.ring.take(bytes);
        *full += usize::from(free < max_sample_bytes);
        ends.push(bytes.len());
    }
    ends
}

/// Returns the size in bytes of each of `rings` ring buffers to try first.
fn initial_ring_bytes(rings: usize, may_lock: bool, memory: usize) -> usize {
    let mut bytes = if may_lock {
        LARGE_RING_BYTES
    } else {
        RING_BYTES
    };
    while bytes > RING_BYTES && bytes.saturating_mul(rings) > memory / MEMORY_PER_RING_BYTE {
        bytes /= 2;
    }
    bytes
}

/// Returns all processors with ring buffers, all of the same size: as large as allowed.
pub(crate) fn processors(numbers: &[u32]) -> io::Result<Vec<Processor>> {
    let mut bytes = initial_ring_bytes(numbers.len(), proc::may_lock(), proc::memory());
    loop {
        match map_rings(numbers, bytes) {
            Err(_) if bytes > MIN_RING_BYTES => bytes /= 2,
            result => return result,
        }
    }
}

/// Maps a ring of `bytes` bytes for each processor that is online.
fn map_rings(numbers: &[u32], bytes: usize) -> io::Result<Vec<Processor>> {
    let mut processors = Vec::new();
    for &number in numbers {
        match map_ring(number, bytes) {
            Ok(processor) => processors.push(processor),
            // The processor has gone offline since the list was read.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(processors)
}

fn map_ring(number: u32, bytes: usize) -> io::Result<Processor> {
    // The ring becomes readable when a quarter is full. The rest is for records that are written
    // before it is read.
    let owner = event::dummy(number, (bytes.min(RING_BYTES) / 4) as u32)?;
    let ring = Ring::map(&owner, bytes)?;
    Ok(Processor {
        number,
        ring,
        owner,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: usize = 1 << 30;

    #[test]
    fn rings_are_large_if_permitted_and_memory_allows_it() {
        assert_eq!(initial_ring_bytes(2, true, 8 * GIB), LARGE_RING_BYTES);
        assert_eq!(initial_ring_bytes(4, true, GIB / 4), LARGE_RING_BYTES / 2);
        assert_eq!(initial_ring_bytes(64, true, GIB), RING_BYTES);
        assert_eq!(initial_ring_bytes(2, false, 8 * GIB), RING_BYTES);
        assert_eq!(initial_ring_bytes(usize::MAX, true, 0), RING_BYTES);
    }
}
