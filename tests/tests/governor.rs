//! `--max-overhead`: the interval follows the load, and the sums stay unbiased.

use std::fs::File;
use std::os::unix::fs::FileExt;

use mem_tests::{Scratch, Session, Steps, Target, run, sums, wait};
use profile::{IntervalPeriod, Profile};
use shm_protocol::Geometry;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::segment::IntervalPeriod as Logged;
use shm_protocol::snapshot::BankSummary;

/// Returns the interval history of the first session of a process so far.
fn log(scratch: &Scratch, pid: u32) -> Vec<Logged> {
    let mut bytes = vec![0; BANK_HEADER_BYTES];
    let segment = File::open(scratch.segment(pid).expect("a segment")).expect("readable");
    let size = segment.metadata().expect("its size").len();
    let geometry = Geometry::of_segment(size as usize);
    let at = geometry.bank_offset(1) as u64;
    segment.read_exact_at(&mut bytes, at).expect("a bank");
    let bank = BankSummary::new(&bytes, geometry).expect("a bank");
    bank.intervals().collect()
}

/// Waits until the newest interval has been measured to be near the target.
fn wait_for_share(scratch: &Scratch, pid: u32, target: f64) -> Logged {
    wait::until("the share to come near its target", || {
        let last = *log(scratch, pid).last()?;
        let share = f64::from(last.overhead?) / 1e6;
        (0.6..1.4).contains(&(share / target)).then_some(last)
    })
}

fn start(scratch: &Scratch) -> Steps {
    let program = scratch.compile("strain.c", &["-lm"]);
    let mut command = scratch.preloaded(&program);
    Steps::run(program, &mut command)
}

/// Checks the sums of each site against its totals: within seven of the standard errors
/// that the dump claims, which are left by chance once in 1e10 runs.
fn assert_unbiased(program: &mut Steps, profile: &Profile) {
    let expected = program.expected();
    let found = sums(profile, &[&program.program], "site_");
    for (name, site) in &expected {
        let d = &found[name].detail;
        let [objects, bytes, live_objects, live_bytes] = site.values;
        let allowed = 7.0 * d.alloc_variance.sqrt();
        assert!(
            allowed < bytes * 0.28,
            "{name}: {allowed} of {bytes} tells little"
        );
        let off = (d.alloc_bytes - bytes).abs();
        assert!(
            off <= allowed,
            "{name}: {} of {bytes} bytes, allowed {allowed}",
            d.alloc_bytes
        );
        let off = (d.alloc_objects / objects - d.alloc_bytes / bytes).abs();
        assert!(
            off < 0.2,
            "{name}: {} of {objects} objects",
            d.alloc_objects
        );
        let allowed = 7.0 * d.live_variance.sqrt();
        let off = (d.live_bytes() - live_bytes).abs();
        assert!(
            off <= allowed,
            "{name}: {} of {live_bytes} live, allowed {allowed}",
            d.live_bytes()
        );
        if live_objects == 0.0 {
            assert_eq!((d.live_samples(), d.live_bytes()), (0, 0.0), "{name}");
        }
    }
    assert!(expected.len() >= 2);
}

/// Returns the same dump as a reader sees it that knows nothing of our own lines.
fn as_plain_text(scratch: &Scratch, dump: &std::path::Path) -> Profile {
    let text = std::fs::read(dump).expect("the dump");
    let plain: Vec<&[u8]> = text
        .split_inclusive(|byte| *byte == b'\n')
        .filter(|line| !line.starts_with(b"#"))
        .collect();
    let path = scratch.file("plain.heap");
    std::fs::write(&path, plain.concat()).expect("writable");
    profile::open(&path).expect("a dump of gperftools' kind")
}

fn assert_readers_agree(scratch: &Scratch, dump: &std::path::Path, profile: &Profile) {
    let plain = as_plain_text(scratch, dump);
    for column in ["alloc_space", "inuse_space", "alloc_objects"] {
        let of = |p: &Profile| p.total(p.type_index(column).expect("a heap profile")) as f64;
        let (ours, theirs) = (of(profile), of(&plain));
        let off = (ours - theirs).abs();
        assert!(
            off <= ours * 0.01 + 100.0,
            "{column}: {ours}, read as {theirs}"
        );
    }
}

/// Returns a session whose cost is limited, once it samples.
fn limited(scratch: &Scratch, pid: u32, interval: &str, limit: &str) -> Session {
    let mut command = scratch.profiler();
    command.args(["-c", interval, "--max-overhead", limit, "-o"]);
    let session = Session::start(command.arg(scratch.file("prof_")));
    scratch.wait_for_sampling(pid);
    session
}

