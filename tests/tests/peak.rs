//! The high-water mark is that of the program, however short it was: to the byte at `-c 1`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::code::{self, Code};
use mem_tests::{Outcome, Scratch, Target, run};
use profile::Profile;

const KEPT: f64 = (10 << 20) as f64;
const SPIKE: f64 = 700.0 * (100 << 10) as f64;
/// What a program's libraries hold: buffers of threads, for example.
const OTHERS: f64 = 64e3;

/// Returns all profiles that a command has written, in order of their names.
fn profiles(scratch: &Scratch) -> Vec<Profile> {
    let entries = fs::read_dir(scratch.files()).expect("the directory");
    let mut dumps: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    dumps.retain(|path| path.extension().is_some_and(|e| e == "heap"));
    dumps.sort();
    let read = |dump: &PathBuf| profile::open(dump).expect("a dump");
    dumps.iter().map(read).collect()
}

fn is_peak(profile: &Profile) -> bool {
    let trigger = profile.facts.trigger.as_deref();
    let is_peak = trigger.is_some_and(|text| text.starts_with("high-water mark, "));
    let length = profile.facts.duration_ns.filter(|_| is_peak);
    assert_eq!(profile.facts.peak_ns, length, "{trigger:?}");
    is_peak
}

/// Returns the profile of the high-water mark, and the other one.
fn both(scratch: &Scratch, outcome: &Outcome) -> (Profile, Profile) {
    let (peaks, others): (Vec<_>, Vec<_>) = profiles(scratch).into_iter().partition(is_peak);
    let counts = (peaks.len(), others.len());
    assert_eq!(counts, (1, 1), "{outcome:?}");
    let both = peaks.into_iter().zip(others).next();
    both.expect("one of each")
}

fn live(profile: &Profile, program: &Path, site: &str) -> f64 {
    let sums = code::sums(profile, &[program], "site_");
    sums.get(site).map_or(0.0, |sum| sum.detail.live_bytes())
}

fn total(profile: &Profile) -> f64 {
    profile.details.iter().map(|d| d.live_bytes()).sum()
}

/// Returns the program, run to its end, and the profiles of its high-water mark and of its end.
fn peak_of(how: &str, interval: &str) -> (Scratch, PathBuf, Profile, Profile) {
    let scratch = Scratch::new();
    let program = scratch.compile("peaks.c", &["-pthread"]);
    let options = ["run", "-c", interval, "--peak", "-o", "p_", "--"];
    let mut command = scratch.profiler();
    let outcome = run(command.args(options).arg(&program).arg(how));
    let (peak, end) = both(&scratch, &outcome);
    (scratch, program, peak, end)
}

fn check_exact(how: &str) -> (Profile, Profile) {
    let (_scratch, program, peak, end) = peak_of(how, "1");
    assert_eq!(live(&peak, &program, "site_kept"), KEPT, "{how}");
    assert_eq!(live(&peak, &program, "site_spike"), SPIKE, "{how}");
    let rest = total(&peak) - KEPT - SPIKE;
    assert!((0.0..OTHERS).contains(&rest), "{how}: {rest}");
    check_moment(&peak, &end, &program);
    (peak, end)
}

/// Checks that the last dump also has the memory at the peak, among its moments.
fn check_moment(peak: &Profile, end: &Profile, program: &Path) {
    let highest = end.moments.iter().max_by_key(|m| m.live).expect("moments");
    assert_eq!(highest.live as f64, total(peak));
    let binaries = [Code::of(program)];
    let stacks = highest.stacks.as_ref().expect("stacks");
    let of_spike = stacks.iter().filter(|held| {
        let stack = end.stacks.get(held.stack as usize);
        code::names(end, stack, &binaries).contains(&"site_spike")
    });
    assert_eq!(of_spike.map(|held| held.bytes).sum::<u64>() as f64, SPIKE);
    assert!(end.moments.is_sorted_by_key(|m| m.at_ns));
    assert!(end.moments.is_sorted_by_key(|m| m.allocated));
}

#[test]
fn a_spike_of_a_moment_is_seen_exactly() {
    let (peak, end) = check_exact("spike");
    assert!(total(&end) < OTHERS);
    let [peak, end] = [&peak.facts, &end.facts].map(|facts| facts.duration_ns);
    assert!(peak.expect("a duration") <= end.expect("a duration"));
}

#[test]
fn spikes_of_other_threads_are_seen_exactly() {
    check_exact("thread");
    check_exact("together");
}

#[test]
fn the_highest_tooth_is_found() {
    let (_scratch, program, peak, _) = peak_of("sawtooth", "1");
    let step = 1.0 + 1.0 / 1024.0;
    let (kept, spike) = (
        live(&peak, &program, "site_kept"),
        live(&peak, &program, "site_spike"),
    );
    assert_eq!(kept, KEPT);
    assert!(
        (kept + spike) * step >= KEPT + SPIKE && spike <= SPIKE,
        "{spike}"
    );
}

#[test]
fn an_object_that_moves_counts_once() {
    let (_scratch, program, peak, _) = peak_of("moved", "1");
    assert_eq!(live(&peak, &program, "site_moved"), (64 << 20) as f64);
    assert_eq!(
        live(&peak, &program, "site_spike"),
        (8 * (100 << 10)) as f64
    );
}

#[test]
fn a_killed_process_leaves_its_peak() {
    let (peak, end) = check_exact("killed");
    for profile in [peak, end] {
        let ended = profile.facts.ended.as_deref();
        assert_eq!(ended, Some("target died: SIGKILL"));
    }
}

