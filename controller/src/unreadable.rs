//! Why a file of `/proc` about a process's memory cannot be read, for display.

use std::fs::File;
use std::io::{self, ErrorKind, Read};

use crate::process;

/// Why `/proc/PID/maps` cannot be read.
pub fn maps(pid: i32) -> String {
    let path = process::path_of_memory(pid, "maps");
    let read = File::open(&path).and_then(|mut file| file.read(&mut [0]));
    match read {
        Err(error) => explain(&path, &error),
        Ok(_) => format!("{path} could not be read just now; try again"),
    }
}

/// What it means that a file of `/proc` cannot be read.
pub fn explain(path: &str, error: &io::Error) -> String {
    match error.kind() {
        // ESRCH is what a file gives whose process is gone.
        ErrorKind::NotFound => format!("{path} cannot be read: the process has ended"),
        _ if error.raw_os_error() == Some(libc::ESRCH) => {
            format!("{path} cannot be read: the process has ended")
        }
        ErrorKind::PermissionDenied => format!(
            "{path} cannot be read: no permission, since the process has other privileges than you \
             or protects its memory (PR_SET_DUMPABLE); run mem_profiler as root"
        ),
        _ => format!("{path} cannot be read: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_named() {
        let of = |errno| explain("/proc/7/maps", &io::Error::from_raw_os_error(errno));
        for gone in [libc::ENOENT, libc::ESRCH] {
            assert!(of(gone).contains("has ended"), "{}", of(gone));
        }
        assert!(of(libc::EACCES).contains("as root"), "{}", of(libc::EACCES));
        assert!(of(libc::EIO).contains("os error 5"), "{}", of(libc::EIO));
        assert!(maps(i32::MAX).contains("has ended"));
    }
}
