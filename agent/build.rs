//! Options for the linker: to refuse what no library on its line defines, rather than leave that
//! to the loader of a target; and libc, after the objects that need it. The `libc` crate asks for
//! it only where nobody in the workspace wants its feature `std`, and too early for GNU ld. And to
//! lead some of the C library's names to the agent's own functions.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo::rustc-cdylib-link-arg=-lc");
    // See src/wrapped.rs.
    for name in [
        "mmap",
        "munmap",
        "madvise",
        "clock_gettime",
        "pthread_cond_init",
        "pthread_key_create",
    ] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
}
