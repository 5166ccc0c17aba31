//! The function that holds an address, and the calls in it that were inlined.

use gimli::{AttributeValue, Range, RangeListsOffset, Result, UnitOffset, UnitRef};

use super::plan::{Plans, kind};
use super::residency::Residency;
use super::scan::Beginnings;
use super::units::{Asked, Slice, Units};
use super::walk::{Entry, Walk};

/// Inlined calls inside each other.
const DEEPEST: usize = 1000;

/// A function that holds an address.
#[derive(Clone)]
pub struct Function {
    /// Number of the unit.
    pub unit: usize,
    /// Offset of the entry.
    pub entry: UnitOffset,
    /// Start of the range that the address is in.
    begin: u64,
    /// The inlined calls that the address is in, outermost first.
    pub inlined: Vec<Call>,
}

/// A call that was inlined.
#[derive(Clone, Copy)]
pub struct Call {
    /// Number of the unit.
    pub unit: usize,
    /// Offset of the entry.
    pub entry: UnitOffset,
    /// Number of the source file that the call is in.
    pub file: Option<u64>,
    /// Line of the call; 0 when unknown.
    pub line: u32,
    /// Column of the call; 0 when unknown.
    pub column: u32,
}

/// Finds the functions of a unit that hold the addresses.
pub fn find(units: &Units, asked: &Asked, found: &mut [Option<Function>]) -> Result<()> {
    let (number, wanted) = (asked.unit, asked.wanted);
    let opened = units.open(number)?;
    let unit = UnitRef::new(units.dwarf, &opened);
    let search = Search {
        number,
        unit,
        wanted,
        residency: &units.residency,
    };
    let mut plans = Plans::new(&opened.abbreviations);
    search.beginnings(&mut plans, &Beginnings::new(asked.ranges), found)?;
    // Types, name spaces and functions of other addresses rarely hold functions
    // that have addresses: at first they are passed over.
    if found.iter().any(Option::is_none) {
        let complete = search.functions(&mut plans, found, true)?;
        if !complete && found.iter().any(Option::is_none) {
            search.functions(&mut plans, found, false)?;
        }
    }
    search.all_inlined(&mut plans, found)?;
    // Now that the unit is in memory.
    found.iter().flatten().try_for_each(|function| {
        units.name(number, function.entry)?;
        let mut calls = function.inlined.iter();
        calls.try_for_each(|call| units.name(number, call.entry).map(drop))
    })
}

/// Attributes of an entry: addresses, call site, sibling.
#[derive(Default)]
struct Facts {
    low: Option<u64>,
    high: Option<u64>,
    size: Option<u64>,
    ranges: Option<RangeListsOffset>,
    sibling: Option<UnitOffset>,
    file: Option<u64>,
    line: u32,
    column: u32,
}

struct Search<'u, 'a> {
    number: usize,
    unit: UnitRef<'u, Slice<'a>>,
    wanted: &'u [u64],
    residency: &'u Residency<'a>,
}

impl<'u, 'a> Search<'u, 'a> {
    /// Looks for functions that begin where the unit's ranges do, and do not go beyond those.
    fn beginnings(
        &self,
        plans: &mut Plans<'u>,
        beginnings: &Beginnings,
        found: &mut [Option<Function>],
    ) -> Result<()> {
        let base = self.unit.header.root_offset();
        let bytes = self.unit.header.range_from(base..)?.slice();
        let placed = plans.placed(&self.unit.header);
        let mut left = beginnings.count();
        beginnings.places(bytes, self.residency, |at, range| {
            let mut entries = placed.iter().filter_map(|own| own.entry(bytes, at));
            let fits = |size: &u64| (1..=range.end - range.begin).contains(size);
            if let Some((entry, size)) = entries.find(|(_, size)| fits(size)) {
                let begin = range.begin;
                let end = begin + size;
                self.note(UnitOffset(base.0 + entry), Range { begin, end }, found);
                left -= 1;
            }
            left > 0
        });
        Ok(())
    }

    /// Goes through all entries; where `hasty`, not into those that say where
    /// they end. Says whether it has seen all of them.
    fn functions(
        &self,
        plans: &mut Plans<'u>,
        found: &mut [Option<Function>],
        hasty: bool,
    ) -> Result<bool> {
        let kinds = if hasty {
            kind::PLACED | kind::SIBLING
        } else {
            kind::PLACED
        };
        let mut complete = true;
        let mut walk = Walk::new(self.unit, self.residency)?;
        while let Some(entry) = walk.next(plans, kinds, isize::MIN)? {
            if entry.is(kind::PLACED) {
                let mut note = |range| self.note(entry.offset, range, found);
                match walk.range(&entry) {
                    Some(range) => note(range),
                    None => self.each_range(&self.facts(&walk, &entry)?, note)?,
                }
            }
            if !hasty || !entry.is(kind::SIBLING) {
                continue;
            }
            let sibling = match walk.sibling(&entry) {
                Some(sibling) => Some(sibling),
                None => self.facts(&walk, &entry)?.sibling,
            };
            if let Some(sibling) = sibling.filter(|&s| s > walk.next_offset()) {
                walk.go(sibling)?;
                complete = false;
            }
        }
        Ok(complete)
    }

