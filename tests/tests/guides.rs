//! Guide: each page begins with its commands, links have targets, and the Chinese pages match the
//! English ones.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mem_tests::pages::{Page, files, root};

/// Words that the English guide may have outside of code and of its generated part.
const MAX_WORDS: usize = 9_000;
/// Commands at the beginning of each page.
const FIRST_COMMANDS: usize = 3;

fn english() -> Vec<PathBuf> {
    files(&[":(glob)docs/guide/*.md"])
}

fn chinese(english: &Path) -> PathBuf {
    let name = english.file_name().expect("a file's path");
    Path::new("docs/guide/zh").join(name)
}

/// Returns the words of a line that are options.
fn options(line: &str) -> impl Iterator<Item = String> {
    let is_part = |c: char| c == '-' || c == '_' || c.is_ascii_alphanumeric();
    let words = line.split(move |c| !is_part(c));
    let options = words.filter(|word| word.starts_with("--") && word.len() > 3);
    options.map(str::to_owned)
}

/// What a page must have in both languages.
#[derive(Debug, PartialEq)]
struct Outline {
    /// Levels of the headings.
    headings: Vec<usize>,
    /// Rows of each table.
    tables: Vec<usize>,
    options: BTreeSet<String>,
    /// Code in the first cells of tables: options, messages, variables.
    first_cells: Vec<String>,
    blocks: Vec<(String, Vec<String>)>,
}

impl Outline {
    fn of(page: Page) -> Self {
        let mut outline = Self {
            headings: Vec::new(),
            tables: Vec::new(),
            options: page.prose.iter().flat_map(|line| options(line)).collect(),
            first_cells: Vec::new(),
            blocks: page.blocks,
        };
        let mut rows = 0;
        for line in page.prose.iter().map(String::as_str).chain([""]) {
            if line.starts_with('#') {
                let level = line.chars().take_while(|c| *c == '#').count();
                outline.headings.push(level);
            }
            if let Some(cells) = line.strip_prefix("| ") {
                let first = cells.split(" |").next().unwrap_or_default();
                let code = first.split('`').skip(1).step_by(2);
                outline.first_cells.extend(code.map(str::to_owned));
            }
            if line.starts_with('|') {
                rows += 1;
            } else if rows > 0 {
                outline.tables.push(std::mem::take(&mut rows));
            }
        }
        outline
    }
}

#[test]
fn both_languages_have_the_same_pages_parts_and_commands() {
    let pages = english();
    let translated: BTreeSet<_> = files(&["docs/guide/zh/*.md"]).into_iter().collect();
    assert_eq!(
        pages
            .iter()
            .map(|page| chinese(page))
            .collect::<BTreeSet<_>>(),
        translated
    );
    for page in pages {
        let (ours, theirs) = (
            Outline::of(Page::read(&page)),
            Outline::of(Page::read(&chinese(&page))),
        );
        let page = page.display();
        assert_eq!(ours.headings, theirs.headings, "{page}");
        assert_eq!(ours.tables, theirs.tables, "{page}");
        assert_eq!(ours.options, theirs.options, "{page}");
        assert_eq!(ours.first_cells, theirs.first_cells, "{page}");
        assert_eq!(ours.blocks, theirs.blocks, "{page}");
    }
}

#[test]
fn each_page_begins_with_three_commands() {
    for path in english() {
        let mut page = Page::read(&path);
        // The title, the other language, and the empty lines between them and the block.
        let is_head = |line: &String| line.is_empty() || line.starts_with(['#', '[']);
        let head = page.prose.iter().take_while(|line| is_head(line)).count();
        page.blocks.truncate(1);
        assert!(head >= 3, "{}", path.display());
        assert_eq!(page.blocks[0].0, "sh", "{}", path.display());
        assert_eq!(page.commands().len(), FIRST_COMMANDS, "{}", path.display());
    }
}

/// Returns the words of a line, if it is the head of a table that `mem_parser` lays out.
fn head(line: &str) -> Option<Vec<&str>> {
    const BEGINNINGS: [&str; 4] = ["score  ", "size  ", "inuse_space  ", "short-lived  "];
    let text = line.trim_start();
    let is_head = BEGINNINGS.iter().any(|words| text.starts_with(words));
    // The unit depends on the growth.
    let word = |word| match word {
        "growth/s" | "growth/min" | "growth/h" | "growth/day" => "growth",
        other => other,
    };
    is_head.then(|| text.split_whitespace().map(word).collect())
}

/// A single dump has no growth, and its table lacks the last columns.
#[test]
fn tables_have_the_columns_that_the_parser_prints() {
    let golden = files(&[":(glob)parser/tests/golden/*.txt"]);
    let golden: Vec<String> = golden
        .iter()
        .map(|path| std::fs::read_to_string(root().join(path)).expect("a golden file"))
        .collect();
    let printed: Vec<Vec<&str>> = golden
        .iter()
        .flat_map(|text| text.lines().filter_map(head))
        .collect();
    assert!(printed.len() >= 4, "{printed:?}");
    let mut checked = 0;
    for path in files(&[":(glob)docs/**/*.md", "README.md"]) {
        let page = std::fs::read_to_string(root().join(&path)).expect("a page");
        for head in page.lines().filter_map(head) {
            let is_printed = printed.iter().any(|line| line.starts_with(&head));
            assert!(is_printed, "{}: {head:?}", path.display());
            checked += 1;
        }
    }
    assert!(checked >= 8, "{checked} tables");
}

#[test]
fn the_guide_names_buttons_that_the_live_page_has() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).expect("a file");
    let page = read("docs/guide/fleet.md");
    let section = page.split("### The live page").nth(1).expect("a section");
    let section = section.split("\n##").next().expect("a section");
    assert!(section.contains("pictures/live.png"));
    let script = ["process", "session"].map(|name| read(&format!("server/src/page/{name}.js")));
    let script = script.concat();
    let labels: Vec<&str> = section.split("**").skip(1).step_by(2).collect();
    assert!(labels.len() >= 3, "{labels:?}");
    for label in labels {
        assert!(script.contains(&format!("\"{label}\"")), "{label}");
    }
}

#[test]
fn the_guide_is_short() {
    let words: usize = english()
        .iter()
        .map(|path| {
            let mut page = Page::read(path);
            let generated = page
                .prose
                .iter()
                .position(|line| line == "<!-- mem_profiler -->");
            page.prose.truncate(generated.unwrap_or(page.prose.len()));
            page.words()
        })
        .sum();
    assert!(words <= MAX_WORDS, "{words} words");
}

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    for path in files(&["*.md"]) {
        let page = Page::read(&path);
        let directory = path.parent().expect("a directory");
        for link in page.links() {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                path.clone()
            } else {
                directory.join(file)
            };
            let has_anchor = |target: &Path| {
                anchor.is_empty()
                    || Page::read(target)
                        .anchors()
                        .iter()
                        .any(|other| other == anchor)
            };
            if !root().join(&target).exists() || !has_anchor(&target) {
                broken.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
