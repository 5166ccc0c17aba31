//! `clean`: removes what dead processes left.

use std::process::ExitCode;

use crate::claims::{Claims, Doubt};
use crate::cli::CleanArgs;
use crate::discovery::{Agent, Discovery, Found, Life, run_folders};
use crate::launch;
use crate::segment::{Folder, Head, Refusal, default_folder};
use crate::select::Selection;
use crate::target::uncollected;
use crate::terminal::{result, tell};
use crate::text;

/// Most reasons that are told why something is kept.
const MOST_DOUBTS: usize = 8;

/// What a cleaning came to.
#[derive(Debug, Default)]
pub struct Cleaned {
    removed: usize,
    removed_bytes: u64,
    failures: usize,
    /// Profiles that nobody wrote out, or that somebody is about to.
    pub kept: usize,
    /// The memory that they take.
    pub kept_bytes: u64,
    /// What somebody may still use, and why the first of it may be.
    doubted: Vec<(String, Doubt)>,
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
    cleaned.tell_doubts();
    Ok(if cleaned.failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Removes segments of dead processes: those that hold nothing, or all of them.
pub fn remove_unused(discovery: &Discovery, selection: &Selection, all: bool) -> Cleaned {
    let mut cleaned = Cleaned::default();
    let scan = discovery.scan();
    let mut found = scan.found;
    found.retain(|found| found.life != Life::Running && selection.wants(found));
    let mut claims = Claims::of(&found);
    for found in found {
        if let Err(doubt) = claims.check(&found) {
            cleaned.doubted.push((text::path(found.path()), doubt));
            continue;
        }
        match found.open() {
            Ok(agent) => cleaned.remove(&agent, all),
            // Somebody else removed it.
            Err(Refusal::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => cleaned.fail(&error.to_string()),
        }
    }
    let unfinished = scan.unfinished.iter().filter(|f| selection.wants(f));
    for found in unfinished {
        match claims.check(found) {
            Ok(()) => cleaned.remove_unfinished(found),
            Err(doubt) => cleaned.doubted.push((text::path(found.path()), doubt)),
        }
    }
    cleaned
}

impl Cleaned {
    fn remove(&mut self, agent: &Agent, all: bool) {
        let mut head = Head::new();
        let header = agent.segment.head(&mut head);
        let wanted = header.is_ok_and(|header| uncollected(agent, &header).is_some());
        let size = agent.segment.memory_bytes().unwrap_or(0);
        // A controller that holds the lock is about to write the dump.
        if wanted && !all || !agent.segment.lock().unwrap_or(false) {
            self.kept += 1;
            self.kept_bytes = self.kept_bytes.saturating_add(size);
            return;
        }
        match agent.segment.folder.remove(&agent.segment) {
            Ok(()) => {
                self.removed += 1;
                self.removed_bytes = self.removed_bytes.saturating_add(size);
            }
            Err(error) => self.fail(&format!("{}: {error}", text::path(agent.path()))),
        }
    }

    /// Removes what a process left that was killed while it made its segment.
    fn remove_unfinished(&mut self, found: &Found) {
        match found.folder.remove_file(found.entry.name, found.file) {
            Ok(()) => self.removed += 1,
            Err(error) => self.fail(&format!("{}: {error}", text::path(found.path()))),
        }
    }

    fn fail(&mut self, message: &str) {
        tell(message);
        self.failures += 1;
    }

    /// What may still be in use is told in a line for each reason.
    fn tell_doubts(&self) {
        let mut told: Vec<&Doubt> = Vec::new();
        for (path, doubt) in &self.doubted {
            if told.contains(&doubt) || told.len() == MOST_DOUBTS {
                continue;
            }
            told.push(doubt);
            let others = self.doubted.iter().filter(|(_, other)| other == doubt);
            tell(&match others.count() {
                1 => format!("{path} is kept: {doubt}"),
                n => format!("{n} segments are kept, {path} the first: {doubt}"),
            });
        }
    }
}

/// Removes the folders of `run` that are empty.
fn remove_run_folders() {
    let shared = default_folder();
    if let Ok(folder) = Folder::open(&shared) {
        for inner in run_folders(&folder) {
            // Fails where it is not empty, as it should.
            launch::remove_folder(&inner.path);
        }
    }
}
