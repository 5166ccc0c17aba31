//! Units of debug information: which may hold an address, and their entries.

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

/// Bytes of a section.
pub type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Entries that say what another one is called; more are no name.
const DEEPEST: usize = 16;

/// Languages in which scopes distinguish functions of the same name.
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

/// Ranges around one address; a file with more of them lies.
const MOST_UNITS: usize = 100;

/// All units, opened when they are needed.
pub struct Units<'a> {
    /// The debug information.
    pub dwarf: &'a Dwarf<Slice<'a>>,
    /// What of the file is in memory.
    pub residency: Residency<'a>,
    headers: Vec<UnitHeader<Slice<'a>>>,
    /// By number.
    open: RefCell<Vec<Option<Open<'a>>>>,
    names: RefCell<HashMap<Die, Rc<str>>>,
    /// Apart from the names, as hardly any have it.
    scoped: RefCell<HashMap<Die, Die>>,
    /// By number: whether names are made as in C++.
    has_scopes: RefCell<HashMap<usize, bool>>,
}

/// An entry: the number of its unit, and its offset there.
pub type Die = (usize, UnitOffset);

/// What an entry is called.
pub struct Name {
    /// As the linker knows it, otherwise as the source does; empty when it has no name.
    pub text: Rc<str>,
    /// The entry that has the name, where that is a part of the whole name: the linker's is not
    /// known, and the scopes around this entry belong to it.
    pub scoped: Option<Die>,
}

/// A unit that was opened.
struct Open<'a> {
    unit: Rc<Unit<Slice<'a>>>,
    /// Whether it has its abbreviations.
    is_whole: bool,
}

/// For each address the units that may hold it.
pub struct Candidates {
    /// Those that start last come first.
    of: Vec<Vec<Candidate>>,
}

/// A unit that may hold an address, and its range that does.
#[derive(Clone, Copy)]
struct Candidate {
    unit: usize,
    range: Range,
}

/// Addresses that are looked for in a unit.
pub struct Asked<'w> {
    /// Number of the unit.
    pub unit: usize,
    /// The addresses, sorted.
    pub wanted: &'w [u64],
    /// For each the unit's range that holds it.
    pub ranges: &'w [Range],
}

impl<'a> Units<'a> {
    /// Those of a file. Units of types hold no code.
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

