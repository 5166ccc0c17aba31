//! `mem_profiler why` of processes without the agent, and of control groups: what it lists adds up to
//! the kernel's totals, and the heap agrees with what the allocator says of itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::cgroup::Cgroup;
use mem_tests::{Scratch, Target, run};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Size of the file that `heap_figures` writes.
const FILE_BYTES: u64 = 20 * MIB;

/// Runs `why` with these arguments. Returns the first answer.
fn why(scratch: &Scratch, arguments: &[&str]) -> Value {
    let outcome = run(scratch.profiler().args(["why", "--json"]).args(arguments));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let answers: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    answers[0].clone()
}

fn bytes(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn sum_of(parts: &Value) -> u64 {
    parts.as_object().expect("parts").values().map(bytes).sum()
}

/// Returns the resident memory of a process, as the kernel sums it up.
fn kernels_rss(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.expect("a sum").trim().trim_end_matches(" kB");
    kib.parse::<u64>().expect("a number") * 1024
}

/// Checks that the parts of a process's memory add up to what the kernel says, and returns them.
fn parts_of(scratch: &Scratch, pid: u32) -> Value {
    let answer = why(scratch, &["-p", &pid.to_string()]);
    let rss = kernels_rss(pid);
    assert_eq!(sum_of(&answer["parts"]), bytes(&answer["rss_bytes"]));
    let difference = bytes(&answer["rss_bytes"]).abs_diff(rss);
    assert!(difference * 100 <= rss, "{rss}: {answer}");
    assert!(bytes(&answer["outside"]["page_tables"]) > 0, "{answer}");
    answer["parts"].clone()
}

/// `heap_figures`, running, with what its allocator says.
struct Figures {
    target: Target,
    in_use: u64,
    free: u64,
    large: u64,
}

impl Figures {
    fn of(mut command: Command, file: &Path) -> Self {
        command
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut target = Target::start(&mut command);
        let line = target.hear();
        let figures: Vec<u64> = line
            .split_whitespace()
            .map(|figure| figure.parse().expect("a number"))
            .collect();
        Self {
            target,
            in_use: figures[0],
            free: figures[1],
            large: figures[2],
        }
    }
}

#[test]
fn the_heap_of_glibcs_allocator_is_what_it_says_itself() {
    for flags in [&["-O0", "-pthread"][..], &["-O0", "-pthread", "-static"]] {
        let scratch = Scratch::new();
        let program = scratch.compile("heap_figures.c", flags);
        let figures = Figures::of(Command::new(program), &scratch.file("file"));
        let parts = parts_of(&scratch, figures.target.pid());
        let part = |name: &str| bytes(&parts[name]);
        assert_eq!(part("large objects"), figures.large, "{parts}");
        // A free chunk begins and ends within pages that are in use.
        let free = part("heap free");
        assert!(
            free <= figures.free && free * 10 >= figures.free * 9,
            "{parts}"
        );
        let in_use = part("heap in use");
        assert!(
            in_use >= figures.in_use && in_use * 10 <= figures.in_use * 11,
            "{parts}"
        );
    }
}

/// Returns a line of the process's status, in bytes.
fn status_bytes(pid: u32, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.expect("a line").trim().trim_end_matches(" kB");
    kib.parse::<u64>().expect("a number") * 1024
}

#[test]
fn heaps_of_all_shapes_are_read_without_a_trace() {
    const HEAP_BYTES: u64 = 4096 * 10000;
    for shape in ["split", "sparse", "fiber"] {
        let scratch = Scratch::new();
        let program = scratch.compile("heap_shapes.c", &["-O0"]);
        let mut target = Target::plain(&program, &[shape]);
        assert_eq!(target.hear(), "ready");
        let pid = target.pid();
        let sizes = || ["VmPTE:", "RssAnon:", "RssFile:"].map(|name| status_bytes(pid, name));
        let before = sizes();
        let parts = parts_of(&scratch, pid);
        assert_eq!(
            sizes(),
            before,
            "{shape}: page tables, anonymous memory, files"
        );
        let in_use = bytes(&parts["heap in use"]);
        assert!(
            in_use.abs_diff(HEAP_BYTES) * 20 <= HEAP_BYTES,
            "{shape}: {parts}"
        );
        let stacks = bytes(&parts["stacks"]);
        assert!(stacks <= MIB, "{shape}: {parts}");
    }
}

#[test]
fn programs_of_all_kinds_add_up() {
    let scratch = Scratch::new();
    let python = "import sys; kept = [bytes(1000) for i in range(30000)]; \
                  big = bytearray(b'x') * (40 << 20); print('ready', flush=True); sys.stdin.read()";
    let perl = "$|=1; $x = 'x' x 30000000; print \"ready\\n\"; <STDIN>;";
    for (program, arguments) in [
        ("python3", ["-c", python]),
        ("perl", ["-e", perl]),
        ("sh", ["-c", "echo ready; read x"]),
    ] {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        let parts = parts_of(&scratch, target.pid());
        if program == "python3" {
            let large = bytes(&parts["large objects"]);
            assert!((40 * MIB..50 * MIB).contains(&large), "{parts}");
        }
    }
}

/// Returns the figure in the line of `sys._debugmallocstats()` that begins like this.
fn pymalloc_figure(statistics: &str, start: &str) -> u64 {
    let line = statistics.lines().find_map(|line| line.strip_prefix(start));
    let figure = line.expect("a line").rsplit('=').next().expect("a figure");
    let digits: String = figure.chars().filter(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[test]
fn small_objects_of_python_are_what_it_says_itself() {
    // Two of three objects of the last size classes are freed, so that their pools stay.
    let script = "import sys; kept = [bytes(100) for i in range(90000)]; \
                  kept = kept[::3]; sys._debugmallocstats(); print('ready', flush=True); \
                  sys.stdin.read()";
    let scratch = Scratch::new();
    for mut command in [Command::new("python3"), scratch.preloaded("python3")] {
        let statistics = scratch.file("statistics");
        command
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&statistics).expect("a file"));
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        let parts = parts_of(&scratch, target.pid());
        let part = |name: &str| bytes(&parts[name]);
        let statistics = fs::read_to_string(statistics).expect("a file");
        let figure = |start: &str| pymalloc_figure(&statistics, start);
        // The interpreter allocates a little after it has counted.
        let in_use = figure("# bytes in allocated blocks");
        let found = part("Python objects");
        assert!(found.abs_diff(in_use) * 50 <= in_use, "{found} {in_use}");
        // Holes include blocks that were never used, of which some pages are not resident.
        let holes = figure("# bytes in available blocks");
        let found = part("Python holes");
        assert!(found.abs_diff(holes) * 10 <= holes, "{found} {holes}");
        assert!(part("own mappings") < MIB, "{parts}");
    }
}

#[test]
fn a_process_is_explained_by_its_name_beside_one_with_the_agent() {
    let scratch = Scratch::new();
    let program = scratch.compile("heap_figures.c", &["-O0", "-pthread"]);
    let with = Figures::of(scratch.preloaded(&program), &scratch.file("with"));
    // A name that no other run of this test has.
    let name = format!("plain{}", std::process::id());
    let other: PathBuf = scratch.file(&name);
    mem_tests::session::copy_program(&program, &other);
    let without = Figures::of(Command::new(&other), &scratch.file("without"));
    let pid = with.target.pid().to_string();
    let outcome = run(scratch
        .profiler()
        .args(["why", "-p", &pid, "-p", &name, "-p", &name]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let text = &outcome.stdout;
    let title = format!("{name} ({}): ", without.target.pid());
    assert!(
        text.contains(&title) && text.contains("heap in use"),
        "{text}"
    );
    assert!(text.contains("allocator metadata"), "{text}");
    let hint = format!("mem_profiler rss -p {}", without.target.pid());
    assert!(
        text.contains(&hint) && text.matches("Not in it: ").count() == 2,
        "{text}"
    );
}

#[test]
fn a_groups_memory_adds_up_to_its_account() {
    let scratch = Scratch::new();
    let group = Cgroup::new(512 * MIB);
    let program = scratch.compile("heap_figures.c", &["-O0", "-pthread"]);
    let mut command = Command::new(program);
    group.put(&mut command);
    let in_memory = scratch.shared().join("in_memory");
    let figures = Figures::of(command, &in_memory);
    let path = group.path().to_str().expect("a path");
    let answer = why(&scratch, &["--cgroup", path]);
    let current = bytes(&answer["current_bytes"]);
    let remainder = answer["remainder_bytes"].as_i64().expect("a remainder");
    let explained = sum_of(&answer["parts"]) as i64;
    assert_eq!(explained + remainder, current as i64);
    // The kernel charges up to 64 pages for each processor in advance.
    // SAFETY: takes a number.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }.max(1) as u64;
    let in_advance = processors * 64 * 4096;
    assert!(
        remainder.unsigned_abs() * 100 <= current + in_advance * 100,
        "{answer}"
    );
    let near = |what: &str, found: u64, truth: u64| {
        assert!(
            found.abs_diff(truth) * 20 <= truth,
            "{what}: {found}, {truth}: {answer}"
        );
    };
    let heap = figures.in_use + figures.free + figures.large;
    near("anonymous", bytes(&answer["parts"]["anonymous"]), heap);
    near(
        "shared",
        bytes(&answer["parts"]["shared memory"]),
        FILE_BYTES,
    );
    let listed = |list: &str, name: &str| {
        let rows = answer[list].as_array().expect("a list");
        let row = rows.iter().find(|row| row["name"] == name);
        row.map_or(0, |row| bytes(&row["bytes"]))
    };
    let name = in_memory.to_str().expect("a path");
    let in_memory = listed("largest_shared_memory", name);
    near("file", in_memory, FILE_BYTES);
    let title = format!("heap_figures ({})", figures.target.pid());
    near("process", listed("largest_processes", &title), heap);
    assert_eq!(bytes(&answer["limit_bytes"]), 512 * MIB);
    assert_eq!(bytes(&answer["processes"]), 1);
    let outcome = run(scratch.profiler().args(["why", "--cgroup", path]));
    assert!(
        outcome.stdout.contains("of its limit, 512.0 MiB"),
        "{outcome:?}"
    );
    assert!(outcome.stdout.contains("remainder"), "{outcome:?}");
}

#[test]
fn what_cannot_be_explained_is_refused() {
    let scratch = Scratch::new();
    for (arguments, why) in [
        (
            ["--cgroup", "/no/such/group"],
            "there is no such control group",
        ),
        (["-p", "no-such-name-anywhere"], "no process has this name"),
        (["-p", "2147483647"], "there is no such process"),
    ] {
        let outcome = run(scratch.profiler().arg("why").args(arguments));
        outcome.refused(1, &[why]);
    }
}
