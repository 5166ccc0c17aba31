//! Sources of a profile and its companions: pipes, programs, and files given as for other tools.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

mod invoke;

use invoke::{stderr, stdout};

const FOLDED: &[u8] = b"main;a 3\nmain;b 4\n";
const PERF: &[u8] = b"app 1 2.5: 100 cpu-clock: \n\t55d0 work+0x1 (/opt/app)\n\n";

/// Runs the parser in a directory with this standard input.
fn run(directory: &Path, words: &str, input: impl Into<Stdio>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .current_dir(directory)
        .args(words.split(' '))
        .stdin(input)
        .output()
        .unwrap()
}

/// Runs the parser with a pipe as its standard input.
fn piped(directory: &Path, words: &str, input: &[u8]) -> Output {
    let (from, mut to) = std::io::pipe().unwrap();
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // The parser may refuse the input before it has read all of it.
        let _ = to.write_all(&input);
    });
    let output = run(directory, words, from);
    writer.join().unwrap();
    output
}

fn ok(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", stderr(output));
    stdout(output)
}

#[test]
fn a_dash_is_standard_input_for_every_output() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("x.folded"), FOLDED).unwrap();
    for options in ["-t", "--folded", "--json", "--raw", "--traces", "--csv"] {
        let named = ok(&run(
            scratch.path(),
            &format!("{options} x.folded"),
            Stdio::null(),
        ));
        for words in [
            "OPTIONS -",
            "- OPTIONS",
            "OPTIONS -f -",
            "-f - OPTIONS -o -",
            "OPTIONS",
        ] {
            let words = words.replace("OPTIONS", options);
            let shown = ok(&piped(scratch.path(), &words, FOLDED));
            let shown = shown.replace("standard input", "x.folded");
            assert_eq!(shown, named, "{words}");
        }
        let redirected = run(
            scratch.path(),
            &format!("{options} -"),
            File::open(at("x.folded")).unwrap(),
        );
        assert_eq!(ok(&redirected).replace("standard input", "x.folded"), named);
    }
    for output in ["--flame", "--svg", "--html"] {
        let shown = ok(&piped(scratch.path(), &format!("{output} -"), PERF));
        assert!(
            shown.contains("work") && shown.contains("standard input"),
            "{output}"
        );
    }
    let dump = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/shop.heap")).unwrap();
    assert!(ok(&piped(scratch.path(), "-t -", &dump)).contains("flat%"));
    // A base is read from standard input, even if there is a file named `-`.
    fs::write(at("-"), b"main;a 1\n").unwrap();
    let change = ok(&piped(
        scratch.path(),
        "--folded x.folded --base -",
        b"main;a 2\nmain;b 4\n",
    ));
    assert_eq!(change, "main;a 1\n");
    assert_eq!(
        ok(&run(scratch.path(), "--folded ./-", Stdio::null())),
        "main;a 1\n"
    );
}

