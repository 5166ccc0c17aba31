//! Determines what the kernel allows.

use crate::event::EventConfig;
use crate::refusal::Refusal;

/// Returns the best configuration that the kernel accepts.
pub(crate) fn best_allowed_config(
    mut config: EventConfig,
    processors: &[u32],
) -> Result<EventConfig, Refusal> {
    let first = processors.first().copied().unwrap_or(0);
    loop {
        // The attempt is made on this thread, which may always be sampled.
        let Err(error) = config.open(0, first) else {
            return Ok(config);
        };
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) if config.kernel => config.kernel = false,
            Some(libc::EINVAL) if config.clock => config.clock = false,
            Some(libc::EINVAL) if config.threads_only => config.threads_only = false,
            _ => return Err(Refusal::of_kernel(error)),
        }
    }
}
