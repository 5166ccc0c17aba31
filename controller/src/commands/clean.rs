//! `clean`: removes what dead processes left.

use std::process::ExitCode;

use crate::cli::CleanArgs;
use crate::discovery::{Discovery, Life, run_folders};
use crate::segment::{Folder, Head, default_folder};
use crate::select::Selection;
use crate::target::uncollected;
use crate::terminal::{result, tell};
use crate::text;

/// What a cleaning came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cleaned {
    removed: usize,
    removed_bytes: u64,
    failures: usize,
    /// Profiles that nobody wrote out, or that somebody is about to.
    pub kept: usize,
    /// The memory that they take.
    pub kept_bytes: u64,
}

/// Removes the segments of dead processes, but for profiles that nobody wrote out.
pub fn execute(args: CleanArgs) -> anyhow::Result<ExitCode> {
    let selection = Selection::from(args.select);
    let cleaned = remove_unused(&Discovery::new(), &selection, args.all);
    remove_run_folders();
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
    if cleaned.kept > 0 {
        tell(&format!(
            "{} hold profiles that nobody wrote out: mem_profiler recover, or clean --all",
            cleaned.kept
        ));
    }
    Ok(if cleaned.failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Removes segments of dead processes: those that hold nothing, or all of them.
pub fn remove_unused(discovery: &Discovery, selection: &Selection, all: bool) -> Cleaned {
    let mut cleaned = Cleaned::default();
    for agent in discovery.scan().agents {
        if agent.life == Life::Running || !selection.wants(&agent) {
            continue;
        }
        let mut head = Head::new();
        let header = agent.segment.head(&mut head);
        let wanted = header.is_ok_and(|header| uncollected(&agent, &header).is_some());
        let size = agent.segment.memory_bytes().unwrap_or(0);
        // A controller that holds the lock is about to write the dump.
        if wanted && !all || !agent.segment.lock().unwrap_or(false) {
            cleaned.kept += 1;
            cleaned.kept_bytes = cleaned.kept_bytes.saturating_add(size);
            continue;
        }
        match agent.segment.folder.remove(&agent.segment) {
            Ok(()) => {
                cleaned.removed += 1;
                cleaned.removed_bytes = cleaned.removed_bytes.saturating_add(size);
            }
            Err(error) => {
                tell(&format!("{}: {error}", agent.segment.path().display()));
                cleaned.failures += 1;
            }
        }
    }
    cleaned
}

/// Removes the folders of `run` that are empty.
fn remove_run_folders() {
    let shared = default_folder();
    if let Ok(folder) = Folder::open(&shared) {
        for name in run_folders(&folder) {
            // Fails where it is not empty, as it should.
            let _ = std::fs::remove_dir(shared.join(name));
        }
    }
}
