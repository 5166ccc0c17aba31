//! From one snapshot to the next: rows of functions and of stacks, and how fast they grow.

use std::collections::HashMap;
use std::rc::Rc;

use serde::Serialize;
use shm_protocol::clock::TICK_NS;
use shm_protocol::snapshot::{Header, RecordView};
use shm_protocol::tree::NodeId;

use crate::names::{FunctionId, Symbols};
use crate::snapshot::Snapshot;

/// The numbers of a function or a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Numbers {
    /// Live bytes allocated by the function itself.
    pub flat_bytes: f64,
    /// Live bytes allocated by it and all it called.
    pub live_bytes: f64,
    /// Live objects, likewise.
    pub live_objects: f64,
    /// Change of the live bytes per second.
    pub growth_per_second: f64,
    /// Bytes allocated per second.
    pub alloc_per_second: f64,
    /// Mean age of the live objects, seconds.
    pub age_seconds: f64,
    /// Bytes allocated since the session's start.
    #[serde(skip)]
    alloc_bytes: f64,
    #[serde(skip)]
    age_sum: f64,
}

/// A stack: its functions and numbers.
#[derive(Clone, Debug)]
pub struct StackRow {
    /// Last node in the tree, which identifies the stack within the session.
    pub leaf: NodeId,
    /// Functions, innermost first.
    pub frames: Rc<[FunctionId]>,
    /// Sums and rates.
    pub numbers: Numbers,
}

/// A function and its numbers over all stacks that it is on.
#[derive(Clone, Copy, Debug)]
pub struct FunctionRow {
    /// The function.
    pub function: FunctionId,
    /// Sums and rates.
    pub numbers: Numbers,
    /// Whether it only ever leads into the program: `_start`, `main`, a thread's start. It is on
    /// every stack, and says nothing.
    pub is_entry: bool,
}

/// Functions that lead into a program, of C, C++ and Rust. What has no name, outside of these,
/// counts as well.
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

/// Rows as of the last snapshot.
pub struct Model {
    /// Names.
    pub symbols: Symbols,
    /// Functions, in no order.
    pub functions: Vec<FunctionRow>,
    /// Stacks, in no order.
    pub stacks: Vec<StackRow>,
    /// Sums over all stacks.
    pub total: Numbers,
    /// Samples so far.
    pub samples: u64,
    frames: HashMap<NodeId, Rc<[FunctionId]>>,
    before: HashMap<NodeId, (f64, f64)>,
    session: u64,
    taken_ns: u64,
}

impl Model {
    /// Of a live process.
    pub fn new(pid: i32) -> Self {
        Self {
            symbols: Symbols::new(pid),
            functions: Vec::new(),
            stacks: Vec::new(),
            total: Numbers::default(),
            samples: 0,
            frames: HashMap::new(),
            before: HashMap::new(),
            session: 0,
            taken_ns: 0,
        }
    }

    /// Takes a new snapshot in; names what is new `at_once`, or when it is time.
    pub fn update(&mut self, snapshot: &Snapshot, header: &Header<'_>, at_once: bool) {
        if self.session != snapshot.session.number {
            self.session = snapshot.session.number;
            self.frames.clear();
            self.before.clear();
            self.taken_ns = snapshot.session.start_ns;
        }
        let seconds = snapshot.end_ns.saturating_sub(self.taken_ns) as f64 / 1e9;
        self.taken_ns = snapshot.end_ns;
        self.samples = snapshot.totals.samples;
        let stacks = snapshot.stacks();
        self.name_stacks(&stacks, (snapshot, header), at_once);
        self.fill_stacks(&stacks, snapshot, seconds.max(0.001));
        self.fill_functions();
    }

