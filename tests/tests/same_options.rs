//! Options that every command that writes files accepts, and results for programs that cannot be
//! sampled.

use std::path::Path;

use mem_tests::tiny_filesystem::TinyFilesystem;
use mem_tests::{Outcome, Scratch, Session, Target, run};

fn count(scratch: &Scratch, extension: &str) -> usize {
    let files = std::fs::read_dir(scratch.files()).expect("files").flatten();
    let has = |path: &Path| path.extension().is_some_and(|e| e == extension);
    files.filter(|file| has(&file.path())).count()
}

fn started(scratch: &Scratch, options: &[&str], program: &Path) -> Outcome {
    run(scratch.profiler().args(options).arg("--").arg(program))
}

#[test]
fn quiet_commands_print_nothing_when_all_goes_well() {
    let scratch = Scratch::new();
    let program = scratch.compile("tidy.cpp", &["-pthread"]);
    for options in [
        &["run", "-q", "-o", "a_"][..],
        &["cpu", "run", "-q", "-o", "b_"],
    ] {
        let outcome = started(&scratch, options, &program);
        assert_eq!(outcome.code, Some(0), "{options:?}: {outcome:?}");
        let printed = format!("{}{}", outcome.stdout, outcome.stderr);
        assert_eq!(printed, "", "{options:?}");
    }
    assert_eq!((count(&scratch, "heap"), count(&scratch, "cpu")), (1, 1));
    // A failure is printed.
    let outcome = started(&scratch, &["run", "-q"], Path::new("./absent"));
    assert_eq!(outcome.code, Some(127), "{outcome:?}");
    assert!(outcome.stderr.contains("absent"), "{outcome:?}");
}

#[test]
fn commands_that_write_files_make_pages_of_them() {
    let scratch = Scratch::new();
    let program = scratch.compile("line_leaks.cpp", &[]);
    let outcome = started(
        &scratch,
        &["cpu", "run", "--html", "-F", "1000", "-o", "c_"],
        &scratch.compile("tidy.cpp", &["-pthread"]),
    );
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(count(&scratch, "html"), 1, "{outcome:?}");
    let mut target = Target::start(scratch.preloaded(&program).arg("wait"));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    let pid = target.pid().to_string();
    for (command, pages) in [("dump", 2), ("stop", 3)] {
        let outcome = run(scratch
            .profiler()
            .args([command, "--html", "-o", "d_", "-p", &pid]));
        assert_eq!(outcome.code, Some(0), "{command}: {outcome:?}");
        assert_eq!(count(&scratch, "html"), pages, "{command}: {outcome:?}");
    }
    session.stop();
    target.say("end");
    target.finish_well();
}

/// Everything else succeeded, but there is no profile.
#[test]
fn a_program_without_room_for_its_tables_is_a_failure() {
    let scratch = Scratch::new();
    let program = scratch.compile("tidy.cpp", &["-pthread"]);
    let place = scratch.file("tables");
    let tables = TinyFilesystem::mount(&place, "64k");
    tables.fill();
    let outcome = run(scratch
        .profiler()
        .env("MEM_PROFILER_DIR", &place)
        .args(["run", "-o", "p_", "--"])
        .arg(&program));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    for part in [
        "no process was sampled",
        "make room there, or use MEM_PROFILER_DIR",
    ] {
        assert!(outcome.stderr.contains(part), "{outcome:?}");
    }
}

#[test]
fn a_refused_command_line_gets_the_usage_of_its_command() {
    let scratch = Scratch::new();
    for (options, usage) in [
        (&["run", "--zzz"][..], "Usage: mem_profiler run "),
        (&["cpu"], "Usage: mem_profiler cpu "),
        (
            &["cpu", "run", "--zzz", "x"],
            "Usage: mem_profiler cpu run ",
        ),
        (&["top", "--cpu"], "Usage: mem_profiler top "),
    ] {
        let outcome = run(scratch.profiler().args(options));
        assert_eq!(outcome.code, Some(2), "{options:?}: {outcome:?}");
        assert!(outcome.stderr.contains(usage), "{options:?}: {outcome:?}");
    }
}

/// Returns the files that a command names as JSON, after what else is on stdout.
fn named(outcome: &Outcome) -> Vec<serde_json::Value> {
    let start = outcome
        .stdout
        .find('[')
        .unwrap_or_else(|| panic!("{outcome:?}"));
    let named: serde_json::Value = serde_json::from_str(&outcome.stdout[start..])
        .unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
    named.as_array().expect("an array").clone()
}

/// `leaks` prints a report, and writes files only on request.
#[test]
fn a_leak_check_has_pages_files_and_silence_like_other_commands() {
    let scratch = Scratch::new();
    let program = scratch.compile("line_leaks.cpp", &[]);
    let mut sampled = scratch.preloaded(&program);
    let sampled = sampled.env("MEM_PROFILER_START", "1");
    let mut target = Target::start(sampled.env("MEM_PROFILER_INTERVAL", "1").arg("wait"));
    assert_eq!(target.hear(), "ready");
    let pid = target.pid().to_string();
    let leaks = |more: &[&str]| {
        let mut command = scratch.profiler();
        command.args(["leaks", "-p", &pid]).args(more);
        run(&mut command)
    };
    let quiet = leaks(&["-q", "--exit-code"]);
    assert_eq!(quiet.code, Some(1), "{quiet:?}");
    assert_eq!(format!("{}{}", quiet.stdout, quiet.stderr), "");
    let page = leaks(&["--html"]);
    assert_eq!(page.code, Some(0), "{page:?}");
    assert!(page.stdout.contains("custom_prof.line_leaks."), "{page:?}");
    assert_eq!((count(&scratch, "heap"), count(&scratch, "html")), (1, 1));
    let named = leaks(&["--html", "--json", "-o", "l_"]);
    let reports: serde_json::Value = serde_json::from_str(&named.stdout).expect("JSON");
    for file in ["dump", "page"] {
        let path = reports[0][file].as_str().expect("a path");
        assert!(scratch.files().join(path).is_file(), "{file}: {named:?}");
    }
    target.say("end");
    target.finish_well();
}

