//! Rows of stacks and functions, for any kind of numbers.

use std::rc::Rc;

use mem_agents::names::{FunctionId, Symbols};

use crate::top::numbers::Numbers;

/// Stack with its functions and numbers.
#[derive(Clone, Debug)]
pub struct StackRow<N> {
    /// Identifies the stack within the session.
    pub id: u32,
    /// Functions, innermost first.
    pub frames: Rc<[FunctionId]>,
    /// Sums and rates.
    pub numbers: N,
}

/// Function with its numbers over all stacks that contain it.
#[derive(Clone, Copy, Debug)]
pub struct FunctionRow<N> {
    /// The function.
    pub function: FunctionId,
    /// Sums and rates.
    pub numbers: N,
    /// True for functions that only lead into the program, such as `_start` and `main`. They are on
    /// every stack and carry no information.
    pub is_entry: bool,
}

/// Entry functions of C, C++ and Rust programs. Unnamed functions count as well.
const ENTRIES: [&str; 13] = [
    "_start",
    "__libc_start_main",
    "__libc_start_main_impl",
    "__libc_start_call_main",
    "main",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
    "start_thread",
    "std::rt::lang_start",
    "std::rt::lang_start_internal",
    "execute_native_thread_routine",
];

/// Rows as of the last refresh.
pub struct Model<N> {
    /// Function names.
    pub symbols: Symbols,
    /// Functions, unordered.
    pub functions: Vec<FunctionRow<N>>,
    /// Stacks, unordered.
    pub stacks: Vec<StackRow<N>>,
    /// Sums over all stacks.
    pub total: N,
    /// Number of samples so far.
    pub samples: u64,
}

impl<N: Numbers> Model<N> {
    /// Creates an empty model for a running process.
    pub fn new(pid: i32) -> Self {
        Self {
            symbols: Symbols::new(pid),
            functions: Vec::new(),
            stacks: Vec::new(),
            total: N::default(),
            samples: 0,
        }
    }

    /// Sums the stacks by function. A recursive function counts once per stack.
    pub fn fill_functions(&mut self) {
        let mut sums = vec![N::default(); self.symbols.function_count()];
        let is_entry = self.find_entries();
        let mut seen = vec![u32::MAX; sums.len()];
        for (index, stack) in self.stacks.iter().enumerate() {
            for (depth, function) in stack.frames.iter().enumerate() {
                let function = *function as usize;
                if seen[function] != index as u32 {
                    seen[function] = index as u32;
                    sums[function].add(&stack.numbers, depth == 0);
                }
            }
        }
        self.functions = (0..)
            .zip(sums)
            .filter(|(_, numbers)| numbers.is_nonzero())
            .map(|(function, numbers)| FunctionRow {
                function,
                numbers: numbers.with_derived(),
                is_entry: is_entry[function as usize],
            })
            .collect();
    }

    /// Returns for each function whether it is an entry: it and, on every stack, its callers are in
    /// [`ENTRIES`] or unnamed, and it is nowhere the innermost function.
    fn find_entries(&self) -> Vec<bool> {
        let may_be_entry = |function: FunctionId| {
            let name = self.symbols.name(function);
            name.starts_with('[') || ENTRIES.contains(&name)
        };
        let functions = 0..self.symbols.function_count() as FunctionId;
        let mut is_entry: Vec<bool> = functions.map(may_be_entry).collect();
        for stack in &self.stacks {
            let mut is_past_entries = false;
            for function in stack.frames.iter().rev() {
                is_past_entries |= !is_entry[*function as usize];
                if is_past_entries {
                    is_entry[*function as usize] = false;
                }
            }
            // The innermost function did what was counted, so it is not an entry.
            if let Some(leaf) = stack.frames.first() {
                is_entry[*leaf as usize] = false;
            }
        }
        is_entry
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::top::heap::HeapNumbers;
    use profile::Detail;

    /// Returns a model of two stacks, `main → parse → alloc` and `main → run`, without a process.
    pub fn example() -> Model<HeapNumbers> {
        let mut model = Model::new(0);
        let ids = ["main", "parse", "alloc", "run"].map(|name| model.symbols.intern(name));
        let stack = |id, frames: &[FunctionId], live: f64, age_sum: f64| StackRow {
            id,
            frames: frames.into(),
            numbers: HeapNumbers {
                flat_bytes: live,
                live_bytes: live,
                live_objects: live / 100.0,
                growth_per_second: live / 10.0,
                alloc_per_second: 2.0 * live,
                alloc_bytes: 3.0 * live,
                detail: Detail {
                    alloc_samples: 1,
                    alloc_objects: live / 100.0,
                    live_age_ms_sum: age_sum * 1e3,
                    ..Detail::default()
                },
                ..HeapNumbers::default()
            },
        };
        model.stacks = vec![
            stack(5, &[ids[2], ids[1], ids[0]], 3000.0, 60.0),
            stack(9, &[ids[3], ids[0], ids[0]], 1000.0, 0.0),
        ];
        model.fill_functions();
        for index in 0..model.stacks.len() {
            let numbers = model.stacks[index].numbers;
            model.total.add(&numbers, true);
        }
        model
    }

    #[test]
    fn functions_add_up_and_recursion_counts_once() {
        let model = example();
        let numbers_of = |name: &str| {
            let row = model
                .functions
                .iter()
                .find(|r| model.symbols.name(r.function) == name);
            row.unwrap().numbers
        };
        assert_eq!(
            (numbers_of("main").flat_bytes, numbers_of("main").live_bytes),
            (0.0, 4000.0)
        );
        assert_eq!(
            (
                numbers_of("alloc").flat_bytes,
                numbers_of("parse").flat_bytes
            ),
            (3000.0, 0.0)
        );
        assert_eq!(numbers_of("alloc").age_seconds, Some(2.0));
        assert_eq!(numbers_of("main").age_seconds, Some(1.5));
        assert_eq!(model.total.growth_per_second, 400.0);
    }
}
