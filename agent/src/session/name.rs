//! The segment's name.

use super::{BYTES, CONTROL, sweep};
use crate::environment::variable;
use crate::roomy;
use crate::sys::{self, Text};
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use shm_protocol::clock;
use shm_protocol::segment::{self, DEFAULT_DIR, Errno, FILE_PREFIX, Tables};

/// A path.
pub type Path = Text<512>;

/// Names that are tried in order; a process that executes one image after another may have
/// left profiles under the first ones.
const IN_ORDER: u64 = 16;
/// Names that are tried at random after them: others may have taken those in order.
const AT_RANDOM: u64 = 48;
/// One start in 2 to this power looks for files that ended processes left.
const SWEEP_BITS: u32 = 4;
/// One start in 2 to this power does so where a session begins with the segment: its profile takes hundreds
/// of KiB, not 12.
const SWEEP_BITS_SAMPLED: u32 = 2;

/// Makes the segment under the first free name, as [`segment::create`] does. A name that this very
/// process left before it
/// executed another image is used again if its contents are not needed. `at_start`: by the constructor; else
/// the calling thread's stack may be small. By one thread at a time.
pub fn create(
    start_time: u64,
    tables: Option<Tables>,
    at_start: bool,
) -> Result<(*mut u8, Path), Errno> {
    // By chance: the pids of a server's children may all be odd.
    let chance = (clock::unix_ns() ^ u64::from(sys::pid())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sweep_bits = if tables.is_some() {
        SWEEP_BITS_SAMPLED
    } else {
        SWEEP_BITS
    };
    // Children that are to have no tables are left alone: they are many, and what they leave is small.
    let may_sweep = at_start || tables.is_some();
    if may_sweep && chance >> (64 - sweep_bits) == 0 {
        sweep_dir(at_start);
    }
    let bytes = BYTES.load(Ordering::Relaxed);
    // SAFETY: the view is this library's static, or what an earlier call put over it.
    let make =
        |name: &CStr| unsafe { segment::create(name, CONTROL.0.get().cast(), bytes, tables) };
    for attempt in 0..IN_ORDER + AT_RANDOM {
        let image = match attempt < IN_ORDER {
            true => attempt,
            false => chance.wrapping_mul(2 * attempt + 1) >> 33,
        };
        let path = path_of(start_time, image);
        let name = path.as_c_str().ok_or(Errno(libc::ENAMETOOLONG))?;
        let mut made = make(name);
        if matches!(made, Err(Errno(libc::EEXIST))) && sweep::is_own_and_unused(name, start_time) {
            sys::unlink(name);
            made = make(name);
        }
        if matches!(made, Err(Errno(libc::ENOSPC))) && may_sweep && attempt == 0 {
            // Perhaps leftovers that are not needed take up the space.
            sweep_dir(at_start);
            made = make(name);
        }
        match made {
            Ok(whole) => return Ok((whole, path)),
            Err(Errno(libc::EEXIST)) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno(libc::EEXIST))
}

/// Removes files that ended processes left.
fn sweep_dir(at_start: bool) {
    extern "C" fn sweep() {
        sweep::sweep(dir());
    }
    if at_start {
        sweep();
    } else {
        // Without memory for a stack, none are removed.
        roomy::call_apart(sweep);
    }
}

/// The directory of the segments, as it was named when the program started: programs write
/// over their environment.
struct Directory(UnsafeCell<Path>);
// SAFETY: written by the constructor alone, before anybody reads it.
unsafe impl Sync for Directory {}
static DIRECTORY: Directory = Directory(UnsafeCell::new(Path::new()));

/// Notes the directory. At start-up, by the only thread.
pub fn start() {
    let chosen = variable(c"MEM_PROFILER_DIR").filter(|dir| !dir.is_empty());
    // SAFETY: see `Directory`.
    let directory = unsafe { &mut *DIRECTORY.0.get() };
    directory.push(chosen.unwrap_or(DEFAULT_DIR.as_bytes()));
}

/// The directory that was named.
fn named() -> &'static CStr {
    // SAFETY: see `Directory`. What did not fit is not a directory.
    let directory = unsafe { &*DIRECTORY.0.get() };
    directory.as_c_str().unwrap_or(c"")
}

/// Prefix of the directory that `run` makes for itself.
const RUN_PREFIX: &[u8] = b"mem_profiler.run.";
/// Prefix of the directory for segments in that of `run`.
const SEGMENTS_PREFIX: &[u8] = b"segments.";

/// Whether segments are made in the directory around the one that was named.
static IS_MOVED: AtomicBool = AtomicBool::new(false);

/// Finds out whether the directory that was named was one of a `run` that has ended and removed it.
/// Its children, and the programs that they execute, may live longer, as daemons do. By the thread
/// that makes the segment, before it does.
pub fn settle() {
    let named = named();
    if around(named.to_bytes()) == named.to_bytes() || is_moved() {
        return;
    }
    let saved = sys::errno();
    if sys::link_status(named).is_none() && sys::errno() == libc::ENOENT {
        IS_MOVED.store(true, Ordering::Relaxed);
    }
    sys::set_errno(saved);
}

/// Whether the `run` that this process belonged to has ended and removed its directory.
pub fn is_moved() -> bool {
    IS_MOVED.load(Ordering::Relaxed)
}

/// Returns the directory that the one of a `run` is in; any other directory itself.
fn around(directory: &[u8]) -> &[u8] {
    let of_run = out_of(directory, SEGMENTS_PREFIX).unwrap_or(directory);
    out_of(of_run, RUN_PREFIX).unwrap_or(directory)
}

/// Returns the parent of a directory whose name has a prefix. `None`: it has not, or its parent is the root.
fn out_of<'a>(directory: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let slash = directory.iter().rposition(|byte| *byte == b'/')?;
    let is_it = slash > 0 && directory[slash + 1..].starts_with(prefix);
    is_it.then(|| &directory[..slash])
}

fn dir() -> &'static [u8] {
    let named = named().to_bytes();
    if is_moved() { around(named) } else { named }
}

fn path_of(start_time: u64, image: u64) -> Path {
    let mut path = Text::new();
    path.push(dir());
    path.push(b"/");
    path.push(FILE_PREFIX.as_bytes());
    path.push_number(u64::from(sys::pid()));
    path.push(b".");
    path.push_number(start_time);
    path.push(b".");
    path.push_number(image);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_of_run_lie_in_the_shared_one() {
        for (named, shared) in [
            ("/dev/shm/mem_profiler.run.7.123", "/dev/shm"),
            ("/dev/shm/mem_profiler.run.7.123/segments.0af", "/dev/shm"),
            ("/dev/shm", "/dev/shm"),
            ("/dev/shm/segments.0af", "/dev/shm/segments.0af"),
            ("/a/segments.b/c", "/a/segments.b/c"),
            ("/mem_profiler.run.7.123", "/mem_profiler.run.7.123"),
            ("", ""),
        ] {
            assert_eq!(around(named.as_bytes()), shared.as_bytes(), "{named}");
        }
    }
}
