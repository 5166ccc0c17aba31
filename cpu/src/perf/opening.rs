//! What the kernel allows, and the rings.

use std::io;
use std::os::fd::OwnedFd;

use crate::event::{self, Attribute};
use crate::refusal::Refusal;
use crate::ring::Ring;

/// Bytes of a ring: what an unprivileged user may lock for each processor.
pub(super) const RING_BYTES: usize = 512 << 10;
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
        // Of this thread, which may always be asked for.
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

/// All processors with their rings, which are alike: as large as may be.
pub(super) fn processors(numbers: &[u32]) -> io::Result<Vec<Processor>> {
    let mut bytes = RING_BYTES;
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
    let owner = event::dummy(number, (bytes / 4) as u32)?;
    let ring = Ring::map(&owner, bytes)?;
    Ok(Processor {
        number,
        ring,
        owner,
    })
}
