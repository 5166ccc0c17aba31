//! Parses the text of `/proc/PID/maps`, and assigns addresses to its ranges.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::printable::replace_hidden;
use crate::profile::{BuildId, Mapping, NO_MAPPING, Profile};

/// A line of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// First address.
    pub start: u64,
    /// First address after the range.
    pub end: u64,
    /// Permissions, such as `rwxp`, `r--p` or `rw-s`.
    pub permissions: &'a [u8],
    /// Offset in the file.
    pub file_offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// Inode of the file; 0 if there is none.
    pub inode: u64,
    /// Path, or the kernel's name in brackets; empty if there is none.
    pub path: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Parses a line. Returns `None` if it is not an entry.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let (range, rest) = split_field(line);
        let (permissions, rest) = split_field(rest);
        let (offset, rest) = split_field(rest);
        let (device, rest) = split_field(rest);
        let (inode, path) = split_field(rest);
        let (start, end) = std::str::from_utf8(range).ok()?.split_once('-')?;
        let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
        let number = |text: &str| u32::from_str_radix(text, 16).ok();
        Some(Self {
            start: hex(start.as_bytes())?,
            end: hex(end.as_bytes())?,
            permissions,
            file_offset: hex(offset)?,
            device: (number(major)?, number(minor)?),
            inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
            path: path.trim_ascii_end(),
        })
    }

    /// Parses the entries of a maps text.
    pub fn all(text: &'a [u8]) -> impl Iterator<Item = Self> {
        text.split(|&c| c == b'\n').filter_map(Self::parse)
    }
}

/// Parses the executable ranges of a maps text, in its order. Skips lines that are not entries, as
/// other readers do.
pub fn parse(text: &[u8]) -> Vec<Mapping> {
    text.split(|&c| c == b'\n').filter_map(parse_line).collect()
}

/// Parses one line. Returns `None` if it is not an entry or not executable.
fn parse_line(line: &[u8]) -> Option<Mapping> {
    let line = line.trim_ascii();
    let (range, rest) = split_field(line);
    let dash = range.iter().position(|&c| c == b'-')?;
    let start = &range[..dash];
    let end = &range[dash + 1..];
    let without_colon = end.strip_suffix(b":");
    let start = hex(start)?;
    let end = hex(without_colon.unwrap_or(end))?;
    if without_colon.is_some() {
        return Some(brief_entry(start, end, rest));
    }
    let (permissions, after) = split_field(rest);
    if permissions.is_empty() || !permissions.iter().all(|c| b"-rwxps".contains(c)) {
        return Some(brief_entry(start, end, rest));
    }
    if !permissions.contains(&b'x') {
        return None;
    }
    let (offset, rest) = split_field(after);
    let (_device, rest) = split_field(rest);
    let (_inode, path) = split_field(rest);
    Some(Mapping {
        start,
        end,
        file_offset: hex(offset).unwrap_or(0),
        path: path_of(path),
        ..Mapping::default()
    })
}

/// Parses the rest of `START-END: path (@offset) build-id`, the form without permissions.
fn brief_entry(start: u64, end: u64, rest: &[u8]) -> Mapping {
    let (path, rest) = split_field(rest);
    let (at, rest) = split_field(rest);
    let offset = at
        .strip_prefix(b"(@")
        .and_then(|o| o.strip_suffix(b")"))
        .and_then(hex);
    let id = if offset.is_some() {
        split_field(rest).0
    } else {
        at
    };
    let build_id = std::str::from_utf8(id)
        .ok()
        .and_then(BuildId::from_hex)
        .unwrap_or_default();
    Mapping {
        start,
        end,
        file_offset: offset.unwrap_or(0),
        path: path_of(path),
        build_id,
        past: false,
    }
}

/// Splits off the first field. Returns it and the rest, without white space between them.
fn split_field(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_ascii_start())
}

fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(&with_newlines(bytes)))
}

/// Restores the newlines of a path in a maps text, where they are written as `\012`. The kernel
/// escapes nothing else.
pub fn with_newlines(mut path: &[u8]) -> Cow<'_, [u8]> {
    const NEWLINE: &[u8] = b"\\012";
    let next = |path: &[u8]| path.windows(NEWLINE.len()).position(|part| part == NEWLINE);
    let mut all = Vec::new();
    while let Some(at) = next(path) {
        all.extend_from_slice(&path[..at]);
        all.push(b'\n');
        path = &path[at + NEWLINE.len()..];
    }
    if all.is_empty() {
        return Cow::Borrowed(path);
    }
    all.extend_from_slice(path);
    Cow::Owned(all)
}

