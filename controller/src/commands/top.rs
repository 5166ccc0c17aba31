//! `top`: a session as a live table. Uses the session that runs; starts one, for as long as
//! it is looked at, where none does.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use serde_json::json;

use crate::cli::{IntervalArgs, TopArgs};
use crate::discovery::{Agent, Discovery};
use crate::dump;
use crate::ended::Ended;
use crate::output::Output;
use crate::segment::Head;
use crate::select::Selection;
use crate::target::{Deadline, RENEWAL, Target, is_running};
use crate::terminal::{self, diagnostic, result, warning};
use crate::text;
use crate::top::model::Model;
use crate::top::screen::{self, Title};
use crate::top::view::{Row, View};
use crate::triggers::rss_bytes;
use crate::waiting::Signals;

/// Time between refreshes.
const REFRESH: Duration = Duration::from_secs(1);
/// Rows that `--once` and `--json` print.
const ROWS: usize = 40;

/// The session that is shown.
enum Source {
    /// A session of ours.
    Own(Box<Target>),
    /// Somebody else's.
    Theirs(Box<Agent>),
}

impl Source {
    fn agent(&self) -> &Agent {
        match self {
            Self::Own(target) => &target.agent,
            Self::Theirs(agent) => agent,
        }
    }
}

struct Top {
    source: Source,
    model: Model,
    view: View,
    title: Title,
    args: TopArgs,
    renewal: Instant,
    /// Rows that the terminal shows.
    height: usize,
}

