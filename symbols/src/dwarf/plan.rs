//! How entries are passed over, worked out once for all entries of an abbreviation.
//!
//! Most entries are of no interest, and most attributes have a size that follows from the
//! abbreviation: to pass over an entry takes an addition, and a look at each attribute that has a
//! size of its own. Where entries have their addresses and siblings is worked out too. What
//! compilers hardly ever write has no such places, and is read with gimli.

use std::collections::HashMap;
use std::rc::Rc;

use gimli::{
    Abbreviation, Abbreviations, AttributeSpecification, DwForm, Error, Result, UnitHeader,
};

use super::image::number;
use super::units::Slice;

/// Abbreviations that are found by their numbers alone; compilers count from 1 to a few hundred.
const NEAR: usize = 2048;
/// Abbreviations of functions that are recognised by their bytes; compilers need a dozen.
const MOST_PLACED: usize = 64;

/// An attribute that has a size of its own.
#[derive(Clone, Copy)]
enum Own {
    /// A number; its last byte has no highest bit.
    Leb,
    /// Text; its last byte is zero.
    Text,
    /// A size of this many bytes, and as many bytes as it says.
    Block(usize),
    /// The same with a [`Own::Leb`] for the size.
    LebBlock,
    /// This and all others are left to gimli.
    Unknown,
}

/// Kinds of entries.
pub mod kind {
    /// Functions that may have addresses.
    pub const PLACED: u8 = 1;
    /// Those that may say which entry follows their children.
    pub const SIBLING: u8 = 2;
    /// All functions.
    pub const FUNCTION: u8 = 4;
    /// Calls that were inlined.
    pub const CALL: u8 = 8;
    /// All that others may be inside of.
    pub const PARENT: u8 = 16;
}

/// What is known of all entries of an abbreviation.
pub struct Plan<'u> {
    /// The abbreviation.
    pub abbreviation: &'u Abbreviation,
    /// Whether entries inside follow.
    pub has_children: bool,
    /// Of which kinds they are.
    pub kinds: u8,
    /// Where their only range of addresses is, if it is always in the same place.
    pub range: Option<RangePlace>,
    /// How many bytes before their end the sibling's offset is, if it is always so, of 4 bytes.
    pub sibling: Option<usize>,
    /// Bytes before the first attribute that has a size of its own.
    fixed: u32,
    /// Those attributes, each with the bytes before the next.
    rest: Vec<(Own, u32)>,
}

/// Where in an entry a range of addresses is: bytes behind its number.
#[derive(Clone, Copy)]
pub struct RangePlace {
    /// Where the first address is, of 8 bytes.
    pub begin: usize,
    /// Where the range's size is.
    pub size: usize,
    /// Bytes that the size takes.
    pub width: usize,
}

impl<'u> Plan<'u> {
    fn new(abbreviation: &'u Abbreviation, header: &UnitHeader<Slice>) -> Self {
        let specs = abbreviation.attributes();
        let mut plan = Self {
            abbreviation,
            has_children: abbreviation.has_children(),
            kinds: kinds(abbreviation),
            range: range_place(specs, header),
            sibling: sibling_place(specs, header),
            fixed: 0,
            rest: Vec::new(),
        };
        for spec in specs {
            let fixed = plan.rest.last_mut().map_or(&mut plan.fixed, |(_, f)| f);
            let size = spec.size(header).map(|size| size as u32);
            // As many attributes as overflow it are in no file.
            match size.and_then(|size| fixed.checked_add(size)) {
                Some(sum) => *fixed = sum,
                None => plan.rest.push((own(spec.form()), 0)),
            }
        }
        plan
    }

    /// Where an entry ends whose attributes begin at `at`; `None` where only gimli knows.
    #[inline]
    pub fn end(&self, bytes: &[u8], at: usize) -> Option<usize> {
        // No sum overflows: what is added is less than 4 GiB, and what it is added to is in the
        // bytes, at most at their end.
        let mut at = at + self.fixed as usize;
        for &(own, fixed) in &self.rest {
            at = own.end(bytes, at)? + fixed as usize;
        }
        (at <= bytes.len()).then_some(at)
    }
}

