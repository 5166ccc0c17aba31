//! Names of symbols, with the hash for searching tables of symbols.

use core::ffi::{CStr, c_char};

/// Name of a symbol.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    /// Text that begins with the name and its terminating zero.
    text: &'a [u8],
    hash: u32,
}

impl<'a> Name<'a> {
    /// Computes the hash; where the name is a constant, the compiler may do so.
    pub const fn new(name: &'a CStr) -> Self {
        Self {
            text: name.to_bytes_with_nul(),
            hash: hash_of(name.to_bytes()),
        }
    }

    /// Returns the name at the beginning of `text`, up to a zero, whose hash is known.
    pub const fn with_hash(text: &'a [u8], hash: u32) -> Self {
        Self { text, hash }
    }

    /// Returns the hash of `DT_GNU_HASH`.
    pub const fn hash(self) -> u32 {
        self.hash
    }

    /// Returns the name.
    pub fn to_bytes(self) -> &'a [u8] {
        let end = self.text.iter().position(|byte| *byte == 0);
        &self.text[..end.unwrap_or(self.text.len())]
    }

    /// Returns true if a symbol has this name.
    ///
    /// # Safety
    /// `symbol` is a terminated string.
    pub unsafe fn is(self, symbol: *const c_char) -> bool {
        // SAFETY: the caller's string.
        unsafe { CStr::from_ptr(symbol) }.to_bytes() == self.to_bytes()
    }
}

/// Returns the hash of a name for `DT_GNU_HASH`.
pub const fn hash_of(name: &[u8]) -> u32 {
    let (mut hash, mut at) = (5381_u32, 0);
    while at < name.len() {
        hash = hash.wrapping_mul(33).wrapping_add(name[at] as u32);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_at_its_zero() {
        let name = Name::with_hash(b"malloc\0free\0", hash_of(b"malloc"));
        assert_eq!(name.to_bytes(), b"malloc");
        assert_eq!(name.hash(), Name::new(c"malloc").hash());
        // SAFETY: terminated strings.
        let is = |other: &CStr| unsafe { name.is(other.as_ptr()) };
        assert!(is(c"malloc") && !is(c"mallo") && !is(c"malloc_usable_size") && !is(c"free"));
    }

    #[test]
    fn hashes_are_those_of_the_format() {
        // From the description of the format by its author.
        assert_eq!(hash_of(b""), 0x0000_1505);
        assert_eq!(hash_of(b"printf"), 0x156b_2bb8);
        assert_eq!(hash_of(b"exit"), 0x7c96_7e3f);
    }
}
