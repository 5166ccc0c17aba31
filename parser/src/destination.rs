//! Writes results to standard output, or to a file that is replaced atomically.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use mem_parser::stdin;
use profile::{opening, printable};

/// Destination of a result.
#[derive(Debug)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// File given by the user.
    File(PathBuf),
    /// File named after the dump.
    Named(PathBuf),
}

impl Destination {
    /// Checks the destination before any work is done. The error is a message for users.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Stdout => Ok(()),
            Self::File(path) | Self::Named(path) => check(path),
        }
    }

    /// Returns an error if the output would replace an input file, under whatever name.
    pub fn check_differs_from<'a>(&self, mut inputs: impl Iterator<Item = &'a Path>) -> Result<()> {
        let (Self::File(path) | Self::Named(path)) = self else {
            return Ok(());
        };
        let Some(output) = identity(path) else {
            return Ok(());
        };
        match inputs.find(|input| identity(input) == Some(output)) {
            Some(input) => bail!(
                "{} would be replaced, but is read as {}; name another file with -o",
                printable::path(path),
                stdin::display_name(input)
            ),
            None => Ok(()),
        }
    }

    /// Writes a result.
    pub fn write(&self, content: &[u8]) -> Result<()> {
        match self {
            Self::Stdout => to_stdout(content),
            Self::File(path) => to_file(path, content),
            Self::Named(path) => {
                if !is_replaceable(path, content) {
                    let path_text = printable::path(path);
                    bail!("{path_text} exists and seems to be something else; name a file with -o");
                }
                to_file(path, content)
            }
        }
    }
}

/// Returns the name of the output file for a dump, in the current directory.
pub fn name_for(dump: &Path, extension: &str) -> PathBuf {
    let name = if stdin::is_stdin_path(dump) {
        "stdin".as_ref()
    } else {
        dump.file_name().unwrap_or(dump.as_os_str())
    };
    let mut stem = Path::new(name);
    for known in ["zst", "gz", "heap", "cpu", "pb", "prof", "folded", "txt"] {
        if stem.extension().is_some_and(|e| e == known) {
            stem = Path::new(stem.file_stem().unwrap_or(name));
        }
    }
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

/// Returns device and inode of a regular file. Other files have no identity here: a device may be
/// both read and written.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let path = if stdin::is_stdin_path(path) {
        Path::new("/dev/stdin")
    } else {
        path
    };
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((found.dev(), found.ino()))
}

/// Number of leading bytes by which an earlier output is recognised.
const SIGNATURE_SIZE: usize = 90;

/// Returns true if nothing would be lost by writing to `path`: there is no file, or it is an
/// earlier output of this kind.
fn is_replaceable(path: &Path, content: &[u8]) -> bool {
    let found = match fs::symlink_metadata(path) {
        Err(_) => return true,
        Ok(found) => found,
    };
    let start = || {
        let mut start = Vec::new();
        let file = opening::regular(path).ok()?;
        file.take(SIGNATURE_SIZE as u64)
            .read_to_end(&mut start)
            .ok()?;
        Some(start)
    };
    let new_start = &content[..content.len().min(SIGNATURE_SIZE)];
    found.is_file() && start().is_some_and(|start| start == new_start)
}

/// Writes to standard output. A closed pipe (`| head`) is not an error.
pub fn to_stdout(content: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(content).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("standard output cannot be written"),
    }
}

/// Writes a file by way of a temporary file.
fn to_file(path: &Path, content: &[u8]) -> Result<()> {
    check(path)?;
    // Devices and FIFOs are written directly; renaming would replace them.
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return File::options()
            .write(true)
            .open(path)
            .and_then(|mut file| file.write_all(content))
            .with_context(|| format!("{} cannot be written", printable::path(path)));
    }
    let temporary = temporary_name(path)?;
    let mut options = File::options();
    // Readable only by its owner, like dumps: it shows addresses, and may contain sources.
    options.write(true).create_new(true).mode(0o600);
    let file = options
        .open(&temporary)
        .map_err(|error| write_error(path, error, content))?;
    let written = write_whole(file, content).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The error is about the write; a leftover temporary file is not worth another message.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(|error| write_error(path, error, content))
}

