//! Lets the linker refuse what no library on its line defines, rather than the loader of a target.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
}
