//! Errors of reading a profile.

use std::io;

use crate::foreign;

/// Error of reading a file as a profile. Each message names the file, and the line if there is one.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be opened or read.
    #[error("{name}: cannot be read: {error}")]
    Io {
        /// The file.
        name: String,
        /// Error of the system. Part of the message, so it is not the `source`, which would print
        /// it twice.
        error: io::Error,
    },
    /// A line is malformed.
    #[error("{name}: line {line}: {what}")]
    Line {
        /// The file.
        name: String,
        /// Number of the line, from 1.
        line: u64,
        /// The fault.
        what: String,
    },
    /// The contents as a whole are not usable.
    #[error("{name}: {what}")]
    Content {
        /// The file.
        name: String,
        /// The fault.
        what: String,
    },
}

/// Fault found by a reader that does not know the file's name.
pub(crate) enum Fault {
    Io(io::Error),
    /// Fault in the line read last.
    Here(String),
    /// Fault of the contents as a whole.
    Whole(String),
    /// The file is of another kind. The advice may contain a placeholder for its name.
    Foreign(&'static str),
    /// The file is of another kind, and compressed. The advice is about the decompressed contents.
    ForeignPacked(&'static str),
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

    /// Returns this fault of decompressed contents as a fault of the compressed file.
    pub(crate) fn of_packed(self) -> Self {
        match self {
            Fault::Foreign(advice) => Fault::ForeignPacked(advice),
            other => other,
        }
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
            Fault::Foreign(advice) => ReadError::Content {
                what: foreign::with_name(advice, &name),
                name,
            },
            Fault::ForeignPacked(advice) => ReadError::Content {
                what: foreign::with_packed_name(advice, &name),
                name,
            },
        }
    }
}
