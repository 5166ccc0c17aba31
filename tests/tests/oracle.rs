//! Compares the unwinder with two others, inside real programs: every stack of a run is the same,
//! or truncated where no unwinder can continue.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::{Scratch, wait};

/// Returns the oracle, in the directory of the release build that the tests belong to.
fn oracle() -> PathBuf {
    let exe = std::env::current_exe().expect("a running test has a path");
    let target = exe.ancestors().nth(3).expect("cargo's directories");
    let path = target.join("release/libunwind_oracle.so");
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --release --workspace` first",
        path.display()
    );
    path
}

/// Sums over the processes of a run, and the stacks that they wrote down.
#[derive(Debug)]
struct Counts {
    counts: BTreeMap<String, u64>,
    stacks: String,
}

impl Counts {
    /// Returns the reports next to `out`, of programs whose path ends in `program`.
    fn read(out: &Path, program: &str) -> Self {
        let mut all = Self {
            counts: BTreeMap::new(),
            stacks: String::new(),
        };
        let directory = out.parent().expect("a directory");
        let name = out.file_name().expect("a name").to_string_lossy();
        for entry in fs::read_dir(directory).expect("the directory").flatten() {
            if entry.file_name().to_string_lossy().starts_with(&*name) {
                all.add(
                    &fs::read_to_string(entry.path()).expect("a report"),
                    program,
                );
            }
        }
        all
    }

    fn add(&mut self, report: &str, program: &str) {
        let (lines, stacks) = report.split_once("\n== ").unwrap_or((report, ""));
        let of_program = |line: &str| line.starts_with("program ") && line.ends_with(program);
        if !lines.lines().any(of_program) {
            return;
        }
        let pairs = lines.lines().filter_map(|line| line.split_once(' '));
        for (name, count) in pairs.filter_map(|(name, n)| Some((name, n.parse::<u64>().ok()?))) {
            *self.counts.entry(name.to_owned()).or_default() += count;
        }
        self.stacks.push_str(stacks);
    }

    fn of(&self, name: &str) -> u64 {
        self.counts.get(name).copied().unwrap_or(0)
    }

    /// Checks that at least this many stacks were compared, and that each came out as one of
    /// `expected`.
    fn assert_all(&self, least: u64, expected: &[&str]) {
        let compared = self.of("compared");
        let accounted: u64 = expected.iter().map(|name| self.of(name)).sum();
        eprintln!("{:?}", self.counts);
        assert!(compared >= least, "only {compared} stacks compared");
        let stacks: String = self.stacks.chars().take(6000).collect();
        assert_eq!(accounted, compared, "{:?}\n{stacks}", self.counts);
    }
}

/// Returns a command under the oracle, which compares one allocation in `every`.
fn under_oracle(program: impl AsRef<Path>, out: &Path, every: u32) -> Command {
    let mut command = Command::new(program.as_ref());
    command
        .env("LD_PRELOAD", oracle())
        .env("UNWIND_ORACLE_OUT", out)
        .env("UNWIND_ORACLE_EVERY", every.to_string())
        .stdin(Stdio::null());
    command
}

fn run(command: &mut Command) {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}: is it installed?"));
    assert!(
        output.status.success(),
        "{command:?}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

// ---- programs as they come

#[test]
fn python_with_extensions() {
    let scratch = Scratch::new();
    let out = scratch.file("report");
    let script = "import json, sqlite3, ctypes, decimal, zlib, hashlib, ssl, lzma\n\
        for i in range(60): json.loads(json.dumps([{'a': list(range(50)), 'b': 'x' * i}] * 20))\n\
        sorted(range(1000), key=lambda i: decimal.Decimal(i) * 3)\n\
        compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)\n\
        numbers = (ctypes.c_int * 64)(*range(64))\n\
        ctypes.CDLL(None).qsort(numbers, 64, 4, compare(lambda a, b: len(str([a, b])) % 3 - 1))\n";
    run(under_oracle("/usr/bin/python3", &out, 20)
        .env("PYTHONMALLOC", "malloc")
        .args(["-c", script]));
    // libffi's frames are described by expressions that framehop does not follow.
    Counts::read(&out, "").assert_all(10_000, &["equal", "beyond_framehop"]);
}

#[test]
fn redis() {
    let scratch = Scratch::new();
    let (out, socket) = (scratch.file("report"), scratch.file("socket"));
    let mut server = under_oracle("/usr/bin/redis-server", &out, 20)
        .args(["--port", "0", "--save", "", "--unixsocket"])
        .arg(&socket)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed");
    wait::until("redis to listen", || UnixStream::connect(&socket).ok());
    let tests = "set,lpush,zadd,mset,hset";
    run(Command::new("redis-benchmark")
        .arg("-s")
        .arg(&socket)
        .args(["-q", "-n", "5000", "-t", tests]));
    let script = "for i = 1, 2000 do redis.call('set', 'k' .. i, string.rep('v', i)) end";
    run(Command::new("redis-cli")
        .arg("-s")
        .arg(&socket)
        .args(["eval", script, "0"]));
    // It ends without an answer.
    let _ = Command::new("redis-cli")
        .arg("-s")
        .arg(&socket)
        .args(["shutdown", "nosave"])
        .status();
    wait::until("redis to end", || server.try_wait().expect("a child"));
    Counts::read(&out, "").assert_all(5_000, &["equal"]);
}

#[test]
fn sqlite() {
    let scratch = Scratch::new();
    let out = scratch.file("report");
    let script = "create table t(a, b);\
        with recursive c(x) as (select 1 union all select x + 1 from c where x < 30000) \
            insert into t select x, hex(randomblob(20)) from c;\
        create index i on t(b);\
        select count(*) from t where b like 'A%';\
        select json_group_array(b) from (select b from t order by b desc limit 500);";
    run(under_oracle("/usr/bin/sqlite3", &out, 10).args([":memory:", script]));
    Counts::read(&out, "").assert_all(5_000, &["equal"]);
}

#[test]
fn the_cpp_compiler_on_regex() {
    let scratch = Scratch::new();
    let (out, source) = (scratch.file("report"), scratch.file("words.cpp"));
    let text = "#include <regex>\n\
        int main(int n, char **s) { return std::regex_match(s[n - 1], std::regex(\"a(b|c)*d\")); }\n";
    fs::write(&source, text).expect("a source");
    run(under_oracle("g++", &out, 100)
        .args(["-O1", "-c", "-o"])
        .arg(scratch.file("words.o"))
        .arg(&source));
    Counts::read(&out, "").assert_all(10_000, &["equal"]);
    let compiler = Counts::read(&out, "cc1plus");
    assert!(compiler.of("compared") > 10_000, "{compiler:?}");
}

// ---- a program of every shape of stack

/// The program `shapes` and its libraries, compiled with `flags`.
struct Shapes {
    scratch: Scratch,
}

impl Shapes {
    fn compile(flags: &[&str]) -> Self {
        let scratch = Scratch::new();
        let shared = |source: &str, name: &str, flags: &[&str]| {
            let common = ["-fPIC", "-shared"];
            scratch.compile_as(&programs(source), name, &[&common, flags].concat())
        };
        shared("provider.c", "libprovided.so", &[]);
        shared("provider.c", "libprovider.so", &["-DLATE"]);
        shared("user.c", "libuser.so", &["-Wl,-z,lazy"]);
        shared("plugin.c", "libplugin_a.so", &[]);
        shared("plugin.c", "libplugin_b.so", &["-DVARIANT=900"]);
        let assembly = mem_tests::artifacts::source(&programs("assembly.S"));
        let own = scratch.files().to_string_lossy().into_owned();
        let link = [
            assembly.to_str().expect("a path"),
            "-Wl,-z,lazy",
            "-lprovided",
            "-L",
            &own,
            "-Wl,-rpath",
            &own,
        ];
        scratch.compile_as(&programs("shapes.cpp"), "shapes", &[flags, &link].concat());
        Self { scratch }
    }

    fn compare(&self, part: &str, every: u32) -> Counts {
        let out = self.scratch.file(&format!("{part}.report"));
        let program = self.scratch.file("shapes");
        run(under_oracle(&program, &out, every)
            .arg(part)
            .current_dir(self.scratch.files()));
        Counts::read(&out, "shapes")
    }
}

fn programs(name: &str) -> String {
    format!("../oracle/programs/{name}")
}

/// Every other unwinder agrees, or those that can follow such frames do.
const SAME: &[&str] = &["equal", "beyond_framehop"];

/// Compares all parts of `shapes` whose stacks can be unwound completely.
fn every_shape(flags: &[&str]) {
    let shapes = Shapes::compile(flags);
    shapes.compare("wandering", 5).assert_all(10_000, SAME);
    shapes.compare("coroutines", 2).assert_all(5_000, SAME);
    shapes.compare("library", 1).assert_all(5_000, SAME);
    shapes.compare("threads", 1).assert_all(5_000, &["equal"]);
    shapes.compare("recursion", 1).assert_all(90, &["equal"]);
    shapes.compare("libraries", 1).assert_all(1_000, &["equal"]);
    shapes.compare("lazily", 1).assert_all(200, SAME);
    if flags.contains(&"-mstackrealign") {
        // GCC leaves rbp's rule as it was at the end of functions that realign. All their
        // callers realign then, and libgcc crashes on what it reads: whatever stops a program
        // at any instruction can stop it there.
        return;
    }
    shapes
        .compare("interruptions_here", 1)
        .assert_all(900, SAME);
    shapes
        .compare("interruptions_elsewhere", 1)
        .assert_all(900, SAME);
    // After one instruction in four: all of them take minutes.
    shapes.compare("steps_here", 4).assert_all(2_000, SAME);
    shapes.compare("steps_elsewhere", 4).assert_all(2_000, SAME);
}

#[test]
fn every_shape_optimised() {
    every_shape(&["-O2"]);
}

#[test]
fn every_shape_optimised_harder_and_realigned() {
    every_shape(&["-O3", "-mavx", "-mstackrealign"]);
}

#[test]
fn every_shape_for_size() {
    every_shape(&["-Os"]);
}

#[test]
fn every_shape_with_frame_pointers_unoptimised() {
    every_shape(&["-O0", "-fno-omit-frame-pointer"]);
}

#[test]
fn every_shape_with_pushed_arguments_and_guards() {
    every_shape(&[
        "-O2",
        "-fcf-protection=full",
        "-fstack-protector-all",
        "-maccumulate-outgoing-args",
    ]);
}

#[test]
fn what_cannot_be_followed_is_truncated_where_others_stop() {
    let shapes = Shapes::compile(&["-O2"]);
    let lost = shapes.compare("lost", 1);
    lost.assert_all(80, &["equal", "truncated.NoRule", "truncated.NoModule"]);
    assert_eq!(
        (lost.of("truncated.NoRule"), lost.of("truncated.NoModule")),
        (40, 40)
    );
    let deep = shapes.compare("too_deep", 1);
    deep.assert_all(60, &["equal", "truncated.TooDeep"]);
    assert!(deep.of("truncated.TooDeep") > 10, "{deep:?}");
}

/// The only known limit is a CFA in a register that no function has saved since.
#[test]
fn stacks_are_truncated_early_only_by_an_unsaved_register() {
    let unsaved = Shapes::compile(&["-O2"]).compare("unsaved", 1);
    let outcomes = [SAME, &["truncated_early.Unsupported"]].concat();
    unsaved.assert_all(40, &outcomes);
    assert!(unsaved.of("truncated_early.Unsupported") > 0, "{unsaved:?}");
}
