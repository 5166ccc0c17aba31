//! Unusual surroundings of a program. Idle, it does in each what it does without the agent; in a session of
//! `run` its values are exact, or the reason why there are none is said: before the program is started, or the
//! program runs all the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::{Outcome, Scratch, artifacts, run, sums};

/// What a session in a surrounding comes to.
#[derive(Clone, Copy, Debug)]
enum Outcomes {
    /// Its values are exact.
    Exact,
    /// There is none, for a reason in these words.
    Said(&'static str),
}

use Outcomes::{Exact, Said};

/// Name, script that makes it in namespaces of its own, and what a session comes to.
const SURROUNDINGS: &[(&str, &str, Outcomes)] = &[
    ("nothing unusual", ":", Exact),
    (
        "no address randomisation",
        "set -- setarch -R \"$@\"",
        Exact,
    ),
    ("no LANG", "unset LANG LC_ALL LC_CTYPE", Exact),
    ("LANG=C", "export LC_ALL=C", Exact),
    ("LANG=zh_CN.UTF-8", "export LC_ALL=zh_CN.UTF-8", Exact),
    (
        "no host name",
        "echo >/proc/sys/kernel/hostname && test -z \"$(uname -n)\"",
        Exact,
    ),
    (
        "no environment",
        "set -- env -i AGENT=\"$AGENT\" INPUT=\"$INPUT\" \"$@\"",
        Exact,
    ),
    ("no /proc/sys", "mount -t tmpfs none /proc/sys", Exact),
    (
        "/proc of processes alone",
        "mount -t proc -o subset=pid proc /proc",
        Exact,
    ),
    (
        "an empty boot id",
        "mount --bind /dev/null /proc/sys/kernel/random/boot_id",
        Exact,
    ),
    (
        "a boot id that must not be read",
        "mkdir /tmp/none && mount --bind /tmp/none /proc/sys/kernel/random",
        Exact,
    ),
    (
        "/proc hides others",
        "mount -t proc -o hidepid=2 proc /proc",
        Exact,
    ),
    ("no /sys", "mount -t tmpfs none /sys", Exact),
    (
        "/dev/shm not executable",
        "mount -t tmpfs -o noexec none /dev/shm",
        Exact,
    ),
    (
        "16 MiB of /dev/shm",
        "mount -t tmpfs -o size=16M none /dev/shm",
        Exact,
    ),
    (
        "64 KiB of /dev/shm",
        "mount -t tmpfs -o size=64K none /dev/shm",
        Said("no room"),
    ),
    (
        "/dev/shm read-only",
        "mount -t tmpfs -o ro none /dev/shm",
        Said("/dev/shm"),
    ),
    (
        "no /dev/shm",
        "mkdir /tmp/dev && mount --bind /tmp/dev /dev && mknod -m 666 /dev/null c 1 3",
        Said("/dev/shm"),
    ),
    (
        "no /proc",
        "mount -t tmpfs none /proc",
        Said("/proc is not mounted"),
    ),
    ("no file size", "ulimit -f 0", Said("ulimit -f")),
    ("48 descriptors", "ulimit -n 48", Exact),
    ("256 KiB of stack", "ulimit -s 256", Exact),
    (
        "no core files, no locked memory",
        "ulimit -c 0 && ulimit -l 0",
        Exact,
    ),
];

const INPUT: &str = "begin\nstep\nstep\nstep\nstep\nstep\nexpected\n";

/// A command in a surrounding, with a `/tmp` and a `/dev/shm` of its own.
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

/// Lines that the program says of its sites, by name.
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
    for (name, prepare, expected) in SURROUNDINGS {
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
        match expected {
            Said(words) => {
                let is_same = truth(&sampled) == truth(&plain);
                assert!(is_refused || is_same, "{name}: {sampled:?}");
                assert!(sampled.stderr.contains(words), "{name}: {sampled:?}");
                assert!(!sampled.stderr.contains("panicked"), "{name}: {sampled:?}");
            }
            Exact => {
                assert_eq!(truth(&sampled), truth(&plain), "{name}: {sampled:?}");
                assert_eq!(sampled.code, Some(0), "{name}: {sampled:?}");
                let dump = sampled
                    .stderr
                    .split_whitespace()
                    .find(|word| word.ends_with(".heap"));
                let dump = place.path().join(dump.expect("a dump"));
                let profile = heap_format::read(&fs::read(&dump).expect("a dump"), "dump");
                let found = sums(&profile.expect("a profile"), &[&program], "site_");
                for (site, truth) in truth(&plain) {
                    let sum = found.get(&site).copied().unwrap_or_default();
                    assert_eq!(mem_tests::truth::estimates(&sum), truth, "{name}: {site}");
                }
                fs::remove_file(dump).expect("the dump");
            }
        }
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
