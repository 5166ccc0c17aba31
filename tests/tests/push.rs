//! `push` to receivers that decode the requests with other authors' code and are as strict as real
//! receivers.

use mem_tests::receiver::{Receiver, dump, push, push_dump};
use mem_tests::{Scratch, Session, Target, artifacts, run, wait};
use profile::Profile;
use serde_json::Value;

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
    let (_, dump, profile) = dump(&scratch);
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
    let (_, dump, profile) = dump(&scratch);
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
    let (_, dump, profile) = dump(&scratch);
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
    // Removed files are not mentioned.
    assert!(!outcome.stderr.contains(".heap"), "{outcome:?}");
    // At -c 1, the program's own counts are exact.
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

#[test]
fn otlp_is_compressed_on_request() {
    let scratch = Scratch::new();
    let (_, dump, profile) = dump(&scratch);
    let receiver = Receiver::start(&scratch, "otlp", &[]);
    for option in [&[][..], &["--gzip"]] {
        let mut command = push(&scratch, "otlp", &receiver.url);
        let outcome = run(command.args(option).arg("--dumps").arg(&dump));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
    let received = receiver.received();
    received
        .iter()
        .for_each(|each| assert_totals(each, &profile));
    let [plain, packed] = [&received[0], &received[1]];
    assert!(plain["encoding"].is_null() && packed["encoding"] == "gzip");
    let size = |of: &Value| of["size"].as_u64().expect("a number");
    assert!(size(packed) * 4 < size(plain) * 3, "{packed}, {plain}");
    let mut command = push(&scratch, "parca", &receiver.url);
    run(command.arg("--gzip").arg("--dumps").arg(&dump)).refused(1, &["--gzip is for otlp"]);
}

#[test]
fn a_session_sends_what_it_writes_and_keeps_it() {
    let scratch = Scratch::new();
    let program = scratch.compile("truth.cpp", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let pid = target.pid().to_string();
    let receiver = Receiver::start(&scratch, "parca", &["200", "503"]);
    let mut session = scratch.profiler();
    session.args(["-c", "1024", "--every", "1s", "-p", &pid, "-o"]);
    session.arg(scratch.file("kept_"));
    session.args(["--push", &receiver.url, "--to", "parca"]);
    let session = Session::start(session.args(["--label", "service_name=shop"]));
    scratch.wait_for_sampling(target.pid());
    target.say("go 2000 4 1024");
    target.hear_until("done");
    // While it runs, not at its end.
    wait::until("a dump to be sent", || {
        (!receiver.received().is_empty()).then_some(())
    });
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let dumps = outcome.dumps();
    let received = receiver.received();
    let taken = received.iter().filter(|each| each["answer"] == "200");
    let taken: Vec<&Value> = taken.collect();
    assert_eq!(taken.len(), dumps.len(), "{outcome:?}");
    for (each, dump) in taken.iter().zip(&dumps) {
        assert_eq!(each["labels"]["service_name"], "shop");
        assert_totals(each, &profile::open(dump).expect("a dump"));
    }

    // So does run; its program's exit code stays.
    let mut command = scratch.profiler();
    command.args(["run", "--push", &receiver.url, "--to", "parca", "-o"]);
    command.arg(scratch.file("run_")).arg("--").arg(&program);
    let before = receiver.received().len();
    let outcome = run(command.stdin(std::process::Stdio::null()));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(receiver.received().len(), before + 1, "{outcome:?}");

    // Impossible requests are refused before sampling. If the receiver is absent, no dump is lost.
    let session = |url: &str, options: &[&str]| {
        let mut command = scratch.profiler();
        command
            .args(["-s", "1", "-q", "-p", &pid, "-o"])
            .arg(scratch.file("away_"));
        run(command.args(["--push", url]).args(options))
    };
    let refused = session("https://127.0.0.1:1", &["--to", "otlp"]);
    refused.refused(1, &["TLS is not built in", "nothing is sampled"]);
    session("http://127.0.0.1:1", &[]).refused(2, &["--to"]);
    let kept = |scratch: &Scratch| {
        let files = std::fs::read_dir(scratch.files()).expect("a directory");
        let names = files
            .flatten()
            .map(|f| f.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("away_")).count()
    };
    assert_eq!(kept(&scratch), 0);
    let url = receiver.url.clone();
    drop(receiver);
    let away = session(&url, &["--to", "parca"]);
    away.refused(1, &["1 of 1 profiles were not accepted", "--dumps FILES"]);
    assert!(away.stdout.is_empty(), "{away:?}");
    assert_eq!(kept(&scratch), 1);
    target.finish_well();
}
