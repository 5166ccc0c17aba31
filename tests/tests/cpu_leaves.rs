//! Stacks of functions without unwind tables, for example in assembly: the innermost function's
//! caller is found if it is certain, and never invented.

use mem_tests::cpu::{Read, truth};
use mem_tests::{Scratch, run};

const CALLERS: [&str; 3] = ["site_direct", "site_pointer", "site_library"];

#[test]
fn callers_of_functions_without_tables_are_found() {
    let scratch = Scratch::new();
    let library = scratch.compile_as("bare.c", "libbare.so", &["-DLIBRARY", "-shared", "-fPIC"]);
    let library = library.to_str().expect("a path");
    let directory = scratch.files().to_str().expect("a path");
    let program = scratch.compile("bare.c", &[library, "-Wl,-rpath", directory]);
    // Where one caller ends and the next one begins, a sample may be another's; on a busy machine
    // one that is taken from outside may stand for a tenth of a second.
    for (engine, part) in [("perf", 0.1), ("ptrace", 0.5)] {
        let mut command = scratch.profiler();
        command.args(["cpu", "run", "--engine", engine, "-F", "499", "-o"]);
        command.arg(scratch.file("p_")).arg("--").arg(&program);
        let outcome = run(&mut command);
        let read = Read::only(&outcome);
        let said = truth(&outcome.stdout);
        let found = read.by_function(&program, "site_");
        for caller in CALLERS {
            let ns = found.get(caller).copied().unwrap_or_default();
            let [least, most] = [1.0 - part, 1.0 + part].map(|share| share * said[caller]);
            assert!(
                ns >= least && ns <= most,
                "{engine} {caller}: {found:?} of {said:?}"
            );
        }
        // The last one has no caller that can be told.
        let lost = found.get("site_lost").copied().unwrap_or_default();
        assert!(
            lost < part * said["site_lost"],
            "{engine}: {found:?} of {said:?}"
        );
        let (cut, most) = (
            read.cut(),
            (1.0 + part) * said["site_lost"] + 0.01 * read.total(),
        );
        assert!(cut > 0.0 && cut <= most, "{engine}: {cut} of {said:?}");
    }
}
