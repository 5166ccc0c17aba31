//! Draws the view with ratatui.

use mem_agents::text;
use profile::locale;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table, TableState};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::top::help;
use crate::top::model::Model;
use crate::top::numbers::Numbers;
use crate::top::view::{Page, Row, View};

/// Lines above the table, and the message below it.
pub struct Title {
    /// Name and pid of the process.
    pub process: String,
    /// Interval and time left.
    pub session: String,
    /// Known gaps in the numbers, for display; empty: none.
    pub quality: String,
    /// Resident memory in bytes.
    pub rss_bytes: Option<u64>,
    /// Last event, such as a dump or an error; empty: none.
    pub message: String,
}

impl Title {
    /// Returns the number of lines above the table.
    fn height(&self) -> u16 {
        2 + u16::from(!self.quality.is_empty())
    }

    /// Returns the number of rows that fit on a terminal of this height.
    pub fn rows(&self, height: u16) -> usize {
        // Subtracts the table's header and the footer.
        usize::from(height.saturating_sub(self.height() + 2))
    }
}

/// Draws the whole screen.
pub fn draw<N: Numbers>(
    frame: &mut Frame<'_>,
    title: &Title,
    model: &Model<N>,
    view: &View,
    rows: &[Row<N>],
) {
    let areas = Layout::vertical([
        Constraint::Length(title.height()),
        Constraint::Min(2),
        Constraint::Length(1),
    ]);
    let [head, body, foot] = areas.areas(frame.area());
    let width = usize::from(head.width);
    frame.render_widget(Paragraph::new(header(title, model, view, width)), head);
    table(frame, body, model, view, rows);
    frame.render_widget(Paragraph::new(footer(title, view, width)), foot);
    if view.help {
        help::draw(frame);
    }
}

fn header<N: Numbers>(
    title: &Title,
    model: &Model<N>,
    view: &View,
    width: usize,
) -> Vec<Line<'static>> {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let rss = title
        .rss_bytes
        .map_or("-".to_owned(), |rss| text::bytes(rss as f64));
    let paused = if view.paused { "  PAUSED" } else { "" };
    let room = width.saturating_sub(title.process.width() + 2 + paused.width());
    let mut sums = model.total.summary();
    sums.extend([
        format!("RSS {rss}"),
        text::count(model.samples, "sample", "samples"),
        text::count(model.stacks.len() as u64, "stack", "stacks"),
    ]);
    let mut lines = vec![
        Line::from(vec![
            Span::styled(title.process.clone(), bold),
            Span::raw(format!("  {}", fit_clauses(&title.session, room))),
            Span::styled(paused, bold.fg(Color::Yellow)),
        ]),
        Line::raw(join_fitting(&sums, width)),
    ];
    if !title.quality.is_empty() {
        lines.push(Line::raw(cut(&title.quality, width)));
    }
    lines
}

/// Leaves out the last clauses of a text, between commas, that do not fit in a width.
fn fit_clauses(text: &str, width: usize) -> &str {
    let mut shown = text;
    while shown.width() > width
        && let Some((before, _)) = shown.rsplit_once(", ")
    {
        shown = before;
    }
    shown
}

fn table<N: Numbers>(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model<N>,
    view: &View,
    rows: &[Row<N>],
) {
    // Narrow terminals show the name and the most important columns.
    let sorted = N::column(view.sort).unwrap_or(0);
    let columns: Vec<usize> = match area.width {
        0..60 => vec![sorted],
        60..90 => N::medium_columns(sorted).to_vec(),
        _ => (0..N::HEADS.len()).collect(),
    };
    let numbers_width = columns.len() * (COLUMN_WIDTH + 1);
    let name_width = usize::from(area.width).saturating_sub(numbers_width);
    // Formats only visible rows.
    let first = view.first_visible.min(rows.len());
    let visible = rows[first..].iter().take(usize::from(area.height));
    let cells = visible.map(|row| {
        let numbers = row.numbers.as_ref().map(N::cells).unwrap_or_default();
        let numbers = columns
            .iter()
            .map(|column| Cell::from(format!("{:>10}", numbers.get(*column).map_or("", |n| n))));
        Cells::new(
            numbers
                .chain([Cell::from(shorten(row.name(view.page, model), name_width))])
                .collect::<Vec<_>>(),
        )
    });
    let widths = columns
        .iter()
        .map(|_| Constraint::Length(COLUMN_WIDTH as u16))
        .chain([Constraint::Min(10)]);
    let table = Table::new(cells, widths)
        .header(table_head::<N>(view, &columns))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let selected = view.selected.saturating_sub(first);
    let mut state = TableState::new().with_selected(Some(selected));
    frame.render_stateful_widget(table, area, &mut state);
}

