//! `clean`: removes what dead processes left.

use std::process::ExitCode;

use crate::cli::CleanArgs;
use crate::discovery::{Discovery, Life, run_folders};
use crate::segment::{Folder, Head, default_folder};
use crate::select::Selection;
use crate::target::uncollected;
use crate::terminal::{result, tell};
use crate::text;

/// Removes the segments of dead processes, but for profiles that nobody wrote out.
pub fn execute(args: CleanArgs) -> anyhow::Result<ExitCode> {
    let selection = Selection::from(args.select);
    let (mut removed, mut bytes, mut kept, mut failures) = (0, 0.0, 0, 0);
    for agent in Discovery::new().scan().agents {
        if agent.life == Life::Running || !selection.wants(&agent) {
            continue;
        }
        let mut head = Head::new();
        let header = agent.segment.head(&mut head);
        let wanted = header.is_ok_and(|header| uncollected(&agent, &header).is_some());
        // A controller that holds the lock is about to write the dump.
        if wanted && !args.all || !agent.segment.lock()? {
            kept += 1;
            continue;
        }
        let size = agent.segment.memory_bytes()?;
        match agent.segment.folder.remove(&agent.segment) {
            Ok(()) => {
                removed += 1;
                bytes += size as f64;
            }
            Err(error) => {
                tell(&format!("{}: {error}", agent.segment.path().display()));
                failures += 1;
            }
        }
    }
    remove_run_folders();
    result(&format!(
        "removed {removed} segments, {}",
        text::bytes(bytes)
    ));
    if kept > 0 {
        tell(&format!(
            "{kept} hold profiles that nobody wrote out: mem_profiler recover, or clean --all"
        ));
    }
    Ok(if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
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