    /// A unit by its number.
    pub fn open(&self, number: usize) -> Result<Rc<Unit<Slice<'a>>>> {
        self.opened(number, true)
    }

    /// A unit by its number; it may have no abbreviations any more.
    pub fn open_for_lines(&self, number: usize) -> Result<Rc<Unit<Slice<'a>>>> {
        self.opened(number, false)
    }

    /// Frees what takes the most memory of a unit: the next one can have it.
    pub fn forget_abbreviations(&self, number: usize) {
        if let Some(Some(own)) = self.open.borrow_mut().get_mut(number)
            && let Some(unit) = Rc::get_mut(&mut own.unit)
        {
            unit.abbreviations = Arc::default();
            own.is_whole = false;
        }
    }

    fn opened(&self, number: usize, whole: bool) -> Result<Rc<Unit<Slice<'a>>>> {
        if let Some(Some(own)) = self.open.borrow().get(number)
            && (own.is_whole || !whole)
        {
            return Ok(Rc::clone(&own.unit));
        }
        let header = self
            .headers
            .get(number)
            .ok_or(gimli::Error::MissingUnitDie)?;
        let unit = Rc::new(self.dwarf.unit(*header)?);
        if unit.dwo_id.is_some() {
            // The rest of it is in another file.
            return Err(gimli::Error::MissingSplitUnit);
        }
        self.open.borrow_mut()[number] = Some(Open {
            unit: Rc::clone(&unit),
            is_whole: true,
        });
        Ok(unit)
    }

    /// Units that may hold each of the addresses, which are sorted.
    pub fn candidates(&self, wanted: &[u64]) -> Result<Candidates> {
        let mut holding: Vec<Vec<Candidate>> = vec![Vec::new(); wanted.len()];
        let mut note = |begin: u64, end: u64, unit: usize| {
            let first = wanted.partition_point(|&a| a < begin);
            let inside = wanted[first..].iter().take_while(|&&a| a < end);
            for (at, _) in inside.enumerate() {
                let own = &mut holding[first + at];
                if own.len() < MOST_UNITS {
                    let range = Range { begin, end };
                    own.push(Candidate { unit, range });
                }
            }
        };
        let listed = self.ranges_listed(&mut note)?;
        for (number, header) in self.headers.iter().enumerate() {
            if listed[number] || matches!(header.type_(), UnitType::Partial) {
                continue;
            }
            let unit = self.open(number)?;
            let mut ranges = self.dwarf.unit_ranges(&unit)?;
            let mut any = false;
            while let Some(range) = ranges.next()? {
                any |= range.begin < range.end;
                note(range.begin, range.end, number);
            }
            if !any {
                sequences(&unit, &self.residency, |begin, end| {
                    note(begin, end, number);
                })?;
            }
        }
        for found in &mut holding {
            let last = |own: &Candidate| Reverse((own.range.begin, own.unit, own.range.end));
            found.sort_unstable_by_key(last);
            found.dedup_by_key(|own| own.unit);
        }
        Ok(Candidates { of: holding })
    }

    /// Notes the ranges in the list of all units' ranges; says which units are
    /// in it.
    fn ranges_listed(&self, note: &mut impl FnMut(u64, u64, usize)) -> Result<Vec<bool>> {
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
                        note(entry.range().begin, entry.range().end, unit);
                    }
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    // A range beyond all addresses; the iterator continues or ends.
                    Err(_) => {}
                }
            }
        }
        Ok(listed)
    }

    /// Number of the unit whose header is at this offset.
    fn number_at(&self, offset: usize) -> std::result::Result<usize, usize> {
        self.headers.binary_search_by_key(&offset, start)
    }

    /// Name of an entry.
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

    fn find_name(&self, mut die: Die) -> Result<Name> {
        let mut is_specified = false;
        for _ in 0..=DEEPEST {
            self.residency.jump();
            let (mut name, mut other, mut is_external) = (None, None, false);
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
                // What other units can call has its name from the linker, or is `main` or C.
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

    /// The entry that an attribute refers to; `None` where it is in no unit of code.
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

    /// Whether names of a unit are made as in C++. Units that say nothing of their language hold
    /// what others have in common.
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

/// Tells `each` the attributes of an entry, as long as it wants more.
pub fn each_attribute<'a>(
    unit: UnitRef<'_, Slice<'a>>,
    entry: UnitOffset,
    mut each: impl FnMut(Attribute<Slice<'a>>) -> bool,
) -> Result<()> {
    let mut entries = unit.entries_raw(Some(entry))?;
    let Some(abbreviation) = entries.read_abbreviation()? else {
        return Err(gimli::Error::NoEntryAtGivenOffset(entry.0 as u64));
    };
    for spec in abbreviation.attributes() {
        if !each(entries.read_attribute(*spec)?) {
            break;
        }
    }
    Ok(())
}

/// The ranges of addresses that a unit has lines for.
fn sequences<'a>(
    unit: &Unit<Slice<'a>>,
    residency: &Residency,
    mut each: impl FnMut(u64, u64),
) -> Result<()> {
    let Some(program) = &unit.line_program else {
        return Ok(());
    };
    let mut start = None;
    rows::each(program, residency, |row, ends| {
        let start_of_this = *start.get_or_insert(row.address);
        if ends {
            each(start_of_this, row.address);
            start = None;
        }
    })
}

/// Offset of a unit.
fn start(header: &UnitHeader<Slice>) -> usize {
    header.debug_info_offset().map_or(0, |offset| offset.0)
}

impl Candidates {
    /// Has `look` look for the addresses in the first units that may hold them,
    /// all of a unit together; for those not found, in the next units.
    pub fn in_turn<T>(
        &self,
        wanted: &[u64],
        mut look: impl FnMut(&Asked, &mut [Option<T>]) -> Result<()>,
    ) -> Result<Vec<Option<T>>> {
        let mut found: Vec<Option<T>> = wanted.iter().map(|_| None).collect();
        for turn in 0.. {
            let mut by_unit: BTreeMap<usize, Vec<(usize, Range)>> = BTreeMap::new();
            for (at, units) in self.of.iter().enumerate() {
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
                let asked = Asked {
                    unit,
                    wanted: &addresses,
                    ranges: &ranges,
                };
                look(&asked, &mut results)?;
                let results = indices.into_iter().zip(results);
                results.for_each(|(at, result)| found[at] = result);
            }
        }
        Ok(found)
    }
}
