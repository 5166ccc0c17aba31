//! Compares the answers for programs whose debug information is in other files, or compressed, with
//! those for the same code with plain debug information. Needs g++, clang, binutils, dwz and
//! llvm-dwp.

use std::fs;
use std::process::Command;

use tempfile::TempDir;

use super::*;

/// Header with a function that both programs inline.
const HEADER: &str = "
#include <cstdlib>
#include <cstring>
namespace shared {
struct Pool { char *take(std::size_t n); int used = 0; };
inline char *Pool::take(std::size_t n) { used++; return static_cast<char *>(memset(malloc(n), 1, n)); }
template <typename T> inline T *make(std::size_t n) { Pool p; return reinterpret_cast<T *>(p.take(n)); }
static inline __attribute__((always_inline)) char *inner(std::size_t n) { return make<char>(n); }
}
";
const SOURCES: [(&str, &str); 2] = [
    (
        "a.cpp",
        "#include \"in.h\"\nchar *sink;\nnamespace { __attribute__((noinline)) void hidden(int n) \
         { sink = shared::inner(n); } }\n__attribute__((noinline)) void outer() {\n for (int i = 0; \
         i < 9; i++) hidden(i);\n sink = shared::inner(7);\n}\nint other(int);\nint main() { \
         outer(); return other(3); }\n",
    ),
    (
        "b.cpp",
        "#include \"in.h\"\nint *kept;\nint other(int n) { kept = shared::make<int>(n * 8);\n \
         return shared::inner(n)[0]; }\n",
    ),
];