/// Commands that print all that they make say what to use instead.
#[test]
fn options_that_a_command_lacks_are_refused_with_what_to_use() {
    let scratch = Scratch::new();
    for (command, option, instead) in [
        ("list", "-q", "> /dev/null"),
        ("list", "--html", "mem_profiler serve"),
        ("top", "--html", "mem_profiler dump --html"),
        ("top", "--rss", "mem_profiler rss --every"),
        ("why", "-o", "mem_profiler why > FILE"),
        ("serve", "--html", "in a browser"),
        ("serve", "--json", "/api/processes"),
        ("push", "-o", "-o PREFIX --push URL"),
        ("leaks", "run", "mem_profiler run --leak-check -- PROGRAM"),
    ] {
        let outcome = run(scratch.profiler().args([command, option]));
        assert_eq!(outcome.code, Some(2), "{command}: {outcome:?}");
        let is_said = outcome.stderr.contains("tip: ") && outcome.stderr.contains(instead);
        assert!(is_said, "{command}: {outcome:?}");
    }
    let outcome = run(scratch.profiler().args(["run", "--rss", "--", "true"]));
    outcome.refused(2, &["'mem_profiler rss run'"]);
    let cleaned = run(scratch.profiler().args(["clean", "-q"]));
    assert_eq!(cleaned.code, Some(0), "{cleaned:?}");
    assert_eq!(format!("{}{}", cleaned.stdout, cleaned.stderr), "");
}

#[test]
fn commands_that_write_files_name_them_as_json() {
    let scratch = Scratch::new();
    let program = scratch.compile("line_leaks.cpp", &[]);
    let tidy = scratch.compile("tidy.cpp", &["-pthread"]);
    let run_heap = &["run", "--json", "--html", "-c", "1", "-o", "a_"][..];
    let run_cpu = &["cpu", "run", "--json", "-F", "1000", "-o", "b_"];
    for (options, program, kinds) in [
        (run_heap, &program, &["heap", "page"][..]),
        (run_cpu, &tidy, &["cpu"]),
    ] {
        let outcome = started(&scratch, options, program);
        assert_eq!(outcome.code, Some(0), "{options:?}: {outcome:?}");
        let named = named(&outcome);
        let found: Vec<&str> = named
            .iter()
            .map(|own| own["kind"].as_str().unwrap())
            .collect();
        assert_eq!(found, kinds, "{options:?}: {outcome:?}");
        for own in named {
            let file = scratch.files().join(own["file"].as_str().expect("a name"));
            assert!(file.is_file(), "{own}: {outcome:?}");
        }
    }
    let mut target = Target::start(scratch.preloaded(&program).arg("wait"));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    let pid = target.pid().to_string();
    for command in ["dump", "stop"] {
        let mut profiler = scratch.profiler();
        profiler.args([command, "--json", "-o", "d_", "-p", &pid]);
        let outcome = run(&mut profiler);
        assert_eq!(outcome.code, Some(0), "{command}: {outcome:?}");
        assert!(outcome.stdout.starts_with('['), "{command}: {outcome:?}");
        let named = named(&outcome);
        assert_eq!(named.len(), 1, "{command}: {outcome:?}");
        assert_eq!(named[0]["pid"], target.pid(), "{command}: {outcome:?}");
        // The program has allocated before the session.
        assert_eq!(named[0]["samples"], 0, "{command}: {outcome:?}");
    }
    session.stop();
    target.say("end");
    target.finish_well();
    let clean = run(scratch.profiler().args(["clean", "--json"]));
    let summary: serde_json::Value = serde_json::from_str(&clean.stdout).expect("an object");
    assert_eq!(summary["failed"], 0, "{clean:?}");
    let nothing = run(scratch.profiler().args(["recover", "--json"]));
    assert_eq!(nothing.stdout.trim(), "[]", "{nothing:?}");
}

#[test]
fn the_variable_of_another_profiler_is_translated() {
    let scratch = Scratch::new();
    let program = scratch.compile("line_leaks.cpp", &[]);
    let options = "prof:true,lg_prof_sample:20,lg_prof_interval:30,prof_prefix:/tmp/je";
    let ours = "-c 1M --every-alloc 1G -o /tmp/je";
    let mut command = scratch.profiler();
    command
        .env("MALLOC_CONF", options)
        .args(["run", "-o", "a_", "--"]);
    let outcome = run(command.arg(&program));
    let hint = format!("as options of run, it is {ours}\n");
    assert!(outcome.stderr.contains(&hint), "{outcome:?}");
    let mut preloaded = scratch.preloaded(&program);
    let mut target = Target::start(preloaded.arg("wait").env("MALLOC_CONF", options));
    assert_eq!(target.hear(), "ready");
    let hint = format!("the same is: mem_profiler {ours} -p {}\n", target.pid());
    let pid = target.pid().to_string();
    for command in [
        &["list", "-p", &pid][..],
        &["-s", "0.1", "-o", "b_", "-p", &pid],
    ] {
        let outcome = run(scratch.profiler().args(command));
        assert!(outcome.stderr.contains(&hint), "{command:?}: {outcome:?}");
    }
    target.say("end");
    target.finish_well();
}
