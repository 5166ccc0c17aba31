//! Header of a sampled object: two words, before the object or in a table. The agent writes it;
//! leak checks read it from outside.
//!
//! A header before an object is the first thing that a program overwrites when it writes before its
//! objects. So each word has a check value, which depends on its contents and the object's address,
//! and a word with a wrong check value is ignored.
//!
//! ```text
//! first    bits 0-16 size, 17-19 flags, 20-31 check, 32-39 session, 40-63 record
//! second   bits 0-31 birth tick, 32-55 weight, 56-63 check
//! ```
//! The second word of a freed object has a value that no live object has. The agent's free lists
//! use its first word.
//!
//! Objects that are larger than the first word can hold, or have an alignment above 16, have an
//! *extension* of two words before the header: size and alignment, and a check value.
//!
//! ```text
//!   base                                             object
//!   | … padding for alignment … | extension (16) | header (16) | bytes …
//! ```
//! Objects that fill a size class of 1, 2, … or 14 KiB start at the beginning of their memory.
//! Their headers are in a table at the start of the range of sampled objects, with an entry for
//! each KiB of the range.
//!
//! Everything here is inlined, since part of it runs in a copy of the process where no other code
//! is mapped.

// Decision 71: headers carry checks.

/// Size of a header, and of an extension, in bytes.
pub const HEADER: usize = 16;
/// Distance in bytes from the start of an extension to its object. The header is between them.
pub const EXTENSION_DISTANCE: usize = 2 * HEADER;
/// Minimum size in bytes of objects with an extension.
pub const MIN_EXTENDED_BYTES: u64 = 1 << 17;
/// Number of bytes of the range of sampled objects for each entry of the table. Objects with a
/// header in the table start at a multiple of it.
pub const TABLE_UNIT: usize = 1024;
/// Largest size class, in bytes, with headers in the table. Unused pages of larger objects are not
/// resident.
pub const MAX_TABLE_CLASS: usize = 14 << 10;

/// Words of a header, and of an extension.
pub type Words = [u64; 2];

/// Returns true if objects that fill this size class have their headers in the table.
#[inline(always)]
#[must_use]
pub const fn is_table_class(class: usize) -> bool {
    class <= MAX_TABLE_CLASS && class.is_multiple_of(TABLE_UNIT)
}

/// Returns the offset of the table's entry for an object. Both are offsets from the range's start.
#[inline(always)]
#[must_use]
pub const fn entry_offset(offset: usize) -> usize {
    (offset / TABLE_UNIT).wrapping_mul(HEADER)
}

/// Returns the offset in its memory of an object with an extension, aligned to `align`.
#[inline(always)]
#[must_use]
pub const fn extended_offset(align: usize) -> usize {
    if align > EXTENSION_DISTANCE {
        align
    } else {
        EXTENSION_DISTANCE
    }
}

const SIZE_MASK: u64 = MIN_EXTENDED_BYTES - 1;
const IGNORED: u64 = 1 << 17;
const EXACT: u64 = 1 << 18;
const EXTENDED: u64 = 1 << 19;
const FIRST_CHECK: u64 = 0xfff << 20;
const WEIGHT_SHIFT: u32 = 32;
const WEIGHT_MASK: u64 = 0xff_ffff;
const SECOND_CHECK: u64 = 0xff << 56;
/// Number of low bits of an `f32` that are dropped when a weight is stored.
const WEIGHT_CUT: u32 = 5;
/// Bits of the smallest weight, 1.
const WEIGHT_ONE: u32 = 1.0_f32.to_bits();
/// Position of the alignment's logarithm in an extension's first word, above the size.
const ALIGN_SHIFT: u32 = 56;
/// Multipliers of the check values. With the first, a change of any single byte of a word changes
/// its check value, which a test verifies.
const MIX: u64 = 0x7969_0975_fbde_15b1;
const MIX_SECOND: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_FREED: u64 = 0xd6e8_feb8_6659_fd93;
const MIX_EXTENSION: u64 = 0xbf58_476d_1ce4_e5b9;

/// Contents of the first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstWord {
    /// Index of the record in which the object was counted.
    pub record: u32,
    /// Lowest 8 bits of the session's number.
    pub session: u8,
    /// Requested size in bytes; 0 if there is an extension.
    pub bytes: u64,
    /// True if leak checks ignore the object.
    pub ignored: bool,
    /// True if the object's usable size is its whole size class.
    pub exact: bool,
    /// True if the object has an extension.
    pub extended: bool,
}

