//! Names of a stripped program in a dump: from the debug file that its debug link names, and from
//! the compressed symbols in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::pythons::the_dump;
use mem_tests::{Scratch, run};

fn tool(program: &str, arguments: &[&str]) {
    let outcome = run(Command::new(program).args(arguments));
    assert_eq!(
        outcome.code,
        Some(0),
        "{program} {arguments:?}: {outcome:?}"
    );
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

/// A program, and its dump.
struct Profiled {
    scratch: Scratch,
    program: PathBuf,
    debug: PathBuf,
    dump: PathBuf,
}

impl Profiled {
    /// Returns a program without a build id, so that the link's checksum counts, which has no
    /// symbols; `finish` adds what names it.
    fn stripped(finish: impl FnOnce(&Scratch, &Path, &Path)) -> Self {
        let scratch = Scratch::new();
        let program = scratch.compile("few.c", &["-Wl,--build-id=none"]);
        let debug = scratch.file("few.debug");
        tool(
            "objcopy",
            &["--only-keep-debug", text(&program), text(&debug)],
        );
        tool("strip", &["--strip-all", text(&program)]);
        finish(&scratch, &program, &debug);
        let mut command = scratch.profiler();
        command
            .args(["run", "-c", "1", "-o"])
            .arg(scratch.file("p_"));
        let outcome = run(command.arg("--").arg(&program).arg("500"));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let dump = the_dump(&scratch);
        Self {
            scratch,
            program,
            debug,
            dump,
        }
    }

    /// Returns the rows of the functions that call `malloc`, by what they have taken.
    fn shown(&self, options: &[&str]) -> String {
        let mut command = self.scratch.parser();
        command.args(["-t", "--alloc_space", "--cum", "--nodefraction", "0"]);
        command.args(options).arg("-p").arg(&self.program);
        let outcome = run(command.arg("-f").arg(&self.dump));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.stdout
    }

    #[track_caller]
    fn is_named(&self) {
        let table = self.shown(&[]);
        let rows = |name: &str| table.lines().filter(|row| row.ends_with(name)).count();
        assert_eq!([rows(" lose"), rows(" main")], [1, 1], "{table}");
        let row = table.lines().find(|row| row.ends_with(" lose"));
        assert!(row.is_some_and(|row| row.contains("488.28KiB")), "{table}");
        assert!(!table.contains(" few+0x"), "{table}");
    }

    #[track_caller]
    fn is_unnamed(&self) {
        let table = self.shown(&[]);
        assert!(!table.contains("lose"), "{table}");
        assert!(table.contains(" few+0x"), "{table}");
    }
}

fn linked(_: &Scratch, program: &Path, debug: &Path) {
    let link = format!("--add-gnu-debuglink={}", text(debug));
    tool("objcopy", &[&link, text(program)]);
}

#[test]
fn a_debug_link_leads_to_names_and_lines() {
    let profiled = Profiled::stripped(linked);
    profiled.is_named();
    let lines = profiled.shown(&["--lines"]);
    assert!(lines.contains("few.c:9"), "{lines}");

    // Debuggers look there, too.
    let below = profiled.scratch.file(".debug");
    fs::create_dir(&below).expect("a directory");
    let moved = below.join("few.debug");
    fs::rename(&profiled.debug, &moved).expect("the debug file");
    profiled.is_named();
    let lines = profiled.shown(&["--lines"]);
    assert!(lines.contains("few.c:9"), "{lines}");

    // The checksum shows that the debug file is of another build.
    let mut bytes = fs::read(&moved).expect("the debug file");
    bytes.push(0);
    fs::write(&moved, bytes).expect("a debug file");
    profiled.is_unnamed();
    let elsewhere = profiled.shown(&["--symbol_path", text(&below)]);
    assert!(!elsewhere.contains("lose"), "{elsewhere}");

    fs::remove_file(&moved).expect("a debug file");
    profiled.is_unnamed();
}

#[test]
fn symbols_that_are_packed_in_a_program_name_its_functions() {
    let profiled = Profiled::stripped(|scratch, program, debug| {
        // Fedora's packages are made like this, with symbols only.
        let mini = scratch.file("mini");
        tool("objcopy", &["--strip-debug", text(debug), text(&mini)]);
        tool("xz", &["-k", text(&mini)]);
        let section = format!(".gnu_debugdata={}.xz", text(&mini));
        tool("objcopy", &["--add-section", &section, text(program)]);
        fs::remove_file(debug).expect("the debug file");
    });
    profiled.is_named();

    // A section that is not a compressed file gives no names, and does no harm.
    let zeros = profiled.scratch.file("zeros");
    fs::write(&zeros, [0; 4096]).expect("a file");
    let section = format!(".gnu_debugdata={}", text(&zeros));
    tool(
        "objcopy",
        &["--update-section", &section, text(&profiled.program)],
    );
    profiled.is_unnamed();
}
