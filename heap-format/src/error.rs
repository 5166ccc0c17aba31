//! What can go wrong while a profile is read.

use std::io;

/// Why a file could not be read as a profile. Each message names the file, and
/// the line where there is one.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened or read.
    #[error("{name}: cannot be read: {error}")]
    Io {
        /// The file.
        name: String,
        /// The error of the system. It is part of the message, so it is not a source of its own: it
        /// would be printed twice.
        error: io::Error,
    },
    /// A line is not what the format requires.
    #[error("{name}: line {line}: {what}")]
    Line {
        /// The file.
        name: String,
        /// Number of the line, from 1.
        line: u64,
        /// The fault.
        what: String,
    },
    /// The content as a whole is not usable.
    #[error("{name}: {what}")]
    Content {
        /// The file.
        name: String,
        /// The fault.
        what: String,
    },
}

/// A fault found by a reader, before it is tied to a file and a line.
pub(crate) enum Fault {
    Io(io::Error),
    /// A fault at the line last read.
    Here(String),
    /// A fault of the content as a whole.
    Whole(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::Io(error)
    }
}

impl Fault {
    pub(crate) fn here(what: impl Into<String>) -> Self {
        Fault::Here(what.into())
    }

    pub(crate) fn whole(what: impl Into<String>) -> Self {
        Fault::Whole(what.into())
    }

    pub(crate) fn into_error(self, name: &str, line: u64) -> ReadError {
        let name = name.to_owned();
        match self {
            Fault::Io(error) => ReadError::Io { name, error },
            Fault::Here(what) => ReadError::Line {
                name,
                line: line.max(1),
                what,
            },
            Fault::Whole(what) => ReadError::Content { name, what },
        }
    }
}