fn run(directory: &Path, program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(directory).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {message}"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn sources() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("in.h"), HEADER).unwrap();
    for (name, text) in SOURCES {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

/// Compiles and links the program `name`.
fn build(directory: &Path, compiler: &str, options: &[&str], name: &str) -> PathBuf {
    for (source, _) in SOURCES {
        let arguments = [options, &["-O2", "-c", source]].concat();
        run(directory, compiler, &arguments);
    }
    run(
        directory,
        compiler,
        &[options, &["-o", name, "a.o", "b.o"]].concat(),
    );
    directory.join(name)
}

/// Returns every address of the program's own functions.
fn addresses(program: &Path) -> Vec<u64> {
    let table = run(Path::new("/"), "nm", &["-S", program.to_str().unwrap()]);
    let mut all = Vec::new();
    for line in table.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let prefixes = [
            "main",
            "_Z5outerv",
            "_Z5otheri",
            "_ZN12_GLOBAL__N_1L6hiddenEi",
            "_ZN12_GLOBAL__N_16hiddenEi",
        ];
        if let [address, size, _, name] = words[..]
            && prefixes.iter().any(|prefix| name.starts_with(prefix))
        {
            let hex = |text| u64::from_str_radix(text, 16).unwrap();
            all.extend(hex(address)..hex(address) + hex(size));
        }
    }
    assert!(all.len() > 50, "{table}");
    all
}

fn answers(program: &Path, directories: &[PathBuf]) -> Resolved {
    read(program, &addresses(program), directories).unwrap_or_else(|| panic!("{program:?}"))
}

/// Asserts that the answers for `program` are those for `plain`, and that `plain` has what a user
/// would miss.
fn assert_equal(program: &Path, directories: &[PathBuf], plain: &Path) {
    let expected = answers(plain, &[]);
    let names = expected
        .frames
        .iter()
        .flatten()
        .map(|frame| &frame.name[..]);
    let names: std::collections::BTreeSet<&str> = names.collect();
    assert!(names.iter().any(|name| name.contains("inner")), "{names:?}");
    assert!(names.iter().any(|name| name.contains("4take")), "{names:?}");
    let found = answers(program, directories);
    for ((address, found), expected) in addresses(plain)
        .iter()
        .zip(&found.frames)
        .zip(&expected.frames)
    {
        assert_eq!(found, expected, "{address:#x} of {program:?}");
    }
    assert_eq!(found, expected, "{program:?}");
}

#[test]
fn debug_information_that_programs_share_is_read() {
    for (version, dwz) in [
        ("-gdwarf-4", "-m"),
        ("-gdwarf-5", "-m"),
        ("-gdwarf-5", "--dwarf-5"),
    ] {
        let directory = sources();
        let at = directory.path();
        let plain = build(at, "g++", &[version, "-g"], "plain");
        for copy in ["one", "two"] {
            fs::copy(&plain, at.join(copy)).unwrap();
        }
        let options: &[&str] = match dwz {
            "-m" => &["-m", "common.debug", "one", "two"],
            _ => &["--dwarf-5", "-m", "common.debug", "one", "two"],
        };
        run(at, "dwz", options);
        assert_equal(&at.join("one"), &[], &plain);
        // A debug file that was stripped off, and the shared file in a directory that is given.
        let elsewhere = at.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        run(
            at,
            "objcopy",
            &["--only-keep-debug", "two", "elsewhere/two.debug"],
        );
        run(
            at,
            "objcopy",
            &[
                "--strip-debug",
                "--add-gnu-debuglink=elsewhere/two.debug",
                "two",
            ],
        );
        fs::rename(at.join("common.debug"), elsewhere.join("common.debug")).unwrap();
        assert_equal(&at.join("two"), std::slice::from_ref(&elsewhere), &plain);
        fs::remove_file(elsewhere.join("common.debug")).unwrap();
        let lost = answers(&at.join("one"), &[]);
        assert!(
            lost.missing_note
                .as_ref()
                .is_some_and(|text| text.contains("common.debug")),
            "{lost:?}"
        );
        let functions = lost
            .frames
            .iter()
            .map(|list| list.last().map(|frame| frame.name.clone()));
        let whole = answers(&plain, &[]);
        let expected = whole
            .frames
            .iter()
            .map(|list| list.last().map(|frame| frame.name.clone()));
        assert!(functions.eq(expected), "{lost:?}");
        assert!(
            lost.frames
                .iter()
                .flatten()
                .all(|frame| !frame.name.is_empty())
        );
    }
}

/// clang can leave functions and what they inline in the program, too: without `.dwo` files, nothing
/// that is shown is missing.
#[test]
fn inlined_functions_in_the_program_itself_need_no_other_file() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let directory = sources();
        let at = directory.path();
        let options = ["-g", version, "-gsplit-dwarf", "-fsplit-dwarf-inlining"];
        let program = build(at, "clang++", &options, "inlining");
        for name in ["a.dwo", "b.dwo"] {
            fs::remove_file(at.join(name)).unwrap();
        }
        let found = answers(&program, &[]);
        assert_eq!(found.missing_note, None);
        let frames = found.frames.iter().filter(|frames| frames.len() > 2);
        let inlined = frames.flat_map(|frames| &frames[..frames.len() - 1]);
        let names: std::collections::BTreeSet<&str> = inlined.map(|f| &f.name[..]).collect();
        for part in ["inner", "take", "make"] {
            assert!(names.iter().any(|name| name.contains(part)), "{names:?}");
        }
    }
}

#[test]
fn debug_information_of_single_source_files_is_read() {
    for compiler in ["g++", "clang++"] {
        for version in ["-gdwarf-4", "-gdwarf-5"] {
            for packed in [&[][..], &["-gz=zlib"]] {
                let directory = sources();
                let at = directory.path();
                let options = [&["-g", version][..], packed].concat();
                let plain = build(at, compiler, &options, "plain");
                let options = [&options[..], &["-gsplit-dwarf"]].concat();
                let name = format!("split{version}-{compiler}-{}", packed.len());
                let split = build(at, compiler, &options, &name);
                assert_equal(&split, &[], &plain);
                // Moved with the program, or to a directory that is given.
                let elsewhere = at.join("elsewhere");
                fs::create_dir(&elsewhere).unwrap();
                for name in ["a.dwo", "b.dwo"] {
                    fs::rename(at.join(name), elsewhere.join(name)).unwrap();
                }
                assert_equal(&split, std::slice::from_ref(&elsewhere), &plain);
                fs::copy(&split, elsewhere.join(&name)).unwrap();
                assert_equal(&elsewhere.join(&name), &[], &plain);
                // Packed.
                if packed.is_empty() {
                    let package = format!("../{name}.dwp");
                    run(&elsewhere, "llvm-dwp", &["-o", &package, "a.dwo", "b.dwo"]);
                    assert_equal(&split, &[], &plain);
                    fs::remove_file(elsewhere.join(package)).unwrap();
                }
                // Another build's file is not used.
                fs::remove_file(elsewhere.join("a.dwo")).unwrap();
                fs::copy(elsewhere.join("b.dwo"), at.join("a.dwo")).unwrap();
                let lost = answers(&split, &[elsewhere]);
                let missing_note = lost.missing_note.unwrap_or_default();
                assert!(
                    missing_note.contains("a.dwo is missing or of another build"),
                    "{missing_note}"
                );
                let names = |found: &[Vec<Frame>]| -> Vec<Option<Rc<str>>> {
                    let outermost = found.iter().map(|frames| frames.last());
                    outermost.map(|frame| Some(frame?.name.clone())).collect()
                };
                assert_eq!(names(&lost.frames), names(&answers(&plain, &[]).frames));
            }
        }
    }
}