    /// Resolves the functions of stacks that are new.
    fn name_stacks(
        &mut self,
        stacks: &[RecordView],
        (snapshot, header): (&Snapshot, &Header<'_>),
        at_once: bool,
    ) {
        let mut addresses = Vec::new();
        let mut new = Vec::new();
        let mut all = Vec::new();
        for record in stacks {
            if !self.frames.contains_key(&record.node) {
                let whole = snapshot.addresses(record.node, &mut addresses);
                all.extend_from_slice(&addresses);
                new.push((record.node, addresses.clone(), whole));
            }
        }
        let pid = self.symbols.pid();
        let profile = |addresses: &[u64]| crate::collect::code(header, pid, addresses);
        self.symbols.resolve(all.into_iter(), at_once, profile);
        for (leaf, addresses, whole) in new {
            // Where not all are known yet, the next refresh asks again.
            let Some(mut frames) = self.symbols.frames(&addresses) else {
                continue;
            };
            if !whole {
                frames.push(self.symbols.intern("[truncated]"));
            }
            self.frames.insert(leaf, frames.into());
        }
    }

    fn fill_stacks(&mut self, stacks: &[RecordView], snapshot: &Snapshot, seconds: f64) {
        let now = snapshot.end_tick();
        let unknown: Rc<[FunctionId]> = Rc::new([self.symbols.intern("[not named yet]")]);
        let full: Rc<[FunctionId]> = Rc::new([self.symbols.intern("[table full]")]);
        let mut before = std::mem::take(&mut self.before);
        self.stacks.clear();
        self.total = Numbers::default();
        let rest = (!snapshot.table_full.is_empty()).then_some(&snapshot.table_full);
        for record in stacks.iter().chain(rest) {
            let sums = record.sums(now);
            let live = (sums.alloc_bytes - sums.free_bytes).max(0.0);
            let (live_before, alloc_before) = before.remove(&record.node).unwrap_or((0.0, 0.0));
            let numbers = Numbers {
                flat_bytes: live,
                live_bytes: live,
                live_objects: (sums.alloc_objects - sums.free_objects).max(0.0),
                growth_per_second: (live - live_before) / seconds,
                alloc_per_second: ((sums.alloc_bytes - alloc_before) / seconds).max(0.0),
                age_seconds: 0.0,
                alloc_bytes: sums.alloc_bytes,
                age_sum: sums.live_age_ticks * TICK_NS as f64 / 1e9,
            };
            let frames = match self.frames.get(&record.node) {
                _ if std::ptr::eq(record, &raw const snapshot.table_full) => full.clone(),
                Some(frames) => frames.clone(),
                None => unknown.clone(),
            };
            self.total.add(&numbers, true);
            self.before.insert(record.node, (live, sums.alloc_bytes));
            self.stacks.push(StackRow {
                leaf: record.node,
                frames,
                numbers: numbers.aged(),
            });
        }
        self.total = self.total.aged();
    }

    /// Adds the stacks up over the functions on them, each function once a stack.
    fn fill_functions(&mut self) {
        let mut sums = vec![Numbers::default(); self.symbols.len()];
        let is_entry = self.entries();
        let mut seen = vec![u32::MAX; sums.len()];
        for (at, stack) in self.stacks.iter().enumerate() {
            for (depth, function) in stack.frames.iter().enumerate() {
                let function = *function as usize;
                if seen[function] != at as u32 {
                    seen[function] = at as u32;
                    sums[function].add(&stack.numbers, depth == 0);
                }
            }
        }
        self.functions = (0..)
            .zip(sums)
            .filter(|(_, numbers)| numbers.alloc_bytes > 0.0)
            .map(|(function, numbers)| FunctionRow {
                function,
                numbers: numbers.aged(),
                is_entry: is_entry[function as usize],
            })
            .collect();
    }

    /// For each function whether all frames of it are at the outer end of their stacks, among
    /// [`ENTRIES`].
    fn entries(&self) -> Vec<bool> {
        let leads_in = |function: FunctionId| {
            let name = self.symbols.name(function);
            name.starts_with('[') || ENTRIES.contains(&name)
        };
        let functions = 0..self.symbols.len() as FunctionId;
        let mut is_entry: Vec<bool> = functions.map(leads_in).collect();
        for stack in &self.stacks {
            let mut inside = false;
            for function in stack.frames.iter().rev() {
                inside |= !is_entry[*function as usize];
                if inside {
                    is_entry[*function as usize] = false;
                }
            }
            // The innermost one has allocated.
            if let Some(leaf) = stack.frames.first() {
                is_entry[*leaf as usize] = false;
            }
        }
        is_entry
    }
}

impl Numbers {
    fn add(&mut self, stack: &Self, is_leaf: bool) {
        if is_leaf {
            self.flat_bytes += stack.live_bytes;
        }
        self.live_bytes += stack.live_bytes;
        self.live_objects += stack.live_objects;
        self.growth_per_second += stack.growth_per_second;
        self.alloc_per_second += stack.alloc_per_second;
        self.alloc_bytes += stack.alloc_bytes;
        self.age_sum += stack.age_sum;
    }

    fn aged(mut self) -> Self {
        let live = self.live_objects;
        self.age_seconds = if live > 0.0 { self.age_sum / live } else { 0.0 };
        self
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A model of two stacks, `main → parse → alloc` and `main → run`, without a process.
    pub fn example() -> Model {
        let mut model = Model::new(0);
        let ids = ["main", "parse", "alloc", "run"].map(|name| model.symbols.intern(name));
        let stack = |leaf, frames: &[FunctionId], live: f64, age_sum: f64| StackRow {
            leaf,
            frames: frames.into(),
            numbers: Numbers {
                flat_bytes: live,
                live_bytes: live,
                live_objects: live / 100.0,
                growth_per_second: live / 10.0,
                alloc_per_second: 2.0 * live,
                alloc_bytes: 3.0 * live,
                age_sum,
                age_seconds: 0.0,
            },
        };
        model.stacks = vec![
            stack(5, &[ids[2], ids[1], ids[0]], 3000.0, 60.0),
            stack(9, &[ids[3], ids[0], ids[0]], 1000.0, 0.0),
        ];
        model.fill_functions();
        for at in 0..model.stacks.len() {
            let numbers = model.stacks[at].numbers;
            model.total.add(&numbers, true);
        }
        model
    }

    #[test]
    fn functions_add_up_and_recursion_counts_once() {
        let model = example();
        let of = |name: &str| {
            let row = model
                .functions
                .iter()
                .find(|r| model.symbols.name(r.function) == name);
            row.unwrap().numbers
        };
        assert_eq!(
            (of("main").flat_bytes, of("main").live_bytes),
            (0.0, 4000.0)
        );
        assert_eq!(
            (of("alloc").flat_bytes, of("parse").flat_bytes),
            (3000.0, 0.0)
        );
        assert_eq!(of("alloc").age_seconds, 2.0);
        assert_eq!(of("main").age_seconds, 1.5);
        assert_eq!(model.total.growth_per_second, 400.0);
    }
}
