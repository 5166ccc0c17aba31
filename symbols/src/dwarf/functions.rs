//! The function that holds an address, and the calls in it that were inlined.

use gimli::{AttributeValue, EntriesRaw, Range, RangeListsOffset, Result, UnitOffset, UnitRef};

use super::residency::Residency;
use super::units::{Slice, Units};

/// Inlined calls inside each other.
const DEEPEST: usize = 1000;
/// Bytes between entries that are no longer on the same page.
const FAR: usize = 4096;

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

/// Finds the functions of a unit that hold the addresses, which are sorted.
pub fn find(
    units: &Units,
    number: usize,
    wanted: &[u64],
    found: &mut [Option<Function>],
) -> Result<()> {
    let opened = units.open(number)?;
    let unit = UnitRef::new(units.dwarf, &opened);
    let mut search = Search {
        number,
        unit,
        wanted,
        residency: &units.residency,
    };
    // Types, name spaces and functions of other addresses rarely hold functions
    // that have addresses: at first they are passed over.
    search.functions(found, true)?;
    if found.iter().any(Option::is_none) {
        search.functions(found, false)?;
    }
    search.all_inlined(found)
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
    /// Goes through all entries; where `hasty`, not into those that say where
    /// they end.
    fn functions(&mut self, found: &mut [Option<Function>], hasty: bool) -> Result<()> {
        let mut entries = self.unit.entries_raw(None)?;
        while !entries.is_empty() {
            self.residency.pass();
            let entry = entries.next_offset();
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            let function = abbreviation.tag() == gimli::DW_TAG_subprogram;
            let leave = hasty && abbreviation.has_children();
            if !function && !leave {
                entries.skip_attributes(abbreviation.attributes())?;
                continue;
            }
            let facts = self.facts(&mut entries, abbreviation)?;
            if function {
                self.each_range(&facts, |range| self.note(entry, range, found))?;
            }
            let ahead = |&s: &UnitOffset| s > entries.next_offset();
            if let Some(sibling) = facts.sibling.filter(ahead).filter(|_| leave) {
                if sibling.0 - entries.next_offset().0 > FAR {
                    self.residency.jump();
                }
                entries = self.unit.entries_raw(Some(sibling))?;
            }
        }
        Ok(())
    }

    fn facts(
        &self,
        entries: &mut EntriesRaw<'_, Slice<'a>>,
        abbreviation: &gimli::Abbreviation,
    ) -> Result<Facts> {
        let mut facts = Facts::default();
        for spec in abbreviation.attributes() {
            let attribute = entries.read_attribute(*spec)?;
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
        }
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
    fn all_inlined(&self, found: &mut [Option<Function>]) -> Result<()> {
        let mut functions: Vec<UnitOffset> = found.iter().flatten().map(|f| f.entry).collect();
        functions.sort_unstable();
        functions.dedup();
        let mut each = functions.into_iter();
        each.try_for_each(|function| self.inlined(function, found))
    }

    /// Finds the inlined calls of a function, each inside the one before.
    fn inlined(&self, function: UnitOffset, found: &mut [Option<Function>]) -> Result<()> {
        self.residency.jump();
        let mut entries = self.unit.entries_raw(Some(function))?;
        let Some(abbreviation) = entries.read_abbreviation()? else {
            return Ok(());
        };
        entries.skip_attributes(abbreviation.attributes())?;
        // Depths of the calls around.
        let mut around: Vec<isize> = Vec::new();
        while entries.next_depth() > 0 {
            self.residency.pass();
            let (depth, entry) = (entries.next_depth(), entries.next_offset());
            let Some(abbreviation) = entries.read_abbreviation()? else {
                continue;
            };
            while around.last().is_some_and(|&call| call >= depth) {
                around.pop();
            }
            match abbreviation.tag() {
                gimli::DW_TAG_inlined_subroutine => {
                    let facts = self.facts(&mut entries, abbreviation)?;
                    let call = Call {
                        unit: self.number,
                        entry,
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
                    around.push(depth);
                }
                tag => {
                    entries.skip_attributes(abbreviation.attributes())?;
                    // Another function inside.
                    while tag == gimli::DW_TAG_subprogram && entries.next_depth() > depth {
                        if let Some(inner) = entries.read_abbreviation()? {
                            entries.skip_attributes(inner.attributes())?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
