//! `/debug/pprof/`: a list of the profiles, where Go programs have theirs, for clients that run no
//! script.

use crate::assets;
use crate::reply::Reply;
use crate::request::Request;
use crate::server::Server;

/// Returns the list. If the request names no process, there is a list of the processes as well, with
/// links to the profiles of each.
pub fn answer(server: &Server, request: &Request) -> Reply {
    if request.process().is_some() {
        return assets::profiles("");
    }
    let mut processes: Vec<(String, i32)> = server
        .sources
        .agents
        .all()
        .map(|agent| (agent.title(), agent.pid))
        .collect();
    processes.sort();
    let rows: String = processes
        .iter()
        .map(|(title, pid)| row(title, *pid))
        .collect();
    if rows.is_empty() {
        return assets::profiles("<p class=\"say\">No process carries the agent.</p>");
    }
    assets::profiles(&format!(
        "<h2>Processes</h2><table class=\"narrow\"><tbody>{rows}</tbody></table><h2>Profiles</h2>"
    ))
}

/// Returns the row of a process.
fn row(title: &str, pid: i32) -> String {
    let title = escape(title);
    format!("<tr><td class=\"text\"><a href=\"/p/{pid}/debug/pprof/\">{title}</a></td></tr>")
}

/// Escapes text for HTML.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text() {
        let row = row("<script>alert('&\"')</script> (7)", 7);
        assert_eq!(
            row,
            "<tr><td class=\"text\"><a href=\"/p/7/debug/pprof/\">&lt;script&gt;alert(&#39;&amp;&quot;&#39;)\
             &lt;/script&gt; (7)</a></td></tr>"
        );
    }
}
