//! Tests with programs compiled by g++ whose functions have no linkage names.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::read;
use super::*;
use crate::demangle::of_source;
use crate::frame::{Frame, Origin};

/// Source with functions of each kind: one that is called, and one that is inlined.
const PROGRAM: &str = r#"
#define CALLED __attribute__((noinline))
#define INLINED __attribute__((always_inline)) inline
static void *volatile kept;
static CALLED void keep(void *what) { kept = what; asm volatile(""); }
namespace json { namespace {
struct Reader { CALLED void run() { keep(this); asm volatile(""); } };
} CALLED void load() { Reader r; r.run(); asm volatile(""); } }
namespace xml { namespace {
struct Reader { struct Part; INLINED void run() { keep(this); asm volatile(""); } };
struct Reader::Part { INLINED void read() { keep(this); asm volatile(""); } };
} CALLED void load() { Reader r; r.run(); Reader::Part p; p.read(); asm volatile(""); } }
namespace {
struct Cache { CALLED void free() { keep(this); asm volatile(""); }
  CALLED ~Cache() { keep(this); asm volatile(""); } };
template <class T> INLINED void make(T n) { keep(&n); asm volatile(""); }
template <class T> CALLED void take(T n) { keep(&n); asm volatile(""); }
INLINED Cache &operator<<(Cache &c, int) { keep(&c); asm volatile(""); return c; }
}
static CALLED int stat(int n) { keep(&n); asm volatile(""); return n; }
extern "C" INLINED void plain(int n) { keep(&n); asm volatile(""); }
int main() {
  json::load();
  xml::load();
  Cache c;
  c.free();
  c << 1;
  make(1L);
  take(1L);
  plain(stat(2));
  auto first = [](int n) __attribute__((always_inline)) { keep(&n); asm volatile(""); };
  auto second = [](int n) __attribute__((always_inline)) {
    struct Deep { INLINED void go() { keep(this); asm volatile(""); } } deep;
    deep.go();
    keep(&n);
  };
  first(1);
  second(2);
  struct Local { INLINED void run() { keep(this); asm volatile(""); } } local;
  local.run();
  asm volatile("");
}
"#;

fn built(directory: &Path, options: &[&str]) -> PathBuf {
    let source = directory.join("program.cpp");
    std::fs::write(&source, PROGRAM).unwrap();
    let program = directory.join("program");
    let mut build = Command::new("g++");
    build.args(["-O1", "-g", "-o"]).arg(&program).args(options);
    assert!(build.arg(&source).status().unwrap().success());
    program
}

/// Returns the addresses of the program's own functions.
fn addresses(program: &Path) -> Vec<u64> {
    let table = Command::new("nm")
        .args(["-CS", "--defined-only"])
        .arg(program)
        .output();
    let table = String::from_utf8(table.unwrap().stdout).unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut addresses = Vec::new();
    for line in table.lines() {
        let fields: Vec<&str> = line.splitn(4, ' ').collect();
        if let [start, size, "t" | "T", _] = fields[..]
            && let (Some(start), Some(size)) = (hex(start), hex(size))
        {
            addresses.extend(start..start + size);
        }
    }
    assert!(!addresses.is_empty(), "{table}");
    addresses
}

fn frames(program: &Path) -> Vec<Vec<Frame>> {
    let found = read(program, &addresses(program), &[]);
    found.expect("it has debug information").frames
}

fn shown(frame: &Frame, style: Style) -> String {
    match frame.origin {
        Origin::Source => of_source(&frame.name, style),
        _ => demangle(&frame.name, style),
    }
}

const SIMPLE: [&str; 17] = [
    "(anonymous namespace)::Cache::free",
    "(anonymous namespace)::Cache::~Cache",
    "(anonymous namespace)::make",
    "(anonymous namespace)::operator<<",
    "(anonymous namespace)::take",
    "json::(anonymous namespace)::Reader::run",
    "json::load",
    "keep",
    "main",
    "main::Local::run",
    "main::{lambda at 31:17}::operator()",
    "main::{lambda at 32:18}::operator()",
    "main::{lambda at 32:18}::operator()::Deep::go",
    "plain",
    "stat",
    "xml::(anonymous namespace)::Reader::Part::read",
    "xml::(anonymous namespace)::Reader::run",
];

fn expected() -> BTreeSet<String> {
    let mut expected: BTreeSet<String> = SIMPLE.map(str::to_owned).into();
    expected.insert("xml::load".to_owned());
    expected
}

#[test]
fn names_of_functions_include_their_scopes() {
    let directory = tempfile::tempdir().unwrap();
    for options in [
        &[][..],
        &["-gdwarf-4"],
        &["-O2", "-flto", "-fno-ipa-icf"],
        &["-gz=zlib"],
    ] {
        let frames = frames(&built(directory.path(), options));
        let names = frames
            .iter()
            .flatten()
            .map(|frame| shown(frame, Style::Simple));
        let is_not_reserved = |name: &String| !name.starts_with('_');
        let names: BTreeSet<String> = names.filter(is_not_reserved).collect();
        assert_eq!(names, expected(), "{options:?}");
    }
}

#[test]
fn full_names_of_out_of_line_functions_have_parameters() {
    let directory = tempfile::tempdir().unwrap();
    let frames = frames(&built(directory.path(), &[]));
    let outermost = frames.iter().filter_map(|frames| frames.last());
    let names: BTreeSet<String> = outermost.map(|frame| shown(frame, Style::Full)).collect();
    for name in [
        "stat(int)",
        "keep(void*)",
        "void (anonymous namespace)::take<long>(long)",
        "(anonymous namespace)::Cache::free()",
        "json::(anonymous namespace)::Reader::run()",
    ] {
        assert!(names.contains(name), "{name}: {names:?}");
    }
}

#[test]
fn names_without_symbols_have_scopes() {
    let directory = tempfile::tempdir().unwrap();
    let program = built(directory.path(), &[]);
    let whole = frames(&program);
    let bare = directory.path().join("bare");
    let mut strip = Command::new("objcopy");
    strip.args(["--strip-all", "--keep-section=.debug_*"]);
    assert!(strip.args([&program, &bare]).status().unwrap().success());
    let addresses = addresses(&program);
    let bare = read(&bare, &addresses, &[]).expect("it has debug information");
    let names = |frames: &[Vec<Frame>]| -> BTreeSet<String> {
        let all = frames.iter().flatten();
        all.map(|frame| shown(frame, Style::Simple)).collect()
    };
    let lost: Vec<_> = names(&whole)
        .difference(&names(&bare.frames))
        .cloned()
        .collect();
    assert!(lost.iter().all(|name| name.starts_with('_')), "{lost:?}");
}
