//! Programs that create code objects without end: names are right as long as there is room, the
//! room is limited, and a warning appears when it is used up.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;

use mem_tests::{Outcome, Scratch, Session, Target, artifacts};
use profile::{Location, Profile};

/// Stands for a code object that found no room.
const TABLE_FULL: &str = "[python: table full]";
const WARNING: &str = "lines of Python have no name";

/// What is left of a program that made so many functions.
struct Made {
    outcome: Outcome,
    profile: Profile,
    /// Code objects that were made where another one had been.
    again: usize,
    /// Bytes that the segment took, and resident memory of the process.
    segment: u64,
    resident: u64,
}

fn make(count: usize, table: &str) -> Made {
    let scratch = Scratch::new();
    let mut command = scratch.preloaded("/usr/bin/python3");
    command.arg(artifacts::source("python_codes.py"));
    command.env("MEM_PROFILER_TABLE", table);
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "started");
    let session = Session::of(&scratch, target.pid(), "1");
    target.say(&count.to_string());
    let again = target.hear().parse().expect("a number");
    let segment = scratch.segment(target.pid()).expect("its segment");
    let segment = segment.metadata().expect("a file").blocks() * 512;
    let status = std::fs::read_to_string(format!("/proc/{}/status", target.pid()));
    let status = status.expect("a live process");
    let resident = status.lines().find_map(|line| {
        let kib = line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?;
        kib.parse::<u64>().ok()
    });
    let outcome = session.stop();
    target.say("end");
    target.finish_well();
    Made {
        profile: outcome.profile(),
        outcome,
        again,
        segment,
        resident: resident.expect("its memory") << 10,
    }
}

/// Returns the allocated bytes of each innermost line of Python, with the samples.
fn by_line(profile: &Profile) -> BTreeMap<String, (u64, f64)> {
    let mut sums = BTreeMap::<_, (u64, f64)>::new();
    for (index, detail) in profile.details.iter().enumerate() {
        let frames = profile.stacks.get(index).iter();
        let locations = frames.map(|frame| &profile.locations[*frame as usize]);
        let name = |location: &Location| profile.python_name(location);
        if let Some(name) = locations.filter_map(name).next() {
            let sum = sums.entry(name).or_default();
            sum.0 += detail.alloc_samples;
            sum.1 += detail.alloc_bytes;
        }
    }
    sums
}

/// Returns the functions that were made, each checked: its line, its file, and what it allocated.
/// How many there are.
fn checked(profile: &Profile) -> usize {
    let sums = by_line(profile);
    let made = sums.iter().filter_map(|(name, sum)| {
        let number = name.strip_prefix("made_")?.split_once("_of_many")?.0;
        Some((name, number.parse::<usize>().ok()?, sum))
    });
    let mut count = 0;
    for (name, number, sum) in made {
        let place = format!("(file_{}.py:{})", number % 7, number % 50 + 2);
        assert!(name.ends_with(&place), "{name}");
        // The array's object is one of CPython's own allocator.
        let bytes = 1001 + number % 5000;
        assert_eq!(*sum, (1, bytes as f64), "{name}");
        count += 1;
    }
    count
}

#[test]
fn each_code_object_has_its_name_where_others_were_before() {
    const COUNT: usize = 20_000;
    let made = make(COUNT, "512M");
    assert!(made.again > COUNT * 9 / 10, "{}", made.again);
    assert_eq!(checked(&made.profile), COUNT);
    assert!(!by_line(&made.profile).contains_key(TABLE_FULL));
    assert!(!made.outcome.stderr.contains(WARNING), "{:?}", made.outcome);
}

#[test]
fn code_objects_without_end_take_bounded_memory_and_leave_a_warning() {
    const COUNT: usize = 300_000;
    let made = make(COUNT, "16M");
    let named = checked(&made.profile);
    let full = by_line(&made.profile)[TABLE_FULL];
    println!("{named} of {COUNT} are named, {full:?} are not");
    println!("segment {}, resident {}", made.segment, made.resident);
    assert!(named > 1000, "{named}");
    assert!(named as u64 + full.0 >= COUNT as u64);
    assert!(made.segment < 20 << 20, "{}", made.segment);
    // The program's own table of addresses is part of this.
    assert!(made.resident < 128 << 20, "{}", made.resident);
    assert!(made.outcome.stderr.contains(WARNING), "{:?}", made.outcome);
}
