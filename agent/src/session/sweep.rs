//! Removing files that ended processes left behind.
//!
//! A process that ends by `_exit` or by a signal cannot remove its segment. In case that
//! happens thousands of times and no controller runs, processes of the same user that
//! start later clean up: they remove segments without a profile, and of those with one keep
//! only a few hundred, within a share of the filesystem: the first and the latest of each name, then the
//! newest.
//!
//! A file counts as a dead process's only if its content agrees with its name, it belongs to
//! this user, this boot and this pid namespace, and no process has the pid; or if the process has
//! recorded there that it exits. All other files stay. Done before a process makes its segment: at
//! start-up, and in a forked child that continues a session, unless it has a seccomp filter.

use super::{cgroup, identity};
use crate::sys::{self, Pages, Text, read_file};
use core::ffi::CStr;
use core::mem::size_of;
use shm_protocol::layout::{CONTROL_BYTES, HEADER_BYTES};
use shm_protocol::segment::{FILE_PREFIX, SegmentFile};
use shm_protocol::snapshot::Header;

/// How many files one sweep examines.
const MAX_FILES: usize = 1024;
/// How many profiles of ended processes are kept to be collected; beyond that, the oldest
/// are removed first.
const KEPT: usize = 256;
/// How many of them, the first in order, keep the unused parts of their tables.
const UNTRIMMED: usize = 8;
/// Bytes that they may take in total.
const KEPT_BYTES: u64 = 1 << 30;
/// Share of the directory's size, and of half of what the process's control group may have, that they may
/// take, if that is less.
const KEPT_SHARE: u64 = 4;
const LISTING_BYTES: usize = 64 << 10;
/// Offset of the name in `struct linux_dirent64`.
const NAME_AT: usize = 19;

/// The header of a segment file of this user, in a buffer of [`HEADER_BYTES`], and the file's
/// `stat`.
fn header<'a>(name: &CStr, buffer: &'a mut Pages) -> Option<(Header<'a>, libc::stat)> {
    let status = sys::link_status(name)?;
    // SAFETY: takes nothing and cannot fail.
    let ours = status.st_uid == unsafe { libc::geteuid() };
    if !ours || status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let bytes = buffer.bytes();
    read_file(name, &mut bytes[..CONTROL_BYTES]);
    let header = Header::new(bytes, status.st_size as usize).ok()?;
    Some((header, status))
}

/// Whether a segment's contents are no longer needed.
fn is_unused(header: &Header<'_>) -> bool {
    let last = header.session();
    last.is_none_or(|session| header.collected_session() >= session.number)
}

/// The process of a segment, on which content and name must agree.
#[derive(Clone, Copy)]
struct Owner {
    pid: u32,
    start_time: u64,
}

impl Owner {
    /// Reads a segment's file name; `None` for any other.
    fn parse(name: &[u8]) -> Option<Self> {
        let rest = name.strip_prefix(FILE_PREFIX.as_bytes())?;
        let mut parts = rest.split(|byte| *byte == b'.');
        let mut number = || {
            core::str::from_utf8(parts.next()?)
                .ok()?
                .parse::<u64>()
                .ok()
        };
        let pid = number()?;
        let start_time = number()?;
        let pid = i32::try_from(pid).ok().filter(|pid| *pid > 0)? as u32;
        Some(Self { pid, start_time })
    }

    /// Whether a segment's content agrees with its name.
    fn is_named_in(self, header: &Header<'_>) -> bool {
        header.pid() == self.pid && header.start_time() == self.start_time
    }

    /// Whether a segment's content agrees, and is of this boot and this pid namespace.
    fn is_of(self, header: &Header<'_>, namespace: u64) -> bool {
        self.is_named_in(header)
            && namespace != 0
            && header.pid_namespace() == namespace
            && header.boot_id() == identity::boot_id()
    }

    /// Whether no process has its pid.
    fn is_gone(self) -> bool {
        // SAFETY: signal 0 only asks.
        let missing = unsafe { libc::kill(self.pid as i32, 0) } != 0;
        missing && sys::errno() == libc::ESRCH
    }
}

