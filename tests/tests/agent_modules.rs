//! Checks that the table of modules in `agent/src/lib.rs` names each module once, and that each
//! uses only modules before it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Modules that use each other.
const CIRCLES: [[&str; 2]; 1] = [["cpu", "cpu_profile"]];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../agent/src")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the modules of the table, in reading order.
fn listed(text: &str) -> Vec<String> {
    let rows = text.lines().filter_map(|line| line.strip_prefix("//! | `"));
    let cells = rows.map(|row| row.split(" | ").next().unwrap_or_default());
    let names = cells.flat_map(|cell| cell.split(", "));
    names
        .map(|name| name.trim_matches('`').to_owned())
        .collect()
}

/// Returns the modules that `lib.rs` declares.
fn declared(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|line| line.strip_prefix("mod "));
    names
        .map(|name| name.trim_end_matches(';').to_owned())
        .collect()
}

/// Returns all files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory of sources");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| match path.is_dir() {
            true => files(&path),
            false => vec![path],
        })
        .collect()
}

/// Returns the names after each `crate::` in the code: one, or several in braces.
fn used(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for rest in code.split("crate::").skip(1) {
        let Some(list) = rest.strip_prefix('{') else {
            names.extend(name(rest));
            continue;
        };
        let mut depth = 0;
        let mut item = 0;
        for (at, sign) in list.char_indices() {
            match sign {
                '{' => depth += 1,
                '}' if depth == 0 => {
                    names.extend(name(&list[item..at]));
                    break;
                }
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    names.extend(name(&list[item..at]));
                    item = at + 1;
                }
                _ => {}
            }
        }
    }
    names
}

/// Returns the identifier at the start of a text.
fn name(text: &str) -> Option<String> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let name = &text[..end.unwrap_or(text.len())];
    (!name.is_empty()).then(|| name.to_owned())
}

/// Returns the code of a file, without comments and its tests.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next();
    let lines = text.unwrap_or_default().lines();
    lines
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn only_the_backend_names_jemalloc() {
    // The functions that the linker redirects carry jemalloc's names.
    let redirected = ["__wrap__rjem_", "__real__rjem_"];
    let list = "c_library/names.rs";
    let root = source();
    let (mut named, mut wrong) = (0, Vec::new());
    for path in files(&root) {
        let inside = path.strip_prefix(&root).expect("a file below");
        let mut text = code(&read(&path));
        if inside.starts_with("backend") || inside == Path::new("backend.rs") {
            named += text.matches("_rjem_").count();
            continue;
        }
        redirected
            .iter()
            .for_each(|start| text = text.replace(start, ""));
        let names = text.contains("_rjem_") || text.contains("tikv_jemalloc_sys");
        if names && inside != Path::new(list) {
            wrong.push(inside.display().to_string());
        }
    }
    assert!(named > 10, "only {named} names were found in the backend");
    assert!(
        wrong.is_empty(),
        "these name jemalloc's internals: {wrong:?}"
    );
}

#[test]
fn each_module_uses_only_those_before_it_in_the_table() {
    let root = source();
    let text = read(&root.join("lib.rs"));
    let listed = listed(&text);
    let (mut all, mut table) = (declared(&text), listed.clone());
    all.sort();
    table.sort();
    assert_eq!(table, all, "the table has each module once");

    let places: HashMap<&str, usize> = listed.iter().map(String::as_str).zip(0..).collect();
    let mut uses = 0;
    let mut wrong = Vec::new();
    for path in files(&root) {
        let inside = path.strip_prefix(&root).expect("a file below");
        let top = inside.iter().next().and_then(|top| top.to_str());
        let top = top.expect("a name").trim_end_matches(".rs");
        let is_code =
            path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("tests.rs");
        let Some(own) = places.get(top).filter(|_| is_code) else {
            continue;
        };
        for name in used(&code(&read(&path))) {
            let Some(place) = places.get(name.as_str()).filter(|_| name != top) else {
                continue;
            };
            uses += 1;
            let is_circle = CIRCLES
                .iter()
                .any(|pair| pair.contains(&top) && pair.contains(&name.as_str()));
            if place > own && !is_circle {
                wrong.push(format!("{}: {name}", inside.display()));
            }
        }
    }
    assert!(uses > 200, "only {uses} uses were found");
    assert!(wrong.is_empty(), "these use a later module: {wrong:#?}");
}
