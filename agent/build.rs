//! Passes options to the linker.
//!
//! - `-z defs`: undefined symbols are an error here, and not only when a target loads the agent.
//! - `-lc` after the objects that need it: the `libc` crate requests it only if nobody in the
//!   workspace enables its feature `std`, and too early for GNU ld.
//! - `-Bsymbolic` and `--wrap`: names of the C library lead to the agent's own functions, so that
//!   no other library can replace what the agent calls. Some functions of jemalloc are replaced in
//!   the same way.

use std::fmt::Write;
use std::path::Path;
use std::{env, fs};

include!("src/c_library/names.rs");

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/c_library/names.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,defs");
    println!("cargo::rustc-cdylib-link-arg=-lc");
    // The agent's own calls of what it exports stay within it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    let package = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    println!("cargo::rerun-if-changed=sections.ld");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{package}/sections.ld");
    let wrapped = [FORWARDED, REPLACED, PASSED_ON, JEMALLOC];
    for name in wrapped.into_iter().flatten() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--wrap={name}");
    }
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&out).join("c_library.rs"), table()).expect("a writable OUT_DIR");
}

/// Returns the declarations of all functions, the table, and a jump through the table for each
/// function.
fn table() -> String {
    let stubs = FORWARDED.iter().map(|name| Stub {
        name,
        symbol: format!("__wrap_{name}"),
    });
    let next = REPLACED.iter().map(|name| Stub {
        name,
        symbol: format!("mem_agent_next_{name}"),
    });
    let stubs: Vec<Stub> = stubs.chain(next).collect();
    let mut text = String::from("unsafe extern \"C\" {\n");
    for Stub { name, .. } in &stubs {
        writeln!(text, "    fn __real_{name}();").expect("a string");
    }
    let count = stubs.len();
    write!(text, "}}\n\nstatic TABLE: [Function; {count}] = [\n").expect("a string");
    for Stub { name, .. } in &stubs {
        writeln!(text, "    Function::new(c\"{name}\", __real_{name}),").expect("a string");
    }
    text.push_str("];\n\n");
    let count = LOOKED_UP.len();
    writeln!(text, "static LOOKED_UP: [Optional; {count}] = [").expect("a string");
    for name in LOOKED_UP {
        writeln!(text, "    Optional::new(c\"{name}\"),").expect("a string");
    }
    text.push_str("];\n\n");
    for (index, Stub { symbol, .. }) in stubs.iter().enumerate() {
        writeln!(
            text,
            "hidden_jump!(\"{symbol}\", TABLE, offset_of({index}));"
        )
        .expect("a string");
    }
    text
}

/// Jump through the table that replaces a function.
struct Stub {
    /// Name in the C library.
    name: &'static str,
    /// Name of the jump.
    symbol: String,
}