/// Whether this very process left the file before it executed another image, and the file holds
/// no profile yet to be collected.
pub fn is_own_and_unused(name: &CStr, start_time: u64) -> bool {
    // Too large for a small stack.
    let Some(mut buffer) = Pages::new(HEADER_BYTES) else {
        return false;
    };
    let pid = sys::pid();
    let own = Owner { pid, start_time };
    header(name, &mut buffer).is_some_and(|(header, _)| {
        own.is_of(&header, identity::pid_namespace()) && is_unused(&header)
    })
}

/// Releases the parts of a dead process's segment that no reader needs.
fn trim(name: &CStr) {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // SAFETY: all zero is a valid stat.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: terminated path, a descriptor of our own, a stat to fill.
    unsafe {
        let fd = libc::open(name.as_ptr(), flags);
        if fd < 0 {
            return;
        }
        let regular = libc::fstat(fd, &mut status) == 0
            && status.st_mode & libc::S_IFMT == libc::S_IFREG
            && status.st_uid == libc::geteuid();
        if let Some(file) = SegmentFile::new(fd, status.st_size as u64).filter(|_| regular) {
            // Parts that cannot be released stay: nothing is lost.
            let _ = file.trim();
        }
        libc::close(fd);
    }
}

/// Removes leftover files of processes that are gone.
pub fn sweep(dir: &[u8]) {
    let namespace = identity::pid_namespace();
    let mut path = Text::<512>::new();
    path.push(dir);
    let (Some(name), Some(mut listing)) = (path.as_c_str(), Pages::new(LISTING_BYTES)) else {
        return;
    };
    let (Some(mut kept), Some(mut buffer)) = (
        Pages::new(MAX_FILES * size_of::<Left>()),
        Pages::new(HEADER_BYTES),
    ) else {
        return;
    };
    let Some((listing, most)) = list(name, listing.bytes()) else {
        return;
    };
    // SAFETY: integers only.
    let kept = unsafe { kept.array::<Left>() };
    let mut count = 0;
    for (at, path, owner) in gone(dir, listing) {
        let Some(name) = path.as_c_str() else {
            continue;
        };
        let Some((header, status)) = header(name, &mut buffer) else {
            continue;
        };
        // What a process has said itself of its end holds in any namespace, and where none is known: without
        // `/proc`, a process cannot tell whether it may remove its file at its end.
        let has_said_so = owner.is_named_in(&header) && header.exited();
        if !has_said_so && !owner.is_of(&header, namespace) {
            continue;
        }
        if is_unused(&header) {
            sys::unlink(name);
        } else {
            kept[count] = Left::new(&header, &status, at);
            count += 1;
        }
    }
    keep_newest(dir, listing, &mut kept[..count], most);
}

/// A profile of a process that is gone.
#[derive(Clone, Copy)]
#[repr(C)]
struct Left {
    /// Bytes of the process's name, the first one the most significant.
    process: u128,
    seen_ns: u64,
    bytes: u64,
    /// Offset of the file's name in the listing.
    at: usize,
    /// 1 if it is the first or the latest of a process name: the beginning and the end of a crash loop.
    rank: u32,
}

impl Left {
    fn new(header: &Header<'_>, status: &libc::stat, at: usize) -> Self {
        let bytes = header.comm().iter().take(size_of::<u128>());
        Self {
            process: bytes.fold(0, |name, byte| name << 8 | u128::from(*byte)),
            seen_ns: last_seen_ns(header),
            bytes: (status.st_blocks as u64).saturating_mul(512),
            at,
            rank: 0,
        }
    }
}

/// When a process is last known to have lived, in ns of the segment's clock; 0 if that was before the last boot.
/// The file has a time of its own, but by the system clock, which may have been set since.
fn last_seen_ns(header: &Header<'_>) -> u64 {
    if header.boot_id() != identity::boot_id() {
        return 0;
    }
    let begun = header.session().map_or(0, |session| session.start_ns);
    let alive = header.last_sign_of_life().unwrap_or(0);
    let (_, ended) = header.ended();
    header.created_ns().max(begun).max(alive).max(ended)
}

/// Sorts profiles in the order in which they are kept: the first and the latest of each name, then all others;
/// the newest first.
fn sort_by_worth(kept: &mut [Left]) {
    kept.sort_unstable_by_key(|left| (left.process, left.seen_ns));
    for same in kept.chunk_by_mut(|a, b| a.process == b.process) {
        if let [first, ..] = same {
            first.rank = 1;
        }
        if let [.., latest] = same {
            latest.rank = 1;
        }
    }
    kept.sort_unstable_by_key(|left| core::cmp::Reverse((left.rank, left.seen_ns)));
}

