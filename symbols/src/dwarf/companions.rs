//! Where else the symbols of a program are: in a debug file, which its build id or its debug link
//! names, and packed in the program itself (`.gnu_debugdata`, of Fedora and its relatives).
//!
//! Such files are as little to be trusted as the program. A debug file has to have the program's
//! build id, or the checksum in the link; what is packed is unpacked to a limit.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use flate2::Crc;
use heap_format::opening;
use xz2::read::XzDecoder;
use xz2::stream::Stream;

use super::super::elf::Elf;
use super::image::{Image, number};

/// Maximum number of bytes that a packed program may have, and how many times as many as it takes
/// packed: tables of symbols shrink to a tenth.
const MOST_UNPACKED: u64 = 64 << 20;
const MOST_EXPANSION: u64 = 64;
/// Memory that unpacking takes: the dictionary of xz's strongest setting.
const UNPACKING: u64 = 80 << 20;
/// Bytes of a file that are read at once.
const PIECE: usize = 1 << 16;

/// The debug files of a program that are there: by its build id, then by its debug link.
pub fn debug_files(image: &Image, directories: &[PathBuf]) -> impl Iterator<Item = Image> {
    let own = Elf::open(image.path()).map(|elf| elf.build_id);
    let own = own.unwrap_or_default();
    let hex = own.to_string();
    let by_id = hex.split_at_checked(2).filter(|_| hex.len() >= 8);
    let by_id = by_id.map(|(first, rest)| format!("{first}/{rest}.debug"));
    let by_id = by_id.into_iter().flat_map(|inside| {
        let in_directory = |directory: &PathBuf| {
            let usual = directory.join(".build-id").join(&inside);
            [usual, directory.join(&inside)]
        };
        directories
            .iter()
            .flat_map(in_directory)
            .collect::<Vec<_>>()
    });
    let same = {
        let own = own.clone();
        move |path: &PathBuf| Elf::open(path).is_ok_and(|elf| elf.build_id == own)
    };
    let link = Link::of(image);
    let by_link = link.into_iter().flat_map(move |link| {
        let candidates = link.candidates(image.path(), directories);
        let own = own.clone();
        let is_meant = move |path: &PathBuf| match Elf::open(path) {
            Ok(elf) if !own.is_empty() && !elf.build_id.is_empty() => elf.build_id == own,
            Ok(_) => checksum(path).is_ok_and(|sum| sum == link.checksum),
            Err(_) => false,
        };
        candidates.into_iter().filter(is_meant)
    });
    by_id
        .filter(same)
        .chain(by_link)
        .filter_map(|path| Image::open(&path))
}

/// The debug file with debug information, if there is one.
pub fn with_debug_info(image: &Image, directories: &[PathBuf]) -> Option<Image> {
    debug_files(image, directories).find(Image::has_debug_info)
}

/// The program with the rest of the symbols that is packed in this one.
pub fn packed(image: &Image) -> Option<Image> {
    let section = image.section(".gnu_debugdata")?;
    let packed = image.data(section)?;
    let most = MOST_UNPACKED.min((packed.len() as u64).saturating_mul(MOST_EXPANSION));
    let stream = Stream::new_stream_decoder(UNPACKING, 0).ok()?;
    let mut bytes = Vec::new();
    let unpacked = XzDecoder::new_stream(&packed[..], stream);
    unpacked.take(most + 1).read_to_end(&mut bytes).ok()?;
    let is_whole = bytes.len() as u64 <= most;
    is_whole
        .then(|| Image::unpacked(image.path(), bytes))
        .flatten()
}

/// What `.gnu_debuglink` says.
struct Link {
    name: PathBuf,
    checksum: u32,
}

impl Link {
    fn of(image: &Image) -> Option<Self> {
        let data = image.data(image.section(".gnu_debuglink")?)?;
        let end = data.iter().position(|&byte| byte == 0)?;
        let name = PathBuf::from(OsStr::from_bytes(&data[..end]));
        let checksum = number(&data, (end + 1).next_multiple_of(4), 4)? as u32;
        // The name of a file, nothing that leads elsewhere.
        let is_plain = name.file_name() == Some(name.as_os_str());
        is_plain.then_some(Self { name, checksum })
    }

    /// Where the file is looked for: where debuggers do, and in the directories themselves.
    fn candidates(&self, linker: &Path, directories: &[PathBuf]) -> Vec<PathBuf> {
        let Ok(linker) = linker.canonicalize() else {
            return Vec::new();
        };
        let own = linker.parent().unwrap_or(Path::new("/"));
        let below = own.strip_prefix("/").unwrap_or(own);
        let mut candidates = vec![own.join(&self.name), own.join(".debug").join(&self.name)];
        for directory in directories {
            candidates.push(directory.join(below).join(&self.name));
            candidates.push(directory.join(&self.name));
        }
        candidates.retain(|candidate| *candidate != linker);
        candidates
    }
}

/// A file's checksum as debug links have it.
fn checksum(path: &Path) -> io::Result<u32> {
    let mut file: File = opening::regular(path)?;
    let mut sum = Crc::new();
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(sum.sum()),
            got => sum.update(&piece[..got]),
        }
    }
}
