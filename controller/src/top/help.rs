//! List of keys, drawn over the table.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

/// Keys and their effects.
pub const KEYS: [(&str, &str); 12] = [
    ("q  Ctrl-C", "quit"),
    ("Up Down  k j", "select a row"),
    ("PgUp PgDn Home End", "select a row farther away"),
    (
        "Enter",
        "open: stacks through a function, frames of a stack",
    ),
    ("Esc  Backspace", "go back"),
    ("Tab", "functions, or whole stacks"),
    ("s", "sort by the next column"),
    ("/", "filter by a part of the name: Enter keeps it,"),
    ("", "Esc removes it"),
    ("p", "pause, and continue"),
    ("w", "write a dump, or a CPU profile"),
    ("?", "these keys: any key closes them"),
];

/// Width of the column of keys, in characters.
const KEYS_WIDTH: usize = 20;

/// Draws the list in the middle of the screen.
pub fn draw(frame: &mut Frame<'_>) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let line = |(key, effect): &(&'static str, &'static str)| {
        Line::from(vec![
            Span::styled(format!(" {key:<KEYS_WIDTH$}"), bold),
            Span::raw(format!("{effect} ")),
        ])
    };
    let lines: Vec<Line> = KEYS.iter().map(line).collect();
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 2;
    let height = lines.len() as u16 + 2;
    let [row] = Layout::vertical([Constraint::Max(height)])
        .flex(ratatui::layout::Flex::Center)
        .areas(frame.area());
    let [area] = Layout::horizontal([Constraint::Max(width)])
        .flex(ratatui::layout::Flex::Center)
        .areas(row);
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(" Keys ");
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
