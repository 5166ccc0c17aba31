//! Dumps of real programs read by us, by `go tool pprof` and by google-pprof: equal numbers
//! for every function, in every report and column, and in comparisons.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::peers::{Profiled, compare_addresses, compare_functions, compare_reports};
use mem_tests::session::tool;
use mem_tests::{Scratch, Session, run, wait};

/// Runs a program to its end under the profiler, with its input from a file.
fn profile(scratch: &Scratch, interval: &str, program: &[&str], input: &Path) -> Vec<PathBuf> {
    let mut command = scratch.profiler();
    command
        .args(["run", "-c", interval, "--peak", "-o", "p_", "--"])
        .args(program)
        .env("PYTHONMALLOC", "malloc")
        // pprof has one row for a function of Python, our tables one for each line of it.
        .env("MEM_PROFILER_PYTHON", "0")
        .stdin(File::open(input).expect("the input"));
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    dumps(scratch)
}

/// Returns all dumps in the directory, in order of their names.
fn dumps(scratch: &Scratch) -> Vec<PathBuf> {
    let entries = fs::read_dir(scratch.files()).expect("the directory");
    let paths = entries.flatten().map(|entry| entry.path());
    let mut dumps: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "heap"))
        .collect();
    dumps.sort();
    assert!(!dumps.is_empty());
    dumps
}

fn write(scratch: &Scratch, name: &str, content: &str) -> PathBuf {
    let path = scratch.file(name);
    fs::write(&path, content).expect("to be written");
    path
}

const SQL: &str = "
create table t(a integer primary key, b text, c text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 9000)
    insert into t select i, hex(i * 7919), hex(randomblob(40)) from n;
create index x on t(b); create index y on t(c, b);
select count(*) from (select b, c, count(*) from t group by substr(b, 1, 3));
";

#[test]
fn sqlite3() {
    let scratch = Scratch::new();
    let input = write(&scratch, "work.sql", SQL);
    let dumps = profile(&scratch, "512", &["sqlite3", ":memory:"], &input);
    let program = PathBuf::from("/usr/bin/sqlite3");
    let profiled = Profiled::heap(program, dumps);
    compare_reports(&scratch, &profiled);
    compare_addresses(&scratch, &profiled);
}

const PYTHON: &str = "
import json, decimal, email
books = [json.loads(json.dumps({'a': [i] * 20, 'b': str(i) * 9})) for i in range(2000)]
";

#[test]
fn python3() {
    let scratch = Scratch::new();
    let input = write(&scratch, "work.py", PYTHON);
    let dumps = profile(&scratch, "4096", &["/usr/bin/python3", "-"], &input);
    let program = fs::canonicalize("/usr/bin/python3").expect("a program");
    let profiled = Profiled::heap(program, dumps);
    compare_reports(&scratch, &profiled);
    compare_addresses(&scratch, &profiled);
}

/// Returns the program of the parser's golden files, nothing of it inlined.
fn shop(scratch: &Scratch) -> PathBuf {
    let source = "../../parser/tests/data/shop.cpp";
    scratch.compile_as(source, "shop", &["-O1", "-fno-inline"])
}

#[test]
fn a_cpp_program() {
    let scratch = Scratch::new();
    let program = shop(&scratch);
    let input = write(&scratch, "nothing", "");
    let path = program.to_str().expect("a path");
    let dumps = profile(&scratch, "512", &[path], &input);
    let profiled = Profiled::heap(program, dumps);
    compare_reports(&scratch, &profiled);
    compare_addresses(&scratch, &profiled);
    for viewer in ["google-pprof", "jeprof"] {
        compare_functions(&scratch, viewer, &profiled);
    }
}

/// Runs a program with another allocator and its profiler; gives the last dump.
fn other_profiler(scratch: &Scratch, program: &Path, library: &str, how: (&str, &str)) -> PathBuf {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env(how.0, how.1);
    let outcome = run(command.current_dir(scratch.files()).stdin(Stdio::null()));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    dumps(scratch).pop().expect("a dump")
}

#[test]
fn jemallocs_own_dump() {
    let scratch = Scratch::new();
    let program = shop(&scratch);
    let how = "prof:true,prof_final:true,prof_prefix:je,lg_prof_sample:9,prof_accum:true";
    let how = ("MALLOC_CONF", how);
    let dump = other_profiler(&scratch, &program, "libjemalloc.so.2", how);
    let profiled = Profiled::heap(program, vec![dump]);
    compare_functions(&scratch, "jeprof", &profiled);
}

#[test]
fn gperftools_own_dump() {
    let scratch = Scratch::new();
    let program = shop(&scratch);
    let dump = other_profiler(
        &scratch,
        &program,
        "libtcmalloc.so.4",
        ("HEAPPROFILE", "tc"),
    );
    let profiled = Profiled::heap(program, vec![dump]);
    compare_functions(&scratch, "google-pprof", &profiled);
    compare_reports(&scratch, &profiled);
}

#[test]
fn cc1plus() {
    let scratch = Scratch::new();
    let program = tool("g++", ["-print-prog-name=cc1plus"]);
    let source = "#include <map>\n#include <string>\n\
        int main() { std::map<std::string, int> m; return m[\"x\"]; }\n";
    let input = write(&scratch, "x.cpp", source);
    // What the driver would tell the compiler proper stays out of it.
    let ready = scratch.file("x.ii");
    let (path, ready) = (
        input.to_str().expect("a path"),
        ready.to_str().expect("a path"),
    );
    tool("g++", ["-E", path, "-o", ready]);
    let program = program.trim();
    let arguments = [
        program,
        "-quiet",
        "-fpreprocessed",
        "-O1",
        ready,
        "-o",
        "/dev/null",
    ];
    let dumps = profile(&scratch, "16384", &arguments, &input);
    let program = PathBuf::from(program);
    let profiled = Profiled::heap(program, dumps);
    // Not by address: it has allocating functions that reports leave out once they have names.
    compare_reports(&scratch, &profiled);
}

#[test]
fn redis_server() {
    let scratch = Scratch::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("a port").port().to_string();
    drop(free);
    let mut command = scratch.profiler();
    command
        .args([
            "run",
            "-c",
            "1024",
            "--peak",
            "-o",
            "p_",
            "--",
            "redis-server",
        ])
        .args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
    let server = Session::start(&mut command);
    wait::until("redis-server to answer", || {
        let mut ping = Command::new("redis-cli");
        let outcome = run(ping.args(["-p", &port, "ping"]).stdin(Stdio::null()));
        (outcome.stdout.trim() == "PONG").then_some(())
    });
    let load = [
        "-p",
        &port,
        "-q",
        "-t",
        "set,lpush,hset,zadd",
        "-n",
        "5000",
        "-r",
        "900",
    ];
    tool("redis-benchmark", load);
    let stopped = run(Command::new("redis-cli").args(["-p", &port, "shutdown", "nosave"]));
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(server.wait().code, Some(0));
    let program = PathBuf::from("/usr/bin/redis-server");
    let dumps = dumps(&scratch);
    let profiled = Profiled::heap(program, dumps);
    compare_reports(&scratch, &profiled);
    compare_addresses(&scratch, &profiled);
}
