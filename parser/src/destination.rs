//! Where results go: standard output, or a file that appears whole or not at all.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use heap_format::{opening, printable};

/// Where a result goes.
#[derive(Debug)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// The file that was requested.
    File(PathBuf),
    /// A file named after the dump.
    Named(PathBuf),
}

impl Destination {
    /// Says what is wrong with it, before any work is done for it.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Stdout => Ok(()),
            Self::File(path) | Self::Named(path) => check(path),
        }
    }

    /// Refuses to replace a file that is read. Another name of the same file counts as well.
    pub fn check_apart<'a>(&self, mut inputs: impl Iterator<Item = &'a Path>) -> Result<()> {
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
                printable::path(input)
            ),
            None => Ok(()),
        }
    }

    /// Writes a result there.
    pub fn write(&self, content: &[u8]) -> Result<()> {
        match self {
            Self::Stdout => to_stdout(content),
            Self::File(path) => to_file(path, content),
            Self::Named(path) => {
                if !is_replaceable(path, content) {
                    let shown = printable::path(path);
                    bail!("{shown} exists and seems to be something else; name a file with -o");
                }
                to_file(path, content)
            }
        }
    }
}

/// The name of an output of a dump, in the current directory.
pub fn name_for(dump: &Path, ending: &str) -> PathBuf {
    let name = dump.file_name().unwrap_or(dump.as_os_str());
    let mut stem = Path::new(name);
    for known in ["gz", "heap", "cpu", "pb", "prof", "folded", "txt"] {
        if stem.extension().is_some_and(|e| e == known) {
            stem = Path::new(stem.file_stem().unwrap_or(name));
        }
    }
    let mut name = stem.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// The identity of a file, whatever its name. Only regular files have one: a device may be read and
/// written.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((found.dev(), found.ino()))
}

/// Bytes by which an earlier output is recognised.
const START: usize = 90;

/// Whether what is there may be replaced: nothing, or an earlier output of this kind.
fn is_replaceable(path: &Path, content: &[u8]) -> bool {
    let found = match fs::symlink_metadata(path) {
        Err(_) => return true,
        Ok(found) => found,
    };
    let start = || {
        let mut start = Vec::new();
        let file = opening::regular(path).ok()?;
        file.take(START as u64).read_to_end(&mut start).ok()?;
        Some(start)
    };
    let own = &content[..content.len().min(START)];
    found.is_file() && start().is_some_and(|start| start == own)
}

/// A reader that has seen enough (`| head`) is not an error.
pub fn to_stdout(content: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(content).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("standard output cannot be written"),
    }
}

fn to_file(path: &Path, content: &[u8]) -> Result<()> {
    check(path)?;
    // Devices and pipes take the content as it comes; renaming would replace them.
    if fs::metadata(path).is_ok_and(|m| !m.is_file()) {
        return File::options()
            .write(true)
            .open(path)
            .and_then(|mut file| file.write_all(content))
            .with_context(|| format!("{} cannot be written", printable::path(path)));
    }
    let temporary = temporary_name(path)?;
    let mut options = File::options();
    // As dumps are: it shows where code lies in memory, and may hold sources.
    options.write(true).create_new(true).mode(0o600);
    let file = options
        .open(&temporary)
        .map_err(|error| failure(path, error, content))?;
    let written = write_whole(file, content).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The message is about the write; a left-over temporary file is not
        // worth a second one.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(|error| failure(path, error, content))
}

/// Why a file was not written; where its disk is too small, with what is needed and what is free.
fn failure(path: &Path, error: io::Error, content: &[u8]) -> anyhow::Error {
    let shown = printable::path(path);
    let is_short = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT));
    match free_bytes(directory(path)).filter(|_| is_short) {
        Some(free) => {
            let sizes = [content.len() as u64, free].map(shown_bytes);
            let [needed, free] = sizes;
            anyhow!("{shown} needs {needed}, {free} are free: make room, or name another with -o")
        }
        None => anyhow::Error::from(error).context(format!("{shown} cannot be written")),
    }
}

/// Bytes in the unit that suits them.
fn shown_bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..0x10_0000 => format!("{:.1} KiB", n as f64 / 1024.0),
        _ => format!("{:.1} MiB", n as f64 / f64::from(1 << 20)),
    }
}

/// Bytes that are free for us where a directory is; `None` if that is not known.
fn free_bytes(directory: &Path) -> Option<u64> {
    let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
    let mut space = MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path ends in a NUL, and the structure is ours to write.
    if unsafe { libc::statvfs(path.as_ptr(), space.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the call succeeded, so it has filled the structure in.
    let space = unsafe { space.assume_init() };
    // Some filesystems do not know.
    let known = (space.f_blocks > 0).then_some(space)?;
    // 32 bits wide on some machines.
    #[allow(clippy::useless_conversion)]
    Some(u64::from(known.f_bavail).saturating_mul(u64::from(known.f_frsize)))
}

fn write_whole(mut file: File, content: &[u8]) -> io::Result<()> {
    file.write_all(content)?;
    file.sync_all()
}

/// Says what is wrong with an output file, before any work is done for it.
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
    fn files_appear_whole_and_leave_nothing_else() {
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
        let name = |dump: &str, ending| name_for(Path::new(dump), ending);
        assert_eq!(name("/tmp/x.heap", "html"), Path::new("x.html"));
        assert_eq!(
            name("a.4711.0001.heap", "svg"),
            Path::new("a.4711.0001.svg")
        );
        assert_eq!(name("x.pb.gz", "flame.svg"), Path::new("x.flame.svg"));
        assert_eq!(name("prof.0001", "html"), Path::new("prof.0001.html"));
        assert_eq!(name(".heap", "html"), Path::new(".heap.html"));
        assert_eq!(name("x.html", "html"), Path::new("x.html.html"));
    }

    #[test]
    fn only_earlier_outputs_are_replaced_unasked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.html");
        let content = |end: &str| format!("{}{end}", "<".repeat(START)).into_bytes();
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
