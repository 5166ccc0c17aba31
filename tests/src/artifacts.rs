//! The binaries under test: cargo's release build, or those in the directory that
//! `MEM_TESTS_BINARIES` names, such as a package's.

use std::path::{Path, PathBuf};

fn release(name: &str) -> PathBuf {
    if let Some(directory) = std::env::var_os("MEM_TESTS_BINARIES") {
        return Path::new(&directory).join(name);
    }
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

/// Returns the agent.
pub fn agent() -> PathBuf {
    release("libmem_agent.so")
}

/// Returns the controller.
pub fn profiler() -> PathBuf {
    release("mem_profiler")
}

/// Returns the server.
pub fn server() -> PathBuf {
    release("mem_server")
}

/// Returns the parser.
pub fn parser() -> PathBuf {
    release("mem_parser")
}

/// Returns a source file among this crate's `programs`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(name)
}