/// Contents of the second word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SecondWord {
    /// Number of objects that the sample stands for.
    pub weight: f32,
    /// Clock tick of the allocation.
    pub born: u32,
}

/// Returns the first word of the header of the object at `at`.
#[inline(always)]
#[must_use]
pub fn first_word(contents: &FirstWord, at: u64) -> u64 {
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    let word = (contents.bytes & SIZE_MASK)
        | flag(contents.ignored, IGNORED)
        | flag(contents.exact, EXACT)
        | flag(contents.extended, EXTENDED)
        | (u64::from(contents.session) << 32)
        | (u64::from(contents.record) << 40);
    word | first_check(word, at)
}

/// Decodes a first word. Returns `None` if it was overwritten.
#[inline(always)]
#[must_use]
pub fn read_first_word(word: u64, at: u64) -> Option<FirstWord> {
    if word & FIRST_CHECK != first_check(word, at) {
        return None;
    }
    Some(FirstWord {
        record: (word >> 40) as u32,
        session: (word >> 32) as u8,
        bytes: word & SIZE_MASK,
        ignored: word & IGNORED != 0,
        exact: word & EXACT != 0,
        extended: word & EXTENDED != 0,
    })
}

#[inline(always)]
fn first_check(word: u64, at: u64) -> u64 {
    (((word & !FIRST_CHECK) ^ at).wrapping_mul(MIX) >> 52) << 20
}

/// Returns the second word of the header of the object at `at`. The weight must come from
/// [`storable`].
#[inline(always)]
#[must_use]
pub fn second_word(contents: SecondWord, at: u64) -> u64 {
    let code = weight_code(contents.weight);
    let word = u64::from(contents.born) | (u64::from(code) << WEIGHT_SHIFT);
    word | second_check(word, at)
}

/// Decodes a second word. Returns `None` if it was overwritten, or if the object was freed.
#[inline(always)]
#[must_use]
pub fn read_second_word(word: u64, at: u64) -> Option<SecondWord> {
    let code = ((word >> WEIGHT_SHIFT) & WEIGHT_MASK) as u32;
    if code == 0 || word & SECOND_CHECK != second_check(word, at) {
        return None;
    }
    Some(SecondWord {
        weight: f32::from_bits(((code - 1) << WEIGHT_CUT) + WEIGHT_ONE),
        born: word as u32,
    })
}

#[inline(always)]
fn second_check(word: u64, at: u64) -> u64 {
    ((word & !SECOND_CHECK) ^ at).wrapping_mul(MIX_SECOND) & SECOND_CHECK
}

/// Returns the second word of a freed object.
#[inline(always)]
#[must_use]
pub fn freed_word(at: u64) -> u64 {
    at.wrapping_mul(MIX_FREED) & !(WEIGHT_MASK << WEIGHT_SHIFT)
}

/// Returns true if a second word says that the object was freed.
#[inline(always)]
#[must_use]
pub fn is_freed(word: u64, at: u64) -> bool {
    word == freed_word(at)
}

/// Returns the nearest weight that a header can hold, which differs by at most 2 in a million.
#[inline(always)]
#[must_use]
pub fn storable(weight: f32) -> f32 {
    f32::from_bits(((weight_code(weight) - 1) << WEIGHT_CUT) + WEIGHT_ONE)
}

/// Returns the code of a weight: 1 for weight 1, larger for larger weights; at most 24 bits.
#[inline(always)]
fn weight_code(weight: f32) -> u32 {
    let bits = weight.to_bits().wrapping_sub(WEIGHT_ONE);
    let rounded = bits.wrapping_add(1 << (WEIGHT_CUT - 1)) >> WEIGHT_CUT;
    // The code of a weight below 1 is negative, so its sign bit exceeds the mask.
    rounded.min(WEIGHT_MASK as u32 - 1) + 1
}

/// Returns the extension of the object at `at`. `align` is a power of two.
#[inline(always)]
#[must_use]
pub fn extension(bytes: u64, align: u64, at: u64) -> Words {
    let word = bytes | (u64::from(align.trailing_zeros()) << ALIGN_SHIFT);
    [word, extension_check(word, at)]
}

