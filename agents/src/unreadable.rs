//! Explains why a file in `/proc` about a process's memory cannot be read.

use std::fs::File;
use std::io::{self, ErrorKind, Read};

/// Explains why `/proc/PID/maps` cannot be read.
pub fn maps(pid: i32) -> String {
    let path = proc::path_of_memory(pid, "maps");
    let read = File::open(&path).and_then(|mut file| file.read(&mut [0]));
    match read {
        Err(error) => explain(&path, &error),
        Ok(_) => format!("{path} could not be read just now; try again"),
    }
}

/// Explains an error from reading a file in `/proc`.
pub fn explain(path: &str, error: &io::Error) -> String {
    explain_to(path, error, nix::unistd::geteuid().is_root())
}

/// Like [`explain`], for root or another user.
fn explain_to(path: &str, error: &io::Error, is_root: bool) -> String {
    match error.kind() {
        // Reading a file of an exited process returns ESRCH.
        ErrorKind::NotFound => format!("{path} cannot be read: the process has ended"),
        _ if error.raw_os_error() == Some(libc::ESRCH) => {
            format!("{path} cannot be read: the process has ended")
        }
        // Root of a container or service may lack capabilities of the machine's root.
        ErrorKind::PermissionDenied if is_root => format!(
            "{path} cannot be read, even as root: run mem_profiler where the process was started, or with CAP_SYS_PTRACE"
        ),
        ErrorKind::PermissionDenied => format!(
            "{path} cannot be read: no permission, for it has other privileges or is protected (PR_SET_DUMPABLE); run mem_profiler as root"
        ),
        _ => format!("{path} cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_named() {
        let explained =
            |errno| explain_to("/proc/7/maps", &io::Error::from_raw_os_error(errno), false);
        for gone in [libc::ENOENT, libc::ESRCH] {
            assert!(explained(gone).contains("has ended"), "{}", explained(gone));
        }
        assert!(
            explained(libc::EACCES).contains("as root"),
            "{}",
            explained(libc::EACCES)
        );
        let error = io::Error::from_raw_os_error(libc::EACCES);
        let as_root = explain_to("/proc/7/maps", &error, true);
        assert!(as_root.contains("even as root"), "{as_root}");
        assert!(!as_root.contains("run mem_profiler as root"), "{as_root}");
        assert!(
            explained(libc::EIO).contains("os error 5"),
            "{}",
            explained(libc::EIO)
        );
        assert!(maps(i32::MAX).contains("has ended"));
    }
}
