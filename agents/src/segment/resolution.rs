//! Opens a directory as another process sees it. Symbolic links on the way are resolved within that
//! process's root, never to our own files.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, SFlag, fstat};

/// Maximum number of symbolic links on the way, as in the kernel.
const MAX_LINKS: usize = 40;
/// Flags for the directory itself.
const READ: OFlag = OFlag::O_RDONLY
    .union(OFlag::O_DIRECTORY)
    .union(OFlag::O_CLOEXEC);

/// Opens the directory `path` below `root`, which takes the place of `/`.
pub fn open_below(root: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(READ)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    match openat2(root.as_fd(), path, how) {
        // Linux before 5.6, or a container's seccomp filter that rejects the call.
        Err(Errno::ENOSYS | Errno::EPERM) => walk(root, path),
        opened => Ok(opened?),
    }
}

/// Like [`open_below`], but resolves the path component by component.
fn walk(root: OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let mut links = 0;
    // Directories from below the root to the current one.
    let mut opened: Vec<OwnedFd> = Vec::new();
    let mut remaining: VecDeque<OsString> = steps(path).collect();
    while let Some(step) = remaining.pop_front() {
        if step == ".." {
            opened.pop();
            continue;
        }
        let current = current(&root, &opened);
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let next = openat(current, step.as_os_str(), flags, Mode::empty())?;
        match SFlag::from_bits_truncate(fstat(&next)?.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFDIR => {
                opened.push(next);
                continue;
            }
            SFlag::S_IFLNK => {}
            _ => return Err(Errno::ENOTDIR.into()),
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::ELOOP.into());
        }
        let target = readlinkat(current, step.as_os_str())?;
        let target = Path::new(&target);
        if target.is_absolute() {
            opened.clear();
        }
        steps(target)
            .rev()
            .for_each(|step| remaining.push_front(step));
    }
    Ok(openat(current(&root, &opened), ".", READ, Mode::empty())?)
}

fn current<'a>(root: &'a OwnedFd, opened: &'a [OwnedFd]) -> BorrowedFd<'a> {
    opened.last().unwrap_or(root).as_fd()
}

/// Splits a path into names and `..`.
fn steps(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let parts = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some("..".as_ref()),
        _ => None,
    });
    parts.map(OsString::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    /// Opens a directory in both ways. Returns the inode or the error number of each.
    fn opened(root: &Path, path: &str) -> [Result<u64, Option<i32>>; 2] {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        [open_below, walk].map(|open| {
            let root = nix::fcntl::open(root, flags, Mode::empty()).unwrap();
            let directory = open(root, Path::new(path)).map_err(|error| error.raw_os_error())?;
            Ok(fstat(&directory).unwrap().st_ino)
        })
    }

    #[test]
    fn links_stay_below_the_root_on_every_kernel() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("dev/shm")).unwrap();
        fs::create_dir_all(root.join("run/shm")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        for (target, link) in [
            ("/run/shm", "absolute"),
            ("dev/../../../run/shm", "climbing"),
            ("loop", "loop"),
            ("/etc", "ours"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        let inode = |path: &str| fs::metadata(root.join(path)).unwrap().ino();
        for (path, same) in [
            ("/dev/shm", "dev/shm"),
            ("absolute", "run/shm"),
            ("/climbing/.", "run/shm"),
            ("/../..", "."),
        ] {
            assert_eq!(opened(root, path), [Ok(inode(same)); 2], "{path}");
        }
        for (path, error) in [
            ("loop", libc::ELOOP),
            ("ours", libc::ENOENT),
            ("file", libc::ENOTDIR),
            ("file/..", libc::ENOTDIR),
            ("none/..", libc::ENOENT),
        ] {
            assert_eq!(opened(root, path), [Err(Some(error)); 2], "{path}");
        }
    }
}
