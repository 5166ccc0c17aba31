//! Removes segments that exited processes left behind.
//!
//! A process that ends by `_exit` or a signal cannot remove its segment. That may happen thousands
//! of times while no controller runs. So processes of the same user that start later clean up: they
//! remove segments without a profile, and keep a few hundred of those with one, within a share of
//! the filesystem. For each process name, the first and the latest are kept, then the newest of
//! all.
//!
//! A file is removed only if its content agrees with its name, it belongs to this user, this boot
//! and this pid namespace, and no process has the pid; or if the process has recorded its exit in
//! the file. Sweeps run before a process creates its segment: at start-up, and in a forked child
//! that continues a session, unless it has a seccomp filter.

use super::{cgroup, identity};
use crate::sys::{self, Pages, Text, read_file};
use core::ffi::{CStr, c_char};
use core::mem::size_of;
use core::ptr::null;
use shm_protocol::layout::{CONTROL_BYTES, HEADER_BYTES};
use shm_protocol::segment::{FILE_PREFIX, SegmentFile};
use shm_protocol::snapshot::Header;

/// Maximum number of files that one sweep examines.
const MAX_FILES: usize = 1024;
/// Maximum number of profiles of exited processes that are kept for collection.
const MAX_KEPT: usize = 256;
/// Number of profiles that keep the unused parts of their tables: the first ones in the order of
/// [`sort_for_keeping`].
const UNTRIMMED: usize = 8;
/// Maximum size of all kept profiles, in bytes.
const MAX_KEPT_BYTES: u64 = 1 << 30;
/// Kept profiles take at most 1 / `KEPT_SHARE` of the directory's size, or of half of the control
/// group's memory limit, if that is less.
const KEPT_SHARE: u64 = 4;
const LISTING_BYTES: usize = 64 << 10;
/// Offset of the name in `struct linux_dirent64`.
const NAME_AT: usize = 19;

/// Reads the header of a segment file of this user into a buffer of [`HEADER_BYTES`]. Also returns
/// the file's `stat`.
fn read_header<'a>(name: &CStr, buffer: &'a mut Pages) -> Option<(Header<'a>, libc::stat)> {
    let status = sys::link_status(name)?;
    // SAFETY: the call has no arguments and cannot fail.
    let is_ours = status.st_uid == unsafe { libc::geteuid() };
    if !is_ours || status.st_mode & libc::S_IFMT != libc::S_IFREG {
        return None;
    }
    let bytes = buffer.bytes();
    read_file(name, &mut bytes[..CONTROL_BYTES]);
    let header = Header::new(bytes, status.st_size as usize).ok()?;
    Some((header, status))
}

/// Returns true if a segment's profile is not needed: it has none, or it was collected.
fn is_unused(header: &Header<'_>) -> bool {
    let last = header.session();
    last.is_none_or(|session| header.collected_session() >= session.number)
}

/// Boot and pid namespace of this process, within which a pid names one process.
struct PidScope {
    /// Inode of the pid namespace; 0 if not known.
    namespace: u64,
    boot_id: [u8; 16],
}

impl PidScope {
    fn find() -> Self {
        Self {
            namespace: identity::pid_namespace(),
            boot_id: identity::boot_id(),
        }
    }
}

/// Process that created a segment.
#[derive(Clone, Copy)]
struct Owner {
    pid: u32,
    start_time: u64,
}

impl Owner {
    /// Parses the file name of a segment. `None` for any other name.
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

    /// Returns true if a segment's content agrees with its name.
    fn is_named_in(self, header: &Header<'_>) -> bool {
        header.pid() == self.pid && header.start_time() == self.start_time
    }

    /// Returns true if a segment's content agrees with its name, and is of this machine's boot and
    /// of this pid namespace.
    fn is_owner_of(self, header: &Header<'_>, scope: &PidScope) -> bool {
        self.is_named_in(header)
            && scope.namespace != 0
            && header.pid_namespace() == scope.namespace
            && header.boot_id() == scope.boot_id
    }

    /// Returns true if no process has its pid.
    fn is_gone(self) -> bool {
        // SAFETY: signal 0 only checks for existence.
        let has_failed = unsafe { libc::kill(self.pid as i32, 0) } != 0;
        has_failed && sys::errno() == libc::ESRCH
    }
}

/// Returns true if this process itself left the file before an exec, and its profile is not needed.
pub fn is_own_and_unused(name: &CStr, start_time: u64) -> bool {
    // The buffer is too large for a small stack.
    let Some(mut buffer) = Pages::new(HEADER_BYTES) else {
        return false;
    };
    let pid = sys::pid();
    let own = Owner { pid, start_time };
    read_header(name, &mut buffer).is_some_and(|(header, _)| {
        own.is_owner_of(&header, &PidScope::find()) && is_unused(&header)
    })
}