/// Returns the error of a failed write. If the disk is full, it states the needed and the free
/// size.
fn write_error(path: &Path, error: io::Error, content: &[u8]) -> anyhow::Error {
    let path_text = printable::path(path);
    let is_short = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
    match free_bytes(directory(path)).filter(|_| is_short) {
        Some(free) => {
            let sizes = [content.len() as u64, free].map(shown_bytes);
            let [needed, free] = sizes;
            anyhow!(
                "{path_text} needs {needed}, {free} are free: make room, or name another with -o"
            )
        }
        None => anyhow::Error::from(error).context(format!("{path_text} cannot be written")),
    }
}

/// Formats a size in a suitable unit.
fn shown_bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..0x10_0000 => format!("{:.1} KiB", n as f64 / 1024.0),
        _ => format!("{:.1} MiB", n as f64 / f64::from(1 << 20)),
    }
}

/// Returns the free space of the filesystem of a directory, in bytes; `None` if unknown.
fn free_bytes(directory: &Path) -> Option<u64> {
    let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
    let mut space = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is NUL-terminated, and `space` has room for the one statvfs that is written.
    if unsafe { libc::statvfs(path.as_ptr(), space.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: statvfs succeeded, so it has initialized the structure.
    let space = unsafe { space.assume_init() };
    // Some filesystems report no sizes.
    let known = (space.f_blocks > 0).then_some(space)?;
    // These fields have 32 bits on some machines.
    #[allow(clippy::useless_conversion)]
    Some(u64::from(known.f_bavail).saturating_mul(u64::from(known.f_frsize)))
}

fn write_whole(mut file: File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    file.sync_all()
}

/// Checks an output file before any work is done. The error is a message for users.
fn check(path: &Path) -> Result<()> {
    if path.is_dir() {
        bail!(
            "{} is a directory; name a file in it with -o",
            printable::path(path)
        );
    }
    let directory = directory(path);
    if !directory.is_dir() {
        bail!(
            "the directory {} does not exist; create it first: mkdir -p {0}",
            printable::path(directory)
        );
    }
    Ok(())
}

fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn temporary_name(path: &Path) -> Result<PathBuf> {
    let name = path
        .file_name()
        .with_context(|| format!("{} names no file", printable::path(path)))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    Ok(directory(path).join(temporary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_atomically() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.svg");
        fs::write(&path, "old").unwrap();
        to_file(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn outputs_are_named_after_dumps() {
        let name = |dump: &str, extension| name_for(Path::new(dump), extension);
        assert_eq!(name("/tmp/x.heap", "html"), Path::new("x.html"));
        assert_eq!(
            name("a.4711.0001.heap", "svg"),
            Path::new("a.4711.0001.svg")
        );
        assert_eq!(name("x.pb.gz", "flame.svg"), Path::new("x.flame.svg"));
        assert_eq!(name("prof.0001", "html"), Path::new("prof.0001.html"));
        assert_eq!(name(".heap", "html"), Path::new(".heap.html"));
        assert_eq!(name("x.html", "html"), Path::new("x.html.html"));
        assert_eq!(name("-", "html"), Path::new("stdin.html"));
    }

    #[test]
    fn only_earlier_outputs_are_replaced_unasked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.html");
        let content = |end: &str| format!("{}{end}", "<".repeat(SIGNATURE_SIZE)).into_bytes();
        let named = Destination::Named(path.clone());
        named.write(&content("first")).unwrap();
        named.write(&content("second")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), content("second"));
        fs::write(&path, "my own").unwrap();
        let error = named.write(&content("third")).unwrap_err().to_string();
        assert!(error.contains("x.html exists"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"my own");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = to_file(&directory.path().join("no/out"), b"")
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no does not exist"), "{error}");
        let error = to_file(directory.path(), b"").unwrap_err().to_string();
        assert!(error.contains("is a directory"), "{error}");
    }
}
