//! The spool: a directory of bounded size with dumps that wait to be sent.

// Decision 45: profiles are pushed from a spool.
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail};
use profile::{numbering, printable};

/// Prefix of the names of dumps.
pub const PREFIX: &str = "push_";

/// A directory of dumps.
#[derive(Debug)]
pub struct Spool {
    directory: PathBuf,
    /// Maximum size of all dumps, in bytes.
    max_bytes: u64,
    /// True if this program has created the directory, and removes it at the end.
    is_temporary: bool,
}

impl Spool {
    /// Opens the directory given, creating it if necessary, or a temporary one if none is given.
    pub fn open(directory: Option<PathBuf>, max_bytes: u64) -> anyhow::Result<Self> {
        let is_temporary = directory.is_none();
        let directory = directory.unwrap_or_else(|| {
            std::env::temp_dir().join(format!("mem_profiler_push.{}", std::process::id()))
        });
        let path_text = printable::path(&directory);
        let created = fs::DirBuilder::new().mode(0o700).create(&directory);
        match created {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && !is_temporary => {}
            created => created.with_context(|| {
                format!("{path_text} cannot be created; name another with --spool")
            })?,
        }
        if !directory.is_dir() {
            bail!("{path_text} is not a directory; name one with --spool");
        }
        Ok(Self {
            directory,
            max_bytes,
            is_temporary,
        })
    }

    /// Returns the path of the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the dumps, oldest first.
    pub fn waiting(&self) -> Vec<PathBuf> {
        self.dumps().into_iter().map(|dump| dump.path).collect()
    }

    /// Removes the oldest dumps until the rest fit into the spool. Returns the removed ones.
    pub fn shrink(&self) -> Vec<PathBuf> {
        let dumps = self.dumps();
        let mut bytes: u64 = dumps.iter().map(|dump| dump.size).sum();
        let mut dropped = Vec::new();
        for Dump { path, size, .. } in dumps {
            if bytes <= self.max_bytes {
                break;
            }
            bytes -= size;
            self.remove(&path);
            dropped.push(path);
        }
        dropped
    }

    /// Removes a dump that was sent. If that fails, it will be sent again.
    pub fn remove(&self, dump: &Path) {
        let _ = fs::remove_file(dump);
    }

    /// Removes the directory at the end, if it is temporary and empty.
    pub fn close(&self) {
        if self.is_temporary && fs::remove_dir(&self.directory).is_err() {
            let path_text = printable::path(&self.directory);
            super::print(&format!(
                "what was not sent is in {path_text}; send it with --dumps"
            ));
        }
    }

    fn dumps(&self) -> Vec<Dump> {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        let dump = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let name = name.to_str()?;
            let data = entry.metadata().ok()?;
            let is_dump = data.is_file() && name.starts_with(PREFIX) && name.ends_with(".heap");
            is_dump.then_some(Dump {
                modified: data.modified().ok()?,
                path: entry.path(),
                size: data.len(),
            })
        };
        let mut dumps: Vec<_> = entries.filter_map(dump).collect();
        // File times have the resolution of a clock tick, so several dumps may have the same.
        dumps.sort_by_cached_key(|dump| (dump.modified, numbering::key(&dump.path)));
        order_by_number(dumps)
    }
}

/// A dump in the spool.
#[derive(Clone, Debug)]
struct Dump {
    modified: SystemTime,
    path: PathBuf,
    /// Size in bytes.
    size: u64,
}

/// Sorts the dumps of each process by their numbers, within the positions that the process has in
/// the list. File times alone do not suffice, since the system clock may have been set back.
fn order_by_number(dumps: Vec<Dump>) -> Vec<Dump> {
    let mut processes: BTreeMap<PathBuf, Vec<usize>> = BTreeMap::new();
    for (index, Dump { path, .. }) in dumps.iter().enumerate() {
        // Removes the suffix and the number.
        let process = path.with_extension("").with_extension("");
        processes.entry(process).or_default().push(index);
    }
    let mut order: Vec<usize> = (0..dumps.len()).collect();
    for indices in processes.values() {
        let mut numbered = indices.clone();
        numbered.sort_by_cached_key(|&index| numbering::key(&dumps[index].path));
        for (position, index) in indices.iter().zip(numbered) {
            order[*position] = index;
        }
    }
    order
        .into_iter()
        .map(|index| dumps[index].clone())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_five_digits_follow_those_of_four() {
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
    fn dumps_are_ordered_by_number_when_the_clock_is_set_back() {
        let directory = tempfile::tempdir().unwrap();
        let spool = Spool::open(Some(directory.path().to_owned()), 1000).unwrap();
        let written = [
            (300, "push_a.1.0009.heap"),
            (301, "push_b.2.0001.heap"),
            (302, "push_a.1.0010.heap"),
            (3, "push_a.1.0011.heap"),
            (4, "push_b.2.0002.heap"),
        ];
        for (seconds, name) in written {
            let file = fs::File::create(directory.path().join(name)).unwrap();
            let modified = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.set_modified(modified).unwrap();
        }
        let names = ["a.1.0009", "b.2.0001", "a.1.0010", "b.2.0002", "a.1.0011"];
        let paths = names.map(|name| directory.path().join(format!("push_{name}.heap")));
        assert_eq!(spool.waiting(), paths);
    }

    #[test]
    fn the_oldest_files_are_dropped_from_a_full_spool() {
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
            let modified = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            fs::File::options()
                .write(true)
                .open(&path)
                .unwrap()
                .set_modified(modified)
                .unwrap();
        }
        assert_eq!(spool.waiting().len(), 3);
        assert_eq!(spool.shrink(), [directory.path().join("push_a.heap")]);
        assert_eq!(spool.waiting().len(), 2);
        assert!(directory.path().join("other").exists());
    }
}
