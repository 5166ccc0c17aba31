//! Whether a program can take the agent in, by its ELF header (System V ABI, chapter 4).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const CLASS_64: u8 = 2;
/// `e_machine` of this program.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};
const PT_INTERP: u32 = 3;
const HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const MOST_PROGRAM_HEADERS: usize = 64;

/// Why the loader cannot preload the agent into this program; `None` if nothing speaks against
/// it, or it is no ELF file that can be read.
pub fn obstacle(path: &Path) -> Option<&'static str> {
    let file = File::open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut header = [0; HEADER];
    file.read_exact_at(&mut header, 0).ok()?;
    if !header.starts_with(b"\x7fELF") {
        return None;
    }
    if header[4] != CLASS_64 {
        return Some("it is a 32-bit program, and the agent is of 64 bits");
    }
    if u16::from_le_bytes([header[18], header[19]]) != MACHINE {
        return Some("it is a program for another architecture than the agent");
    }
    let is_static = !has_interpreter(&file, &header)?;
    is_static.then_some("it is linked statically: there is no loader that could preload the agent")
}

fn has_interpreter(file: &File, header: &[u8; HEADER]) -> Option<bool> {
    let offset = u64::from_le_bytes(header[32..40].try_into().ok()?);
    let count = usize::from(u16::from_le_bytes([header[56], header[57]]));
    let size = usize::from(u16::from_le_bytes([header[54], header[55]]));
    if size != PROGRAM_HEADER || count > MOST_PROGRAM_HEADERS {
        return None;
    }
    let mut headers = vec![0; count * PROGRAM_HEADER];
    file.read_exact_at(&mut headers, offset).ok()?;
    let mut kinds = headers
        .chunks(PROGRAM_HEADER)
        .map(|h| [h[0], h[1], h[2], h[3]]);
    Some(kinds.any(|kind| u32::from_le_bytes(kind) == PT_INTERP))
}

/// The file that a command name means, by the search path.
pub fn find(command: &Path) -> Option<std::path::PathBuf> {
    if command.components().count() > 1 {
        return Some(command.to_owned());
    }
    let paths = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&paths).map(|directory| directory.join(command));
    files.find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_no_obstacle() {
        assert_eq!(obstacle(&std::env::current_exe().unwrap()), None);
        assert_eq!(obstacle(Path::new("/dev/null")), None);
        assert_eq!(obstacle(Path::new("/etc/passwd")), None);
    }

    #[test]
    fn headers_say_what_is_in_the_way() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let with = |at: usize, byte: u8| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut bytes = own[..4096].to_vec();
            bytes[at] = byte;
            std::fs::write(file.path(), bytes).unwrap();
            obstacle(file.path())
        };
        assert!(with(4, 1).unwrap().contains("32-bit"));
        assert!(with(18, 3).unwrap().contains("another architecture"));
        // Without program headers there is no interpreter.
        assert!(with(56, 0).unwrap().contains("statically"));
        assert_eq!(with(54, 1), None);
    }
}
