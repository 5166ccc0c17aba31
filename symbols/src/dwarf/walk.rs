//! Going through the entries of a unit.

use std::rc::Rc;

use gimli::{Attribute, EntriesRaw, Error, Range, Reader, Result, UnitOffset, UnitRef};

use super::image::number;
use super::plan::{Plan, Plans};
use super::residency::Residency;
use super::units::Slice;

/// Bytes between entries that are no longer on the same page.
const FAR: usize = 4096;
/// Bytes between two looks at what is in memory.
const PIECE: usize = 1 << 20;

/// Where in the entries of a unit one is.
pub struct Walk<'w, 'a> {
    unit: UnitRef<'w, Slice<'a>>,
    residency: &'w Residency<'a>,
    /// The unit's entries.
    bytes: Slice<'a>,
    /// Bytes of the unit before them.
    base: usize,
    /// What comes next.
    at: usize,
    depth: isize,
    /// How far up it went since the last entry that was asked for.
    top: isize,
    /// How far the residency has been told.
    noted: usize,
}

/// An entry that was asked for.
pub struct Entry<'u> {
    /// Where it is in the unit.
    pub offset: UnitOffset,
    /// How deep it is.
    pub depth: isize,
    /// Entries this deep, and deeper, that were asked for before do not hold it.
    pub top: isize,
    /// What is known of it.
    pub plan: Rc<Plan<'u>>,
    /// Where its attributes are.
    attributes: usize,
    end: usize,
}

impl Entry<'_> {
    /// Whether it is of this kind.
    pub fn is(&self, kind: u8) -> bool {
        self.plan.kinds & kind != 0
    }
}

impl<'w, 'a> Walk<'w, 'a> {
    /// From the first entry of a unit.
    pub fn new(unit: UnitRef<'w, Slice<'a>>, residency: &'w Residency<'a>) -> Result<Self> {
        let base = unit.header.root_offset();
        Ok(Self {
            unit,
            residency,
            bytes: unit.header.range_from(base..)?,
            base: base.0,
            at: 0,
            depth: 0,
            top: isize::MAX,
            noted: 0,
        })
    }

    /// Goes to an entry, from which depths are counted.
    pub fn go(&mut self, offset: UnitOffset) -> Result<()> {
        let at = offset.0.checked_sub(self.base);
        let at = at.filter(|&at| at < self.bytes.len());
        let at = at.ok_or(Error::OffsetOutOfBounds(offset.0 as u64))?;
        if at.abs_diff(self.at) > FAR {
            self.residency.jump();
        }
        (self.at, self.depth, self.top) = (at, 0, isize::MAX);
        self.noted = at;
        Ok(())
    }

    /// Where the next entry is.
    pub fn next_offset(&self) -> UnitOffset {
        UnitOffset(self.base + self.at)
    }

    /// The next entry of one of these kinds, as long as entries are deeper than `depth`.
    pub fn next<'u>(
        &mut self,
        plans: &mut Plans<'u>,
        kinds: u8,
        depth: isize,
    ) -> Result<Option<Entry<'u>>> {
        let bytes = self.bytes.slice();
        while self.depth > depth && self.at < bytes.len() {
            let start = self.at;
            if start - self.noted >= PIECE {
                self.residency.piece();
                self.noted = start;
            }
            let (number, attributes) = self.number()?;
            if number == 0 {
                self.at = attributes;
                self.depth -= 1;
                self.top = self.top.min(self.depth);
                continue;
            }
            let plan = plans.get(number, &self.unit.header)?;
            let end = match plan.end(bytes, attributes) {
                Some(end) => end,
                None => self.end(plan, attributes)?,
            };
            self.at = end;
            let own = self.depth;
            self.depth += isize::from(plan.has_children);
            if plan.kinds & kinds != 0 {
                return Ok(Some(Entry {
                    offset: UnitOffset(self.base + start),
                    depth: own,
                    top: std::mem::replace(&mut self.top, isize::MAX),
                    plan: Rc::clone(plan),
                    attributes,
                    end,
                }));
            }
        }
        Ok(None)
    }

    /// The number of the next entry's abbreviation, and where its attributes are.
    #[inline]
    fn number(&self) -> Result<(u64, usize)> {
        match self.bytes.get(self.at) {
            Some(&number) if number < 0x80 => Ok((number.into(), self.at + 1)),
            _ => {
                let mut rest = self.bytes;
                rest.skip(self.at)?;
                let number = rest.read_uleb128()?;
                Ok((number, self.bytes.len() - rest.len()))
            }
        }
    }

    /// Where an entry ends that the plan cannot tell of.
    #[cold]
    fn end(&self, plan: &Plan<'_>, attributes: usize) -> Result<usize> {
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

    /// An entry's only range of addresses, if that is where its plan says.
    pub fn range(&self, entry: &Entry<'_>) -> Option<Range> {
        let place = entry.plan.range?;
        let entry = self.bytes.get(entry.attributes..entry.end)?;
        let begin = number(entry, place.begin, 8)?;
        let size = number(entry, place.size, place.width)?;
        let end = begin.saturating_add(size);
        Some(Range { begin, end })
    }

    /// An entry's sibling, if that is where its plan says.
    pub fn sibling(&self, entry: &Entry<'_>) -> Option<UnitOffset> {
        let at = entry.end.checked_sub(entry.plan.sibling?)?;
        number(&self.bytes, at, 4).map(|offset| UnitOffset(offset as usize))
    }
}
