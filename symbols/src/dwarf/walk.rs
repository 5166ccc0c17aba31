//! Walks through the entries (DIEs) of a unit.

use std::rc::Rc;

use gimli::{Attribute, EntriesRaw, Error, Range, Reader, Result, UnitOffset, UnitRef};

use super::image::number;
use super::plan::{SkipPlan, SkipPlans};
use super::residency::Residency;
use super::units::Slice;

/// Distance of a jump, in bytes, from which the target is surely on another page.
const PAGE_SIZE: usize = 4096;
/// Bytes read between reports to [`Residency`].
const REPORT_EVERY: usize = 1 << 20;

/// Position in the entries of a unit.
pub struct Walk<'w, 'a> {
    unit: UnitRef<'w, Slice<'a>>,
    residency: &'w Residency<'a>,
    /// Entries of the unit.
    bytes: Slice<'a>,
    /// Offset of `bytes` in the unit.
    base: usize,
    /// Offset of the next entry in `bytes`.
    at: usize,
    /// Depth of the next entry.
    depth: isize,
    /// Minimum depth since the last entry returned.
    min_depth: isize,
    /// Offset in `bytes` up to which reading has been reported to `residency`.
    reported: usize,
}

/// An entry returned by a walk.
pub struct Entry<'u> {
    /// Offset in the unit.
    pub offset: UnitOffset,
    /// Depth, relative to the start of the walk.
    pub depth: isize,
    /// Minimum depth since the entry returned before this one. Earlier entries at this depth or
    /// deeper are not ancestors.
    pub min_depth: isize,
    /// Skip plan of the entry's abbreviation.
    pub plan: Rc<SkipPlan<'u>>,
    /// Offset of the first attribute in the unit's entries.
    attributes: usize,
    /// Offset after the last attribute.
    end: usize,
}

impl Entry<'_> {
    /// Returns true if the entry has this flag of [`super::plan::kind`].
    pub fn has_kind(&self, kind: u8) -> bool {
        self.plan.kinds & kind != 0
    }
}

impl<'w, 'a> Walk<'w, 'a> {
    /// Starts at the first entry of a unit.
    pub fn new(unit: UnitRef<'w, Slice<'a>>, residency: &'w Residency<'a>) -> Result<Self> {
        let base = unit.header.root_offset();
        Ok(Self {
            unit,
            residency,
            bytes: unit.header.range_from(base..)?,
            base: base.0,
            at: 0,
            depth: 0,
            min_depth: isize::MAX,
            reported: 0,
        })
    }

    /// Moves to an entry, which gets depth 0.
    pub fn seek(&mut self, offset: UnitOffset) -> Result<()> {
        let at = offset.0.checked_sub(self.base);
        let at = at.filter(|&at| at < self.bytes.len());
        let at = at.ok_or(Error::OffsetOutOfBounds(offset.0 as u64))?;
        if at.abs_diff(self.at) > PAGE_SIZE {
            self.residency.count_jump();
        }
        self.at = at;
        self.depth = 0;
        self.min_depth = isize::MAX;
        self.reported = at;
        Ok(())
    }

    /// Skips the children of `entry`: moves forward to its sibling.
    pub fn pass_over(&mut self, entry: &Entry<'_>, sibling: UnitOffset) -> Result<()> {
        self.seek(sibling)?;
        self.depth = entry.depth;
        Ok(())
    }

    /// Returns the offset of the next entry.
    pub fn next_offset(&self) -> UnitOffset {
        UnitOffset(self.base + self.at)
    }