fn kinds(abbreviation: &Abbreviation) -> u8 {
    let has = |name| {
        let mut specs = abbreviation.attributes().iter();
        specs.any(|spec| spec.name() == name)
    };
    let mut kinds = match abbreviation.tag() {
        gimli::DW_TAG_inlined_subroutine => kind::CALL,
        gimli::DW_TAG_subprogram if has(gimli::DW_AT_low_pc) || has(gimli::DW_AT_ranges) => {
            kind::FUNCTION | kind::PLACED
        }
        gimli::DW_TAG_subprogram => kind::FUNCTION,
        _ => 0,
    };
    if abbreviation.has_children() {
        kinds |= kind::PARENT;
        if has(gimli::DW_AT_sibling) {
            kinds |= kind::SIBLING;
        }
    }
    kinds
}

/// The plans of a unit, made when they are needed.
pub struct Plans<'u> {
    abbreviations: &'u Abbreviations,
    /// By number; the others are in `far`.
    near: Vec<Option<Rc<Plan<'u>>>>,
    far: HashMap<u64, Rc<Plan<'u>>>,
}

impl<'u> Plans<'u> {
    /// None yet.
    pub fn new(abbreviations: &'u Abbreviations) -> Self {
        Self {
            abbreviations,
            near: Vec::new(),
            far: HashMap::new(),
        }
    }

    /// The plan of the abbreviation of this number.
    #[inline]
    pub fn get(&mut self, number: u64, header: &UnitHeader<Slice>) -> Result<&Rc<Plan<'u>>> {
        let at = usize::try_from(number).unwrap_or(NEAR);
        if at >= NEAR {
            return self.far(number, header);
        }
        if self.near.get(at).is_none_or(Option::is_none) {
            let plan = self.make(number, header)?;
            let enough = self.near.len().max(at + 1);
            self.near.resize(enough, None);
            self.near[at] = Some(plan);
        }
        let plan = self.near[at].as_ref();
        plan.ok_or(Error::InvalidAbbreviationCode(number))
    }

    /// Functions whose addresses are always in the same place: of the abbreviations that are
    /// numbered from 1 on.
    pub fn placed(&self, header: &UnitHeader<Slice>) -> Vec<Placed> {
        let numbered = |number| Some((number, self.abbreviations.get(number)?));
        let all = (1..NEAR as u64).map_while(numbered);
        let functions = all.filter(|(_, own)| kinds(own) & kind::PLACED != 0);
        let placed = functions.filter_map(|(number, own)| {
            let range = range_place(own.attributes(), header)?;
            Some(Placed::new(number, range))
        });
        placed.take(MOST_PLACED).collect()
    }

    #[cold]
    fn far(&mut self, number: u64, header: &UnitHeader<Slice>) -> Result<&Rc<Plan<'u>>> {
        let plan = match self.far.get(&number) {
            Some(plan) => Rc::clone(plan),
            None => self.make(number, header)?,
        };
        Ok(self.far.entry(number).or_insert(plan))
    }

    #[cold]
    fn make(&self, number: u64, header: &UnitHeader<Slice>) -> Result<Rc<Plan<'u>>> {
        let abbreviation = self.abbreviations.get(number);
        let abbreviation = abbreviation.ok_or(Error::InvalidAbbreviationCode(number))?;
        Ok(Rc::new(Plan::new(abbreviation, header)))
    }
}

/// An abbreviation of functions, and where they have their addresses.
pub struct Placed {
    /// The number's bytes, and how many there are.
    number: ([u8; 2], usize),
    range: RangePlace,
}

impl Placed {
    fn new(number: u64, range: RangePlace) -> Self {
        let number = match number {
            0..0x80 => ([number as u8, 0], 1),
            _ => ([number as u8 | 0x80, (number >> 7) as u8], 2),
        };
        Self { number, range }
    }