/// Releases the unused parts of an exited process's tables. Then sets the time of the file's last
/// change to 0, so that later sweeps recognise it.
fn trim(name: &CStr) {
    let flags = libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // SAFETY: zeros are a valid `stat`.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: a terminated path, our own descriptor, and a `stat` to fill.
    unsafe {
        let fd = libc::open(name.as_ptr(), flags);
        if fd < 0 {
            return;
        }
        let is_regular = libc::fstat(fd, &mut status) == 0
            && status.st_mode & libc::S_IFMT == libc::S_IFREG
            && status.st_uid == libc::geteuid();
        if is_regular && let Some(file) = SegmentFile::new(fd, status.st_size as u64) {
            // Parts that cannot be released stay; nothing is lost.
            let _ = file.trim();
            let mut times: [libc::timespec; 2] = core::mem::zeroed();
            times[0].tv_nsec = libc::UTIME_OMIT;
            sys::syscall(
                libc::SYS_utimensat,
                fd,
                null::<c_char>(),
                &raw const times,
                0,
            );
        }
        libc::close(fd);
    }
}

/// Removes segments of exited processes from a directory.
pub fn sweep(dir: &[u8]) {
    let scope = PidScope::find();
    let mut path = Text::<512>::new();
    path.push(dir);
    let (Some(name), Some(mut listing)) = (path.as_c_str(), Pages::new(LISTING_BYTES)) else {
        return;
    };
    let (Some(mut kept), Some(mut buffer)) = (
        Pages::new(MAX_FILES * size_of::<LeftProfile>()),
        Pages::new(HEADER_BYTES),
    ) else {
        return;
    };
    let Some((listing, max_bytes)) = list_directory(name, listing.bytes()) else {
        return;
    };
    // SAFETY: `LeftProfile` consists of integers, for which any bytes are valid.
    let kept = unsafe { kept.array::<LeftProfile>() };
    let mut count = 0;
    for ExitedSegment { at, path, owner } in exited_segments(dir, listing) {
        let Some(name) = path.as_c_str() else {
            continue;
        };
        let Some((header, status)) = read_header(name, &mut buffer) else {
            continue;
        };
        // A process that recorded its own exit is gone, whatever its namespace. Without `/proc`, a
        // process cannot tell whether it may remove its file, so it records its exit instead.
        let has_recorded_exit = owner.is_named_in(&header) && header.exited();
        if !has_recorded_exit && !owner.is_owner_of(&header, &scope) {
            continue;
        }
        if is_unused(&header) {
            sys::unlink(name);
        } else {
            kept[count] = LeftProfile::new(&header, &status, at, &scope);
            count += 1;
        }
    }
    keep_newest(dir, listing, &mut kept[..count], max_bytes);
}

/// Profile of an exited process.
#[derive(Clone, Copy)]
#[repr(C)]
struct LeftProfile {
    /// Bytes of the process's name; the first one is the most significant.
    process: u128,
    /// Time of its last sign of life, in ns of the machine's clock; 0: before the last boot.
    seen_ns: u64,
    /// Size of the file on disk.
    bytes: u64,
    /// Offset of the file's name in the listing.
    at: usize,
    /// 1 if the unused parts of its tables have been released.
    is_trimmed: u32,
    /// 1 for the first and the latest profile of a process name (the two ends of a crash loop);
    /// else 0.
    rank: u32,
}

impl LeftProfile {
    fn new(header: &Header<'_>, status: &libc::stat, at: usize, scope: &PidScope) -> Self {
        let bytes = header.comm().iter().take(size_of::<u128>());
        Self {
            process: bytes.fold(0, |name, byte| (name << 8) | u128::from(*byte)),
            seen_ns: last_seen_ns(header, scope),
            bytes: (status.st_blocks as u64).saturating_mul(512),
            at,
            is_trimmed: u32::from(status.st_mtime == 0 && status.st_mtime_nsec == 0),
            rank: 0,
        }
    }
}

/// Returns the time at which a process is last known to have lived, in ns of the segment's clock; 0
/// if before the last boot. The file's own times are of the system clock, which may have been set
/// since.
fn last_seen_ns(header: &Header<'_>, scope: &PidScope) -> u64 {
    if header.boot_id() != scope.boot_id {
        return 0;
    }
    let begun = header.session().map_or(0, |session| session.start_ns);
    let alive = header.last_sign_of_life().unwrap_or(0);
    let (_, ended) = header.ended();
    header.created_ns().max(begun).max(alive).max(ended)
}