    /// Returns the next entry that has one of the flags `kinds`. Stops at the first entry whose
    /// depth is not greater than `stop_depth` (`isize::MIN`: walks to the end of the unit).
    pub fn next<'u>(
        &mut self,
        plans: &mut SkipPlans<'u>,
        kinds: u8,
        stop_depth: isize,
    ) -> Result<Option<Entry<'u>>> {
        let bytes = self.bytes.slice();
        while self.depth > stop_depth && self.at < bytes.len() {
            let start = self.at;
            if start - self.reported >= REPORT_EVERY {
                self.residency.count_mebibyte();
                self.reported = start;
            }
            let (code, attributes) = self.read_code()?;
            if code == 0 {
                self.at = attributes;
                self.depth -= 1;
                self.min_depth = self.min_depth.min(self.depth);
                continue;
            }
            let plan = plans.get(code, &self.unit.header)?;
            let end = match plan.end(bytes, attributes) {
                Some(end) => end,
                None => self.end_by_gimli(plan, attributes)?,
            };
            self.at = end;
            let entry_depth = self.depth;
            self.depth += isize::from(plan.has_children);
            if plan.kinds & kinds != 0 {
                return Ok(Some(Entry {
                    offset: UnitOffset(self.base + start),
                    depth: entry_depth,
                    min_depth: std::mem::replace(&mut self.min_depth, isize::MAX),
                    plan: Rc::clone(plan),
                    attributes,
                    end,
                }));
            }
        }
        Ok(None)
    }

    /// Reads the abbreviation code of the next entry. Returns it and the offset of the attributes.
    #[inline]
    fn read_code(&self) -> Result<(u64, usize)> {
        match self.bytes.get(self.at) {
            Some(&code) if code < 0x80 => Ok((code.into(), self.at + 1)),
            _ => {
                let mut rest = self.bytes;
                rest.skip(self.at)?;
                let code = rest.read_uleb128()?;
                Ok((code, self.bytes.len() - rest.len()))
            }
        }
    }

    /// Finds the end of an entry with gimli, if the entry's plan does not give it.
    #[cold]
    fn end_by_gimli(&self, plan: &SkipPlan<'_>, attributes: usize) -> Result<usize> {
        let mut rest = self.attributes(attributes)?;
        rest.skip_attributes(plan.abbreviation.attributes())?;
        Ok(rest.next_offset().0)
    }

    /// Reads an entry's attributes.
    pub fn read(
        &self,
        entry: &Entry<'_>,
        mut each: impl FnMut(Attribute<Slice<'a>>) -> Result<()>,
    ) -> Result<()> {
        let mut rest = self.attributes(entry.attributes)?;
        let specs = entry.plan.abbreviation.attributes();
        specs
            .iter()
            .try_for_each(|&spec| each(rest.read_attribute(spec)?))
    }

    fn attributes(&self, at: usize) -> Result<EntriesRaw<'w, Slice<'a>>> {
        let mut rest = self.bytes;
        rest.skip(at)?;
        let unit = self.unit.unit;
        let encoding = unit.header.encoding();
        Ok(EntriesRaw::new(
            rest,
            encoding,
            &unit.abbreviations,
            UnitOffset(at),
        ))
    }

    /// Returns the entry's only address range, if its position is in the plan.
    pub fn range(&self, entry: &Entry<'_>) -> Option<Range> {
        let position = entry.plan.range?;
        let entry = self.bytes.get(entry.attributes..entry.end)?;
        let begin = number(entry, position.begin, 8)?;
        let size = number(entry, position.size, position.width)?;
        let end = begin.saturating_add(size);
        Some(Range { begin, end })
    }

    /// Returns the entry's sibling, if its position is in the plan.
    pub fn sibling(&self, entry: &Entry<'_>) -> Option<UnitOffset> {
        let at = entry.end.checked_sub(entry.plan.sibling?)?;
        number(&self.bytes, at, 4).map(|offset| UnitOffset(offset as usize))
    }
}

#[cfg(test)]
mod tests {
    use gimli::{DwForm, Dwarf, LittleEndian, SectionId};

    use super::super::plan::kind;
    use super::*;

