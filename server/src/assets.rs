//! Files of the live page, built into the program. The page fetches nothing from other hosts.

use crate::reply::Reply;

/// Content security policy: the page may only use its own files and answers.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Additions to the style and the script of the pages made by mem_parser.
const STYLE: &str = include_str!("page/page.css");
const PROGRAM: &str = include_str!("page/page.js");

/// Returns a file of the page.
pub fn find(path: &str) -> Option<Reply> {
    Some(match path {
        "/" => reply(HTML, include_str!("page/index.html")),
        "/page.css" => reply(CSS, [page::STYLE, STYLE].concat()),
        "/page.js" => reply(SCRIPT, [page::SCRIPT, PROGRAM].concat()),
        _ => return None,
    })
}

/// Returns the list of profiles, at the path where Go programs have theirs.
pub fn profiles() -> Reply {
    reply(HTML, include_str!("page/profiles.html"))
}

fn reply(kind: &'static str, text: impl Into<Vec<u8>>) -> Reply {
    Reply::of(kind, text)
        .with("Content-Security-Policy", POLICY.to_owned())
        .with("Cache-Control", "no-cache".to_owned())
}