/// The names in a directory, as many as fit, and the bytes that profiles may take in it.
fn list<'a>(dir: &CStr, listing: &'a mut [u8]) -> Option<(&'a [u8], u64)> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: all zero is a valid statfs.
    let mut room: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: terminated path, a descriptor of our own, a statfs to fill, and the kernel
    // writes at most the buffer's length. One call: enough for a sweep.
    let (len, known) = unsafe {
        let fd = libc::open(dir.as_ptr(), flags);
        if fd < 0 {
            return None;
        }
        let len = libc::syscall(
            libc::SYS_getdents64,
            fd,
            listing.as_mut_ptr(),
            listing.len(),
        );
        let known = libc::fstatfs(fd, &mut room) == 0;
        libc::close(fd);
        (usize::try_from(len).unwrap_or(0), known)
    };
    // An unknown size limits nothing.
    let size = (room.f_blocks).saturating_mul(room.f_bsize as u64);
    let size = if known && size > 0 { size } else { u64::MAX };
    let size = size.min(cgroup::memory_limit() / 2);
    Some((&listing[..len], KEPT_BYTES.min(size / KEPT_SHARE)))
}

/// Removes profiles, the oldest first, until the rest is within the limits of number and bytes. First
/// releases the unused parts of tables, which a killed process could not release itself.
fn keep_newest(dir: &[u8], listing: &[u8], kept: &mut [Left], most: u64) {
    sort_by_worth(kept);
    let mut bytes = 0u64;
    for (number, left) in kept.iter().enumerate() {
        let path = path_at(dir, listing, left.at);
        let Some(name) = path.as_c_str() else {
            continue;
        };
        let mut size = left.bytes;
        let is_much = number >= UNTRIMMED || bytes.saturating_add(size) > most / 2;
        if number < KEPT && is_much {
            trim(name);
            size = bytes_of(name).unwrap_or(size);
        }
        bytes = bytes.saturating_add(size);
        if number >= KEPT || bytes > most {
            sys::unlink(name);
        }
    }
}

/// The memory that a file takes.
fn bytes_of(name: &CStr) -> Option<u64> {
    let status = sys::link_status(name)?;
    Some((status.st_blocks as u64).saturating_mul(512))
}

/// Segments whose process is gone: where each name is in the listing, the path, and the process
/// in the name.
fn gone<'a>(
    dir: &'a [u8],
    listing: &'a [u8],
) -> impl Iterator<Item = (usize, Text<512>, Owner)> + 'a {
    entries(listing)
        .filter_map(|(at, entry)| Some((at, Owner::parse(entry)?)))
        .filter(|(_, owner)| owner.is_gone())
        .take(MAX_FILES)
        .map(move |(at, owner)| (at, path_at(dir, listing, at), owner))
}

fn path_at(dir: &[u8], listing: &[u8], at: usize) -> Text<512> {
    let mut path = Text::new();
    path.push(dir);
    path.push(b"/");
    let name = listing.get(at..).unwrap_or_default();
    path.push(name.split(|byte| *byte == 0).next().unwrap_or_default());
    path
}

/// The names in the result of `getdents64`, and where each begins.
fn entries(listing: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    core::iter::from_fn(move || {
        let length = listing.get(at + 16..at + 18)?;
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        let entry = listing
            .get(at..at + length)
            .filter(|entry| entry.len() > NAME_AT)?;
        let name = at + NAME_AT;
        at += length;
        Some((name, entry[NAME_AT..].split(|byte| *byte == 0).next()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_latest_of_each_name_are_kept_before_newer_ones_of_others() {
        let left = |process, seen_ns| Left {
            process,
            seen_ns,
            bytes: 0,
            at: 0,
            rank: 0,
        };
        let loops = (10..20).map(|at| left(7, at));
        let mut kept: Vec<Left> = loops.chain([left(8, 3), left(9, 1), left(9, 2)]).collect();
        sort_by_worth(&mut kept);
        let order = kept.iter().map(|left| (left.process, left.seen_ns));
        let ends = [(7, 19), (7, 10), (8, 3), (9, 2), (9, 1)];
        let others = (11..19).rev().map(|at| (7, at));
        assert!(order.eq(ends.into_iter().chain(others)));
    }
}
