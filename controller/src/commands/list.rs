//! `list`: lists processes with the agent, and profiles of dead ones.

use std::process::ExitCode;

use mem_agents::discovery::{Discovery, Life, Refused};
use mem_agents::listing::{Row, SAMPLES, STALE_NS, row};
use mem_agents::preload;
use mem_agents::segment::Head;
use mem_agents::select::Selection;
use mem_agents::text;
use unicode_width::UnicodeWidthStr;

use crate::allocator;
use crate::cli::ListArgs;
use crate::jemalloc_options;
use crate::python;
use crate::terminal::{self, diagnostic, json, result, warning};

/// Prints the list.
pub fn execute(args: ListArgs) -> anyhow::Result<ExitCode> {
    let selection = Selection::from(args.select);
    let scan = Discovery::new().scan();
    let failures = selection.unknown(&scan);
    failures.iter().for_each(|failure| diagnostic(failure));
    let mut head = Head::new();
    let selected = scan
        .found
        .into_iter()
        .filter(|found| selection.wants(found));
    // Opened one at a time, since there may be more segments than descriptors.
    let agents = selected.filter_map(|found| found.open().ok());
    let mut live = Vec::new();
    let mut pythons = Vec::new();
    let rows = agents.filter_map(|agent| {
        if agent.life == Life::Running {
            live.push((agent.pid, agent.name.clone()));
        }
        let row = row(&agent, &mut head)?;
        if agent.life == Life::Running && row.python.is_some() {
            pythons.push((agent.pid, agent.name.clone()));
        }
        Some(row)
    });
    let rows: Vec<Row> = rows.filter(|row| args.all || row.is_useful()).collect();
    if args.json {
        json(&rows)?;
    } else {
        print(&rows);
    }
    warn_of_unattended(&rows);
    let live = live.iter().map(|(pid, name)| (*pid, &name[..]));
    let warnings = allocator::warnings(live.clone());
    warnings.iter().for_each(|line| warning(line));
    if let Some(hint) = jemalloc_options::hint(live) {
        diagnostic(&hint);
    }
    let pythons = pythons.iter().map(|(pid, name)| (*pid, &name[..]));
    if let Some(hint) = python::hint(pythons) {
        diagnostic(&hint);
    }
    if selection.names.is_empty() {
        if rows.is_empty() {
            let unlisted = selection.unlisted();
            unlisted.iter().for_each(|line| warning(line));
        }
        let warnings = preload::warnings();
        warnings.iter().for_each(|line| warning(line));
        // An agent may still be initializing a young segment.
        let is_permanent = |refused: &Refused| !refused.young;
        let warnings = scan.refused.warnings(is_permanent, true);
        warnings.iter().for_each(|line| warning(line));
    }
    Ok(if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Warns about unattended sessions. Names only the first ones if there are many.
fn warn_of_unattended(rows: &[Row]) {
    let mut hints = rows.iter().filter_map(Row::hint);
    hints
        .by_ref()
        .take(MAX_HINTS)
        .for_each(|hint| warning(&hint));
    let more = hints.count();
    if more > 0 {
        warning(&format!(
            "{more} more sessions are unattended: mem_profiler stop without -p ends all sessions and \
             writes their profiles"
        ));
    }
}

/// Maximum number of unattended sessions that are named.
const MAX_HINTS: usize = 5;

/// Heads of the columns.
const HEAD: [&str; 11] = [
    "PID",
    "NAME",
    "USER",
    "CONTAINER",
    "AGENT",
    "STATE",
    "INTERVAL",
    "LEFT",
    "LIVE",
    "RSS",
    "PYTHON",
];

fn print(rows: &[Row]) {
    // The column PYTHON is wide, and rarely needed.
    let columns = HEAD.len() - usize::from(rows.iter().all(|row| row.python.is_none()));
    let dash = || "-".to_owned();
    let memory = |bytes: Option<u64>| bytes.map_or_else(dash, |bytes| text::bytes(bytes as f64));
    let cells = rows.iter().map(|row| {
        let left = row.seconds_left.map(std::time::Duration::from_secs_f64);
        let open = if row.open_end {
            "open".to_owned()
        } else {
            dash()
        };
        let mut cells = vec![
            row.pid.to_string(),
            row.name.clone(),
            row.user.clone(),
            row.container.clone().unwrap_or_else(dash),
            row.agent_version.clone(),
            if row.unattended {
                format!("{}, unattended", row.state)
            } else {
                row.state.to_owned()
            },
            row.interval.map_or_else(dash, |i| i.to_string()),
            left.map_or(open, text::duration),
            live_text(row).unwrap_or_else(dash),
            memory(row.rss_bytes),
            row.python.clone().unwrap_or_else(dash),
        ];
        cells.truncate(columns);
        cells
    });
    let table = Table {
        heads: HEAD[..columns].to_vec(),
        rows: cells.collect(),
    };
    let width = terminal::width().unwrap_or(usize::MAX);
    for line in table.lines_within(width) {
        result(&line);
    }
}

/// Table of the processes.
struct Table {
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Columns that may be left out on a narrow terminal, in this order.
    const DISPENSABLE: [&str; 4] = ["CONTAINER", "AGENT", "INTERVAL", "LEFT"];

    /// Returns the lines. While they are wider than `width`, leaves out dispensable columns without
    /// information: those without values, and the agents' version if it is this program's.
    fn lines_within(mut self, width: usize) -> Vec<String> {
        for dispensable in Self::DISPENSABLE {
            let lines = self.lines();
            if lines.iter().all(|line| line.width() <= width) {
                return lines;
            }
            let Some(index) = self.heads.iter().position(|head| *head == dispensable) else {
                continue;
            };
            let says_nothing = |cell: &str| cell == "-" || cell == env!("CARGO_PKG_VERSION");
            if self.rows.iter().all(|row| says_nothing(&row[index])) {
                self.heads.remove(index);
                for row in &mut self.rows {
                    row.remove(index);
                }
            }
        }
        self.lines()
    }

    fn lines(&self) -> Vec<String> {
        let is_number = |head: &str| ["PID", "INTERVAL", "LEFT", "LIVE", "RSS"].contains(&head);
        let numbers: Vec<usize> = (0..self.heads.len())
            .filter(|&column| is_number(self.heads[column]))
            .collect();
        text::table(&self.heads, &numbers, self.rows.clone())
    }
}

/// Formats the live bytes. Marks estimates with `~` and states the age of old values.
fn live_text(row: &Row) -> Option<String> {
    let bytes = row.live_bytes?;
    let source = row.live_source?;
    let age = row.live_age_seconds?;
    let text = text::bytes(bytes as f64);
    Some(match source {
        SAMPLES if row.is_exact => text,
        SAMPLES => format!("~{text}"),
        _ if age * 1e9 > STALE_NS as f64 => {
            let age = std::time::Duration::from_secs_f64(age);
            format!("{text} {} ago", text::duration(age))
        }
        _ => text,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(container: &str, version: &str) -> Table {
        let cells = [
            "12345",
            "redis-server",
            "root",
            container,
            version,
            "dead, profile kept",
        ];
        let row = cells.iter().chain(&["-", "-", "~4.8 KiB", "11.1 MiB"]);
        Table {
            heads: HEAD[..HEAD.len() - 1].to_vec(),
            rows: vec![row.map(|cell| (*cell).to_owned()).collect()],
        }
    }

    #[test]
    fn a_narrow_list_leaves_out_what_says_nothing() {
        let own = env!("CARGO_PKG_VERSION");
        let narrow = list("-", own).lines_within(80);
        assert!(narrow.iter().all(|line| line.width() <= 80), "{narrow:?}");
        assert!(
            !narrow[0].contains("CONTAINER") && narrow[0].contains("RSS"),
            "{narrow:?}"
        );
        assert_eq!(list("-", own).lines_within(200), list("-", own).lines());
        // What differs is shown however wide it is.
        let told = list("web", "0.0.1").lines_within(80);
        assert!(
            told[1].contains("web") && told[1].contains("0.0.1"),
            "{told:?}"
        );
    }
}
