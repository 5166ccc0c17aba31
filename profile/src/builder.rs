//! Builds a heap profile stack by stack.

use std::collections::HashMap;

use crate::detail::Detail;
use crate::frames::GO_FRAMES;
use crate::intern::Interner;
use crate::leaks::Lost;
use crate::maps;
use crate::profile::{Facts, Format, Function, Line, Location, Mapping, NO_MAPPING, Profile};
use crate::python::{PYTHON_START, python_mapping};
use crate::scan::Scan;
use crate::value_type::{ValueType, heap_sample_types};

/// Builds a heap [`Profile`] from stacks of return addresses.
///
/// ```
/// use profile::{Detail, ProfileBuilder};
/// let mut builder = ProfileBuilder::new(1024);
/// let detail = Detail { alloc_samples: 1, alloc_objects: 1.0, alloc_bytes: 4096.0, ..Detail::default() };
/// builder.stack([0x40_1234, 0x40_1000], &detail);
/// let profile = builder.finish();
/// assert_eq!(profile.values_of(0), [1, 4096, 1, 4096]);
/// ```
pub struct ProfileBuilder {
    pub(crate) profile: Profile,
    pub(crate) interner: Interner,
    /// Index of each function that was added with a name.
    pub(crate) functions: HashMap<Function, u32>,
    /// Python locations, by function index and line.
    pub(crate) python: HashMap<(u32, u32), LocationId>,
}

/// Index of a location in one [`ProfileBuilder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocationId(pub(crate) u32);

impl ProfileBuilder {
    /// Creates a builder of a heap profile sampled once every `interval` bytes.
    pub fn new(interval: u64) -> Self {
        let profile = Profile {
            format: Format::Dump,
            sample_types: heap_sample_types(),
            default_type: 3, // bytes in use
            period: interval.min(i64::MAX as u64) as i64,
            period_type: Some(ValueType::new("space", "bytes")),
            drop_frames: crate::frames::ALLOCATOR_FRAMES.clone(),
            split_by_size_class: true,
            ..Profile::default()
        };
        Self {
            profile,
            interner: Interner::new(),
            functions: HashMap::new(),
            python: HashMap::new(),
        }
    }

    /// Adds a stack of return addresses, innermost first. A pseudo-frame is added by its address:
    /// [`TRUNCATED_ADDRESS`](crate::TRUNCATED_ADDRESS) after the outermost known frame,
    /// [`TABLE_FULL_ADDRESS`](crate::TABLE_FULL_ADDRESS) as the only frame.
    ///
    /// Stacks should differ from each other, or have objects of different size classes or threads.
    /// Equal stacks are not merged.
    pub fn stack(&mut self, addresses: impl IntoIterator<Item = u64>, detail: &Detail) {
        for address in addresses {
            self.push(address.wrapping_sub(1));
        }
        self.close(detail);
    }

    /// Ends the stack under construction, with its values.
    fn close(&mut self, detail: &Detail) {
        self.profile.stacks.close();
        self.profile.values.extend(detail.values());
        self.profile.details.push(*detail);
    }

    /// Returns the location of a return address, for [`ProfileBuilder::stack_of`]; adds it if
    /// necessary. A caller whose stacks form a tree needs one call per node instead of one per
    /// frame.
    pub fn location(&mut self, address: u64) -> LocationId {
        let lookup = address.wrapping_sub(1);
        LocationId(intern(&mut self.profile, &mut self.interner, lookup))
    }

    /// Adds a stack by its locations, innermost first; otherwise like [`ProfileBuilder::stack`].
    ///
    /// The locations must come from this builder. Others cause wrong stacks, or a panic.
    pub fn stack_of(&mut self, locations: &[LocationId], detail: &Detail) {
        let last = locations.iter().map(|location| location.0 as usize).max();
        let location_count = self.profile.locations.len();
        assert!(last < Some(location_count), "a location of another builder");
        let frames = locations.iter().map(|location| location.0);
        self.profile.stacks.push_frames(frames);
        self.close(detail);
    }

