//! Storage of a segment's bytes. Commands and tables are written through the few calls here, so
//! that the model checker can observe the same writes in the same order.

/// Error of a failed system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl core::error::Error for Errno {}

/// Returns the `errno` of the call that just failed.
pub(super) fn last_error() -> Errno {
    // SAFETY: errno's location is valid for the calling thread.
    Errno(unsafe { *libc::__errno_location() })
}

pub(super) fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result < 0 {
        Err(last_error())
    } else {
        Ok(result)
    }
}

/// Bytes of a segment. The segment's process observes the calls' effects in order, since the kernel
/// takes a lock in each.
pub trait Store {
    /// Reads at an offset. Returns fewer bytes than requested only at the end of the file.
    ///
    /// # Errors
    /// Errors of `pread`.
    fn read_at(&self, offset: usize, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Writes at an offset.
    ///
    /// # Errors
    /// Errors of `pwrite`.
    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Errno>;

    /// Commits a part of the file. Existing contents stay.
    ///
    /// # Errors
    /// Errors of `fallocate`.
    fn reserve(&self, from: usize, len: usize) -> Result<(), Errno>;
}

/// Open file.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor(pub(super) libc::c_int);

impl Store for Descriptor {
    fn read_at(&self, offset: usize, buffer: &mut [u8]) -> Result<usize, Errno> {
        let mut filled = 0;
        while filled < buffer.len() {
            let rest = &mut buffer[filled..];
            // SAFETY: `rest` is writable for its length.
            let n = unsafe {
                let at = (offset + filled) as libc::off_t;
                libc::pread(self.0, rest.as_mut_ptr().cast(), rest.len(), at)
            };
            match n {
                0 => break,
                n if n > 0 => filled += n as usize,
                _ if last_error() == Errno(libc::EINTR) => {}
                _ => return Err(last_error()),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
        // SAFETY: `bytes` is readable for its length.
        let n = unsafe {
            libc::pwrite(
                self.0,
                bytes.as_ptr().cast(),
                bytes.len(),
                offset as libc::off_t,
            )
        };
        match n {
            n if n == bytes.len() as isize => Ok(()),
            n if n < 0 => Err(last_error()),
            _ => Err(Errno(libc::ENOSPC)),
        }
    }

    fn reserve(&self, from: usize, len: usize) -> Result<(), Errno> {
        loop {
            // SAFETY: `fallocate` takes no pointers.
            let result =
                unsafe { libc::fallocate(self.0, 0, from as libc::off_t, len as libc::off_t) };
            match check(result) {
                Err(Errno(libc::EINTR)) => {}
                other => return other.map(|_| ()),
            }
        }
    }
}
