//! Finds entries and line-table sequences by their start address, without parsing what precedes
//! them.
//!
//! The entry of a function contains its start address as 8 plain bytes, and so does a line-table
//! sequence. If each function has its own section, `.debug_aranges` lists all start addresses.
//! Searching the bytes for them takes a fraction of the time of walking through all entries.
//!
//! Other bytes may equal an address by chance, so callers check the bytes around each match. What
//! is not found here is found by parsing everything.

use gimli::Range;
use memchr::memmem::Finder;

use super::image::number;
use super::residency::Residency;

/// Size of an address, in bytes.
const ADDRESS_SIZE: usize = 8;
/// Size of the low part of an address, in bytes: only addresses below 4 GiB are searched.
const LOW_SIZE: usize = 4;
/// Positions that are tested together, without a branch.
const BLOCK_SIZE: usize = 32;
/// Bytes read between reports to [`Residency`].
const REPORT_EVERY: usize = 1 << 20;
/// First bytes of `DW_LNE_set_address`, an extended opcode of 9 bytes.
const SET_ADDRESS: [u8; 3] = [0, 9, 2];
/// `DW_LNE_end_sequence`, an extended opcode of one byte.
const END_SEQUENCE: [u8; 3] = [0, 1, 1];
/// Maximum number of bytes of a sequence before it sets its address. They may set file, column and
/// flags.
const MAX_PREFIX: usize = 32;

/// Address ranges whose start addresses are searched for. Sorted, with unique starts.
pub struct StartAddresses(Vec<Range>);

/// A possible sequence of a line number program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Offset of the first instruction, if this is a sequence.
    pub start: usize,
    /// Offset of the instruction that sets the address.
    pub set_address: usize,
}

impl StartAddresses {
    /// Takes the ranges that start below 4 GiB.
    pub fn new(ranges: &[Range]) -> Self {
        let mut ranges = ranges.to_vec();
        ranges.retain(|range| range.begin >> (8 * LOW_SIZE) == 0);
        ranges.sort_unstable_by_key(|range| (range.begin, range.end));
        ranges.dedup_by_key(|range| range.begin);
        Self(ranges)
    }

    /// Returns the number of start addresses.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    fn range_starting_at(&self, address: u64) -> Option<Range> {
        let at = self.0.binary_search_by_key(&address, |range| range.begin);
        Some(self.0[at.ok()?])
    }

    /// Passes each position of a start address in `bytes` to `visit`, with the range, until
    /// that returns false.
    pub fn each_position(
        &self,
        bytes: &[u8],
        residency: &Residency,
        mut visit: impl FnMut(usize, Range) -> bool,
    ) {
        let (Some(first), Some(last)) = (self.0.first(), self.0.last()) else {
            return;
        };
        let range_of_starts = first.begin..=last.begin;
        let mut at = 0;
        while let Some(block) = bytes[at..].first_chunk() {
            for (group, mut mask) in low_addresses(block).into_iter().enumerate() {
                // The lowest byte is the first position.
                while mask != 0 {
                    let position = at + group * 8 + mask.trailing_zeros() as usize / 8;
                    mask &= mask - 1;
                    let low = bytes[position..].first_chunk().copied();
                    let low = low.map_or(0, u32::from_le_bytes);
                    if range_of_starts.contains(&u64::from(low))
                        && self.visit_position(bytes, position, &mut visit)
                    {
                        return;
                    }
                }
            }
            at += BLOCK_SIZE;
            if at % REPORT_EVERY == 0 {
                residency.count_mebibyte();
            }
        }
        for position in at..bytes.len() {
            if self.visit_position(bytes, position, &mut visit) {
                return;
            }
        }
    }

    /// Passes a position to `visit` if a start address is there. Returns true if the search must
    /// end.
    fn visit_position(
        &self,
        bytes: &[u8],
        position: usize,
        visit: &mut impl FnMut(usize, Range) -> bool,
    ) -> bool {
        let address = bytes[position..].first_chunk().copied();
        let range = address.and_then(|address| self.range_starting_at(u64::from_le_bytes(address)));
        range.is_some_and(|range| !visit(position, range))
    }

    /// Finds possible sequences with one of these start addresses in a line number program.
    pub fn sequences(&self, program: &[u8]) -> impl Iterator<Item = Sequence> {
        let finder = Finder::new(&SET_ADDRESS);
        let mut from = 0;
        let next = move || {
            let set = from + finder.find(&program[from..])?;
            from = set + 1;
            Some(set)
        };
        let sets_start = |set: &usize| {
            let address = number(program, set + SET_ADDRESS.len(), ADDRESS_SIZE);
            address.is_some_and(|address| self.range_starting_at(address).is_some())
        };
        std::iter::from_fn(next)
            .filter(sets_start)
            .map(|set_address| Sequence {
                start: possible_start(program, set_address),
                set_address,
            })
    }
}

