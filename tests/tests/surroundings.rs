//! Unusual surroundings of a program. When idle, the program behaves as without the agent. In a
//! session of `run`, its values are exact, or the reason why there are none is reported: before the
//! program is started, or while it runs nevertheless.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::{Outcome, Scratch, artifacts, run, sums};

/// The list, one surrounding a line.
const SURROUNDINGS: &str = include_str!("../../deploy/machine/surroundings");

/// One line of the list.
#[derive(Clone, Copy, Debug)]
struct Surrounding {
    name: &'static str,
    /// What a session comes to: `exact`, or words of the reason why there is none.
    outcome: &'static str,
    /// Shell script that makes it, in namespaces of its own.
    prepare: &'static str,
}

fn surroundings() -> Vec<Surrounding> {
    let lines = SURROUNDINGS.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let fields: Vec<_> = line.splitn(3, " | ").collect();
            let [name, outcome, prepare] = fields[..] else {
                panic!("three fields: {line}");
            };
            Surrounding {
                name,
                outcome,
                prepare,
            }
        })
        .collect()
}

const INPUT: &str = "begin\nstep\nstep\nstep\nstep\nstep\nexpected\n";

/// Returns a command in a surrounding, with a `/tmp` and a `/dev/shm` of its own.
fn within(scratch: &Scratch, prepare: &str, command: &str, program: &Path) -> Command {
    let script = format!(
        "mount -t tmpfs none /dev/shm && mount -t tmpfs none /tmp && {prepare} && exec \"$@\""
    );
    let mut outer = Command::new("unshare");
    outer.args([
        "--mount",
        "--pid",
        "--uts",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ]);
    outer.args(["sh", "-c", &script, "sh", "sh", "-c", command]);
    outer.arg(artifacts::profiler()).arg(program);
    outer
        .env("AGENT", artifacts::agent())
        .env("INPUT", scratch.file("input"))
        .env_remove("MEM_PROFILER_DIR")
        .current_dir(scratch.files())
        .stdin(Stdio::null());
    outer
}

/// Returns the lines that the program prints about its sites, by name.
fn truth(outcome: &Outcome) -> BTreeMap<String, [f64; 4]> {
    let site = |line: &str| {
        let mut fields = line.strip_prefix("site_")?.split(' ');
        let name = format!("site_{}", fields.next()?);
        let mut number = || fields.next().and_then(|n| n.parse().ok());
        let [live, live_bytes, all, all_bytes] = [number()?, number()?, number()?, number()?];
        Some((name, [all, all_bytes, live, live_bytes]))
    };
    outcome.stdout.lines().filter_map(site).collect()
}

#[test]
fn a_program_is_unharmed_and_its_session_exact_or_explained() {
    // Directories below /tmp are hidden by the surroundings' own.
    let scratch = Scratch::new();
    let built = scratch.compile("history.c", &[]);
    let place = Place::new();
    let program = place.path().join("history");
    fs::copy(&built, &program).expect("a copy");
    fs::write(place.path().join("input"), INPUT).expect("an input");
    let plain = run(Command::new("sh")
        .args(["-c", "\"$0\" <\"$1\""])
        .arg(&program)
        .arg(place.path().join("input")));
    assert_eq!(truth(&plain).len(), 7, "{plain:?}");
    for Surrounding {
        name,
        outcome,
        prepare,
    } in surroundings()
    {
        let at = |command: &str| {
            let mut command = within(&scratch, prepare, command, &program);
            command.env("INPUT", place.path().join("input"));
            run(command.current_dir(place.path()))
        };
        let idle = at("LD_PRELOAD=\"$AGENT\" exec \"$1\" <\"$INPUT\"");
        assert_eq!(idle.code, Some(0), "{name}: {idle:?}");
        assert_eq!(idle.stdout, plain.stdout, "{name}");
        let sampled = at("exec \"$0\" run -c 1 --agent \"$AGENT\" -o p_ -- \"$1\" <\"$INPUT\"");
        let is_refused = sampled.code == Some(1) && sampled.stdout.is_empty();
        if outcome != "exact" {
            let is_same = truth(&sampled) == truth(&plain);
            assert!(is_refused || is_same, "{name}: {sampled:?}");
            assert!(sampled.stderr.contains(outcome), "{name}: {sampled:?}");
            assert!(!sampled.stderr.contains("panicked"), "{name}: {sampled:?}");
            continue;
        }
        assert_eq!(truth(&sampled), truth(&plain), "{name}: {sampled:?}");
        assert_eq!(sampled.code, Some(0), "{name}: {sampled:?}");
        let dump = sampled
            .stderr
            .split_whitespace()
            .find(|word| word.ends_with(".heap"));
        let dump = place.path().join(dump.expect("a dump"));
        let profile = profile::read(&fs::read(&dump).expect("a dump"), "dump");
        let found = sums(&profile.expect("a profile"), &[&program], "site_");
        for (site, truth) in truth(&plain) {
            let sum = found.get(&site).copied().unwrap_or_default();
            assert_eq!(mem_tests::truth::estimates(&sum), truth, "{name}: {site}");
        }
        fs::remove_file(dump).expect("the dump");
    }
}

/// A directory that is not below `/tmp`.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
        Self(tempfile::tempdir_in(target).expect("a directory"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}
