//! Stack depth of an allocation: measured on painted memory, case by case.

use std::collections::BTreeMap;
use std::process::Command;

use mem_tests::Scratch;

/// Returns the depth of the deepest byte touched, by case. Of a case that is run several times,
/// returns the largest depth.
fn depths(command: &mut Command) -> BTreeMap<String, u32> {
    let output = command.output().expect("the program");
    assert!(output.status.success(), "{command:?}: {output:?}");
    let mut depths = BTreeMap::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut words = line.strip_prefix("depth ").expect("a depth").split(' ');
        let name = words.next().expect("a case").to_owned();
        let bytes: u32 = words.next().expect("bytes").parse().expect("a number");
        let deepest = depths.entry(name).or_default();
        *deepest = bytes.max(*deepest);
    }
    depths
}

/// Returns the depths of the program alone, with the agent idle, and with every allocation sampled.
fn three() -> [BTreeMap<String, u32>; 3] {
    let scratch = Scratch::new();
    let program = scratch.compile("painted.c", &["-Wl,-z,now"]);
    let own = depths(&mut Command::new(&program));
    let idle = depths(&mut scratch.preloaded(&program));
    let sampled = depths(
        scratch
            .preloaded(&program)
            .env("MEM_PROFILER_START", "1")
            .env("MEM_PROFILER_INTERVAL", "1"),
    );
    eprintln!("alone {own:?}\nidle {idle:?}\nsampled {sampled:?}");
    [own, idle, sampled]
}

/// jemalloc itself, at its deepest, takes 2.6 KiB: a thread's first allocation, a new slab.
const IDLE: u32 = 3000;
/// The sampler's own frames come on top of that.
const SAMPLER: u32 = 768;
/// A sample whose rules are known, from jemalloc's cache or our free list; and what is done once a
/// second. With a little room: unrelated code moves the compiler's frames by some words.
const WARM: u32 = 1344;
const REFRESH: u32 = 2400;

#[test]
fn no_allocation_goes_deeper_than_jemalloc_and_a_little() {
    let [own, idle, sampled] = three();
    assert!(
        own.values().max() < idle.values().max(),
        "what is measured?"
    );
    let deepest = *idle.values().max().expect("cases");
    assert!(deepest <= IDLE, "{idle:?}");
    for (name, bytes) in &sampled {
        assert!(*bytes <= deepest.max(2600) + SAMPLER, "{name}: {sampled:?}");
    }
    for name in ["again", "thread_second", "free", "thread_free"] {
        assert!(sampled[name] <= WARM, "{name}: {sampled:?}");
    }
    assert!(sampled["refresh"] <= REFRESH, "{sampled:?}");
    // Were nothing sampled, it would be as idle.
    assert!(sampled["again"] > idle["again"] + 200, "{sampled:?}");
}
