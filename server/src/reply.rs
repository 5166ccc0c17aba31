//! Answers to clients.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Bytes;

use crate::encoding;

/// An HTTP response.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// The header `Content-Type`.
    pub content_type: &'static str,
    /// Other headers.
    pub headers: Vec<(&'static str, String)>,
    /// The content.
    pub body: Body,
    /// True if the content is compressed with gzip.
    pub is_gzipped: bool,
}

/// Content of an answer.
#[derive(Clone, Debug)]
pub enum Body {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes that several answers have in common.
    Shared(Arc<Shared>),
    /// A file that is read while it is sent, since it may be large. It may have been removed since
    /// it was opened.
    File(Arc<File>),
    /// Compressed file that is decompressed while it is sent.
    Unpacked(Arc<File>),
}

/// Content that is the same for several clients, and is compressed once.
#[derive(Debug)]
pub struct Shared {
    packed: Bytes,
}

impl Shared {
    /// Returns content in JSON.
    pub fn json(value: &impl serde::Serialize) -> serde_json::Result<Arc<Self>> {
        // Compressed while it is written, because the text may take some MiB.
        let packed = GzEncoder::new(Vec::new(), Compression::fast());
        let mut packed = BufWriter::with_capacity(BUFFER_BYTES, packed);
        serde_json::to_writer(&mut packed, value)?;
        let packed = packed
            .into_inner()
            .map_err(std::io::IntoInnerError::into_error);
        let packed = packed.and_then(GzEncoder::finish);
        let packed = packed.map_err(serde_json::Error::io)?.into();
        Ok(Arc::new(Self { packed }))
    }
}

impl Body {
    /// Returns the size in memory, in bytes.
    pub fn size(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared(shared) => shared.packed.len(),
            Self::File(_) | Self::Unpacked(_) => 0,
        }
    }
}

/// A step of the work on a request.
pub enum Step {
    /// The answer is complete.
    Done(Reply),
    /// The work continues with this function after this delay. If the client leaves before that,
    /// the function is dropped without a call.
    Later(Duration, Box<dyn FnOnce() -> Step + Send>),
}

impl From<Reply> for Step {
    fn from(reply: Reply) -> Self {
        Self::Done(reply)
    }
}

impl From<Result<Reply, Reply>> for Step {
    fn from(reply: Result<Reply, Reply>) -> Self {
        Self::Done(reply.unwrap_or_else(|refusal| refusal))
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// Size of the buffer before compression, in bytes.
const BUFFER_BYTES: usize = 64 << 10;
/// Minimum length of a body that is compressed, in bytes.
const MIN_GZIPPED_BYTES: usize = 1024;

impl Reply {
    fn new(content_type: &'static str, body: Vec<u8>) -> Self {
        Self {
            status: 200,
            content_type,
            headers: Vec::new(),
            body: Body::Bytes(body.into()),
            is_gzipped: false,
        }
    }

    /// Returns an answer whose body is a compressed file.
    pub fn gzipped_file(content_type: &'static str, path: &Path) -> io::Result<Self> {
        Ok(Self {
            is_gzipped: true,
            body: Body::File(Arc::new(File::open(path)?)),
            ..Self::new(content_type, Vec::new())
        })
    }

    /// Returns a file to download, read while it is sent.
    pub fn open_file(name: &str, file: File) -> Self {
        Self {
            body: Body::File(Arc::new(file)),
            ..Self::file(name, Vec::new())
        }
    }

    /// Compresses or decompresses the body, depending on what the client accepts. Does not compress
    /// profiles, whose format is compressed already, or short texts, for which it is not worth it.
    #[must_use]
    pub fn encoded(mut self, accepts_gzip: bool) -> Self {
        let is_text = self.content_type.starts_with("text/") || self.content_type == JSON;
        match self.body {
            Body::File(file) if self.is_gzipped && !accepts_gzip => {
                self.body = Body::Unpacked(file);
                self.is_gzipped = false;
            }
            Body::Bytes(bytes) if accepts_gzip && is_text && bytes.len() >= MIN_GZIPPED_BYTES => {
                self.body = Body::Bytes(encoding::gzip(&bytes).into());
                self.is_gzipped = true;
            }
            Body::Shared(shared) if accepts_gzip => {
                self.body = Body::Bytes(shared.packed.clone());
                self.is_gzipped = true;
            }
            Body::Shared(shared) => {
                self.body = Body::Bytes(encoding::gunzip(&shared.packed).into());
            }
            body => self.body = body,
        }
        if self.is_gzipped {
            self = self.with_header("Content-Encoding", "gzip".to_owned());
        }
        if is_text {
            self = self.with_header("Vary", "Accept-Encoding".to_owned());
        }
        self
    }

    /// Returns an answer of plain text.
    pub fn text(body: impl Into<Vec<u8>>) -> Self {
        Self::new(TEXT, body.into())
    }

    /// Returns an answer of plain text that is read from a file while it is sent.
    pub fn open_text(file: File) -> Self {
        Self {
            body: Body::File(Arc::new(file)),
            ..Self::text(Vec::new())
        }
    }

    /// Returns an answer of another text type.
    pub fn with_content_type(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self::new(content_type, body.into())
    }

    /// Returns an answer in JSON that several clients share.
    pub fn shared(shared: &Arc<Shared>) -> Self {
        Self {
            body: Body::Shared(Arc::clone(shared)),
            ..Self::new(JSON, Vec::new())
        }
    }

    /// Returns an answer in JSON.
    pub fn json(value: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(mut body) => {
                body.push(b'\n');
                Self::new(JSON, body)
            }
            Err(error) => Self::refusal(500, error.to_string()),
        }
    }

    /// Returns a file to download, as net/http/pprof sends its profiles.
    pub fn file(name: &str, body: Vec<u8>) -> Self {
        Self::new("application/octet-stream", body).with_header(
            "Content-Disposition",
            format!("attachment; filename=\"{name}\""),
        )
    }

    /// Returns an error with a message.
    pub fn refusal(status: u16, why: impl AsRef<str>) -> Self {
        let mut reply = Self::text(format!("{}\n", why.as_ref()));
        reply.status = status;
        // Marks errors like net/http/pprof, for `go tool pprof`.
        reply.with_header("X-Go-Pprof", "1".to_owned())
    }

    /// Returns the reply for a temporary file that could not be written or read.
    pub fn temporary_file_error(error: &io::Error) -> Self {
        let place = mem_agents::text::path(std::env::temp_dir());
        let advice = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                ": make room there, or start the server with another TMPDIR"
            }
            _ => "",
        };
        Self::refusal(500, format!("a temporary file in {place}: {error}{advice}"))
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}
