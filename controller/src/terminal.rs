//! Results to stdout, diagnostics to stderr, progress only on a terminal. A closed terminal or pipe
//! must not end a session, so failed writes are dropped; that a result could not be written for
//! another reason, such as a full disk, is reported at the end ([`stdout::loss`]).
//!
//! A terminal that accepts nothing, because it was stopped by Ctrl-S or its line is dead, must not
//! delay a session either: while one runs, a thread of its own does all the writing, and only
//! [`Progress::finish`] waits for it.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use heap_format::locale;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mem_agents::{stdout, text};

/// Whether results may be written anywhere on a screen: a dumb terminal only has lines.
pub fn is_screen() -> bool {
    stdout::is_watched() && std::env::var_os("TERM").is_none_or(|kind| kind != "dumb")
}

/// Writes a line of results. Whatever it holds, the terminal only shows it.
pub fn result(line: &str) {
    let line = text::line(line);
    print(Line::Result(shown(&line, &std::io::stdout()).into_owned()));
}

/// Writes a diagnostic, likewise.
pub fn diagnostic(line: &str) {
    let line = text::line(line);
    let line = shown(&line, &std::io::stderr());
    print(Line::Diagnostic(format!("mem_profiler: {line}")));
}

/// Writes a diagnostic of something that did not stop the work.
pub fn warning(line: &str) {
    diagnostic(&format!("warning: {line}"));
}

/// Writes a report that is not a result, as the program's own output is: lines without our name.
pub fn report(lines: &[String]) {
    for line in lines {
        // There is no one left to tell.
        let line = text::line(line);
        let line = shown(&line, &std::io::stderr());
        let _ = writeln!(std::io::stderr().lock(), "{line}");
    }
}

/// A line as a stream can show it: without signs beyond ASCII on a terminal without UTF-8.
fn shown<'a>(line: &'a str, stream: &impl IsTerminal) -> Cow<'a, str> {
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

/// Writes lines that are this program's own.
pub fn own(lines: &str) {
    print(Line::Result(lines.to_owned()));
}

enum Line {
    Result(String),
    Diagnostic(String),
}

/// Leaves a line to the thread that prints, where there is one.
fn print(line: Line) {
    let board = lock(&PRINTING).clone();
    match board {
        Some(board) => board.post(|news| news.lines.push_back(line)),
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

/// Where lines go while a session runs.
static PRINTING: Mutex<Option<Arc<Board>>> = Mutex::new(None);

/// Lines to print, and the thread that waits for them.
#[derive(Default)]
struct Board {
    news: Mutex<News>,
    came: Condvar,
}

#[derive(Default)]
struct News {
    lines: VecDeque<Line>,
    /// The bar's last state: older ones are not worth printing.
    state: Option<(Duration, String)>,
    over: bool,
}

impl Board {
    fn post(&self, change: impl FnOnce(&mut News)) {
        change(&mut lock(&self.news));
        self.came.notify_one();
    }

    /// Waits for news.
    fn take(&self) -> News {
        let nothing = |news: &mut News| news.lines.is_empty() && news.state.is_none() && !news.over;
        let news = self.came.wait_while(lock(&self.news), nothing);
        std::mem::take(&mut *news.unwrap_or_else(PoisonError::into_inner))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Printing while a session runs, with a bar where stderr is a terminal.
pub struct Progress {
    /// The thread that prints, and whether it has a bar.
    printer: Option<(JoinHandle<()>, Arc<Board>)>,
    has_bar: bool,
}

impl Progress {
    /// Starts a bar for a session of this length; without one it shows the time gone by.
    pub fn start(total: Option<Duration>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| Bar::new(total));
        Self::printing(bar)
    }

    /// No bar.
    pub fn without_bar() -> Self {
        Self::printing(None)
    }

    /// No session yet: lines are written by who has them.
    pub fn silent() -> Self {
        Self {
            printer: None,
            has_bar: false,
        }
    }

    fn printing(bar: Option<Bar>) -> Self {
        let board = Arc::new(Board::default());
        let (has_bar, news) = (bar.is_some(), Arc::clone(&board));
        let thread = std::thread::Builder::new().spawn(move || work(&news, bar));
        let Ok(thread) = thread else {
            return Self::silent();
        };
        *lock(&PRINTING) = Some(Arc::clone(&board));
        Self {
            printer: Some((thread, board)),
            has_bar,
        }
    }

    /// Shows how far the session is, and what it has.
    pub fn show(&self, gone: Duration, state: impl FnOnce() -> String) {
        if let Some((_, board)) = self.printer.as_ref().filter(|_| self.has_bar) {
            let state = state();
            board.post(|news| news.state = Some((gone, state)));
        }
    }

    /// Removes the bar, once all lines are written.
    pub fn finish(&mut self) {
        if let Some((thread, board)) = self.printer.take() {
            *lock(&PRINTING) = None;
            board.post(|news| news.over = true);
            // A panic aborts: there is no error to report here.
            let _ = thread.join();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Prints what comes until it is over.
fn work(board: &Board, bar: Option<Bar>) {
    loop {
        let news = board.take();
        let write = || news.lines.iter().for_each(Line::write);
        match &bar {
            Some(bar) if !news.lines.is_empty() => bar.bar.suspend(write),
            _ => write(),
        }
        if let (Some(bar), Some((gone, state))) = (&bar, &news.state) {
            bar.show(*gone, state);
        }
        if news.over {
            if let Some(bar) = &bar {
                bar.bar.finish_and_clear();
            }
            return;
        }
    }
}

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

    fn show(&self, gone: Duration, state: &str) {
        let time = match self.total {
            Some(total) => format!("{} left", text::duration(total.saturating_sub(gone))),
            None => format!("{} (Ctrl-C ends it)", text::duration(gone)),
        };
        self.bar.set_position(gone.as_millis() as u64);
        self.bar.set_message(format!("{time}, {state}"));
    }
}
