//! Checks that this program has free file descriptors. Without them, every file of `/proc`, and so
//! every process, seems to be missing.

use std::fs::File;
use std::io;

/// Number of descriptors that a command about one process has open at the same time.
const MIN_FREE_DESCRIPTORS: usize = 16;

/// Explains why `count` more files cannot be opened; `None` if they can.
fn shortage_of(count: usize) -> Option<String> {
    let opened: io::Result<Vec<File>> = (0..count).map(|_| File::open("/dev/null")).collect();
    match opened.err()?.raw_os_error() {
        Some(libc::EMFILE) => {
            // SAFETY: all-zero bytes are a valid `rlimit`.
            let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
            // SAFETY: `getrlimit` writes to a local of the type that it expects.
            let succeeded = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
            let limit = succeeded.then(|| format!(" is {}", limit.rlim_cur));
            Some(format!(
                "mem_profiler cannot open the files that it needs: the limit on their number (ulimit -n){}; raise it in its shell",
                limit.unwrap_or_else(|| " is too low".to_owned())
            ))
        }
        Some(libc::ENFILE) => Some(
            "mem_profiler cannot open the files that it needs: the machine has as many open as it may (fs.file-max)"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Explains why this program cannot open a file now; `None` if it can.
pub fn shortage() -> Option<String> {
    shortage_of(1)
}

/// Explains why there are too few free descriptors for a command about processes; `None` if there
/// are enough.
pub fn shortage_at_start() -> Option<String> {
    shortage_of(MIN_FREE_DESCRIPTORS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_free_descriptors() {
        assert_eq!(shortage(), None);
        assert_eq!(shortage_at_start(), None);
    }
}
