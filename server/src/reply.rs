//! What a client gets.

use std::time::Duration;

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The header `Content-Type`.
    pub content_type: &'static str,
    /// Other headers.
    pub headers: Vec<(&'static str, String)>,
    /// The content.
    pub body: Vec<u8>,
}

/// An answer, or the rest of the work that leads to one.
pub enum Step {
    /// It is there.
    Done(Reply),
    /// It is there after some time, in which nothing is done. Dropped, the client is gone.
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

    /// Plain text.
    pub fn text(body: impl Into<Vec<u8>>) -> Self {
        Self::new(TEXT, body.into())
    }

    /// Another kind of text.
    pub fn of(content_type: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self::new(content_type, body.into())
    }

    /// JSON.
    pub fn json(value: &serde_json::Value) -> Self {
        let mut body = value.to_string();
        body.push('\n');
        Self::new("application/json", body.into_bytes())
    }

    /// A file for programs, as net/http/pprof sends its profiles.
    pub fn file(name: &str, body: Vec<u8>) -> Self {
        Self::new("application/octet-stream", body).with(
            "Content-Disposition",
            format!("attachment; filename=\"{name}\""),
        )
    }

    /// An error, in words.
    pub fn refusal(status: u16, why: impl AsRef<str>) -> Self {
        let mut reply = Self::text(format!("{}\n", why.as_ref()));
        reply.status = status;
        // As net/http/pprof marks its errors, for `go tool pprof`.
        reply.with("X-Go-Pprof", "1".to_owned())
    }

    /// The same with a header more.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: String) -> Self {
        self.headers.push((name, value));
        self
    }
}
