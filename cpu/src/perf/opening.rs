//! Determination of what the kernel allows, and allocation of ring buffers.

use std::io;
use std::os::fd::OwnedFd;

use crate::event::{self, Attribute};
use crate::refusal::Refusal;
use crate::ring::Ring;

/// Size of a ring buffer in bytes, which an unprivileged user may lock for each processor.
pub(super) const RING_BYTES: usize = 512 << 10;
/// Size of a ring buffer in bytes if locked memory is not limited: a controller that is scheduled
/// late then loses fewer records.
const LARGE_RING_BYTES: usize = 2 << 20;
/// Large ring buffers may take one in this many bytes of the machine's memory, all together.
const MEMORY_PER_RING_BYTE: usize = 64;
/// Minimum useful size of a ring buffer in bytes: room for a few samples.
pub(super) const MIN_RING_BYTES: usize = 128 << 10;
/// Processor, with its ring buffer.
pub(super) struct Processor {
    pub number: u32,
    pub ring: Ring,
    /// Event that owns the ring buffer.
    pub owner: OwnedFd,
}

/// Returns the best attribute that the kernel accepts.
pub(super) fn allowed(mut attribute: Attribute, processors: &[u32]) -> Result<Attribute, Refusal> {
    let first = processors.first().copied().unwrap_or(0);
    loop {
        // The attempt is made on this thread, which may always be sampled.
        let Err(error) = attribute.open(0, first) else {
            return Ok(attribute);
        };
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) if attribute.kernel => attribute.kernel = false,
            Some(libc::EINVAL) if attribute.clock => attribute.clock = false,
            Some(libc::EINVAL) if attribute.threads_only => attribute.threads_only = false,
            _ => return Err(Refusal::of_kernel(error)),
        }
    }
}

/// Returns the size in bytes of each of `rings` ring buffers to try first.
fn desired(rings: usize, may_lock: bool, memory: usize) -> usize {
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
pub(super) fn processors(numbers: &[u32]) -> io::Result<Vec<Processor>> {
    let mut bytes = desired(numbers.len(), proc::may_lock(), proc::memory());
    loop {
        match with_rings(numbers, bytes) {
            Err(_) if bytes > MIN_RING_BYTES => bytes /= 2,
            result => return result,
        }
    }
}

/// Maps a ring of `bytes` bytes for each processor that is online.
fn with_rings(numbers: &[u32], bytes: usize) -> io::Result<Vec<Processor>> {
    let mut processors = Vec::new();
    for &number in numbers {
        match processor(number, bytes) {
            Ok(processor) => processors.push(processor),
            // The processor has gone offline since the list was read.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(processors)
}

fn processor(number: u32, bytes: usize) -> io::Result<Processor> {
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
        assert_eq!(desired(2, true, 8 * GIB), LARGE_RING_BYTES);
        assert_eq!(desired(4, true, GIB / 4), LARGE_RING_BYTES / 2);
        assert_eq!(desired(64, true, GIB), RING_BYTES);
        assert_eq!(desired(2, false, 8 * GIB), RING_BYTES);
        assert_eq!(desired(usize::MAX, true, 0), RING_BYTES);
    }
}
