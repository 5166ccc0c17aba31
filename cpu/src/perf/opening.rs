//! What the kernel allows, and the rings.

use std::io;
use std::os::fd::OwnedFd;

use crate::event::{self, Attribute};
use crate::refusal::Refusal;
use crate::ring::Ring;

/// Bytes of a ring: what an unprivileged user may lock for each processor.
pub(super) const RING_BYTES: usize = 512 << 10;
/// Bytes of a ring where any number may be locked: a controller that waits for its turn loses less.
const LARGE_RING: usize = 2 << 20;
/// The share of the machine's memory that large rings take at most.
const SHARE_OF_MEMORY: usize = 64;
/// The least that is worth having: some samples.
pub(super) const LEAST_RING: usize = 128 << 10;
/// A processor.
pub(super) struct Processor {
    pub number: u32,
    pub ring: Ring,
    /// The event that owns the ring.
    pub owner: OwnedFd,
}

/// The attribute that the kernel accepts from us, of the best one.
pub(super) fn allowed(mut attribute: Attribute, processors: &[u32]) -> Result<Attribute, Refusal> {
    let first = processors.first().copied().unwrap_or(0);
    loop {
        // For this thread, for which it is always allowed.
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

/// Bytes of each ring, of this many, to begin with.
fn desired(rings: usize, may_lock: bool, memory: usize) -> usize {
    let mut bytes = if may_lock { LARGE_RING } else { RING_BYTES };
    while bytes > RING_BYTES && bytes.saturating_mul(rings) > memory / SHARE_OF_MEMORY {
        bytes /= 2;
    }
    bytes
}

/// All processors with their rings, which are alike: as large as may be.
pub(super) fn processors(numbers: &[u32]) -> io::Result<Vec<Processor>> {
    let mut bytes = desired(numbers.len(), proc::may_lock(), proc::memory());
    loop {
        match with_rings(numbers, bytes) {
            Err(_) if bytes > LEAST_RING => bytes /= 2,
            done => return done,
        }
    }
}

fn with_rings(numbers: &[u32], bytes: usize) -> io::Result<Vec<Processor>> {
    let mut processors = Vec::new();
    for &number in numbers {
        match processor(number, bytes) {
            Ok(processor) => processors.push(processor),
            // Switched off meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(processors)
}

fn processor(number: u32, bytes: usize) -> io::Result<Processor> {
    // The rest of the ring is for times when nothing is read.
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
    fn rings_are_large_where_they_may_be_and_memory_is_not_short() {
        assert_eq!(desired(2, true, 8 * GIB), LARGE_RING);
        assert_eq!(desired(4, true, GIB / 4), LARGE_RING / 2);
        assert_eq!(desired(64, true, GIB), RING_BYTES);
        assert_eq!(desired(2, false, 8 * GIB), RING_BYTES);
        assert_eq!(desired(usize::MAX, true, 0), RING_BYTES);
    }
}
