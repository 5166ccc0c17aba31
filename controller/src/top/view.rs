//! Choices of the user, and the rows to show for them. Independent of the terminal.

use mem_agents::names::FunctionId;
use symbols::user_code::{self, Code};

use crate::top::model::Model;
use crate::top::numbers::Numbers;
use crate::top::sort::Sort;

/// Subject of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Function.
    Function(FunctionId),
    /// Stack, by its index in the model.
    Stack(usize),
    /// Frame of the displayed stack, by its depth.
    Frame(usize),
}

/// Row of the table. Its name is formatted on demand: [`Row::name`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<N> {
    /// Subject of the row.
    pub key: Key,
    /// Numbers; `None` for a frame.
    pub numbers: Option<N>,
    /// True for functions that only lead into the program. Such rows come last.
    pub is_entry: bool,
}

impl<N: Numbers> Row<N> {
    /// Formats the name of a row: a function, a stack with the innermost function first, or a frame
    /// with its depth.
    pub fn name(&self, page: Page, model: &Model<N>) -> String {
        let named = |function: &FunctionId| model.symbols.name(*function);
        match self.key {
            Key::Function(function) => named(&function).to_owned(),
            Key::Stack(index) => {
                let frames = &model.stacks[index].frames;
                let names: Vec<&str> = frames.iter().map(named).collect();
                // The user's own code first, then the library function that it called.
                let own_frames = user_code::user_part(names.len(), |depth| Code {
                    function: names[depth],
                    file: "",
                    is_system: model.symbols.is_system(frames[depth]),
                });
                let called = own_frames.start.checked_sub(1).map(|depth| names[depth]);
                let through = called.map_or(String::new(), |name| format!(" (through {name})"));
                names[own_frames].join(" < ") + &through
            }
            Key::Frame(depth) => {
                let Page::Frames(id) = page else {
                    return String::new();
                };
                let stack = model.stacks.iter().find(|stack| stack.id == id);
                let function = stack.and_then(|stack| stack.frames.get(depth));
                format!("{depth:>3}  {}", function.map_or("?", named))
            }
        }
    }
}

/// Page of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    /// All functions.
    #[default]
    Functions,
    /// All stacks.
    Stacks,
    /// Stacks that contain a function.
    Through(FunctionId),
    /// Frames of the stack with this [id](crate::top::model::StackRow::id).
    Frames(u32),
}

/// Choices of the user.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Current page.
    pub page: Page,
    /// Previous pages with their selected rows.
    pub back: Vec<(Page, usize)>,
    /// Sort order.
    pub sort: Sort,
    /// Text that names must contain; empty: any.
    pub filter: String,
    /// True while keys edit the filter.
    pub editing: bool,
    /// True while refreshing is paused.
    pub paused: bool,
    /// True while the list of keys is shown.
    pub help: bool,
    /// Index of the selected row.
    pub selected: usize,
    /// Index of the first visible row.
    pub first_visible: usize,
}

impl View {
    /// Returns the rows of the page, sorted.
    pub fn rows<N: Numbers>(&self, model: &Model<N>) -> Vec<Row<N>> {
        let matches = self.filter_matches(model);
        let mut rows = match self.page {
            Page::Functions => functions(model, &matches),
            Page::Stacks => stacks(model, &matches, None),
            Page::Through(function) => stacks(model, &matches, Some(function)),
            Page::Frames(id) => return frames(model, id),
        };
        let value = |row: &Row<N>| row.numbers.as_ref().map_or(0.0, |n| n.value(self.sort));
        rows.sort_by(|a, b| {
            let by_value = value(b).total_cmp(&value(a));
            let entries_last = a.is_entry.cmp(&b.is_entry);
            entries_last
                .then(by_value)
                .then_with(|| sort_names(a.key, model).cmp(sort_names(b.key, model)))
        });
        rows
    }

    /// Returns for each function whether its name passes the filter. Empty: all pass.
    fn filter_matches<N: Numbers>(&self, model: &Model<N>) -> Vec<bool> {
        let filter = self.filter.to_lowercase();
        let matches = |id: FunctionId| model.symbols.name(id).to_lowercase().contains(&filter);
        if filter.is_empty() {
            return Vec::new();
        }
        (0..model.symbols.function_count() as FunctionId)
            .map(matches)
            .collect()
    }

    /// Scrolls so that the selected row is visible; `height` rows fit.
    pub fn scroll(&mut self, height: usize) {
        let lowest = (self.selected + 1).saturating_sub(height.max(1));
        self.first_visible = self.first_visible.clamp(lowest, self.selected);
    }

    /// Opens the selected row: the stacks of a function, or the frames of a stack.
    pub fn open<N: Numbers>(&mut self, model: &Model<N>, rows: &[Row<N>]) {
        let next = match rows.get(self.selected).map(|row| row.key) {
            Some(Key::Function(function)) => Page::Through(function),
            Some(Key::Stack(index)) => Page::Frames(model.stacks[index].id),
            _ => return,
        };
        self.back.push((self.page, self.selected));
        self.page = next;
        self.selected = 0;
    }

    /// Returns to the previous page or, if there is none, clears the filter.
    pub fn close(&mut self) {
        match self.back.pop() {
            Some((page, selected)) => {
                self.page = page;
                self.selected = selected;
            }
            None => self.filter.clear(),
        }
    }

