//! `top`: shows a session of the heap or of CPU time as a live table.

mod cpu;
mod heap;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mem_agents::text;
use mem_agents::waiting::{Received, Signals};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::{Value, json};

use crate::cli::{self, TopArgs};
use crate::terminal::{self, result, warning};
use crate::top::model::Model;
use crate::top::numbers::Numbers;
use crate::top::screen::{self, Title};
use crate::top::view::{Page, Row, View};
use cpu::CpuFeed;
use heap::HeapFeed;

/// Default time between refreshes.
const DEFAULT_DELAY: Duration = Duration::from_secs(1);
/// Message after another program has ended the session.
const SESSION_ENDED: &str = "the session has ended: these are its final numbers";
/// Maximum number of rows that `--once` and `--json` print.
const MAX_ROWS: usize = 40;

/// Source of the numbers.
trait Feed {
    type Numbers: Numbers;

    /// Returns the pid and the name for display.
    fn process(&self) -> (i32, String);

    /// Updates the rows. Looks up new names now if `at_once`, otherwise when a lookup is due.
    /// Returns false if the session or the process has ended.
    fn refresh(
        &mut self,
        model: &mut Model<Self::Numbers>,
        title: &mut Title,
        at_once: bool,
    ) -> anyhow::Result<bool>;

    /// Returns true if the rates of a table are relative to an earlier snapshot; false if they are
    /// relative to the start of a session that was started for the table.
    fn has_baseline(&self) -> bool {
        true
    }

    /// Waits until a signal arrives, a descriptor of `others` becomes readable, or `until`.
    fn wait(
        &mut self,
        signals: &Signals,
        others: &[BorrowedFd<'_>],
        until: Instant,
    ) -> nix::Result<Vec<Received>> {
        signals.wait(others, until.saturating_duration_since(Instant::now()))
    }

    /// Describes how the numbers were obtained, for JSON: name and value.
    fn facts(&self) -> Option<(&'static str, Value)> {
        None
    }

    /// Writes the data to a file. Returns the path or an error, for display.
    fn write(&mut self) -> String;
}

/// The view and its data.
struct Top<F: Feed> {
    feed: F,
    model: Model<F::Numbers>,
    view: View,
    title: Title,
    args: TopArgs,
    /// Number of rows that fit on the terminal.
    height: usize,
}

/// Shows the table until the user leaves it.
pub fn execute(args: TopArgs) -> anyhow::Result<ExitCode> {
    let signals = Signals::block(&[])?;
    if args.cpu {
        show(CpuFeed::open(&args), args, &signals)
    } else {
        show(HeapFeed::open(&args), args, &signals)
    }
}

/// Shows the table. `opened` has the source of the numbers and the process's title.
fn show<F: Feed>(
    opened: anyhow::Result<(F, String)>,
    args: TopArgs,
    signals: &Signals,
) -> anyhow::Result<ExitCode> {
    let sort = args.sort.unwrap_or(F::Numbers::SORTS[0]);
    if F::Numbers::column(sort).is_none() {
        cli::refuse(if args.cpu {
            "CPU time is sorted by now, flat-now, cpu or flat"
        } else {
            "the heap is sorted by live, flat, growth, rate or age: the others need --cpu"
        });
    }
    let (feed, process) = opened?;
    let interactive = !args.once && !args.json && terminal::is_screen();
    let mut top = Top {
        model: Model::new(feed.process().0),
        view: View {
            sort,
            filter: args.filter.clone(),
            ..View::default()
        },
        title: Title {
            process,
            session: String::new(),
            quality: String::new(),
            rss_bytes: None,
            message: String::new(),
        },
        feed,
        args,
        height: 0,
    };
    top.model.symbols.show(top.args.shown_frames());
    let result = if interactive {
        top.interact(signals)
    } else {
        top.print_once(signals)
    };
    result.map(|()| ExitCode::SUCCESS)
}

impl<F: Feed> Top<F> {
    /// Updates the rows. Returns false if the session or the process has ended.
    fn refresh(&mut self, at_once: bool) -> anyhow::Result<bool> {
        let continues = self
            .feed
            .refresh(&mut self.model, &mut self.title, at_once)?;
        if let Some(error) = self.model.symbols.take_error() {
            self.title.message = error;
        }
        Ok(continues)
    }

