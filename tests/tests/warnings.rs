//! Warnings fit two lines of a terminal with 80 columns.

use std::fs;
use std::path::{Path, PathBuf};

use mem_tests::{Scratch, Session, Target, run};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Columns of two lines.
const MAX_COLUMNS: usize = 160;

/// Columns that the text of a message may have in the sources: `mem_profiler: warning: ` and a name
/// and pid come before most of them.
const MAX_TEXT_COLUMNS: usize = 136;

/// Crates whose texts users see.
const SPEAKING: [&str; 10] = [
    "agents",
    "capture",
    "controller",
    "cpu",
    "leaks",
    "parser",
    "proc",
    "server",
    "symbols",
    "profile",
];

#[test]
fn warnings_about_allocators_are_short() {
    for flags in [
        &["-DPREFIX="][..],
        &["-DPREFIX=", "-DHIDDEN"],
        &["-DPREFIX=tc_", "-DHIDDEN"],
        &[
            "-DPREFIX=je_",
            "-s",
            "-DHIDDEN",
            "-DMESSAGE=\"<jemalloc>: x\"",
        ],
    ] {
        let scratch = Scratch::new();
        let program = scratch.compile("own_malloc.c", flags);
        let mut target = Target::start(&mut scratch.preloaded(program));
        assert_eq!(target.hear(), "ready");
        let session = Session::of(&scratch, target.pid(), "1024");
        target.say("allocate 10000");
        target.hear();
        let outcome = session.stop();
        let list = run(scratch
            .profiler()
            .args(["why", "-p", &target.pid().to_string()]));
        let lines = outcome.stderr.lines().chain(list.stderr.lines());
        let warnings: Vec<_> = lines.filter(|line| line.contains("warning: ")).collect();
        assert!(!warnings.is_empty(), "{flags:?}: {outcome:?}");
        for warning in warnings {
            assert!(warning.chars().count() <= MAX_COLUMNS, "{warning}");
            assert!(!warning.contains("build it"), "{warning}");
        }
        target.finish_well();
    }
}

/// Appends the Rust files below `directory`, without files of unit tests.
fn collect_sources(directory: &Path, sources: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("the directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_sources(&path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("tests.rs")
        {
            sources.push(path);
        }
    }
}

/// Appends strings that are one sentence of prose: no markup, no page of several lines, no
/// documentation.
fn collect_texts(tokens: TokenStream, texts: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                let inner = group.stream().to_string();
                let is_doc = group.delimiter() == Delimiter::Bracket && inner.starts_with("doc =");
                if !is_doc {
                    collect_texts(group.stream(), texts);
                }
            }
            TokenTree::Literal(literal) => {
                if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                    texts.push(text.value());
                }
            }
            _ => {}
        }
    }
}

fn is_prose(text: &str) -> bool {
    text.contains(' ') && !text.contains(['\n', '<', '>', '$']) && !text.starts_with("default-src")
}

#[test]
fn messages_fit_two_lines() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut long, mut checked) = (Vec::new(), 0);
    for name in SPEAKING {
        let mut sources = Vec::new();
        collect_sources(&root.join(name).join("src"), &mut sources);
        for path in sources {
            let source = fs::read_to_string(&path).expect("a source");
            let shipped = source.split("#[cfg(test)]\nmod tests {").next();
            let tokens: TokenStream = shipped.unwrap_or_default().parse().expect("Rust");
            let mut texts = Vec::new();
            collect_texts(tokens, &mut texts);
            texts.retain(|text| is_prose(text));
            checked += texts.len();
            texts.retain(|text| text.chars().count() > MAX_TEXT_COLUMNS);
            long.extend(
                texts
                    .iter()
                    .map(|text| format!("{}: {text}", path.display())),
            );
        }
    }
    assert!(checked > 1000, "only {checked} texts");
    assert!(long.is_empty(), "more than two lines:\n{}", long.join("\n"));
}
