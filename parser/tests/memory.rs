//! The memory that the parser takes for a big program's debug information. Needs gcc and binutils.

use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use profile::{BuildId, Detail, Mapping, ProfileBuilder, dump};

mod keeper;

use keeper::{BASE, text, tool};

/// Number of functions. The dump has one stack in each.
const STACKS: u64 = 5_000;
/// Index of the function with the largest value, which is therefore shown.
const LARGEST: u64 = 2_500;
/// Number of types before each function, which a reader must skip to find it.
const TYPES: usize = 520;

/// Returns the source of a compilation unit with 100 MB of debug entries, in which the functions
/// and their names are far apart.
fn source() -> String {
    let mut source = format!(
        ".text\n.globl keeps\n.type keeps, @function\nkeeps: .fill {STACKS}, 4, 0x90909090\nret\n\
         .Lend: .size keeps, . - keeps\n\
         .section .debug_abbrev\n.uleb128 1, 0x11\n.byte 1\n\
         .uleb128 3, 8, 0x11, 1, 0x12, 7, 0, 0\n\
         .uleb128 2, 0x24\n.byte 0\n.uleb128 3, 8, 0, 0\n\
         .uleb128 3, 0x2e\n.byte 0\n.uleb128 3, 8, 0x11, 1, 0x12, 7, 0, 0\n.uleb128 0\n\
         .section .debug_info\n.long .Llast - .Lfirst\n.Lfirst: .value 4\n.long 0\n.byte 8\n\
         .uleb128 1\n.asciz \"big.c\"\n.quad keeps\n.quad .Lend - keeps\n"
    );
    for function in 0..STACKS {
        let entries = format!(
            ".rept {TYPES}\n.uleb128 2\n.asciz \"a_type_of_a_big_program_that_has_many\"\n.endr\n\
             .uleb128 3\n.asciz \"keeps_{function}\"\n.quad keeps + {}\n.quad 4\n",
            4 * function
        );
        source.push_str(&entries);
    }
    source + ".uleb128 0\n.Llast:\n.section .note.GNU-stack\n"
}

/// Builds the program. Returns its path, and the address of the first function.
fn build(directory: &Path) -> (PathBuf, u64) {
    let at = |name: &str| directory.join(name);
    fs::write(at("big.s"), source()).unwrap();
    fs::write(
        at("main.c"),
        "void keeps(void); int main(void) { keeps(); }\n",
    )
    .unwrap();
    let program = at("big");
    let parts = [&at("main.c"), &at("big.s")].map(|path| path.to_owned());
    let arguments = [
        "-Wl,--build-id=sha1",
        "-o",
        text(&program),
        text(&parts[0]),
        text(&parts[1]),
    ];
    tool("gcc", &arguments);
    let symbols = tool("nm", &[text(&program)]);
    let line = symbols.lines().find(|line| line.ends_with(" keeps"));
    let address = line.unwrap().split(' ').next().unwrap();
    (program, u64::from_str_radix(address, 16).unwrap())
}

/// Writes a dump with a stack for each function.
fn write_dump(directory: &Path, program: &Path, address: u64) -> PathBuf {
    let mut builder = ProfileBuilder::new(1);
    builder.module(Mapping {
        start: BASE,
        end: BASE + 0x10_0000,
        file_offset: 0,
        build_id: BuildId::default(),
        path: program.into(),
        past: false,
    });
    for stack in 0..STACKS {
        let detail = Detail {
            alloc_samples: 1,
            alloc_objects: 1.0,
            alloc_bytes: if stack == LARGEST { 1e6 } else { 64.0 },
            ..Detail::default()
        };
        builder.stack([BASE + address + 4 * stack + 1], &detail);
    }
    let path = directory.join("big.heap");
    dump::write(&builder.finish(), &mut File::create(&path).unwrap()).unwrap();
    path
}

/// Runs a command. Returns the peak memory in bytes of its largest process, and its standard
/// output.
#[expect(
    clippy::zombie_processes,
    reason = "wait4 reaps it, and returns its memory use"
)]
fn peak(command: &mut Command, out: &Path) -> (u64, String) {
    let child = command
        .stdout(File::create(out).unwrap())
        .stdin(Stdio::null());
    let child = child.spawn().unwrap();
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    let pid = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: the pid is that of our child, which nothing else reaps; `status` and `usage` are
    // writable.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
    assert_eq!(waited, pid, "{}", io::Error::last_os_error());
    assert_eq!(status, 0);
    // SAFETY: zeros are valid numbers, and `wait4` has written the struct.
    let usage = unsafe { usage.assume_init() };
    let kilobytes = u64::try_from(usage.ru_maxrss).unwrap();
    (kilobytes << 10, fs::read_to_string(out).unwrap())
}

#[test]
fn a_big_program_does_not_fill_the_memory() {
    let directory = tempfile::tempdir().unwrap();
    let (program, address) = build(directory.path());
    let size = fs::metadata(&program).unwrap().len();
    assert!(size > 90 << 20, "{size}");
    let heap = write_dump(directory.path(), &program, address);
    for what in ["-t", "-s"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mem_parser"));
        command.args([what, "-p", text(&program), text(&heap)]);
        let (bytes, message) = peak(&mut command, &directory.path().join("out"));
        assert!(
            message.contains(&format!("keeps_{LARGEST}")),
            "{what}: {message}"
        );
        assert!(bytes < 64 << 20, "{what}: {} KiB", bytes >> 10);
    }
}