    /// Attribute forms, each with an encoded value.
    const FORMS: [(DwForm, &[u8]); 22] = [
        (gimli::DW_FORM_addr, &[1; 8]),
        (gimli::DW_FORM_data1, &[1]),
        (gimli::DW_FORM_data2, &[1; 2]),
        (gimli::DW_FORM_data4, &[1; 4]),
        (gimli::DW_FORM_data8, &[1; 8]),
        (gimli::DW_FORM_data16, &[1; 16]),
        (gimli::DW_FORM_flag_present, &[]),
        (gimli::DW_FORM_strp, &[1; 4]),
        (gimli::DW_FORM_sec_offset, &[1; 4]),
        (gimli::DW_FORM_ref4, &[1; 4]),
        (gimli::DW_FORM_strx3, &[1; 3]),
        (gimli::DW_FORM_udata, &[0x80, 0x81, 1]),
        (gimli::DW_FORM_sdata, &[0x7f]),
        (gimli::DW_FORM_addrx, &[0xff, 1]),
        (gimli::DW_FORM_string, b"name\0"),
        (gimli::DW_FORM_block1, &[3, 1, 1, 1]),
        (gimli::DW_FORM_block2, &[2, 0, 1, 1]),
        (gimli::DW_FORM_block4, &[0; 4]),
        (gimli::DW_FORM_block, &[1, 1]),
        (gimli::DW_FORM_exprloc, &[0x82, 0, 1, 1]),
        (gimli::DW_FORM_exprloc, &[0x82, 0x80, 0, 1, 1]),
        // The value contains its form.
        (gimli::DW_FORM_indirect, &[0x0f, 0x80, 1]),
    ];

