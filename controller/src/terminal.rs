//! Prints results to stdout, diagnostics to stderr, and progress if stderr is a terminal.
//!
//! A closed terminal or pipe must not end a session, so failed writes are ignored. Results lost for
//! another reason, such as a full disk, are reported at the end ([`stdout::loss`]).
//!
//! A blocked terminal (Ctrl-S, dead connection) must not delay a session either. While a session
//! runs, a separate thread does all the writing, and only [`Progress::finish`] waits for it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mem_agents::{stdout, text};
use profile::locale;

/// Returns true if stdout is a terminal with cursor control (not `TERM=dumb`).
pub fn is_screen() -> bool {
    stdout::is_watched() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// Returns the width of the terminal, in characters; `None` if stdout is none.
pub fn width() -> Option<usize> {
    let size = stdout::is_watched().then(ratatui::crossterm::terminal::size)?;
    size.ok().map(|(columns, _)| columns.into())
}

/// True if only what goes wrong is printed.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Restricts the output to what goes wrong, if `is_quiet`.
pub fn set_quiet(is_quiet: bool) {
    IS_QUIET.store(is_quiet, Ordering::Relaxed);
}

/// Returns true if only what goes wrong is printed.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// True if no lines of results are printed, because the results are printed as JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Stops printing lines of results, because they are printed as JSON.
pub fn suppress_results() {
    IS_JSON.store(true, Ordering::Relaxed);
}

/// Returns true if lines of results are printed.
pub fn shows_results() -> bool {
    !is_quiet() && !IS_JSON.load(Ordering::Relaxed)
}

/// Writes a line of results, unless quiet. Control characters in it are escaped.
pub fn result(line: &str) {
    if !shows_results() {
        return;
    }
    let line = text::line(line);
    print(Line::Result(
        displayable(&line, &std::io::stdout()).into_owned(),
    ));
}

/// Writes a diagnostic. Control characters in it are escaped.
pub fn diagnostic(line: &str) {
    let line = text::line(line);
    let line = displayable(&line, &std::io::stderr());
    print(Line::Diagnostic(format!("mem_profiler: {line}")));
}

/// Writes a diagnostic about what went well, unless quiet.
pub fn note(line: &str) {
    if !is_quiet() {
        diagnostic(line);
    }
}

/// Writes a diagnostic about a problem that does not stop the work.
pub fn warning(line: &str) {
    diagnostic(&format!("warning: {line}"));
}

/// Writes lines to stderr without our name in front, like output of the profiled program.
pub fn report(lines: &[String]) {
    for line in lines {
        let line = text::line(line);
        // A failed write to stderr cannot be reported anywhere.
        let line = displayable(&line, &std::io::stderr());
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

/// Converts a line for a stream: to ASCII on a terminal without UTF-8.
fn displayable<'a>(line: &'a str, stream: &impl IsTerminal) -> Cow<'a, str> {
    if locale::is_ascii_terminal(stream) {
        locale::in_ascii(line)
    } else {
        line.into()
    }
}

/// Writes a value as JSON.
pub fn json(value: &impl serde::Serialize) -> serde_json::Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    print(Line::Result(text::json(&text)));
    Ok(())
}

/// Writes trusted text to stdout as it is.
pub fn print_trusted(lines: &str) {
    print(Line::Result(lines.to_owned()));
}

/// Line with the stream that it goes to.
enum Line {
    /// For stdout.
    Result(String),
    /// For stderr.
    Diagnostic(String),
}

/// Passes a line to the printing thread, or writes it now if there is none.
fn print(line: Line) {
    let queue = lock(&PRINTING).clone();
    match queue {
        Some(queue) => queue.update(|pending| pending.lines.push_back(line)),
        None => line.write(),
    }
}

impl Line {
    fn write(&self) {
        match self {
            Self::Result(line) => stdout::write(line),
            Self::Diagnostic(line) => {
                let _ = writeln!(std::io::stderr().lock(), "{line}");
            }
        }
    }
}

/// Queue of the printing thread while a session runs.
static PRINTING: Mutex<Option<Arc<Queue>>> = Mutex::new(None);

/// Queue of the printing thread.
#[derive(Default)]
struct Queue {
    pending: Mutex<Pending>,
    changed: Condvar,
}

