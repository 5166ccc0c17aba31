//! Reasons to refuse a file as a segment.

use std::io;

use nix::errno::Errno;
use shm_protocol::snapshot::Invalid;

/// Reason why a file is not used as a segment.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The file belongs to this other user, and we may not open it.
    #[error("it belongs to user {}", crate::process::user_name(*.0))]
    Foreign(u32),
    /// The file is a symbolic link, pipe, device, …
    #[error("it is not a regular file")]
    NotAFile,
    /// The size is not that of a segment.
    #[error("its size of {0} bytes is not that of a segment")]
    Size(u64),
    /// The content is invalid.
    #[error("{0}")]
    Content(#[from] Invalid),
    /// Name and content refer to different processes.
    #[error("its name and its content refer to different processes")]
    Misnamed,
    /// The owner is this user, who is neither root nor the user of the process.
    #[error("it is owned by user {}, not by the process's user", crate::process::user_name(*.0))]
    Planted(u32),
    /// A system call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}