#[test]
fn inputs_that_cannot_be_standard_input_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("x.folded"), FOLDED).unwrap();
    let cases = [
        (
            "-t -",
            &b""[..],
            1,
            "standard input is empty: the program before the pipe",
        ),
        ("-t - -", FOLDED, 2, "can be read only once"),
        ("-t - --base -", FOLDED, 2, "can be read only once"),
        (
            "-t x.folded -p -",
            FOLDED,
            2,
            "-p -: only a dump can come from standard input",
        ),
        (
            "-t x.folded --perf-map -",
            FOLDED,
            2,
            "--perf-map -: only a dump",
        ),
        (
            "-t -",
            b"PERFILE2\0\0",
            1,
            "perf script -i - | mem_parser -",
        ),
        (
            "-t -",
            b"what is it\n",
            1,
            "standard input: is not a profile",
        ),
    ];
    for (words, input, code, expected) in cases {
        let output = piped(scratch.path(), words, input);
        let text_shown = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{words}: {text_shown}");
        assert!(text_shown.contains(expected), "{words}: {text_shown}");
        assert!(output.stdout.is_empty(), "{words}");
    }
    // Standard input is /dev/null, so there is no profile.
    let output = run(scratch.path(), "-t", Stdio::null());
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("- is standard input"),
        "{}",
        stderr(&output)
    );
    // Standard input is a terminal.
    let program = env!("CARGO_BIN_EXE_mem_parser");
    let output = Command::new("script")
        .args(["-qec", &format!("{program} -t -"), "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text_shown = stdout(&output);
    assert!(
        text_shown.contains("standard input is a terminal"),
        "{output:?}"
    );
    // The file that standard input reads is not replaced.
    let own = scratch.path().join("x.folded");
    let output = run(
        scratch.path(),
        "--raw - -o x.folded",
        File::open(&own).unwrap(),
    );
    assert!(
        stderr(&output).contains("would be replaced"),
        "{}",
        stderr(&output)
    );
    assert_eq!(fs::read(&own).unwrap(), FOLDED);
}

/// Builds a program of `main` and `work`. Returns the addresses of both.
fn program(directory: &Path, options: &[&str]) -> [u64; 2] {
    let source = directory.join("app.c");
    fs::write(&source, "int work(int n) { return n * 3; }\nint main(int n, char **v) { (void)v; return work(n); }\n").unwrap();
    let built = Command::new("cc")
        .args(options)
        .args(["-g", "-O0", "-o"])
        .arg(directory.join("app"))
        .arg(&source)
        .status()
        .unwrap();
    assert!(built.success());
    let symbols = Command::new("nm")
        .arg(directory.join("app"))
        .output()
        .unwrap();
    let symbols = stdout(&symbols);
    ["work", "main"].map(|name| {
        let line = symbols
            .lines()
            .find(|line| line.ends_with(&format!(" T {name}")));
        let address = line.unwrap().split(' ').next().unwrap();
        u64::from_str_radix(address, 16).unwrap()
    })
}

/// Returns the flat value and the name of each function of a table.
fn rows(table: &str) -> Vec<(String, String)> {
    let rows = table
        .lines()
        .skip_while(|line| !line.contains("flat%"))
        .skip(1);
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[0].to_owned(), words[5..].join(" "))
    };
    rows.map(row).collect()
}

