//! Reasons not to use a file as a segment.

use std::io;

use nix::errno::Errno;
use shm_protocol::snapshot::Invalid;

/// Why a file is not used as a segment.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Not ours to open; its owner.
    #[error("it belongs to user {}", crate::process::user_name(*.0))]
    Foreign(u32),
    /// It is a link, a pipe, a device, …
    #[error("it is not a regular file")]
    NotAFile,
    /// No segment has this size.
    #[error("its size of {0} bytes is not that of a segment")]
    Size(u64),
    /// The content is not ours.
    #[error("{0}")]
    Content(#[from] Invalid),
    /// The content is of another process than the name.
    #[error("its name and its content refer to different processes")]
    Misnamed,
    /// It belongs to somebody who is neither root nor the process's user.
    #[error("it is owned by user {}, not by the process's user", crate::process::user_name(*.0))]
    Planted(u32),
    /// The system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::Io(error.into())
    }
}