    fn facts(&self, walk: &Walk<'u, 'a>, entry: &Entry<'u>) -> Result<Facts> {
        let mut facts = Facts::default();
        walk.read(entry, |attribute| {
            let value = attribute.value();
            match (attribute.name(), value) {
                (gimli::DW_AT_sibling, AttributeValue::UnitRef(at)) => facts.sibling = Some(at),
                (gimli::DW_AT_low_pc, value) => facts.low = self.unit.attr_address(value)?,
                (gimli::DW_AT_high_pc, AttributeValue::Udata(size)) => facts.size = Some(size),
                (gimli::DW_AT_high_pc, value) => facts.high = self.unit.attr_address(value)?,
                (gimli::DW_AT_ranges, value) => {
                    facts.ranges = self.unit.attr_ranges_offset(value)?
                }
                // Before version 5 there is no file of number 0.
                (gimli::DW_AT_call_file, AttributeValue::FileIndex(file)) => {
                    let real = file > 0 || self.unit.header.version() >= 5;
                    facts.file = real.then_some(file);
                }
                (gimli::DW_AT_call_line, _) => {
                    facts.line = attribute.udata_value().unwrap_or(0) as u32;
                }
                (gimli::DW_AT_call_column, _) => {
                    facts.column = attribute.udata_value().unwrap_or(0) as u32;
                }
                _ => {}
            }
            Ok(())
        })?;
        Ok(facts)
    }

    fn each_range(&self, facts: &Facts, mut each: impl FnMut(Range)) -> Result<()> {
        if let Some(offset) = facts.ranges {
            let mut ranges = self.unit.ranges(offset)?;
            while let Some(range) = ranges.next()? {
                each(range);
            }
        } else if let Some(begin) = facts.low {
            let size = facts.size.map(|size| begin.saturating_add(size));
            if let Some(end) = facts.high.or(size) {
                each(Range { begin, end });
            }
        }
        Ok(())
    }

    /// Indices of the addresses in a range.
    fn inside(&self, range: Range) -> std::ops::Range<usize> {
        let first = self.wanted.partition_point(|&a| a < range.begin);
        let rest = self.wanted[first..].iter();
        first..first + rest.take_while(|&&a| a < range.end).count()
    }

    fn note(&self, entry: UnitOffset, range: Range, found: &mut [Option<Function>]) {
        for at in self.inside(range) {
            let better = |known: &Function| known.begin < range.begin;
            if found[at].as_ref().is_none_or(better) {
                found[at] = Some(Function {
                    unit: self.number,
                    entry,
                    begin: range.begin,
                    inlined: Vec::new(),
                });
            }
        }
    }

    /// Finds the inlined calls, going once through each function.
    fn all_inlined(&self, plans: &mut Plans<'u>, found: &mut [Option<Function>]) -> Result<()> {
        let mut functions: Vec<UnitOffset> = found.iter().flatten().map(|f| f.entry).collect();
        functions.sort_unstable();
        functions.dedup();
        let mut walk = Walk::new(self.unit, self.residency)?;
        for function in functions {
            walk.go(function)?;
            self.inlined(&mut walk, plans, found)?;
        }
        Ok(())
    }

    /// Finds the inlined calls of a function, each inside the one before.
    fn inlined(
        &self,
        walk: &mut Walk<'u, 'a>,
        plans: &mut Plans<'u>,
        found: &mut [Option<Function>],
    ) -> Result<()> {
        let function = walk.next_offset();
        // The function itself.
        walk.next(plans, kind::FUNCTION, -1)?;
        // Depths of the calls around.
        let mut around: Vec<isize> = Vec::new();
        while let Some(entry) = walk.next(plans, kind::CALL | kind::FUNCTION, 0)? {
            while around.last().is_some_and(|&call| call >= entry.top) {
                around.pop();
            }
            if entry.is(kind::FUNCTION) {
                // Another function inside.
                walk.next(plans, 0, entry.depth)?;
                continue;
            }
            let facts = self.facts(walk, &entry)?;
            let call = Call {
                unit: self.number,
                entry: entry.offset,
                file: facts.file,
                line: facts.line,
                column: facts.column,
            };
            self.each_range(&facts, |range| {
                for own in &mut found[self.inside(range)] {
                    let own = own.as_mut().filter(|f| f.entry == function);
                    // One at each depth, and those without end are a lie.
                    let next = |f: &&mut Function| f.inlined.len() == around.len();
                    if let Some(own) = own.filter(next).filter(|_| around.len() < DEEPEST) {
                        own.inlined.push(call);
                    }
                }
            })?;
            if entry.plan.has_children {
                around.push(entry.depth);
            }
        }
        Ok(())
    }
}