/// Width of a numeric column, in characters.
const COLUMN_WIDTH: usize = 10;

/// Removes the outermost namespace of a name, if it has one.
fn without_outermost(name: &str) -> Option<&str> {
    let plain = name.find(['<', '(', ' ']).unwrap_or(name.len());
    name[..plain].find("::").map(|index| &name[index + 2..])
}

/// Removes all namespaces of a name.
fn without_namespaces(name: &str) -> &str {
    without_outermost(name).map_or(name, without_namespaces)
}

/// Shortens a name to a width: removes outer namespaces first, then cuts its end. If the name is a
/// stack, removes the namespaces of all functions first.
fn shorten(name: String, width: usize) -> String {
    if name.width() > width && name.contains(STACK_SEPARATOR) {
        let names: Vec<&str> = name
            .split(STACK_SEPARATOR)
            .map(without_namespaces)
            .collect();
        return cut(&names.join(STACK_SEPARATOR), width);
    }
    let mut shortened = name.as_str();
    while shortened.width() > width {
        let Some(shorter) = without_outermost(shortened) else {
            break;
        };
        shortened = shorter;
    }
    cut(shortened, width)
}

/// Minimum width of a shortened name, in characters: the room that the widest numbers leave on a
/// terminal of 80 columns.
const MIN_NAME_WIDTH: usize = 12;
/// Number of spaces between the columns of a table.
const COLUMN_GAP: usize = 2;

/// Shortens the names, which are the last cells of the rows, so that a row is as wide as the
/// terminal.
pub fn shorten_names(rows: &mut [Vec<String>], head: &[&str], width: usize) {
    let last = head.len().saturating_sub(1);
    let column_width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.width()).max().unwrap_or(0);
        widest.max(head[column].width()) + COLUMN_GAP
    };
    let numbers: usize = (0..last).map(column_width).sum();
    let name_width = width.saturating_sub(numbers).max(MIN_NAME_WIDTH);
    for row in rows {
        if let Some(name) = row.get_mut(last) {
            *name = shorten(std::mem::take(name), name_width);
        }
    }
}

/// Separator between the functions of a stack.
const STACK_SEPARATOR: &str = " < ";

/// Cuts a text that is too wide and marks the cut as the terminal can display it.
fn cut(text: &str, width: usize) -> String {
    // Tests must not depend on the terminal.
    let is_ascii = !cfg!(test) && locale::is_ascii_terminal(&std::io::stdout());
    cut_with(text, width, if is_ascii { "..." } else { "…" })
}

/// Cuts a text that is too wide and appends `end`, or as much of it as fits.
fn cut_with(text: &str, width: usize, end: &str) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut columns_left = width.saturating_sub(end.width());
    let fits = |c: &char| {
        let remaining = columns_left.checked_sub(c.width().unwrap_or(0));
        columns_left = remaining.unwrap_or(0);
        remaining.is_some()
    };
    let kept: String = text.chars().take_while(fits).collect();
    let remaining = width.saturating_sub(kept.width()).max(1);
    let end: String = end.chars().take(remaining).collect();
    kept + &end
}

/// Returns the headers of the visible columns; the sorted one is underlined.
fn table_head<N: Numbers>(view: &View, columns: &[usize]) -> Cells<'static> {
    let sorted = N::column(view.sort).unwrap_or(0);
    let style = |column: usize| {
        if column == sorted {
            Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
        } else {
            Style::new().add_modifier(Modifier::BOLD)
        }
    };
    let head = columns
        .iter()
        .map(|column| Cell::from(format!("{:>10}", N::HEADS[*column])).style(style(*column)));
    let name = Cell::from(name_head(view.page)).style(style(usize::MAX));
    Cells::new(head.chain([name]))
}

/// Returns the header of the name column.
pub fn name_head(page: Page) -> &'static str {
    match page {
        Page::Functions => "FUNCTION",
        Page::Stacks | Page::Through(_) => "STACK, innermost function first",
        Page::Frames(_) => "FRAME",
    }
}

