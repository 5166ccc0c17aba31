//! Files of the live page, built into the program. The page fetches nothing from other hosts.

use crate::reply::Reply;

/// Content security policy: the page may only use its own files and answers.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Style of the pages made by mem_parser, and additions for the live page.
const STYLE: &str = concat!(
    include_str!("../../parser/src/report/html/page.css"),
    include_str!("page/page.css")
);
const PROGRAM: &str = concat!(
    include_str!("../../parser/src/report/html/dom.js"),
    include_str!("page/page.js")
);

/// Returns a file of the page.
pub fn find(path: &str) -> Option<Reply> {
    let (kind, text) = match path {
        "/" => (HTML, include_str!("page/index.html")),
        "/page.css" => (CSS, STYLE),
        "/page.js" => (SCRIPT, PROGRAM),
        _ => return None,
    };
    Some(page(kind, text))
}

/// Returns the list of profiles, at the path where Go programs have theirs.
pub fn profiles() -> Reply {
    page(HTML, include_str!("page/profiles.html"))
}

fn page(kind: &'static str, text: &str) -> Reply {
    Reply::of(kind, text)
        .with("Content-Security-Policy", POLICY.to_owned())
        .with("Cache-Control", "no-cache".to_owned())
}
