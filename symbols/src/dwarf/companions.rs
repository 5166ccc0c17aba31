//! Finds the companions of a program, other sources of its symbols: debug files, found by build id
//! or debug link; the file of debug information that several programs share (`dwz -m`), found by a
//! link in the program or its debug file; and the compressed symbol table in the program itself
//! (`.gnu_debugdata`, used by Fedora and related distributions).
//!
//! Companions are untrusted, like the program. A debug file must have the program's build id, or
//! the checksum that its link records. A shared file must have the id that its link records.
//! Decompression is limited in size and memory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use flate2::Crc;
use profile::{BuildId, opening};
use xz2::read::XzDecoder;
use xz2::stream::Stream;

use super::super::elf::Elf;
use super::image::{Image, number};

/// Maximum size of a decompressed symbol table, in bytes.
const MAX_UNPACKED: u64 = 64 << 20;
/// Maximum ratio of decompressed to compressed size. Symbol tables compress to a tenth.
const MAX_EXPANSION: u64 = 64;
/// Memory limit of the decoder, in bytes: enough for the dictionary of xz's highest preset.
const DECODER_MEMORY: u64 = 80 << 20;
/// Number of bytes per read.
const PIECE_SIZE: usize = 1 << 16;

/// Returns the debug files of a program: those found by its build id, then those found by its debug
/// link.
pub fn debug_files(image: &Image, directories: &[PathBuf]) -> impl Iterator<Item = Image> {
    let build_id = Elf::open(image.path()).map(|elf| elf.build_id);
    let build_id = build_id.unwrap_or_default();
    let hex = build_id.to_string();
    let by_id = hex.split_at_checked(2).filter(|_| hex.len() >= 8);
    let by_id = by_id.map(|(first, rest)| format!("{first}/{rest}.debug"));
    let by_id = by_id.into_iter().flat_map(|relative_path| {
        let in_directory = |directory: &PathBuf| {
            let usual = directory.join(".build-id").join(&relative_path);
            [usual, directory.join(&relative_path)]
        };
        directories
            .iter()
            .flat_map(in_directory)
            .collect::<Vec<_>>()
    });
    let has_build_id = {
        let build_id = build_id.clone();
        move |path: &PathBuf| Elf::open(path).is_ok_and(|elf| elf.build_id == build_id)
    };
    let link = Link::of(image);
    let by_link = link.into_iter().flat_map(move |link| {
        let candidates = link.candidates(image.path(), directories);
        let build_id = build_id.clone();
        let is_companion = move |path: &PathBuf| match Elf::open(path) {
            Ok(elf) if !build_id.is_empty() && !elf.build_id.is_empty() => elf.build_id == build_id,
            Ok(_) => checksum(path).is_ok_and(|sum| sum == link.checksum),
            Err(_) => false,
        };
        candidates.into_iter().filter(is_companion)
    });
    by_id
        .filter(has_build_id)
        .chain(by_link)
        .filter_map(|path| Image::open(&path))
}

/// Returns the first debug file that has debug information.
pub fn with_debug_info(image: &Image, directories: &[PathBuf]) -> Option<Image> {
    debug_files(image, directories).find(Image::has_debug_info)
}

/// Decompresses the ELF file in `.gnu_debugdata`, which has the symbols that the program's own
/// tables lack.
pub fn unpack_debugdata(image: &Image) -> Option<Image> {
    let section = image.section(".gnu_debugdata")?;
    let packed = image.data(section)?;
    let max_size = MAX_UNPACKED.min((packed.len() as u64).saturating_mul(MAX_EXPANSION));
    let stream = Stream::new_stream_decoder(DECODER_MEMORY, 0).ok()?;
    let mut bytes = Vec::new();
    let unpacked = XzDecoder::new_stream(&packed[..], stream);
    unpacked.take(max_size + 1).read_to_end(&mut bytes).ok()?;
    let is_whole = bytes.len() as u64 <= max_size;
    is_whole
        .then(|| Image::from_unpacked(image.path(), bytes))
        .flatten()
}

/// A file of debug information that several programs share.
pub enum SharedFile {
    /// The debug information refers to no such file.
    Unused,
    /// The file.
    Found(Box<Image>),
    /// The file was not found. Its path, as far as it is known.
    Missing(PathBuf),
}

impl SharedFile {
    /// Searches for the shared file that the debug information in `image` refers to.
    pub fn of(image: &Image, directories: &[PathBuf]) -> Self {
        let Some(link) = SharedLink::of(image) else {
            return Self::Unused;
        };
        let mut candidates = link.candidates(image.path(), directories).into_iter();
        let found = candidates.find_map(|path| {
            let image = Image::open_part(&path)?;
            link.matches(&image).then_some(image)
        });
        match found {
            Some(image) => Self::Found(Box::new(image)),
            None => Self::Missing(link.name),
        }
    }

