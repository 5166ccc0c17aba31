//! `push` to receivers that fail in every way.

use std::fs;

use mem_tests::receiver::{Receiver, dump, push, push_dump};
use mem_tests::{Scratch, run};

#[test]
fn temporary_failures_are_retried_and_refusals_reported() {
    let scratch = Scratch::new();
    let (_, dump, profile) = dump(&scratch);
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
        let last = &received.last().expect("the last one")["totals"];
        let live = profile.total(profile.type_index("inuse_space").expect("a column"));
        assert_eq!(last["inuse_space"].as_i64(), Some(live));
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
    push_dump(&scratch, "otlp", "http://127.0.0.1:1", &dump).refused(1, &["does not accept"]);
    push_dump(&scratch, "otlp", "https://127.0.0.1:1", &dump).refused(1, &["TLS is not built in"]);
    push_dump(&scratch, "otlp", "127.0.0.1:1", &dump).refused(1, &["not the URL"]);
}

#[test]
fn endless_work_is_given_up_in_time() {
    let scratch = Scratch::new();
    let (_, dump, _) = dump(&scratch);
    for answer in ["hang", "lie", "drip"] {
        let place = Scratch::new();
        let receiver = Receiver::start(&place, "parca", &[answer]);
        let mut command = push(&scratch, "parca", &receiver.url);
        let begin = std::time::Instant::now();
        let outcome = run(command.args(["--timeout", "1s", "--dumps"]).arg(&dump));
        assert_eq!(outcome.code, Some(0), "{answer}: {outcome:?}");
        assert_eq!(receiver.received().len(), 2, "{answer}");
        assert!(begin.elapsed().as_secs() < 30, "{answer}");
        assert!(outcome.stderr.contains("timeout"), "{answer}: {outcome:?}");
    }
    // However much it says: it has said 200 before.
    let place = Scratch::new();
    let receiver = Receiver::start(&place, "parca", &["flood"]);
    let outcome = push_dump(&scratch, "parca", &receiver.url, &dump);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(receiver.received().len(), 1);
}

#[test]
fn a_server_of_grpc_alone_is_known_by_its_answer() {
    let scratch = Scratch::new();
    let (_, dump, _) = dump(&scratch);
    let receiver = Receiver::of_grpc(&scratch);
    let outcome = push_dump(&scratch, "otlp", &receiver.url, &dump);
    outcome.refused(1, &["gRPC only", "4318"]);
}

#[test]
fn a_full_spool_drops_the_oldest_and_says_so() {
    let scratch = Scratch::new();
    let (_, dump, _) = dump(&scratch);
    let spool = scratch.file("spool");
    fs::create_dir(&spool).expect("a directory of ours");
    let size = fs::metadata(&dump).expect("a dump").len();
    let fit = (1 << 20) / size;
    for number in 0..fit + 3 {
        let file = spool.join(format!("push_old.{number:05}.heap"));
        fs::copy(&dump, file).expect("a file of ours");
    }
    // The session finds no process and ends, but waiting dumps are sent.
    let receiver = Receiver::start(&scratch, "parca", &[]);
    let mut command = push(&scratch, "parca", &receiver.url);
    command.args(["-p", "999999999", "--spool-size", "1", "--spool"]);
    let outcome = run(command.arg(&spool));
    outcome.refused(
        1,
        &[
            "the spool is full",
            "push_old.00000.heap",
            "push_old.00002.heap",
        ],
    );
    let said = format!("{fit} profiles sent");
    assert!(outcome.stderr.contains(&said), "{said}: {outcome:?}");
    assert!(
        outcome.stderr.contains("0 waiting, 3 dropped"),
        "{outcome:?}"
    );
    assert_eq!(receiver.received().len() as u64, fit);
    assert_eq!(fs::read_dir(&spool).expect("a directory").count(), 0);
}
