//! Finds the function that covers an address, and the inlined calls around the address.

use gimli::{AttributeValue, Range, RangeListsOffset, Result, UnitOffset, UnitRef};

use super::candidates::UnitQuery;
use super::plan::{FoundEntry, SkipPlans, kind};
use super::residency::Residency;
use super::scan::StartAddresses;
use super::units::{Die, Slice, Units};
use super::walk::{Entry, Walk};

/// Maximum depth of nested inlined calls.
const MAX_INLINE_DEPTH: usize = 1000;

/// A function that covers an address.
#[derive(Clone)]
pub struct Function {
    /// Entry of the function.
    pub die: Die,
    /// Start of the function's range that covers the address.
    begin: u64,
    /// Inlined calls that cover the address, outermost first.
    pub inlined: Vec<Call>,
}

/// An inlined call.
#[derive(Clone, Copy)]
pub struct Call {
    /// Entry of the call.
    pub die: Die,
    /// Number of the source file that contains the call; `None` if unknown.
    pub file: Option<u64>,
    /// Line of the call; 0 if unknown.
    pub line: u32,
    /// Column of the call; 0 if unknown.
    pub column: u32,
}

/// Finds the functions of a unit that cover the addresses.
pub fn find(units: &Units, query: &UnitQuery, found: &mut [Option<Function>]) -> Result<()> {
    let number = query.unit;
    let wanted = query.wanted;
    let opened = units.open(number)?;
    let unit = units.unit_ref(number, &opened);
    let search = Search {
        number,
        unit,
        wanted,
        residency: &units.residency,
    };
    // How to skip the entries of each abbreviation.
    let mut plans = SkipPlans::new(&opened.abbreviations);
    search.find_by_start_addresses(&mut plans, &StartAddresses::new(query.ranges), found)?;
    // Types, namespaces and functions rarely contain functions that have addresses, so the
    // first pass skips their children.
    if found.iter().any(Option::is_none) {
        let complete = search.find_by_walk(&mut plans, found, true)?;
        if !complete && found.iter().any(Option::is_none) {
            search.find_by_walk(&mut plans, found, false)?;
        }
    }
    search.find_inlined_calls(&mut plans, found)?;
    // Looks the names up now, while the unit's pages are resident.
    found.iter().flatten().try_for_each(|function| {
        units.name(function.die)?;
        let mut calls = function.inlined.iter();
        calls.try_for_each(|call| units.name(call.die).map(drop))
    })
}

/// Attributes of an entry: address range, sibling, call site.
#[derive(Default)]
struct EntryAttributes {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    ranges: Option<RangeListsOffset>,
    sibling: Option<UnitOffset>,
    file: Option<u64>,
    line: u32,
    column: u32,
}

/// The search in one unit.
struct Search<'u, 'a> {
    number: usize,
    unit: UnitRef<'u, Slice<'a>>,
    wanted: &'u [u64],
    residency: &'u Residency<'a>,
}

impl<'u, 'a> Search<'u, 'a> {
    /// Finds functions that start where one of the unit's ranges does and do not exceed it, without
    /// walking through all entries: searches the unit's bytes for the start addresses.
    fn find_by_start_addresses(
        &self,
        plans: &mut SkipPlans<'u>,
        starts: &StartAddresses,
        found: &mut [Option<Function>],
    ) -> Result<()> {
        let base = self.unit.header.root_offset();
        let bytes = self.unit.header.range_from(base..)?.slice();
        let functions = plans.functions(&self.unit.header);
        let mut left = starts.count();
        starts.each_position(bytes, self.residency, |at, range| {
            let entries = functions
                .iter()
                .filter_map(|abbreviation| abbreviation.entry(bytes, at));
            let fits = |entry: &FoundEntry| (1..=range.end - range.begin).contains(&entry.size);
            let mut entries = entries.filter(fits);
            // If the bytes before the address fit several abbreviations, the walk decides.
            if let (Some(entry), None) = (entries.next(), entries.next()) {
                let begin = range.begin;
                let end = begin + entry.size;
                let offset = UnitOffset(base.0 + entry.offset);
                self.add(offset, Range { begin, end }, found);
                left -= 1;
            }
            left > 0
        });
        Ok(())
    }

    /// Walks through all entries. With `skip_children`, skips the children of entries with a
    /// sibling reference. Returns true if no entry was skipped.
    fn find_by_walk(
        &self,
        plans: &mut SkipPlans<'u>,
        found: &mut [Option<Function>],
        skip_children: bool,
    ) -> Result<bool> {
        let kinds = if skip_children {
            kind::WITH_CODE | kind::SIBLING
        } else {
            kind::WITH_CODE
        };
        let mut complete = true;
        let mut walk = Walk::new(self.unit, self.residency)?;
        while let Some(entry) = walk.next(plans, kinds, isize::MIN)? {
            if entry.has_kind(kind::WITH_CODE) {
                let mut add = |range| self.add(entry.offset, range, found);
                match walk.range(&entry) {
                    Some(range) => add(range),
                    None => self.each_range(&self.attributes(&walk, &entry)?, add)?,
                }
            }
            if !skip_children || !entry.has_kind(kind::SIBLING) {
                continue;
            }
            let sibling = match walk.sibling(&entry) {
                Some(sibling) => Some(sibling),
                None => self.attributes(&walk, &entry)?.sibling,
            };
            if let Some(sibling) = sibling.filter(|&s| s > walk.next_offset()) {
                walk.seek(sibling)?;
                complete = false;
            }
        }
        Ok(complete)
    }

