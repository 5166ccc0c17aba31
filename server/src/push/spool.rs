//! The directory with profiles waiting to be sent.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail};
use heap_format::{numbering, printable};

/// How names of dumps begin.
pub const PREFIX: &str = "push_";

/// A bounded directory of dumps.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    most: u64,
    /// Whether it is removed at the end.
    own: bool,
}

impl Spool {
    /// The directory that was requested, made if it is not there; or one of our own.
    pub fn open(directory: Option<PathBuf>, most: u64) -> anyhow::Result<Self> {
        let own = directory.is_none();
        let directory = directory.unwrap_or_else(|| {
            std::env::temp_dir().join(format!("mem_profiler_push.{}", std::process::id()))
        });
        let shown = printable::path(&directory);
        let made = fs::DirBuilder::new().mode(0o700).create(&directory);
        match made {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && !own => {}
            made => made
                .with_context(|| format!("{shown} cannot be created; name another with --spool"))?,
        }
        if !directory.is_dir() {
            bail!("{shown} is not a directory; name one with --spool");
        }
        Ok(Self {
            directory,
            most,
            own,
        })
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Its dumps, oldest first.
    pub fn waiting(&self) -> Vec<PathBuf> {
        self.dumps().into_iter().map(|(_, path, _)| path).collect()
    }

    /// Removes the oldest while they are too large together; returns which.
    pub fn shrink(&self) -> Vec<PathBuf> {
        let dumps = self.dumps();
        let mut bytes: u64 = dumps.iter().map(|dump| dump.2).sum();
        let mut dropped = Vec::new();
        for (_, path, size) in dumps {
            if bytes <= self.most {
                break;
            }
            bytes -= size;
            self.remove(&path);
            dropped.push(path);
        }
        dropped
    }

    /// Removes a dump that was sent. One that cannot be removed is sent again.
    pub fn remove(&self, dump: &Path) {
        let _ = fs::remove_file(dump);
    }

    /// At the end: an empty directory of our own goes.
    pub fn leave(&self) {
        if self.own && fs::remove_dir(&self.directory).is_err() {
            let shown = printable::path(&self.directory);
            super::say(&format!(
                "what was not sent is in {shown}; send it with --dumps"
            ));
        }
    }

    fn dumps(&self) -> Vec<(SystemTime, PathBuf, u64)> {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let dump = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let name = name.to_str()?;
            let data = entry.metadata().ok()?;
            let is_one = data.is_file() && name.starts_with(PREFIX) && name.ends_with(".heap");
            is_one.then_some((data.modified().ok()?, entry.path(), data.len()))
        };
        let mut dumps: Vec<_> = entries.filter_map(dump).collect();
        // Times of files are of a clock tick: several dumps may have the same.
        dumps.sort_by_cached_key(|(time, path, _)| (*time, numbering::key(path)));
        dumps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_is_after_9999() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::open(Some(directory.path().to_owned()), 25).unwrap();
        let names = ["push_a.1.9999.heap", "push_a.1.10000.heap"];
        let paths = names.map(|name| directory.path().join(name));
        for path in &paths {
            fs::write(path, [0; 10]).unwrap();
            let file = fs::File::options().write(true).open(path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        assert_eq!(spool.waiting(), paths);
    }

    #[test]
    fn the_oldest_go_when_it_is_full() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::open(Some(directory.path().to_owned()), 25).unwrap();
        for (seconds, name) in [
            (3, "push_c.heap"),
            (1, "push_a.heap"),
            (2, "push_b.heap"),
            (0, "other"),
        ] {
            let path = directory.path().join(name);
            fs::write(&path, [0; 10]).unwrap();
            let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(at)
                .unwrap();
        }
        assert_eq!(spool.waiting().len(), 3);
        assert_eq!(spool.shrink(), [directory.path().join("push_a.heap")]);
        assert_eq!(spool.waiting().len(), 2);
        assert!(directory.path().join("other").exists());
    }
}
