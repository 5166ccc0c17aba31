//! The parser's table, as text and as numbers.

use std::path::Path;

use crate::scratch::Scratch;
use crate::session::run;

/// A line of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Value of the function itself (flat).
    pub flat: f64,
    /// Value of the function and its callees (cum).
    pub cum: f64,
    /// The function's name.
    pub name: String,
}

/// Runs the parser on a dump. Returns its table in bytes or objects, unrounded.
pub fn table(scratch: &Scratch, binary: &Path, dump: &Path, options: &[&str]) -> Vec<Row> {
    let mut command = scratch.parser();
    command
        .args(["-t", "--unit", "B", "--nodefraction", "0", "-p"])
        .arg(binary)
        .arg("-f")
        .arg(dump);
    let outcome = run(command.args(options));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let rows: Vec<_> = outcome.stdout.lines().filter_map(row).collect();
    assert!(!rows.is_empty(), "{outcome:?}");
    rows
}

fn row(line: &str) -> Option<Row> {
    let mut rest = line.trim_start();
    let mut fields = [""; 5];
    for field in &mut fields {
        let end = rest.find(' ')?;
        *field = &rest[..end];
        rest = rest[end..].trim_start();
    }
    let number = |text: &str| text.trim_end_matches('B').parse().ok();
    let percent = fields[1].ends_with('%') && fields[4].ends_with('%');
    Some(Row {
        flat: number(fields[0])?,
        cum: number(fields[3])?,
        name: rest.to_owned(),
    })
    .filter(|_| percent)
}

/// Returns the row of a function.
pub fn find<'a>(rows: &'a [Row], name: &str) -> &'a Row {
    let row = rows.iter().find(|row| row.name == name);
    row.unwrap_or_else(|| panic!("no {name} in {rows:#?}"))
}
