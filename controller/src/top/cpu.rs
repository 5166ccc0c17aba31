//! CPU time of functions and stacks, in total and since the last refresh.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use cpu::Process;
use cpu::kernel;
use cpu::recording::{FIRST_OF_KERNEL, TRUNCATED};
use mem_agents::names::{FunctionId, Symbols};
use mem_agents::text;
use profile::cpu::{CpuBuilder, Sampling};
use profile::{Facts, Profile};
use serde::Serialize;

use crate::cpu_session::{modules, user_location};
use crate::top::model::{Model, StackRow};
use crate::top::numbers::Numbers;
use crate::top::quality::Quality;
use crate::top::sort::Sort;

/// CPU time of a function or a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuNumbers {
    /// CPUs used since the last refresh by the function itself.
    pub flat_cpus: f64,
    /// CPUs used since the last refresh by the function and its callees.
    pub cpus: f64,
    /// CPU time of the function itself since the start, in seconds.
    pub flat_seconds: f64,
    /// CPU time of the function and its callees since the start, in seconds.
    pub cpu_seconds: f64,
}

/// State that is kept between refreshes.
#[derive(Default)]
pub struct CpuTable {
    /// Index in `stacks` by addresses.
    indexes: HashMap<Rc<[u64]>, u32>,
    stacks: Vec<Stack>,
    /// Serial number of the program that the process runs.
    serial: u64,
    /// Known gaps in the numbers.
    pub quality: Quality,
}

struct Stack {
    addresses: Rc<[u64]>,
    /// Functions, innermost first; `None` until they are known.
    functions: Option<Rc<[FunctionId]>>,
    /// CPU time at the last refresh, in ns.
    ns_before: u64,
    /// CPU time now, in ns.
    ns: u64,
}

impl CpuTable {
    /// Updates the model with the samples of a process, `seconds` after the last update. Looks up
    /// new names now if `at_once`, otherwise when a lookup is due.
    pub fn update(
        &mut self,
        model: &mut Model<CpuNumbers>,
        process: &Process,
        kernel: &kernel::Symbols,
        seconds: f64,
        at_once: bool,
    ) {
        if self.serial != process.serial {
            *self = Self::default();
            self.serial = process.serial;
            model.symbols = model.symbols.for_new_program(process.pid);
        }
        self.sum_stacks(process);
        self.name_stacks(model, process, kernel, at_once);
        self.fill_stacks(model, seconds.max(0.001));
        self.quality = Quality::new(process);
        self.measure_quality(&model.symbols);
        model.samples = process.counts.samples;
        model.fill_functions();
    }

    /// Sums the stacks over all threads.
    fn sum_stacks(&mut self, process: &Process) {
        for stack in &mut self.stacks {
            stack.ns_before = stack.ns;
            stack.ns = 0;
        }
        process.stacks.each(|_, addresses, count| {
            let index = match self.indexes.get(addresses) {
                Some(index) => *index,
                None => {
                    let addresses: Rc<[u64]> = addresses.into();
                    let index = self.stacks.len() as u32;
                    self.indexes.insert(addresses.clone(), index);
                    self.stacks.push(Stack {
                        addresses,
                        functions: None,
                        ns_before: 0,
                        ns: 0,
                    });
                    index
                }
            };
            self.stacks[index as usize].ns += count.ns;
        });
    }

    /// Sums the time of stacks that are truncated, or whose innermost function has no name.
    fn measure_quality(&mut self, symbols: &Symbols) {
        for stack in &self.stacks {
            let innermost = stack.addresses.first();
            let outermost = stack.addresses.last();
            if outermost == Some(&TRUNCATED) {
                self.quality.truncated += stack.ns;
            }
            if innermost.is_none_or(|address| symbols.is_unnamed(*address)) {
                self.quality.unnamed += stack.ns;
            }
        }
    }

    /// Looks up the functions of new stacks.
    fn name_stacks(
        &mut self,
        model: &mut Model<CpuNumbers>,
        process: &Process,
        kernel: &kernel::Symbols,
        at_once: bool,
    ) {
        let new = self.stacks.iter().filter(|stack| stack.functions.is_none());
        let new: Vec<u64> = new
            .flat_map(|stack| user_addresses(&stack.addresses))
            .collect();
        let profile = |addresses: &[u64]| profile_of_addresses(process, addresses);
        model.symbols.resolve(new.into_iter(), at_once, profile);
        for stack in &mut self.stacks {
            if stack.functions.is_none() {
                // If a function is still unknown, the next refresh tries again.
                stack.functions = functions_of_stack(&mut model.symbols, kernel, &stack.addresses);
            }
        }
    }

