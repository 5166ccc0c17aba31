//! `push`, to receivers that decode what they get with others' code, insist on what real ones do, and
//! fail in every way. PyPI must be in reach the first time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use heap_format::Profile;
use mem_tests::session::tool;
use mem_tests::{Outcome, Scratch, Session, Target, artifacts, run, wait};
use serde_json::Value;

/// A Python with OpenTelemetry's messages, made once for a build directory.
fn python() -> PathBuf {
    let exe = std::env::current_exe().expect("a running test has a path");
    let target = exe.ancestors().nth(3).expect("cargo's directories");
    let made = target.join("otlp-1.45.2");
    if !made.join("bin/python").exists() {
        let half = target.join(format!(
            "otlp-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        tool(
            "python3",
            ["-m".as_ref(), "venv".as_ref(), half.as_os_str()],
        );
        let python = half.join("bin/python");
        let python = python.to_str().expect("a path of ours");
        tool(
            python,
            ["-m", "pip", "-q", "install", "opentelemetry-proto==1.45.2"],
        );
        // Another test may have been faster.
        let _ = fs::rename(&half, &made);
    }
    made.join("bin/python")
}

/// A receiver with its log.
struct Receiver {
    server: Target,
    url: String,
    log: PathBuf,
}

impl Receiver {
    fn start(scratch: &Scratch, kind: &str, answers: &[&str]) -> Self {
        let log = scratch.file("received");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("push/receiver");
        let mut command = Command::new(python());
        command.arg(script).arg(kind).arg(&log).args(answers);
        let mut server = Target::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
        let url = format!("http://127.0.0.1:{}", server.hear());
        Self { server, url, log }
    }

    /// What came, none of which broke a rule.
    fn received(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"));
        let lines: Vec<Value> = lines.collect();
        for line in &lines {
            assert!(line["error"].is_null(), "{line}");
        }
        lines
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.server.kill();
    }
}

/// A dump of a program with many sites.
fn dump(scratch: &Scratch) -> (PathBuf, Profile) {
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(scratch, target.pid(), "1024");
    target.say("go 2000 4 1024");
    target.hear_until("done");
    let outcome = session.stop();
    target.finish_well();
    (outcome.dump(), outcome.profile())
}

fn push(scratch: &Scratch, to: &str, url: &str) -> Command {
    let mut command = scratch.profiler();
    command.args(["push", "--to", to, url]);
    command
}

fn push_dump(scratch: &Scratch, to: &str, url: &str, dump: &Path) -> Outcome {
    run(push(scratch, to, url).arg("--dumps").arg(dump))
}

const KINDS: [&str; 4] = [
    "alloc_objects",
    "alloc_space",
    "inuse_objects",
    "inuse_space",
];

fn total(profile: &Profile, kind: &str) -> i64 {
    profile.total(profile.type_index(kind).expect("a column"))
}

fn assert_totals(received: &Value, profile: &Profile) {
    for kind in KINDS {
        assert_eq!(
            received["totals"][kind].as_i64(),
            Some(total(profile, kind)),
            "{kind}: {received}"
        );
    }
}

#[test]
fn each_receiver_decodes_the_totals_of_the_dump() {
    let scratch = Scratch::new();
    let (dump, profile) = dump(&scratch);
    for to in ["pyroscope", "parca", "otlp"] {
        let place = Scratch::new();
        let receiver = Receiver::start(&place, to, &[]);
        let outcome = push_dump(&scratch, to, &receiver.url, &dump);
        assert_eq!(outcome.code, Some(0), "{to}: {outcome:?}");
        let received = receiver.received();
        assert_eq!(received.len(), 1);
        assert_totals(&received[0], &profile);
        let names = received[0]["names"].to_string();
        assert!(names.contains("site_"), "{names}");
        assert!(
            received[0]["build_ids"]
                .as_array()
                .is_some_and(|ids| !ids.is_empty())
        );
        assert!(
            received[0]["size"].as_u64() < Some(60 << 10),
            "{}",
            received[0]["size"]
        );
    }
}

#[test]
fn without_symbols_addresses_and_build_ids_are_sent() {
    let scratch = Scratch::new();
    let (dump, profile) = dump(&scratch);
    let receiver = Receiver::start(&scratch, "parca", &[]);
    let mut command = push(&scratch, "parca", &receiver.url);
    command.args(["--label", "service_name=a b", "--no-symbols", "--dumps"]);
    assert_eq!(run(command.arg(dump)).code, Some(0));
    let received = receiver.received();
    assert_totals(&received[0], &profile);
    assert_eq!(received[0]["labels"]["service_name"], "a b");
    assert!(!received[0]["names"].to_string().contains("site_"));
    assert!(
        received[0]["build_ids"]
            .as_array()
            .is_some_and(|ids| !ids.is_empty())
    );
}

#[test]
fn a_receiver_that_wants_less_gets_the_same_totals_in_fewer_samples() {
    let scratch = Scratch::new();
    let (dump, profile) = dump(&scratch);
    let receiver = Receiver::start(&scratch, "otlp", &["413"; 8]);
    let outcome = push_dump(&scratch, "otlp", &receiver.url, &dump);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let received = receiver.received();
    received
        .iter()
        .for_each(|each| assert_totals(each, &profile));
    let samples = |each: &Value| each["samples"].as_u64().expect("a number");
    let last = received.last().expect("the last one");
    assert_eq!(last["answer"], "200");
    assert!(samples(last) <= 16_000 >> 8, "{last}");
}

#[test]
fn what_fails_for_a_while_is_sent_again_and_what_is_refused_is_said() {
    let scratch = Scratch::new();
    let (dump, profile) = dump(&scratch);
    for answers in [
        &["429:Retry-After: 1", "503"][..],
        &["close"],
        &["cut", "500"],
    ] {
        let place = Scratch::new();
        let receiver = Receiver::start(&place, "pyroscope", answers);
        let outcome = push_dump(&scratch, "pyroscope", &receiver.url, &dump);
        assert_eq!(outcome.code, Some(0), "{answers:?}: {outcome:?}");
        let received = receiver.received();
        assert_eq!(received.len(), answers.len() + 1, "{answers:?}");
        assert_totals(received.last().expect("the last one"), &profile);
    }
    for (answer, said) in [
        ("400", "400"),
        ("404", "404"),
        ("307:Location: http://127.0.0.1:1/", "not followed"),
        ("skew", "clock"),
    ] {
        let place = Scratch::new();
        let receiver = Receiver::start(&place, "pyroscope", &[answer]);
        let outcome = push_dump(&scratch, "pyroscope", &receiver.url, &dump);
        outcome.refused(1, &[said]);
        assert_eq!(receiver.received().len(), 1);
    }
    push_dump(&scratch, "otlp", "http://127.0.0.1:1", &dump).refused(1, &["does not take"]);
    push_dump(&scratch, "otlp", "https://127.0.0.1:1", &dump).refused(1, &["TLS is not built in"]);
    push_dump(&scratch, "otlp", "127.0.0.1:1", &dump).refused(1, &["no URL"]);
}

#[test]
fn a_session_is_sent_with_increments_that_add_up_although_the_receiver_was_away() {
    let scratch = Scratch::new();
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let receiver = Receiver::start(&scratch, "pyroscope", &["503", "200", "429:Retry-After: 1"]);
    let mut command = push(&scratch, "pyroscope", &receiver.url);
    command.args(["-c", "1", "--every", "1s", "-p", &target.pid().to_string()]);
    let session = Session::start(&mut command);
    scratch.wait_for_sampling(target.pid());
    let taken = |receiver: &Receiver| {
        let received = receiver.received();
        received
            .iter()
            .filter(|each| each["answer"] == "200")
            .count()
    };
    for rounds in 1..=3 {
        target.say("go 200 4 1");
        target.hear_until("done");
        wait::until("a profile to be taken", || {
            (taken(&receiver) >= rounds).then_some(())
        });
    }
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stderr.contains("0 waiting, 0 dropped"),
        "{outcome:?}"
    );
    // At -c 1 its own counts are exact.
    target.say("go 0 1 1");
    let own = target.hear_until("done");
    let column = |n: usize| -> i64 {
        let of_line = |line: &String| {
            line.split_whitespace()
                .nth(n)
                .and_then(|t| t.parse::<i64>().ok())
        };
        own.iter()
            .filter(|line| line.starts_with("site "))
            .filter_map(of_line)
            .sum()
    };
    let received = receiver.received();
    let taken = received.iter().filter(|each| each["answer"] == "200");
    let sum = |kind: &str| {
        taken
            .clone()
            .map(|each| each["totals"][kind].as_i64().expect("a number"))
            .sum::<i64>()
    };
    // Its threads and its library allocate some more.
    let (theirs, ours) = (column(3), sum("alloc_space"));
    assert!(
        theirs > 0 && ours >= theirs && ours < theirs + theirs / 10 + 200_000,
        "{ours}, {theirs}"
    );
    target.finish_well();
    let _ = artifacts::parser();
}
