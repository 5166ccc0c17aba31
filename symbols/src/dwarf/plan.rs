//! Skip plans: how to skip the entries (DIEs) of each abbreviation.
//!
//! Most entries are irrelevant, and most attributes have a size that follows from the abbreviation.
//! So a plan is computed once per abbreviation: skipping an entry then takes an addition, and a
//! look at each attribute of variable size. A plan also has the offsets of an entry's addresses and
//! of its sibling reference. Attribute forms that compilers hardly ever use are left to gimli.

use std::collections::HashMap;
use std::rc::Rc;

use gimli::{
    Abbreviation, Abbreviations, AttributeSpecification, DwForm, Error, Result, UnitHeader,
};

use super::image::number;
use super::units::Slice;

/// Abbreviation codes below this are kept in a vector. Compilers count from 1 to a few hundred.
const LOW_CODES: usize = 2048;
/// Maximum number of function abbreviations to recognise by their bytes. Compilers need a dozen.
const MAX_FUNCTION_CODES: usize = 64;

/// Encoding of an attribute of variable size.
#[derive(Clone, Copy)]
enum Encoding {
    /// LEB128 number: the last byte has its highest bit clear.
    Leb,
    /// Zero-terminated string.
    String,
    /// Block whose size is a number of this many bytes.
    Block(usize),
    /// Block whose size is a LEB128 number.
    LebBlock,
    /// Other form: the entry is left to gimli.
    Unknown,
}

/// Kinds of entries, as bit flags.
pub mod kind {
    /// Function with code: it has a low pc or ranges.
    pub const WITH_CODE: u8 = 1;
    /// Entry with children and a sibling reference.
    pub const SIBLING: u8 = 2;
    /// Function.
    pub const FUNCTION: u8 = 4;
    /// Inlined call.
    pub const CALL: u8 = 8;
    /// Entry with children.
    pub const PARENT: u8 = 16;
}

/// Layout shared by all entries of an abbreviation.
pub struct SkipPlan<'u> {
    /// Abbreviation of the entries.
    pub abbreviation: &'u Abbreviation,
    /// Set if the entries have children, which follow them.
    pub has_children: bool,
    /// Flags of [`kind`].
    pub kinds: u8,
    /// Position of the only address range, if it is fixed.
    pub range: Option<RangePosition>,
    /// Distance of the 4-byte sibling reference from the entry's end, in bytes, if it is fixed.
    pub sibling: Option<usize>,
    /// Bytes before the first attribute of variable size.
    fixed: u32,
    /// Attributes of variable size, each with the number of fixed bytes that follow it.
    variable_attributes: Vec<(Encoding, u32)>,
}

/// Position of an address range in an entry. Offsets are from the first attribute, in bytes.
#[derive(Clone, Copy)]
pub struct RangePosition {
    /// Offset of the first address, which takes 8 bytes.
    pub begin: usize,
    /// Offset of the range's size.
    pub size: usize,
    /// Bytes that the size takes.
    pub width: usize,
}

impl<'u> SkipPlan<'u> {
    fn new(abbreviation: &'u Abbreviation, header: &UnitHeader<Slice>) -> Self {
        let specs = abbreviation.attributes();
        let mut plan = Self {
            abbreviation,
            has_children: abbreviation.has_children(),
            kinds: kinds(abbreviation),
            range: range_position(specs, header),
            sibling: sibling_distance(specs, header),
            fixed: 0,
            variable_attributes: Vec::new(),
        };
        for spec in specs {
            let fixed = match plan.variable_attributes.last_mut() {
                Some((_, fixed)) => fixed,
                None => &mut plan.fixed,
            };
            let size = spec.size(header).map(|size| size as u32);
            // An overflow would take more attributes than any file has.
            match size.and_then(|size| fixed.checked_add(size)) {
                Some(sum) => *fixed = sum,
                None => plan.variable_attributes.push((encoding(spec.form()), 0)),
            }
        }
        plan
    }

    /// Returns the end of an entry whose attributes begin at `at`, or `None` if gimli has to
    /// find it.
    #[inline]
    pub fn end(&self, bytes: &[u8], at: usize) -> Option<usize> {
        // No sum overflows: each adds less than 4 GiB to an offset within `bytes`.
        let mut at = at + self.fixed as usize;
        for &(encoding, fixed) in &self.variable_attributes {
            at = encoding.end(bytes, at)? + fixed as usize;
        }
        (at <= bytes.len()).then_some(at)
    }
}

