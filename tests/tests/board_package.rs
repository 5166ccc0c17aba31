//! Package for boards: its contents, and the sizes that its page claims.

use std::fs;
use std::path::Path;
use std::process::Command;

use mem_tests::session::tool;
use mem_tests::{Scratch, run};

const WHOLE: &str = "mem-profiler-9.8.7-aarch64";

/// Returns a whole package with stand-ins of known sizes for its programs.
fn whole_package(scratch: &Scratch) -> String {
    let tree = scratch.file(WHOLE);
    for (file, bytes) in [
        ("bin/mem_profiler", 3_600_001),
        ("bin/mem_parser", 4_000_000),
        ("bin/mem_server", 5_000_000),
        ("lib/libmem_agent.so", 1_100_000),
        ("share/mem-profiler/setup.bash", 5_000),
        ("share/mem-profiler/collect.bash", 10_000),
        ("share/mem-profiler/start_all_modules.bash", 10),
        ("share/doc/mem-profiler/licences.txt", 10),
        ("LICENSE-MIT", 10),
        ("LICENSE-APACHE", 10),
    ] {
        let path = tree.join(file);
        fs::create_dir_all(path.parent().expect("a directory")).expect("a new directory");
        fs::write(path, vec![b'x'; bytes]).expect("a file of ours");
    }
    let archive = scratch
        .file(&format!("{WHOLE}.tar.xz"))
        .display()
        .to_string();
    let directory = scratch.files().to_str().expect("a path of ours");
    tool("tar", ["-cJf", &archive, "-C", directory, WHOLE]);
    archive
}

#[test]
fn a_boards_package_has_the_least_and_says_what_it_takes() {
    let scratch = Scratch::new();
    let whole = whole_package(&scratch);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/board-package");
    let outcome = run(Command::new(script).arg(&whole));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("unpacked 8.8 MB"), "{outcome:?}");
    let name = format!("{WHOLE}-board");
    let archive = scratch.file(&format!("{name}.tar.xz"));
    let archive = archive.to_str().expect("a path of ours");
    let files = tool("tar", ["-tJf", archive]);
    let mut files: Vec<_> = files
        .lines()
        .filter(|line| !line.ends_with('/'))
        .map(|line| line.trim_start_matches(&format!("{name}/")))
        .collect();
    files.sort_unstable();
    let expected = [
        "LICENSE-MIT",
        "README.md",
        "README.zh.md",
        "bin/mem_parser",
        "bin/mem_profiler",
        "lib/libmem_agent.so",
        "setup.bash",
        "share/doc/mem-profiler/LICENSE-APACHE.gz",
        "share/doc/mem-profiler/licences.txt.gz",
        "share/mem-profiler/collect.bash",
        "share/mem-profiler/setup.bash",
    ];
    assert_eq!(files, expected);
    for page in ["README.md", "README.zh.md"] {
        let text = tool("tar", ["-xJOf", archive, &format!("{name}/{page}")]);
        for part in ["9.8.7", "aarch64", "8.8 MB", "3.7", "4.0", "1.1", "12 KiB"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('@'), "{text}");
    }
    let refused = run(Command::new(script).arg(Path::new("other.zip")));
    refused.refused(2, &["other.zip"]);
}
