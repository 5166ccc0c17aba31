//! Builds a CPU profile stack by stack.

use std::collections::HashMap;

use super::{KERNEL, Sampling};
use crate::builder::LocationId;
use crate::maps;
use crate::marker::{
    NOT_SAMPLED_ADDRESS, RESIDENT_BEFORE_ADDRESS, TABLE_FULL_ADDRESS, TRUNCATED_ADDRESS,
};
use crate::profile::{Facts, Format, Function, Line, Location, Mapping, NO_MAPPING, Profile};
use crate::python::{PYTHON_START, python_mapping};
use crate::sampling::period;
use crate::value_type::ValueType;

/// A frame of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// User code, by its lookup address: for the leaf, and for a frame that a signal or the kernel
    /// interrupted, the instruction's address; for callers, the return address minus one.
    User(u64),
    /// Kernel function, by name.
    Kernel(&'a str),
    /// Line of a Python function; 0 if unknown.
    Python(&'a Function, u32),
    /// Outermost frame of a stack that could not be unwound to its end.
    Truncated,
    /// Only frame of samples for which a table had no room.
    TableFull,
    /// Only frame of time, or of memory, that no sample covers.
    NotSampled,
    /// Only frame of memory that was resident before the session began.
    ResidentBefore,
}

/// Builds a CPU [`Profile`].
///
/// ```
/// use profile::cpu::{CpuBuilder, Frame, Sampling};
/// let sampling = Sampling { engine: "perf_event".into(), rate: 99, ..Sampling::default() };
/// let mut builder = CpuBuilder::new(sampling);
/// let frames = [Frame::Kernel("do_sys_poll"), Frame::User(0x40_1233), Frame::Truncated];
/// let stack = frames.map(|frame| builder.location(frame));
/// builder.stack(&stack, 3, 30_303_030, 0);
/// let profile = builder.finish();
/// assert_eq!(profile.values_of(0), [3, 30_303_030]);
/// ```
pub struct CpuBuilder {
    profile: Profile,
    /// Index of the location of user code, by lookup address.
    user: HashMap<u64, u32>,
    /// Index of the location of each kernel function, by the function's index.
    kernel: HashMap<u32, u32>,
    /// Index of a kernel function, by name.
    kernel_names: HashMap<String, u32>,
    /// Index of a Python function.
    functions: HashMap<Function, u32>,
    /// Index of a Python location, by function index and line.
    python: HashMap<(u32, u32), u32>,
}

impl CpuBuilder {
    /// Creates a builder of an empty profile.
    pub fn new(sampling: Sampling) -> Self {
        let profile = Profile {
            facts: Facts {
                cpu: Some(sampling),
                ..Facts::default()
            },
            ..Profile::default()
        };
        let mut builder = Self::continue_from(profile);
        builder.set_columns();
        builder
    }

    /// Continues with a profile that has no locations yet.
    pub(super) fn continue_from(profile: Profile) -> Self {
        Self {
            profile,
            user: HashMap::new(),
            kernel: HashMap::new(),
            kernel_names: HashMap::new(),
            functions: HashMap::new(),
            python: HashMap::new(),
        }
    }

    /// Sets columns and period by the sampling facts.
    pub(super) fn set_columns(&mut self) {
        let profile = &mut self.profile;
        let sampling = profile.facts.cpu.get_or_insert_default();
        profile.format = Format::Cpu;
        profile.sample_types = sampling.mode.sample_types();
        profile.default_type = 1;
        profile.period = period(sampling.rate);
        profile.period_type = Some(ValueType::new(sampling.mode.name(), "nanoseconds"));
    }

    /// Returns the location of a frame, for [`CpuBuilder::stack`]; adds it if necessary.
    pub fn location(&mut self, frame: Frame) -> LocationId {
        LocationId(match frame {
            Frame::User(address) => self.user_location(address),
            Frame::Kernel(name) => self.named_kernel_location(name),
            Frame::Python(function, line) => self.python_location(function, line),
            Frame::Truncated => self.user_location(TRUNCATED_ADDRESS - 1),
            Frame::TableFull => self.user_location(TABLE_FULL_ADDRESS - 1),
            Frame::NotSampled => self.user_location(NOT_SAMPLED_ADDRESS - 1),
            Frame::ResidentBefore => self.user_location(RESIDENT_BEFORE_ADDRESS - 1),
        })
    }

    fn named_kernel_location(&mut self, name: &str) -> u32 {
        let name = if name.is_empty() { KERNEL } else { name };
        let function = match self.kernel_names.get(name) {
            Some(&known) => known,
            None => {
                let number = self.profile.functions.len() as u32;
                self.profile.functions.push(Function {
                    name: name.to_owned(),
                    ..Function::default()
                });
                self.kernel_names.insert(name.to_owned(), number);
                number
            }
        };
        self.kernel_location(function)
    }

    fn python_location(&mut self, function: &Function, line: u32) -> u32 {
        let function = match self.functions.get(function) {
            Some(&known) => known,
            None => {
                let number = self.profile.functions.len() as u32;
                self.profile.functions.push(function.clone());
                self.functions.insert(function.clone(), number);
                number
            }
        };
        if let Some(&known) = self.python.get(&(function, line)) {
            return known;
        }
        let location = self.user_location(PYTHON_START + self.python.len() as u64);
        self.python.insert((function, line), location);
        location
    }

    /// Returns the location of a kernel function by its index, or `None` if there is no such
    /// function.
    pub(super) fn checked_kernel_location(&mut self, function: u32) -> Option<u32> {
        let known = (function as usize) < self.profile.functions.len();
        known.then(|| self.kernel_location(function))
    }

    /// Returns the location of a kernel function by its index; adds it if necessary.
    fn kernel_location(&mut self, function: u32) -> u32 {
        let profile = &mut self.profile;
        *self.kernel.entry(function).or_insert_with(|| {
            let first_line = profile.lines.len() as u32;
            profile.lines.push(Line {
                function,
                ..Line::default()
            });
            push_location(profile, 0, first_line, 1)
        })
    }

    pub(super) fn user_location(&mut self, address: u64) -> u32 {
        let profile = &mut self.profile;
        let known = self.user.entry(address);
        *known.or_insert_with(|| push_location(profile, address, 0, 0))
    }

    /// Sets the source-level frames of an address.
    pub(super) fn set_lines(&mut self, address: u64, lines: Vec<Line>) {
        let number = self.user_location(address);
        let location = &mut self.profile.locations[number as usize];
        location.first_line = self.profile.lines.len() as u32;
        location.line_count = lines.len() as u32;
        self.profile.lines.extend(lines);
    }

    /// Adds the lines of Python locations, in the order in which a reader of the file adds them.
    fn add_python_lines(&mut self) {
        let python = self.python.iter();
        let mut all: Vec<_> = python.map(|(line, at)| (*at, *line)).collect();
        all.sort_unstable();
        for (location, (function, line)) in all {
            let place = &mut self.profile.locations[location as usize];
            place.first_line = self.profile.lines.len() as u32;
            place.line_count = 1;
            self.profile.lines.push(Line {
                function,
                line,
                column: 0,
            });
        }
    }

    /// Adds a stack, innermost first: its samples, the time that they stand for, and its thread (a
    /// 1-based index into [`Facts::threads`], 0 for other threads).
    ///
    /// Stacks should differ from each other, or be of different threads. Equal stacks are not
    /// merged. The locations must come from this builder; others cause wrong stacks, or a panic.
    pub fn stack(&mut self, locations: &[LocationId], samples: u64, ns: u64, thread: u32) {
        let last = locations.iter().map(|location| location.0 as usize).max();
        let location_count = self.profile.locations.len();
        assert!(last < Some(location_count), "a location of another builder");
        let profile = &mut self.profile;
        let frames = locations.iter().map(|location| location.0);
        profile.stacks.push_frames(frames);
        self.close(samples, ns, thread);
    }

    pub(super) fn push_frame(&mut self, location: u32) {
        self.profile.stacks.push_frame(location);
    }

    pub(super) fn close(&mut self, samples: u64, ns: u64, thread: u32) {
        let profile = &mut self.profile;
        profile.stacks.close();
        let value = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        profile.values.extend([value(samples), value(ns)]);
        profile.threads.push(thread);
    }

    /// Sets the facts. Keeps the sampling facts if `facts` has none. The maps text is converted to
    /// modules.
    pub fn facts(&mut self, facts: Facts) {
        let sampling = self.profile.facts.cpu.take();
        self.profile.facts = facts;
        let cpu = &mut self.profile.facts.cpu;
        *cpu = cpu.take().or(sampling);
        self.set_columns();
    }

    /// Adds a module of the process.
    pub fn module(&mut self, module: Mapping) {
        self.profile.mappings.push(module);
    }

    /// Returns the profile, with each location assigned to its module.
    pub fn finish(mut self) -> Profile {
        self.add_python_lines();
        let mut profile = self.profile;
        let text = std::mem::take(&mut profile.facts.maps_text);
        if !text.is_empty() {
            let modules = std::mem::take(&mut profile.mappings);
            profile.mappings = maps::with_modules(maps::parse(&text), modules);
        }
        if !self.python.is_empty() {
            profile.mappings.push(python_mapping());
        }
        maps::assign(&mut profile);
        if !self.kernel.is_empty() {
            let kernel = profile.mappings.len() as u32;
            profile.mappings.push(Mapping {
                path: KERNEL.into(),
                ..Mapping::default()
            });
            for &location in self.kernel.values() {
                profile.locations[location as usize].mapping = kernel;
            }
        }
        if profile.threads.iter().all(|&thread| thread == 0) {
            profile.threads.clear();
        }
        profile.label_stacks();
        profile
    }
}

/// Appends a location without a mapping.
fn push_location(profile: &mut Profile, address: u64, first_line: u32, line_count: u32) -> u32 {
    let number = profile.locations.len() as u32;
    profile.locations.push(Location {
        address,
        mapping: NO_MAPPING,
        first_line,
        line_count,
    });
    number
}
