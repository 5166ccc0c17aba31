//! Names from wherever they may be: another machine's files, debug files by
//! build id, debuginfod, a living process, lists of JIT code, the
//! kernel; and files that lie. Needs gcc and binutils.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use helpers::random::Random;
use profile::{BuildId, Facts, Mapping};

mod keeper;

use keeper::{BASE, PATH, build, mapping, text, tool, write};

fn parser(dump: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .args(["-t", "--lines", "-f", text(dump)])
        .args(arguments)
        .output()
        .unwrap()
}

/// Returns the last line of the table, and the messages.
fn named(dump: &Path, arguments: &[&str]) -> (String, String) {
    let output = parser(dump, arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{message}");
    let table = String::from_utf8(output.stdout).unwrap();
    (table.lines().last().unwrap().to_owned(), message)
}

#[test]
fn another_machines_file_system_is_searched() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("root");
    let bin = root.join("opt/board/bin");
    fs::create_dir_all(&bin).unwrap();
    let built = build(&bin, "keeper", &[]);
    let dump = write(
        directory.path(),
        mapping(&built, PATH),
        BASE + built.address + 5,
        Facts::default(),
    );
    let (line, message) = named(&dump, &["--symbol-path", text(&root)]);
    assert!(
        line.contains("keeps_memory") && line.contains("keeper.c:"),
        "{line} {message}"
    );
    // A directory that contains only the file is sufficient, too.
    let (line, message) = named(&dump, &["--symbol-path", text(&bin)]);
    assert!(line.contains("keeps_memory"), "{line} {message}");
    // A directory without the file gives a message.
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let (line, message) = named(&dump, &["--symbol-path", text(&empty)]);
    assert!(line.ends_with("[keeper]"), "{line}");
    assert!(
        message.contains(PATH) && message.contains("not named"),
        "{message}"
    );
}

#[test]
fn unloaded_libraries_are_named_too() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let mut gone = mapping(&built, PATH);
    // Address at which the controller puts modules whose addresses are in use by another one.
    let away = (1 << 62) - BASE;
    gone.start += away;
    gone.end += away;
    gone.past = true;
    let address = BASE + away + built.address + 5;
    let dump = write(directory.path(), gone, address, Facts::default());
    let (line, message) = named(&dump, &["--symbol-path", text(directory.path())]);
    assert!(line.contains("keeps_memory"), "{line} {message}");
}

#[test]
fn debug_files_are_found_by_build_id() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let hex = built.build_id.to_string();
    let store = directory.path().join("debug");
    let own = store.join(".build-id").join(&hex[..2]);
    fs::create_dir_all(&own).unwrap();
    let file = own.join(format!("{}.debug", &hex[2..]));
    tool(
        "objcopy",
        &["--only-keep-debug", text(&built.path), text(&file)],
    );
    let dump = write(
        directory.path(),
        mapping(&built, PATH),
        BASE + built.address + 5,
        Facts::default(),
    );
    let (line, message) = named(&dump, &["--symbol-path", text(&store)]);
    assert!(
        line.contains("keeps_memory") && line.contains("keeper.c:"),
        "{line} {message}"
    );
    // The stripped program in the same directory makes no difference.
    let stripped = directory.path().join("stripped");
    fs::create_dir_all(stripped.join("bin")).unwrap();
    let program = stripped.join("bin/keeper");
    tool("strip", &["-o", text(&program), text(&built.path)]);
    let arguments = ["--symbol-path", text(&store), "-p", text(&program)];
    let (line, message) = named(&dump, &arguments);
    assert!(line.contains("keeps_memory"), "{line} {message}");
}

/// Returns the mapping of a program's code under a kernel with this page size.
fn mapped(built: &keeper::Built, page: u64) -> Mapping {
    let headers = tool("readelf", &["-lW", text(&built.path)]);
    let code = headers
        .lines()
        .find(|line| line.contains("LOAD") && line.contains("R E"));
    let numbers = code.unwrap().split_whitespace().skip(1).take(5);
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
    let [offset, address, _, _, size] = numbers.map(hex).collect::<Vec<_>>()[..] else {
        panic!("{headers}")
    };
    assert_ne!(address & 0xffff, address & 0xfff, "{headers}");
    Mapping {
        start: BASE + (address & !(page - 1)),
        end: BASE + (address + size).next_multiple_of(page),
        file_offset: offset & !(page - 1),
        ..mapping(built, PATH)
    }
}

