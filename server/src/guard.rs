//! Access control: refuses requests that web pages of other sites make through a user's browser
//! and, except on loopback, requests without the token.

use std::fs;
use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::header::HeaderMap;
use mem_agents::text;

use crate::reply::Reply;

/// Minimum length of a token, in characters.
const MIN_TOKEN_LENGTH: usize = 16;
/// Maximum number of bytes read from the token file.
const MAX_TOKEN_FILE_BYTES: u64 = 4096;

/// Kind of access that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Check whether the server is running.
    Health,
    /// The live page without its data, which its script reads later. Other sites may link to it.
    Page,
    /// Any other read access.
    Read,
    /// A change.
    Change,
}

/// The rules for access.
#[derive(Debug, Default)]
pub struct Guard {
    /// Token that clients must send; `None` if no token is required.
    pub token: Option<String>,
    /// True if the server listens on loopback, so that `Host` must name this machine.
    pub loopback: bool,
}

/// Reads a token from a file, which only its owner may be able to read.
pub fn token(path: &Path) -> anyhow::Result<String> {
    let path_text = || text::path(path);
    let read = || -> io::Result<(u32, String)> {
        let file = fs::File::open(path)?;
        let mode = file.metadata()?.mode();
        let mut content = String::new();
        file.take(MAX_TOKEN_FILE_BYTES)
            .read_to_string(&mut content)?;
        Ok((mode, content.trim().to_owned()))
    };
    let (mode, token) = read().with_context(path_text)?;
    ensure!(
        mode & 0o077 == 0,
        "{}: other users have access to this file; run: chmod 600",
        path_text()
    );
    ensure!(
        token.len() >= MIN_TOKEN_LENGTH && token.bytes().all(|b| b.is_ascii_graphic()),
        "{}: a token has at least {MIN_TOKEN_LENGTH} printable ASCII characters and no space: openssl \
         rand -hex 32 makes one",
        path_text()
    );
    Ok(token)
}

impl Guard {
    /// Checks a request. Returns the refusal if it must not be answered.
    pub fn check(&self, headers: &HeaderMap, access: Access) -> Result<(), Reply> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let host = header("host").unwrap_or_default();
        if self.loopback && !is_local(host) {
            return Err(Reply::refusal(
                403,
                "the header Host names another machine: ask for 127.0.0.1, [::1] or localhost",
            ));
        }
        if access == Access::Health {
            return Ok(());
        }
        let site = header("sec-fetch-site").unwrap_or("none");
        let is_navigation = header("sec-fetch-mode") == Some("navigate")
            && header("sec-fetch-dest") == Some("document");
        let is_link = access == Access::Page && is_navigation;
        if !is_link && !["none", "same-origin"].contains(&site) {
            return Err(Reply::refusal(
                403,
                "cross-origin request: another web page made it",
            ));
        }
        if let Some(origin) = header("origin") {
            let origin_host = origin.split_once("://").map(|(_, name)| name);
            if origin_host != Some(host) {
                return Err(Reply::refusal(
                    403,
                    "cross-origin request: another web page made it",
                ));
            }
        }
        // Neither forms nor scripts of other origins can send this header.
        if access == Access::Change && header("x-mem-profiler").is_none() {
            return Err(Reply::refusal(
                403,
                "a request that changes something needs the header X-Mem-Profiler: 1",
            ));
        }
        let Some(token) = &self.token else {
            return Ok(());
        };
        let sent = header("authorization").and_then(sent_token);
        if !sent.is_some_and(|sent| constant_time_eq(sent.as_bytes(), token.as_bytes())) {
            let refusal = Reply::refusal(
                401,
                "the token is missing or wrong: send it as `Authorization: Bearer TOKEN`, or as the \
                 password with any user name",
            );
            return Err(
                refusal.with_header("WWW-Authenticate", "Basic realm=\"mem_server\"".to_owned())
            );
        }
        Ok(())
    }
}

/// Extracts the token from `Authorization`: a bearer token, or the password of any user, for
/// browsers.
fn sent_token(value: &str) -> Option<String> {
    let (scheme, credentials) = value.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(credentials.trim().to_owned());
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(BASE64_STANDARD.decode(credentials.trim()).ok()?).ok()?;
    decoded
        .split_once(':')
        .map(|(_, password)| password.to_owned())
}

