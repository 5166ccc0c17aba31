//! What the user chose to see, and the rows that this gives. No terminal here.

use crate::top::model::{Model, Numbers};
use crate::top::symbols::FunctionId;

/// Order of the rows, largest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// Live bytes, with what was called.
    #[default]
    Live,
    /// Live bytes of the function itself.
    Flat,
    /// Growth of the live bytes.
    Growth,
    /// Rate of allocation.
    Rate,
    /// Mean age of the live objects.
    Age,
}

impl Sort {
    const ALL: [Self; 5] = [Self::Live, Self::Flat, Self::Growth, Self::Rate, Self::Age];

    /// The next one, round and round.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|s| *s == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    fn value(self, numbers: &Numbers) -> f64 {
        match self {
            Self::Live => numbers.live_bytes,
            Self::Flat => numbers.flat_bytes,
            Self::Growth => numbers.growth_per_second,
            Self::Rate => numbers.alloc_per_second,
            Self::Age => numbers.age_seconds,
        }
    }
}

/// What a row stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A function.
    Function(FunctionId),
    /// A stack, by its place in the model.
    Stack(usize),
    /// A frame of the stack shown, by its depth.
    Frame(usize),
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// What it stands for.
    pub key: Key,
    /// Its name.
    pub name: String,
    /// Its numbers; a frame has none.
    pub numbers: Option<Numbers>,
}

/// Which rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    /// All functions.
    #[default]
    Functions,
    /// All stacks.
    Stacks,
    /// The stacks through a function.
    Through(FunctionId),
    /// The frames of the stack that ends in this node.
    Frames(u32),
}

/// The user's choices.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The page.
    pub page: Page,
    /// The pages that led to it, and what was selected there.
    pub back: Vec<(Page, usize)>,
    /// The order.
    pub sort: Sort,
    /// Only rows whose names contain this.
    pub filter: String,
    /// Whether keys go to the filter.
    pub editing: bool,
    /// Whether the numbers stand still.
    pub paused: bool,
    /// The selected row.
    pub selected: usize,
}

impl View {
    /// The rows of the page, in order.
    pub fn rows(&self, model: &Model) -> Vec<Row> {
        let mut rows = match self.page {
            Page::Functions => functions(model),
            Page::Stacks => stacks(model, None),
            Page::Through(function) => stacks(model, Some(function)),
            Page::Frames(leaf) => return frames(model, leaf),
        };
        if !self.filter.is_empty() {
            let wanted = self.filter.to_lowercase();
            rows.retain(|row| row.name.to_lowercase().contains(&wanted));
        }
        let value = |row: &Row| row.numbers.as_ref().map_or(0.0, |n| self.sort.value(n));
        rows.sort_by(|a, b| {
            value(b)
                .total_cmp(&value(a))
                .then_with(|| a.name.cmp(&b.name))
        });
        rows
    }

    /// Opens the selected row: a function's stacks, a stack's frames.
    pub fn open(&mut self, model: &Model, rows: &[Row]) {
        let next = match rows.get(self.selected).map(|row| row.key) {
            Some(Key::Function(function)) => Page::Through(function),
            Some(Key::Stack(at)) => Page::Frames(model.stacks[at].leaf),
            _ => return,
        };
        self.back.push((self.page, self.selected));
        (self.page, self.selected) = (next, 0);
    }

    /// Goes back to where [`View::open`] came from; else lets go of the filter.
    pub fn close(&mut self) {
        match self.back.pop() {
            Some((page, selected)) => (self.page, self.selected) = (page, selected),
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

    /// Moves the selection among so many rows.
    pub fn select(&mut self, step: isize, rows: usize) {
        self.selected = self
            .selected
            .saturating_add_signed(step)
            .min(rows.saturating_sub(1));
    }
}

fn functions(model: &Model) -> Vec<Row> {
    let row = |row: &crate::top::model::FunctionRow| Row {
        key: Key::Function(row.function),
        name: model.symbols.name(row.function).to_owned(),
        numbers: Some(row.numbers),
    };
    model.functions.iter().map(row).collect()
}

/// All stacks, or those through a function, innermost function first.
fn stacks(model: &Model, through: Option<FunctionId>) -> Vec<Row> {
    let stacks = model.stacks.iter().enumerate();
    let wanted = stacks.filter(|(_, s)| through.is_none_or(|f| s.frames.contains(&f)));
    let row = |(at, stack): (usize, &crate::top::model::StackRow)| {
        let names: Vec<&str> = stack
            .frames
            .iter()
            .map(|f| model.symbols.name(*f))
            .collect();
        Row {
            key: Key::Stack(at),
            name: names.join(" < "),
            numbers: Some(stack.numbers),
        }
    };
    wanted.map(row).collect()
}

fn frames(model: &Model, leaf: u32) -> Vec<Row> {
    let Some(stack) = model.stacks.iter().find(|stack| stack.leaf == leaf) else {
        return Vec::new();
    };
    let frame = |(depth, function): (usize, &FunctionId)| Row {
        key: Key::Frame(depth),
        name: format!("{depth:>3}  {}", model.symbols.name(*function)),
        numbers: (depth == 0).then_some(stack.numbers),
    };
    stack.frames.iter().enumerate().map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::model::tests::example;

    fn names(view: &View, model: &Model) -> Vec<String> {
        view.rows(model).into_iter().map(|row| row.name).collect()
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let model = example();
        let mut view = View::default();
        assert_eq!(names(&view, &model), ["main", "alloc", "parse", "run"]);
        view.sort = Sort::Flat;
        assert_eq!(names(&view, &model), ["alloc", "run", "main", "parse"]);
        view.filter = "AR".to_owned();
        assert_eq!(names(&view, &model), ["parse"]);
    }

    #[test]
    fn functions_open_to_stacks_and_stacks_to_frames() {
        let model = example();
        let mut view = View::default();
        view.select(1, 4);
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
        assert_eq!((view.page, view.selected), (Page::Functions, 1));
    }

    #[test]
    fn the_selection_stays_inside() {
        let mut view = View::default();
        view.select(-1, 3);
        assert_eq!(view.selected, 0);
        view.select(100, 3);
        assert_eq!(view.selected, 2);
        view.select(1, 0);
        assert_eq!(view.selected, 0);
        assert_eq!((0..5).fold(Sort::Live, |sort, _| sort.next()), Sort::Live);
    }
}
