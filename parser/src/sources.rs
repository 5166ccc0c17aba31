//! Source files, which a dump and debug information name: whoever wrote these can
//! name any file.
//!
//! What is read ends up on a terminal, or in a page that is passed on. So a
//! file is a source only if
//! - its name, once all symbolic links are resolved, is that of a source file, or the caller named
//!   its directory with `--source_path`;
//! - the caller could read it under their own user id: under a changed user id (`sudo`, a
//!   set-user-id bit), and for root at all, everybody must be able to read it, and each directory
//!   above it, or it lies below `--source_path`;
//! - it is a regular file, of bounded size, and text.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use heap_format::{opening, printable};

/// Largest file that is read.
const MAX_SOURCE: u64 = 16 << 20;

/// Endings of the names of sources.
const ENDINGS: [&str; 57] = [
    "c", "cc", "cpp", "cxx", "c++", "h", "hh", "hpp", "hxx", "h++", "inc", "inl", "ipp", "tcc",
    "tpp", "def", "cu", "cuh", "cl", "rs", "go", "py", "pyx", "pxd", "pxi", "s", "S", "asm", "m",
    "mm", "zig", "d", "f", "f90", "F90", "swift", "nim", "pas", "adb", "ads", "js", "ts", "rb",
    "java", "kt", "scala", "hs", "ml", "mli", "cr", "v", "y", "l", "yy", "ll", "vala", "C",
];

/// Endings of the names of zip files that Python imports from.
const ARCHIVES: [&str; 3] = ["zip", "pyz", "whl"];

/// Why a source is not shown.
#[derive(Debug, thiserror::Error)]
pub enum NotShown {
    /// It is nowhere.
    #[error("{file} was not found; --source_path names directories to search")]
    NotFound {
        /// The source.
        file: String,
    },
    /// It is not a file by itself, but a part of one.
    #[error(
        "{file} is within {archive}, a zip file that Python imports from, and is not read there: \
         unpack that, and name the directory with --source_path"
    )]
    Packed {
        /// The source.
        file: String,
        /// The file that it is in.
        archive: String,
    },
    /// There is a file of this name, but it is not read.
    #[error("{file} is not shown: {why}")]
    Refused {
        /// The source.
        file: String,
        /// What speaks against it.
        why: Refusal,
    },
}

/// What speaks against reading a file as a source.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// There is none.
    #[error("it was not found")]
    Absent,
    /// It cannot be reached or read.
    #[error("{0}")]
    Io(io::Error),
    /// Its name is not a source's.
    #[error(
        "{0} does not have the name of a source file; --source_path names its directory if it \
             is one"
    )]
    Name(String),
    /// Not everybody may read it, and the reader is not an ordinary user.
    #[error(
        "not everybody may read it, so root does not read it for a dump; --source_path names its \
         directory if it is a source"
    )]
    Private,
    /// It is larger than any source.
    #[error("it is too large for a source")]
    TooLarge,
    /// It holds bytes that no text has.
    #[error("it is not text")]
    Binary,
}

/// The text of a source file: where it was compiled, or below one of the
/// directories that the caller named.
pub fn read(file: &str, directories: &[PathBuf]) -> Result<String, NotShown> {
    let relative: PathBuf = Path::new(file)
        .components()
        .filter(|c| matches!(c, Component::Normal(_)))
        .collect();
    let base = relative.file_name().map(Path::new);
    let archive = archive(Path::new(file));
    let unpacked = archive.and_then(|archive| Path::new(file).strip_prefix(archive).ok());
    let mut refused = None;
    for directory in directories {
        for below in [Some(&*relative), unpacked, base].into_iter().flatten() {
            match Found::below(directory, below).and_then(Found::text) {
                Ok(text) => return Ok(text),
                Err(Refusal::Absent) => {}
                Err(why) => refused = refused.or(Some(why)),
            }
        }
    }
    match Found::named(Path::new(file)).and_then(Found::text) {
        Ok(text) => return Ok(text),
        Err(Refusal::Absent) => {}
        Err(why) => refused = refused.or(Some(why)),
    }
    let file = printable::printable(file).into_owned();
    Err(match (refused, archive) {
        (Some(why), _) => NotShown::Refused { file, why },
        (None, Some(archive)) => NotShown::Packed {
            file,
            archive: printable::path(archive),
        },
        (None, None) => NotShown::NotFound { file },
    })
}

