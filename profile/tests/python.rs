//! Python's frames in dumps: they are read as they were written, and are distinguished by their
//! names when dumps are added up.

use profile::merge::{self, Base};
use profile::{Detail, Function, Profile, ProfileBuilder, dump};

fn function(name: &str) -> Function {
    Function {
        name: name.into(),
        system_name: String::new(),
        file: "/srv/app.py".into(),
        start_line: 10,
    }
}

/// Returns a stack of a native frame, a line of each of these functions, and another native frame.
fn profile(names: &[&str]) -> Profile {
    let mut builder = ProfileBuilder::new(1024);
    let detail = Detail {
        alloc_samples: 1,
        alloc_objects: 1.0,
        alloc_bytes: 4096.0,
        ..Detail::default()
    };
    for name in names {
        let frames = [
            builder.location(0x1001),
            builder.python_location(function(name), 12),
            builder.python_location(function(name), 13),
            builder.location(0x2001),
        ];
        builder.stack_of(&frames, &detail);
    }
    builder.finish()
}

fn written(profile: &Profile) -> Profile {
    let mut text = Vec::new();
    dump::write(profile, &mut text).unwrap();
    profile::read(&text, "dump").unwrap()
}

fn python_names(profile: &Profile, stack: usize) -> Vec<(String, u32)> {
    let frames = profile.stacks.get(stack).iter();
    let locations = frames.map(|&f| &profile.locations[f as usize]);
    let python = locations.filter(|location| profile.is_python(location));
    let lines = python.flat_map(|location| profile.lines_of(location));
    let name = |function: u32| profile.functions[function as usize].name.clone();
    lines.map(|line| (name(line.function), line.line)).collect()
}

#[test]
fn python_frames_round_trip() {
    let profile = profile(&["make_thumbnail", "Cache.put"]);
    let read = written(&profile);
    assert_eq!(read.functions, profile.functions);
    for (stack, name) in ["make_thumbnail", "Cache.put"].into_iter().enumerate() {
        let expected = [(name.to_owned(), 12), (name.to_owned(), 13)];
        assert_eq!(python_names(&profile, stack), expected);
        assert_eq!(python_names(&read, stack), expected);
    }
    assert_eq!(
        read.mappings
            .iter()
            .filter(|m| m.path.to_str() == Some("[python]"))
            .count(),
        1
    );
}

#[test]
fn equal_lines_of_dumps_are_merged_whatever_their_numbers() {
    let one = profile(&["f", "g"]);
    let other = profile(&["g", "h"]);
    let both = [one.clone(), other];
    let sum = written(&merge::merge(&both).unwrap());
    let mut names: Vec<String> = (0..sum.stacks.len())
        .map(|stack| python_names(&sum, stack)[1].0.clone())
        .collect();
    names.sort();
    assert_eq!(names, ["f", "g", "h"]);
    assert_eq!(sum.total(1), 4 * 4096);
    let nothing = merge::subtract(&both[..1], std::slice::from_ref(&one), Base::Difference);
    assert!(nothing.unwrap().stacks.is_empty());
}