/// The layout of lld's programs: code begins anywhere within a page of 64 KiB. The debug file has
/// no file offsets, so it does not show where.
#[test]
fn debug_files_of_programs_on_pages_of_any_size_name_the_right_functions() {
    let directory = tempfile::tempdir().unwrap();
    let layout = ["-fuse-ld=lld", "-Wl,-z,max-page-size=65536", "-DMUCH"];
    let built = build(directory.path(), "keeper", &layout);
    let hex = built.build_id.to_string();
    let store = directory.path().join("debug");
    let own = store.join(".build-id").join(&hex[..2]);
    fs::create_dir_all(&own).unwrap();
    let debug = own.join(format!("{}.debug", &hex[2..]));
    tool(
        "objcopy",
        &["--only-keep-debug", text(&built.path), text(&debug)],
    );
    let program = directory.path().join("stripped");
    tool("strip", &["-o", text(&program), text(&built.path)]);
    for page in [4 << 10, 16 << 10, 64 << 10] {
        let dump = write(
            directory.path(),
            mapped(&built, page),
            BASE + built.address + 5,
            Facts::default(),
        );
        // Only the debug file, and together with the program.
        for with in [&[][..], &["-p", text(&program)]] {
            let arguments = [&["--symbol-path", text(&store)], with].concat();
            let (line, message) = named(&dump, &arguments);
            let is_named = line.contains("keeps_memory") && line.contains("keeper.c:");
            assert!(is_named, "{page}, {with:?}: {line} {message}");
        }
        // A part of the mapping, whose position in the code is unknown.
        let mut part = mapped(&built, page);
        part.end += 16 * page;
        let address = BASE + built.address + 5;
        let dump = write(directory.path(), part, address, Facts::default());
        let (line, _) = named(&dump, &["--symbol-path", text(&store)]);
        assert!(line.ends_with("[keeper]"), "{page}: {line}");
    }
}

#[test]
fn debuginfod_is_queried_only_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let debug = directory.path().join("fetched");
    tool(
        "objcopy",
        &["--only-keep-debug", text(&built.path), text(&debug)],
    );
    let fake = directory.path().join("debuginfod-find");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> {}/asked\n[ \"$1 $2\" = 'debuginfo {}' ] && echo {}\n",
        text(directory.path()),
        built.build_id,
        text(&debug)
    );
    let draft = directory.path().join("draft");
    fs::write(&draft, script).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    // By another process: what this one has open for writing, another test's child may have open
    // for a moment longer, and it could not be executed.
    let copied = Command::new("cp").arg(&draft).arg(&fake).status();
    assert!(copied.unwrap().success());
    let dump = write(
        directory.path(),
        mapping(&built, PATH),
        BASE + built.address + 5,
        Facts::default(),
    );
    let path = format!(
        "{}:{}",
        text(directory.path()),
        std::env::var("PATH").unwrap()
    );
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mem_parser"));
        command.args(["-t", "-f", text(&dump)]).args(arguments);
        let output = command.env("PATH", &path).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(!run(&["--symbol-path", text(&empty)]).contains("keeps_memory"));
    assert!(!directory.path().join("asked").exists());
    assert!(run(&["--debuginfod"]).contains("keeps_memory"));
    let requested = fs::read_to_string(directory.path().join("asked")).unwrap();
    assert!(
        requested.contains(&built.build_id.to_string()),
        "{requested}"
    );
}

#[test]
fn files_of_another_build_are_refused_individually() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let other = build(directory.path(), "other", &["-DOTHER", "-O2"]);
    let dump = write(
        directory.path(),
        mapping(&other, PATH),
        BASE + other.address + 5,
        Facts::default(),
    );
    let arguments = ["--symbol-path", text(directory.path())];
    let (line, message) = named(&dump, &arguments);
    assert!(line.ends_with("[keeper]"), "{line}");
    for part in [text(&built.path), "--force"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(message.contains(&built.build_id.to_string()), "{message}");
    assert!(message.contains(&other.build_id.to_string()), "{message}");
    let (line, _) = named(&dump, &[&arguments[..], &["--force"]].concat());
    assert!(
        line.contains("keeps_memory") || line.contains("main"),
        "{line}"
    );
}

