//! The binaries under test.

use std::path::{Path, PathBuf};

fn release(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("a running test has a path");
    // TARGET/<profile>/deps/<test>
    let target = exe.ancestors().nth(3).expect("cargo's directories");
    let path = target.join("release").join(name);
    assert!(
        path.exists(),
        "{} is missing: run `cargo build --release --workspace` first",
        path.display()
    );
    path
}

/// The agent.
pub fn agent() -> PathBuf {
    release("libmem_agent.so")
}

/// The controller.
pub fn profiler() -> PathBuf {
    release("mem_profiler")
}

/// The parser.
pub fn parser() -> PathBuf {
    release("mem_parser")
}

/// A source file among this crate's `programs`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(name)
}