/// The file that a source is within, whose path begins with that file's: Python's modules are, in
/// zip files. For one that is not on this machine, the name decides.
fn archive(file: &Path) -> Option<&Path> {
    let mut above = file.ancestors().skip(1);
    above.find(|path| match path.metadata() {
        Ok(metadata) => metadata.is_file(),
        Err(_) => {
            let ending = path.extension().and_then(|ending| ending.to_str());
            ending.is_some_and(|ending| ARCHIVES.contains(&ending))
        }
    })
}

/// Whether a file has the name of a source file.
pub fn is_source(file: &Path) -> bool {
    let ending = file.extension().and_then(|e| e.to_str());
    // The headers of C++'s library have none.
    let header = file.to_string_lossy().contains("/include/c++/") && ending.is_none();
    header || ending.is_some_and(|ending| ENDINGS.contains(&ending))
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Absent,
            _ => Self::Io(error),
        }
    }
}

/// A file that is held, but not opened yet.
struct Found {
    hold: File,
}

impl Found {
    /// A file that a dump names by itself.
    fn named(path: &Path) -> Result<Self, Refusal> {
        let path = path.canonicalize()?;
        if !is_source(&path) {
            return Err(Refusal::Name(printable::path(&path)));
        }
        let (hold, public) = walk(&path)?;
        if !public && !is_plain_user() {
            return Err(Refusal::Private);
        }
        Ok(Self { hold })
    }

    /// A file below a directory that the caller named.
    fn below(directory: &Path, name: &Path) -> Result<Self, Refusal> {
        let directory = directory.canonicalize()?;
        let path = directory.join(name).canonicalize()?;
        if !path.starts_with(&directory) {
            // A link leads out of it.
            return Self::named(&path);
        }
        let (hold, _) = walk(&path)?;
        Ok(Self { hold })
    }

    fn text(self) -> Result<String, Refusal> {
        let file = opening::held_regular(&self.hold)?;
        if file.metadata()?.len() > MAX_SOURCE {
            return Err(Refusal::TooLarge);
        }
        let mut bytes = Vec::new();
        file.take(MAX_SOURCE).read_to_end(&mut bytes)?;
        if bytes.contains(&0) {
            return Err(Refusal::Binary);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Opens a file by a path without symbolic links, step by step, so that none placed there meanwhile
/// is followed. Also returns whether everybody may reach and read it.
fn walk(path: &Path) -> io::Result<(File, bool)> {
    let mut hold = opening::hold(Path::new("/"), libc::O_DIRECTORY)?;
    let mut public = true;
    let everybody = |metadata: &Metadata, bit: u32| metadata.mode() & bit != 0;
    for component in path.components() {
        let name = match component {
            Component::RootDir => continue,
            Component::Normal(name) => name,
            _ => return Err(io::Error::other("is not an absolute path")),
        };
        public &= everybody(&hold.metadata()?, 0o001);
        let next = Path::new(&opening::through(&hold)).join(name);
        hold = opening::hold(&next, libc::O_NOFOLLOW)?;
        if hold.metadata()?.is_symlink() {
            return Err(io::Error::other("a symbolic link was put in its way"));
        }
    }
    public &= everybody(&hold.metadata()?, 0o004);
    Ok((hold, public))
}

/// Whether the caller is an ordinary user who runs this under their own user id: then the kernel
/// decides what it may read.
fn is_plain_user() -> bool {
    // SAFETY: these have no preconditions.
    let (ids, groups) = unsafe {
        (
            [libc::getuid(), libc::geteuid()],
            [libc::getgid(), libc::getegid()],
        )
    };
    ids[0] == ids[1] && groups[0] == groups[1] && ids[0] != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_called_as_sources_are_sources() {
        let yes = [
            "/a/x.c",
            "src/lib.rs",
            "/usr/include/c++/12/vector",
            "a.b/y.hpp",
        ];
        assert!(yes.iter().all(|file| is_source(Path::new(file))));
        let no = [
            "/etc/shadow",
            "/root/.ssh/id_rsa",
            "/proc/self/environ",
            "x.key",
            "",
        ];
        assert!(!no.iter().any(|file| is_source(Path::new(file))));
    }
}
