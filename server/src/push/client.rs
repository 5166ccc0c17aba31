//! Sends one request to a receiver, and interprets its answer.

use std::io::Read;
use std::time::{Duration, SystemTime};

use anyhow::bail;
use profile::printable::printable;
use ureq::Agent;
use ureq::http::{HeaderMap, StatusCode};

use super::receiver::Receiver;
use crate::encoding;

/// Maximum number of bytes read of an answer.
const MAX_ANSWER_BYTES: u64 = 64 << 10;
/// Maximum difference between the clocks. Receivers refuse profiles from more than ten minutes
/// ahead.
const MAX_SKEW: Duration = Duration::from_secs(540);

/// A receiver's answer to a profile.
#[derive(Debug)]
pub enum Answer {
    /// Accepted.
    Accepted,
    /// Too large for one request.
    TooLarge,
    /// Refused for good, with the reason.
    Refused(String),
    /// To be retried, with the reason, and with the delay if the receiver states one.
    Later(String, Option<Duration>),
    /// The clocks differ too much, with a message.
    Skewed(String),
}

/// A connection to a receiver.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    receiver: Receiver,
    url: String,
    gzip: bool,
}

impl Client {
    /// Creates a client for the receiver at a URL. `timeout` is the limit for each response; with
    /// `gzip`, bodies are compressed.
    pub fn new(
        receiver: Receiver,
        url: &str,
        gzip: bool,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let printable_url = printable(url);
        if gzip && receiver != Receiver::Otlp {
            bail!("--gzip is for otlp: profiles for other receivers are always compressed");
        }
        if url.starts_with("https://") {
            bail!(
                "{printable_url}: TLS is not built in; send to a proxy or collector on this machine \
                 that speaks it (http://127.0.0.1:PORT)"
            );
        }
        let host = url.strip_prefix("http://");
        if host.is_none_or(|host| host.is_empty() || host.starts_with('/')) {
            bail!(
                "{printable_url} is not the URL of a receiver, which looks like http://HOST:PORT"
            );
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_global(Some(timeout))
            .user_agent(concat!("mem_profiler/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(Self {
            agent: config.into(),
            receiver,
            url: format!("{}{}", url.trim_end_matches('/'), receiver.path()),
            gzip,
        })
    }

    /// Returns the receiver's protocol.
    pub fn receiver(&self) -> Receiver {
        self.receiver
    }

    /// Sends a body and returns the answer.
    pub fn post(&self, body: &[u8]) -> Answer {
        let request = self.agent.post(&self.url);
        let request = request.header("content-type", self.receiver.content_type());
        let result = if self.gzip {
            request
                .header("content-encoding", "gzip")
                .send(&encoding::gzip(body))
        } else {
            request.send(body)
        };
        let mut response = match result {
            Ok(response) => response,
            Err(error) => return Answer::Later(self.failure(&error), None),
        };
        if let Some(skew) = skew(response.headers()) {
            return Answer::Skewed(format!(
                "the clocks of this machine and of {} differ by {} minutes; it would refuse or \
                 misplace the profiles: set the clock",
                self.url,
                skew.as_secs() / 60
            ));
        }
        let status = response.status();
        let after = retry_after(response.headers());
        let location = response
            .headers()
            .get("location")
            .and_then(|l| l.to_str().ok());
        let location = location.map(|l| printable(l).into_owned());
        let mut body = Vec::new();
        let reader = response.body_mut().as_reader();
        let read = reader.take(MAX_ANSWER_BYTES).read_to_end(&mut body);
        let read = read.map(|_| body).map_err(|e| e.to_string());
        self.interpret(status, after, location, read)
    }

    /// Describes an error, with its most likely cause.
    fn failure(&self, error: &ureq::Error) -> String {
        let url = &self.url;
        match (self.receiver, error) {
            // A gRPC server's answer to HTTP/1.1 is not valid HTTP.
            (Receiver::Otlp, ureq::Error::Protocol(_)) => format!(
                "{url}: {error}: it may support gRPC only; send to its port for OTLP over HTTP, \
                 usually 4318"
            ),
            _ => format!("{url}: {error}"),
        }
    }

    /// Interprets a response.
    fn interpret(
        &self,
        status: StatusCode,
        after: Option<Duration>,
        location: Option<String>,
        body: Result<Vec<u8>, String>,
    ) -> Answer {
        let url = &self.url;
        let message = body.as_deref().map(excerpt).unwrap_or_default();
        match (status.as_u16(), body.as_deref()) {
            (200..=299, Ok(body)) if self.receiver == Receiver::Otlp => {
                match rejected_count(body) {
                    0 => Answer::Accepted,
                    count => {
                        Answer::Refused(format!("{url}: {count} profiles rejected: {message}"))
                    }
                }
            }
            (200..=299, Ok(_)) => Answer::Accepted,
            (200..=299, Err(error)) => Answer::Later(format!("{url}: {error}"), None),
            (300..=399, _) => {
                let to = location.unwrap_or_else(|| "elsewhere".to_owned());
                Answer::Refused(format!(
                    "{url} redirects to {to}, which is not followed: give the right URL"
                ))
            }
            (413, _) => Answer::TooLarge,
            (429 | 500..=599, _) => Answer::Later(format!("{url}: {status} {message}"), after),
            _ => Answer::Refused(format!("{url}: {status} {message}")),
        }
    }
}

/// Returns the start of an answer, for display.
fn excerpt(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let start: String = text.trim().chars().take(200).collect();
    printable(&start).into_owned()
}

/// Returns the difference between the receiver's clock and ours, if it is too large.
fn skew(headers: &HeaderMap) -> Option<Duration> {
    let date = headers.get("date")?.to_str().ok()?;
    let their_time = httpdate::parse_http_date(date).ok()?;
    let our_time = SystemTime::now();
    let skew = our_time
        .duration_since(their_time)
        .or_else(|_| their_time.duration_since(our_time))
        .ok()?;
    (skew > MAX_SKEW).then_some(skew)
}

/// Parses `Retry-After`, which is a number of seconds or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("retry-after")?.to_str().ok()?;
    if let Ok(seconds) = text.trim().parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Decodes the number of rejected profiles from an OTLP answer: field 1 of `partial_success`, which
/// is field 1.
fn rejected_count(body: &[u8]) -> u64 {
    let [0x0a, _, 0x08, number @ ..] = body else {
        return 0;
    };
    let mut value = 0;
    for (index, byte) in number.iter().take(9).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if *byte < 0x80 {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST_TIMEOUT: Duration = Duration::from_secs(1);

    #[test]
    fn responses_are_classified() {
        let client =
            Client::new(Receiver::Otlp, "http://127.0.0.1:1/", false, TEST_TIMEOUT).unwrap();
        assert_eq!(client.url, "http://127.0.0.1:1/v1development/profiles");
        let interpret = |status: u16, body: &[u8]| {
            let status = StatusCode::from_u16(status).unwrap();
            client.interpret(
                status,
                None,
                Some("http://x/".to_owned()),
                Ok(body.to_vec()),
            )
        };
        assert!(matches!(interpret(200, b""), Answer::Accepted));
        assert!(matches!(
            interpret(200, b"\x0a\x02\x08\x03"),
            Answer::Refused(_)
        ));
        assert!(matches!(interpret(413, b""), Answer::TooLarge));
        assert!(matches!(interpret(429, b""), Answer::Later(..)));
        assert!(matches!(interpret(503, b""), Answer::Later(..)));
        assert!(matches!(interpret(404, b""), Answer::Refused(_)));
        let Answer::Refused(why) = interpret(307, b"") else {
            panic!("a redirect was followed");
        };
        assert!(why.contains("http://x/"), "{why}");
    }

    #[test]
    fn impossible_urls_are_refused() {
        for url in ["https://x", "ftp://x", "x:1", "http://", "http:///p"] {
            assert!(
                Client::new(Receiver::Parca, url, false, TEST_TIMEOUT).is_err(),
                "{url}"
            );
        }
    }
}
