//! Names of code, found by the child.

use std::path::PathBuf;

use mem_server::naming::FunctionNames;
use profile::{Detail, Facts, NO_MAPPING, Profile, ProfileBuilder, TABLE_FULL_ADDRESS};

fn program() -> PathBuf {
    env!("CARGO_BIN_EXE_mem_server").into()
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn a_function_to_be_named() -> u64 {
    std::hint::black_box(42)
}

/// Returns a profile of this process with stacks of a function in this file, of a marker, and of no
/// function.
fn profile() -> Profile {
    let mut builder = ProfileBuilder::new(1);
    builder.facts(Facts {
        pid: Some(std::process::id()),
        boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok(),
        maps_text: std::fs::read("/proc/self/maps").unwrap(),
        ..Facts::default()
    });
    let detail = Detail {
        alloc_samples: 1,
        alloc_objects: 1.0,
        alloc_bytes: 64.0,
        ..Detail::default()
    };
    let here = a_function_to_be_named as *const () as u64 + 1;
    builder.stack([here, 0x7000], &detail);
    builder.stack([TABLE_FULL_ADDRESS], &detail);
    builder.finish()
}

fn names(profile: &Profile) -> Vec<Vec<&str>> {
    let name = |line: &profile::Line| profile.functions[line.function as usize].name.as_str();
    let locations = profile.locations.iter();
    locations
        .map(|location| profile.lines_of(location).iter().map(name).collect())
        .collect()
}

#[test]
fn addresses_are_named_once_for_all_processes() {
    let naming = FunctionNames::new(program());
    for _ in 0..2 {
        let mut profile = profile();
        assert_eq!(profile.locations[1].mapping, NO_MAPPING);
        assert_eq!(naming.symbolize(&mut profile), None);
        let names = names(&profile);
        assert_eq!(
            names[0].last(),
            Some(&"a_function_to_be_named"),
            "{names:?}"
        );
        assert_eq!(names[1], Vec::<&str>::new());
        assert_eq!(names[2], ["[table full]"]);
    }
}

#[test]
fn a_child_that_cannot_be_started_is_reported_and_addresses_remain() {
    let naming = FunctionNames::new("/no/such/program".into());
    let mut profile = profile();
    let why = naming.symbolize(&mut profile).expect("a reason");
    assert!(why.contains("/no/such/program"), "{why}");
    assert_eq!(profile.locations[0].line_count, 0);
    let again = naming.symbolize(&mut profile).expect("a reason");
    assert!(again.contains("for a while"), "{again}");
}
