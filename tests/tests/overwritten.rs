//! Programs that write before or after their objects, over the headers of sampled objects: they are
//! unharmed, the numbers stay true, and a message reports the writes.

use std::path::Path;

use mem_tests::{Scratch, run};

/// What was printed of a program at `-c 1`.
struct Told {
    /// By `run`.
    errors: String,
    /// By the parser, for its dump.
    table: String,
}

fn told(scratch: &Scratch, program: &Path, arguments: &str) -> Told {
    let mut command = scratch.profiler();
    command.args(["run", "-c", "1", "--"]).arg(program);
    let outcome = run(command.args(arguments.split(' ')));
    assert!(
        outcome.stdout.contains("done\n"),
        "{arguments}: {}",
        outcome.stderr
    );
    assert_eq!(outcome.code, Some(0), "{arguments}: {}", outcome.stderr);
    let dump = outcome
        .stderr
        .split_whitespace()
        .find(|word| word.ends_with(".heap"))
        .expect("a dump");
    let mut parser = scratch.parser();
    let table = run(parser.args(["-t", "-f", dump]));
    Told {
        errors: outcome.stderr,
        table: table.stdout + &table.stderr,
    }
}

/// Objects of at least this many bytes have a longer header.
const LONG: usize = 128 << 10;
const BEFORE: &str = "the program writes before its objects";

/// Eight bytes are half of a header. Without them, the record of an object is still known.
#[test]
fn objects_that_are_freed_count_as_freed() {
    let scratch = Scratch::new();
    let program = scratch.compile("overwritten.c", &["-O0", "-g", "-fno-builtin"]);
    for (size, from, bytes, value) in [
        (24, -1, 1, 122),
        (24, -4, 4, 255),
        (100, -8, 8, 0),
        (4000, -8, 8, 122),
    ] {
        let told = told(
            &scratch,
            &program,
            &format!("500 {size} {from} {bytes} {value} free"),
        );
        assert!(
            told.errors.contains(BEFORE),
            "{size} {from}: {}",
            told.errors
        );
        assert!(
            told.table.contains("allocated in make < main"),
            "{}",
            told.table
        );
        assert!(
            !told.table.contains("PiB") && !told.table.contains(" make\n"),
            "{}",
            told.table
        );
        assert!(
            !told.errors.contains("counted as in use"),
            "{}",
            told.errors
        );
    }
}

/// If 20,000 second words are overwritten, some 80 pass their check by chance, with a weight that
/// no object can have.
#[test]
fn objects_whose_overwritten_words_pass_their_check_count_as_freed() {
    let scratch = Scratch::new();
    let program = scratch.compile("overwritten.c", &["-O0", "-g", "-fno-builtin"]);
    for (size, value) in [(24, 255), (100, 122), (4000, -1), (140_000, 122)] {
        let count = if size < LONG { 20_000 } else { 2000 };
        let arguments = format!("{count} {size} -8 8 {value} later");
        let told = told(&scratch, &program, &arguments);
        assert!(told.errors.contains(BEFORE), "{size}: {}", told.errors);
        assert!(
            !told.errors.contains("counted as in use") && !told.table.contains(" make\n"),
            "{size}: {}\n{}",
            told.errors,
            told.table
        );
    }
}

/// Whatever is written there, memory can be freed and nothing breaks.
#[test]
fn memory_goes_back_whatever_was_written() {
    let scratch = Scratch::new();
    let program = scratch.compile("overwritten.c", &["-O0", "-g", "-fno-builtin"]);
    for size in [24, 500, 1000, 4000, 20_000, 200_000] {
        for value in [0, 1, 122, 255] {
            for how in ["free", "resize"] {
                let arguments = format!("200 {size} -16 16 {value} {how}");
                let told = told(&scratch, &program, &arguments);
                assert!(
                    told.errors.contains("200 of them are counted as in use"),
                    "{}",
                    told.errors
                );
            }
        }
    }
    for size in [24, 1024, 4096, 300_000] {
        let told = told(&scratch, &program, &format!("200 {size} 0 1 1 twice"));
        assert!(
            told.errors.contains("200 such frees"),
            "{size}: {}",
            told.errors
        );
    }
}

/// One in 256 headers passes its check by chance, with a record that does not exist.
#[test]
fn what_is_written_over_headers_names_no_memory() {
    let scratch = Scratch::new();
    let program = scratch.compile("overwritten.c", &["-O0", "-g", "-fno-builtin"]);
    for (how, bytes) in [("free", 8), ("free", 16), ("resize", 16)] {
        let arguments = format!("20000 24 -{bytes} {bytes} -1 {how}");
        let told = told(&scratch, &program, &arguments);
        assert!(told.errors.contains(BEFORE), "{}", told.errors);
    }
}

#[test]
fn lost_objects_are_found_and_weigh_what_they_can() {
    let scratch = Scratch::new();
    let program = scratch.compile("overwritten.c", &["-O0", "-g", "-fno-builtin"]);
    for bytes in [1, 4, 8] {
        let arguments = format!("1000 24 -{bytes} {bytes} 122 lose");
        let mut command = scratch.profiler();
        command
            .args(["run", "-c", "1", "--leak-check", "--"])
            .arg(&program);
        let outcome = run(command.args(arguments.split(' ')));
        // The last one may still be on the stack.
        let all = outcome.stdout + &outcome.stderr;
        let found = ["lost in 1000 objects", "lost in 999 objects"];
        assert!(
            found.iter().any(|found| all.contains(found)),
            "{arguments}: {all}"
        );
        assert!(all.contains(BEFORE), "{all}");
        assert!(all.contains("allocated in make < main"), "{all}");
    }
}
