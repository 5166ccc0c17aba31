//! This project's CPU profile: stacks with their samples and nanoseconds, as text.
//!
//! ```text
//! mem-profiler cpu profile 1
//! # pid 4711
//! # cpu_engine perf_event
//! # cpu_mode cpu
//! # cpu_rate 99
//! # cpu_process_ns 12040000000
//! # module 55c0 55f0 0 - loaded /usr/bin/server
//! # function 0 do_syscall_64
//! …
//! 12 121212121 1 k0 55d0 55e0
//! …
//! # end
//! ```
//!
//! - The first line promises the last one: a profile without `# end` was cut off.
//! - Facts come first, as lines `# NAME VALUE` with the escapes of heap dumps.
//! - A stack is `SAMPLES NANOSECONDS THREAD FRAME …`, innermost first. It consists of numbers only,
//!   so no name can make it unreadable. A frame is a lookup address in hex, or `kN` for a kernel
//!   function: function `N` of the facts. Kernel addresses are not stored, because they mean
//!   nothing on another machine or after a reboot.
//! - A Python frame is an address of the mapping `[python]`, whose function and line are in a fact
//!   `# location`, as in heap dumps.

mod builder;
pub mod gperftools;
mod read;
mod write;

pub use crate::sampling::{KERNEL, Mode, Sampling};
pub use builder::{CpuBuilder, Frame};
pub(crate) use read::read;
pub use write::{write, write_packed};

use crate::dump::facts::Writer;
use crate::profile::{Location, Profile};

/// Start of the first line, before the version.
pub(crate) const START: &[u8] = b"mem-profiler cpu profile ";

/// The version that this crate writes, and the newest that it reads.
const VERSION: u32 = 1;

/// Last line.
const END: &[u8] = b"# end";

/// Writes the facts that [`sampling::fact`](crate::sampling::fact) reads.
fn write_facts(sampling: &Sampling, writer: &mut Writer) {
    writer.text("cpu_engine", Some(&sampling.engine));
    writer.text("cpu_mode", Some(sampling.mode.name()));
    writer.number("cpu_rate", Some(sampling.rate.into()));
    writer.number("cpu_process_ns", sampling.process_ns);
    writer.number("cpu_lost", Some(sampling.lost));
    writer.text("cpu_kernel_hidden", sampling.kernel_hidden.as_deref());
    for reason in &sampling.fallbacks {
        writer.text("cpu_fallback", Some(reason));
    }
}

/// Returns the index of a location's function if the location is a kernel function, which has no
/// address.
fn kernel_function(profile: &Profile, location: &Location) -> Option<u32> {
    match profile.lines_of(location) {
        [line] if location.address == 0 && profile.is_kernel_location(location) => {
            Some(line.function)
        }
        _ => None,
    }
}
