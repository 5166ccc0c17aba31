//! Units of debug information: finds those that may cover an address, and the names of their
//! entries.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use foldhash::HashMap;
use gimli::{
    Attribute, AttributeValue, Dwarf, EndianSlice, LittleEndian, Range, Result, Unit, UnitHeader,
    UnitOffset, UnitRef, UnitType,
};

use super::residency::Residency;
use super::rows;

/// Contents of a section.
pub type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Maximum number of references to follow from an entry to the one with its name.
const MAX_NAME_REFERENCES: usize = 16;

/// Languages in which functions of the same name are distinguished by their scopes.
const WITH_SCOPES: [gimli::DwLang; 8] = [
    gimli::DW_LANG_C_plus_plus,
    gimli::DW_LANG_C_plus_plus_03,
    gimli::DW_LANG_C_plus_plus_11,
    gimli::DW_LANG_C_plus_plus_14,
    gimli::DW_LANG_C_plus_plus_17,
    gimli::DW_LANG_C_plus_plus_20,
    // C++23, which gimli has no name for.
    gimli::DwLang(0x3a),
    gimli::DW_LANG_ObjC_plus_plus,
];

/// Maximum number of units that may cover one address. More occur only in corrupt files.
const MAX_UNITS_PER_ADDRESS: usize = 100;

/// All units of a file, parsed on first use.
pub struct Units<'a> {
    /// Debug information of the file.
    pub dwarf: &'a Dwarf<Slice<'a>>,
    /// Keeps the file's resident pages bounded.
    pub residency: Residency<'a>,
    headers: Vec<UnitHeader<Slice<'a>>>,
    /// Parsed units, by number.
    open: RefCell<Vec<Option<ParsedUnit<'a>>>>,
    /// Names by entry.
    names: RefCell<HashMap<Die, Rc<str>>>,
    /// [`Name::scoped`] by entry. Few entries have one.
    scoped: RefCell<HashMap<Die, Die>>,
    /// By unit number: set if names need their scopes, as in C++.
    has_scopes: RefCell<HashMap<usize, bool>>,
}

/// An entry: the number of its unit, and the offset in the unit.
pub type Die = (usize, UnitOffset);

/// Name of an entry.
pub struct Name {
    /// Linkage name, otherwise the name in the source; empty if there is none.
    pub text: Rc<str>,
    /// Entry whose scopes qualify `text`. `None` if `text` is a complete name, such as a linkage
    /// name.
    pub scoped: Option<Die>,
}

/// A unit that has been parsed.
struct ParsedUnit<'a> {
    unit: Rc<Unit<Slice<'a>>>,
    /// False once the abbreviations were freed.
    has_abbreviations: bool,
}

/// Units that may cover each address.
pub struct Candidates {
    /// By address; units whose range starts last come first.
    by_address: Vec<Vec<Candidate>>,
}

/// A unit that may cover an address, and its range that does.
#[derive(Clone, Copy)]
struct Candidate {
    unit: usize,
    range: Range,
}

/// Addresses to look up in one unit.
pub struct UnitQuery<'w> {
    /// Number of the unit.
    pub unit: usize,
    /// The addresses, sorted.
    pub wanted: &'w [u64],
    /// Range of the unit that covers each address.
    pub ranges: &'w [Range],
}

impl<'a> Units<'a> {
    /// Reads the headers of all units that may have code, which excludes type units.
    pub fn new(dwarf: &'a Dwarf<Slice<'a>>, residency: Residency<'a>) -> Result<Self> {
        let mut headers = Vec::new();
        let mut all = dwarf.units();
        while let Some(header) = all.next()? {
            if !matches!(
                header.type_(),
                UnitType::Type { .. } | UnitType::SplitType { .. }
            ) {
                headers.push(header);
            }
        }
        Ok(Self {
            dwarf,
            residency,
            open: RefCell::new(headers.iter().map(|_| None).collect()),
            headers,
            names: RefCell::default(),
            scoped: RefCell::default(),
            has_scopes: RefCell::default(),
        })
    }

