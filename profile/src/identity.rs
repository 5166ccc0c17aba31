//! Identity of a file that has no build id, such as a program of Go or of a board's toolchain.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Identity of a file among others at the same path: it is the same file as long as none of this
/// changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Inode.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change of the contents, in nanoseconds since the Unix epoch.
    pub modified_ns: i64,
}

impl FileIdentity {
    /// Returns the identity of the file at `path`. `None`: there is no such regular file.
    pub fn of(path: &Path) -> Option<Self> {
        let file = std::fs::metadata(path).ok().filter(|file| file.is_file())?;
        Some(Self {
            inode: file.ino(),
            size: file.len(),
            modified_ns: nanoseconds(file.mtime(), file.mtime_nsec()),
        })
    }

    /// Returns the identity of the file at `path` if it is the one that a process has mapped: it
    /// has that inode, and was last changed, linked or renamed before `unix_ns`.
    pub fn of_mapped(path: &Path, inode: u64, unix_ns: u64) -> Option<Self> {
        Self::of_unchanged(path, unix_ns).filter(|identity| identity.inode == inode)
    }

    /// Returns the identity of the file at `path` if it was last changed, linked or renamed before
    /// `unix_ns`.
    pub fn of_unchanged(path: &Path, unix_ns: u64) -> Option<Self> {
        let file = std::fs::metadata(path).ok()?;
        let changed_ns = nanoseconds(file.ctime(), file.ctime_nsec());
        let is_unchanged = u64::try_from(changed_ns).is_ok_and(|ns| ns <= unix_ns);
        Self::of(path).filter(|_| is_unchanged)
    }

    /// Parses what [`Display`](fmt::Display) writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let identity = Self {
            inode: words.next()?.parse().ok()?,
            size: words.next()?.parse().ok()?,
            modified_ns: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(identity)
    }
}

impl fmt::Display for FileIdentity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            inode,
            size,
            modified_ns,
        } = self;
        write!(out, "{inode} {size} {modified_ns}")
    }
}

fn nanoseconds(seconds: i64, nanoseconds: i64) -> i64 {
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_changed_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        std::fs::write(&path, "one").unwrap();
        let identity = FileIdentity::of(&path).unwrap();
        assert_eq!(FileIdentity::parse(&identity.to_string()), Some(identity));
        assert_eq!(
            FileIdentity::of_mapped(&path, identity.inode, u64::MAX),
            Some(identity)
        );
        assert_eq!(
            FileIdentity::of_mapped(&path, identity.inode + 1, u64::MAX),
            None
        );
        assert_eq!(
            FileIdentity::of_mapped(&path, identity.inode, identity.modified_ns as u64 - 1),
            None
        );
        let other = directory.path().join("other");
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_ne!(FileIdentity::of(&path), Some(identity));
        assert_eq!(FileIdentity::of(directory.path()), None);
        for text in ["", "1 2", "1 2 3 4", "1 2 x"] {
            assert_eq!(FileIdentity::parse(text), None, "{text}");
        }
    }
}
