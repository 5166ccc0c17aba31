//! Report of the counts, with examples of stacks.
//!
//! Begins with lines `name value`. For each outcome other than equality, the first few stacks
//! follow, each after a line `== outcome`.

use crate::maps;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use unwind::Cause;

/// Names the report's path.
pub const OUT: &str = "UNWIND_ORACLE_OUT";

const EXAMPLES: usize = 12;

/// Outcome of a comparison.
#[derive(Clone, Copy, Debug)]
pub enum Outcome {
    /// All four are equal.
    Equal,
    /// framehop failed at a frame of a kind that it cannot unwind; the others agree.
    BeyondFramehop,
    /// framehop took another way; the others agree.
    FramehopDiffers,
    /// libgcc ended early; the others agree.
    LibgccStopped,
    /// Truncated by us, and libgcc has no rule there either.
    Truncated(Cause),
    /// Truncated by us where the others end.
    TruncatedAtEnd(Cause),
    /// Truncated by us where libgcc continues.
    TruncatedEarly(Cause),
    /// The remembering walker differs from the forgetful one.
    MemoryDiffers,
    /// Different frames.
    Wrong,
}

impl Outcome {
    fn name(self) -> String {
        match self {
            Self::Equal => "equal".to_owned(),
            Self::BeyondFramehop => "beyond_framehop".to_owned(),
            Self::FramehopDiffers => "framehop_differs".to_owned(),
            Self::LibgccStopped => "libgcc_stopped".to_owned(),
            Self::Truncated(cause) => format!("truncated.{cause:?}"),
            Self::TruncatedAtEnd(cause) => format!("truncated_at_end.{cause:?}"),
            Self::TruncatedEarly(cause) => format!("truncated_early.{cause:?}"),
            Self::MemoryDiffers => "memory_differs".to_owned(),
            Self::Wrong => "wrong".to_owned(),
        }
    }
}

#[derive(Default)]
struct Report {
    compared: u64,
    frames: u64,
    deepest: usize,
    counts: BTreeMap<String, u64>,
    examples: String,
}

static REPORT: Mutex<Option<Report>> = Mutex::new(None);

fn with<T>(work: impl FnOnce(&mut Report) -> T) -> T {
    let mut report = REPORT.lock().unwrap_or_else(|e| e.into_inner());
    work(report.get_or_insert_default())
}

/// Notes that a stack of this many frames was compared.
pub fn compared(frames: usize) {
    with(|report| {
        report.compared += 1;
        report.frames += frames as u64;
        report.deepest = report.deepest.max(frames);
    });
}

/// Counts an outcome. Calls `stacks` if they are to be reported as an example.
pub fn count(outcome: Outcome, stacks: impl FnOnce() -> String) {
    let name = outcome.name();
    let is_equal = matches!(outcome, Outcome::Equal);
    let seen = with(|report| {
        let count = report.counts.entry(name.clone()).or_default();
        *count += 1;
        *count as usize
    });
    if is_equal || seen > EXAMPLES {
        return;
    }
    let text = stacks();
    with(|report| {
        let _ = write!(report.examples, "\n== {name}\n{text}");
    });
}

/// Writes down a stack.
pub fn list(text: &mut String, title: &str, frames: &[u64]) {
    let files = maps::read();
    let _ = writeln!(text, "{title}: {} frames", frames.len());
    for ip in frames.iter().take(100) {
        let _ = writeln!(text, "  {}", maps::describe(&files, *ip));
    }
}

/// Writes the report.
pub fn write() {
    let Some(out) = std::env::var_os(OUT) else {
        return;
    };
    let mut path = out;
    path.push(format!(".{}", std::process::id()));
    let exe = std::env::current_exe().unwrap_or_default();
    let text = with(|report| {
        let mut text = format!("program {}\n", exe.display());
        let _ = writeln!(text, "compared {}", report.compared);
        let _ = writeln!(text, "frames {}", report.frames);
        let _ = writeln!(text, "deepest {}", report.deepest);
        for (name, count) in &report.counts {
            let _ = writeln!(text, "{name} {count}");
        }
        text + &report.examples
    });
    if let Err(error) = std::fs::write(&path, text) {
        eprintln!("unwind oracle: cannot write {}: {error}", path.display());
    }
}
