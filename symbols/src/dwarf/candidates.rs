//! Units that may cover each address.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use gimli::{Range, Result, Unit, UnitType};

use super::residency::Residency;
use super::rows;
use super::units::{Slice, Units};

/// Maximum number of units that may cover one address. More occur only in corrupt files.
const MAX_UNITS_PER_ADDRESS: usize = 100;

/// Units that may cover each address.
pub struct Candidates {
    /// Candidates of each address. Units whose range starts last come first.
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

impl Units<'_> {
    /// Finds the units that may cover each of the addresses, which are sorted.
    pub fn candidates(&self, wanted: &[u64]) -> Result<Candidates> {
        let mut by_address: Vec<Vec<Candidate>> = vec![Vec::new(); wanted.len()];
        let mut add = |begin: u64, end: u64, unit: usize| {
            let first = wanted.partition_point(|&a| a < begin);
            let inside = wanted[first..].iter().take_while(|&&a| a < end);
            for (at, _) in inside.enumerate() {
                let candidates = &mut by_address[first + at];
                if candidates.len() < MAX_UNITS_PER_ADDRESS {
                    let range = Range { begin, end };
                    candidates.push(Candidate { unit, range });
                }
            }
        };
        let listed = self.add_aranges(&mut add)?;
        for (number, header) in self.headers().iter().enumerate() {
            if listed[number] || matches!(header.type_(), UnitType::Partial) {
                continue;
            }
            let unit = self.open(number)?;
            let mut ranges = self.dwarf().unit_ranges(&unit)?;
            let mut has_ranges = false;
            while let Some(range) = ranges.next()? {
                has_ranges |= range.begin < range.end;
                add(range.begin, range.end, number);
            }
            if !has_ranges {
                each_sequence(&unit, &self.residency, |begin, end| {
                    add(begin, end, number);
                })?;
            }
        }
        for found in &mut by_address {
            let descending_start = |candidate: &Candidate| {
                Reverse((candidate.range.begin, candidate.unit, candidate.range.end))
            };
            found.sort_unstable_by_key(descending_start);
            found.dedup_by_key(|candidate| candidate.unit);
        }
        Ok(Candidates { by_address })
    }

    /// Adds the ranges of `.debug_aranges`. Returns for each unit whether it is listed there.
    fn add_aranges(&self, add: &mut impl FnMut(u64, u64, usize)) -> Result<Vec<bool>> {
        let mut listed = vec![false; self.headers().len()];
        let mut sets = self.dwarf().debug_aranges.headers();
        while let Some(set) = sets.next()? {
            let Some(unit) = self.number_at(set.debug_info_offset().0) else {
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
                    // The range overflows the address space. The iterator continues or ends.
                    Err(_) => {}
                }
            }
        }
        Ok(listed)
    }
}

/// Passes the address range of each sequence of a unit's line table to `visit`.
fn each_sequence<'a>(
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

impl Candidates {
    /// Returns the numbers of all units.
    pub fn units(&self) -> BTreeSet<usize> {
        self.by_address
            .iter()
            .flatten()
            .map(|candidate| candidate.unit)
            .collect()
    }

    /// Calls `look_up` for each unit, with all the addresses to look up in it. Begins with the
    /// first candidate of each address; addresses that are not found are looked up in their next
    /// candidate.
    pub fn look_up_in_turn<T>(
        &self,
        wanted: &[u64],
        mut look_up: impl FnMut(&UnitQuery, &mut [Option<T>]) -> Result<()>,
    ) -> Result<Vec<Option<T>>> {
        let mut found: Vec<Option<T>> = wanted.iter().map(|_| None).collect();
        for turn in 0.. {
            let mut by_unit: BTreeMap<usize, Vec<(usize, Range)>> = BTreeMap::new();
            for (at, units) in self.by_address.iter().enumerate() {
                if found[at].is_none()
                    && let Some(candidate) = units.get(turn)
                {
                    by_unit
                        .entry(candidate.unit)
                        .or_default()
                        .push((at, candidate.range));
                }
            }
            if by_unit.is_empty() {
                break;
            }
            for (unit, lookups) in by_unit {
                let (indices, ranges): (Vec<usize>, Vec<Range>) = lookups.into_iter().unzip();
                let addresses: Vec<u64> = indices.iter().map(|&at| wanted[at]).collect();
                let mut results: Vec<Option<T>> = indices.iter().map(|_| None).collect();
                let query = UnitQuery {
                    unit,
                    wanted: &addresses,
                    ranges: &ranges,
                };
                look_up(&query, &mut results)?;
                let results = indices.into_iter().zip(results);
                results.for_each(|(at, result)| found[at] = result);
            }
        }
        Ok(found)
    }
}