/// Shows the table until the user leaves it.
pub fn execute(mut args: TopArgs) -> anyhow::Result<ExitCode> {
    let selection = Selection::from(std::mem::take(&mut args.select));
    let agent = only_one(&selection)?;
    let interactive = !args.once && !args.json && io::stdout().is_terminal();
    let signals = Signals::block(&[])?;
    let source = look_at(agent, &args.interval)?;
    let agent = source.agent();
    let mut top = Top {
        model: Model::new(agent.pid),
        view: View {
            sort: args.sort,
            filter: args.filter.clone(),
            ..View::default()
        },
        title: Title {
            process: agent.title(),
            session: String::new(),
            rss_bytes: None,
            message: String::new(),
        },
        source,
        args,
        renewal: Instant::now() + RENEWAL,
        height: 0,
    };
    let done = if interactive {
        top.interact(&signals)
    } else {
        top.once(&signals)
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn only_one(selection: &Selection) -> anyhow::Result<Agent> {
    let mut chosen = selection.choose(Discovery::new().scan());
    if let Some(failure) = chosen.failures.first() {
        bail!("{failure}");
    }
    let Some(agent) = chosen.agents.pop() else {
        bail!("no process carries the agent")
    };
    if !chosen.agents.is_empty() {
        let mut titles: Vec<String> = chosen
            .agents
            .iter()
            .take(10)
            .map(|agent| agent.title())
            .collect();
        titles.push(agent.title());
        bail!(
            "several processes carry the agent, choose one with -p: {}",
            titles.join(", ")
        );
    }
    Ok(agent)
}

/// Looks at the running session, or starts one.
fn look_at(agent: Agent, interval: &IntervalArgs) -> anyhow::Result<Source> {
    let mut head = Head::new();
    if is_running(&agent.segment.head(&mut head)?) {
        return Ok(Source::Theirs(Box::new(agent)));
    }
    let title = agent.title();
    let target = Target::take(agent).map_err(|e| anyhow::anyhow!("{title}: {e}"))?;
    let mut target = target.limited(interval.max_overhead);
    let started = target
        .prepare(interval.first())
        .and_then(|()| target.publish(Deadline::ns_after(None)));
    started.map_err(|e| anyhow::anyhow!("{title}: {e}"))?;
    Ok(Source::Own(Box::new(target)))
}

impl Top {
    /// Takes a new snapshot; false once the session or the process is over.
    fn refresh(&mut self, at_once: bool) -> anyhow::Result<bool> {
        if let Source::Own(target) = &mut self.source {
            let looked = target.look();
            target.take_warnings().iter().for_each(|line| warning(line));
            looked?;
            if Instant::now() >= self.renewal {
                self.renewal = Instant::now() + RENEWAL;
                target.publish(Deadline::ns_after(None))?;
            }
        }
        let agent = self.source.agent();
        let mut head = Head::new();
        let header = agent.segment.full_head(&mut head)?;
        let session = header.session().context("there is no session")?;
        let running = is_running(&header);
        let left = if running {
            Deadline::of(session.deadline_ns).left()
        } else {
            "ended".to_owned()
        };
        self.title.session = format!("every {} bytes, {left}", session.interval);
        self.title.rss_bytes = rss_bytes(agent.pid);
        let snapshot = dump::snapshot(agent, &session, &header)?;
        self.model.update(&snapshot, &header, at_once);
        if let Some(trouble) = self.model.symbols.trouble() {
            self.title.message = trouble;
        }
        Ok(running && self.title.rss_bytes.is_some())
    }

    /// Prints one table: with a session of our own, of its first second.
    fn once(&mut self, signals: &Signals) -> anyhow::Result<()> {
        self.refresh(false)?;
        signals.wait(&[], self.args.delay.unwrap_or(REFRESH))?;
        self.refresh(true)?;
        if !self.title.message.is_empty() {
            warning(&format!("{}: {}", self.title.process, self.title.message));
        }
        let mut rows = self.view.rows(&self.model);
        rows.truncate(ROWS);
        if self.args.json {
            let name = |row: &Row| row.name(self.view.page, &self.model);
            let row = |row: &Row| json!({ "name": name(row), "numbers": row.numbers });
            let agent = self.source.agent();
            terminal::json(&json!({
                "pid": agent.pid,
                "name": text::escape(&agent.name),
                "samples": self.model.samples,
                "total": self.model.total,
                "functions": rows.iter().map(row).collect::<Vec<_>>(),
            }))?;
        } else {
            result(&format!("{}  {}", self.title.process, self.title.session));
            let cells = rows.iter().map(|row| {
                let mut cells = row
                    .numbers
                    .as_ref()
                    .map(screen::values)
                    .unwrap_or_default()
                    .to_vec();
                cells.push(row.name(self.view.page, &self.model));
                cells
            });
            let head = ["FLAT", "LIVE", "GROWTH/s", "ALLOC/s", "AGE", "FUNCTION"];
            for line in text::table(&head, &[0, 1, 2, 3, 4], cells.collect()) {
                result(&line);
            }
        }
        Ok(())
    }

    fn interact(&mut self, signals: &Signals) -> anyhow::Result<()> {
        let mut terminal = ratatui::try_init()?;
        let done = self.follow(signals, &mut terminal);
        // Fails where the terminal is gone, which then needs no restoring.
        let _ = ratatui::try_restore();
        done
    }

    fn follow(
        &mut self,
        signals: &Signals,
        terminal: &mut ratatui::DefaultTerminal,
    ) -> anyhow::Result<()> {
        let stdin = io::stdin();
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                next = Instant::now() + self.args.delay.unwrap_or(REFRESH);
                if !self.view.paused && !self.refresh(false)? {
                    self.view.paused = true;
                    self.title.message =
                        "the session is over: these are its last numbers".to_owned();
                }
            }
            let rows = self.view.rows(&self.model);
            self.view.select(0, rows.len());
            self.height = screen::row_count(terminal.size()?.height);
            self.view.scroll(self.height);
            terminal.draw(|frame| {
                screen::draw(frame, &self.title, &self.model, &self.view, &rows);
            })?;
            let pause = next.saturating_duration_since(Instant::now());
            let came = signals.wait(&[stdin.as_fd()], pause)?;
            if came.iter().any(|received| received.ends_session()) {
                return Ok(());
            }
            while event::poll(Duration::ZERO)? {
                if let Event::Key(key) = event::read()?
                    && key.kind == KeyEventKind::Press
                    && self.press(key, &rows)
                {
                    return Ok(());
                }
            }
        }
    }

    /// Acts on a key; whether it ends the view.
    fn press(&mut self, key: KeyEvent, rows: &[Row]) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && key.code == KeyCode::Char('c') {
            return true;
        }
        if self.view.editing {
            self.edit(key.code);
            return false;
        }
        self.title.message.clear();
        // Any key closes the box; the one that quits still quits.
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
            KeyCode::Char('s') => self.view.sort = self.view.sort.next(),
            KeyCode::Char('/') => self.view.editing = true,
            KeyCode::Char('?') => self.view.help = true,
            KeyCode::Char('p') => self.view.paused = !self.view.paused,
            KeyCode::Char('w') => self.title.message = self.write(),
            _ => {}
        }
        false
    }

    fn edit(&mut self, key: KeyCode) {
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

    /// Writes a dump; says where, or why not.
    fn write(&self) -> String {
        let agent = self.source.agent();
        let mut head = Head::new();
        let mut write = || {
            let output = Output::open(&self.args.output.output)?;
            let header = agent.segment.head(&mut head)?;
            let session = header.session();
            let session = session.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            dump::write(&output, agent, (&session, None), ("on demand", Ended::Not))
        };
        match write() {
            Ok(written) => {
                written.warning.iter().for_each(|line| warning(line));
                format!("wrote {}", written.line())
            }
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let Source::Own(target) = &self.source else {
            return;
        };
        if target.stop().is_err() {
            diagnostic("the session could not be stopped: it ends by itself within a minute");
        }
        // It was looked at, which was all it was for: nobody need recover it.
        let _ = target
            .agent
            .segment
            .view()
            .mark_collected(target.session.number);
    }
}
