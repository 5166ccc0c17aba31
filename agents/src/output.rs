//! Writes dump files that are either complete or absent.
//!
//! A dump is written to an unnamed file (`O_TMPFILE`), synced, and only then linked to its name,
//! which fails if the name exists. So a controller killed at any moment leaves neither a partial
//! nor a temporary file. On file systems without `O_TMPFILE`, a hidden temporary name and a rename
//! are used.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use crate::room;
use crate::text;

/// Minimum free space for a dump, in bytes. Even a dump without stacks needs as much.
const MIN_DUMP_BYTES: u64 = 4096;
/// Maximum length of `.PID.NUMBER` in a file name.
const NUMBERS_BYTES: usize = ".4194304.123456".len();
/// Suffix of a heap dump's name.
const HEAP: &str = ".heap";
/// Suffix of a CPU profile's name.
pub const CPU: &str = ".cpu";
/// Suffix of the name of a CPU profile in gperftools' format.
pub const GPERFTOOLS: &str = ".prof";

/// Suffix of the name of a profile of resident memory.
pub const RSS: &str = ".rss";

/// Directory and name prefix of dumps.
#[derive(Debug)]
pub struct Output {
    directory: OwnedFd,
    /// Path of the directory as the user wrote it.
    path: PathBuf,
    /// Prefix of file names, including the separating dot.
    stem: OsString,
    suffix: &'static str,
    /// True if the file system does not support unnamed files.
    named_files_only: bool,
}

/// Dump that has no name yet.
enum Pending {
    Unnamed(File),
    Hidden(File, OsString),
}

impl Output {
    /// Opens the directory of a prefix and checks that a dump can be written there.
    pub fn open(prefix: &Path) -> io::Result<Self> {
        Self::open_for(prefix, HEAP)
    }

    /// Like [`open`](Self::open), for files with another suffix.
    pub fn open_for(prefix: &Path, suffix: &'static str) -> io::Result<Self> {
        let mut bytes = prefix.as_os_str().as_bytes().to_vec();
        // An existing directory without a trailing slash means files in it, not next to it.
        if prefix.is_dir() && bytes.last() != Some(&b'/') {
            bytes.push(b'/');
        }
        let stem_start = bytes
            .iter()
            .rposition(|b| *b == b'/')
            .map_or(0, |at| at + 1);
        let path = match stem_start {
            0 => PathBuf::from("."),
            _ => PathBuf::from(OsStr::from_bytes(&bytes[..stem_start])),
        };
        let mut stem = bytes[stem_start..].to_vec();
        if stem.last().is_some_and(u8::is_ascii_alphanumeric) {
            stem.push(b'.');
        }
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let directory = open(&path, flags, Mode::empty()).map_err(|e| explain(&path, e.into()))?;
        let mut output = Self {
            directory,
            path,
            stem: OsString::from_vec(stem),
            suffix,
            named_files_only: false,
        };
        output.probe().map_err(|e| match e.raw_os_error() {
            // The directory exists, since it was opened. The kernel's own file systems, such as
            // /proc, return this error.
            Some(libc::ENOENT) => io::Error::other(format!(
                "{}: no files can be created in this directory: choose another with -o",
                text::path(&output.path)
            )),
            _ => output.explain(e),
        })?;
        output.check_length()?;
        Ok(output)
    }

    /// Checks that there is space and that files can be created.
    fn probe(&mut self) -> io::Result<()> {
        let free = nix::sys::statvfs::fstatvfs(&self.directory)?;
        let bytes = free.blocks_available().saturating_mul(free.fragment_size());
        // Some filesystems (overlays on network filesystems) report no blocks at all.
        if free.blocks() > 0 && bytes < MIN_DUMP_BYTES {
            return Err(room::short_of(MIN_DUMP_BYTES));
        }
        match self.create()? {
            Pending::Unnamed(_) => Ok(()),
            Pending::Hidden(_, name) => {
                self.named_files_only = true;
                Ok(unlinkat(
                    &self.directory,
                    name.as_os_str(),
                    UnlinkatFlags::NoRemoveDir,
                )?)
            }
        }
    }