    /// The entry whose address is at `at`, if it has this abbreviation: where it is, and how many
    /// bytes of code it says that it has.
    pub fn entry(&self, bytes: &[u8], at: usize) -> Option<(usize, u64)> {
        let (own, length) = (&self.number.0, self.number.1);
        let attributes = at.checked_sub(self.range.begin)?;
        let entry = attributes.checked_sub(length)?;
        let is_own = bytes[entry..attributes] == own[..length];
        let size = number(bytes, attributes + self.range.size, self.range.width);
        size.filter(|_| is_own).map(|size| (entry, size))
    }
}

impl Own {
    /// Where it ends, which is in the bytes.
    #[inline]
    fn end(self, bytes: &[u8], at: usize) -> Option<usize> {
        let rest = bytes.get(at..)?;
        let size = match self {
            Own::Leb => 1 + rest.iter().position(|&byte| byte < 0x80)?,
            Own::Text => 1 + rest.iter().position(|&byte| byte == 0)?,
            Own::Block(width) => usize::try_from(number(rest, 0, width)?)
                .ok()?
                .checked_add(width)?,
            // Longer ones are left to gimli.
            Own::LebBlock => match *rest {
                [size, ..] if size < 0x80 => 1 + usize::from(size),
                [low, high, ..] if high < 0x80 => {
                    2 + (usize::from(low & 0x7f) | usize::from(high) << 7)
                }
                _ => return None,
            },
            Own::Unknown => return None,
        };
        (size <= rest.len()).then(|| at + size)
    }
}

fn own(form: DwForm) -> Own {
    match form {
        gimli::DW_FORM_block1 => Own::Block(1),
        gimli::DW_FORM_block2 => Own::Block(2),
        gimli::DW_FORM_block4 => Own::Block(4),
        gimli::DW_FORM_block | gimli::DW_FORM_exprloc => Own::LebBlock,
        gimli::DW_FORM_string => Own::Text,
        gimli::DW_FORM_udata
        | gimli::DW_FORM_sdata
        | gimli::DW_FORM_ref_udata
        | gimli::DW_FORM_strx
        | gimli::DW_FORM_addrx
        | gimli::DW_FORM_loclistx
        | gimli::DW_FORM_rnglistx => Own::Leb,
        _ => Own::Unknown,
    }
}

/// The one attribute of this name, and the bytes that the others take before and behind it: `None`
/// where one has a size of its own.
fn place(
    specs: &[AttributeSpecification],
    header: &UnitHeader<Slice>,
    name: gimli::DwAt,
) -> Option<(AttributeSpecification, Option<usize>, Option<usize>)> {
    let bytes = |specs: &[AttributeSpecification]| {
        let sizes = specs.iter().map(|spec| spec.size(header));
        sizes.sum::<Option<usize>>()
    };
    let at = specs.iter().position(|spec| spec.name() == name)?;
    let behind = &specs[at + 1..];
    let is_only = behind.iter().all(|spec| spec.name() != name);
    is_only.then(|| (specs[at], bytes(&specs[..at]), bytes(behind)))
}

fn range_place(specs: &[AttributeSpecification], header: &UnitHeader<Slice>) -> Option<RangePlace> {
    let (low, begin, _) = place(specs, header, gimli::DW_AT_low_pc)?;
    let (high, size, _) = place(specs, header, gimli::DW_AT_high_pc)?;
    let has_ranges = specs.iter().any(|s| s.name() == gimli::DW_AT_ranges);
    let is_address = low.form() == gimli::DW_FORM_addr && low.size(header) == Some(8);
    let is_size = matches!(
        high.form(),
        gimli::DW_FORM_data1 | gimli::DW_FORM_data2 | gimli::DW_FORM_data4 | gimli::DW_FORM_data8
    );
    let place = RangePlace {
        begin: begin?,
        size: size?,
        width: high.size(header)?,
    };
    (is_address && is_size && !has_ranges).then_some(place)
}

fn sibling_place(specs: &[AttributeSpecification], header: &UnitHeader<Slice>) -> Option<usize> {
    let (sibling, _, behind) = place(specs, header, gimli::DW_AT_sibling)?;
    let is_offset = sibling.form() == gimli::DW_FORM_ref4;
    behind.filter(|_| is_offset).map(|behind| behind + 4)
}
