//! Live view and the dump of the same moment: equal functions, order and numbers.

use std::collections::BTreeMap;

use mem_tests::{Scratch, Server, Session, Steps, Target, run};

/// Flat and cumulative bytes in use, by function.
type Table = BTreeMap<String, (f64, f64)>;

/// Returns the output of `top`.
fn live(scratch: &Scratch, pid: u32) -> Table {
    let mut command = scratch.profiler();
    let outcome = run(command.args(["top", "--json", "-p", &pid.to_string()]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let json: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let rows = json["functions"].as_array().expect("rows");
    let row = |row: &serde_json::Value| {
        let bytes = |field: &str| row["numbers"][field].as_f64().expect("a number");
        let name = row["name"].as_str().expect("a name").to_owned();
        (name, (bytes("flat_bytes"), bytes("live_bytes")))
    };
    let order = rows
        .iter()
        .map(|r| r["numbers"]["live_bytes"].as_f64().unwrap_or(0.0));
    assert!(order.is_sorted_by(|a, b| a >= b), "{json}");
    rows.iter().map(row).collect()
}

/// Returns the output of `mem_parser -t` for a dump.
fn dumped(scratch: &Scratch, program: &std::path::Path, dump: &std::path::Path) -> Table {
    let mut command = scratch.parser();
    command.args(["-t", "--cum", "--unit", "B", "--nodefraction", "0", "-p"]);
    let outcome = run(command.arg(program).arg("-f").arg(dump));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let mut lines = outcome
        .stdout
        .lines()
        .skip_while(|line| !line.contains("flat%"));
    lines.next().expect("a table");
    let row = |line: &str| {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let bytes = |at: usize| cells[at].trim_end_matches('B').parse().expect("bytes");
        let name = cells[5..].join(" ");
        let name = name
            .trim_end_matches(" (inline)")
            .trim_end_matches(" (partial-inline)");
        (name.to_owned(), (bytes(0), bytes(3)))
    };
    lines.map(row).collect()
}

/// Checks that the rows of `top` that hold memory are in the dump, with the same values.
fn compare(shown: &Table, written: &Table) {
    assert!(shown.len() > 5, "{shown:?}");
    for (name, (flat, sum)) in shown.iter().filter(|(_, (_, sum))| *sum > 0.0) {
        let (flat_there, sum_there) = written
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not in {written:?}"));
        let equal = |a: f64, b: f64| (a - b).abs() <= 1.0 + a.abs() * 1e-6;
        assert!(equal(*flat, *flat_there), "{name}: {flat} {flat_there}");
        assert!(equal(*sum, *sum_there), "{name}: {sum} {sum_there}");
    }
}

#[test]
fn top_and_the_parser_agree() {
    let scratch = Scratch::new();
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(
        scratch
            .preloaded(&program)
            .stdin(std::process::Stdio::piped()),
    );
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    target.say("go 2000 3 1");
    target.hear_until("done");
    let shown = live(&scratch, target.pid());
    let outcome = session.stop();
    compare(&shown, &dumped(&scratch, &program, &outcome.dump()));
    drop(target);
}

/// A single table of a process without a session says what it covers, and keeps the last session's
/// profile.
#[test]
fn a_look_at_a_process_keeps_the_profile_of_its_last_session() {
    let scratch = Scratch::new();
    let mut program = Steps::start_with(&scratch, &[], |_| {});
    let pid = program.pid().to_string();
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 300");
    let counts = |profile: &profile::Profile| {
        let counts = profile.details.iter().map(|detail| detail.alloc_samples);
        (
            profile.facts.start_unix_ns,
            profile.facts.duration_ns,
            counts.sum::<u64>(),
        )
    };
    let last = counts(&session.stop().profile());
    for option in ["--once", "--json", "--once"] {
        let shown = run(scratch.profiler().args(["top", option, "-p", &pid]));
        assert_eq!(shown.code, Some(0), "{shown:?}");
        let said = "s only; growth is what was allocated then and kept";
        assert!(shown.stdout.contains(said), "{shown:?}");
        assert!(!scratch.is_sampling(program.pid()));
        let mut dump = scratch.profiler();
        let again = run(dump
            .args(["dump", "-p", &pid, "-o"])
            .arg(scratch.file("again_")));
        assert_eq!(counts(&again.profile()), last, "{option}");
    }
    // In a session, it shows that session.
    let session = Session::of(&scratch, program.pid(), "1");
    let shown = run(scratch.profiler().args(["top", "--once", "-p", &pid]));
    assert!(!shown.stdout.contains("older objects"), "{shown:?}");
    session.stop();
    program.target.finish_well();
}

/// A single table does not replace a profile that has not been written to a file.
#[test]
fn a_look_refuses_to_replace_an_unwritten_profile() {
    let scratch = Scratch::new();
    let mut program = Steps::start_with(&scratch, &[], |_| {});
    let pid = program.pid().to_string();
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 300");
    session.signal(libc::SIGKILL);
    session.wait();
    let server = Server::start(&scratch, &[]);
    server.post(&format!("/api/stop?pid={pid}")).expect(200);
    let refused = run(scratch.profiler().args(["top", "--once", "-p", &pid]));
    refused.refused(1, &["a session has left a profile", "mem_profiler dump -p"]);
    run(scratch
        .profiler()
        .args(["dump", "-p", &pid, "-o"])
        .arg(scratch.file("p_")))
    .dump();
    let shown = run(scratch.profiler().args(["top", "--once", "-p", &pid]));
    assert_eq!(shown.code, Some(0), "{shown:?}");
    program.target.finish_well();
}

/// The table has Python lines and the functions that they called, but not the interpreter's
/// functions between them.
#[test]
fn top_shows_lines_of_python_as_the_parser_does() {
    const SCRIPT: &str = "import sys\nkept = []\n\
                          def put(key):\n    kept.append({key: [key] * 50})\n\
                          def handle():\n    for key in range(1000):\n        put(str(key))\n\
                          print('ready', flush=True)\nsys.stdin.readline()\n\
                          handle()\nprint('done', flush=True)\nsys.stdin.readline()\n";
    let scratch = Scratch::new();
    // Code without names is called after its file.
    let program = std::fs::canonicalize("/usr/bin/python3").expect("Python");
    let mut command = scratch.preloaded(&program);
    command.args(["-c", SCRIPT]).env("PYTHONMALLOC", "malloc");
    let mut target = Target::start(command.stdin(std::process::Stdio::piped()));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    target.say("go");
    target.hear_until("done");
    let shown = live(&scratch, target.pid());
    let outcome = session.stop();
    compare(&shown, &dumped(&scratch, &program, &outcome.dump()));
    for line in [
        "put (<string>:4)",
        "handle (<string>:7)",
        "<module> (<string>:10)",
    ] {
        assert!(shown[line].1 > 500_000.0, "{line}: {shown:#?}");
    }
    for hidden in ["_PyEval_EvalFrameDefault", "Py_BytesMain", "main"] {
        assert!(!shown.contains_key(hidden), "{hidden}: {shown:#?}");
    }
    drop(target);
}

/// The table shows, as requested, Python lines with the functions that they called, all frames, or
/// only the lines.
#[test]
fn top_shows_of_python_what_it_is_asked_for() {
    const SCRIPT: &str = "\
def make_thumbnails():
    return [bytearray(5000) for _ in range(1000)]
print('started', flush=True)
input()
kept = make_thumbnails()
print('made', flush=True)
input()
";
    let scratch = Scratch::new();
    let script = scratch.file("app.py");
    std::fs::write(&script, SCRIPT).expect("a script");
    let mut target = Target::start(scratch.preloaded("/usr/bin/python3").arg(&script));
    assert_eq!(target.hear(), "started");
    let session = Session::of(&scratch, target.pid(), "1");
    target.say("go on");
    assert_eq!(target.hear(), "made");
    let pid = target.pid().to_string();
    let shown = |option: &str| {
        let mut command = scratch.profiler();
        command.args(["top", "--json", "-p", &pid]);
        command.args((!option.is_empty()).then_some(option));
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let json: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        let rows = json["functions"].as_array().expect("rows");
        let name = |row: &serde_json::Value| row["name"].as_str().expect("a name").to_owned();
        let live = json["total"]["live_bytes"].as_f64().expect("a number");
        (rows.iter().map(name).collect::<Vec<_>>(), live)
    };
    let is_line = |name: &String| name.contains("(app.py:");
    let is_loop = |name: &String| name.contains("_PyEval_EvalFrame") || name == "Py_BytesMain";
    let (usual, live) = shown("");
    let (native, of_native) = shown("--native");
    let (alone, of_alone) = shown("--python-only");
    assert!(live >= 5e6, "{live}");
    assert_eq!([live, live], [of_native, of_alone]);
    for names in [&usual, &native, &alone] {
        let is_it = |name: &String| name == "make_thumbnails (app.py:2)";
        assert!(names.iter().any(is_it), "{names:?}");
    }
    assert!(native.iter().any(is_loop), "{native:?}");
    assert!(!usual.iter().any(is_loop), "{usual:?}");
    let is_python = |name: &String| is_line(name) || name == "[native]";
    assert!(alone.iter().all(is_python), "{alone:?}");
    session.stop();
    target.say("end");
    target.finish_well();
    let mut command = scratch.profiler();
    command.args(["top", "--once", "--native", "--python-only", "-p", &pid]);
    run(&mut command).refused(2, &["--native"]);
}
