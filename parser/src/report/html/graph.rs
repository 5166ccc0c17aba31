//! Tab with the call graphs, one picture per column.

use serde::Serialize;

use super::tab::{PageContext, ProfileKind, Tab};
use crate::graph::Graph;
use crate::json;
use crate::report::context::Context;
use crate::report::flame::data::Totals;
use crate::report::svg;

/// The tab of the call graph. Its pictures are large and have an element of their own.
pub const TAB: Tab = Tab {
    script: include_str!("graph.js"),
    profiles: ProfileKind::All,
    data: None,
};

const SCRIPT_START: &str = "<script><![CDATA[";
const SCRIPT_END: &str = "]]></script>";

/// Returns the pictures of each column as a JSON list, and the script that they share.
pub fn pictures_and_script(page: &PageContext) -> (String, String) {
    let PageContext {
        context,
        columns,
        compared,
    } = *page;
    let mut script = String::new();
    let mut draw = |column: usize, with_base: bool| {
        let picture = picture(context, column, with_base)?;
        if script.is_empty() {
            script = embedded_script(&picture).unwrap_or_default().to_owned();
        }
        Some(picture)
    };
    let pictures: Vec<Pictures> = columns
        .iter()
        .map(|&column| Pictures {
            now: draw(column, false),
            change: compared.then(|| draw(column, true)).flatten(),
        })
        .collect();
    (json::embedded(&pictures), script)
}

/// Pictures of a column; `None` for one without a box.
#[derive(Serialize)]
struct Pictures {
    now: Option<String>,
    change: Option<String>,
}

fn picture(context: &Context, column: usize, with_base: bool) -> Option<String> {
    let mut view = context.view.with_column(column, with_base);
    if with_base {
        // Percentages of a change refer to the sum of all changes, or to the base, as in tables.
        let change = Totals::of_column(context, column, true).change;
        view.set_total(change.try_into().unwrap_or(i64::MAX));
    }
    let context = Context {
        view: &view,
        ..*context
    };
    let trimmed = Graph::trimmed(&view, context.nodes, &context.trim);
    if trimmed.graph.nodes.is_empty() {
        return None;
    }
    let picture = callgraph::render(&svg::picture(&context, &trimmed));
    // An XML declaration is not allowed inside HTML.
    let start = picture.find("<svg").unwrap_or(0);
    Some(picture[start..].to_owned())
}

/// Returns the text of the script element, as a browser sees it. Names cannot contain the
/// delimiters, because their `<` and `>` are escaped.
fn embedded_script(picture: &str) -> Option<&str> {
    let (_, rest) = picture.split_once(SCRIPT_START)?;
    rest.split_once(SCRIPT_END).map(|(script, _)| script)
}
