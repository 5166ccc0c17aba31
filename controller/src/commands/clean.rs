//! `clean`: removes the segments of dead processes.

use std::process::ExitCode;

use mem_agents::claims::Doubt;
use mem_agents::cleaning::{Cleaned, remove_run_directories, remove_unused};
use mem_agents::discovery::Discovery;
use mem_agents::select::Selection;
use mem_agents::text;
use serde_json::json;

use crate::cli::CleanArgs;
use crate::terminal::{self, diagnostic, result};

/// Maximum number of reasons for keeping segments that are printed.
const MAX_REASONS: usize = 8;

/// Advice about segments of another version.
const OUTDATED: &str =
    "only mem_profiler of that version can recover profiles; to remove: clean --all";

/// State of a profile that was not written, and the commands for it.
const UNWRITTEN: &str = "without a dump: mem_profiler recover, or clean --all";

/// Removes the segments of dead processes, except for unwritten profiles.
pub fn execute(args: CleanArgs) -> ExitCode {
    terminal::set_quiet(args.quiet);
    let selection = Selection::from(args.select);
    let cleaned = remove_unused(&Discovery::new(), &selection, args.all);
    cleaned
        .failures
        .iter()
        .for_each(|failure| diagnostic(failure));
    remove_run_directories();
    if args.json {
        let failed = cleaned.failures.len();
        let summary = json!({
            "removed": cleaned.removed,
            "removed_bytes": cleaned.removed_bytes,
            "kept_unwritten": cleaned.kept,
            "kept_in_use": cleaned.in_use,
            "kept_outdated": cleaned.outdated,
            "kept_outdated_bytes": cleaned.outdated_bytes,
            "kept_doubtful": cleaned.doubted.len(),
            "failed": failed,
        });
        // Numbers are always serializable.
        let _ = terminal::json(&summary);
        return if failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    result(&format!(
        "removed {} {}, {}",
        cleaned.removed,
        if cleaned.removed == 1 {
            "segment"
        } else {
            "segments"
        },
        text::bytes(cleaned.removed_bytes as f64)
    ));
    match cleaned.kept {
        0 => {}
        1 => diagnostic(&format!("1 segment holds a profile {UNWRITTEN}")),
        n => diagnostic(&format!("{n} segments hold profiles {UNWRITTEN}")),
    }
    match cleaned.in_use {
        0 => {}
        1 => diagnostic("1 segment is kept: another mem_profiler writes out its profile"),
        n => diagnostic(&format!(
            "{n} segments are kept: other mem_profilers write out their profiles"
        )),
    }
    if cleaned.outdated > 0 {
        let size = text::bytes(cleaned.outdated_bytes as f64);
        diagnostic(&match cleaned.outdated {
            1 => format!("1 segment of another version ({size}) is kept: {OUTDATED}"),
            n => format!("{n} segments of another version ({size}) are kept: {OUTDATED}"),
        });
    }
    report_doubts(&cleaned);
    if cleaned.failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints each reason for which segments may still be in use, once.
fn report_doubts(cleaned: &Cleaned) {
    let mut reported: Vec<&Doubt> = Vec::new();
    for (path, doubt) in &cleaned.doubted {
        if reported.contains(&doubt) || reported.len() == MAX_REASONS {
            continue;
        }
        reported.push(doubt);
        let others = cleaned.doubted.iter().filter(|(_, other)| other == doubt);
        diagnostic(&match others.count() {
            1 => format!("{path} is kept: {doubt}"),
            n => format!("{n} segments are kept, {path} the first: {doubt}"),
        });
    }
}
