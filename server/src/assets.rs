//! Files of the live page, built into the program. The page fetches nothing from other hosts.

use crate::reply::Reply;

/// Content security policy: the page may only use its own files and answers.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Addition to the style of the pages made by mem_parser.
const STYLE: &str = include_str!("page/page.css");
/// Names that modules import from the script of these pages.
const EXPORTS: &str = "export { make, remark };\n";

/// Modules of the page's script.
const MODULES: &[(&str, &str)] = &[
    ("/main.js", include_str!("page/main.js")),
    ("/list.js", include_str!("page/list.js")),
    ("/row.js", include_str!("page/row.js")),
    ("/process.js", include_str!("page/process.js")),
    ("/session.js", include_str!("page/session.js")),
    ("/chart.js", include_str!("page/chart.js")),
    ("/net.js", include_str!("page/net.js")),
    ("/state.js", include_str!("page/state.js")),
    ("/text.js", include_str!("page/text.js")),
];

/// Returns a file of the page.
pub fn find(path: &str) -> Option<Reply> {
    Some(match path {
        "/" => reply(HTML, include_str!("page/index.html")),
        "/page.css" => reply(CSS, [page::STYLE, STYLE].concat()),
        "/dom.js" => reply(SCRIPT, [page::SCRIPT, EXPORTS].concat()),
        _ => {
            let module = MODULES.iter().find(|(name, _)| *name == path);
            reply(SCRIPT, module?.1)
        }
    })
}

/// Returns the list of profiles, after other content in HTML.
pub fn profiles(before: &str) -> Reply {
    const PLACE: &str = "<!-- processes -->";
    reply(
        HTML,
        include_str!("page/profiles.html").replacen(PLACE, before, 1),
    )
}

fn reply(kind: &'static str, text: impl Into<Vec<u8>>) -> Reply {
    Reply::with_content_type(kind, text)
        .with_header("Content-Security-Policy", POLICY.to_owned())
        .with_header("Cache-Control", "no-cache".to_owned())
}
