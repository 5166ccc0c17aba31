//! Checks the files that an ELF file links to: separate debug information, debug information shared
//! by several files (dwz), and DWARF packages.
//!
//! blazesym follows these links, opens whatever is there, and would block forever on a FIFO. So all
//! paths that it might try are examined first. If any of them is not a regular file, no link of the
//! file is followed, and its functions get only the names of its symbol table.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use profile::{BuildId, opening};

use super::dwarf::Image;
use super::elf::Elf;

/// Sections that name another file, and the number of bytes before the name.
const LINK_SECTIONS: [(&str, usize); 3] = [
    (".gnu_debuglink", 0),
    (".gnu_debugaltlink", 0),
    (".debug_sup", 3),
];

/// Maximum number of links that lead to a file: a program may name a debug file, which may name a
/// shared file, which names none.
const MAX_DEPTH: u32 = 2;

/// Returns true if all existing files that the links of a file can lead to are regular.
pub fn lead_to_regular_files(path: &Path, directories: &[PathBuf]) -> bool {
    let mut package = path.as_os_str().to_os_string();
    package.push(".dwp");
    is_regular_or_missing(Path::new(&package)) && check_links(path, directories, MAX_DEPTH)
}

fn check_links(path: &Path, directories: &[PathBuf], depth: u32) -> bool {
    let Some(links) = links(path) else {
        return false;
    };
    links.iter().all(|link| {
        let mut candidates = link.candidates(path, directories).into_iter();
        candidates.all(|candidate| {
            let follows = depth > 1 && candidate != path && candidate.is_file();
            is_regular_or_missing(&candidate)
                && (!follows || check_links(&candidate, directories, depth - 1))
        })
    })
}

fn is_regular_or_missing(path: &Path) -> bool {
    // A path that cannot be opened with `O_PATH` cannot be opened otherwise either.
    opening::hold(path, 0).map_or(true, |hold| opening::check_regular(&hold).is_ok())
}

/// Link to another file.
struct Link {
    name: PathBuf,
    id: BuildId,
}

/// Returns the links of a file, or `None` if they cannot be read.
fn links(path: &Path) -> Option<Vec<Link>> {
    let build_id = Elf::open(path).ok()?.build_id;
    let Some(image) = Image::open(path) else {
        return no_links_by_text(path).then(Vec::new);
    };
    let mut links = Vec::new();
    for (section, skipped) in LINK_SECTIONS {
        let Some(section) = image.section(section) else {
            continue;
        };
        let data = image.data(section)?;
        let data = data.get(skipped..)?;
        let end = data.iter().position(|&byte| byte == 0)?;
        let id = match skipped {
            0 if data.len() - end > 8 => BuildId(data[end + 1..].to_vec()),
            _ => build_id.clone(),
        };
        let name = PathBuf::from(OsStr::from_bytes(&data[..end]));
        links.push(Link { name, id });
    }
    Some(links)
}

/// Returns true if a file cannot have links, because the names of their sections occur nowhere in
/// it. Used for files that [`Image`] does not parse.
fn no_links_by_text(path: &Path) -> bool {
    let Some(bytes) = Image::bytes_of(path) else {
        return false;
    };
    let names = LINK_SECTIONS.map(|(name, _)| name.as_bytes());
    !names
        .iter()
        .any(|name| memchr::memmem::find(&bytes, name).is_some())
}

impl Link {
    /// Returns at least all paths at which blazesym may look for the file.
    fn candidates(&self, linking_file: &Path, directories: &[PathBuf]) -> Vec<PathBuf> {
        let canonical = linking_file.canonicalize();
        let linking_file = canonical.as_deref().unwrap_or(linking_file);
        let directory_of_linking_file = linking_file.parent().unwrap_or(Path::new("/"));
        let mut candidates = vec![
            directory_of_linking_file.join(&self.name),
            directory_of_linking_file.join(".debug").join(&self.name),
        ];
        let hex = self.id.to_string();
        for directory in directories {
            if let Some((first, rest)) = hex.split_at_checked(2) {
                candidates.push(directory.join(format!(".build-id/{first}/{rest}.debug")));
            }
            for above in directory_of_linking_file.ancestors() {
                let below = above.strip_prefix("/").unwrap_or(above);
                candidates.push(directory.join(below).join(&self.name));
            }
        }
        candidates
    }
}