#[test]
fn compressed_and_divided_sections_are_read() {
    let directory = sources();
    let at = directory.path();
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let plain = build(at, "g++", &["-g", version], "plain");
        for method in ["zlib-gnu", "zlib-gabi", "zstd"] {
            let option = format!("--compress-debug-sections={method}");
            run(at, "objcopy", &[&option, "plain", method]);
            assert_equal(&at.join(method), &[], &plain);
        }
        for compiler in ["g++", "clang++"] {
            let plain = build(at, compiler, &["-g", version], "plain");
            let name = format!("types{version}-{compiler}");
            let types = build(
                at,
                compiler,
                &["-g", version, "-fdebug-types-section"],
                &name,
            );
            assert_equal(&types, &[], &plain);
        }
    }
}

#[test]
fn rusts_line_tables_get_the_names_of_the_symbol_table() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let source = "
        mod images {
            #[inline(never)] pub fn load(n: usize) -> Vec<u8> { filled(n) }
            #[inline(always)] fn filled(n: usize) -> Vec<u8> { vec![1; n] }
            pub struct Pool;
            impl Pool { #[inline(never)] pub fn take(&self, n: usize) -> Vec<u8> { vec![3; n] } }
        }
        mod config {
            #[inline(never)] pub fn load(n: usize) -> Vec<u8> { vec![2; n] }
            pub struct Pool;
            impl Pool { #[inline(never)] pub fn take(&self, n: usize) -> Vec<u8> { vec![4; n] } }
            #[inline(never)] pub fn of<T: Default + Clone>(n: usize) -> Vec<T> { vec![T::default(); n] }
        }
        #[inline(never)]
        fn each(n: usize, make: &dyn Fn(usize) -> Vec<u8>) -> usize { make(n).len() }
        fn main() {
            let n = std::env::args().count();
            let sum = images::load(n).len() + config::load(n).len() + images::Pool.take(n).len()
                + config::Pool.take(n).len() + config::of::<u16>(n).len()
                + each(n, &|n| vec![n as u8; 9]);
            println!(\"{sum}\");
        }";
    fs::write(at.join("main.rs"), source).unwrap();
    let options = ["-O", "-Cdebuginfo=line-tables-only", "main.rs"];
    run(at, "rustc", &options);
    let program = at.join("main");
    let table = run(at, "nm", &["-S", "main"]);
    let mut symbols = 0;
    for line in table.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [address, _, _, symbol] = words[..] else {
            continue;
        };
        let parts = ["images", "config", "4main4each", "4main0"];
        if parts.iter().any(|part| symbol.contains(part)) {
            let address = u64::from_str_radix(address, 16).unwrap();
            let found = read(&program, &[address], &[]).unwrap();
            let function = found.frames[0].last().unwrap();
            assert_eq!(&function.name[..], symbol, "{table}");
            assert!(
                function.file.ends_with("main.rs") && function.line > 0,
                "{function:?}"
            );
            symbols += 1;
        }
    }
    assert!(symbols > 5, "{table}");
}
