//! Importance sampling by call site: fewer samples where objects die at once, but the same numbers.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;

use mem_tests::code::{self, Sum};
use mem_tests::truth::{assert_exact, estimates, expected};
use mem_tests::{Scratch, Session, Target, run};

const INTERVAL: f64 = 1024.0;

fn check(sums: &BTreeMap<String, Sum>, lines: &[String]) {
    let sites = expected(lines);
    assert_eq!(sites.len(), 4);
    for (name, site) in &sites {
        let sum = &sums[name];
        let found = estimates(sum);
        // Each value has thousands of samples, so a failure by chance has a probability of 1e-9.
        let near = |column: usize, variance: f64| {
            let (found, truth) = (found[column], site.values[column]);
            let off = (found - truth).abs();
            assert!(
                off <= 6.2 * variance.sqrt() + truth * 1e-6,
                "{name}: {found} for {truth}, standard error {}",
                variance.sqrt()
            );
        };
        near(0, sum.detail.alloc_object_variance);
        near(1, sum.detail.alloc_variance);
        near(2, sum.detail.live_object_variance);
        near(3, sum.detail.live_variance);
        let plain = site.values[1] / INTERVAL;
        let share = sum.detail.alloc_samples as f64 / plain;
        match &name[..] {
            "site_foam" => assert!(share < 0.25, "{share} of the samples are taken"),
            _ => assert!(
                (0.8..1.2).contains(&share),
                "{name}: {share} of the samples"
            ),
        }
    }
}

fn compile(scratch: &Scratch) -> PathBuf {
    scratch.compile("tide.cpp", &["-fno-optimize-sibling-calls"])
}

/// Runs a session in the running program. Returns the program's own account, the thinning in the
/// dump, and the dump's sums.
fn session(interval: &str) -> (Vec<String>, Option<u64>, BTreeMap<String, Sum>) {
    let scratch = Scratch::new();
    let program = compile(&scratch);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let prefix = scratch.file("prof_");
    let pid = target.pid().to_string();
    let args = ["-c", interval, "--thin", "-p", &pid, "-o"];
    let session = Session::start(scratch.profiler().args(args).arg(prefix));
    scratch.wait_for_sampling(target.pid());
    target.say("go");
    let lines = target.hear_until("done");
    let profile = session.stop().profile();
    let sums = code::sums(&profile, &[&program], "site_");
    (lines, profile.facts.thinning, sums)
}

#[test]
fn only_what_dies_at_once_is_thinned() {
    let (lines, thinning, sums) = session("1024");
    assert_eq!(thinning, Some(8));
    check(&sums, &lines);
}

#[test]
fn a_program_that_run_starts_is_thinned_from_its_first_allocation() {
    let scratch = Scratch::new();
    let program = compile(&scratch);
    let mut command = scratch.profiler();
    command.args(["run", "-c", "1024", "--thin", "-o", "prof_"]);
    let input = scratch.file("input");
    std::fs::write(&input, "go\n").expect("a file");
    command.stdin(Stdio::from(std::fs::File::open(input).expect("a file")));
    let outcome = run(command.arg("--").arg(&program));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let mut words = outcome.stderr.split_whitespace();
    let dump = words.find(|word| word.ends_with(".heap")).expect("a dump");
    let profile = profile::open(&scratch.files().join(dump)).expect("a dump");
    assert_eq!(profile.facts.thinning, Some(8));
    let lines: Vec<String> = outcome.stdout.lines().map(str::to_owned).collect();
    check(&code::sums(&profile, &[&program], "site_"), &lines);
}

#[test]
fn every_allocation_is_every_allocation_however_thin() {
    let (lines, thinning, sums) = session("1");
    assert_eq!(thinning, None);
    assert_exact(&expected(&lines), &sums);
}