/// Returns true if two strings are equal. The time does not depend on where they differ, so that
/// nobody can guess a token byte by byte.
fn constant_time_eq(a: &[u8], b: &[u8]) -> bool {
    let differences = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && std::hint::black_box(differences) == 0
}

/// Returns true if the header `Host` names loopback, with or without a port.
fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let ipv6 = name.strip_prefix('[').and_then(|n| n.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost")
        || ipv6
            .unwrap_or(name)
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &Guard, headers: &[(&'static str, &'static str)], access: Access) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        guard
            .check(&map, access)
            .map_or_else(|r| r.status, |()| 200)
    }

    #[test]
    fn requests_from_other_sites_are_refused() {
        let guard = Guard {
            token: None,
            loopback: true,
        };
        let host = ("host", "127.0.0.1:4040");
        assert_eq!(check(&guard, &[host], Access::Read), 200);
        for name in ["localhost", "[::1]:80", "LOCALHOST:1", "127.9.9.9"] {
            assert_eq!(
                check(&guard, &[("host", name)], Access::Read),
                200,
                "{name}"
            );
        }
        for name in [
            "evil.example",
            "127.0.0.1.evil.example:80",
            "",
            "[::1",
            "1.2.3.4",
        ] {
            assert_eq!(
                check(&guard, &[("host", name)], Access::Read),
                403,
                "{name}"
            );
        }
        let origin = ("origin", "http://127.0.0.1:4040");
        let ours = ("x-mem-profiler", "1");
        assert_eq!(check(&guard, &[host, origin, ours], Access::Change), 200);
        assert_eq!(check(&guard, &[host, origin], Access::Change), 403);
        for origin in ["http://evil.example", "null", "http://127.0.0.1:4041"] {
            assert_eq!(
                check(&guard, &[host, ("origin", origin)], Access::Read),
                403
            );
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(
                check(&guard, &[host, ("sec-fetch-site", site)], Access::Read),
                403
            );
        }
        assert_eq!(
            check(
                &guard,
                &[host, ("sec-fetch-site", "same-origin")],
                Access::Read
            ),
            200
        );
    }

    #[test]
    fn links_of_other_sites_lead_to_the_page_alone() {
        let guard = Guard {
            token: None,
            loopback: true,
        };
        let link = [
            ("host", "localhost:4040"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert_eq!(check(&guard, &link, Access::Page), 200);
        assert_eq!(check(&guard, &link, Access::Read), 403);
        assert_eq!(check(&guard, &link, Access::Change), 403);
        let mut frame = link;
        frame[3].1 = "iframe";
        assert_eq!(check(&guard, &frame, Access::Page), 403);
    }

    #[test]
    fn health_needs_no_token() {
        let guard = Guard {
            token: Some("0123456789abcdef".to_owned()),
            loopback: true,
        };
        let host = ("host", "localhost");
        assert_eq!(check(&guard, &[host], Access::Health), 200);
        assert_eq!(check(&guard, &[host], Access::Page), 401);
        let other = ("host", "evil.example");
        assert_eq!(check(&guard, &[other], Access::Health), 403);
    }

    #[test]
    fn bearer_and_basic_authentication_are_accepted() {
        let guard = Guard {
            token: Some("0123456789abcdef".to_owned()),
            loopback: false,
        };
        let with = |value| check(&guard, &[("authorization", value)], Access::Read);
        assert_eq!(check(&guard, &[], Access::Read), 401);
        assert_eq!(with("Bearer 0123456789abcdef"), 200);
        // any:0123456789abcdef
        assert_eq!(with("Basic YW55OjAxMjM0NTY3ODlhYmNkZWY="), 200);
        for wrong in [
            "Bearer 0123456789abcdeg",
            "Bearer 0123456789abcdef0",
            "Bearer",
            "Basic !",
            "Basic YW55",
            "0123456789abcdef",
        ] {
            assert_eq!(with(wrong), 401, "{wrong}");
        }
    }
}
