//! Links the static jemalloc that `tikv-jemalloc-sys` built into a library to preload, at
//! the path that `BENCH_JEMALLOC_SO` names.
//!
//! Not a `cdylib`: of those rustc hides every symbol that Rust code does not export.

use std::env::var;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=BENCH_JEMALLOC_SO");
    let object = var("BENCH_JEMALLOC_SO").expect("BENCH_JEMALLOC_SO names the library to make");
    println!("cargo::rerun-if-changed={object}");
    let root = var("DEP_JEMALLOC_ROOT").expect("tikv-jemalloc-sys tells where jemalloc is");
    let mut link = Command::new("cc");
    link.args(["-shared", "-pthread", "-Wl,-z,now", "-o", &object])
        .arg("-Wl,--whole-archive")
        .arg(format!("{root}/lib/libjemalloc_pic.a"))
        .arg("-Wl,--no-whole-archive");
    if var("CARGO_FEATURE_PROFILING").is_ok() {
        link.arg("-lunwind");
    }
    link.args(["-lm", "-ldl"]);
    let status = link.status().expect("a C compiler");
    assert!(status.success(), "{link:?}: {status}");
}
