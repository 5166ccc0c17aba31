//! Units of debug information: finds those that may cover an address, and the names of their
//! entries.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use foldhash::HashMap;
use gimli::{
    Attribute, AttributeValue, DebugInfoOffset, Dwarf, EndianSlice, LittleEndian, Result, Unit,
    UnitHeader, UnitOffset, UnitRef, UnitType,
};

use super::residency::Residency;

/// Contents of a section.
pub type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Maximum number of references to follow from an entry to the one with its name.
const MAX_NAME_REFERENCES: usize = 16;

/// Languages in which functions of the same name are distinguished by their scopes.
const WITH_SCOPES: [gimli::DwLang; 9] = [
    gimli::DW_LANG_C_plus_plus,
    gimli::DW_LANG_C_plus_plus_03,
    gimli::DW_LANG_C_plus_plus_11,
    gimli::DW_LANG_C_plus_plus_14,
    gimli::DW_LANG_C_plus_plus_17,
    gimli::DW_LANG_C_plus_plus_20,
    // C++23, which gimli has no name for.
    gimli::DwLang(0x3a),
    gimli::DW_LANG_ObjC_plus_plus,
    gimli::DW_LANG_Rust,
];

/// All units of a file and of its supplementary file (`.debug_sup`), which it shares with other
/// files. Parsed on first use.
pub struct Units<'a> {
    /// Debug information of the file.
    dwarf: &'a Dwarf<Slice<'a>>,
    /// Keeps the file's resident pages bounded.
    pub residency: Residency<'a>,
    headers: Vec<UnitHeader<Slice<'a>>>,
    /// Number of the first unit of the shared file. Its units follow the file's own.
    first_shared_unit: usize,
    /// Split units, which contain the rest of a skeleton's debug information, by the number of the
    /// skeleton.
    split: HashMap<usize, SplitUnit<'a>>,
    /// Parsed units: by a skeleton's number, the skeleton, its split unit or both.
    parsed: RefCell<HashMap<UnitKey, ParsedUnit<'a>>>,
    /// Names by entry.
    names: RefCell<HashMap<Die, Rc<str>>>,
    /// [`Name::scoped`] by entry. Few entries have one.
    scoped: RefCell<HashMap<Die, Die>>,
    /// By unit number: set if names need their scopes, as in C++.
    has_scopes: RefCell<HashMap<usize, bool>>,
    /// Set once an entry referred to a shared file that is missing.
    lacks_shared: Cell<bool>,
}

/// Key of a parsed unit.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct UnitKey {
    number: usize,
    /// False for the skeleton with this number, true for its split unit.
    is_split: bool,
}

/// A unit in a file of its own, or in a package of such files.
pub struct SplitUnit<'a> {
    /// Debug information of its file.
    pub dwarf: Dwarf<Slice<'a>>,
    /// The unit's header.
    pub header: UnitHeader<Slice<'a>>,
}

/// A debugging information entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Die {
    /// Number of the unit.
    pub unit: usize,
    /// Offset in the unit.
    pub entry: UnitOffset,
}

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

impl<'a> Units<'a> {
    /// Reads the headers of all units that may have code, which excludes type units.
    pub fn new(dwarf: &'a Dwarf<Slice<'a>>, residency: Residency<'a>) -> Result<Self> {
        let mut headers = headers(dwarf)?;
        let first_shared_unit = headers.len();
        if let Some(dwarf) = dwarf.sup() {
            headers.extend(self::headers(dwarf)?);
        }
        Ok(Self {
            dwarf,
            residency,
            headers,
            first_shared_unit,
            split: HashMap::default(),
            parsed: RefCell::default(),
            names: RefCell::default(),
            scoped: RefCell::default(),
            has_scopes: RefCell::default(),
            lacks_shared: Cell::new(false),
        })
    }

    /// Returns the debug information of the file.
    pub fn dwarf(&self) -> &'a Dwarf<Slice<'a>> {
        self.dwarf
    }

    /// Returns the headers of the file's own units.
    pub fn headers(&self) -> &[UnitHeader<Slice<'a>>] {
        &self.headers[..self.first_shared_unit]
    }

    /// Adds the split units, by the numbers of their skeletons.
    pub fn add_split(&mut self, split: HashMap<usize, SplitUnit<'a>>) {
        self.split = split;
    }

    /// Returns true if the split unit of this skeleton was found.
    pub fn has_split(&self, skeleton: usize) -> bool {
        self.split.contains_key(&skeleton)
    }

