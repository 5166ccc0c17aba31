//! Names of the kernel's functions, from `/proc/kallsyms`.

use std::fs::File;
use std::io::{BufRead, BufReader};

/// Maximum number of symbols.
const MAX_SYMBOLS: usize = 1 << 21;
/// Maximum number of bytes of a line that are parsed.
const MAX_LINE_BYTES: usize = 1024;

/// Functions of the running kernel and its modules.
#[derive(Default)]
pub struct Symbols {
    /// Address of each function and length of its name in bytes; sorted by address.
    starts: Vec<(u64, u32)>,
    /// All names, one after another.
    names: String,
    /// Offset in `names` of each function's name.
    name_offsets: Vec<u32>,
}

impl Symbols {
    /// Reads the functions. Returns an empty table if the kernel hides their addresses
    /// (`kptr_restrict`).
    pub fn read() -> Self {
        match File::open("/proc/kallsyms") {
            Ok(file) => Self::from(BufReader::with_capacity(1 << 16, file)),
            Err(_) => Self::default(),
        }
    }

    fn from(mut text: impl BufRead) -> Self {
        let mut found = Vec::new();
        let mut names = String::new();
        let mut line = Vec::new();
        while found.len() < MAX_SYMBOLS {
            line.clear();
            match text.read_until(b'\n', &mut line) {
                Ok(count) if count > 0 => {}
                _ => break,
            }
            if let Some((address, name)) = symbol(&line) {
                found.push((address, names.len() as u32, name.len() as u32));
                names.push_str(name);
            }
        }
        // If an address has several names, the first is kept.
        found.sort_by_key(|(address, ..)| *address);
        found.dedup_by_key(|(address, ..)| *address);
        Self {
            starts: found
                .iter()
                .map(|(address, _, len)| (*address, *len))
                .collect(),
            name_offsets: found.iter().map(|(_, offset, _)| *offset).collect(),
            names,
        }
    }

    /// Returns true if there are no symbols.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Returns the start of the function that contains an address.
    pub fn start(&self, address: u64) -> Option<u64> {
        let after = self.starts.partition_point(|(start, _)| *start <= address);
        Some(self.starts.get(after.checked_sub(1)?)?.0)
    }

    /// Returns the start of the function with this name.
    pub fn find(&self, name: &str) -> Option<u64> {
        let index = (0..self.starts.len()).find(|index| self.name_at(*index) == Some(name))?;
        Some(self.starts[index].0)
    }

    fn name_at(&self, index: usize) -> Option<&str> {
        let offset = self.name_offsets[index] as usize;
        let len = self.starts[index].1 as usize;
        self.names.get(offset..offset + len)
    }

    /// Returns the name of the function that starts at an address.
    pub fn name(&self, start: u64) -> Option<&str> {
        let index = self
            .starts
            .binary_search_by_key(&start, |(address, _)| *address)
            .ok()?;
        self.name_at(index)
    }
}

/// Parses a line such as `ffffffff81000000 T _stext`.
fn symbol(line: &[u8]) -> Option<(u64, &str)> {
    let line = std::str::from_utf8(line.get(..MAX_LINE_BYTES.min(line.len()))?).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    let kind = fields.next()?;
    let name = fields.next()?;
    let is_function = matches!(kind, "t" | "T" | "w" | "W");
    (is_function && address != 0).then_some((address, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_named_after_the_function_around_it() {
        let text = b"ffff0010 T second\nffff0000 t first\nffff0008 d data\nffff0010 t alias\n\
            0000 T hidden\nbroken\nffff0100 W third [module]\n";
        let symbols = Symbols::from(&text[..]);
        let name = |at| symbols.start(at).and_then(|start| symbols.name(start));
        assert_eq!(name(0xffff_000f), Some("first"));
        assert_eq!(name(0xffff_0010), Some("second"));
        assert_eq!(name(0xffff_0fff), Some("third"));
        assert_eq!(name(1), None);
        assert!(Symbols::from(&b"0 T a\n0 T b\n"[..]).is_empty());
    }
}
