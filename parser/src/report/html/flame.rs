//! Tab with the flame graph, of all columns.

use super::tab::{Data, PageContext, ProfileKind, Tab};
use crate::report::flame::data::{self, Column, Totals};
use crate::report::flame::tree::Tree;
use crate::report::flame::{self, WidthRule};

/// The tab of the flame graph.
pub const TAB: Tab = Tab {
    script: include_str!("flame.js"),
    profiles: ProfileKind::All,
    data: Some(Data {
        key: "flame",
        json: tree,
    }),
};

fn tree(page: &PageContext) -> String {
    let context = page.context;
    let tree = Tree::new(context.view, context.nodes, page.columns, flame::MIN_SHARE);
    let rule = if page.compared {
        WidthRule::Larger
    } else {
        WidthRule::Change
    };
    let columns: Vec<Column> = page
        .columns
        .iter()
        .map(|&index| Column {
            index,
            total: Totals::of_column(context, index, page.compared),
        })
        .collect();
    data::object(context, &tree, &columns, rule)
}
