//! Creates a Unix socket that only this user can connect to, even in a directory that others can
//! write to.
//!
//! The socket is bound in a new private directory and then linked to its name. So no other user can
//! connect to it at any time, and no mode is changed by path, which somebody could redirect. An
//! existing file is never replaced, except for a socket of this user on which nobody listens.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat, umask};
use nix::unistd::{UnlinkatFlags, geteuid, linkat, unlinkat};

/// Name of the socket in the private directory.
const SOCKET_NAME: &str = "socket";
/// Name in the private directory of an earlier socket that is being removed.
const EARLIER_NAME: &str = "earlier";

/// A Unix socket in the file system.
pub struct Socket {
    directory: OwnedFd,
    name: OsString,
    /// Device and inode.
    file: (u64, u64),
}

/// Listens on a path. Changes the umask for a moment, so no other thread may be running yet.
pub fn bind(path: &Path) -> anyhow::Result<(UnixListener, Socket)> {
    let name = path.file_name().context("it names no file")?.to_owned();
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let parent = parent.unwrap_or(Path::new("."));
    let directory: OwnedFd = File::open(parent)?.into();
    let private = PrivateDirectory::make(&directory)?;
    let mask = umask(Mode::from_bits_truncate(0o177));
    let listener = UnixListener::bind(private.path().join(SOCKET_NAME));
    umask(mask);
    let listener = listener?;
    let mut linked = private.link(&name);
    if linked == Err(Errno::EEXIST) {
        private.replace(&name)?;
        linked = private.link(&name);
    }
    match linked {
        Err(Errno::EEXIST) => bail!(IN_USE),
        linked => linked?,
    }
    let file = identity(&private.stat(SOCKET_NAME)?);
    drop(private);
    Ok((
        listener,
        Socket {
            directory,
            name,
            file,
        },
    ))
}

const IN_USE: &str =
    "it is in use: another server listens there, or it is not a socket of this user";

impl Socket {
    /// Removes the socket, unless another file is in its place.
    pub fn remove(self) {
        let found = stat(&self.directory, &self.name);
        if found.is_ok_and(|found| identity(&found) == self.file) {
            // The directory may have been removed already.
            let _ = unlinkat(&self.directory, &*self.name, UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// A private directory inside another one. Removed on drop.
struct PrivateDirectory<'a> {
    outer: &'a OwnedFd,
    name: String,
    inner: OwnedFd,
}

impl<'a> PrivateDirectory<'a> {
    fn make(outer: &'a OwnedFd) -> anyhow::Result<Self> {
        let mut random = [0; 8];
        io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut random)?;
        let name = format!(".mem_server.{:016x}", u64::from_ne_bytes(random));
        mkdirat(outer, name.as_str(), Mode::S_IRWXU)?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let inner = openat(outer, name.as_str(), flags, Mode::empty())?;
        let private = Self { outer, name, inner };
        let created = fstat(&private.inner)?;
        ensure!(
            created.st_uid == geteuid().as_raw() && created.st_mode & 0o077 == 0,
            "another user has replaced a directory there"
        );
        Ok(private)
    }

    /// Returns a path to the directory that nobody can redirect, and that is short enough for a
    /// socket address.
    fn path(&self) -> PathBuf {
        proc_fd_path(&self.inner)
    }

    fn stat(&self, name: &str) -> nix::Result<FileStat> {
        stat(&self.inner, name.as_ref())
    }

    /// Links the socket to its name, if that is free.
    fn link(&self, name: &OsStr) -> nix::Result<()> {
        linkat(&self.inner, SOCKET_NAME, self.outer, name, AtFlags::empty())
    }

    /// Removes the file of that name if it is a socket of this user on which nobody listens.
    fn replace(&self, name: &OsStr) -> anyhow::Result<()> {
        let found = match stat(self.outer, name) {
            Err(Errno::ENOENT) => return Ok(()),
            found => found?,
        };
        ensure!(is_own_socket(&found), IN_USE);
        let connected = UnixStream::connect(proc_fd_path(self.outer).join(name));
        let is_refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        ensure!(connected.is_err_and(is_refused), IN_USE);
        // Once moved into the private directory, nobody else can exchange the file.
        match renameat(self.outer, name, &self.inner, EARLIER_NAME) {
            Err(Errno::ENOENT) => return Ok(()),
            moved => moved?,
        }
        if identity(&self.stat(EARLIER_NAME)?) != identity(&found) {
            // This is not the socket that was examined, so it is restored. If its name is in use
            // again, it remains here.
            let _ = linkat(
                &self.inner,
                EARLIER_NAME,
                self.outer,
                name,
                AtFlags::empty(),
            );
            bail!(IN_USE);
        }
        Ok(())
    }
}

impl Drop for PrivateDirectory<'_> {
    fn drop(&mut self) {
        for name in [SOCKET_NAME, EARLIER_NAME] {
            // May be missing.
            let found = self.stat(name);
            if found.is_ok_and(|found| is_own_socket(&found)) {
                let _ = unlinkat(&self.inner, name, UnlinkatFlags::NoRemoveDir);
            }
        }
        let _ = unlinkat(self.outer, self.name.as_str(), UnlinkatFlags::RemoveDir);
    }
}

/// Returns a path to an open directory, which stays valid if the directory is renamed.
fn proc_fd_path(directory: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", directory.as_raw_fd()).into()
}

fn stat(directory: &OwnedFd, name: &OsStr) -> nix::Result<FileStat> {
    fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW)
}

fn identity(file: &FileStat) -> (u64, u64) {
    (file.st_dev, file.st_ino)
}

fn is_own_socket(file: &FileStat) -> bool {
    let kind = SFlag::from_bits_truncate(file.st_mode & SFlag::S_IFMT.bits());
    kind == SFlag::S_IFSOCK && file.st_uid == geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_sockets_without_a_listener_are_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let path_to = |name: &str| scratch.path().join(name);
        let path = path_to("socket");
        let (listener, _) = bind(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(bind(&path).is_err(), "somebody listens");
        drop(listener);
        let (_listener, own) = bind(&path).expect("nobody listens");
        own.remove();
        assert!(!path.exists());

        fs::write(path_to("file"), "content").unwrap();
        fs::set_permissions(path_to("file"), fs::Permissions::from_mode(0o644)).unwrap();
        drop(UnixListener::bind(path_to("dead")).unwrap());
        for (link, to) in [
            ("to_file", "file"),
            ("to_dead", "dead"),
            ("to_none", "none"),
        ] {
            symlink(path_to(to), path_to(link)).unwrap();
            assert!(bind(&path_to(link)).is_err(), "{link}");
            assert_eq!(fs::read_link(path_to(link)).unwrap(), path_to(to));
        }
        assert!(bind(&path_to("file")).is_err());
        assert_eq!(fs::read(path_to("file")).unwrap(), b"content");
        let mode = fs::metadata(path_to("file")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        assert!(!path_to("none").exists());
        let count = fs::read_dir(scratch.path()).unwrap().count();
        assert_eq!(count, 5, "the private directories are not removed");
    }
}
