//! Examines a program before it runs: which file a command refers to, and whether the agent can be
//! preloaded.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use symbols::Elf;

/// ELF machine of this program (`e_machine`): `EM_AARCH64` or `EM_X86_64`.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
    183
} else {
    62
};

/// Explains why the agent cannot sample a program. Returns `None` if there is no obstacle, or if
/// the file is not a readable ELF file.
pub fn obstacle(path: &Path) -> Option<&'static str> {
    let elf = Elf::open(path).ok()?;
    match elf {
        Elf { is_wide: false, .. } => Some("it is a 32-bit program, but the agent is 64-bit"),
        Elf { machine, .. } if machine != MACHINE => {
            Some("it is a program for another architecture than the agent's")
        }
        // The dynamic loader itself: it preloads into the program that its arguments name.
        Elf {
            has_interpreter: false,
            ..
        } if is_loader(path) => None,
        Elf {
            has_interpreter: false,
            ..
        } if is_go(path) => Some(
            "it is linked statically, as programs of Go are: mem_profiler go -p PID writes the \
             heap profile that its runtime keeps",
        ),
        Elf {
            has_interpreter: false,
            ..
        } => Some("it is linked statically: there is no loader that could preload the agent"),
        Elf {
            uses_musl: true, ..
        } => Some("its C library is musl, and the agent needs glibc"),
        _ => None,
    }
}

/// Returns true if a file is a program or library that Go's linker has made. False if it cannot be
/// read.
pub fn is_go(path: &Path) -> bool {
    // In files built by Go 1.13 or later.
    const MARK: &str = " Go buildinf:";
    symbols::first_contained_text(path, &[MARK]).is_ok_and(|found| found.is_some())
}

/// Returns true for a file named like glibc's dynamic loader: `ld-linux-x86-64.so.2`, `ld-2.31.so`,
/// `ld.so`.
fn is_loader(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let is_library = name.windows(3).any(|part| part == b".so");
    let is_musl = name.starts_with(b"ld-musl");
    is_library && !is_musl && (name.starts_with(b"ld-") || name.starts_with(b"ld.so"))
}

/// Finds the file of a command, searching `PATH`.
pub fn find(command: &Path) -> Option<PathBuf> {
    if command.components().count() > 1 {
        return Some(command.to_owned());
    }
    let paths = std::env::var_os("PATH")?;
    let is_program = |file: &PathBuf| {
        let metadata = file.metadata();
        metadata.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let mut files = std::env::split_paths(&paths).map(|directory| directory.join(command));
    files.find(is_program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_programs_and_other_files_have_no_obstacle() {
        assert_eq!(obstacle(&std::env::current_exe().unwrap()), None);
        assert_eq!(obstacle(Path::new("/proc/self/exe")), None);
        assert_eq!(obstacle(Path::new("/etc/passwd")), None);
    }

    #[test]
    fn the_dynamic_loader_is_not_a_static_program() {
        let own = std::fs::read("/proc/self/maps").unwrap();
        let own = String::from_utf8_lossy(&own);
        let mut paths = own
            .lines()
            .filter_map(|line| line.split_whitespace().nth(5));
        let loader = paths.find(|path| is_loader(Path::new(path)));
        assert_eq!(obstacle(Path::new(loader.expect("a loader"))), None);
        for other in [
            "/bin/ld",
            "/lib/ld-musl-x86_64.so.1",
            "/opt/ldap.so",
            "/opt/app",
        ] {
            assert!(!is_loader(Path::new(other)), "{other}");
        }
    }

    #[test]
    fn a_fifo_is_not_opened() {
        let directory = tempfile::tempdir().unwrap();
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(obstacle(&fifo), None);
    }

    #[test]
    fn obstacles_are_found_in_the_headers() {
        const E_MACHINE: usize = 18;
        const E_PHENTSIZE: usize = 54;
        const E_PHNUM: usize = 56;
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let with_byte = |offset: usize, byte: u8| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut bytes = program[..4096].to_vec();
            bytes[offset] = byte;
            std::fs::write(file.path(), bytes).unwrap();
            obstacle(file.path())
        };
        assert!(
            with_byte(E_MACHINE, 3)
                .unwrap()
                .contains("another architecture")
        );
        // Without program headers there is no interpreter.
        assert!(with_byte(E_PHNUM, 0).unwrap().contains("statically"));
        assert_eq!(with_byte(E_PHENTSIZE, 1), None);
        let mut bytes = program;
        let loader = bytes
            .windows(8)
            .position(|word| word == b"/ld-linu")
            .unwrap();
        bytes[loader..loader + 9].copy_from_slice(b"/ld-musl-");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        assert!(obstacle(file.path()).unwrap().contains("musl"));
    }

    #[test]
    fn a_32_bit_program_is_reported() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // Class 1, and program headers of 32 bytes, of which there are none.
        let mut header = [0; 64];
        header[..6].copy_from_slice(b"\x7fELF\x01\x01");
        header[42] = 32;
        std::fs::write(file.path(), header).unwrap();
        assert!(obstacle(file.path()).unwrap().contains("32-bit"));
    }
}
