//! Command lines of well-known articles on gperftools' heap profiler, unchanged except for the name
//! of the preloaded library.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::session::write_program;
use mem_tests::{Scratch, Target, run, wait};

/// Allocates 30 objects of 1 MiB and frees all of them but the last; with "wait", waits then for a
/// line on its standard input.
const PROGRAM: &str = "import sys\n\
    kept = [bytearray(1 << 20) for _ in range(30)]\n\
    del kept[:-1]\n\
    if 'wait' in sys.argv:\n\
    \x20   print('ready', flush=True)\n\
    \x20   sys.stdin.readline()\n";

fn script(scratch: &Scratch) -> PathBuf {
    let script = scratch.file("trainer.py");
    std::fs::write(&script, PROGRAM).expect("a script");
    script
}

/// Returns the interpreter itself: another one may be a shim, which is tested separately.
fn python(scratch: &Scratch) -> Command {
    scratch.preloaded("/usr/bin/python3")
}

/// Names of the dumps in the scratch directory.
fn dumps(scratch: &Scratch) -> BTreeSet<String> {
    let files = std::fs::read_dir(scratch.files()).expect("files").flatten();
    files
        .map(|file| file.file_name().into_string().expect("a name"))
        .filter(|name| name.ends_with(".heap"))
        .collect()
}

/// Returns the bytes that a dump says were allocated: `heap profile: N: LIVE [N: ALLOCATED] @ …`.
fn allocated_bytes(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let line = text.lines().next().expect("a first line");
    let word = line.split_whitespace().nth(5).expect(line);
    word.trim_end_matches(']').parse().expect(line)
}

fn prefix(scratch: &Scratch) -> String {
    scratch.file("x").to_str().expect("a path").to_owned()
}

#[test]
fn heapprofile_alone_writes_a_dump_at_the_exit() {
    let scratch = Scratch::new();
    let mut command = python(&scratch);
    let outcome = run(command
        .arg(script(&scratch))
        .env("HEAPPROFILE", prefix(&scratch))
        .stdin(Stdio::null()));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(dumps(&scratch), BTreeSet::from(["x.0001.heap".to_owned()]));
    let allocated = allocated_bytes(&scratch.file("x.0001.heap"));
    assert!((30 << 20..80 << 20).contains(&allocated), "{allocated}");
    // The message names the dump, and nothing of the session is left.
    assert!(
        outcome.stderr.contains("next: mem_parser ") && outcome.stderr.contains("x.0001.heap"),
        "{outcome:?}"
    );
    assert_eq!(scratch.segments(), Vec::<PathBuf>::new());
    let read = run(scratch
        .parser()
        .args(["--text", "--alloc_space", "/usr/bin/python3"])
        .arg(scratch.file("x.0001.heap")));
    assert_eq!(read.code, Some(0), "{read:?}");
}

#[test]
fn intervals_and_the_signal_write_dumps_too() {
    let scratch = Scratch::new();
    let mut target = Target::start(
        python(&scratch)
            .arg(script(&scratch))
            .arg("wait")
            .env("HEAPPROFILE", prefix(&scratch))
            .env("HEAPPROFILESIGNAL", "12")
            .env("HEAP_PROFILE_ALLOCATION_INTERVAL", "20971520")
            .env("HEAP_PROFILE_INUSE_INTERVAL", "0"),
    );
    assert_eq!(target.hear(), "ready");
    // 30 MiB hold 20 once, whenever the sums are looked at.
    wait::until("a dump of the interval", || {
        (dumps(&scratch).len() == 1).then_some(())
    });
    target.signal(12);
    wait::until("a dump of the signal", || {
        (dumps(&scratch).len() == 2).then_some(())
    });
    target.say("end");
    target.finish_well();
    let expected = ["x.0001.heap", "x.0002.heap", "x.0003.heap"].map(str::to_owned);
    assert_eq!(dumps(&scratch), BTreeSet::from(expected));
}

#[test]
fn dumps_by_time_have_gperftools_period() {
    let scratch = Scratch::new();
    let mut target = Target::start(
        python(&scratch)
            .arg(script(&scratch))
            .arg("wait")
            .env("HEAPPROFILE", prefix(&scratch))
            .env("HEAP_PROFILE_TIME_INTERVAL", "1"),
    );
    assert_eq!(target.hear(), "ready");
    wait::until("two dumps", || (dumps(&scratch).len() >= 2).then_some(()));
    target.say("end");
    target.finish_well();
}

/// A killed program calls no exit handler.
#[test]
fn a_killed_program_leaves_its_last_dump() {
    let scratch = Scratch::new();
    let mut target = Target::start(
        python(&scratch)
            .arg(script(&scratch))
            .arg("wait")
            .env("HEAPPROFILE", prefix(&scratch)),
    );
    assert_eq!(target.hear(), "ready");
    target.kill();
    wait::until("the dump", || {
        scratch.file("x.0001.heap").exists().then_some(())
    });
    assert!(allocated_bytes(&scratch.file("x.0001.heap")) >= 30 << 20);
    wait::until("the segment's removal", || {
        scratch.segments().is_empty().then_some(())
    });
}

/// Version managers put a script in place of the interpreter, and the script executes the
/// interpreter.
#[test]
fn the_program_that_a_shim_executes_has_the_plain_name() {
    let scratch = Scratch::new();
    let shim = scratch.file("python");
    let text = "#!/bin/bash\nversion=$(echo 3 | tr -d ' ')\nexec /usr/bin/python$version \"$@\"\n";
    write_program(&shim, text.as_bytes());
    let mut command = scratch.preloaded(&shim);
    let outcome = run(command
        .arg(script(&scratch))
        .env("HEAPPROFILE", prefix(&scratch))
        .stdin(Stdio::null()));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(dumps(&scratch), BTreeSet::from(["x.0001.heap".to_owned()]));
    assert!(allocated_bytes(&scratch.file("x.0001.heap")) >= 30 << 20);
    wait::until("the segments' removal", || {
        scratch.segments().is_empty().then_some(())
    });
}

/// pyenv executes eight programs before the interpreter. Each takes the name over from the one
/// before it.
#[test]
fn the_program_after_many_shims_has_the_plain_name() {
    let scratch = Scratch::new();
    let shim = scratch.file("python");
    let text = "#!/bin/bash\nif [ $1 = 0 ]; then shift; exec /usr/bin/python3 \"$@\"; fi\n\
                left=$(($1 - 1)); shift; exec \"$0\" $left \"$@\"\n";
    write_program(&shim, text.as_bytes());
    let mut command = scratch.preloaded(&shim);
    let outcome = run(command
        .arg("12")
        .arg(script(&scratch))
        .env("HEAPPROFILE", prefix(&scratch))
        .stdin(Stdio::null()));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(dumps(&scratch), BTreeSet::from(["x.0001.heap".to_owned()]));
}
