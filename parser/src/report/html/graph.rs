//! The call graphs, a picture for each column.

use serde::Serialize;

use super::tab::{Of, PageContext, Tab};
use crate::graph::Graph;
use crate::json;
use crate::report::context::Context;
use crate::report::flame::data::Totals;
use crate::report::svg;

/// The tab of the call graph. Its pictures are large, and are in an element of their own.
pub const TAB: Tab = Tab {
    script: include_str!("graph.js"),
    of: Of::All,
    data: None,
};

const SCRIPT_FROM: &str = "<script><![CDATA[";
const SCRIPT_TO: &str = "]]></script>";

/// The pictures of each column as a JSON list, and the script that all of them carry.
pub fn all(page: &PageContext) -> (String, String) {
    let PageContext {
        context,
        columns,
        compared,
    } = *page;
    let mut script = String::new();
    let mut one = |column: usize, with_base: bool| {
        let picture = picture(context, column, with_base)?;
        if script.is_empty() {
            script = script_of(&picture).unwrap_or_default().to_owned();
        }
        Some(picture)
    };
    let pictures: Vec<Pictures> = columns
        .iter()
        .map(|&column| Pictures {
            now: one(column, false),
            change: compared.then(|| one(column, true)).flatten(),
        })
        .collect();
    (json::embedded(&pictures), script)
}

/// The pictures of a column; `None` for one without a box.
#[derive(Serialize)]
struct Pictures {
    now: Option<String>,
    change: Option<String>,
}

fn picture(context: &Context, column: usize, with_base: bool) -> Option<String> {
    let mut view = context.view.of_column(column, with_base);
    if with_base {
        // As everywhere on the page, and in the tables: shares of a change are of all that changed,
        // or of the base.
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
    // Inside HTML there is no XML declaration.
    let start = picture.find("<svg").unwrap_or(0);
    Some(picture[start..].to_owned())
}

/// The text of the script element, as a browser sees it. Names cannot contain
/// the markers, since their `<` and `>` are escaped.
fn script_of(picture: &str) -> Option<&str> {
    let (_, rest) = picture.split_once(SCRIPT_FROM)?;
    rest.split_once(SCRIPT_TO).map(|(script, _)| script)
}