#[test]
fn a_deleted_program_is_read_from_its_process() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let mut process = built.start();
    let path = format!("{} (deleted)", text(&built.path));
    let facts = Facts {
        pid: Some(process.id()),
        exe: Some(path.clone().into()),
        exe_build_id: built.build_id.clone(),
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")
            .ok()
            .map(|id| id.trim().to_owned()),
        ..Facts::default()
    };
    let module = mapping(&built, &path);
    let dump = write(directory.path(), module, BASE + built.address + 5, facts);
    fs::remove_file(&built.path).unwrap();
    let empty = directory.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let arguments = ["--symbol-path", text(&empty)];
    let living = named(&dump, &arguments);
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(living.0.contains("keeps_memory"), "{living:?}");
    // When the process is gone, so is the file.
    let (line, message) = named(&dump, &arguments);
    assert!(line.ends_with(']'), "{line}");
    assert!(
        message.contains(text(&built.path)) && message.contains("not named"),
        "{message}"
    );
}

#[test]
fn jit_code_is_named_by_its_perf_map() {
    let directory = tempfile::tempdir().unwrap();
    let module = Mapping {
        start: 0x7f00_0000_0000,
        end: 0x7f00_0001_0000,
        ..Mapping::default()
    };
    let dump = write(directory.path(), module, 0x7f00_0000_0110, Facts::default());
    let list = directory.path().join("perf.map");
    let lines = "junk\n7f0000000000 80 JS:*other a.js:1\n7f0000000100 20 JS:*render a.js:7\n";
    fs::write(&list, lines).unwrap();
    let empty = text(directory.path()).to_owned();
    let arguments = ["--symbol-path", &empty, "--perf-map", text(&list)];
    let (line, _) = named(&dump, &arguments);
    assert!(line.ends_with("render (a.js:7)"), "{line}");
    let missing = [
        "--symbol-path",
        &empty,
        "--perf-map",
        "/nonexistent/perf.map",
    ];
    let (_, message) = named(&dump, &missing);
    assert!(message.contains("/nonexistent/perf.map"), "{message}");
}

#[test]
fn kernel_functions_are_named_only_under_the_same_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let maps = fs::read("/proc/self/maps").unwrap();
    let all = profile::maps::parse(&maps);
    let vdso = all
        .into_iter()
        .find(|m| m.path == Path::new("[vdso]"))
        .unwrap();
    let mut bytes = vec![0; (vdso.end - vdso.start) as usize];
    let memory = File::open("/proc/self/mem").unwrap();
    memory.read_exact_at(&mut bytes, vdso.start).unwrap();
    let copy = directory.path().join("vdso.so");
    fs::write(&copy, bytes).unwrap();
    let notes = tool("readelf", &["-n", text(&copy)]);
    let id = notes.split("Build ID: ").nth(1).unwrap();
    let id = BuildId::from_hex(id.split_whitespace().next().unwrap()).unwrap();
    let symbols = tool("nm", &["-D", text(&copy)]);
    let line = symbols
        .lines()
        .find(|l| l.contains("gettimeofday"))
        .unwrap();
    let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let table = |build_id: BuildId| {
        let module = Mapping {
            build_id,
            ..vdso.clone()
        };
        let address = vdso.start + address + 2;
        let dump = write(directory.path(), module, address, Facts::default());
        named(&dump, &["--symbol-path", text(directory.path())]).0
    };
    assert!(table(id).contains("gettimeofday"));
    assert!(table(BuildId(vec![1; 20])).ends_with(" [vdso]"));
    assert!(table(BuildId::default()).ends_with(" [vdso]"));
}