fn footer(title: &Title, view: &View, width: usize) -> Line<'static> {
    if view.editing {
        return Line::raw(format!("filter: {}_", text::line(&view.filter)));
    }
    if !title.message.is_empty() {
        return Line::styled(
            text::line(&title.message).into_owned(),
            Style::new().fg(Color::Green),
        );
    }
    let mut parts = Vec::new();
    if !view.filter.is_empty() {
        parts.push(format!("[filter: {}]", text::line(&view.filter)));
    }
    parts.extend(KEYS.map(str::to_owned));
    Line::styled(
        join_fitting(&parts, width),
        Style::new().add_modifier(Modifier::DIM),
    )
}

/// Keys and their effects, in order of importance.
const KEYS: [&str; 9] = [
    "q quit",
    "? keys",
    "Enter open",
    "Esc back",
    "Tab stacks",
    "s sort",
    "/ filter",
    "p pause",
    "w write",
];

/// Joins as many whole parts as fit into the width, but at least the first.
fn join_fitting(parts: &[String], width: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let room = width.saturating_sub(line.chars().count() + 2);
        if line.is_empty() {
            line.push_str(part);
        } else if part.chars().count() <= room {
            line.push_str("  ");
            line.push_str(part);
        } else {
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_that_do_not_fit_are_left_out() {
        let text = "every 1024 bytes, live ± 69.4 KiB, until it is stopped";
        assert_eq!(fit_clauses(text, 80), text);
        assert_eq!(fit_clauses(text, 50), "every 1024 bytes, live ± 69.4 KiB");
        assert_eq!(fit_clauses(text, 33), "every 1024 bytes, live ± 69.4 KiB");
        assert_eq!(fit_clauses(text, 32), "every 1024 bytes");
        assert_eq!(fit_clauses(text, 3), "every 1024 bytes");
    }

    #[test]
    fn rows_are_as_wide_as_the_terminal() {
        let name = "ns::Outer::a_function_with_a_long_name(std::string const&, int, long)";
        let rows = || vec![vec!["12.3 MiB".to_owned(), name.to_owned()]];
        let head = ["LIVE", "FUNCTION"];
        for width in [40, 60, 80, 200] {
            let mut shortened = rows();
            shorten_names(&mut shortened, &head, width);
            for line in text::table(&head, &[0], shortened) {
                assert!(line.width() <= width, "{width}: {line}");
            }
        }
        let mut whole = rows();
        shorten_names(&mut whole, &head, 200);
        assert_eq!(whole, rows());
        // The widest numbers of all columns.
        let head = [
            "FLAT", "LIVE", "GROWTH/s", "ALLOC/s", "AGE", "±", "FUNCTION",
        ];
        let numbers = [
            "1023.9 KiB",
            "1023.9 KiB",
            "+1023.9 KiB",
            "1023.9 KiB",
            "0.65 s",
            "0.15 s",
        ];
        let row = numbers.iter().chain([&name]).map(|cell| (*cell).to_owned());
        let mut widest = vec![row.collect()];
        shorten_names(&mut widest, &head, 80);
        for line in text::table(&head, &[0, 1, 2, 3, 4, 5], widest) {
            assert!(line.width() <= 80, "{line}");
        }
    }

    #[test]
    fn names_are_cut_by_their_display_width() {
        assert_eq!(cut("服务器", 6), "服务器");
        assert_eq!(cut("服务器", 5), "服务…");
        assert_eq!(cut("服务器", 4), "服…");
        assert_eq!(shorten("空间::服务".to_owned(), 4), "服务");
    }
    use crate::top::heap::HeapNumbers;
    use crate::top::model::tests::example;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn drawn(width: u16, height: u16, view: &View) -> String {
        drawn_with("", width, height, view)
    }

    fn drawn_with(quality: &str, width: u16, height: u16, view: &View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let model = example();
        let title = Title {
            process: "server (42)".to_owned(),
            session: "every 1024 bytes, 9 s left".to_owned(),
            quality: quality.to_owned(),
            rss_bytes: Some(1 << 20),
            message: String::new(),
        };
        let rows = view.rows(&model);
        terminal
            .draw(|frame| draw(frame, &title, &model, view, &rows))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height)
            .map(|y| line(y).trim_end().to_owned() + "\n")
            .collect()
    }

    #[test]
    fn a_wide_terminal_shows_all_columns() {
        let expected = "\
server (42)  every 1024 bytes, 9 s left
live 3.9 KiB  +400 B/s  allocating 7.8 KiB/s  age -  RSS 1.0 MiB  0 samples  2 stacks
      FLAT       LIVE   GROWTH/s    ALLOC/s        AGE          ± FUNCTION
   2.9 KiB    2.9 KiB     +300 B    5.9 KiB     2.00 s          - alloc
       0 B    2.9 KiB     +300 B    5.9 KiB     2.00 s          - parse
    1000 B     1000 B     +100 B    2.0 KiB     0.00 s          - run
       0 B    3.9 KiB     +400 B    7.8 KiB     1.50 s          - main
q quit  ? keys  Enter open  Esc back  Tab stacks  s sort  / filter  p pause  w write
";
        assert_eq!(drawn(100, 8, &View::default()), expected);
    }

    #[test]
    fn gaps_in_the_numbers_have_their_own_line() {
        let quality = "lost 0; of the time 0.50 % truncated";
        let text = drawn_with(quality, 100, 9, &View::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], quality);
        assert!(lines[3].contains("FUNCTION") && lines[7].ends_with("main"));
        let text = drawn_with(quality, 20, 9, &View::default());
        assert!(text.contains("\nlost 0; of the time…\n"), "{text}");
    }

    #[test]
    fn narrow_terminals_show_whole_words() {
        let text = drawn(40, 10, &View::default());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "live 3.9 KiB  +400 B/s");
        assert_eq!(lines[9], "q quit  ? keys  Enter open  Esc back");
        assert!(drawn(80, 24, &View::default()).ends_with("/ filter  p pause\n"));
    }

    #[test]
    fn the_help_shows_all_keys() {
        let view = View {
            help: true,
            ..View::default()
        };
        for (width, height) in [(80, 24), (160, 50)] {
            let text = drawn(width, height, &view);
            for (key, what) in help::KEYS {
                let line = text.lines().find(|line| line.contains(what));
                assert!(line.is_some_and(|line| line.contains(key)), "{key}: {text}");
            }
            assert!(text.contains("live 3.9 KiB"), "{text}");
        }
    }

    #[test]
    fn the_sorted_column_is_always_shown() {
        for &sort in HeapNumbers::SORTS {
            let view = View {
                sort,
                ..View::default()
            };
            for (width, height) in [(40, 10), (80, 24), (160, 50)] {
                let text = drawn(width, height, &view);
                assert!(
                    text.contains(HeapNumbers::HEADS[HeapNumbers::column(sort).unwrap()]),
                    "{width}: {text}"
                );
            }
        }
    }

    #[test]
    fn long_names_lose_their_namespaces_first() {
        let shortened = |name: &str, width| shorten(name.to_owned(), width);
        assert_eq!(shortened("a::b::run", 9), "a::b::run");
        assert_eq!(shortened("a::b::run", 8), "b::run");
        assert_eq!(shortened("a::b::run<x::y>", 11), "run<x::y>");
        assert_eq!(shortened("a::b::run<x::y>", 6), "run<x…");
        assert_eq!(shortened("alloc < parse < main", 10), "alloc < p…");
        assert_eq!(
            shortened("a::alloc < b::c::run<x::y> < main", 25),
            "alloc < run<x::y> < main"
        );
        assert_eq!(shortened("größe::länge", 5), "länge");
        assert_eq!(shortened("main", 0), "…");
    }

    #[test]
    fn ascii_ellipses_fit_into_the_width() {
        assert_eq!(cut_with("allocate", 7, "..."), "allo...");
        assert_eq!(cut_with("服务器", 5, "..."), "服...");
        assert_eq!(cut_with("allocate", 2, "..."), "..");
    }

    #[test]
    fn any_size_can_be_drawn() {
        for (width, height) in [(1, 1), (20, 3), (59, 10), (70, 24), (300, 80)] {
            let view = View {
                paused: true,
                help: width != 70,
                selected: 2,
                ..View::default()
            };
            let text = drawn(width, height, &view);
            assert_eq!(text.lines().count(), usize::from(height));
            assert!(width != 70 || text.contains("alloc"), "{text}");
        }
    }
}