    /// Returns the file, if it was found.
    pub fn image(&self) -> Option<&Image> {
        match self {
            Self::Found(image) => Some(image),
            Self::Unused | Self::Missing(_) => None,
        }
    }
}

/// Contents of `.gnu_debugaltlink`, or of `.debug_sup` (DWARF 5).
struct SharedLink {
    name: PathBuf,
    /// Build id, or checksum in the other file's `.debug_sup`.
    id: Vec<u8>,
}

impl SharedLink {
    fn of(image: &Image) -> Option<Self> {
        if let Some(section) = image.section(".gnu_debugaltlink") {
            let data = image.data(section)?;
            let (name, id) = data.split_at(data.iter().position(|&byte| byte == 0)?);
            return Some(Self {
                name: PathBuf::from(OsStr::from_bytes(name)),
                id: id[1..].to_vec(),
            });
        }
        let (name, id) = read_debug_sup(image)?;
        (!name.as_os_str().is_empty()).then_some(Self { name, id })
    }

    fn matches(&self, image: &Image) -> bool {
        let by_note = build_id_of(image).is_some_and(|id| id == self.id);
        by_note || read_debug_sup(image).is_some_and(|(_, id)| id == self.id)
    }

    /// Returns the paths to try: the recorded path, relative to the directory of the file with the
    /// link; then, in that directory and in `directories`, the recorded path, the file name alone,
    /// the file name in `.dwz`, and the build id.
    fn candidates(&self, linking_file: &Path, directories: &[PathBuf]) -> Vec<PathBuf> {
        let linking_file = linking_file
            .canonicalize()
            .unwrap_or_else(|_| linking_file.to_path_buf());
        let own_directory = linking_file.parent().unwrap_or(Path::new("/"));
        let mut candidates = vec![own_directory.join(&self.name)];
        let file = Path::new(self.name.file_name().unwrap_or_default());
        let below = self.name.strip_prefix("/").unwrap_or(file);
        let hex = BuildId(self.id.clone()).to_string();
        for directory in [own_directory]
            .into_iter()
            .chain(directories.iter().map(PathBuf::as_path))
        {
            candidates.extend([directory.join(below), directory.join(file)]);
            candidates.push(directory.join(".dwz").join(file));
            if let Some((first, rest)) = hex.split_at_checked(2) {
                candidates.push(directory.join(format!(".build-id/{first}/{rest}.debug")));
            }
        }
        candidates
    }
}

/// Returns name and checksum in `.debug_sup`. The shared file itself has no name there.
fn read_debug_sup(image: &Image) -> Option<(PathBuf, Vec<u8>)> {
    let data = image.data(image.section(".debug_sup")?)?;
    // Skips the version (two bytes), and the flag of the shared file itself.
    let data = data.get(3..)?;
    let (name, rest) = data.split_at(data.iter().position(|&byte| byte == 0)?);
    let (&size, id) = rest.get(1..)?.split_first()?;
    let id = id.get(..usize::from(size))?;
    Some((PathBuf::from(OsStr::from_bytes(name)), id.to_vec()))
}

/// Returns the build id of a file that may have no program headers.
fn build_id_of(image: &Image) -> Option<Vec<u8>> {
    const HEADER: usize = 16;
    let note = image.data(image.section(".note.gnu.build-id")?)?;
    Some(note.get(HEADER..)?.to_vec())
}

/// Contents of `.gnu_debuglink`.
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
        // Only a file name: a path could lead anywhere.
        let is_plain = name.file_name() == Some(name.as_os_str());
        is_plain.then_some(Self { name, checksum })
    }

    /// Returns the paths to try: those that debuggers use, and the file name directly in each of
    /// `directories`.
    fn candidates(&self, program: &Path, directories: &[PathBuf]) -> Vec<PathBuf> {
        let Ok(program) = program.canonicalize() else {
            return Vec::new();
        };
        let directory_of_program = program.parent().unwrap_or(Path::new("/"));
        let below = directory_of_program
            .strip_prefix("/")
            .unwrap_or(directory_of_program);
        let mut candidates = vec![
            directory_of_program.join(&self.name),
            directory_of_program.join(".debug").join(&self.name),
        ];
        for directory in directories {
            candidates.push(directory.join(below).join(&self.name));
            candidates.push(directory.join(&self.name));
        }
        candidates.retain(|candidate| *candidate != program);
        candidates
    }
}

/// Computes a file's checksum as used in debug links.
fn checksum(path: &Path) -> io::Result<u32> {
    let mut file: File = opening::regular(path)?;
    let mut sum = Crc::new();
    let mut piece = vec![0; PIECE_SIZE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(sum.sum()),
            read => sum.update(&piece[..read]),
        }
    }
}