    /// Prints one table. If a session is started for it, the table covers that session: one second,
    /// or `--delay`.
    fn print_once(&mut self, signals: &Signals) -> anyhow::Result<()> {
        if self.feed.has_baseline() {
            self.refresh(false)?;
        }
        let until = Instant::now() + self.args.delay.unwrap_or(DEFAULT_DELAY);
        self.feed.wait(signals, &[], until)?;
        if !self.refresh(true)? && self.title.message.is_empty() {
            self.title.message = SESSION_ENDED.to_owned();
        }
        if !self.title.message.is_empty() {
            warning(&format!("{}: {}", self.title.process, self.title.message));
        }
        if self.model.samples == 0 && self.title.message.is_empty() {
            let reason = if self.args.cpu {
                "it was idle, or the delay is too short (--delay)"
            } else {
                "it allocated next to nothing in the session, which does not show older memory"
            };
            warning(&format!("{}: no samples yet: {reason}", self.title.process));
        }
        if self.args.python_only && !self.model.symbols.has_python() {
            warning(&format!(
                "{}: --python-only: there are no frames of Python",
                self.title.process
            ));
        }
        let mut rows = self.view.rows(&self.model);
        rows.truncate(MAX_ROWS);
        if self.args.json {
            let name = |row: &Row<F::Numbers>| row.name(self.view.page, &self.model);
            let row = |row: &Row<F::Numbers>| json!({ "name": name(row), "numbers": row.numbers });
            let (pid, process) = self.feed.process();
            let mut table = json!({
                "pid": pid,
                "name": process,
                "samples": self.model.samples,
                "total": self.model.total,
                "functions": rows.iter().map(row).collect::<Vec<_>>(),
            });
            if let Some((name, facts)) = self.feed.facts() {
                table[name] = facts;
            }
            terminal::json(&table)?;
        } else {
            result(&format!("{}  {}", self.title.process, self.title.session));
            if !self.title.quality.is_empty() {
                result(&self.title.quality);
            }
            let cells = rows.iter().map(|row| {
                let mut cells = row
                    .numbers
                    .as_ref()
                    .map(F::Numbers::cells)
                    .unwrap_or_default();
                cells.push(row.name(self.view.page, &self.model));
                cells
            });
            let mut cells: Vec<Vec<String>> = cells.collect();
            let mut head = F::Numbers::HEADS.to_vec();
            let numbers: Vec<usize> = (0..head.len()).collect();
            head.push(screen::name_head(Page::Functions));
            // On a terminal, each row fits on one line. In a pipe, names are complete.
            if let Some(width) = terminal::width() {
                screen::shorten_names(&mut cells, &head, width);
            }
            for line in text::table(&head, &numbers, cells) {
                result(&line);
            }
        }
        Ok(())
    }

    fn interact(&mut self, signals: &Signals) -> anyhow::Result<()> {
        let mut terminal = ratatui::try_init()?;
        let result = self.run_loop(signals, &mut terminal);
        // Fails if the terminal is gone, in which case nothing needs to be restored.
        let _ = ratatui::try_restore();
        result
    }

    /// Refreshes, draws and handles keys until the user leaves.
    fn run_loop(
        &mut self,
        signals: &Signals,
        terminal: &mut ratatui::DefaultTerminal,
    ) -> anyhow::Result<()> {
        let stdin = io::stdin();
        let mut next_refresh = Instant::now();
        loop {
            if Instant::now() >= next_refresh {
                next_refresh = Instant::now() + self.args.delay.unwrap_or(DEFAULT_DELAY);
                if !self.view.paused && !self.refresh(false)? {
                    self.view.paused = true;
                    self.title.message = SESSION_ENDED.to_owned();
                }
            }
            let rows = self.view.rows(&self.model);
            self.view.select(0, rows.len());
            self.height = self.title.rows(terminal.size()?.height);
            self.view.scroll(self.height);
            terminal.draw(|frame| {
                screen::draw(frame, &self.title, &self.model, &self.view, &rows);
            })?;
            let received = self.feed.wait(signals, &[stdin.as_fd()], next_refresh)?;
            if received.iter().any(|signal| signal.ends_session()) {
                return Ok(());
            }
            while event::poll(Duration::ZERO)? {
                if let Event::Key(key) = event::read()?
                    && key.kind == KeyEventKind::Press
                    && self.handle_key(key, &rows)
                {
                    return Ok(());
                }
            }
        }
    }

    /// Handles a key. Returns true if it ends the view.
    fn handle_key(&mut self, key: KeyEvent, rows: &[Row<F::Numbers>]) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return true;
        }
        if self.view.editing {
            self.edit_filter(key.code);
            return false;
        }
        self.title.message.clear();
        // Any key closes the help; q also quits.
        if std::mem::take(&mut self.view.help) {
            return key.code == KeyCode::Char('q');
        }
        let page = self.height.max(1) as isize;
        match key.code {
            KeyCode::Char('q') => return true,
            KeyCode::Up | KeyCode::Char('k') => self.view.select(-1, rows.len()),
            KeyCode::Down | KeyCode::Char('j') => self.view.select(1, rows.len()),
            KeyCode::PageUp => self.view.select(-page, rows.len()),
            KeyCode::PageDown => self.view.select(page, rows.len()),
            KeyCode::Home => self.view.selected = 0,
            KeyCode::End => self.view.select(isize::MAX, rows.len()),
            KeyCode::Enter => self.view.open(&self.model, rows),
            KeyCode::Esc | KeyCode::Backspace => self.view.close(),
            KeyCode::Tab => self.view.switch(),
            KeyCode::Char('s') => self.view.sort = F::Numbers::next(self.view.sort),
            KeyCode::Char('/') => self.view.editing = true,
            KeyCode::Char('?') => self.view.help = true,
            KeyCode::Char('p') => self.view.paused = !self.view.paused,
            KeyCode::Char('w') => self.title.message = self.feed.write(),
            _ => {}
        }
        false
    }

    fn edit_filter(&mut self, key: KeyCode) {
        match key {
            KeyCode::Char(c) => self.view.filter.push(c),
            KeyCode::Backspace => drop(self.view.filter.pop()),
            KeyCode::Esc => {
                self.view.filter.clear();
                self.view.editing = false;
            }
            KeyCode::Enter => self.view.editing = false,
            _ => {}
        }
    }
}
