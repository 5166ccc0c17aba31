//! The documents that the code and the table in CONTRIBUTING.md refer to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use mem_tests::pages::{Page, files, root};

/// Words that a decision may have outside of tables, and one with tables of measurements.
const MAX_WORDS: usize = 250;
const MAX_WORDS_WITH_TABLE: usize = 320;

/// Decisions by number.
fn decisions() -> BTreeMap<String, Page> {
    let pages = files(&[":(glob)docs/decisions/[0-9]*.md"]).into_iter();
    let pages = pages.map(|path| {
        let name = path.file_name().expect("a file").to_string_lossy();
        (name[..2].to_owned(), Page::read(&path))
    });
    pages.collect()
}

/// Returns the number of the decision that supersedes a page's, or `None` if it is accepted.
fn superseded_by(page: &Page) -> Option<String> {
    let path = page.path.display();
    let status = page.prose[2].strip_prefix("Status: ");
    let status = status.unwrap_or_else(|| panic!("{path}: no status in its third line"));
    let (status, date) = status.split_once(". Date: ").unwrap_or((status, ""));
    let parts: Vec<_> = date
        .trim_end_matches('.')
        .split('-')
        .map(str::len)
        .collect();
    assert_eq!(parts, [4, 2, 2], "{path}: {date:?} is no date");
    if status == "accepted" {
        return None;
    }
    let number = status
        .strip_prefix("superseded by [")
        .and_then(|rest| rest.get(..2));
    Some(
        number
            .unwrap_or_else(|| panic!("{path}: {status:?}"))
            .to_owned(),
    )
}

/// Returns the numbers that follow the word "decision" in a text.
fn citations(text: &str) -> impl Iterator<Item = String> {
    let after = text.split("ecision ").skip(1);
    let numbers = after.filter_map(|rest| rest.get(..2));
    let is_number = |number: &&str| number.bytes().all(|b| b.is_ascii_digit());
    numbers.filter(is_number).map(str::to_owned)
}

#[test]
fn each_decision_has_a_status_and_a_date_and_is_short() {
    let decisions = decisions();
    for page in decisions.values() {
        let by = superseded_by(page);
        assert!(
            by.is_none_or(|by| decisions.contains_key(&by)),
            "{}",
            page.path.display()
        );
        let has_table = page.prose.iter().any(|line| line.starts_with('|'));
        let prose = page.prose[3..].iter().filter(|line| !line.starts_with('|'));
        let body = Page {
            path: page.path.clone(),
            blocks: Vec::new(),
            prose: prose.cloned().collect(),
        };
        let max = if has_table {
            MAX_WORDS_WITH_TABLE
        } else {
            MAX_WORDS
        };
        let words = body.words();
        assert!(words <= max, "{}: {words} words", page.path.display());
    }
}

#[test]
fn the_index_lists_each_decision_by_its_title() {
    let index = Page::read("docs/decisions/README.md".as_ref());
    let mut listed = BTreeMap::new();
    for line in &index.prose {
        let Some((number, rest)) = line.strip_prefix("| [").and_then(|row| row.split_once(']'))
        else {
            continue;
        };
        listed.insert(number.to_owned(), rest.to_owned());
    }
    let decisions = decisions();
    assert!(listed.keys().eq(decisions.keys()), "{:?}", listed.keys());
    for (number, page) in &decisions {
        let name = page.path.file_name().expect("a file").to_string_lossy();
        assert!(listed[number].contains(&*name), "{number}");
    }
}

#[test]
fn each_citation_exists_and_each_decision_is_cited() {
    let decisions = decisions();
    let mut cited = BTreeSet::new();
    let code = [
        "*.rs",
        "*.toml",
        "*.sh",
        "*.bash",
        "deploy/*",
        "tests/run",
        ":!deploy/*.md",
    ];
    for path in files(&code) {
        let Ok(text) = fs::read_to_string(root().join(&path)) else {
            continue;
        };
        for number in citations(&text) {
            let exists = decisions.contains_key(&number);
            assert!(exists, "{}: decision {number}", path.display());
            cited.insert(number);
        }
    }
    let is_needed = |number: &&String| superseded_by(&decisions[*number]).is_none();
    let numbers = decisions.keys().filter(is_needed);
    let missing: Vec<_> = numbers.filter(|number| !cited.contains(*number)).collect();
    assert!(missing.is_empty(), "no code cites {missing:?}");
}

/// Returns the rows of the tables of CONTRIBUTING.md below a heading.
fn rows(heading: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the page");
    let (_, section) = text.split_once(heading).expect("the heading");
    let section = section.split("\n## ").next().unwrap_or(section);
    let rows = section.lines().filter(|line| line.starts_with("| "));
    rows.skip(1).map(str::to_owned).collect()
}

/// What stands in backquotes in a row of the table.
enum Code {
    Path(PathBuf),
    Identifier(String),
}

/// Returns the paths and identifiers of a row, and the paths that do not exist. A path may be given
/// as the neighbour of the one before. Commands, options and files to be made (`NAME`) are left
/// out.
fn codes(row: &str) -> (Vec<Code>, Vec<String>) {
    let (mut codes, mut missing) = (Vec::new(), Vec::new());
    let mut directory = PathBuf::new();
    for code in row.split('`').skip(1).step_by(2) {
        let is_other = code.contains([' ', '=', '<']) || code.starts_with('-');
        if is_other || code.contains("NAME") {
            continue;
        }
        if !code.contains('/') && Path::new(code).extension().is_none() {
            codes.push(Code::Identifier(code.trim_end_matches('!').to_owned()));
            continue;
        }
        let places = [PathBuf::from(code), directory.join(code)];
        match places.into_iter().find(|path| root().join(path).exists()) {
            Some(path) => {
                directory = path.parent().unwrap_or(Path::new("")).to_owned();
                codes.push(Code::Path(path));
            }
            None => missing.push(code.to_owned()),
        }
    }
    (codes, missing)
}

#[test]
fn paths_and_identifiers_in_the_table_of_contributing_exist() {
    for row in rows("\n## To add a ...") {
        let (codes, missing) = codes(&row);
        assert!(missing.is_empty(), "{missing:?} in {row}");
        // An identifier stands right after the file that has it, or before it.
        let file = |code: &Code| match code {
            Code::Path(path) => Some(path.clone()),
            Code::Identifier(_) => None,
        };
        for (n, code) in codes.iter().enumerate() {
            let Code::Identifier(name) = code else {
                continue;
            };
            let before = codes[..n].iter().rev().find_map(file);
            let after = codes[n..].iter().find_map(file);
            let has = |path: &PathBuf| {
                let text = fs::read_to_string(root().join(path));
                text.is_ok_and(|text| text.contains(name.as_str()))
            };
            let is_directory = |path: &PathBuf| root().join(path).is_dir();
            let mut places = before.iter().chain(&after);
            assert!(
                places.any(|path| has(path) || is_directory(path)),
                "{name} in {row}"
            );
        }
    }
}
