//! Every form in which `perf script` prints the samples of one recording is read as the same
//! samples.

use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::{Scratch, run};
use profile::{Format, Profile, open};

/// Options of `perf script`; each form shows the functions' names.
const FORMS: [&str; 29] = [
    "",
    "-F +srcline",
    "-F +misc",
    "-F +misc,-time",
    "-F tid,period,ip,sym",
    "-F +insn,+insnlen",
    "--show-namespace-events",
    "-F +insn",
    "-F +srccode",
    "-F -dso",
    "-F -time",
    "-F -event",
    "-F -period",
    "-F -tid",
    "-F +pid",
    "-F -comm",
    "-F comm,ip,sym",
    "-F ip,sym",
    "-F ip,sym,dso",
    "-F pid,ip,sym",
    "-F time,ip,sym,dso",
    "-F event,ip,sym",
    "-F comm,tid,ip,sym,symoff,dso",
    "--show-mmap-events",
    "--show-task-events",
    "--header",
    "--ns",
    "--deltatime",
    "--no-demangle",
];

fn record(scratch: &Scratch, program: &Path, options: &[&str], name: &str) -> std::path::PathBuf {
    let data = scratch.file(name);
    let outcome = run(Command::new("perf")
        .args(["record", "-q", "-F", "500", "-e", "cpu-clock:u"])
        .args(options)
        .arg("-o")
        .arg(&data)
        .arg(program));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    data
}

/// Returns what `perf script` prints in a form, as the reader reads it. Fields that the recording
/// lacks are left out by perf.
fn script(scratch: &Scratch, data: &Path, form: &str) -> Profile {
    let outcome = run(Command::new("perf")
        .args(["script", "-i"])
        .arg(data)
        .args(form.split_whitespace()));
    assert_eq!(outcome.code, Some(0), "{form}: {outcome:?}");
    let file = scratch.file("script.txt");
    std::fs::write(&file, &outcome.stdout).expect("a writable directory");
    open(&file).unwrap_or_else(|error| panic!("{form}: {error}\n{}", outcome.stdout))
}

/// Names of the functions of each sample, leaf first, as far as the program's own are concerned.
fn own_functions(profile: &Profile) -> Vec<Vec<String>> {
    assert_eq!(profile.format, Format::PerfScript);
    let names_of = |stack: usize| {
        let frames = profile.stacks.get(stack).iter();
        let lines = frames.flat_map(|&frame| profile.lines_of(&profile.locations[frame as usize]));
        let names = lines.map(|line| profile.functions[line.function as usize].name.clone());
        names
            .filter(|name| ["spin", "outer", "main"].contains(&name.as_str()))
            .collect()
    };
    (0..profile.stacks.len()).map(names_of).collect()
}

/// Compiles the program that is recorded.
fn forms(scratch: &Scratch) -> PathBuf {
    let flags = ["-g", "-O1", "-fno-omit-frame-pointer"];
    scratch.compile_as("perf_forms.c", "forms", &flags)
}

#[test]
fn every_form_holds_the_same_samples() {
    let scratch = Scratch::new();
    let program = forms(&scratch);
    for (options, name) in [(&["-g"][..], "chains"), (&[], "flat")] {
        let data = record(&scratch, &program, options, name);
        let expected = own_functions(&script(&scratch, &data, ""));
        assert!(expected.len() > 20, "{name}: {} samples", expected.len());
        let in_spin = expected
            .iter()
            .filter(|names| names.first().is_some_and(|n| n == "spin"));
        assert!(
            in_spin.count() * 10 > expected.len() * 8,
            "{name}: {expected:?}"
        );
        for form in FORMS {
            let found = own_functions(&script(&scratch, &data, form));
            assert_eq!(found, expected, "{name}, {form}");
        }
    }
}

/// Addresses of data and weights are printed before the call chain, in the sample's own line.
#[test]
fn samples_with_addresses_of_data_are_the_same() {
    let scratch = Scratch::new();
    let program = forms(&scratch);
    for (options, name) in [(&["-g", "-d", "-W"][..], "chains"), (&["-d", "-W"], "flat")] {
        let data = record(&scratch, &program, options, name);
        let expected = own_functions(&script(&scratch, &data, "-F comm,tid,time,ip,sym"));
        assert!(expected.len() > 20, "{name}: {} samples", expected.len());
        for form in ["-F +addr", "-F +weight", "-F +addr,+weight,-time"] {
            let read = script(&scratch, &data, form);
            assert_eq!(own_functions(&read), expected, "{name}, {form}");
            let types = read.sample_types.iter().map(|kind| kind.kind.as_str());
            assert_eq!(types.collect::<Vec<_>>(), ["samples", "cpu"], "{form}");
        }
    }
}