    /// Checks that the longest possible file name is allowed in the directory.
    fn check_length(&self) -> io::Result<()> {
        let reported = nix::sys::statvfs::fstatvfs(&self.directory)?.name_max();
        // Some file systems do not report a limit; the usual one is 255.
        let limit = usize::try_from(reported).ok().filter(|limit| *limit > 0);
        let max_bytes = limit.unwrap_or(255).min(255);
        let appended = text::NAME_BYTES + NUMBERS_BYTES + self.suffix.len();
        match self.stem.len().checked_add(appended) {
            Some(length) if length <= max_bytes => Ok(()),
            _ => Err(io::Error::other(format!(
                "the names of files would be too long: give -o at most {} bytes after its last \
                 slash",
                max_bytes.saturating_sub(appended)
            ))),
        }
    }

    /// Writes a dump of a process under the next free number, which is passed to `fill`.
    pub fn write(
        &self,
        name: &[u8],
        pid: i32,
        fill: impl FnOnce(u64, &mut File) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let base = self.base(name, pid);
        let mut number = self.next_number(&base)?;
        let mut pending = self.create().map_err(|e| self.explain(e))?;
        let filled = fill(number, pending.file()).and_then(|()| sync(pending.file()));
        if let Err(error) = filled {
            self.discard(pending);
            return Err(self.explain(error));
        }
        loop {
            let target = numbered_name(&base, number, self.suffix);
            match self.publish(&pending, &target) {
                Ok(()) => {
                    nix::unistd::fsync(&self.directory)?;
                    return Ok(self.path.join(target));
                }
                Err(Errno::EEXIST) => number += 1,
                Err(error) => {
                    self.discard(pending);
                    return Err(self.explain(error.into()));
                }
            }
        }
    }