/// Returns the flags of [`kind`] for the entries of an abbreviation.
fn kinds(abbreviation: &Abbreviation) -> u8 {
    let has = |name| {
        let mut specs = abbreviation.attributes().iter();
        specs.any(|spec| spec.name() == name)
    };
    let mut kinds = match abbreviation.tag() {
        gimli::DW_TAG_inlined_subroutine => kind::CALL,
        gimli::DW_TAG_subprogram if has(gimli::DW_AT_low_pc) || has(gimli::DW_AT_ranges) => {
            kind::FUNCTION | kind::WITH_CODE
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

/// Skip plans of a unit, computed on first use.
pub struct SkipPlans<'u> {
    abbreviations: &'u Abbreviations,
    /// Plans by code, for codes below [`LOW_CODES`].
    low: Vec<Option<Rc<SkipPlan<'u>>>>,
    /// Plans of greater codes.
    high: HashMap<u64, Rc<SkipPlan<'u>>>,
}

impl<'u> SkipPlans<'u> {
    /// Returns an empty set of plans.
    pub fn new(abbreviations: &'u Abbreviations) -> Self {
        Self {
            abbreviations,
            low: Vec::new(),
            high: HashMap::new(),
        }
    }

    /// Returns the plan of the abbreviation with this code.
    #[inline]
    pub fn get(&mut self, code: u64, header: &UnitHeader<Slice>) -> Result<&Rc<SkipPlan<'u>>> {
        let at = usize::try_from(code).unwrap_or(LOW_CODES);
        if at >= LOW_CODES {
            return self.get_high(code, header);
        }
        if self.low.get(at).is_none_or(Option::is_none) {
            let plan = self.compute(code, header)?;
            let length = self.low.len().max(at + 1);
            self.low.resize(length, None);
            self.low[at] = Some(plan);
        }
        let plan = self.low[at].as_ref();
        plan.ok_or(Error::InvalidAbbreviationCode(code))
    }

    /// Returns the abbreviations of functions whose address range is at a fixed position. Examines
    /// the codes from 1 up to the first that is not used.
    pub fn functions(&self, header: &UnitHeader<Slice>) -> Vec<FunctionCode> {
        let mut functions = Vec::new();
        for code in 1..LOW_CODES as u64 {
            let Some(abbreviation) = self.abbreviations.get(code) else {
                break;
            };
            if kinds(abbreviation) & kind::WITH_CODE != 0
                && let Some(range) = range_position(abbreviation.attributes(), header)
            {
                functions.push(FunctionCode::new(code, range));
            }
            if functions.len() == MAX_FUNCTION_CODES {
                break;
            }
        }
        functions
    }

    #[cold]
    fn get_high(&mut self, code: u64, header: &UnitHeader<Slice>) -> Result<&Rc<SkipPlan<'u>>> {
        let plan = match self.high.get(&code) {
            Some(plan) => Rc::clone(plan),
            None => self.compute(code, header)?,
        };
        Ok(self.high.entry(code).or_insert(plan))
    }

    #[cold]
    fn compute(&self, code: u64, header: &UnitHeader<Slice>) -> Result<Rc<SkipPlan<'u>>> {
        let abbreviation = self.abbreviations.get(code);
        let abbreviation = abbreviation.ok_or(Error::InvalidAbbreviationCode(code))?;
        Ok(Rc::new(SkipPlan::new(abbreviation, header)))
    }
}

/// Abbreviation code of functions whose address range is at a fixed position.
pub struct FunctionCode {
    /// The code as LEB128.
    code: [u8; 2],
    /// Bytes of `code` that are used.
    code_length: usize,
    range: RangePosition,
}

/// Entry found by its address.
pub struct FoundEntry {
    /// Offset of the entry.
    pub offset: usize,
    /// Size of the function's code, in bytes.
    pub size: u64,
}

impl FunctionCode {
    fn new(code: u64, range: RangePosition) -> Self {
        let (leb128, code_length) = match code {
            0..0x80 => ([code as u8, 0], 1),
            _ => ([code as u8 | 0x80, (code >> 7) as u8], 2),
        };
        Self {
            code: leb128,
            code_length,
            range,
        }
    }

    /// Returns the entry whose start address is at offset `at`, if the bytes before the address are
    /// this abbreviation's.
    pub fn entry(&self, bytes: &[u8], at: usize) -> Option<FoundEntry> {
        let attributes = at.checked_sub(self.range.begin)?;
        let offset = attributes.checked_sub(self.code_length)?;
        let has_code = bytes[offset..attributes] == self.code[..self.code_length];
        let size = number(bytes, attributes + self.range.size, self.range.width);
        size.filter(|_| has_code)
            .map(|size| FoundEntry { offset, size })
    }
}