    /// Reads the attributes of an entry.
    fn attributes(&self, walk: &Walk<'u, 'a>, entry: &Entry<'u>) -> Result<EntryAttributes> {
        let mut attributes = EntryAttributes::default();
        walk.read(entry, |attribute| {
            let value = attribute.value();
            match (attribute.name(), value) {
                (gimli::DW_AT_sibling, AttributeValue::UnitRef(at)) => {
                    attributes.sibling = Some(at)
                }
                (gimli::DW_AT_low_pc, value) => attributes.low = self.unit.attr_address(value)?,
                (gimli::DW_AT_high_pc, AttributeValue::Udata(size)) => attributes.size = Some(size),
                (gimli::DW_AT_high_pc, value) => attributes.high = self.unit.attr_address(value)?,
                (gimli::DW_AT_ranges, value) => {
                    attributes.ranges = self.unit.attr_ranges_offset(value)?
                }
                // Before version 5, file 0 means that the file is unknown.
                (gimli::DW_AT_call_file, AttributeValue::FileIndex(file)) => {
                    let real = file > 0 || self.unit.header.version() >= 5;
                    attributes.file = real.then_some(file);
                }
                (gimli::DW_AT_call_line, _) => {
                    attributes.line = attribute.udata_value().unwrap_or(0) as u32;
                }
                (gimli::DW_AT_call_column, _) => {
                    attributes.column = attribute.udata_value().unwrap_or(0) as u32;
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(attributes)
    }

    /// Passes the address ranges of an entry to `visit`.
    fn each_range(&self, attributes: &EntryAttributes, mut visit: impl FnMut(Range)) -> Result<()> {
        if let Some(offset) = attributes.ranges {
            let mut ranges = self.unit.ranges(offset)?;
            while let Some(range) = ranges.next()? {
                visit(range);
            }
        } else if let Some(begin) = attributes.low {
            let size = attributes.size.map(|size| begin.saturating_add(size));
            if let Some(end) = attributes.high.or(size) {
                visit(Range { begin, end });
            }
        }
        Ok(())
    }

    /// Returns an entry of this unit.
    fn die(&self, entry: UnitOffset) -> Die {
        Die {
            unit: self.number,
            entry,
        }
    }

    /// Returns the indices of the addresses in a range.
    fn indices_in(&self, range: Range) -> std::ops::Range<usize> {
        let first = self.wanted.partition_point(|&a| a < range.begin);
        let rest = self.wanted[first..].iter();
        first..first + rest.take_while(|&&a| a < range.end).count()
    }

    /// Makes a function the result for the addresses in one of its ranges, unless the known
    /// function's range starts later or at the same address.
    fn add(&self, entry: UnitOffset, range: Range, found: &mut [Option<Function>]) {
        for at in self.indices_in(range) {
            let better = |known: &Function| known.begin < range.begin;
            if found[at].as_ref().is_none_or(better) {
                found[at] = Some(Function {
                    die: self.die(entry),
                    begin: range.begin,
                    inlined: Vec::new(),
                });
            }
        }
    }

    /// Finds the inlined calls, walking once through each function.
    fn find_inlined_calls(
        &self,
        plans: &mut SkipPlans<'u>,
        found: &mut [Option<Function>],
    ) -> Result<()> {
        let mut functions: Vec<UnitOffset> = found.iter().flatten().map(|f| f.die.entry).collect();
        functions.sort_unstable();
        functions.dedup();
        let mut walk = Walk::new(self.unit, self.residency)?;
        for function in functions {
            walk.seek(function)?;
            self.find_calls_of_next_function(&mut walk, plans, found)?;
        }
        Ok(())
    }

    /// Finds the inlined calls of the function at the walk's position, outermost first.
    fn find_calls_of_next_function(
        &self,
        walk: &mut Walk<'u, 'a>,
        plans: &mut SkipPlans<'u>,
        found: &mut [Option<Function>],
    ) -> Result<()> {
        let function = walk.next_offset();
        // Skips the function's own entry, which has depth 0.
        walk.next(plans, kind::FUNCTION, -1)?;
        // Depths of the enclosing calls.
        let mut enclosing: Vec<isize> = Vec::new();
        while let Some(entry) = walk.next(plans, kind::CALL | kind::FUNCTION, 0)? {
            // Calls at the minimum depth since the last entry, or deeper, have ended.
            while enclosing
                .last()
                .is_some_and(|&call| call >= entry.min_depth)
            {
                enclosing.pop();
            }
            if entry.has_kind(kind::FUNCTION) {
                // Skips a nested function: its calls are not those of the outer one.
                walk.next(plans, 0, entry.depth)?;
                continue;
            }
            let attributes = self.attributes(walk, &entry)?;
            let call = Call {
                die: self.die(entry.offset),
                file: attributes.file,
                line: attributes.line,
                column: attributes.column,
            };
            self.each_range(&attributes, |range| {
                // A deeper nesting means corrupt input.
                if enclosing.len() >= MAX_INLINE_DEPTH {
                    return;
                }
                for covering in &mut found[self.indices_in(range)] {
                    // One call per depth.
                    if let Some(covering) = covering
                        && covering.die.entry == function
                        && covering.inlined.len() == enclosing.len()
                    {
                        covering.inlined.push(call);
                    }
                }
            })?;
            if entry.plan.has_children {
                enclosing.push(entry.depth);
            }
        }
        Ok(())
    }
}