#[test]
fn a_child_has_a_peak_of_its_own() {
    let scratch = Scratch::new();
    let program = scratch.compile("peaks.c", &["-pthread"]);
    let options = ["run", "-c", "1", "--peak", "-o", "p_", "--"];
    let outcome = run(scratch.profiler().args(options).arg(&program).arg("child"));
    let mut peaks = profiles(&scratch);
    peaks.retain(is_peak);
    let mut spikes: Vec<f64> = peaks
        .iter()
        .map(|p| live(p, &program, "site_spike"))
        .collect();
    spikes.sort_by(f64::total_cmp);
    assert_eq!(spikes, [0.0, SPIKE], "{outcome:?}");
    assert!(peaks.iter().all(|p| live(p, &program, "site_kept") == KEPT));
}

/// The estimate of the spike is as accurate as that of live memory.
#[test]
fn an_estimated_peak_is_within_its_error() {
    let (_scratch, program, peak, _) = peak_of("spike", "1048576");
    let sums = code::sums(&peak, &[&program], "site_");
    let spike = &sums["site_spike"].detail;
    let error = spike.live_variance.sqrt();
    assert!(error > 0.0 && error < SPIKE / 4.0, "{error}");
    // Six standard errors: by chance, once in a billion.
    assert!((spike.live_bytes() - SPIKE).abs() < 6.2 * error);
}

/// A later reader finds the peak of a session even if it was not requested at the start.
#[test]
fn a_peak_is_kept_unasked_in_a_session_without_a_controller() {
    let scratch = Scratch::new();
    let program = scratch.compile("peaks.c", &["-pthread"]);
    let mut command = scratch.preloaded(&program);
    let mut target = Target::start(command.arg("killed").env("MEM_PROFILER_START", "1"));
    target.ended();
    let outcome = run(scratch.profiler().args(["recover", "--peak", "-o", "r_"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let first = scratch.files().join(&outcome.dumps()[0]);
    let shown = run(scratch.parser().arg(first)).stdout;
    assert!(
        shown.contains("\nPeak: the live heap's high-water mark, "),
        "{shown}"
    );
    let (peak, _) = both(&scratch, &outcome);
    assert_eq!(live(&peak, &program, "site_spike"), SPIKE);
    assert_eq!(live(&peak, &program, "site_kept"), KEPT);
}

/// Bytes that heaptrack adds to a program without C++: its library links libstdc++, which takes
/// them for exceptions, and frees them never.
const OF_HEAPTRACK: f64 = 72_704.0;

/// Returns heaptrack's word for the highest live heap of a program, in bytes.
fn heaptrack(scratch: &Scratch, program: &[&str]) -> f64 {
    let log = scratch.file("heaptrack");
    let mut record = Command::new("heaptrack");
    record.arg("-o").arg(&log).args(program);
    let recorded = record
        .env("PYTHONMALLOC", "malloc")
        .env("PYTHONHASHSEED", "0");
    let recorded = recorded.current_dir(scratch.files()).output();
    let recorded = recorded.expect("heaptrack, which tests/run installs");
    assert!(recorded.status.success(), "{recorded:?}");
    let kept = fs::read_dir(scratch.files())
        .expect("the directory")
        .flatten();
    let mut kept = kept.map(|entry| entry.path());
    let log = kept.find(|path| path.to_string_lossy().contains("/heaptrack."));
    let mut print = Command::new("heaptrack_print");
    let print = print
        .args(["-p0", "-a0", "-T0", "-l0", "-f"])
        .arg(log.expect("a log"));
    let text = print.output().expect("heaptrack_print").stdout;
    let text = String::from_utf8_lossy(&text).into_owned();
    let line = text
        .lines()
        .find_map(|l| l.strip_prefix("peak heap memory consumption: "));
    let value = line.unwrap_or_else(|| panic!("no peak in {text}"));
    let (number, unit) = value.split_at(value.len() - 1);
    let factor = match unit {
        "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "B" => 1.0,
        _ => panic!("{value}"),
    };
    number.parse::<f64>().expect("a number") * factor - OF_HEAPTRACK
}

/// Peaks of real programs differ by at most 1 % from those that heaptrack measures.
#[test]
fn peaks_are_those_of_heaptrack() {
    // The script is one line, because heaptrack's log has one line per event and does not escape
    // the command line.
    let script = "d = [str(i) * 5 for i in range(100000)]; del d; x = [0] * 100000";
    let sql = "create table t(a, b); with recursive n(i) as (select 1 union all select i + 1 from n \
               where i < 60000) insert into t select i, hex(i * 7919) from n; \
               select count(*) from (select b, count(*) from t group by b); drop table t;";
    for program in [
        &["/usr/bin/python3", "-c", script][..],
        &["sqlite3", ":memory:", sql][..],
    ] {
        let scratch = Scratch::new();
        let expected = heaptrack(&scratch, program);
        let mut command = scratch.profiler();
        command
            .args(["run", "-c", "1", "--peak", "-o", "p_", "--"])
            .args(program)
            .env("PYTHONMALLOC", "malloc")
            .env("PYTHONHASHSEED", "0");
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let (peak, _) = both(&scratch, &outcome);
        let measured = total(&peak);
        assert!(
            (measured / expected - 1.0).abs() < 0.01,
            "{program:?}: {measured}, {expected}"
        );
    }
}