    fn leb(mut number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while number >= 0x80 {
            bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        bytes.push(number as u8);
        bytes
    }

    /// Generated abbreviations, and entries of a unit of version 5.
    #[derive(Default)]
    struct Generated {
        abbreviations: Vec<u8>,
        entries: Vec<u8>,
    }

    impl Generated {
        /// Adds an abbreviation with this code, and an entry that uses it.
        fn add(&mut self, number: u64, children: u8, attributes: &[(gimli::DwAt, DwForm, &[u8])]) {
            let abbreviations = &mut self.abbreviations;
            abbreviations.extend(leb(number));
            abbreviations.extend([gimli::DW_TAG_subprogram.0 as u8, children]);
            self.entries.extend(leb(number));
            for (name, form, bytes) in attributes {
                abbreviations.extend(leb(name.0.into()));
                abbreviations.extend(leb(form.0.into()));
                self.entries.extend(*bytes);
            }
            abbreviations.extend([0, 0]);
        }

        fn with_unit(&self, check: impl FnOnce(UnitRef<'_, Slice<'_>>)) {
            let abbreviations = [&self.abbreviations[..], &[0]].concat();
            let mut info = vec![5, 0, gimli::DW_UT_compile.0, 8, 0, 0, 0, 0];
            info.extend(&self.entries);
            info.splice(0..0, (info.len() as u32).to_le_bytes());
            let section = |id: SectionId| match id {
                SectionId::DebugInfo => &info[..],
                SectionId::DebugAbbrev => &abbreviations[..],
                _ => &[],
            };
            let section = |id| Ok::<_, ()>(Slice::new(section(id), LittleEndian));
            let dwarf = Dwarf::load(section).unwrap();
            let header = dwarf.units().next().unwrap().unwrap();
            let abbreviations = dwarf.abbreviations(&header).unwrap();
            let unit = gimli::Unit::new_with_abbreviations(&dwarf, header, abbreviations);
            check(UnitRef::new(&dwarf, &unit.unwrap()));
        }
    }

    /// Returns offsets and depths of all readable entries, and false if reading them ended with an
    /// error.
    fn by_gimli(unit: UnitRef<'_, Slice<'_>>) -> (Vec<(UnitOffset, isize)>, bool) {
        let mut entries = unit.entries_raw(None).unwrap();
        let mut all = Vec::new();
        while !entries.is_empty() {
            let entry = (entries.next_offset(), entries.next_depth());
            match entries.read_abbreviation() {
                Ok(None) => continue,
                Ok(Some(abbreviation))
                    if entries.skip_attributes(abbreviation.attributes()).is_ok() =>
                {
                    all.push(entry);
                }
                _ => return (all, false),
            }
        }
        (all, true)
    }

    fn by_us(unit: UnitRef<'_, Slice<'_>>) -> (Vec<(UnitOffset, isize)>, bool) {
        let residency = Residency::of(None);
        let mut walk = Walk::new(unit, &residency).unwrap();
        let mut plans = SkipPlans::new(&unit.unit.abbreviations);
        let mut all = Vec::new();
        loop {
            match walk.next(&mut plans, kind::FUNCTION, isize::MIN) {
                Ok(Some(entry)) => all.push((entry.offset, entry.depth)),
                Ok(None) => return (all, true),
                Err(_) => return (all, false),
            }
        }
    }

    #[test]
    fn ends_of_entries_match_gimli() {
        let name = gimli::DW_AT_decl_line;
        let mut generated = Generated::default();
        for (number, &(first, bytes)) in FORMS.iter().enumerate() {
            for (second, &(other, more)) in FORMS.iter().enumerate() {
                // Codes of one byte, of two bytes, and beyond the table.
                let number = (number * FORMS.len() + second) as u64 * 13 + 1;
                let fixed = (name, gimli::DW_FORM_data2, &[1, 1][..]);
                generated.add(
                    number,
                    0,
                    &[(name, first, bytes), fixed, (name, other, more)],
                );
            }
        }
        generated.with_unit(|unit| {
            let (all, whole) = by_us(unit);
            assert_eq!(all.len(), FORMS.len() * FORMS.len());
            assert_eq!((all, whole), by_gimli(unit));
        });
        // Entries that are truncated at any byte, or have undefined numbers and forms.
        for cut in 0..200 {
            generated
                .entries
                .truncate(generated.entries.len().min(4000 - cut));
            generated.with_unit(|unit| assert_eq!(by_us(unit), by_gimli(unit)));
        }
        generated.add(9000, 0, &[(name, DwForm(0x7f), &[])]);
        generated.with_unit(|unit| assert_eq!(by_us(unit), by_gimli(unit)));
        generated.entries.extend([0xff, 0xff, 0x7f]);
        generated.with_unit(|unit| assert_eq!(by_us(unit), by_gimli(unit)));
    }

    #[test]
    fn ranges_siblings_and_depths_follow_the_plan() {
        let mut generated = Generated::default();
        let low = (
            gimli::DW_AT_low_pc,
            gimli::DW_FORM_addr,
            &[0, 0x10, 0, 0, 0, 0, 0, 0][..],
        );
        let size = (
            gimli::DW_AT_high_pc,
            gimli::DW_FORM_data4,
            &[0x20, 0, 0, 0][..],
        );
        let text = (gimli::DW_AT_name, gimli::DW_FORM_string, &b"f\0"[..]);
        let next = (
            gimli::DW_AT_sibling,
            gimli::DW_FORM_ref4,
            &[0x40, 0, 0, 0][..],
        );
        generated.add(1, 1, &[low, size, text, next]);
        generated.add(2, 1, &[text, low, size]);
        generated.add(3, 0, &[next, text]);
        // Null entries that are encoded with more bytes than needed.
        generated.entries.extend([0, 0x80, 0]);
        generated.add(4, 0, &[low, text]);
        generated.with_unit(|unit| {
            assert_eq!(by_us(unit), by_gimli(unit));
            let residency = Residency::of(None);
            let mut walk = Walk::new(unit, &residency).unwrap();
            let mut plans = SkipPlans::new(&unit.unit.abbreviations);
            let mut reports = Vec::new();
            while let Some(entry) = walk.next(&mut plans, kind::FUNCTION, isize::MIN).unwrap() {
                let range = walk.range(&entry).map(|range| (range.begin, range.end));
                let sibling = walk.sibling(&entry).map(|sibling| sibling.0);
                reports.push((
                    entry.has_kind(kind::WITH_CODE),
                    range,
                    entry.has_kind(kind::SIBLING),
                    sibling,
                ));
            }
            let range = Some((0x1000, 0x1020));
            let expected = [
                (true, range, true, Some(0x40)),
                // It follows a string, so attributes have to be read to find it.
                (true, None, false, None),
                (false, None, false, None),
                (true, None, false, None),
            ];
            assert_eq!(reports, expected);
        });
    }
}