    /// Removes a dump written before.
    pub fn remove(&self, file: &Path) -> io::Result<()> {
        let name = file.file_name().unwrap_or_default();
        Ok(unlinkat(&self.directory, name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Returns `PREFIX<name>.<pid>.`.
    fn base(&self, name: &[u8], pid: i32) -> OsString {
        let mut base = self.stem.clone();
        base.push(format!("{}.{pid}.", text::file_name_part(name)));
        base
    }

    /// Returns the highest number in use plus one; 1 if there is none.
    fn next_number(&self, base: &OsStr) -> io::Result<u64> {
        let entries = std::fs::read_dir(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))?;
        let number = |name: OsString| {
            let rest = name.as_bytes().strip_prefix(base.as_bytes())?;
            let digits = rest.strip_suffix(self.suffix.as_bytes())?;
            let digits = std::str::from_utf8(digits).ok().filter(|d| d.len() <= 15)?;
            digits.parse::<u64>().ok()
        };
        let highest = entries
            .flatten()
            .filter_map(|e| number(e.file_name()))
            .max();
        Ok(highest.unwrap_or(0) + 1)
    }

    /// Adds the directory's name to an error and, if the disk is full, the needed and the free
    /// space.
    fn explain(&self, error: io::Error) -> io::Error {
        if !room::is_short(&error) {
            return explain(&self.path, error);
        }
        let free = nix::sys::statvfs::fstatvfs(&self.directory).ok();
        // Some file systems do not report free space.
        let free = free.filter(|space| space.blocks() > 0);
        let free = free.map(|space| {
            space
                .blocks_available()
                .saturating_mul(space.fragment_size())
        });
        io::Error::other(format!(
            "{}: the output directory has too little space: the file {}; make room, or choose \
             another with -o",
            text::path(&self.path),
            room::comparison(room::needed(&error), free)
        ))
    }

    fn create(&self) -> io::Result<Pending> {
        let mode = Mode::from_bits_truncate(0o600);
        if !self.named_files_only {
            let flags = OFlag::O_TMPFILE | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
            match openat(&self.directory, ".", flags, mode) {
                Ok(fd) => return Ok(Pending::Unnamed(fd.into())),
                Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::EINVAL | Errno::ENOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.create_hidden(mode)
    }

    fn create_hidden(&self, mode: Mode) -> io::Result<Pending> {
        let flags =
            OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        for attempt in 0u32.. {
            let name = format!(".mem_profiler.{}.{attempt}.tmp", std::process::id());
            match openat(&self.directory, name.as_str(), flags, mode) {
                Ok(fd) => return Ok(Pending::Hidden(fd.into(), name.into())),
                Err(Errno::EEXIST) if attempt < 1000 => {}
                Err(error) => return Err(error.into()),
            }
        }
        unreachable!("the loop returns")
    }

    /// Links a dump to its name. Returns `EEXIST` if the name exists.
    fn publish(&self, pending: &Pending, target: &OsStr) -> Result<(), Errno> {
        match pending {
            Pending::Unnamed(file) => {
                let source = format!("/proc/self/fd/{}", file.as_raw_fd());
                let flags = AtFlags::AT_SYMLINK_FOLLOW;
                linkat(AT_FDCWD, source.as_str(), &self.directory, target, flags)
            }
            Pending::Hidden(_, name) => self.rename(name, target),
        }
    }

    fn rename(&self, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
        match rename_if_free(&self.directory, from, to) {
            // The file system or kernel does not support `RENAME_NOREPLACE`, or a seccomp filter
            // rejects the call. Checks the name first instead, which leaves a small window.
            Err(Errno::EINVAL | Errno::ENOSYS | Errno::EPERM) => {
                let flags = AtFlags::AT_SYMLINK_NOFOLLOW;
                match nix::sys::stat::fstatat(&self.directory, to, flags) {
                    Ok(_) => Err(Errno::EEXIST),
                    Err(_) => nix::fcntl::renameat(&self.directory, from, &self.directory, to),
                }
            }
            result => result,
        }
    }

    /// Removes an unfinished dump. Closing it frees its space.
    fn discard(&self, pending: Pending) {
        if let Pending::Hidden(_, name) = &pending {
            // A failure is ignored: the error that led here is reported.
            let _ = unlinkat(
                &self.directory,
                name.as_os_str(),
                UnlinkatFlags::NoRemoveDir,
            );
        }
    }
}

/// Syncs a written file. If the disk turns out to be full, the error states the file's size.
fn sync(file: &File) -> io::Result<()> {
    file.sync_all().map_err(|error| match file.metadata() {
        Ok(metadata) if room::is_short(&error) => room::short_of(metadata.len()),
        _ => error,
    })
}

impl Pending {
    fn file(&mut self) -> &mut File {
        match self {
            Self::Unnamed(file) | Self::Hidden(file, _) => file,
        }
    }
}

/// Renames a file unless the new name exists. Calls renameat2(2) by number, since glibc has a
/// wrapper only since 2.28.
fn rename_if_free(directory: &OwnedFd, from: &OsStr, to: &OsStr) -> Result<(), Errno> {
    let fd = directory.as_raw_fd();
    let result = from.with_nix_path(|from| {
        to.with_nix_path(|to| {
            let number = libc::SYS_renameat2;
            let flag = libc::RENAME_NOREPLACE;
            // SAFETY: `fd` is an open directory, and both names are NUL-terminated and only read.
            unsafe { libc::syscall(number, fd, from.as_ptr(), fd, to.as_ptr(), flag) }
        })
    })??;
    Errno::result(result).map(drop)
}

fn numbered_name(base: &OsStr, number: u64, suffix: &str) -> OsString {
    let mut name = base.to_owned();
    name.push(format!("{number:04}{suffix}"));
    name
}

/// Adds the directory's name to an error, and advice if the cause is known.
fn explain(directory: &Path, error: io::Error) -> io::Error {
    let problem = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => {
            "the output directory does not exist: create it, or choose another with -o"
        }
        Some(Errno::ENOTDIR) => "is not a directory: choose another with -o",
        Some(Errno::EACCES | Errno::EPERM) => {
            "the output directory is not writable: choose another with -o"
        }
        Some(Errno::EROFS) => "the output directory is read-only: choose another with -o",
        _ => return io::Error::other(format!("{}: {error}", text::path(directory))),
    };
    io::Error::new(
        error.kind(),
        format!("{}: {problem}", text::path(directory)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn put(output: &Output, text: &str) -> PathBuf {
        output
            .write(b"redis-server", 4711, |_, file| {
                file.write_all(text.as_bytes())
            })
            .unwrap()
    }

    #[test]
    fn a_dot_follows_prefixes_that_end_in_a_letter_or_digit() {
        let dir = tempfile::tempdir().unwrap();
        let file = put(&Output::open(&dir.path().join("custom_prof")).unwrap(), "x");
        assert_eq!(
            file,
            dir.path().join("custom_prof.redis-server.4711.0001.heap")
        );
        let file = put(&Output::open(&dir.path().join("prof_")).unwrap(), "x");
        assert_eq!(file, dir.path().join("prof_redis-server.4711.0001.heap"));
        let file = put(&Output::open(&dir.path().join("")).unwrap(), "x");
        assert_eq!(file, dir.path().join("redis-server.4711.0001.heap"));
    }

    #[test]
    fn numbering_continues_and_nothing_is_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let output = Output::open(&dir.path().join("p_")).unwrap();
        std::fs::write(dir.path().join("p_redis-server.4711.0041.heap"), "old").unwrap();
        let file = put(&output, "new");
        assert_eq!(file, dir.path().join("p_redis-server.4711.0042.heap"));
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
    }

    #[test]
    fn numbers_grow_beyond_four_digits() {
        let dir = tempfile::tempdir().unwrap();
        let output = Output::open(&dir.path().join("p_")).unwrap();
        std::fs::write(dir.path().join("p_redis-server.4711.9999.heap"), "old").unwrap();
        for number in [10_000, 10_001] {
            let name = format!("p_redis-server.4711.{number}.heap");
            assert_eq!(put(&output, "new"), dir.path().join(name));
        }
    }

    #[test]
    fn a_failed_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut output = Output::open(&dir.path().join("p_")).unwrap();
        for named_only in [false, true] {
            output.named_files_only = named_only;
            let failed = output.write(b"a", 1, |_, file| {
                file.write_all(b"half")?;
                Err(io::Error::from(Errno::ENOSPC))
            });
            let message = failed.unwrap_err().to_string();
            assert!(
                message.contains("too little space")
                    && message.contains("are free")
                    && message.contains(&*dir.path().to_string_lossy())
            );
            assert_eq!(names(dir.path()), Vec::<String>::new());
        }
    }

    #[test]
    fn a_name_taken_during_the_write_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let mut output = Output::open(&dir.path().join("p_")).unwrap();
        for named_only in [false, true] {
            output.named_files_only = named_only;
            let their_file = std::cell::Cell::new(PathBuf::new());
            let file = output
                .write(b"a", 1, |number, file| {
                    let name = dir.path().join(format!("p_a.1.{number:04}.heap"));
                    std::fs::write(&name, "theirs")?;
                    their_file.set(name);
                    file.write_all(b"ours")
                })
                .unwrap();
            assert_eq!(std::fs::read(their_file.take()).unwrap(), b"theirs");
            assert_eq!(std::fs::read(file).unwrap(), b"ours");
        }
        assert_eq!(names(dir.path()).len(), 4);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = Output::open(Path::new("/nonexistent/dir/p_"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("/nonexistent/dir/: the output directory does not exist"),
            "{error}"
        );
        let error = Output::open(Path::new("/etc/passwd/p_"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("is not a directory"), "{error}");
    }

    #[test]
    fn an_empty_directory_is_distinguished_from_a_missing_one() {
        let error = Output::open(Path::new("/proc/x_")).unwrap_err().to_string();
        assert!(
            error.starts_with("/proc/: no files can be created in this directory"),
            "{error}"
        );
    }

    #[test]
    fn names_that_would_be_too_long_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let open = |length: usize| Output::open(&dir.path().join("x".repeat(length)));
        let error = open(250).unwrap_err().to_string();
        assert!(error.contains("would be too long"), "{error}");
        // The process's name is longer than any that is written, and the pid is the largest.
        let longest = (1..250).rev().find(|length| open(*length).is_ok()).unwrap();
        let output = open(longest).unwrap();
        let name = [b'n'; 200];
        output.write(&name, 4_194_304, |_, _| Ok(())).unwrap();
        assert!(longest > 150, "{longest}");
    }
}
