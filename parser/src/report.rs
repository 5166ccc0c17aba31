//! Output formats, one file each.

pub mod context;
pub mod format;
mod interval;

mod callgrind;
mod clickhouse;
mod csv;
mod dot;
mod flame;
mod folded;
mod gperftools;
mod html;
mod json;
mod leaks;
mod list;
mod own;
mod peek;
mod proto;
mod raw;
mod rss;
pub mod sampling;
mod sizes;
mod svg;
mod symbolize;
mod temporary;
mod threads;
mod timeline;
mod top;
mod traces;
mod tree;

use format::Format;

/// Returns a report as shown on a terminal that supports only ASCII.
pub fn in_ascii(format: &Format, content: Vec<u8>) -> Vec<u8> {
    match String::from_utf8(content) {
        Ok(text) if format.flag == timeline::FORMAT.flag => timeline::in_ascii(&text).into_bytes(),
        Ok(text) => text.into_bytes(),
        Err(error) => error.into_bytes(),
    }
}

/// All formats, in the order of `--help`.
pub static FORMATS: &[&Format] = &[
    &top::FORMAT,
    &svg::FORMAT,
    &flame::FORMAT,
    &html::FORMAT,
    &tree::FORMAT,
    &peek::FORMAT,
    &traces::FORMAT,
    &list::FORMAT,
    &dot::FORMAT,
    &callgrind::FORMAT,
    &raw::FORMAT,
    &folded::FORMAT,
    &proto::FORMAT,
    &gperftools::FORMAT,
    &json::FORMAT,
    &csv::FORMAT,
    &clickhouse::FORMAT,
    &leaks::FORMAT,
    &timeline::FORMAT,
    &sizes::FORMAT,
    &threads::FORMAT,
    &temporary::FORMAT,
    &rss::FORMAT,
    &symbolize::FORMAT,
];