/// Decodes an extension into size and alignment. Returns `None` if there is none or it was
/// overwritten.
#[inline(always)]
#[must_use]
pub fn read_extension(words: Words, at: u64) -> Option<(u64, u64)> {
    let [word, check] = words;
    let align = word >> ALIGN_SHIFT;
    if check != extension_check(word, at) || align >= 48 {
        return None;
    }
    Some((word & ((1 << ALIGN_SHIFT) - 1), 1 << align))
}

#[inline(always)]
fn extension_check(word: u64, at: u64) -> u64 {
    let mixed = (word ^ at.rotate_left(32)).wrapping_mul(MIX_EXTENSION);
    // Never 0: pages that were returned to the kernel read as zeros.
    (mixed ^ (mixed >> 29)).wrapping_mul(MIX) | 1
}

/// Maximum ratio of a weight to the one computed from size and interval: thinning takes one of 8
/// due samples, and rounding adds a little.
pub const LARGEST_FACTOR: f32 = 8.001;

/// Returns the largest weight that a sampled object of this size can have in a session whose
/// intervals were at most `interval`.
#[must_use]
pub fn largest_weight(bytes: u64, interval: u64) -> f32 {
    if interval <= 1 {
        return 1.0;
    }
    // 1 / (1 - exp(-x)) is less than 1 + 1 / x.
    let max_unthinned = 1.0 + interval as f64 / bytes.max(1) as f64;
    max_unthinned as f32 * LARGEST_FACTOR
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: u64 = 0x2000_1234_5670;
    /// Words of a header, of an extension, and the second word of a freed object.
    const PINNED: Words = [0xabcd_ef12_a6bb_2345, 0xdb04_0001_dead_beef];
    const PINNED_EXTENSION: Words = [0x0c00_0100_0000_0000, 0x3885_5382_9e1c_f525];
    const PINNED_FREED: u64 = 0x3f00_0000_da6a_5250;

    fn first_word_of(seed: u64) -> FirstWord {
        FirstWord {
            record: (seed.wrapping_mul(MIX_SECOND) >> 40) as u32,
            session: seed as u8,
            bytes: seed.wrapping_mul(MIX_FREED) >> 47,
            ignored: seed & 1 != 0,
            exact: seed & 2 != 0,
            extended: seed & 4 != 0,
        }
    }

    #[test]
    fn decoding_reverses_encoding() {
        for seed in 0..10_000 {
            let counted = first_word_of(seed);
            assert_eq!(
                read_first_word(first_word(&counted, ADDRESS), ADDRESS),
                Some(counted)
            );
            let weight = storable(1.0 + (seed * seed) as f32 / 77.0);
            let born = (seed as u32).wrapping_mul(0x9e37_79b9);
            let drawn = SecondWord { weight, born };
            let word = second_word(drawn, ADDRESS);
            assert_eq!(read_second_word(word, ADDRESS), Some(drawn));
            assert!(!is_freed(word, ADDRESS));
        }
        assert_eq!(read_second_word(freed_word(ADDRESS), ADDRESS), None);
        assert!(is_freed(freed_word(ADDRESS), ADDRESS) && !is_freed(0, ADDRESS));
    }

    /// Agents and leak checks of different builds work together, so a change here requires a new
    /// `ABI_VERSION`.
    #[test]
    fn layout_is_pinned() {
        assert_eq!(
            (HEADER, size_of::<Words>(), EXTENSION_DISTANCE),
            (16, 16, 32)
        );
        assert_eq!(
            (MIN_EXTENDED_BYTES, TABLE_UNIT, MAX_TABLE_CLASS),
            (131_072, 1024, 14_336)
        );
        for (offset, entry) in [
            (0, 0),
            (1023, 0),
            (1024, 16),
            (10_240, 160),
            (1 << 38, 1 << 32),
        ] {
            assert_eq!(entry_offset(offset), entry, "{offset}");
        }
        for (align, offset) in [(1, 32), (32, 32), (64, 64), (1 << 21, 1 << 21)] {
            assert_eq!(extended_offset(align), offset, "{align}");
        }
        assert!(is_table_class(1024) && is_table_class(14_336) && !is_table_class(15_360));
        assert!(!is_table_class(1536) && !is_table_class(16_384));

        let counted = FirstWord {
            record: 0xab_cdef,
            session: 0x12,
            bytes: 0x1_2345,
            ignored: true,
            exact: false,
            extended: true,
        };
        let word = first_word(&counted, ADDRESS);
        assert_eq!(word & !FIRST_CHECK, 0xabcd_ef12_000b_2345 & !FIRST_CHECK);
        let drawn = SecondWord {
            weight: 2.0,
            born: 0xdead_beef,
        };
        let words = [word, second_word(drawn, ADDRESS)];
        assert_eq!(words, PINNED, "{words:#x?}");
        let words = extension(1 << 40, 4096, ADDRESS);
        assert_eq!(words, PINNED_EXTENSION, "{words:#x?}");
        assert_eq!(
            freed_word(ADDRESS),
            PINNED_FREED,
            "{:#x}",
            freed_word(ADDRESS)
        );
    }

    #[test]
    fn stored_weights_differ_by_at_most_two_in_a_million() {
        for step in 0..100_000 {
            let weight = (f64::from(step) / 2800.0).exp() as f32;
            let near = storable(weight);
            assert!((near / weight - 1.0).abs() < 2.1e-6, "{weight}: {near}");
            assert_eq!(storable(near), near);
            // Thinning multiplies weights by powers of two.
            assert_eq!(storable(near * 1024.0), near * 1024.0);
        }
        assert_eq!(storable(1.0), 1.0);
        for odd in [0.0, -1.0, 0.5, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE] {
            assert!(storable(odd).is_finite() && storable(odd) >= 1.0, "{odd}");
        }
    }

    #[test]
    fn a_changed_byte_in_the_first_word_is_detected() {
        for seed in 0..300 {
            let word = first_word(&first_word_of(seed), ADDRESS);
            for byte in 0..8 {
                for change in 1..=255_u64 {
                    assert_eq!(
                        read_first_word(word ^ (change << (8 * byte)), ADDRESS),
                        None
                    );
                }
            }
        }
    }

    /// By chance, one word in 256 passes its check, and one header in a million.
    #[test]
    fn overwritten_headers_are_detected() {
        let drawn = SecondWord {
            weight: storable(43.2),
            born: 123_456,
        };
        let mut missed = 0;
        for seed in 0..1000 {
            let at = ADDRESS + 48 * seed;
            let words = [first_word(&first_word_of(seed), at), second_word(drawn, at)];
            for len in 1..=16 {
                for value in [0_u8, b'z', 0xff] {
                    let mut bytes = [0; 16];
                    bytes[..8].copy_from_slice(&words[0].to_le_bytes());
                    bytes[8..].copy_from_slice(&words[1].to_le_bytes());
                    let before = bytes;
                    bytes[16 - len..].fill(value);
                    let word = |at: usize| {
                        u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]))
                    };
                    let is_same = bytes == before;
                    let is_read = read_first_word(word(0), at).is_some()
                        && read_second_word(word(8), at).is_some_and(|d| d.weight < 1e6);
                    missed += u32::from(is_read && !is_same);
                }
            }
        }
        assert!(missed <= 480, "{missed} of 48000");
    }

    #[test]
    fn extensions_are_read_and_checked() {
        for (bytes, align) in [
            (0, 32),
            (MIN_EXTENDED_BYTES, 1),
            (1 << 40, 1 << 21),
            (100, 4096),
        ] {
            let words = extension(bytes, align, ADDRESS);
            assert_eq!(read_extension(words, ADDRESS), Some((bytes, align)));
            assert_eq!(read_extension(words, ADDRESS + 16), None);
            for byte in 0..16 {
                let mut other = words;
                other[byte / 8] ^= 1 << (byte % 8 * 8);
                assert_eq!(read_extension(other, ADDRESS), None);
            }
        }
        assert_eq!(read_extension([0; 2], ADDRESS), None);
        assert_eq!(read_extension([u64::MAX; 2], ADDRESS), None);
    }

    #[test]
    fn weights_are_bounded_by_size_and_interval() {
        for bytes in [0, 1, 24, 1000, 1 << 30] {
            for interval in [1, 1024, 512 << 10] {
                let exact = match interval {
                    1 => 1.0,
                    _ => 1.0 / -(-(bytes.max(1) as f64) / interval as f64).exp_m1(),
                };
                let bound = f64::from(largest_weight(bytes, interval));
                assert!(
                    interval == 1 && bound == exact
                        || bound >= 8.0 * exact && bound <= 17.0 * exact,
                    "{bytes} {interval}"
                );
            }
        }
    }
}
