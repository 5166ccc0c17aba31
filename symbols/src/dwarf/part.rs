//! Decompresses only the part of compressed debug information that is needed.
//!
//! Distributions compress whole debug files, and most stacks begin in the same two functions of the
//! C library, whose units are among the first. `.debug_aranges` shows which units are needed; the
//! bytes after the last of them are not decompressed.

use gimli::{DebugAranges, LittleEndian};

use super::image::{Image, number};
use super::unpacking::Content;

/// Initial length that announces the 64-bit DWARF format.
const DWARF64_LENGTH: u64 = 0xffff_ffff;

/// Returns `.debug_info` up to the last unit that covers one of the addresses, which are sorted.
/// Returns `None` if the section is not compressed, or `.debug_aranges` does not cover all the
/// addresses.
pub fn covering<'i>(image: &'i Image, wanted: &[u64]) -> Option<Content<'i>> {
    let section = image.section(".debug_info")?;
    let mut unpacked = image.unpack(section)?;
    let last = last_unit(image, wanted)?;
    unpacked.decompress_to(last.checked_add(12)?)?;
    let start = unpacked.bytes();
    let (head, length) = match number(start, last, 4)? {
        DWARF64_LENGTH => (12, number(start, last + 4, 8)?),
        length => (4, length),
    };
    let end = usize::try_from(length).ok()?.checked_add(last + head)?;
    unpacked.decompress_to(end)?;
    let mut content = unpacked.into_content();
    content.truncate(end);
    Some(content)
}

/// Returns the offset of the last unit that covers one of the addresses, or `None` if an address is
/// not covered.
fn last_unit(image: &Image, wanted: &[u64]) -> Option<usize> {
    let aranges = image.data(image.section(".debug_aranges")?)?;
    let aranges = DebugAranges::new(&aranges, LittleEndian);
    let mut covered = vec![false; wanted.len()];
    let mut last = 0;
    let mut sets = aranges.headers();
    while let Some(set) = sets.next().ok()? {
        let mut entries = set.entries();
        // A damaged entry ends its set.
        while let Ok(Some(entry)) = entries.next() {
            let range = entry.range();
            let first = wanted.partition_point(|&a| a < range.begin);
            let inside = wanted[first..].iter().take_while(|&&a| a < range.end);
            for (at, _) in inside.enumerate() {
                covered[first + at] = true;
                last = last.max(set.debug_info_offset().0);
            }
        }
    }
    covered.iter().all(|&covered| covered).then_some(last)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::super::companions::SharedFile;
    use super::super::split::SearchPaths;
    use super::super::{Resolved, Search};
    use super::*;

    /// Builds a library with two units, the second much larger, and compressed debug information.
    fn build_library(directory: &Path) -> Image {
        let first = "int first(int n) { return n * 3; }\n";
        let second: String = (0..400)
            .map(|n| format!("struct S{n} {{ int a{n}, b{n}; }}; int f{n}(struct S{n} *s) {{ return s->a{n}; }}\n"))
            .collect();
        let library = directory.join("library.so");
        let mut build = Command::new("gcc");
        build.args(["-shared", "-fPIC", "-g", "-O0", "-gz=zlib", "-o"]);
        build.arg(&library);
        for (name, text) in [("first.c", first), ("second.c", &second)] {
            std::fs::write(directory.join(name), text).unwrap();
            build.arg(directory.join(name));
        }
        assert!(build.status().unwrap().success());
        Image::open(&library).unwrap()
    }

    fn symbol(image: &Image, name: &str) -> u64 {
        let table = Command::new("nm").arg(image.path()).output().unwrap();
        let table = String::from_utf8(table.stdout).unwrap();
        let line = table.lines().find(|l| l.ends_with(&format!(" T {name}")));
        u64::from_str_radix(line.unwrap().split(' ').next().unwrap(), 16).unwrap()
    }

    #[test]
    fn data_after_the_last_needed_unit_are_not_unpacked() {
        let directory = tempfile::tempdir().unwrap();
        let image = build_library(directory.path());
        let section = image.section(".debug_info").unwrap();
        let whole = image.data(section).unwrap();
        let first = symbol(&image, "first");
        let last = symbol(&image, "f399");
        let of_first = covering(&image, &[first]).unwrap();
        assert!(of_first.len() * 10 < whole.len(), "{}", of_first.len());
        assert_eq!(of_first[..], whole[..of_first.len()]);
        assert_eq!(covering(&image, &[first, last]).unwrap()[..], whole[..]);
        // An address that is not listed may belong to any unit.
        assert!(covering(&image, &[first, last, u64::MAX / 2]).is_none());
        let search = Search {
            image: &image,
            shared: &SharedFile::Unused,
            search_paths: SearchPaths {
                program: image.path(),
                directories: &[],
            },
        };
        let by_part: Resolved = search.look_up(&[first]).unwrap();
        assert_eq!(by_part.frames[0][0].name.as_ref(), "first");
        assert_eq!(Some(by_part), search.look_up_in(None, &[first], &[first]));
    }
}
