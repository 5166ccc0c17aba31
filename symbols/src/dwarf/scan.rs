//! Finds in a unit's bytes what begins at known addresses, without passing through what lies
//! before.
//!
//! A function's entry holds the address that it begins at as it is in memory, and so does the
//! sequence of rows of a section of code. The list of all units' addresses has these beginnings
//! wherever each function has a section of its own. To look at every byte for one of them takes a
//! fraction of the time that it takes to pass through all entries.
//!
//! Bytes that happen to equal an address are distinguished from one by their surroundings: the
//! callers check those. What is not found is left to be found by passing through everything.

use gimli::Range;
use memchr::memmem::Finder;

use super::image::number;
use super::residency::Residency;

const ADDRESS: usize = 8;
/// The bytes of an address in which those of one program differ: it is below 4 GiB.
const LOW: usize = 4;
/// Places that are examined together, without a branch.
const BLOCK: usize = 32;
/// Bytes between two looks at what is in memory.
const PIECE: usize = 1 << 20;
/// What sets the address of a sequence: an extended instruction of 9 bytes.
const SET_ADDRESS: [u8; 3] = [0, 9, 2];
/// What ends a sequence: an extended instruction of one byte.
const END: [u8; 3] = [0, 1, 1];
/// Maximum number of bytes of a sequence before its address: of file, column and flags.
const MOST_BEFORE: usize = 32;

/// Ranges of addresses whose beginnings are looked for: sorted, and one for each beginning.
pub struct Beginnings(Vec<Range>);