/// Files that are corrupt or truncated lack at most their own names: the parser succeeds and
/// reports the error, even if the library that it uses panics.
#[test]
fn damaged_files_do_not_crash_the_parser() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &[]);
    let whole = fs::read(&built.path).unwrap();
    let address = BASE + built.address + 5;
    let dump = write(
        directory.path(),
        mapping(&built, PATH),
        address,
        Facts::default(),
    );
    let damaged = directory.path().join("damaged");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let check = |bytes: &[u8], what: &str| {
        fs::write(&damaged, bytes).unwrap();
        let output = parser(&dump, &["-p", text(&damaged), "--force"]);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{what}: {message}");
        assert!(!message.contains("panicked"), "{what}: {message}");
    };
    for part in 1..16 {
        check(
            &whole[..whole.len() * part / 16],
            &format!("{part} of 16 parts"),
        );
    }
    for number in 0..80 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(12) {
            // Headers and debug information more often than the rest.
            let within = if random.below(2) == 0 {
                1024
            } else {
                bytes.len()
            };
            let at = random.below(within as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        check(&bytes, &format!("damage {number}"));
    }
    // A hollow file claims more than there is memory.
    let hollow = File::options().write(true).open(&damaged).unwrap();
    hollow.set_len(1 << 40).unwrap();
    let output = parser(&dump, &["-p", text(&damaged), "--force"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}

/// Changes the section of this name: its bytes in a file, and its header.
fn change(path: &Path, name: &str, how: impl FnOnce(&mut [u8], &mut [u8])) {
    let listed = tool("readelf", &["-SW", text(path)]);
    let line = listed
        .lines()
        .find(|line| line.contains(&format!(" {name} ")));
    let (number, rest) = line.unwrap().split_once(']').unwrap();
    let number: usize = number
        .trim_start_matches([' ', '['])
        .trim()
        .parse()
        .unwrap();
    let field = |n: usize| usize::from_str_radix(rest.split_whitespace().nth(n).unwrap(), 16);
    let offset = field(3).unwrap();
    let size = field(4).unwrap();
    let mut bytes = fs::read(path).unwrap();
    let table = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let (contents, headers) = bytes.split_at_mut(table);
    how(
        &mut contents[offset..offset + size],
        &mut headers[number * 64..][..64],
    );
    fs::write(path, bytes).unwrap();
}

/// A corrupt section of debug information makes only lines unavailable.
#[test]
fn damaged_debug_information_falls_back_to_the_symbol_table() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &["-gz=zlib"]);
    let whole = fs::read(&built.path).unwrap();
    let dump = write(
        directory.path(),
        mapping(&built, PATH),
        BASE + built.address + 5,
        Facts::default(),
    );
    type Damage = fn(&mut [u8], &mut [u8]);
    let unpacks_to_much: Damage =
        |bytes, _| bytes[8..16].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    let is_beyond_the_end: Damage = |_, header| header[32..40].fill(0x7f);
    let is_packed_otherwise: Damage = |bytes, _| bytes[0] = 77;
    let has_no_name: Damage = |_, header| header[..4].fill(0xff);
    let is_noise: Damage = |bytes, _| bytes[24..].fill(0x55);
    for (damage, what) in [
        (unpacks_to_much, "unpacks to much"),
        (is_beyond_the_end, "is beyond the end"),
        (is_packed_otherwise, "is packed otherwise"),
        (is_noise, "is noise"),
        (has_no_name, "has no name"),
    ] {
        for section in [".debug_info", ".debug_abbrev", ".debug_line"] {
            fs::write(&built.path, &whole).unwrap();
            change(&built.path, section, damage);
            let (line, message) = named(&dump, &["-p", text(&built.path)]);
            assert!(
                line.contains("keeps_memory"),
                "{section} {what}: {line} {message}"
            );
            assert!(
                message.contains("debug information is damaged") || what == "has no name",
                "{section} {what}: {message}"
            );
        }
    }
}

/// If the debug information in a program is corrupt, that of its debug file is used.
#[test]
fn a_debug_file_replaces_damaged_debug_information() {
    let directory = tempfile::tempdir().unwrap();
    let built = build(directory.path(), "keeper", &["-gz=zlib"]);
    let hex = built.build_id.to_string();
    let debug = directory.path().join(".build-id").join(&hex[..2]);
    fs::create_dir_all(&debug).unwrap();
    let debug = debug.join(format!("{}.debug", &hex[2..]));
    tool(
        "objcopy",
        &["--only-keep-debug", text(&built.path), text(&debug)],
    );
    change(&built.path, ".debug_info", |bytes, _| {
        bytes[8..16].copy_from_slice(&(1_u64 << 40).to_le_bytes());
    });
    let dump = write(
        directory.path(),
        mapping(&built, PATH),
        BASE + built.address + 5,
        Facts::default(),
    );
    let (line, message) = named(&dump, &["--symbol-path", text(directory.path())]);
    assert!(
        line.contains("keeps_memory") && line.contains("keeper.c:"),
        "{line} {message}"
    );
    assert!(!message.contains("damaged"), "{message}");
}