    fn fill_stacks(&self, model: &mut Model<CpuNumbers>, seconds: f64) {
        let not_named: Rc<[FunctionId]> = Rc::new([model.symbols.intern("[not named yet]")]);
        model.stacks.clear();
        model.total = CpuNumbers::default();
        // The same functions at different addresses share one row.
        let mut rows: HashMap<Rc<[FunctionId]>, usize> = HashMap::new();
        for (id, stack) in (0..).zip(&self.stacks) {
            let cpu_seconds = stack.ns as f64 / 1e9;
            let seconds_before = stack.ns_before as f64 / 1e9;
            let cpus = (cpu_seconds - seconds_before).max(0.0) / seconds;
            let numbers = CpuNumbers {
                flat_cpus: cpus,
                cpus,
                flat_seconds: cpu_seconds,
                cpu_seconds,
            };
            model.total.add(&numbers, true);
            let frames = stack.functions.as_ref().unwrap_or(&not_named).clone();
            let row = *rows.entry(frames.clone()).or_insert(model.stacks.len());
            match model.stacks.get_mut(row) {
                Some(row) => row.numbers.add(&numbers, true),
                None => model.stacks.push(StackRow {
                    id,
                    frames,
                    numbers,
                }),
            }
        }
    }
}

/// Returns the user-space part of a stack.
fn user_addresses(addresses: &[u64]) -> impl Iterator<Item = u64> {
    let is_user = |address: &u64| *address < FIRST_OF_KERNEL && *address != TRUNCATED;
    addresses.iter().copied().filter(is_user)
}

/// Returns the functions of a stack, innermost first, or `None` if some are still unknown.
fn functions_of_stack(
    symbols: &mut Symbols,
    kernel: &kernel::Symbols,
    addresses: &[u64],
) -> Option<Rc<[FunctionId]>> {
    let user: Vec<u64> = user_addresses(addresses).collect();
    let user = symbols.frames(&user)?;
    let mut functions = Vec::new();
    let is_python_only = symbols.shows_python_only();
    let is_kernel = |address: &&u64| !is_python_only && **address >= FIRST_OF_KERNEL;
    for address in addresses.iter().filter(is_kernel) {
        let name = kernel.name(*address).map(|name| format!("{name}_[k]"));
        functions.push(symbols.intern(name.as_deref().unwrap_or("[kernel]")));
    }
    functions.extend(user);
    let is_cut = addresses.last() == Some(&TRUNCATED);
    if is_cut || functions.is_empty() {
        functions.push(symbols.intern("[truncated]"));
    }
    Some(functions.into())
}

/// Builds a profile with a one-frame stack for each address, to look up functions.
fn profile_of_addresses(process: &Process, addresses: &[u64]) -> Profile {
    let mut builder = CpuBuilder::new(Sampling::default());
    modules(process).for_each(|module| builder.module(module));
    builder.facts(Facts {
        pid: u32::try_from(process.pid).ok(),
        boot_id: proc::boot_id().map(|(_, text)| text),
        ..Facts::default()
    });
    for &address in addresses {
        let location = user_location(process, address, &mut builder);
        builder.stack(&[location], 1, 1, 0);
    }
    builder.finish()
}

impl Numbers for CpuNumbers {
    const HEADS: &'static [&'static str] = &["FLAT NOW", "NOW", "FLAT", "CPU"];
    const SORTS: &'static [Sort] = &[Sort::Now, Sort::FlatNow, Sort::Cpu, Sort::Flat];

    fn column(sort: Sort) -> Option<usize> {
        match sort {
            Sort::FlatNow => Some(0),
            Sort::Now => Some(1),
            Sort::Flat => Some(2),
            Sort::Cpu => Some(3),
            Sort::Live | Sort::Growth | Sort::Rate | Sort::Age => None,
        }
    }

    fn medium_columns(sorted: usize) -> [usize; 3] {
        match sorted {
            2 => [0, 1, 2],
            _ => [0, 1, 3],
        }
    }

    fn value(&self, sort: Sort) -> f64 {
        match sort {
            Sort::FlatNow => self.flat_cpus,
            Sort::Flat => self.flat_seconds,
            Sort::Cpu => self.cpu_seconds,
            _ => self.cpus,
        }
    }

    fn cells(&self) -> Vec<String> {
        let time = |seconds| text::short_time(Duration::from_secs_f64(seconds));
        vec![
            percent(self.flat_cpus),
            percent(self.cpus),
            time(self.flat_seconds),
            time(self.cpu_seconds),
        ]
    }

    fn summary(&self) -> Vec<String> {
        let all = Duration::from_secs_f64(self.cpu_seconds);
        vec![
            format!("{} of a CPU now", percent(self.cpus)),
            format!("{} in all", text::short_time(all)),
        ]
    }

    fn add(&mut self, stack: &Self, is_leaf: bool) {
        if is_leaf {
            self.flat_cpus += stack.cpus;
            self.flat_seconds += stack.cpu_seconds;
        }
        self.cpus += stack.cpus;
        self.cpu_seconds += stack.cpu_seconds;
    }

    fn with_derived(self) -> Self {
        self
    }

    fn is_nonzero(&self) -> bool {
        self.cpu_seconds > 0.0
    }
}

