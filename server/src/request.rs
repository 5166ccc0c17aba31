//! Parses requests.

use std::collections::HashMap;
use std::time::Duration;

use crate::reply::Reply;

/// Maximum duration that a request may sample, in seconds.
pub const MAX_SECONDS: u64 = 600;

/// A parsed request.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// True for a POST.
    pub is_post: bool,
    /// Path without the query and without the process in it.
    pub path: String,
    /// Process in the path: `/p/NAME/…`.
    process: Option<String>,
    query: HashMap<String, String>,
    /// Query as it was sent.
    pub raw_query: String,
    /// Body; empty if there is none.
    pub body: Vec<u8>,
    /// The header `Accept`.
    pub accept: String,
    /// True if the client accepts answers that are compressed with gzip.
    pub accepts_gzip: bool,
}

impl Request {
    /// Parses a request's target: path and query, both percent-encoded.
    pub fn parse(path: &str, query: &str) -> Result<Self, Reply> {
        let bad = || Reply::refusal(400, "the address is not percent-encoded text");
        let (process, path) = match path.strip_prefix("/p/") {
            Some(rest) => {
                let (name, rest) = rest.split_once('/').unwrap_or((rest, ""));
                (
                    Some(decode(name, false).ok_or_else(bad)?),
                    format!("/{rest}"),
                )
            }
            None => (None, path.to_owned()),
        };
        let mut values = HashMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let key = decode(key, true).ok_or_else(bad)?;
            values.insert(key, decode(value, true).ok_or_else(bad)?);
        }
        Ok(Self {
            path,
            process,
            query: values,
            raw_query: query.to_owned(),
            ..Self::default()
        })
    }

    /// Returns a value of the query, if present and not empty.
    pub fn value(&self, key: &str) -> Option<&str> {
        let value = self.query.get(key).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    /// Returns the requested process: a pid, name or pattern. `None` if none is requested.
    pub fn process(&self) -> Option<&str> {
        let named = self.value("pid").or_else(|| self.value("name"));
        named.or(self.process.as_deref())
    }

    /// Returns true if a switch is on, such as `debug=1`.
    pub fn is_on(&self, key: &str) -> bool {
        self.value(key).is_some_and(|value| value != "0")
    }

    /// Parses a number in the query, if present.
    pub fn number(&self, key: &str) -> Result<Option<u64>, Reply> {
        let number = self.value(key).map(str::parse).transpose();
        number.map_err(|_| Reply::refusal(400, format!("{key} must be a whole number")))
    }

    /// Parses `?seconds=N`, as net/http/pprof defines it.
    pub fn seconds(&self) -> Result<Option<Duration>, Reply> {
        let Some(text) = self.value("seconds") else {
            return Ok(None);
        };
        match text.parse::<u64>() {
            Ok(seconds @ 1..=MAX_SECONDS) => Ok(Some(Duration::from_secs(seconds))),
            _ => Err(Reply::refusal(
                400,
                format!("seconds must be a whole number from 1 to {MAX_SECONDS}"),
            )),
        }
    }
}

/// Decodes percent-encoded text. In a query, `+` is a space.
fn decode(text: &str, is_query: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        bytes.push(match first {
            b'+' if is_query => b' ',
            b'%' => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                let digits = std::str::from_utf8(digits).ok()?;
                let is_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
                u8::from_str_radix(digits, 16).ok().filter(|_| is_hex)?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_named_in_the_query_or_the_path() {
        let parse = |path, query| Request::parse(path, query).unwrap();
        let request = parse("/p/my%20app/debug/pprof/heap", "seconds=5&gc=1");
        assert_eq!(request.path, "/debug/pprof/heap");
        assert_eq!(request.process(), Some("my app"));
        assert_eq!(request.seconds().unwrap(), Some(Duration::from_secs(5)));
        assert!(request.is_on("gc") && !request.is_on("debug"));
        let request = parse("/pprof/heap", "name=a%2Ab+c&debug=0");
        assert_eq!(request.process(), Some("a*b c"));
        assert!(!request.is_on("debug"));
        assert_eq!(parse("/p/7", "").path, "/");
        assert_eq!(parse("/", "pid=&&=").process(), None);
    }

    #[test]
    fn garbage_is_refused_with_a_message() {
        for (path, query) in [
            ("/", "a=%"),
            ("/", "%zz=1"),
            ("/p/%ff/x", ""),
            ("/", "a=%+1"),
        ] {
            assert_eq!(Request::parse(path, query).unwrap_err().status, 400);
        }
        for seconds in ["0", "-1", "x", "601", "1.5", "99999999999999999999"] {
            let request = Request::parse("/", &format!("seconds={seconds}")).unwrap();
            assert_eq!(request.seconds().unwrap_err().status, 400, "{seconds}");
        }
    }

    #[test]
    fn encoded_labels_are_read_and_garbage_is_refused() {
        // A fixed sequence of xorshift.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        const ODD: &[char] = &['%', '&', '=', '+', '/', '?', 'p', '4', 'f', '\0', 'é', ' '];
        for _ in 0..20_000 {
            let length = random(20);
            let text: String = (0..length)
                .map(|_| ODD[random(ODD.len() as u64) as usize])
                .collect();
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let requested = Request::parse(&format!("/p/{encoded}/x"), &format!("name={encoded}"));
            let requested = requested.unwrap();
            assert_eq!(requested.process.as_deref(), Some(text.as_str()));
            assert_eq!(requested.query["name"], text);
            let raw = Request::parse(&format!("/p/{text}"), &text);
            assert!(raw.is_ok() || raw.is_err_and(|refusal| refusal.status == 400));
        }
    }
}