/// Parses a hex number of up to 16 digits, with or without `0x`.
pub(crate) fn hex(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0u64, |value, &c| {
        Some((value << 4) | u64::from(char::from(c).to_digit(16)?))
    })
}

/// Removes the kernel's suffix of a deleted file. Returns the path, and whether it had the suffix.
pub fn strip_deleted(path: &Path) -> (&Path, bool) {
    match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(bytes) => (Path::new(OsStr::from_bytes(bytes)), true),
        None => (path, false),
    }
}

/// Adds the facts of modules (build ids, unloaded modules) to the ranges of a maps text.
pub(crate) fn with_modules(mut mappings: Vec<Mapping>, modules: Vec<Mapping>) -> Vec<Mapping> {
    mappings.sort_by_key(|m| m.start);
    let mut added = Vec::new();
    for module in modules {
        let first = mappings.partition_point(|m| m.end <= module.start);
        let mut known = false;
        if !module.past {
            for mapping in mappings[first..]
                .iter_mut()
                .take_while(|m| m.start < module.end)
            {
                if is_range_of(mapping, &module) {
                    if mapping.path.as_os_str().as_bytes().contains(&b'?') {
                        mapping.path.clone_from(&module.path);
                    }
                    mapping.build_id = module.build_id.clone();
                    known |= mapping.contains(module.start);
                }
            }
        }
        if !known {
            added.push(module);
        }
    }
    mappings.extend(added);
    mappings
}

/// Returns true if a range of a maps text belongs to a module's file. The maps text of a dump has
/// `?` for characters that act on terminals; the module has the exact path.
fn is_range_of(mapping: &Mapping, module: &Mapping) -> bool {
    let paths = [mapping, module].map(|m| strip_deleted(&m.path).0.as_os_str().as_bytes());
    let shown = |path: &[u8]| {
        let mut shown = Vec::new();
        replace_hidden(&mut shown, path, b"");
        shown
    };
    paths[0] == paths[1] || paths[0].contains(&b'?') && shown(paths[0]) == shown(paths[1])
}

/// Assigns a mapping to each location that has none.
///
/// Loaded modules are preferred to unloaded ones, and earlier entries to later ones. If a mapping
/// starts inside its file, the addresses of the part of the file before it also belong to it,
/// unless another mapping contains them: some writers list only the second half of a range.
pub fn assign(profile: &mut Profile) {
    let mappings = &profile.mappings;
    let mut order: Vec<u32> = (0..mappings.len() as u32).collect();
    order.sort_by_key(|&i| mappings[i as usize].start);
    let longest = order
        .iter()
        .map(|&i| length(&mappings[i as usize]))
        .max()
        .unwrap_or(0);
    for location in &mut profile.locations {
        if location.mapping == NO_MAPPING && location.address != 0 {
            let found = find_mapping(mappings, &order, longest, location.address);
            location.mapping = found.unwrap_or(NO_MAPPING);
        }
    }
}

fn length(mapping: &Mapping) -> u64 {
    mapping.end.saturating_sub(mapping.start)
}

/// Maximum number of mappings that [`find_mapping`] looks at for one address, nearest start first.
/// Ranges of one process do not overlap; the limit bounds the time for malformed files.
const MAX_OVERLAPPING: usize = 64;

