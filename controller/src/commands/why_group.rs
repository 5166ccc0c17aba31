//! `why --cgroup`: explains the memory of a control group on one screen.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use mem_agents::cgroup::Group;
use mem_agents::text;
use serde::Serialize;

use crate::ledger::group::{self, Around, Ledger};
use crate::ledger::{self, Row};
use crate::terminal::{json, result, warning};

/// Explanation for a control group.
#[derive(Debug, Serialize)]
struct Answer {
    cgroup: String,
    current_bytes: u64,
    limit_bytes: Option<u64>,
    /// Group around this one that is nearest to its limit.
    limited_around: Option<Around>,
    working_set_bytes: u64,
    swap_bytes: u64,
    processes: usize,
    /// Parts of the memory, which add up to `current_bytes` together with `remainder_bytes`.
    #[serde(serialize_with = "ledger::sizes")]
    parts: Vec<Row>,
    remainder_bytes: i64,
    largest_processes: Vec<Row>,
    largest_files: Vec<Row>,
    largest_shared_memory: Vec<Row>,
    /// True if there are too many files to list all.
    is_file_list_incomplete: bool,
    /// True if some processes could not be read.
    is_incomplete: bool,
}

/// Prints the explanation for the group at a path.
pub fn execute(path: &Path, as_json: bool) -> anyhow::Result<ExitCode> {
    let group = Group::at(path);
    let name = text::path(path);
    if !group.exists() {
        bail!("{name}: there is no such control group: see /proc/PID/cgroup");
    }
    let Some(account) = group.account() else {
        bail!(
            "{name}: the kernel keeps no account of this control group's memory: its memory \
             controller is off, or it is the root of version 2"
        );
    };
    let answer = Answer::new(name, group::read(&account));
    if as_json {
        json(&[&answer])?;
    } else {
        print(&answer);
    }
    Ok(ExitCode::SUCCESS)
}

impl Answer {
    fn new(cgroup: String, ledger: Ledger) -> Self {
        Self {
            cgroup,
            current_bytes: ledger.current,
            limit_bytes: ledger.limit,
            limited_around: ledger.around,
            working_set_bytes: ledger.working_set,
            swap_bytes: ledger.swap,
            processes: ledger.processes,
            parts: ledger.parts,
            remainder_bytes: ledger.remainder,
            largest_processes: ledger.largest_processes,
            largest_files: ledger.largest_files,
            largest_shared_memory: ledger.largest_shared,
            is_file_list_incomplete: ledger.is_file_list_incomplete,
            is_incomplete: ledger.is_incomplete,
        }
    }
}

fn print(answer: &Answer) {
    let size = |bytes: u64| text::bytes(bytes as f64);
    let share = |current: u64, limit: u64| {
        let share = current as f64 / limit.max(1) as f64 * 100.0;
        format!("{share:.1}% of its limit, {}", size(limit))
    };
    let limit = answer.limit_bytes.map_or_else(
        || "no limit of its own".to_owned(),
        |limit| share(answer.current_bytes, limit),
    );
    let swap = match answer.swap_bytes {
        0 => String::new(),
        swap => format!(", and {} swapped out", size(swap)),
    };
    result(&format!(
        "{}: {} in use{swap}: {limit}",
        answer.cgroup,
        size(answer.current_bytes)
    ));
    if let Some(around) = &answer.limited_around {
        result(&format!(
            "  It is in {}: {} in use: {}",
            around.cgroup,
            size(around.current_bytes),
            share(around.current_bytes, around.limit_bytes)
        ));
    }
    ledger::print_rows(&answer.parts, answer.current_bytes);
    let remainder = answer.remainder_bytes;
    let note = match remainder {
        ..0 => "less: counters of different moments",
        _ => "charged in advance, or not counted by use",
    };
    ledger::print_row(
        "remainder",
        remainder.unsigned_abs(),
        answer.current_bytes,
        note,
    );
    result(&format!(
        "  Working set, by which Kubernetes evicts: {}.",
        size(answer.working_set_bytes)
    ));
    let count = text::count(answer.processes as u64, "process", "processes");
    print_largest(
        &format!("Anonymous memory of the largest of {count}:"),
        &answer.largest_processes,
    );
    print_largest(
        "Cached pages of files that they have open, charged to any group:",
        &answer.largest_files,
    );
    print_largest(
        "Files in memory (open, in /dev/shm, /tmp and /run), charged to any group:",
        &answer.largest_shared_memory,
    );
    if answer.is_file_list_incomplete {
        result("  There are too many files to list all.");
    }
    if answer.is_incomplete {
        warning("some processes of the group cannot be read: run this as their user, or as root");
    }
}

fn print_largest(title: &str, rows: &[Row]) {
    if !rows.is_empty() {
        result(&format!("  {title}"));
        ledger::print_list(rows);
    }
}