    /// Sets the thread of the stack added last: a 1-based index into [`Facts::threads`].
    pub fn thread(&mut self, number: u32) {
        let others = self.profile.stacks.len().saturating_sub(1);
        self.profile.threads.resize(others, 0);
        self.profile.threads.push(number);
    }

    /// Sets how the objects of the stack added last are lost.
    pub fn lost(&mut self, lost: Lost) {
        let others = self.profile.stacks.len().saturating_sub(1);
        self.profile.losses.resize(others, Lost::default());
        self.profile.losses.push(lost);
    }

    /// Sets the dump metadata. The maps text is written as given; if it is empty, one is generated
    /// from the modules.
    pub fn facts(&mut self, facts: Facts) {
        self.profile.facts = facts;
        if self.profile.is_of_go() {
            GO_FRAMES.clone_into(&mut self.profile.drop_frames);
            self.profile.split_by_size_class = false;
        }
    }

    /// Returns the location of a line of a Python function, for [`ProfileBuilder::stack_of`]; adds
    /// it if necessary.
    pub fn python_location(&mut self, function: Function, line: u32) -> LocationId {
        let next = self.profile.functions.len() as u32;
        let number = *self.functions.entry(function.clone()).or_insert(next);
        if number == next {
            self.profile.functions.push(function);
        }
        if let Some(&known) = self.python.get(&(number, line)) {
            return known;
        }
        let address = PYTHON_START + self.python.len() as u64;
        let location = intern(&mut self.profile, &mut self.interner, address);
        let place = &mut self.profile.locations[location as usize];
        place.first_line = self.profile.lines.len() as u32;
        place.line_count = 1;
        self.profile.lines.push(Line {
            function: number,
            line,
            column: 0,
        });
        self.python.insert((number, line), LocationId(location));
        LocationId(location)
    }

    /// Adds a module of the target.
    pub fn module(&mut self, module: Mapping) {
        self.profile.mappings.push(module);
    }

    /// Returns the profile, with each location assigned to its module.
    pub fn finish(self) -> Profile {
        let mut profile = self.profile;
        if !profile.facts.maps_text.is_empty() {
            let modules = std::mem::take(&mut profile.mappings);
            profile.mappings = maps::with_modules(maps::parse(&profile.facts.maps_text), modules);
        }
        if !self.python.is_empty() {
            profile.mappings.push(python_mapping());
        }
        maps::assign(&mut profile);
        if !profile.threads.is_empty() {
            profile.threads.resize(profile.stacks.len(), 0);
        }
        if !profile.losses.is_empty() {
            let count = profile.stacks.len();
            profile.losses.resize(count, Lost::default());
        }
        profile.label_stacks();
        profile
    }

    /// Appends a frame by its lookup address to the stack under construction.
    fn push(&mut self, lookup: u64) {
        let number = intern(&mut self.profile, &mut self.interner, lookup);
        self.profile.stacks.push_frame(number);
    }
}

/// Returns the index of the location with a lookup address; adds it if necessary.
#[inline]
pub(crate) fn intern(profile: &mut Profile, interner: &mut Interner, lookup: u64) -> u32 {
    let (number, new) = interner.intern(lookup);
    if new {
        profile.locations.push(Location {
            address: lookup,
            mapping: NO_MAPPING,
            first_line: 0,
            line_count: 0,
        });
    }
    number
}

/// Parses a line ` 0x… 0x…` of return addresses, and appends the frames to the stack under
/// construction. Returns `None` if an address is malformed.
pub(crate) fn push_addresses(
    profile: &mut Profile,
    interner: &mut Interner,
    scratch: &mut Vec<u64>,
    scan: &mut Scan,
) -> Option<()> {
    scratch.clear();
    while !scan.skip_spaces().rest().is_empty() {
        scratch.push(scan.hex()?.wrapping_sub(1));
    }
    for &lookup in scratch.iter() {
        let number = intern(profile, interner, lookup);
        profile.stacks.push_frame(number);
    }
    Some(())
}
