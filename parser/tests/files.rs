//! Files that a dump or a program names: only regular files are opened, and only sources
//! that everybody may read become part of an output.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use profile::{Detail, Facts, Function, Line, Mapping, ProfileBuilder, dump};

/// Runs the parser, which must come to an end.
fn parser(arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command
        .arg("120")
        .arg(env!("CARGO_BIN_EXE_mem_parser"))
        .args(arguments)
        .stdin(Stdio::null());
    let output = command.output().unwrap();
    assert_ne!(output.status.code(), Some(124), "{command:?} hangs");
    output
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

/// Creates a world-accessible directory.
fn open_directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
    directory
}

fn write(path: &Path, content: &str, mode: u32) {
    fs::write(path, content).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

const DETAIL: Detail = Detail {
    alloc_samples: 5,
    free_samples: 0,
    alloc_objects: 5.0,
    alloc_bytes: 5e6,
    freed_objects: 0.0,
    freed_bytes: 0.0,
    live_age_ms_sum: 0.0,
    freed_lifetime_ms_sum: 0.0,
    alloc_variance: 0.0,
    live_variance: 0.0,
    alloc_object_variance: 0.0,
    live_object_variance: 0.0,
    short_lived_objects: 0.0,
    age_spread: None,
};

/// Writes a dump of one function with source file `source`.
fn dump_of(directory: &Path, source: &Path) -> PathBuf {
    let mut builder = ProfileBuilder::new(1024);
    builder.stack([0x1001], &DETAIL);
    let mut profile = builder.finish();
    profile.functions.push(Function {
        name: "work".into(),
        file: text(source).into(),
        ..Function::default()
    });
    profile.lines.push(Line {
        function: 0,
        line: 1,
        column: 0,
    });
    profile.locations[0].line_count = 1;
    let path = directory.join("x.heap");
    dump::write(&profile, &mut File::create(&path).unwrap()).unwrap();
    path
}

const SECRET: &str = "root:x_secret_x:1\n";

/// Returns whether `--list` and `--html` show the secret in this source.
fn shown(source: &Path, more: &[&str]) -> [bool; 2] {
    let directory = tempfile::tempdir().unwrap();
    let dump = dump_of(directory.path(), source);
    [&["--list", "."][..], &["--html"]].map(|output| {
        let found = parser(&[output, &["-f", text(&dump)], more].concat());
        let message = String::from_utf8_lossy(&found.stderr).into_owned();
        assert_eq!(found.status.code(), Some(0), "{message}");
        String::from_utf8_lossy(&found.stdout).contains("x_secret_x")
    })
}

fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn world_readable_sources_are_shown() {
    let directory = open_directory();
    let source = directory.path().join("x.c");
    write(&source, SECRET, 0o644);
    assert_eq!(shown(&source, &[]), [true, true]);
    let link = directory.path().join("y.c");
    symlink(&source, &link).unwrap();
    assert_eq!(
        shown(&link, &[]),
        [true, true],
        "through a link to a source"
    );
}

#[test]
fn symlinked_sources_are_not_followed() {
    let directory = open_directory();
    let secret = directory.path().join("shadow");
    let link = directory.path().join("x.c");
    symlink(&secret, &link).unwrap();
    for mode in [0o600, 0o644] {
        write(&secret, SECRET, mode);
        assert_eq!(shown(&link, &[]), [false, false], "{mode:o}");
        assert_eq!(shown(&secret, &[]), [false, false], "{mode:o}");
    }
    let inside = open_directory();
    let below = inside.path().join("x.c");
    symlink(&secret, &below).unwrap();
    let option = ["--source_path", text(inside.path())];
    assert_eq!(
        shown(Path::new("x.c"), &option),
        [false, false],
        "out of the directory"
    );
}

/// Root may read files that the user who started it may not.
#[test]
fn root_reads_only_world_readable_or_requested_sources() {
    if !is_root() {
        return;
    }
    let directory = open_directory();
    let source = directory.path().join("x.c");
    write(&source, SECRET, 0o600);
    assert_eq!(shown(&source, &[]), [false, false], "of root alone");
    let option = ["--source_path", text(directory.path())];
    assert_eq!(shown(&source, &option), [true, true], "where it is told to");
    write(&source, SECRET, 0o644);
    fs::set_permissions(directory.path(), Permissions::from_mode(0o700)).unwrap();
    assert_eq!(
        shown(&source, &[]),
        [false, false],
        "below a directory of root alone"
    );
}

#[test]
fn sources_must_be_regular_text_files() {
    let directory = open_directory();
    let source = directory.path().join("x.c");
    write(&source, "x_secret_x\0", 0o644);
    assert_eq!(shown(&source, &[]), [false, false], "not text");
    write(&source, SECRET, 0o644);
    File::options()
        .write(true)
        .open(&source)
        .unwrap()
        .set_len(20 << 20)
        .unwrap();
    assert_eq!(shown(&source, &[]), [false, false], "too large");
    for what in ["/dev/zero", "/proc/self/environ", "/dev/tty"] {
        fs::remove_file(&source).unwrap();
        symlink(what, &source).unwrap();
        assert_eq!(shown(&source, &[]), [false, false], "{what}");
    }
    fs::remove_file(&source).unwrap();
    fifo(&source);
    assert_eq!(shown(&source, &[]), [false, false], "a pipe");
    let option = ["--source_path", text(directory.path())];
    assert_eq!(
        shown(&source, &option),
        [false, false],
        "a pipe where it is told to look"
    );
}

#[test]
fn outputs_belong_to_the_caller() {
    let directory = open_directory();
    let dump = dump_of(directory.path(), Path::new("x.c"));
    for output in ["--html", "-s", "-t", "--proto", "--symbolize"] {
        let page = directory.path().join("out");
        let written = parser(&[output, "-f", text(&dump), "-o", text(&page)]);
        assert_eq!(written.status.code(), Some(0), "{written:?}");
        assert_eq!(
            fs::metadata(&page).unwrap().mode() & 0o777,
            0o600,
            "{output}"
        );
    }
}

/// Writes a dump of code in files of these names, which have no symbols.
fn dump_in(directory: &Path, modules: &[&str], facts: Facts) -> PathBuf {
    let mut builder = ProfileBuilder::new(1024);
    builder.facts(facts);
    for (number, path) in modules.iter().enumerate() {
        let start = 0x10_0000 * (number as u64 + 1);
        builder.module(Mapping {
            start,
            end: start + 0x1_0000,
            path: path.into(),
            ..Mapping::default()
        });
        builder.stack([start + 0x1001], &DETAIL);
    }
    // Adds code that is not in a file.
    builder.stack([0x7000_0000_1001], &DETAIL);
    let path = directory.join("modules.heap");
    let file = &mut File::create(&path).unwrap();
    dump::write(&builder.finish(), file).unwrap();
    path
}

#[test]
fn modules_are_opened_only_if_they_are_regular_files() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe.so");
    fifo(&pipe);
    let link = directory.path().join("link.so");
    symlink("/dev/zero", &link).unwrap();
    let modules = [
        text(&pipe),
        text(&link),
        "/dev/zero",
        "/dev/stdin",
        "/proc/kmsg",
        "/proc/self/environ",
        "/sys/kernel/notes",
        "/",
    ];
    let dump = dump_in(directory.path(), &modules, Facts::default());
    for more in [
        &["-p", "/usr/bin/true"][..],
        &["--symbol-path", text(directory.path())],
    ] {
        let output = parser(&[&["-t", "--force", "-f", text(&dump)], more].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{message}");
        assert!(
            message.contains("is a pipe, not a regular file"),
            "{message}"
        );
        assert!(
            message.contains("is a device, not a regular file"),
            "{message}"
        );
    }
    for program in [text(&pipe), "/dev/zero", "/proc/self/environ"] {
        let output = parser(&["-t", "-p", program, "-f", text(&dump)]);
        assert_eq!(output.status.code(), Some(1), "{program}");
        let output = parser(&[
            "-t",
            "--perf-map",
            program,
            "-p",
            "/usr/bin/true",
            "--force",
            "-f",
            text(&dump),
        ]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains(&format!("{program}: is")), "{message}");
    }
    for file in ["/dev/zero", "/proc/self/environ", "/"] {
        let output = parser(&["-t", "-p", "/usr/bin/true", "-f", file]);
        assert_eq!(output.status.code(), Some(1), "{file}");
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|e| panic!("{program} cannot be run: {e}"));
    assert!(output.status.success(), "{program}: {output:?}");
}

/// Links of a program to separate debug information lead to pipes and devices: its
/// functions have the names of its symbol table, and nothing hangs.
#[test]
fn debug_links_open_only_regular_files() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let source = at("x.c");
    fs::write(
        &source,
        "int work(void) { return 4; }\nint main(void) { return work(); }\n",
    )
    .unwrap();
    let program = at("prog");
    let debug = at("prog.debug");
    run(
        "gcc",
        &[
            "-g",
            "-O0",
            "-Wl,--build-id=none",
            "-o",
            text(&program),
            text(&source),
        ],
    );
    run(
        "objcopy",
        &["--only-keep-debug", text(&program), text(&debug)],
    );
    run("objcopy", &["--strip-debug", text(&program)]);
    let link = format!("--add-gnu-debuglink={}", text(&debug));
    run("objcopy", &[&link, text(&program)]);
    let table = Command::new("nm").arg(&program).output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let work = table.lines().find(|l| l.ends_with(" T work")).unwrap();
    let address = u64::from_str_radix(&work[..16], 16).unwrap();

    let mut builder = ProfileBuilder::new(1024);
    builder.module(Mapping {
        start: 0x10_0000,
        end: 0x20_0000,
        path: program.clone(),
        ..Mapping::default()
    });
    builder.stack([0x10_0000 + address + 2], &DETAIL);
    let dump = at("x.heap");
    dump::write(&builder.finish(), &mut File::create(&dump).unwrap()).unwrap();
    let show = || {
        let output = parser(&["-t", "--lines", "-p", text(&program), "-f", text(&dump)]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = show();
    assert!(table.contains("work") && table.contains("x.c:1"), "{table}");
    for hostile in ["a pipe", "a device", "a package"] {
        let place = if hostile == "a package" {
            at("prog.dwp")
        } else {
            debug.clone()
        };
        let _ = fs::remove_file(&place);
        match hostile {
            "a device" => symlink("/dev/zero", &place).unwrap(),
            _ => fifo(&place),
        }
        let table = show();
        assert!(
            table.contains("work") && !table.contains("x.c:1"),
            "{hostile}: {table}"
        );
    }
}

/// A perf map that another user has created for a process that no longer exists is not trusted.
#[test]
fn perf_maps_of_other_users_are_not_trusted() {
    if !is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    // This pid exceeds the maximum, so no process has it.
    let pid = 4_194_304 + std::process::id();
    let map = PathBuf::from(format!("/tmp/perf-{pid}.map"));
    fs::write(&map, "700000001000 1000 made_up\n").unwrap();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let facts = Facts {
        pid: Some(pid),
        boot_id: Some(boot_id.trim().to_owned()),
        ..Facts::default()
    };
    let dump = dump_in(directory.path(), &["/usr/bin/true"], facts);
    let show = || parser(&["-t", "-p", "/usr/bin/true", "--force", "-f", text(&dump)]);
    let own = show();
    chown(&map, Some(65534), None).unwrap();
    let strangers = show();
    fs::remove_file(&map).unwrap();
    assert!(
        String::from_utf8_lossy(&own.stdout).contains("made_up"),
        "{own:?}"
    );
    assert!(!String::from_utf8_lossy(&strangers.stdout).contains("made_up"));
    let message = String::from_utf8_lossy(&strangers.stderr);
    assert!(message.contains("belongs to another user"), "{message}");
}
