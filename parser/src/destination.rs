//! Where results go: standard output, or a file that appears whole or not at
//! all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use heap_format::printable;

/// Writes `content` to the file, or to standard output when there is none.
pub fn write(path: Option<&Path>, content: &[u8]) -> Result<()> {
    match path {
        None => to_stdout(content),
        Some(path) => to_file(path, content),
    }
}

/// A reader that has seen enough (`| head`) is no error.
fn to_stdout(content: &[u8]) -> Result<()> {
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
    let written = write_whole(&temporary, content).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The message is about the write; a left-over temporary file is not
        // worth a second one.
        let _ = fs::remove_file(&temporary);
    }
    written.with_context(|| format!("{} cannot be written", printable::path(path)))
}

fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut options = File::options();
    // As dumps are: it shows where code lies in memory, and may hold sources.
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Says what is wrong with an output file, before any work is done for it.
pub fn check(path: &Path) -> Result<()> {
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
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn files_appear_whole_and_leave_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out.svg");
        fs::write(&path, "old").unwrap();
        write(Some(&path), b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_missing_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let error = write(Some(&directory.path().join("no/out")), b"")
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no does not exist"), "{error}");
        let error = write(Some(directory.path()), b"").unwrap_err().to_string();
        assert!(error.contains("is a directory"), "{error}");
    }
}
