//! Determines what the kernel allows.

use crate::event::Attribute;
use crate::refusal::Refusal;

/// Returns the best attribute that the kernel accepts.
pub(crate) fn allowed(mut attribute: Attribute, processors: &[u32]) -> Result<Attribute, Refusal> {
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