    /// Returns a unit by its number.
    pub fn open(&self, number: usize) -> Result<Rc<Unit<Slice<'a>>>> {
        self.opened(number, true)
    }

    /// Returns a unit by its number, for its line table. Its abbreviations may have been freed.
    pub fn open_for_lines(&self, number: usize) -> Result<Rc<Unit<Slice<'a>>>> {
        self.opened(number, false)
    }

    /// Frees a unit's abbreviations, which are most of its memory. They are parsed again if
    /// needed.
    pub fn forget_abbreviations(&self, number: usize) {
        if let Some(Some(own)) = self.open.borrow_mut().get_mut(number)
            && let Some(unit) = Rc::get_mut(&mut own.unit)
        {
            unit.abbreviations = Arc::default();
            own.has_abbreviations = false;
        }
    }

    /// Returns a unit, with its abbreviations if `whole`.
    fn opened(&self, number: usize, whole: bool) -> Result<Rc<Unit<Slice<'a>>>> {
        if let Some(Some(own)) = self.open.borrow().get(number)
            && (own.has_abbreviations || !whole)
        {
            return Ok(Rc::clone(&own.unit));
        }
        let header = self
            .headers
            .get(number)
            .ok_or(gimli::Error::MissingUnitDie)?;
        let unit = Rc::new(self.dwarf.unit(*header)?);
        if unit.dwo_id.is_some() {
            // A skeleton unit: the rest is in a .dwo file.
            return Err(gimli::Error::MissingSplitUnit);
        }
        self.open.borrow_mut()[number] = Some(ParsedUnit {
            unit: Rc::clone(&unit),
            has_abbreviations: true,
        });
        Ok(unit)
    }

    /// Finds the units that may cover each of the addresses, which are sorted.
    pub fn candidates(&self, wanted: &[u64]) -> Result<Candidates> {
        let mut holding: Vec<Vec<Candidate>> = vec![Vec::new(); wanted.len()];
        let mut add = |begin: u64, end: u64, unit: usize| {
            let first = wanted.partition_point(|&a| a < begin);
            let inside = wanted[first..].iter().take_while(|&&a| a < end);
            for (at, _) in inside.enumerate() {
                let candidates = &mut holding[first + at];
                if candidates.len() < MAX_UNITS_PER_ADDRESS {
                    let range = Range { begin, end };
                    candidates.push(Candidate { unit, range });
                }
            }
        };
        let listed = self.add_aranges(&mut add)?;
        for (number, header) in self.headers.iter().enumerate() {
            if listed[number] || matches!(header.type_(), UnitType::Partial) {
                continue;
            }
            let unit = self.open(number)?;
            let mut ranges = self.dwarf.unit_ranges(&unit)?;
            let mut any = false;
            while let Some(range) = ranges.next()? {
                any |= range.begin < range.end;
                add(range.begin, range.end, number);
            }
            if !any {
                sequences(&unit, &self.residency, |begin, end| {
                    add(begin, end, number);
                })?;
            }
        }
        for found in &mut holding {
            let last = |own: &Candidate| Reverse((own.range.begin, own.unit, own.range.end));
            found.sort_unstable_by_key(last);
            found.dedup_by_key(|own| own.unit);
        }
        Ok(Candidates {
            by_address: holding,
        })
    }

    /// Adds the ranges of `.debug_aranges`. Returns for each unit whether it is listed there.
    fn add_aranges(&self, add: &mut impl FnMut(u64, u64, usize)) -> Result<Vec<bool>> {
        let mut listed = vec![false; self.headers.len()];
        let mut sets = self.dwarf.debug_aranges.headers();
        while let Some(set) = sets.next()? {
            let Ok(unit) = self.number_at(set.debug_info_offset().0) else {
                continue;
            };
            let mut entries = set.entries();
            loop {
                match entries.next() {
                    Ok(Some(entry)) if entry.length() > 0 => {
                        listed[unit] = true;
                        add(entry.range().begin, entry.range().end, unit);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    // A range that overflows the address space; the iterator
                    // continues or ends.
                    Err(_) => {}
                }
            }
        }
        Ok(listed)
    }

    /// Finds the unit whose header is at this offset.
    fn number_at(&self, offset: usize) -> std::result::Result<usize, usize> {
        self.headers.binary_search_by_key(&offset, start)
    }

    /// Returns the name of an entry.
    pub fn name(&self, unit: usize, entry: UnitOffset) -> Result<Name> {
        let die = (unit, entry);
        if let Some(text) = self.names.borrow().get(&die) {
            return Ok(Name {
                text: Rc::clone(text),
                scoped: self.scoped.borrow().get(&die).copied(),
            });
        }
        let name = self.find_name(die)?;
        let text = Rc::clone(&name.text);
        self.names.borrow_mut().insert(die, text);
        if let Some(scoped) = name.scoped {
            self.scoped.borrow_mut().insert(die, scoped);
        }
        Ok(name)
    }

    /// Finds the name of an entry, following references to its origin or specification.
    fn find_name(&self, mut die: Die) -> Result<Name> {
        let mut is_specified = false;
        for _ in 0..=MAX_NAME_REFERENCES {
            self.residency.jump();
            let mut name = None;
            let mut other = None;
            let mut is_external = false;
            let opened = self.open(die.0)?;
            let unit = UnitRef::new(self.dwarf, &opened);
            let mut linked = None;
            each_attribute(unit, die.1, |attribute| {
                match attribute.name() {
                    gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                        linked = linked.or(unit.attr_string(attribute.value()).ok());
                    }
                    gimli::DW_AT_name if name.is_none() => {
                        name = unit.attr_string(attribute.value()).ok();
                    }
                    gimli::DW_AT_external => is_external = true,
                    gimli::DW_AT_abstract_origin => other = Some(attribute.value()),
                    gimli::DW_AT_specification => {
                        other = Some(attribute.value());
                        is_specified = true;
                    }
                    _ => {}
                }
                linked.is_none()
            })?;
            if let Some(name) = linked.or(name) {
                // External functions have a linkage name, unless they are `main` or
                // C functions.
                let is_whole = linked.is_some() || is_external && !is_specified;
                let is_scoped = !is_whole && self.has_scopes(die.0)?;
                return Ok(Name {
                    text: name.to_string_lossy().into(),
                    scoped: is_scoped.then_some(die),
                });
            }
            match other.map(|value| self.referred(die.0, value)).transpose()? {
                Some(Some(next)) => die = next,
                _ => break,
            }
        }
        Ok(Name {
            text: Rc::default(),
            scoped: None,
        })
    }

    /// Resolves an attribute's reference to an entry. Returns `None` if it refers elsewhere.
    pub fn referred(&self, number: usize, value: AttributeValue<Slice<'a>>) -> Result<Option<Die>> {
        match value {
            AttributeValue::UnitRef(entry) => Ok(Some((number, entry))),
            AttributeValue::DebugInfoRef(offset) => {
                let after = self.headers.partition_point(|h| start(h) <= offset.0);
                let number = after.checked_sub(1).ok_or(gimli::Error::MissingUnitDie)?;
                let inside = offset.to_unit_offset(&self.headers[number]);
                let missing = gimli::Error::NoEntryAtGivenOffset(offset.0 as u64);
                Ok(Some((number, inside.ok_or(missing)?)))
            }
            _ => Ok(None),
        }
    }

    /// Returns true if a unit's names need their scopes, as in C++. Units without a language
    /// hold entries shared by other units, and count as needing them.
    fn has_scopes(&self, number: usize) -> Result<bool> {
        if let Some(&known) = self.has_scopes.borrow().get(&number) {
            return Ok(known);
        }
        let opened = self.open(number)?;
        let unit = UnitRef::new(self.dwarf, &opened);
        let mut language = None;
        each_attribute(unit, unit.header.root_offset(), |attribute| {
            if let AttributeValue::Language(own) = attribute.value() {
                language = Some(own);
            }
            language.is_none()
        })?;
        let has_scopes = language.is_none_or(|own| WITH_SCOPES.contains(&own));
        self.has_scopes.borrow_mut().insert(number, has_scopes);
        Ok(has_scopes)
    }
}