impl Encoding {
    /// Returns the end of an attribute that begins at `at`, or `None` if it is unknown or beyond
    /// the end of `bytes`.
    #[inline]
    fn end(self, bytes: &[u8], at: usize) -> Option<usize> {
        let rest = bytes.get(at..)?;
        let size = match self {
            Encoding::Leb => 1 + rest.iter().position(|&byte| byte < 0x80)?,
            Encoding::String => 1 + rest.iter().position(|&byte| byte == 0)?,
            Encoding::Block(width) => usize::try_from(number(rest, 0, width)?)
                .ok()?
                .checked_add(width)?,
            // Sizes of more than two bytes are left to gimli.
            Encoding::LebBlock => match *rest {
                [size, ..] if size < 0x80 => 1 + usize::from(size),
                [low, high, ..] if high < 0x80 => {
                    2 + (usize::from(low & 0x7f) | (usize::from(high) << 7))
                }
                _ => return None,
            },
            Encoding::Unknown => return None,
        };
        (size <= rest.len()).then(|| at + size)
    }
}

fn encoding(form: DwForm) -> Encoding {
    match form {
        gimli::DW_FORM_block1 => Encoding::Block(1),
        gimli::DW_FORM_block2 => Encoding::Block(2),
        gimli::DW_FORM_block4 => Encoding::Block(4),
        gimli::DW_FORM_block | gimli::DW_FORM_exprloc => Encoding::LebBlock,
        gimli::DW_FORM_string => Encoding::String,
        gimli::DW_FORM_udata
        | gimli::DW_FORM_sdata
        | gimli::DW_FORM_ref_udata
        | gimli::DW_FORM_strx
        | gimli::DW_FORM_addrx
        | gimli::DW_FORM_loclistx
        | gimli::DW_FORM_rnglistx => Encoding::Leb,
        _ => Encoding::Unknown,
    }
}

/// An attribute in a list of specifications.
struct AttributePosition {
    spec: AttributeSpecification,
    /// Bytes of the attributes before it; `None` if one of them has a variable size.
    before: Option<usize>,
    /// Bytes of the attributes after it; `None` if one of them has a variable size.
    after: Option<usize>,
}

/// Finds the attribute `name`. Returns `None` if there is none, or more than one.
fn attribute_position(
    specs: &[AttributeSpecification],
    header: &UnitHeader<Slice>,
    name: gimli::DwAt,
) -> Option<AttributePosition> {
    let bytes = |specs: &[AttributeSpecification]| {
        let sizes = specs.iter().map(|spec| spec.size(header));
        sizes.sum::<Option<usize>>()
    };
    let at = specs.iter().position(|spec| spec.name() == name)?;
    let rest = &specs[at + 1..];
    let is_only = rest.iter().all(|spec| spec.name() != name);
    is_only.then(|| AttributePosition {
        spec: specs[at],
        before: bytes(&specs[..at]),
        after: bytes(rest),
    })
}

fn range_position(
    specs: &[AttributeSpecification],
    header: &UnitHeader<Slice>,
) -> Option<RangePosition> {
    let low = attribute_position(specs, header, gimli::DW_AT_low_pc)?;
    let high = attribute_position(specs, header, gimli::DW_AT_high_pc)?;
    let has_ranges = specs.iter().any(|s| s.name() == gimli::DW_AT_ranges);
    let is_address = low.spec.form() == gimli::DW_FORM_addr && low.spec.size(header) == Some(8);
    let is_size = matches!(
        high.spec.form(),
        gimli::DW_FORM_data1 | gimli::DW_FORM_data2 | gimli::DW_FORM_data4 | gimli::DW_FORM_data8
    );
    let position = RangePosition {
        begin: low.before?,
        size: high.before?,
        width: high.spec.size(header)?,
    };
    (is_address && is_size && !has_ranges).then_some(position)
}

/// Returns the distance of the sibling reference from the entry's end, in bytes, if it is fixed.
fn sibling_distance(specs: &[AttributeSpecification], header: &UnitHeader<Slice>) -> Option<usize> {
    let sibling = attribute_position(specs, header, gimli::DW_AT_sibling)?;
    let is_offset = sibling.spec.form() == gimli::DW_FORM_ref4;
    sibling.after.filter(|_| is_offset).map(|after| after + 4)
}