/// Content of the queue.
#[derive(Default)]
struct Pending {
    lines: VecDeque<Line>,
    /// Latest state of the progress bar. Older ones are dropped.
    state: Option<(Duration, String)>,
    closed: bool,
}

impl Queue {
    fn update(&self, change: impl FnOnce(&mut Pending)) {
        change(&mut lock(&self.pending));
        self.changed.notify_one();
    }

    /// Waits until the queue has something to print or is closed, and takes its content.
    fn take(&self) -> Pending {
        let is_idle = |pending: &mut Pending| {
            pending.lines.is_empty() && pending.state.is_none() && !pending.closed
        };
        let pending = self.changed.wait_while(lock(&self.pending), is_idle);
        std::mem::take(&mut *pending.unwrap_or_else(PoisonError::into_inner))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handle of the printing thread while a session runs, with a progress bar if stderr is a
/// terminal.
pub struct Progress {
    /// Printing thread and its queue.
    printer: Option<(JoinHandle<()>, Arc<Queue>)>,
    has_bar: bool,
}

impl Progress {
    /// Starts the printing thread with a bar for a session of this length. If `None`, the bar
    /// shows the elapsed time.
    pub fn start(total: Option<Duration>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| Bar::new(total));
        Self::with_thread(bar)
    }

    /// Starts the printing thread without a bar.
    pub fn without_bar() -> Self {
        Self::with_thread(None)
    }

    /// Creates a handle without a thread: lines are written by the calling threads.
    pub fn silent() -> Self {
        Self {
            printer: None,
            has_bar: false,
        }
    }

    fn with_thread(bar: Option<Bar>) -> Self {
        let queue = Arc::new(Queue::default());
        let has_bar = bar.is_some();
        let pending = Arc::clone(&queue);
        let thread = std::thread::Builder::new().spawn(move || run_printer(&pending, bar));
        let Ok(thread) = thread else {
            return Self::silent();
        };
        *lock(&PRINTING) = Some(Arc::clone(&queue));
        Self {
            printer: Some((thread, queue)),
            has_bar,
        }
    }

    /// Updates the bar. `elapsed` is the time since the start; `state` returns the text for
    /// display.
    pub fn show(&self, elapsed: Duration, state: impl FnOnce() -> String) {
        if self.has_bar
            && let Some((_, queue)) = &self.printer
        {
            let state = state();
            queue.update(|pending| pending.state = Some((elapsed, state)));
        }
    }

    /// Waits until all lines are written, then removes the bar.
    pub fn finish(&mut self) {
        if let Some((thread, queue)) = self.printer.take() {
            *lock(&PRINTING) = None;
            queue.update(|pending| pending.closed = true);
            // `join` fails only after a panic, and panics abort.
            let _ = thread.join();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Prints the queue's content until the queue is closed.
fn run_printer(queue: &Queue, bar: Option<Bar>) {
    loop {
        let pending = queue.take();
        let write = || pending.lines.iter().for_each(Line::write);
        match &bar {
            Some(bar) if !pending.lines.is_empty() => bar.bar.suspend(write),
            _ => write(),
        }
        if let (Some(bar), Some((elapsed, state))) = (&bar, &pending.state) {
            bar.show(*elapsed, state);
        }
        if pending.closed {
            if let Some(bar) = &bar {
                bar.bar.finish_and_clear();
            }
            return;
        }
    }
}

/// Progress bar.
struct Bar {
    bar: ProgressBar,
    total: Option<Duration>,
}

impl Bar {
    fn new(total: Option<Duration>) -> Self {
        let template = match total {
            Some(_) => "{bar:30.cyan/blue} {msg}",
            None => "{spinner} {msg}",
        };
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        let style = if locale::is_utf8() {
            style
        } else {
            style.progress_chars("#>-").tick_chars("|/-\\ ")
        };
        let length = total.map(|t| t.as_millis() as u64);
        let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr_with_hz(4))
            .with_style(style);
        Self { bar, total }
    }

    fn show(&self, elapsed: Duration, state: &str) {
        let time = match self.total {
            Some(total) => format!("{} left", text::duration(total.saturating_sub(elapsed))),
            None => format!("{} (Ctrl-C ends it)", text::duration(elapsed)),
        };
        self.bar.set_position(elapsed.as_millis() as u64);
        self.bar.set_message(format!("{time}, {state}"));
    }
}