/// Sorts profiles by the order in which they are kept: the first and the latest of each name, then
/// all others; in both groups, the newest first.
fn sort_for_keeping(kept: &mut [LeftProfile]) {
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

/// Lists the names in a directory, as many as fit, and returns how many bytes profiles may take in
/// it.
fn list_directory<'a>(dir: &CStr, listing: &'a mut [u8]) -> Option<(&'a [u8], u64)> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: zeros are a valid `statfs`.
    let mut room: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: a terminated path, our own descriptor, a `statfs` to fill, and the kernel writes at
    // most the length of the buffer. One call lists enough files for a sweep.
    let (len, is_size_known) = unsafe {
        let fd = libc::open(dir.as_ptr(), flags);
        if fd < 0 {
            return None;
        }
        let len = sys::syscall(
            libc::SYS_getdents64,
            fd,
            listing.as_mut_ptr(),
            listing.len(),
        );
        let is_size_known = libc::fstatfs(fd, &mut room) == 0;
        libc::close(fd);
        (usize::try_from(len).unwrap_or(0), is_size_known)
    };
    // If the size is not known, it limits nothing.
    let size = (room.f_blocks).saturating_mul(room.f_bsize as u64);
    let size = if is_size_known && size > 0 {
        size
    } else {
        u64::MAX
    };
    let size = size.min(cgroup::memory_limit() / 2);
    Some((&listing[..len], MAX_KEPT_BYTES.min(size / KEPT_SHARE)))
}

/// Removes profiles, from the end of their order, until the others are within both limits. First
/// releases the unused parts of their tables, which a killed process could not release itself.
fn keep_newest(dir: &[u8], listing: &[u8], kept: &mut [LeftProfile], max_bytes: u64) {
    sort_for_keeping(kept);
    let mut bytes = 0u64;
    for (number, left) in kept.iter().enumerate() {
        let path = path_at(dir, listing, left.at);
        let Some(name) = path.as_c_str() else {
            continue;
        };
        let mut size = left.bytes;
        let must_trim = number >= UNTRIMMED || bytes.saturating_add(size) > max_bytes / 2;
        if number < MAX_KEPT && must_trim && left.is_trimmed == 0 {
            trim(name);
            size = disk_bytes(name).unwrap_or(size);
        }
        bytes = bytes.saturating_add(size);
        if number >= MAX_KEPT || bytes > max_bytes {
            sys::unlink(name);
        }
    }
}

/// Returns the size of a file on disk, in bytes.
fn disk_bytes(name: &CStr) -> Option<u64> {
    let status = sys::link_status(name)?;
    Some((status.st_blocks as u64).saturating_mul(512))
}

/// Segment whose process is gone.
struct ExitedSegment {
    /// Offset of the segment's name in the listing.
    at: usize,
    path: Text<512>,
    owner: Owner,
}

/// Returns the segments whose process is gone.
fn exited_segments<'a>(
    dir: &'a [u8],
    listing: &'a [u8],
) -> impl Iterator<Item = ExitedSegment> + 'a {
    entries(listing)
        .filter_map(|(at, entry)| Some((at, Owner::parse(entry)?)))
        .filter(|(_, owner)| owner.is_gone())
        .take(MAX_FILES)
        .map(move |(at, owner)| ExitedSegment {
            at,
            path: path_at(dir, listing, at),
            owner,
        })
}

fn path_at(dir: &[u8], listing: &[u8], at: usize) -> Text<512> {
    let mut path = Text::new();
    path.push(dir);
    path.push(b"/");
    let name = listing.get(at..).unwrap_or_default();
    path.push(name.split(|byte| *byte == 0).next().unwrap_or_default());
    path
}

/// Returns the names in a `getdents64` buffer, each with its offset.
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
    fn the_first_and_latest_profile_of_each_name_are_kept_first() {
        let left = |process, seen_ns| LeftProfile {
            process,
            seen_ns,
            bytes: 0,
            at: 0,
            is_trimmed: 0,
            rank: 0,
        };
        let loops = (10..20).map(|at| left(7, at));
        let mut kept: Vec<LeftProfile> =
            loops.chain([left(8, 3), left(9, 1), left(9, 2)]).collect();
        sort_for_keeping(&mut kept);
        let order = kept.iter().map(|left| (left.process, left.seen_ns));
        let ends = [(7, 19), (7, 10), (8, 3), (9, 2), (9, 1)];
        let others = (11..19).rev().map(|at| (7, at));
        assert!(order.eq(ends.into_iter().chain(others)));
    }
}
