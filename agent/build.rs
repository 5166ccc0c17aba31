//! What the linker is told: to refuse what no library on its line defines, rather than leave that
//! to the loader of a target; and libc, after the objects that need it. The `libc` crate asks for
//! it only where nobody in the workspace wants its feature `std`, and too early for GNU ld.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo::rustc-cdylib-link-arg=-lc");
}