#[test]
fn a_program_is_used_for_profiles_without_mappings() {
    let scratch = tempfile::tempdir().unwrap();
    let [work, main] = program(scratch.path(), &["-no-pie"]);
    let heap = format!(
        "heap profile: 2: 2000 [2: 2000] @ heapprofile\n2: 2000 [2: 2000] @ {:#x} {:#x}\n",
        work + 5,
        main + 9
    );
    fs::write(scratch.path().join("x.heap"), heap).unwrap();
    // A frame that all stacks share is taken for the signal handler.
    let header = [0, 3, 0, 10_000, 0];
    let stacks = [7, 2, work + 5, main + 9, 1, 1, work + 5];
    let words: Vec<u64> = [&header[..], &stacks, &[0, 1, 0]].concat();
    let prof: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    fs::write(scratch.path().join("x.prof"), prof).unwrap();
    for (file, value) in [("x.heap", "1.95KiB"), ("x.prof", "80ms")] {
        for words in ["-p app -f FILE -t", "-t app FILE", "--text app FILE"] {
            let output = run(scratch.path(), &words.replace("FILE", file), Stdio::null());
            let table = ok(&output);
            let expected =
                [(value, "work"), ("0", "main")].map(|(v, n)| (v.to_owned(), n.to_owned()));
            assert_eq!(rows(&table), expected, "{file}: {table}");
            assert!(table.starts_with("File: app"), "{table}");
        }
        let go = Command::new("go")
            .args(["tool", "pprof", "-top", "app", file])
            .current_dir(scratch.path())
            .output()
            .unwrap();
        let theirs = rows(&stdout(&go));
        assert_eq!(theirs.len(), 2, "{go:?}");
        assert!(theirs[0].1.starts_with("work"), "{theirs:?}");
    }
    // The addresses of a position-independent program are not known.
    let pie = tempfile::tempdir().unwrap();
    program(pie.path(), &["-pie", "-fPIE"]);
    fs::copy(scratch.path().join("x.heap"), pie.path().join("x.heap")).unwrap();
    let output = run(pie.path(), "-p app -f x.heap -t", Stdio::null());
    assert!(
        stderr(&output).contains("does not say where app was loaded"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_script_given_as_the_program_is_skipped() {
    let scratch = tempfile::tempdir().unwrap();
    let shim = scratch.path().join("python");
    fs::write(&shim, "#!/bin/sh\nexec python3 \"$@\"\n").unwrap();
    let shop = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/shop.heap");
    for words in ["--text python DUMP", "-p python -f DUMP -t"] {
        let output = run(scratch.path(), &words.replace("DUMP", shop), Stdio::null());
        assert!(ok(&output).contains("flat%"));
        assert!(
            stderr(&output).contains("python is a script, not the program"),
            "{words}"
        );
    }
}

#[test]
fn a_directory_is_refused_with_the_dump_in_it() {
    let scratch = tempfile::tempdir().unwrap();
    let output = run(scratch.path(), "-t .", Stdio::null());
    assert!(stderr(&output).contains("is a directory, in which there is no dump"));
    fs::write(scratch.path().join("app.1.heap"), "x").unwrap();
    let output = run(scratch.path(), "-t .", Stdio::null());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("such as the newest: ./app.1.heap"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn fractions_are_shown_as_they_were_written() {
    let scratch = tempfile::tempdir().unwrap();
    let text = b"main;a 0.25\nmain;b 0.3\nmain;c 0.45\nmain;d 1.5\n";
    let table = ok(&piped(scratch.path(), "-t -", text));
    let expected = [
        ("1.5", "d"),
        ("0.45", "c"),
        ("0.3", "b"),
        ("0.25", "a"),
        ("0", "main"),
    ];
    assert_eq!(
        rows(&table),
        expected.map(|(v, n)| (v.to_owned(), n.to_owned())),
        "{table}"
    );
    assert!(
        table.contains("100% of 2.5 total") && table.contains("60.00%"),
        "{table}"
    );
    let folded = ok(&piped(scratch.path(), "--folded -", text));
    assert_eq!(folded.as_bytes(), text);
    // A file with other fractions is added exactly.
    fs::write(scratch.path().join("b.folded"), "main;d 0.125\nmain;e 2\n").unwrap();
    let sum = ok(&piped(scratch.path(), "--folded - b.folded", text));
    assert_eq!(
        sum,
        "main;a 0.25\nmain;b 0.3\nmain;c 0.45\nmain;d 1.625\nmain;e 2\n"
    );
    // Beside large counts, the smallest fractions are rounded.
    fs::write(scratch.path().join("c.folded"), "main;f 4e-12\n").unwrap();
    assert_eq!(
        ok(&piped(scratch.path(), "--folded -", b"f 4e-12\n")),
        "f 0.000000000004\n"
    );
    let large = ok(&piped(
        scratch.path(),
        "--folded - c.folded",
        b"main;g 900000000000.5\n",
    ));
    assert_eq!(large, "main;g 900000000000.5\n");
}

#[test]
fn one_of_several_events_is_shown_and_the_others_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let sample = |period: u32, event: &str| {
        format!("app 1 2.5: {period} {event}: \n\t55d0 work+0x1 (/opt/app)\n\n")
    };
    let text = [
        sample(1000, "cpu_core/cycles/"),
        sample(7, "cpu_atom/cycles/"),
    ]
    .concat();
    let output = piped(directory.path(), "-t -", text.as_bytes());
    let table = ok(&output);
    assert!(table.contains("Type: cpu_core/cycles\n"), "{table}");
    assert!(table.contains("100% of 1000 total"), "{table}");
    let hint = stderr(&output);
    assert!(
        hint.contains("this is cpu_core/cycles. The others: --sample_index cpu_atom/cycles"),
        "{hint}"
    );
    let other = piped(
        directory.path(),
        "-t --sample_index cpu_atom/cycles -",
        text.as_bytes(),
    );
    assert!(ok(&other).contains("100% of 7 total"), "{other:?}");
    assert_eq!(stderr(&other), "");
}

#[test]
fn names_that_perf_did_not_demangle_are_demangled() {
    let scratch = tempfile::tempdir().unwrap();
    let text = "app 1 2.5: 100 cpu-clock: \n\
        \t55d0 _ZN4shop4Room4fillEi+0x1 (/opt/app)\n\
        \t55d1 _ZN3app4load17h0123456789abcdefE+0x1 (/opt/app)\n\
        \t55d2 _RNvC3app4main+0x1 (/opt/app)\n\n";
    let folded = ok(&piped(scratch.path(), "--folded -", text.as_bytes()));
    assert_eq!(folded, "app;app::main;app::load;shop::Room::fill 100\n");
    let full = ok(&piped(
        scratch.path(),
        "--folded --demangle full -",
        text.as_bytes(),
    ));
    assert!(full.contains("shop::Room::fill(int)"), "{full}");
    let none = ok(&piped(
        scratch.path(),
        "--folded --demangle none -",
        text.as_bytes(),
    ));
    assert!(
        none.contains("_ZN4shop4Room4fillEi") && none.contains("_RNvC3app4main"),
        "{none}"
    );
}

/// As Go writes where no thread has waited: a program, and nothing to name in it.
#[test]
fn a_profile_without_samples_needs_no_program() {
    let message = b"\x0a\x04\x08\x01\x10\x02\x1a\x0b\x08\x01\x10\x80 \x18\x80\xa0\x02(\x032\x002\x05delay2\x0bnanoseconds2\x0b/opt/absent";
    let scratch = tempfile::tempdir().unwrap();
    let table = ok(&piped(scratch.path(), "-t -", message));
    assert!(
        table.contains("0 of 0") || table.contains("0 total"),
        "{table}"
    );
}

#[test]
fn a_mapping_without_a_file_is_not_a_script() {
    // Go writes this if the system lists no mappings: addresses, lines and one empty mapping.
    let message: &[u8] = b"\n\x04\x08\x01\x10\x02\x12\x07\n\x02\x01\x03\x12\x01\n\x12\x07\n\x02\x02\x03\
        \x12\x01\x14\x1a\x04\x08\x018\x01\"\x10\x08\x01\x10\x01\x18\x90\x80\x80\x80\x10\"\x04\x08\x01\
        \x10\n\"\x10\x08\x02\x10\x01\x18\xa0\x80\x80\x80\x10\"\x04\x08\x01\x10\x0b\"\x10\x08\x03\x10\
        \x01\x18\xb0\x80\x80\x80\x10\"\x04\x08\x02\x10\x14*\x08\x08\x01\x10\x03\x18\x03 \x04*\x08\x08\
        \x02\x10\x05\x18\x05 \x042\x002\x03cpu2\x0bnanoseconds2\tmain.work2\x10/src/app/main.go2\tmain.main";
    let scratch = tempfile::tempdir().unwrap();
    let table = ok(&piped(scratch.path(), "-t -", message));
    let expected = [("30ns", "main.work"), ("0", "main.main")];
    assert_eq!(
        rows(&table),
        expected.map(|(v, n)| (v.to_owned(), n.to_owned())),
        "{table}"
    );
}

#[test]
fn the_users_own_lines_come_before_libraries() {
    let scratch = tempfile::tempdir().unwrap();
    let perf = "app 1 2.5: 100 cpu-clock: \n\t55d0 std::vector::push_back+0x1 (/opt/app)\n\t55d1 fill+0x1 (/opt/app)\n\n";
    // Without lines and without the program's file, there is no hint.
    assert!(!ok(&piped(scratch.path(), "-t -", perf.as_bytes())).contains("In your own code"));
    let source = scratch.path().join("cache.cpp");
    let text = "#include <vector>\nstd::vector<int> all;\nvoid fill(int n) {\n  all.push_back(n);\n}\n\
        int main() { for (int n = 0; n < 9; n++) fill(n); return 0; }\n";
    fs::write(&source, text).unwrap();
    let built = Command::new("c++")
        .args(["-g", "-O0", "-no-pie", "-o", "cache", "cache.cpp"])
        .current_dir(scratch.path())
        .status()
        .unwrap();
    assert!(built.success());
    let symbols = Command::new("nm")
        .arg(scratch.path().join("cache"))
        .output()
        .unwrap();
    let symbols = stdout(&symbols);
    let address = |name: &str| {
        let line = symbols.lines().find(|line| line.contains(name)).unwrap();
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    };
    // In the middle of each function, after its first instructions.
    let stack = format!(
        "{:#x} {:#x} {:#x}",
        address("push_back") + 20,
        address("T _Z4filli") + 24,
        address("T main") + 20
    );
    let heap =
        format!("heap profile: 2: 2000 [2: 2000] @ heapprofile\n2: 2000 [2: 2000] @ {stack}\n");
    fs::write(scratch.path().join("x.heap"), heap).unwrap();
    let table = ok(&run(scratch.path(), "-p cache -f x.heap -t", Stdio::null()));
    let own = first_own_line(&table);
    assert!(
        own.contains("1.95KiB") && own.contains("100%") && own.contains("fill "),
        "{table}"
    );
    assert!(own.ends_with("cache.cpp:4"), "{table}");
    let all = ok(&run(
        scratch.path(),
        "-p cache -f x.heap -t --all-frames",
        Stdio::null(),
    ));
    assert!(!all.contains("In your own code"), "{all}");
    assert_eq!(rows(&all), rows(&table));
    // In a comparison, the page shows by how much the lines have changed.
    let base =
        format!("heap profile: 1: 1000 [1: 1000] @ heapprofile\n1: 1000 [1: 1000] @ {stack}\n");
    fs::write(scratch.path().join("base.heap"), base).unwrap();
    let page = ok(&run(
        scratch.path(),
        "-p cache -f x.heap --base base.heap --html",
        Stdio::null(),
    ));
    assert!(page.contains("\"value\":1000,\"text\":\"fill"), "{page}");
}

/// An interpreter and the system's libraries are no code of the user's.
#[test]
fn own_lines_of_an_interpreted_program_are_its_scripts() {
    let scratch = tempfile::tempdir().unwrap();
    let folded = "main;load;PyUnicode_New 900\nmain;load;malloc 80\nmain;Py_Init 20\n";
    let mut profile = profile::read(folded.as_bytes(), "x").unwrap();
    let mapping = |path: &str, start: u64| profile::Mapping {
        path: path.into(),
        start,
        end: start + 0x1000,
        ..profile::Mapping::default()
    };
    profile.mappings = vec![
        mapping("/usr/bin/python3.11", 0x40_0000),
        mapping("/usr/lib/x86_64-linux-gnu/libc.so.6", 0x7f00_0000),
    ];
    for location in &mut profile.locations {
        let line = &mut profile.lines[location.first_line as usize];
        let function = &mut profile.functions[line.function as usize];
        match function.name.as_str() {
            "load" => (function.file, line.line) = ("/srv/app.py".into(), 4),
            "malloc" => (location.mapping, location.address) = (1, 0x7f00_0010),
            _ => (location.mapping, location.address) = (0, location.address + 0x40_0010),
        }
    }
    let path = scratch.path().join("x.pb.gz");
    let file = fs::File::create(&path).unwrap();
    profile::pprof::write(&profile, &mut &file).unwrap();
    let table = ok(&run(scratch.path(), "-f x.pb.gz -t", Stdio::null()));
    let own = first_own_line(&table);
    assert!(
        own.contains("98.00%") && own.ends_with("load /srv/app.py:4"),
        "{table}"
    );
    assert!(!table.contains("main /"), "{table}");
}

/// Returns the first of the user's own lines above a table.
fn first_own_line(table: &str) -> &str {
    let own = table
        .lines()
        .skip_while(|line| !line.contains("In your own code"))
        .nth(1);
    own.unwrap_or_else(|| panic!("{table}"))
}

/// What is below the table's limit is left out: it would need a unit of its own.
#[test]
fn own_lines_have_one_unit() {
    let scratch = tempfile::tempdir().unwrap();
    let folded = "main;app::load;std::alloc 2000000\nmain;app::save;std::alloc 900\n";
    let mut profile = profile::read(folded.as_bytes(), "x").unwrap();
    for function in &mut profile.functions {
        if function.name.starts_with("app::") {
            function.file = "/src/app.rs".into();
        }
    }
    profile.lines.iter_mut().for_each(|line| line.line = 7);
    profile.sample_types = vec![profile::ValueType::new("inuse_space", "bytes")];
    let path = scratch.path().join("x.pb.gz");
    let file = fs::File::create(&path).unwrap();
    profile::pprof::write(&profile, &mut &file).unwrap();
    let table = ok(&run(scratch.path(), "-f x.pb.gz -t", Stdio::null()));
    assert!(table.contains("  app::load /src/app.rs:7\n"), "{table}");
    assert!(!table.contains("app::save"), "{table}");
    let legend = ok(&run(scratch.path(), "-f x.pb.gz --svg", Stdio::null()));
    assert!(legend.contains("(100%) app::load app.rs:7"), "{legend}");
    assert!(!legend.contains("app::save app.rs"), "{legend}");
}

#[test]
fn recipes_from_articles_get_advice() {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("x.folded"), FOLDED).unwrap();
    for (words, expected) in [
        ("--gif x.folded", "pictures are written as SVG"),
        ("--ps x.folded", "pictures are written as SVG"),
        ("--gv x.folded", "--svg -o x.svg"),
        ("--evince x.folded", "--svg -o x.svg"),
        ("--show_bytes x.folded", "--unit B"),
        ("--heapcheck x.folded", "leave the option out"),
        ("--maxdegree=8 x.folded", "--nodefraction"),
        ("--add_lib=/lib/x.so x.folded", "--symbol-path"),
        ("-http=:8080 x.folded", "--html"),
        ("-http :8080 x.folded", "--html"),
    ] {
        let output = run(scratch.path(), words, Stdio::null());
        let text_shown = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words}: {text_shown}");
        assert!(
            text_shown.starts_with("error: there is no option -"),
            "{text_shown}"
        );
        assert!(text_shown.contains(expected), "{words}: {text_shown}");
        assert_eq!(text_shown.lines().count(), 2, "{text_shown}");
    }
}