#[test]
fn the_interval_follows_the_load_and_the_sums_stay_unbiased() {
    const TARGET: f64 = 0.04;
    let scratch = Scratch::new();
    let mut program = start(&scratch);
    let pid = program.pid();
    program.step("work 200");
    let session = limited(&scratch, pid, "256", "4%");
    program.step("load");
    let busy = wait_for_share(&scratch, pid, TARGET);
    assert!(busy.interval > 256, "{busy:?}");
    program.step("work 20000");
    let light = wait::until("a smaller interval", || {
        let last = *log(&scratch, pid).last()?;
        (last.interval * 4 < busy.interval).then_some(last)
    });
    program.step("work 200");
    wait::until("a larger interval again", || {
        let last = *log(&scratch, pid).last()?;
        (last.interval > light.interval * 2).then_some(last)
    });
    program.step("rest");
    let outcome = session.stop();
    let (dump, profile) = (outcome.dump(), outcome.profile());
    assert_unbiased(&mut program, &profile);
    assert_readers_agree(&scratch, &dump, &profile);
    let history = &profile.facts.intervals;
    assert!(history.len() >= 4, "{history:?}");
    assert!(history.is_sorted_by_key(|p: &IntervalPeriod| p.from_unix_ns));
    assert_eq!(history[0].interval, 256);
    // A period ends with a sample, whose cost was measured.
    let (_, ended) = history.split_last().expect("periods");
    let is_known = |p: &IntervalPeriod| p.overhead.is_some_and(|ppm| ppm > 0);
    assert!(ended.iter().all(is_known), "{history:?}");
    assert_eq!(Some(history[0].from_unix_ns), profile.facts.start_unix_ns);
    let least = history.iter().map(|p| p.interval).min();
    assert_eq!(Some(profile.period as u64), least);
    program.target.finish_well();
}

#[test]
fn what_was_sampled_at_any_interval_is_freed_to_nothing() {
    let scratch = Scratch::new();
    let mut program = start(&scratch);
    let pid = program.pid();
    program.step("work 200");
    let session = limited(&scratch, pid, "64", "20%");
    program.step("load");
    wait::until("three changes", || {
        (log(&scratch, pid).len() > 3).then_some(())
    });
    program.step("rest");
    program.step("clear");
    let profile = session.stop().profile();
    assert_unbiased(&mut program, &profile);
    program.target.finish_well();
}

#[test]
fn a_program_that_is_run_is_held_as_well_and_a_snapshot_knows_its_intervals() {
    let scratch = Scratch::new();
    let program = scratch.compile("strain.c", &["-lm"]);
    let arguments = [
        "run",
        "-c",
        "1",
        "--max-overhead",
        "1%",
        "-o",
        "prof_",
        "--",
    ];
    let mut command = scratch.profiler();
    command
        .args(arguments)
        .arg(&program)
        .stdin(std::process::Stdio::piped());
    command.env("MEM_AGENT_LIB", mem_tests::artifacts::agent());
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null());
    let mut program = Steps::run(program, &mut command);
    program.step("work 200");
    program.step("load");
    // Root's runs keep their segments in a directory inside their own.
    let directory = wait::until("the run's directory", || {
        let outer = scratch.segments().into_iter().next()?;
        let mut inside = std::fs::read_dir(&outer).ok()?.flatten();
        let first = inside.next()?.path();
        Some(if first.is_dir() { first } else { outer })
    });
    let snapshot = wait::until("a changed interval", || {
        let mut dump = scratch.profiler();
        let outcome = run(dump
            .args(["dump", "-o"])
            .arg(scratch.file("snap_"))
            .env("MEM_PROFILER_DIR", &directory));
        let profile = (outcome.code == Some(0)).then(|| outcome.profile())?;
        (profile.facts.intervals.len() > 1).then_some(profile)
    });
    let history = &snapshot.facts.intervals;
    assert_eq!((history[0].interval, snapshot.period), (64, 64));
    assert!(history[1].interval > 64, "{history:?}");
    program.step("rest");
    program.target.finish_well();
}

#[test]
fn impossible_targets_are_explained() {
    let scratch = Scratch::new();
    for (target, said) in [
        ("0", "above zero"),
        ("0%", "above zero"),
        ("0.0001%", "cannot be measured"),
        ("100%", "at most 50%"),
        ("250", "at most 50%"),
        ("x", "expected a percentage"),
    ] {
        let mut command = scratch.profiler();
        run(command.args(["--max-overhead", target])).refused(2, &[said]);
    }
}

#[test]
fn a_target_that_cannot_be_held_leaves_the_program_running() {
    let scratch = Scratch::new();
    let mut program = start(&scratch);
    let pid = program.pid();
    let session = limited(&scratch, pid, "64", "0.01%");
    program.step("load");
    wait::until("a much wider interval", || {
        let last = *log(&scratch, pid).last()?;
        (last.interval > 64 << 10).then_some(())
    });
    program.step("rest");
    let profile = session.stop().profile();
    assert_eq!(profile.period, 64);
    program.step("pairs 1000 1");
    program.target.finish_well();
}

/// A sample of 2000 frames takes as long as ten thousand allocations.
#[test]
fn samples_of_deep_stacks_are_made_rare() {
    let scratch = Scratch::new();
    let program = scratch.compile("deep_stacks.c", &["-fno-builtin"]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = limited(&scratch, target.pid(), "1024", "5%");
    wait::until("the interval to grow", || {
        let last = *log(&scratch, target.pid()).last()?;
        (last.interval > 64 << 10).then_some(())
    });
    session.stop();
    target.finish_well();
}