impl Beginnings {
    /// Those of the ranges that are below 4 GiB.
    pub fn new(ranges: &[Range]) -> Self {
        let mut ranges = ranges.to_vec();
        ranges.retain(|range| range.begin >> (8 * LOW) == 0);
        ranges.sort_unstable_by_key(|range| (range.begin, range.end));
        ranges.dedup_by_key(|range| range.begin);
        Self(ranges)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    fn at(&self, address: u64) -> Option<Range> {
        let at = self.0.binary_search_by_key(&address, |range| range.begin);
        Some(self.0[at.ok()?])
    }

    /// Tells `each` the places where one of the addresses is, and its range, as long as it wants
    /// more.
    pub fn places(
        &self,
        bytes: &[u8],
        residency: &Residency,
        mut each: impl FnMut(usize, Range) -> bool,
    ) {
        let (Some(first), Some(last)) = (self.0.first(), self.0.last()) else {
            return;
        };
        let may_be = first.begin..=last.begin;
        let mut at = 0;
        while let Some(block) = bytes[at..].first_chunk() {
            for (eight, mut places) in low_addresses(block).into_iter().enumerate() {
                // The lowest byte comes first.
                while places != 0 {
                    let place = at + eight * 8 + places.trailing_zeros() as usize / 8;
                    places &= places - 1;
                    let low = bytes[place..].first_chunk().copied();
                    let low = low.map_or(0, u32::from_le_bytes);
                    if may_be.contains(&u64::from(low)) && self.is_last(bytes, place, &mut each) {
                        return;
                    }
                }
            }
            at += BLOCK;
            if at % PIECE == 0 {
                residency.piece();
            }
        }
        for place in at..bytes.len() {
            if self.is_last(bytes, place, &mut each) {
                return;
            }
        }
    }

    /// Tells `each` of a place if an address is there; says whether it wants no more.
    fn is_last(
        &self,
        bytes: &[u8],
        place: usize,
        each: &mut impl FnMut(usize, Range) -> bool,
    ) -> bool {
        let address = bytes[place..].first_chunk().copied();
        let range = address.and_then(|address| self.at(u64::from_le_bytes(address)));
        range.is_some_and(|range| !each(place, range))
    }

    /// Places in a program of lines where a sequence may begin whose address is one of these: where
    /// that is, and where the address is set.
    pub fn sequences(&self, program: &[u8]) -> impl Iterator<Item = (usize, usize)> {
        let finder = Finder::new(&SET_ADDRESS);
        let mut from = 0;
        let next = move || {
            let set = from + finder.find(&program[from..])?;
            from = set + 1;
            Some(set)
        };
        let is_one = |set: &usize| {
            let address = number(program, set + SET_ADDRESS.len(), ADDRESS);
            address.is_some_and(|address| self.at(address).is_some())
        };
        std::iter::from_fn(next).filter(is_one).map(|set| {
            let least = set.saturating_sub(MOST_BEFORE);
            let mut before = program[least..set].windows(END.len());
            let end = before.rposition(|bytes| bytes == END);
            let start = end.map_or(least, |end| least + end + END.len());
            (start, set)
        })
    }
}

/// The places of a block where an address below 4 GiB may be: a byte for each, eight in a number,
/// with its lowest bit set.
#[inline]
fn low_addresses(block: &[u8; BLOCK + ADDRESS]) -> [u64; BLOCK / 8] {
    let mut may_be = [0; BLOCK];
    for (at, own) in may_be.iter_mut().enumerate() {
        let high = block[at + LOW] | block[at + 5] | block[at + 6] | block[at + 7];
        *own = u8::from(high == 0);
    }
    let (eights, _) = may_be.as_chunks();
    std::array::from_fn(|eight| u64::from_le_bytes(eights[eight]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beginnings(addresses: &[u64]) -> Beginnings {
        let range = |&begin| Range {
            begin,
            end: begin + 0x10,
        };
        Beginnings::new(&addresses.iter().map(range).collect::<Vec<_>>())
    }

    fn places(own: &Beginnings, bytes: &[u8]) -> Vec<(usize, u64)> {
        let mut told = Vec::new();
        own.places(bytes, &Residency::of(None), |at, range| {
            told.push((at, range.begin));
            true
        });
        told
    }

    #[test]
    fn addresses_are_found_wherever_they_are() {
        let own = beginnings(&[0x1000, 0x1234, 0xffff_fff0, 0x1234]);
        assert_eq!(own.count(), 3);
        for length in 8..150 {
            for at in 0..=length - ADDRESS {
                for (address, others) in [(0x1234_u64, 0xff), (0x1000, 0), (0xffff_fff0, 1)] {
                    let mut bytes = vec![others; length];
                    bytes[at..at + ADDRESS].copy_from_slice(&address.to_le_bytes());
                    assert_eq!(places(&own, &bytes), [(at, address)], "{length}");
                }
            }
        }
    }

    #[test]
    fn the_search_ends_when_no_more_is_wanted_and_beyond_4_gib_nothing_is_found() {
        let bytes = 0x1234_u64.to_le_bytes().repeat(50);
        let mut told = 0;
        beginnings(&[0x1234]).places(&bytes, &Residency::of(None), |_, _| {
            told += 1;
            told < 7
        });
        assert_eq!(told, 7);
        let high = 0x7000_0000_1234_u64;
        assert_eq!(
            places(&beginnings(&[high]), &high.to_le_bytes().repeat(9)),
            []
        );
        assert_eq!(places(&beginnings(&[]), &[0; 100]), []);
    }

    #[test]
    fn sequences_begin_behind_the_end_of_the_one_before() {
        let set = |address: u64| [&SET_ADDRESS[..], &address.to_le_bytes()].concat();
        let program = [
            // A column, the address, a row, the end.
            vec![5, 3],
            set(0x1000),
            vec![1],
            END.to_vec(),
            vec![4, 2],
            set(0x2000),
            vec![1],
            END.to_vec(),
            set(0x3000),
        ]
        .concat();
        let found = |address| beginnings(&[address]).sequences(&program).next();
        assert_eq!(found(0x1000), Some((0, 2)));
        assert_eq!(found(0x2000), Some((17, 19)));
        assert_eq!(found(0x3000), Some((34, 34)));
        assert_eq!(found(0x3001), None);
        // An address that the program ends in.
        let cut = &program[..program.len() - 1];
        assert_eq!(beginnings(&[0x3000]).sequences(cut).next(), None);
    }
}