    /// Switches between functions and stacks.
    pub fn switch(&mut self) {
        self.back.clear();
        self.selected = 0;
        self.page = match self.page {
            Page::Functions => Page::Stacks,
            _ => Page::Functions,
        };
    }

    /// Moves the selection by `step`, in a table of `rows` rows.
    pub fn select(&mut self, step: isize, rows: usize) {
        self.selected = self
            .selected
            .saturating_add_signed(step)
            .min(rows.saturating_sub(1));
    }
}

/// Returns the names by which rows with equal values are ordered.
fn sort_names<N: Numbers>(key: Key, model: &Model<N>) -> impl Iterator<Item = &str> {
    let frames = match &key {
        Key::Stack(index) => &model.stacks[*index].frames[..],
        _ => &[],
    };
    let function = match key {
        Key::Function(function) => Some(function),
        _ => None,
    };
    let functions = function.into_iter().chain(frames.iter().copied());
    functions.map(|function| model.symbols.name(function))
}

/// Returns true if a function is among `matches`, as returned by [`View::filter_matches`].
fn passes(matches: &[bool], function: FunctionId) -> bool {
    matches.is_empty() || matches.get(function as usize) == Some(&true)
}

fn functions<N: Numbers>(model: &Model<N>, matches: &[bool]) -> Vec<Row<N>> {
    let rows = model.functions.iter();
    rows.filter(|row| passes(matches, row.function))
        .map(|row| Row {
            key: Key::Function(row.function),
            numbers: Some(row.numbers),
            is_entry: row.is_entry,
        })
        .collect()
}

/// Returns the stacks (containing a given function, if any) with a function that passes the filter.
fn stacks<N: Numbers>(
    model: &Model<N>,
    matches: &[bool],
    through: Option<FunctionId>,
) -> Vec<Row<N>> {
    let stacks = model.stacks.iter().enumerate();
    stacks
        .filter(|(_, stack)| through.is_none_or(|function| stack.frames.contains(&function)))
        .filter(|(_, stack)| {
            let mut functions = stack.frames.iter();
            functions.any(|function| passes(matches, *function))
        })
        .map(|(index, stack)| Row {
            key: Key::Stack(index),
            numbers: Some(stack.numbers),
            is_entry: false,
        })
        .collect()
}

fn frames<N: Numbers>(model: &Model<N>, id: u32) -> Vec<Row<N>> {
    let Some(stack) = model.stacks.iter().find(|stack| stack.id == id) else {
        return Vec::new();
    };
    let frame = |depth| Row {
        key: Key::Frame(depth),
        numbers: (depth == 0).then_some(stack.numbers),
        is_entry: false,
    };
    (0..stack.frames.len()).map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::cpu::CpuNumbers;
    use crate::top::heap::HeapNumbers;
    use crate::top::model::tests::example;

    fn names(view: &View, model: &Model<HeapNumbers>) -> Vec<String> {
        let rows = view.rows(model);
        rows.iter().map(|row| row.name(view.page, model)).collect()
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let model = example();
        let mut view = View::default();
        assert_eq!(names(&view, &model), ["alloc", "parse", "run", "main"]);
        view.sort = Sort::Flat;
        assert_eq!(names(&view, &model), ["alloc", "run", "parse", "main"]);
        view.filter = "AR".to_owned();
        assert_eq!(names(&view, &model), ["parse"]);
    }

    #[test]
    fn functions_open_to_stacks_and_stacks_to_frames() {
        let model = example();
        let mut view = View::default();
        view.open(&model, &view.rows(&model));
        assert_eq!(names(&view, &model), ["alloc < parse < main"]);
        view.open(&model, &view.rows(&model));
        assert_eq!(
            names(&view, &model),
            ["  0  alloc", "  1  parse", "  2  main"]
        );
        view.open(&model, &view.rows(&model));
        assert_eq!(view.page, Page::Frames(5), "frames open no further");
        view.close();
        view.close();
        assert_eq!((view.page, view.selected), (Page::Functions, 0));
    }

    #[test]
    fn scrolling_is_minimal_and_keeps_the_selection_visible() {
        let mut view = View::default();
        for (selected, first) in [
            (3, 0),
            (9, 0),
            (10, 1),
            (50, 41),
            (45, 41),
            (20, 20),
            (0, 0),
        ] {
            view.selected = selected;
            view.scroll(10);
            assert_eq!(view.first_visible, first, "{selected}");
        }
        view.selected = 7;
        view.scroll(0);
        assert_eq!(view.first_visible, 7, "no row fits");
    }

    #[test]
    fn the_selection_stays_within_the_rows() {
        let mut view = View::default();
        view.select(-1, 3);
        assert_eq!(view.selected, 0);
        view.select(100, 3);
        assert_eq!(view.selected, 2);
        view.select(1, 0);
        assert_eq!(view.selected, 0);
        assert_eq!(
            (0..5).fold(Sort::Live, |sort, _| HeapNumbers::next(sort)),
            Sort::Live
        );
        assert_eq!(
            (0..4).fold(Sort::Now, |sort, _| CpuNumbers::next(sort)),
            Sort::Now
        );
    }
}
