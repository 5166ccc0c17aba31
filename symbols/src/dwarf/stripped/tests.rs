//! Compares names in stripped programs with the output of binutils for the unstripped programs.
//! Needs g++, binutils and xz.

use std::collections::HashSet;
use std::fs;
use std::process::Command;

use tempfile::TempDir;

use super::super::super::elf::Elf;
use super::*;

fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {message}"
    );
    String::from_utf8(output.stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Source with functions of all kinds: local to the file, templates, cold parts, without dynamic
/// symbols.
const SOURCE: &str = r#"
#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>
namespace {
struct Shape { virtual ~Shape() = default; virtual double area() const = 0; };
struct Square : Shape { double side; explicit Square(double s) : side(s) {}
    double area() const override { return side * side; } };
__attribute__((noinline)) int parsed(const std::string &text) {
    if (text.empty()) throw std::invalid_argument("nothing");
    return std::stoi(text);
}
template <typename T> __attribute__((noinline)) T sum(const std::vector<T> &all) {
    T sum{}; for (const T &one : all) sum += one; return sum;
}
__attribute__((noinline)) void store(std::map<std::string, int> &all, const std::string &key) {
    all[key] += parsed(key);
}
}
__attribute__((noinline)) int exported(int n) { return n * 3 + 1; }
int main(int argc, char **argv) {
    std::map<std::string, int> all;
    std::vector<double> areas;
    for (int i = 1; i < argc; i++) { store(all, argv[i]); Square s(i); areas.push_back(s.area()); }
    std::sort(areas.begin(), areas.end());
    std::string text = std::to_string(sum(areas)) + std::to_string(exported(argc));
    return static_cast<int>(text.size() + all.size());
}
"#;

struct Built {
    directory: TempDir,
    program: PathBuf,
}

impl Built {
    fn make(flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("app.cpp");
        let program = directory.path().join("whole/app");
        fs::create_dir(directory.path().join("whole")).unwrap();
        fs::write(&source, SOURCE).unwrap();
        let files = ["-O2", "-o", text(&program), text(&source)];
        tool("g++", &[&files[..], flags].concat());
        Self { directory, program }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn stripped(&self) -> PathBuf {
        let stripped = self.at("app");
        tool("strip", &["-o", text(&stripped), text(&self.program)]);
        stripped
    }

    /// Returns start, size and name of each function of the unstripped program.
    fn functions(&self) -> Vec<(u64, u64, String)> {
        let table = tool("nm", &["-S", "--defined-only", text(&self.program)]);
        let function = |line: &str| {
            let words: Vec<&str> = line.split(' ').collect();
            let [start, size, kind, name] = words[..] else {
                return None;
            };
            let hex = |word| u64::from_str_radix(word, 16).unwrap();
            let is_code = ["t", "T", "W", "w", "i"].contains(&kind);
            is_code.then(|| (hex(start), hex(size), name.to_owned()))
        };
        table.lines().filter_map(function).collect()
    }
}

/// Returns the names of addresses; empty for those without a name.
fn named(program: &Path, directories: &[PathBuf], addresses: &[u64]) -> Vec<Frame> {
    let mut frames = vec![Vec::new(); addresses.len()];
    complete(program, directories, Some("app"), addresses, &mut frames);
    let only = |mut frames: Vec<Frame>| {
        assert!(frames.len() < 2);
        frames.pop().unwrap_or_default()
    };
    frames.into_iter().map(only).collect()
}

/// Returns the addresses of the first, middle and last byte of each function.
fn spread(functions: &[(u64, u64, String)]) -> Vec<u64> {
    let bytes =
        |(start, size, _): &(u64, u64, String)| [*start, start + size / 2, start + size - 1];
    functions.iter().flat_map(bytes).collect()
}

#[test]
fn functions_without_symbols_begin_at_their_former_symbols() {
    for flags in [
        &[][..],
        &["-no-pie"],
        &["-static"],
        &["-fuse-ld=lld"],
        // Without the search table, all entries are read.
        &["-Wl,--no-eh-frame-hdr", "-static"],
    ] {
        let built = Built::make(flags);
        let functions = built.functions();
        // Functions in assembly may have no entry, or share one.
        let image = Image::open(&built.program).unwrap();
        let frames = tool("objdump", &["--dwarf=frames", text(&built.program)]);
        let described: HashSet<u64> = frames.lines().filter_map(start_of).collect();
        let functions: Vec<_> = functions
            .into_iter()
            .filter(|(start, ..)| described.contains(start))
            .collect();
        assert!(functions.len() > 15, "{flags:?}: {}", functions.len());
        let addresses = spread(&functions);
        let stripped = built.stripped();
        assert!(Image::open(&stripped).unwrap().section(".symtab").is_none());
        assert!(image.section(".symtab").is_some());
        let found = named(&stripped, &[], &addresses);
        let exported = tool("nm", &["-D", "--defined-only", text(&stripped)]);
        for (at, frame) in found.iter().enumerate() {
            let (start, _, name) = &functions[at / 3];
            let expected = format!("app+{start:#x}");
            let is_exported = exported.contains(name) && !frame.is_synthetic();
            assert!(
                is_exported || *frame.name == *expected && frame.is_synthetic(),
                "{flags:?} {name}: {frame:?}, not {expected}"
            );
        }
        // Functions with symbols have their own names.
        let whole = named(&built.program, &[], &addresses);
        assert!(
            whole
                .iter()
                .all(|frame| !frame.is_synthetic() && !frame.name.is_empty())
        );
    }
}

/// Returns the start of the function in a line of objdump's unwind tables.
fn start_of(line: &str) -> Option<u64> {
    let (_, range) = line.split_once(" pc=")?;
    u64::from_str_radix(range.split_once("..")?.0, 16).ok()
}

#[test]
fn a_stripped_compilers_functions_are_those_of_its_unwind_tables() {
    let compiler = tool("g++", &["-print-prog-name=cc1plus"]);
    let compiler = Path::new(compiler.trim());
    let frames = tool("objdump", &["--dwarf=frames", text(compiler)]);
    let mut ranges: Vec<(u64, u64)> = frames.lines().filter_map(range_of).collect();
    ranges.sort_unstable();
    assert!(ranges.len() > 10_000, "{}", ranges.len());
    let image = Image::open(compiler).unwrap();
    let stubs = [".plt", ".plt.got", ".plt.sec"].map(|name| image.section(name));
    ranges.retain(|(start, _)| !stubs.iter().flatten().any(|stubs| stubs.holds(*start)));
    let addresses: Vec<u64> = ranges
        .iter()
        .map(|(start, end)| start + (end - start) / 2)
        .collect();
    let starts = boundaries::starts(&image, &addresses, &Residency::of(image.map()));
    for ((start, end), address) in ranges.iter().zip(&addresses) {
        assert_eq!(starts.get(address), Some(start), "{start:x}..{end:x}");
    }
}

fn range_of(line: &str) -> Option<(u64, u64)> {
    let (_, range) = line.split_once(" pc=")?;
    let (_, end) = range.split_once("..")?;
    Some((start_of(line)?, u64::from_str_radix(end.trim(), 16).ok()?))
}

#[test]
fn stub_names_match_a_disassembler() {
    for flags in [
        &[][..],
        &["-no-pie"],
        &["-fcf-protection=full", "-Wl,-z,ibtplt"],
        &["-Wl,-z,now"],
        &["-fuse-ld=lld"],
    ] {
        let built = Built::make(flags);
        let stripped = built.stripped();
        let mut stubs = Vec::new();
        for section in [".plt", ".plt.sec", ".plt.got"] {
            let arguments = ["-d", "--no-show-raw-insn", "-j", section, text(&stripped)];
            let output = Command::new("objdump").args(arguments).output().unwrap();
            let listing = String::from_utf8(output.stdout).unwrap();
            stubs.extend(listing.lines().filter_map(stub_of));
        }
        assert!(stubs.len() > 10, "{flags:?}: {stubs:?}");
        let addresses: Vec<u64> = stubs.iter().map(|(address, _)| address + 7).collect();
        for ((address, name), frame) in stubs.iter().zip(named(&stripped, &[], &addresses)) {
            assert_eq!(*frame.name, **name, "{flags:?} {address:x}");
        }
    }
}

/// Parses address and name of a stub from a line such as `0000000000001030 <malloc@plt>:`.
fn stub_of(line: &str) -> Option<(u64, String)> {
    let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
    let name = name.strip_suffix("@plt")?;
    // Removes the version.
    let name = name.split('@').next()?;
    let address = u64::from_str_radix(address, 16).ok()?;
    Some((address, format!("{name}@plt")))
}

/// On aarch64, PLT entries are in the order of their relocations. Needs clang and lld.
#[test]
fn aarch64_stubs_are_named_by_their_relocations() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let code = "int puts(const char *); char *getenv(const char *); void free(void *);\n\
                void keep(void) { puts(getenv(\"x\")); free(keep); }\n";
    let source = at("a.c");
    fs::write(&source, code).unwrap();
    // Stubs of 16 bytes, and of 24 with a landing pad.
    for (protection, size) in [
        ("-mbranch-protection=none", 16),
        ("-mbranch-protection=bti", 24),
    ] {
        let library = at("a.so");
        let target = [
            "--target=aarch64-linux-gnu",
            "-fuse-ld=lld",
            "-shared",
            "-nostdlib",
        ];
        let rest = ["-fPIC", protection, "-o", text(&library), text(&source)];
        tool("clang", &[&target[..], &rest].concat());
        let headers = tool("readelf", &["-SW", text(&library)]);
        let plt = headers
            .lines()
            .find(|line| line.contains(" .plt "))
            .unwrap();
        let mut plt = plt
            .split_whitespace()
            .skip_while(|word| *word != "PROGBITS")
            .skip(1);
        let hex = |word: Option<&str>| u64::from_str_radix(word.unwrap(), 16).unwrap();
        let start = hex(plt.next());
        let bytes = hex(plt.nth(1));
        let relocations = tool("readelf", &["-rW", text(&library)]);
        let slots = relocations
            .lines()
            .filter(|line| line.contains("JUMP_SLOT"));
        let names: Vec<&str> = slots
            .map(|line| line.split_whitespace().nth(4).unwrap())
            .collect();
        assert_eq!(names.len(), 3);
        assert_eq!(bytes, 32 + 3 * size);
        let addresses: Vec<u64> = (start..start + bytes).step_by(4).collect();
        for (address, frame) in addresses.iter().zip(named(&library, &[], &addresses)) {
            match (address - start).checked_sub(32) {
                None => assert!(!frame.name.ends_with("@plt"), "{frame:?}"),
                Some(at) => {
                    let name = format!("{}@plt", names[(at / size) as usize]);
                    assert_eq!(*frame.name, *name, "{address:x}");
                }
            }
        }
    }
}

/// Asserts that each address has the name of a function that starts there.
fn are_named(built: &Built, program: &Path, directories: &[PathBuf]) -> bool {
    let functions = built.functions();
    let found = named(program, directories, &spread(&functions));
    let starts = |name: &str| -> HashSet<u64> {
        let same_name = functions.iter().filter(|(.., other)| other == name);
        same_name.map(|(start, ..)| *start).collect()
    };
    let mut found = found.iter().enumerate();
    found.all(|(at, frame)| {
        !frame.is_synthetic() && starts(&frame.name).contains(&functions[at / 3].0)
    })
}

#[test]
fn symbols_are_found_by_the_debug_link_if_the_checksum_is_right() {
    let built = Built::make(&["-Wl,--build-id=none"]);
    let debug = built.at("app.debug");
    tool(
        "objcopy",
        &["--only-keep-debug", text(&built.program), text(&debug)],
    );
    let stripped = built.stripped();
    assert!(!are_named(&built, &stripped, &[]));
    tool(
        "objcopy",
        &["--add-gnu-debuglink", text(&debug), text(&stripped)],
    );
    assert!(are_named(&built, &stripped, &[]));
    let elsewhere = built.at("debug");
    fs::create_dir(&elsewhere).unwrap();
    let moved = elsewhere.join("app.debug");
    fs::rename(&debug, &moved).unwrap();
    assert!(!are_named(&built, &stripped, &[]));
    assert!(are_named(
        &built,
        &stripped,
        std::slice::from_ref(&elsewhere)
    ));
    let mut bytes = fs::read(&moved).unwrap();
    bytes.push(0);
    fs::write(&moved, bytes).unwrap();
    assert!(!are_named(&built, &stripped, &[elsewhere]));
}

#[test]
fn symbols_are_found_by_the_build_id() {
    let built = Built::make(&["-Wl,--build-id=sha1"]);
    let stripped = built.stripped();
    let id = Elf::open(&stripped).unwrap().build_id.to_string();
    let debug_directory = built.at("debug").join(".build-id").join(&id[..2]);
    fs::create_dir_all(&debug_directory).unwrap();
    let debug = debug_directory.join(format!("{}.debug", &id[2..]));
    tool(
        "objcopy",
        &["--only-keep-debug", text(&built.program), text(&debug)],
    );
    assert!(!are_named(&built, &stripped, &[]));
    assert!(are_named(&built, &stripped, &[built.at("debug")]));
}

/// Compresses symbols into a program, like Fedora.
#[test]
fn symbols_are_unpacked() {
    let built = Built::make(&["-rdynamic"]);
    let stripped = built.stripped();
    let debug = built.at("debug");
    let mini = built.at("mini");
    let names: Vec<String> = built.functions().into_iter().map(|f| f.2).collect();
    let dynamic = tool(
        "nm",
        &["-D", "--defined-only", "--format=posix", text(&stripped)],
    );
    let dynamic: HashSet<&str> = dynamic
        .lines()
        .filter_map(|l| l.split(' ').next())
        .collect();
    let (exported, internal): (Vec<_>, Vec<_>) = names
        .iter()
        .partition(|name| dynamic.contains(name.as_str()));
    assert!(exported.len() > 5 && internal.len() > 5);
    let keep = built.at("keep");
    fs::write(
        &keep,
        internal
            .into_iter()
            .map(|n| format!("{n}\n"))
            .collect::<String>(),
    )
    .unwrap();
    tool(
        "objcopy",
        &["--only-keep-debug", text(&built.program), text(&debug)],
    );
    let kept = format!("--keep-symbols={}", text(&keep));
    tool(
        "objcopy",
        &[
            "-S",
            "--remove-section=.comment",
            &kept,
            text(&debug),
            text(&mini),
        ],
    );
    tool("xz", &["-k", text(&mini)]);
    assert!(!are_named(&built, &stripped, &[]));
    let section = format!(".gnu_debugdata={}.xz", text(&mini));
    tool("objcopy", &["--add-section", &section, text(&stripped)]);
    assert!(are_named(&built, &stripped, &[]));
    // A symbol table that decompresses to too much is not used.
    let zeros = built.at("zeros");
    fs::write(&zeros, vec![0; 1 << 20]).unwrap();
    tool("xz", &["-k", text(&zeros)]);
    let bomb = built.stripped();
    let section = format!(".gnu_debugdata={}.xz", text(&zeros));
    tool("objcopy", &["--add-section", &section, text(&bomb)]);
    assert!(companions::unpack_debugdata(&Image::open(&bomb).unwrap()).is_none());
    assert!(!are_named(&built, &bomb, &[]));
}

/// Program of Go with functions that the compiler does not inline.
const GO_SOURCE: &str = "package main
import \"fmt\"
type pool struct { n int }
//go:noinline
func (p *pool) take(n int) []byte { return make([]byte, n+p.n) }
//go:noinline
func leaf(n int) int { s := 0; for i := 0; i < n; i++ { s += i * i ^ s }; return s }
func main() { p := &pool{1}; f := func() { fmt.Println(leaf(3), len(p.take(4))) }; f() }
";

#[test]
fn stripped_go_programs_have_the_names_of_their_runtimes_table() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("main.go"), GO_SOURCE).unwrap();
    // Linked by Go, and by the C compiler's linker, which has no section for the table of
    // position-independent programs.
    let links = [
        ("exe", "", false),
        ("pie", "", false),
        ("exe", "-linkmode=external", false),
        ("pie", "-linkmode=external", false),
        ("exe", "-linkmode=external", true),
    ];
    for (mode, link, is_as_newer) in links {
        let build = |name: &str, flags: &str| {
            let mode = format!("-buildmode={mode}");
            let flags = &format!("{flags} {link}");
            let arguments = [
                "build",
                &mode,
                "-ldflags",
                flags,
                "-o",
                &at(name),
                &at("main.go"),
            ];
            let status = Command::new("go")
                .args(arguments)
                .env("HOME", directory.path())
                .status();
            assert!(status.unwrap().success());
        };
        build("whole", "");
        build("bare", "-s -w");
        if is_as_newer {
            // Go 1.26 and later leave out the address of the code, the third word of the table.
            let bare = Image::open(Path::new(&at("bare"))).unwrap();
            let table = bare.section(".gopclntab").unwrap().offset as usize;
            let mut bytes = fs::read(at("bare")).unwrap();
            bytes[table + 24..table + 32].fill(0);
            drop(bare);
            fs::write(at("bare"), bytes).unwrap();
        }
        let table = tool("nm", &[&at("whole")]);
        let mut addresses = Vec::new();
        let mut expected = Vec::new();
        for line in table.lines() {
            let words: Vec<&str> = line.trim().splitn(3, ' ').collect();
            if let [address, "t" | "T", name] = words[..]
                && (name.starts_with("main.") || name.starts_with("fmt.(*pp)"))
            {
                let address = u64::from_str_radix(address, 16).unwrap();
                addresses.extend([address, address + 1]);
                expected.extend([name, name]);
            }
        }
        assert!(
            expected.contains(&"main.(*pool).take") && expected.len() > 20,
            "{expected:?}"
        );
        assert!(lacks_debug_info(Path::new(&at("bare")), &[]));
        let mut frames = vec![Vec::new(); addresses.len()];
        complete(
            Path::new(&at("bare")),
            &[],
            Some("bare"),
            &addresses,
            &mut frames,
        );
        let names: Vec<&str> = frames.iter().map(|list| &*list[0].name).collect();
        assert_eq!(names, expected, "{mode} {link} {is_as_newer}");
    }
}
