//! Reports full disks: how much space a file needs, and how much is free.

use std::fmt;
use std::io;
use std::io::Write;

use crate::text;

/// Error for a file that does not fit on its disk.
#[derive(Debug)]
struct Short {
    /// Size of the whole file, in bytes.
    needed: u64,
}

impl std::error::Error for Short {}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = text::bytes(self.needed as f64);
        write!(f, "no space left on device: {needed} are needed")
    }
}

/// Writer that only counts bytes.
#[derive(Default)]
struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Creates an error that states how many bytes the whole file needs.
pub fn short_of(needed: u64) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, Short { needed })
}

/// Returns the number of bytes that `write` produces.
pub fn measure(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<u64> {
    let mut counter = Counter::default();
    write(&mut counter)?;
    Ok(counter.0)
}

/// Returns true if the error means that a disk or a quota is full.
pub fn is_short(error: &io::Error) -> bool {
    needed(error).is_some() || matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// Returns the number of bytes that the file needs, if the error states it.
pub fn needed(error: &io::Error) -> Option<u64> {
    let short = error.get_ref()?.downcast_ref::<Short>()?;
    Some(short.needed)
}

/// Formats needed and free space, such as `needs 1.0 MiB, 716.8 KiB are free`.
pub fn comparison(needed: Option<u64>, free: Option<u64>) -> String {
    let [mut needs, mut has] = [needed, free].map(|n| n.map(|n| text::bytes(n as f64)));
    // Rounded values may look equal.
    if needs == has {
        [needs, has] = [needed, free].map(|n| n.map(|n| format!("{n} B")));
    }
    match (needs, has) {
        // The space suffices, so another limit is the reason.
        (Some(needs), Some(has)) if needed <= free => format!(
            "needs {needs}, {has} are free, but a quota or the limit on the number of files is reached"
        ),
        (Some(needs), Some(has)) => format!("needs {needs}, {has} are free"),
        (Some(needs), None) => format!("needs {needs}"),
        (None, Some(has)) => format!("needs more than the {has} that are free"),
        (None, None) => "needs more than is free".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needed_and_free_space_are_compared() {
        let mib = 1 << 20;
        for (needed, free, text) in [
            (
                Some(mib),
                Some(733_184),
                "needs 1.0 MiB, 716.0 KiB are free",
            ),
            (
                Some(mib + 1),
                Some(mib),
                "needs 1048577 B, 1048576 B are free",
            ),
            (
                Some(mib),
                Some(2 * mib),
                "needs 1.0 MiB, 2.0 MiB are free, but a quota or the limit on the number of files is \
                 reached",
            ),
            (Some(mib), None, "needs 1.0 MiB"),
            (None, Some(0), "needs more than the 0 B that are free"),
        ] {
            assert_eq!(comparison(needed, free), text);
        }
    }

    #[test]
    fn full_disk_errors_are_recognised() {
        assert!(is_short(&io::Error::from_raw_os_error(libc::EDQUOT)));
        assert!(!is_short(&io::Error::from_raw_os_error(libc::EIO)));
        let error = short_of(7);
        assert!(is_short(&error));
        assert_eq!(needed(&error), Some(7));
        assert_eq!(measure(|out| out.write_all(b"1234567")).unwrap(), 7);
    }
}