/// Passes the attributes of an entry to `visit` until that returns false.
pub fn each_attribute<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    entry: UnitOffset,
    mut visit: impl FnMut(Attribute<Slice<'a>>) -> bool,
) -> Result<()> {
    let mut entries = unit.entries_raw(Some(entry))?;
    let Some(abbreviation) = entries.read_abbreviation()? else {
        return Err(gimli::Error::NoEntryAtGivenOffset(entry.0 as u64));
    };
    for spec in abbreviation.attributes() {
        if !visit(entries.read_attribute(*spec)?) {
            break;
        }
    }
    Ok(())
}

/// Passes the address range of each sequence of a unit's line table to `visit`.
fn sequences<'a>(
    unit: &Unit<Slice<'a>>,
    residency: &Residency,
    mut visit: impl FnMut(u64, u64),
) -> Result<()> {
    let Some(program) = &unit.line_program else {
        return Ok(());
    };
    let mut start = None;
    rows::each(program, residency, |row, ends| {
        let begin = *start.get_or_insert(row.address);
        if ends {
            visit(begin, row.address);
            start = None;
        }
    })
}

/// Returns the offset of a unit in `.debug_info`.
fn start(header: &UnitHeader<Slice>) -> usize {
    header.debug_info_offset().map_or(0, |offset| offset.0)
}

impl Candidates {
    /// Calls `look` for each unit, with all the addresses to look up in it. Begins with the first
    /// candidate of each address; addresses that are not found are looked up in their next
    /// candidate.
    pub fn in_turn<T>(
        &self,
        wanted: &[u64],
        mut look: impl FnMut(&UnitQuery, &mut [Option<T>]) -> Result<()>,
    ) -> Result<Vec<Option<T>>> {
        let mut found: Vec<Option<T>> = wanted.iter().map(|_| None).collect();
        for turn in 0.. {
            let mut by_unit: BTreeMap<usize, Vec<(usize, Range)>> = BTreeMap::new();
            for (at, units) in self.by_address.iter().enumerate() {
                if let Some(own) = units.get(turn).filter(|_| found[at].is_none()) {
                    by_unit.entry(own.unit).or_default().push((at, own.range));
                }
            }
            if by_unit.is_empty() {
                break;
            }
            for (unit, own) in by_unit {
                let (indices, ranges): (Vec<usize>, Vec<Range>) = own.into_iter().unzip();
                let addresses: Vec<u64> = indices.iter().map(|&at| wanted[at]).collect();
                let mut results: Vec<Option<T>> = indices.iter().map(|_| None).collect();
                let query = UnitQuery {
                    unit,
                    wanted: &addresses,
                    ranges: &ranges,
                };
                look(&query, &mut results)?;
                let results = indices.into_iter().zip(results);
                results.for_each(|(at, result)| found[at] = result);
            }
        }
        Ok(found)
    }
}