/// Finds the best mapping for `address`. `order` is sorted by start, so only mappings that start
/// less than `longest` before the address can contain it.
fn find_mapping(mappings: &[Mapping], order: &[u32], longest: u64, address: u64) -> Option<u32> {
    let after = order.partition_point(|&i| mappings[i as usize].start <= address);
    let containing = order[..after]
        .iter()
        .rev()
        .take(MAX_OVERLAPPING)
        .copied()
        .take_while(|&i| address - mappings[i as usize].start < longest)
        .filter(|&i| mappings[i as usize].contains(address))
        .min_by_key(|&i| (mappings[i as usize].past, i));
    containing.or_else(|| {
        order[after..].iter().take(1).copied().find(|&i| {
            let m = &mappings[i as usize];
            m.file_offset != 0 && m.start - address <= m.file_offset
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_executable_entries_are_taken() {
        let text = b"55d0-55e0 r-xp 00001000 08:01 42 /usr/bin/x y (deleted)\n\
            55e0-55f0 rw-p 00002000 08:01 42 /usr/bin/x\n\
            MAPPED\n7ffe-7fff r-xp 00000000 00:00 0 [vdso]\nfoo=bar\n";
        let maps = parse(text);
        assert_eq!(maps.len(), 2);
        assert_eq!(maps[0].path, Path::new("/usr/bin/x y (deleted)"));
        assert_eq!(
            (maps[0].start, maps[0].end, maps[0].file_offset),
            (0x55d0, 0x55e0, 0x1000)
        );
        assert_eq!(maps[1].path, Path::new("[vdso]"));
    }

    #[test]
    fn paths_have_the_files_names() {
        assert_eq!(&*with_newlines(b"\\012a\\01\\012"), b"\na\\01\n");
        let maps = parse(b"1000-2000 r-xp 0 0:0 1 /a\\012b?c (deleted)\n");
        assert_eq!(maps[0].path, Path::new("/a\nb?c (deleted)"));
        let module = Mapping {
            start: 0x1000,
            end: 0x2000,
            path: "/a\nb\x1bc".into(),
            build_id: BuildId(vec![1]),
            ..Mapping::default()
        };
        let merged = with_modules(maps, vec![module.clone()]);
        assert_eq!(merged, [module]);
    }

    #[test]
    fn an_entry_has_all_fields_of_its_line() {
        let line = b"55d0-55e0 r-xp 00001000 08:1b 42                 /usr/bin/x y (deleted)";
        let entry = Entry {
            start: 0x55d0,
            end: 0x55e0,
            permissions: b"r-xp",
            file_offset: 0x1000,
            device: (8, 0x1b),
            inode: 42,
            path: b"/usr/bin/x y (deleted)",
        };
        assert_eq!(Entry::parse(line), Some(entry));
        let anonymous = Entry::parse(b"1-2 rw-p 0 00:00 0 ").unwrap();
        assert_eq!((anonymous.inode, anonymous.path), (0, &b""[..]));
        for bad in [&b"Rss: 4 kB"[..], b"", b"1-2 rw-p 0", b"x-2 rw-p 0 0:0 0"] {
            assert_eq!(Entry::parse(bad), None);
        }
    }

    #[test]
    fn entries_without_permissions_are_taken_with_their_build_id() {
        let maps = parse(b"0x40000-0x80000: /path/to/binary (@FF00) abc12345\n");
        assert_eq!(maps.len(), 1);
        assert_eq!(
            (maps[0].start, maps[0].end, maps[0].file_offset),
            (0x40000, 0x80000, 0xff00)
        );
        assert_eq!(maps[0].build_id.to_string(), "abc12345");
        assert_eq!(maps[0].path, Path::new("/path/to/binary"));
        // There may be no colon after the mapping.
        let maps = parse(b"40000-80000 /path/to/binary (@FF00) abc12345\n");
        assert_eq!(maps[0].path, Path::new("/path/to/binary"));
        assert_eq!(maps[0].file_offset, 0xff00);
        assert_eq!(maps[0].build_id.to_string(), "abc12345");
    }

    #[test]
    fn modules_give_build_ids_and_unloaded_ranges() {
        let maps = parse(b"1000-2000 r-xp 0 0:0 1 /a\n3000-4000 r-xp 0 0:0 2 /b\n");
        let id = BuildId(vec![1]);
        let module = |start, path: &str, past| Mapping {
            start,
            end: start + 0x1000,
            path: path.into(),
            build_id: id.clone(),
            past,
            ..Mapping::default()
        };
        let merged = with_modules(
            maps,
            vec![module(0x1000, "/a", false), module(0x3000, "/gone", true)],
        );
        assert_eq!(merged.len(), 3);
        assert_eq!(merged[0].build_id, id);
        assert!(merged[1].build_id.is_empty());
        assert!(merged[2].past);
        let order: Vec<u32> = vec![0, 1, 2];
        assert_eq!(
            find_mapping(&merged, &order, 0x1000, 0x3800),
            Some(1),
            "loaded wins over unloaded"
        );
    }
}