fn percent(cpus: f64) -> String {
    format!("{:.1} %", 100.0 * cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_frames_are_innermost_and_truncation_is_outermost() {
        let mut symbols = Symbols::new(0);
        let kernel = kernel::Symbols::default();
        let stack = [FIRST_OF_KERNEL + 5, TRUNCATED];
        let found = functions_of_stack(&mut symbols, &kernel, &stack).expect("none is looked up");
        let names: Vec<&str> = found.iter().map(|id| symbols.name(*id)).collect();
        assert_eq!(names, ["[kernel]", "[truncated]"]);
        assert_eq!(functions_of_stack(&mut symbols, &kernel, &[0x4000]), None);
        // If only Python frames are shown, the outermost frames may be missing, too.
        symbols.show(symbols::interpreter::FrameSelection::PythonOnly);
        let found = functions_of_stack(&mut symbols, &kernel, &stack).expect("none is looked up");
        let names: Vec<&str> = found.iter().map(|id| symbols.name(*id)).collect();
        assert_eq!(names, ["[native]", "[truncated]"]);
        assert_eq!(user_addresses(&[FIRST_OF_KERNEL, 7, TRUNCATED]).count(), 1);
    }

    #[test]
    fn equal_stacks_share_a_row_and_new_time_counts_as_now() {
        let mut recording = cpu::Recording::new(false);
        recording.add_new(i32::MAX);
        let mut cpu = CpuTable::default();
        let mut model = Model::new(0);
        let kernel = kernel::Symbols::default();
        let count = |ns| cpu::stacks::Count { samples: 1, ns };
        for round in 1..=2 {
            let process = recording.process(i32::MAX).expect("a process");
            for thread in [1, 2] {
                let stack = [FIRST_OF_KERNEL + u64::from(thread)].into_iter();
                process.stacks.add(thread, stack, count(500_000_000));
            }
            cpu.update(&mut model, process, &kernel, 2.0, true);
            assert_eq!(model.stacks.len(), 1);
            let used = model.total;
            assert_eq!((used.cpus, used.cpu_seconds), (0.5, f64::from(round)));
            assert_eq!(used.flat_seconds, used.cpu_seconds);
        }
        assert_eq!(
            model.total.cells(),
            ["50.0 %", "50.0 %", "2.00 s", "2.00 s"]
        );
    }
    #[test]
    fn gaps_are_summed_over_stacks() {
        let mut recording = cpu::Recording::new(false);
        recording.add_new(i32::MAX);
        let process = recording.process(i32::MAX).expect("a process");
        let count = |ns| cpu::stacks::Count { samples: 1, ns };
        let kernel = FIRST_OF_KERNEL + 1;
        // No process has this pid, so the addresses have no names.
        for (stack, ns) in [
            (&[kernel][..], 1),
            (&[TRUNCATED, kernel], 10),
            (&[0x4000], 100),
            (&[0x4000, kernel], 1000),
            (&[TRUNCATED, 0x4000], 10_000),
        ] {
            process.stacks.add(1, stack.iter().copied(), count(ns));
            process.counts.ns += ns;
        }
        process.counts.rest_ns = 7;
        process.counts.hidden_ns = 3;
        let mut cpu = CpuTable::default();
        let mut model = Model::new(i32::MAX);
        let kernel = kernel::Symbols::default();
        cpu.update(&mut model, process, &kernel, 1.0, true);
        let expected = Quality {
            total: 11_121,
            samples: 0,
            truncated: 10_010,
            not_sampled: 7,
            unnamed: 10_100,
            hidden: 3,
        };
        assert_eq!(cpu.quality, expected);
    }
}
