//! Opening files whose names come from others: from a dump, an ELF file, a
//! process.
//!
//! To open a device can act on it, to open a FIFO can wait for ever, and to read
//! a file of `/proc` can take what another waits for. So each is first taken
//! hold of without being opened (`O_PATH`), looked at, and only then opened,
//! through that hold: what was looked at is what is read.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// File systems in which the kernel makes up what is read, by their magic
/// numbers: a file there is regular by name only.
const KERNEL: [i64; 15] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0xcafe_4a11, // bpf
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x4249_4e4d, // binfmt_misc
    0xf97c_ff8c, // selinux
    0x6573_5543, // fusectl
    0x1980_0202, // mqueue
];

/// Opens a regular file; refuses all else, without having opened it.
pub fn regular(path: &Path) -> io::Result<File> {
    let hold = hold(path, 0)?;
    held_regular(&hold)
}

/// Opens what a user has named: a regular file, or a pipe.
pub fn given(path: &Path) -> io::Result<File> {
    let hold = hold(path, 0)?;
    let kind = hold.metadata()?.file_type();
    if kind.is_file() {
        return held_regular(&hold);
    }
    if !kind.is_fifo() {
        return Err(refusal(&hold.metadata()?));
    }
    // Waiting for its writer is what was asked for.
    OpenOptions::new().read(true).open(through(&hold))
}

/// Takes hold of a file without opening it; `flags` may add `O_NOFOLLOW`.
pub fn hold(path: &Path, flags: i32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_PATH | flags);
    options.open(path)
}

/// Whether what is held is a regular file; the error says what else it is.
pub fn check(hold: &File) -> io::Result<Metadata> {
    let held = hold.metadata()?;
    if !held.is_file() {
        return Err(refusal(&held));
    }
    if is_kernels(hold)? {
        return Err(io::Error::other("is made up by the kernel, no file"));
    }
    Ok(held)
}

/// Opens the file that is held, if it is a regular one.
pub fn held_regular(hold: &File) -> io::Result<File> {
    let held = check(hold)?;
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(through(hold))?;
    // Where /proc is not what it should be, nothing proves that they are one.
    let opened = file.metadata()?;
    if (opened.dev(), opened.ino()) != (held.dev(), held.ino()) {
        return Err(io::Error::other("cannot be opened: /proc is not usable"));
    }
    Ok(file)
}

/// The name under which this process can open what it holds.
pub fn through(hold: &File) -> String {
    format!("/proc/self/fd/{}", hold.as_raw_fd())
}

fn is_kernels(hold: &File) -> io::Result<bool> {
    let mut about = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the descriptor is open as long as `hold`, and `about` has room for
    // the one statfs that is written.
    if unsafe { libc::fstatfs(hold.as_raw_fd(), about.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros is a valid statfs, and the call has filled it in.
    let kind = unsafe { about.assume_init() }.f_type;
    // 32 bits of it count; C libraries differ in the type.
    let kind = i64::from(kind as u32);
    Ok(KERNEL.contains(&kind))
}

fn refusal(held: &Metadata) -> io::Error {
    let kind = held.file_type();
    let what = if kind.is_dir() {
        "is a directory"
    } else if kind.is_fifo() {
        "is a pipe"
    } else if kind.is_socket() {
        "is a socket"
    } else {
        "is a device"
    };
    io::Error::other(format!("{what}, no regular file"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::Command;

    fn why(path: &str) -> String {
        regular(Path::new(path)).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "text").unwrap();
        let mut text = String::new();
        regular(&file).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        let fifo = directory.path().join("fifo");
        let made = Command::new("mkfifo").arg(&fifo).status();
        assert!(made.unwrap().success());
        assert!(why(fifo.to_str().unwrap()).contains("is a pipe"));
        assert!(why("/dev/null").contains("is a device"));
        assert!(why("/dev").contains("is a directory"));
        assert!(why("/proc/self/environ").contains("made up by the kernel"));
        assert!(why("/sys/kernel/notes").contains("made up by the kernel"));
        assert!(given(Path::new("/dev/zero")).is_err());
    }

    #[test]
    fn a_process_leads_to_real_files() {
        let own = std::env::current_exe().unwrap();
        let through_process = regular(Path::new("/proc/self/exe")).unwrap();
        let (a, b) = (
            through_process.metadata().unwrap(),
            std::fs::metadata(own).unwrap(),
        );
        assert_eq!((a.dev(), a.ino()), (b.dev(), b.ino()));
    }
}
