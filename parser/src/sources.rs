//! Reads source files, whose names come from dumps and debug information and are therefore
//! untrusted.
//!
//! The text is shown on a terminal, or in a page that may be shared. So a file is only accepted as
//! a source if
//! - its name, after resolving symbolic links, has the extension of a source file, or the user has
//!   given its directory with `--source_path`;
//! - the user could read it under their own user id. Under a changed user id (`sudo`, set-user-id),
//!   and for root, everybody must be able to read it and to search each directory above it, unless
//!   it is below `--source_path`;
//! - it is a regular text file of bounded size.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use profile::{opening, printable};

/// Maximum size of a source file, in bytes.
const MAX_SOURCE: u64 = 16 << 20;

/// Extensions of source files.
const EXTENSIONS: [&str; 57] = [
    "c", "cc", "cpp", "cxx", "c++", "h", "hh", "hpp", "hxx", "h++", "inc", "inl", "ipp", "tcc",
    "tpp", "def", "cu", "cuh", "cl", "rs", "go", "py", "pyx", "pxd", "pxi", "s", "S", "asm", "m",
    "mm", "zig", "d", "f", "f90", "F90", "swift", "nim", "pas", "adb", "ads", "js", "ts", "rb",
    "java", "kt", "scala", "hs", "ml", "mli", "cr", "v", "y", "l", "yy", "ll", "vala", "C",
];

/// Extensions of zip files that Python imports from.
const ARCHIVES: [&str; 3] = ["zip", "pyz", "whl"];

/// Reason why a source is not shown.
#[derive(Debug, thiserror::Error)]
pub enum NotShown {
    /// There is no such file.
    #[error("{file} was not found; --source_path names directories to search")]
    NotFound {
        /// Path of the source.
        file: String,
    },
    /// The source is part of an archive.
    #[error(
        "{file} is within {archive}, a zip file, and is not read there: unpack it, and name the directory with --source_path"
    )]
    Packed {
        /// Path of the source.
        file: String,
        /// Path of the archive.
        archive: String,
    },
    /// There is such a file, but it is not accepted.
    #[error("{file} is not shown: {why}")]
    Refused {
        /// Path of the source.
        file: String,
        /// Reason why it is not accepted.
        why: Refusal,
    },
}

/// Reason why a file is not accepted as a source.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// There is no such file.
    #[error("it was not found")]
    Absent,
    /// The file cannot be reached or read.
    #[error("{0}")]
    Io(io::Error),
    /// The name has no extension of a source file.
    #[error(
        "{0} does not have the name of a source file; --source_path names its directory if it \
             is one"
    )]
    Name(String),
    /// Not everybody may read the file, and the caller is not an ordinary user.
    #[error(
        "not everybody may read it, so root does not read it for a dump; --source_path names its \
         directory if it is a source"
    )]
    Private,
    /// The file is larger than `MAX_SOURCE`.
    #[error("it is too large for a source")]
    TooLarge,
    /// The file contains NUL bytes.
    #[error("it is not text")]
    Binary,
}

/// Reads a source file, at its recorded path or below one of the given directories.
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
        for name in [Some(&*relative), unpacked, base].into_iter().flatten() {
            match SourceFile::below_directory(directory, name).and_then(SourceFile::read_text) {
                Ok(text) => return Ok(text),
                Err(Refusal::Absent) => {}
                Err(why) => refused = refused.or(Some(why)),
            }
        }
    }
    match SourceFile::at_recorded_path(Path::new(file)).and_then(SourceFile::read_text) {
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

/// Returns the archive that a source is in, whose path is a prefix of the source's: Python imports
/// modules from zip files. If there is no such file on this machine, the extension decides.
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

/// Returns true if a file has the name of a source file.
pub fn is_source(file: &Path) -> bool {
    let ending = file.extension().and_then(|e| e.to_str());
    // Headers of the C++ standard library have no extension.
    let header = file.to_string_lossy().contains("/include/c++/") && ending.is_none();
    header || ending.is_some_and(|ending| EXTENSIONS.contains(&ending))
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Self::Absent,
            _ => Self::Io(error),
        }
    }
}

/// A file opened with `O_PATH`, to be checked before it is read.
struct SourceFile {
    hold: File,
}

impl SourceFile {
    /// Finds a file at a path that a dump contains.
    fn at_recorded_path(path: &Path) -> Result<Self, Refusal> {
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

    /// Finds a file below a directory given by the user.
    fn below_directory(directory: &Path, name: &Path) -> Result<Self, Refusal> {
        let directory = directory.canonicalize()?;
        let path = directory.join(name).canonicalize()?;
        if !path.starts_with(&directory) {
            // A symbolic link leads out of the directory.
            return Self::at_recorded_path(&path);
        }
        let (hold, _) = walk(&path)?;
        Ok(Self { hold })
    }

    fn read_text(self) -> Result<String, Refusal> {
        let file = opening::reopen_regular(&self.hold)?;
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

/// Opens a file with `O_PATH`, component by component, without following symbolic links that may be
/// created at any time. Also returns true if everybody can reach and read it.
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
        let next = Path::new(&opening::proc_path(&hold)).join(name);
        hold = opening::hold(&next, libc::O_NOFOLLOW)?;
        if hold.metadata()?.is_symlink() {
            return Err(io::Error::other("a symbolic link was put in its way"));
        }
    }
    public &= everybody(&hold.metadata()?, 0o004);
    Ok((hold, public))
}

/// Returns true if the caller is an ordinary user with their own user id. Then the kernel's
/// permission checks suffice.
fn is_plain_user() -> bool {
    // SAFETY: these calls have no preconditions.
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
    fn files_named_like_sources_are_sources() {
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
