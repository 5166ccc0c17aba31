//! Chooses the path of the segment, and creates the file there.
//!
//! Earlier images of this process (before an exec) and other processes may already use names. So
//! names are tried in order, then at random.

use super::{BYTES, CONTROL, sweep};
use crate::ample_stack;
use crate::environment::variable;
use crate::sys::{self, Text};
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};
use shm_protocol::clock;
use shm_protocol::segment::{self, DEFAULT_DIR, Errno, FILE_PREFIX, Tables};

/// Path of a segment.
pub type Path = Text<512>;

/// Number of names that are tried in order. Images that this process executed before may have left
/// profiles under the first ones.
const ORDERED_NAMES: u64 = 16;
/// Number of random names that are tried afterwards, in case others have taken the ordered ones.
const RANDOM_NAMES: u64 = 48;
/// One in 2^`SWEEP_BITS` processes removes the files of exited processes when it creates its
/// segment.
const SWEEP_BITS: u32 = 4;
/// Like [`SWEEP_BITS`], if a session begins with the segment: its profile takes hundreds of KiB,
/// not 12.
const SWEEP_BITS_SAMPLED: u32 = 2;

/// Creates the segment under the first free name, like [`segment::create`]. A name that this
/// process left before an exec is reused if its profile is not needed. `at_start` must be false if
/// the calling thread's stack may be small. Called by one thread at a time.
pub fn create(
    start_time: u64,
    tables: Option<Tables>,
    at_start: bool,
) -> Result<(*mut u8, Path), Errno> {
    // The sweep is chosen at random rather than by pid, because the pids of a server's children may
    // all be odd.
    let chance = (clock::unix_ns() ^ u64::from(sys::pid())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sweep_bits = if tables.is_some() {
        SWEEP_BITS_SAMPLED
    } else {
        SWEEP_BITS
    };
    // Children without tables do not sweep: there are many of them, and the files that they leave
    // are small.
    let may_sweep = at_start || tables.is_some();
    if may_sweep && chance >> (64 - sweep_bits) == 0 {
        sweep_dir(at_start);
    }
    let bytes = BYTES.load(Ordering::Relaxed);
    // SAFETY: the view is this library's static, or what an earlier call mapped over it.
    let make =
        |name: &CStr| unsafe { segment::create(name, CONTROL.0.get().cast(), bytes, tables) };
    for attempt in 0..ORDERED_NAMES + RANDOM_NAMES {
        let image = if attempt < ORDERED_NAMES {
            attempt
        } else {
            chance.wrapping_mul(2 * attempt + 1) >> 33
        };
        let path = path_of(start_time, image);
        let name = path.as_c_str().ok_or(Errno(libc::ENAMETOOLONG))?;
        let mut made = make(name);
        if matches!(made, Err(Errno(libc::EEXIST))) && sweep::is_own_and_unused(name, start_time) {
            sys::unlink(name);
            made = make(name);
        }
        if matches!(made, Err(Errno(libc::ENOSPC))) && may_sweep && attempt == 0 {
            // Files that nobody needs may take up the space.
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

/// Removes files of exited processes.
fn sweep_dir(at_start: bool) {
    extern "C" fn sweep() {
        sweep::sweep(dir());
    }
    if at_start || ample_stack::is_on_own_stack() {
        sweep();
    } else {
        // Without memory for a larger stack, nothing is removed.
        ample_stack::call_on_own_stack(sweep);
    }
}

/// Directory of the segments, copied at start-up, because programs overwrite their environment.
struct Directory(UnsafeCell<Path>);
// SAFETY: written by the constructor alone, before anybody reads it.
unsafe impl Sync for Directory {}
static DIRECTORY: Directory = Directory(UnsafeCell::new(Path::new()));

/// Stores the directory. Called at start-up, by the only thread.
pub fn start() {
    let chosen = variable(c"MEM_PROFILER_DIR").filter(|dir| !dir.is_empty());
    // SAFETY: no other thread exists yet, so nobody reads `DIRECTORY`.
    let directory = unsafe { &mut *DIRECTORY.0.get() };
    directory.push(chosen.unwrap_or(DEFAULT_DIR.as_bytes()));
}

/// Returns the directory that the environment named; empty if its path was too long.
fn named() -> &'static CStr {
    // SAFETY: written at start-up only, before anybody reads it.
    let directory = unsafe { &*DIRECTORY.0.get() };
    directory.as_c_str().unwrap_or(c"")
}

/// Prefix of the name of a directory that `run` creates for itself.
const RUN_PREFIX: &[u8] = b"mem_profiler.run.";
/// Prefix of the name of the directory for segments within it.
const SEGMENTS_PREFIX: &[u8] = b"segments.";

/// True if `run` has removed its directory, and segments are created in the one around it.
static IS_MOVED: AtomicBool = AtomicBool::new(false);

/// Checks whether the named directory belonged to a `run` that has ended and removed it. Forked
/// children, and the programs that they exec, may outlive the `run` (daemons). Called before a
/// segment is created, by the thread that creates it.
pub fn check_directory() {
    let named = named();
    if shared_directory(named.to_bytes()) == named.to_bytes() || is_moved() {
        return;
    }
    let saved = sys::errno();
    if sys::link_status(named).is_none() && sys::errno() == libc::ENOENT {
        IS_MOVED.store(true, Ordering::Relaxed);
    }
    sys::set_errno(saved);
}

/// Returns true if the `run` that this process belonged to has ended and removed its directory.
pub fn is_moved() -> bool {
    IS_MOVED.load(Ordering::Relaxed)
}

/// Returns the shared directory in which a `run` created `directory`, or `directory` itself if it
/// does not belong to a `run`.
fn shared_directory(directory: &[u8]) -> &[u8] {
    let outer = parent_if_named(directory, SEGMENTS_PREFIX).unwrap_or(directory);
    parent_if_named(outer, RUN_PREFIX).unwrap_or(directory)
}

/// Returns the parent of a directory whose name has this prefix. Returns `None` for another name,
/// or if the parent is the root directory.
fn parent_if_named<'a>(directory: &'a [u8], prefix: &[u8]) -> Option<&'a [u8]> {
    let slash = directory.iter().rposition(|byte| *byte == b'/')?;
    let has_prefix = slash > 0 && directory[slash + 1..].starts_with(prefix);
    has_prefix.then(|| &directory[..slash])
}

/// Returns the directory for new segments.
fn dir() -> &'static [u8] {
    let named = named().to_bytes();
    if is_moved() {
        shared_directory(named)
    } else {
        named
    }
}

/// Returns the path of this process's segment with the number `image`.
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
    fn the_directories_of_run_are_in_the_shared_directory() {
        for (named, shared) in [
            ("/dev/shm/mem_profiler.run.7.123", "/dev/shm"),
            ("/dev/shm/mem_profiler.run.7.123/segments.0af", "/dev/shm"),
            ("/dev/shm", "/dev/shm"),
            ("/dev/shm/segments.0af", "/dev/shm/segments.0af"),
            ("/a/segments.b/c", "/a/segments.b/c"),
            ("/mem_profiler.run.7.123", "/mem_profiler.run.7.123"),
            ("", ""),
        ] {
            assert_eq!(
                shared_directory(named.as_bytes()),
                shared.as_bytes(),
                "{named}"
            );
        }
    }
}