/// Returns the offset after the last end of a sequence before `set_address`, or the lowest possible
/// start.
fn possible_start(program: &[u8], set_address: usize) -> usize {
    let min = set_address.saturating_sub(MAX_PREFIX);
    let mut before = program[min..set_address].windows(END_SEQUENCE.len());
    let end = before.rposition(|bytes| bytes == END_SEQUENCE);
    end.map_or(min, |end| min + end + END_SEQUENCE.len())
}

/// Finds the positions of a block at which an address below 4 GiB may be. The result has one byte
/// per position: 1 if there may be one, otherwise 0.
#[inline]
fn low_addresses(block: &[u8; BLOCK_SIZE + ADDRESS_SIZE]) -> [u64; BLOCK_SIZE / 8] {
    let mut may_be_low = [0; BLOCK_SIZE];
    for (at, is_low) in may_be_low.iter_mut().enumerate() {
        let high = block[at + LOW_SIZE] | block[at + 5] | block[at + 6] | block[at + 7];
        *is_low = u8::from(high == 0);
    }
    let (eights, _) = may_be_low.as_chunks();
    std::array::from_fn(|eight| u64::from_le_bytes(eights[eight]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(addresses: &[u64]) -> StartAddresses {
        let range = |&begin| Range {
            begin,
            end: begin + 0x10,
        };
        StartAddresses::new(&addresses.iter().map(range).collect::<Vec<_>>())
    }

    fn positions(addresses: &StartAddresses, bytes: &[u8]) -> Vec<(usize, u64)> {
        let mut reported = Vec::new();
        addresses.each_position(bytes, &Residency::of(None), |at, range| {
            reported.push((at, range.begin));
            true
        });
        reported
    }

    #[test]
    fn addresses_are_found_in_any_order() {
        let addresses = starts(&[0x1000, 0x1234, 0xffff_fff0, 0x1234]);
        assert_eq!(addresses.count(), 3);
        for length in 8..150 {
            for at in 0..=length - ADDRESS_SIZE {
                for (address, others) in [(0x1234_u64, 0xff), (0x1000, 0), (0xffff_fff0, 1)] {
                    let mut bytes = vec![others; length];
                    bytes[at..at + ADDRESS_SIZE].copy_from_slice(&address.to_le_bytes());
                    assert_eq!(positions(&addresses, &bytes), [(at, address)], "{length}");
                }
            }
        }
    }

    #[test]
    fn the_search_stops_early_and_ignores_offsets_beyond_4_gib() {
        let bytes = 0x1234_u64.to_le_bytes().repeat(50);
        let mut reported = 0;
        starts(&[0x1234]).each_position(&bytes, &Residency::of(None), |_, _| {
            reported += 1;
            reported < 7
        });
        assert_eq!(reported, 7);
        let high = 0x7000_0000_1234_u64;
        assert_eq!(
            positions(&starts(&[high]), &high.to_le_bytes().repeat(9)),
            []
        );
        assert_eq!(positions(&starts(&[]), &[0; 100]), []);
    }

    #[test]
    fn sequences_begin_after_the_end_of_the_previous_one() {
        let set = |address: u64| [&SET_ADDRESS[..], &address.to_le_bytes()].concat();
        let program = [
            // Sets a column and the address, emits a row, and ends the sequence.
            vec![5, 3],
            set(0x1000),
            vec![1],
            END_SEQUENCE.to_vec(),
            vec![4, 2],
            set(0x2000),
            vec![1],
            END_SEQUENCE.to_vec(),
            set(0x3000),
        ]
        .concat();
        let at = |start, set_address| Some(Sequence { start, set_address });
        let found = |address| starts(&[address]).sequences(&program).next();
        assert_eq!(found(0x1000), at(0, 2));
        assert_eq!(found(0x2000), at(17, 19));
        assert_eq!(found(0x3000), at(34, 34));
        assert_eq!(found(0x3001), None);
        // The program ends in the middle of an address.
        let cut = &program[..program.len() - 1];
        assert_eq!(starts(&[0x3000]).sequences(cut).next(), None);
    }
}
