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
fn the_heap_of_java_is_what_it_says_itself() {
    const KEPT_BYTES: u64 = 60_000_000;
    let scratch = Scratch::new();
    let program = scratch.file("Kept.java");
    fs::copy(mem_tests::artifacts::source("Kept.java"), &program).expect("a copy");
    let collectors = ["-XX:+UseG1GC", "-XX:+UseSerialGC", "-XX:+UseParallelGC"];
    let plain = collectors.map(|collector| (Command::new("java"), collector));
    let preloaded = (scratch.preloaded("java"), collectors[0]);
    for (mut command, collector) in plain.into_iter().chain([preloaded]) {
        command
            .args([collector, "-Xmx256m"])
            .arg(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut target = Target::start(&mut command);
        let committed: u64 = target.hear().parse().expect("a number");
        let parts = parts_of(&scratch, target.pid());
        let heap = bytes(&parts["Java heap"]);
        assert!(heap >= KEPT_BYTES, "{collector}: {parts}");
        // Archived objects of the class library are part of the heap.
        assert!(
            heap <= committed + 4 * MIB,
            "{collector}: {committed} {parts}"
        );
        // With the agent, it is among the program's own mappings.
        let code = bytes(&parts["generated code"]).max(bytes(&parts["own mappings"]));
        assert!(code > MIB, "{collector}: {parts}");
        // Memory of the machine itself: metaspace, tables of the collector.
        assert!(
            bytes(&parts["own mappings"]) < 64 * MIB,
            "{collector}: {parts}"
        );
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

/// Returns the bytes of the parts of `memory_kinds`, with the rest of the answer.
fn parts_of_kind(kind: &str) -> (Value, Value) {
    let scratch = Scratch::new();
    let program = scratch.compile("memory_kinds.c", &["-O1", "-pthread"]);
    let file = scratch.file("file");
    let mut target = Target::plain(&program, &[kind, file.to_str().expect("a path")]);
    assert_eq!(target.hear(), "ready");
    let parts = parts_of(&scratch, target.pid());
    let answer = why(&scratch, &["-p", &target.pid().to_string()]);
    (parts, answer)
}

/// Checks that a part has this size, to 5 % or 300 KiB.
fn near(parts: &Value, part: &str, truth: u64) {
    let found = bytes(&parts[part]);
    let allowed = (truth / 20).max(300 << 10);
    assert!(
        found.abs_diff(truth) <= allowed,
        "{part}: {found}, {truth}: {parts}"
    );
}

#[test]
fn copies_of_pages_of_files_are_no_files() {
    let (parts, _) = parts_of_kind("copies");
    near(&parts, "modified files", 16 * MIB);
    near(&parts, "files", 8 * MIB);
    near(&parts, "variables", 0);
}

#[test]
fn stacks_that_the_kernel_joins_with_other_memory_are_told_apart() {
    let (parts, _) = parts_of_kind("stacks");
    near(&parts, "stacks", 2 * MIB);
    near(&parts, "own mappings", 12 * MIB);
    let (parts, _) = parts_of_kind("large");
    near(&parts, "stacks", 20 * MIB);
    let (parts, _) = parts_of_kind("fiber");
    near(&parts, "stacks", 0);
    near(&parts, "own mappings", 12 * MIB);
}

#[test]
fn a_heap_whose_break_cannot_grow_is_called_incomplete() {
    let (parts, answer) = parts_of_kind("break");
    assert_eq!(answer["is_heap_incomplete"], true, "{answer}");
    near(&parts, "own mappings", 24 * MIB);
    let (parts, answer) = parts_of_kind("objects");
    assert_eq!(answer["is_heap_incomplete"], false, "{answer}");
    near(&parts, "shared memory", 9 * MIB);
    near(&parts, "own mappings", 0);
}

#[test]
fn copies_of_pages_are_told_apart_with_the_agent_too() {
    let scratch = Scratch::new();
    let program = scratch.compile("memory_kinds.c", &["-O1", "-pthread"]);
    for (kind, part, truth) in [
        ("copies", "modified files", 16 * MIB),
        ("copies", "files", 8 * MIB),
        ("stacks", "stacks", 2 * MIB),
        ("stacks", "own mappings", 12 * MIB),
        ("fiber", "own mappings", 12 * MIB),
    ] {
        let mut command = scratch.preloaded(&program);
        command.arg(kind).arg(scratch.file("file"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        let answer = why(&scratch, &["-p", &target.pid().to_string()]);
        let found = bytes(&answer["parts"][part]);
        let rest = 1536 << 10;
        assert!(
            (truth - 64 * 1024..truth + rest).contains(&found),
            "{kind} {part}: {answer}"
        );
    }
}

#[test]
fn the_limit_of_a_group_around_is_said() {
    let scratch = Scratch::new();
    let outer = Cgroup::new(512 * MIB);
    // Of version 2, the controller is switched on for the children.
    let switch = outer.path().join("cgroup.subtree_control");
    if switch.exists() {
        fs::write(&switch, "+memory").expect("a controller");
    }
    let inner = outer.path().join("inner");
    fs::create_dir(&inner).expect("a group");
    let text = run(scratch.profiler().arg("why").arg("--cgroup").arg(&inner)).stdout;
    let answer = why(&scratch, &["--cgroup", inner.to_str().expect("a path")]);
    fs::remove_dir(&inner).expect("an empty group");
    let around = &answer["limited_around"];
    assert_eq!(bytes(&around["limit_bytes"]), 512 * MIB, "{answer}");
    let line = format!("It is in {}: ", outer.path().display());
    assert!(
        text.contains("no limit of its own") && text.contains(&line),
        "{text}"
    );
}