    /// Returns true if an entry referred to a shared file that is missing.
    pub fn lacks_shared(&self) -> bool {
        self.lacks_shared.get()
    }

    /// Returns the debug information that a unit is read from.
    fn dwarf_of(&self, number: usize) -> &Dwarf<Slice<'a>> {
        match self.split.get(&number) {
            Some(split) => &split.dwarf,
            None => self.dwarf_of_lines(number),
        }
    }

    /// Returns the debug information that a unit's line table is read from.
    pub fn dwarf_of_lines(&self, number: usize) -> &'a Dwarf<Slice<'a>> {
        let shared = self
            .dwarf
            .sup()
            .filter(|_| number >= self.first_shared_unit);
        shared.unwrap_or(self.dwarf)
    }

    /// Returns a unit together with its debug information.
    pub fn unit_ref<'u>(
        &'u self,
        number: usize,
        unit: &'u Unit<Slice<'a>>,
    ) -> UnitRef<'u, Slice<'a>> {
        UnitRef::new(self.dwarf_of(number), unit)
    }

    /// Returns a unit by its number or, for a skeleton, its split unit, if that was found.
    pub fn open(&self, number: usize) -> Result<Rc<Unit<Slice<'a>>>> {
        self.get_or_parse(self.key_of_split(number), true)
    }

    /// Returns a unit by its number, for its line table. Its abbreviations may have been freed.
    pub fn open_for_lines(&self, number: usize) -> Result<Rc<Unit<Slice<'a>>>> {
        let key = UnitKey {
            number,
            is_split: false,
        };
        self.get_or_parse(key, false)
    }

    /// Frees a unit's abbreviations, which are most of its memory. They are parsed again if
    /// needed.
    pub fn forget_abbreviations(&self, number: usize) {
        if let Some(known) = self.parsed.borrow_mut().get_mut(&self.key_of_split(number))
            && let Some(unit) = Rc::get_mut(&mut known.unit)
        {
            unit.abbreviations = Arc::default();
            known.has_abbreviations = false;
        }
    }

    /// Returns the key of a unit or, for a skeleton, of its split unit, if that was found.
    fn key_of_split(&self, number: usize) -> UnitKey {
        UnitKey {
            number,
            is_split: self.split.contains_key(&number),
        }
    }

    /// Returns a unit. If `needs_abbreviations` is false, they may have been freed.
    fn get_or_parse(&self, key: UnitKey, needs_abbreviations: bool) -> Result<Rc<Unit<Slice<'a>>>> {
        if let Some(known) = self.parsed.borrow().get(&key)
            && (known.has_abbreviations || !needs_abbreviations)
        {
            return Ok(Rc::clone(&known.unit));
        }
        let split = self.split.get(&key.number).filter(|_| key.is_split);
        let unit = match split {
            Some(split) => {
                let mut unit = split.dwarf.unit(split.header)?;
                unit.copy_relocated_attributes(&*self.open_for_lines(key.number)?);
                unit
            }
            None => {
                let header = self.headers.get(key.number);
                let header = header.ok_or(gimli::Error::MissingUnitDie)?;
                self.dwarf_of_lines(key.number).unit(*header)?
            }
        };
        let unit = Rc::new(unit);
        let parsed = ParsedUnit {
            unit: Rc::clone(&unit),
            has_abbreviations: true,
        };
        self.parsed.borrow_mut().insert(key, parsed);
        Ok(unit)
    }

    /// Returns the number of the unit whose header is at this offset.
    pub fn number_at(&self, offset: usize) -> Option<usize> {
        let file_headers = &self.headers[..self.first_shared_unit];
        file_headers.binary_search_by_key(&offset, start).ok()
    }

    /// Returns the name of an entry.
    pub fn name(&self, die: Die) -> Result<Name> {
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
            self.residency.count_jump();
            let mut name = None;
            let mut reference = None;
            let mut is_external = false;
            let opened = self.open(die.unit)?;
            let unit = self.unit_ref(die.unit, &opened);
            let mut linkage_name = None;
            each_attribute(unit, die.entry, |attribute| {
                match attribute.name() {
                    gimli::DW_AT_linkage_name | gimli::DW_AT_MIPS_linkage_name => {
                        linkage_name =
                            linkage_name.or(self.attribute_text(unit, attribute.value()));
                    }
                    gimli::DW_AT_name if name.is_none() => {
                        name = self.attribute_text(unit, attribute.value());
                    }
                    gimli::DW_AT_external => is_external = true,
                    gimli::DW_AT_abstract_origin => reference = Some(attribute.value()),
                    gimli::DW_AT_specification => {
                        reference = Some(attribute.value());
                        is_specified = true;
                    }
                    _ => {}
                }
                linkage_name.is_none()
            })?;
            if let Some(name) = linkage_name.or(name) {
                // External functions have a linkage name, unless they are `main` or
                // C functions.
                let is_whole = linkage_name.is_some() || is_external && !is_specified;
                let is_scoped = !is_whole && self.has_scopes(die.unit)?;
                return Ok(Name {
                    text: name.to_string_lossy().into(),
                    scoped: is_scoped.then_some(die),
                });
            }
            let Some(reference) = reference else {
                break;
            };
            let Some(next) = self.resolve_reference(die.unit, reference)? else {
                break;
            };
            die = next;
        }
        Ok(Name {
            text: Rc::default(),
            scoped: None,
        })
    }

    /// Returns the text of an attribute, which may be in the shared file.
    fn attribute_text(
        &self,
        unit: UnitRef<'_, Slice<'a>>,
        value: AttributeValue<Slice<'a>>,
    ) -> Option<Slice<'a>> {
        if matches!(value, AttributeValue::DebugStrRefSup(_)) && self.dwarf.sup().is_none() {
            self.lacks_shared.set(true);
        }
        unit.attr_string(value).ok()
    }

    /// Resolves an attribute's reference to an entry. Returns `None` if it refers elsewhere.
    pub fn resolve_reference(
        &self,
        number: usize,
        value: AttributeValue<Slice<'a>>,
    ) -> Result<Option<Die>> {
        match value {
            AttributeValue::UnitRef(entry) => Ok(Some(Die {
                unit: number,
                entry,
            })),
            AttributeValue::DebugInfoRef(offset) => match self.split.get(&number) {
                Some(split) => {
                    let inside = offset.to_unit_offset(&split.header);
                    Ok(inside.map(|entry| Die {
                        unit: number,
                        entry,
                    }))
                }
                None if number < self.first_shared_unit => {
                    self.entry_at(offset, 0..self.first_shared_unit).map(Some)
                }
                None => self
                    .entry_at(offset, self.first_shared_unit..self.headers.len())
                    .map(Some),
            },
            AttributeValue::DebugInfoRefSup(_) if self.dwarf.sup().is_none() => {
                self.lacks_shared.set(true);
                Ok(None)
            }
            AttributeValue::DebugInfoRefSup(offset) => self
                .entry_at(offset, self.first_shared_unit..self.headers.len())
                .map(Some),
            _ => Ok(None),
        }
    }

    /// Finds the entry at an offset in `.debug_info` of the file that has these units.
    fn entry_at(&self, offset: DebugInfoOffset, units: std::ops::Range<usize>) -> Result<Die> {
        let missing = gimli::Error::NoEntryAtGivenOffset(offset.0 as u64);
        let headers = &self.headers[units.clone()];
        let after = headers.partition_point(|h| start(h) <= offset.0);
        let header = after.checked_sub(1).ok_or(missing)?;
        let inside = offset.to_unit_offset(&headers[header]);
        Ok(Die {
            unit: units.start + header,
            entry: inside.ok_or(missing)?,
        })
    }

    /// Returns true if a unit's names need their scopes, as in C++. Units without a language
    /// hold entries shared by other units, and count as needing them.
    fn has_scopes(&self, number: usize) -> Result<bool> {
        if let Some(&known) = self.has_scopes.borrow().get(&number) {
            return Ok(known);
        }
        let opened = self.open(number)?;
        let unit = self.unit_ref(number, &opened);
        let mut language = None;
        each_attribute(unit, unit.header.root_offset(), |attribute| {
            if let AttributeValue::Language(value) = attribute.value() {
                language = Some(value);
            }
            language.is_none()
        })?;
        let has_scopes = language.is_none_or(|language| WITH_SCOPES.contains(&language));
        self.has_scopes.borrow_mut().insert(number, has_scopes);
        Ok(has_scopes)
    }
}

/// Returns the headers of all units of a file except type units.
fn headers<'a>(dwarf: &Dwarf<Slice<'a>>) -> Result<Vec<UnitHeader<Slice<'a>>>> {
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
    Ok(headers)
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

/// Returns the offset of a unit in `.debug_info`.
fn start(header: &UnitHeader<Slice>) -> usize {
    header.debug_info_offset().map_or(0, |offset| offset.0)
}
