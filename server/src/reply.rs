//! Answers to clients.

use std::time::Duration;

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
    pub body: Vec<u8>,
}

/// A step of the work on a request.
pub enum Step {
    /// The answer is complete.
    Done(Reply),
    /// The work continues after a delay, in which nothing is done. Dropped if the client has left.
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

impl Reply {
    fn new(content_type: &'static str, body: Vec<u8>) -> Self {
        Self {
            status: 200,
            content_type,
            headers: Vec::new(),
            body,
        }
    }

    /// Returns an answer of plain text.
    pub fn text(body: impl Into<Vec<u8>>) -> Self {
        Self::new(TEXT, body.into())
    }

    /// Returns an answer of another text type.
    pub fn of(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self::new(content_type, body.into())
    }

    /// Returns an answer in JSON.
    pub fn json(value: &serde_json::Value) -> Self {
        let mut body = value.to_string();
        body.push('\n');
        Self::new("application/json", body.into_bytes())
    }

    /// Returns a file to download, as net/http/pprof sends its profiles.
    pub fn file(name: &str, body: Vec<u8>) -> Self {
        Self::new("application/octet-stream", body).with(
            "Content-Disposition",
            format!("attachment; filename=\"{name}\""),
        )
    }

    /// Returns an error with a message.
    pub fn refusal(status: u16, why: impl AsRef<str>) -> Self {
        let mut reply = Self::text(format!("{}\n", why.as_ref()));
        reply.status = status;
        // Marks errors like net/http/pprof, for `go tool pprof`.
        reply.with("X-Go-Pprof", "1".to_owned())
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}
