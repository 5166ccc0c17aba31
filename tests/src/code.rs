//! Sums of a dump by function, computed without the parser: addresses are looked up in the symbol
//! table that `nm` prints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use profile::{Detail, NO_MAPPING, Profile};

use crate::session::tool;

/// A program's or library's functions.
pub struct Code {
    path: PathBuf,
    /// Difference between an address of the symbol table and its offset in the file.
    bias: u64,
    /// Start, end, name; in order.
    functions: Vec<(u64, u64, String)>,
}

/// Sum over the stacks that end in a function.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// Sum of the values, as the dump has them.
    pub detail: Detail,
    /// Number of stacks.
    pub stacks: usize,
}

impl Code {
    /// Reads the symbol table of a binary.
    pub fn of(path: &Path) -> Self {
        let path = std::fs::canonicalize(path).expect("a binary");
        let listing = tool(
            "nm",
            ["-S", "--defined-only"]
                .map(Path::new)
                .iter()
                .chain([&path.as_path()]),
        );
        let mut functions: Vec<_> = listing.lines().filter_map(function).collect();
        functions.sort();
        let bias = code_bias(&tool("readelf", [Path::new("-lW"), &path]));
        Self {
            path,
            bias,
            functions,
        }
    }

    fn name(&self, file_offset: u64) -> Option<&str> {
        let address = file_offset.wrapping_add(self.bias);
        let at = self.functions.partition_point(|f| f.0 <= address);
        let (_, end, name) = self.functions.get(at.checked_sub(1)?)?;
        (address < *end).then_some(name)
    }
}

/// Parses a line `0000000000001169 0000000000000042 T name`. Parts that compilers split off count
/// as the function itself.
fn function(line: &str) -> Option<(u64, u64, String)> {
    let mut fields = line.split_whitespace();
    let start = u64::from_str_radix(fields.next()?, 16).ok()?;
    let size = u64::from_str_radix(fields.next()?, 16).ok()?;
    let _kind = fields.next().filter(|k| "tTwW".contains(k))?;
    let name = fields.next()?.split('.').next()?;
    Some((start, start + size, name.to_owned()))
}

/// Returns the address minus the file offset of the executable segment.
fn code_bias(headers: &str) -> u64 {
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let executable = headers.lines().find_map(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        let code = fields.first() == Some(&"LOAD") && fields.contains(&"E");
        code.then(|| Some(hex(fields[2])?.wrapping_sub(hex(fields[1])?)))?
    });
    executable.expect("an executable segment")
}

/// Returns the names of those frames of a stack that lie in these binaries, leaf first.
pub fn names<'a>(profile: &Profile, stack: &[u32], binaries: &'a [Code]) -> Vec<&'a str> {
    let name = |id: &u32| {
        let location = profile.locations[*id as usize];
        if location.mapping == NO_MAPPING {
            return None;
        }
        let mapping = &profile.mappings[location.mapping as usize];
        let code = binaries.iter().find(|code| code.path == mapping.path)?;
        code.name(location.address - mapping.start + mapping.file_offset)
    };
    stack.iter().filter_map(name).collect()
}

/// Adds up stacks by the frame nearest to the leaf whose name starts with `prefix`.
pub fn sums(profile: &Profile, binaries: &[&Path], prefix: &str) -> BTreeMap<String, Sum> {
    let binaries: Vec<_> = binaries.iter().map(|path| Code::of(path)).collect();
    let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
    assert_eq!(profile.details.len(), profile.stacks.len(), "exact values");
    for (stack, detail) in profile.stacks.iter().zip(&profile.details) {
        let names = names(profile, stack, &binaries);
        if let Some(name) = names.iter().find(|name| name.starts_with(prefix)) {
            let sum = sums.entry((*name).to_owned()).or_default();
            sum.detail.add(detail);
            sum.stacks += 1;
        }
    }
    sums
}
