//! The guide in English and in Chinese: the same parts, in the same order.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// A guide without the text: what both must have in common.
struct Outline {
    /// Levels of the headings.
    headings: Vec<usize>,
    /// Rows of each table.
    tables: Vec<usize>,
    /// Options that are named.
    options: BTreeSet<String>,
    /// Code in the first cells of tables: options, messages, variables.
    messages: Vec<String>,
}

/// Lines of the guide outside of code blocks, and lines inside that begin with a prompt.
fn split(text: &str) -> (Vec<&str>, BTreeSet<&str>) {
    let (mut prose, mut commands, mut code) = (Vec::new(), BTreeSet::new(), false);
    for line in text.lines() {
        match line.trim_start() {
            fence if fence.starts_with("```") => code = !code,
            command if code && command.starts_with("$ ") => {
                commands.insert(command);
            }
            _ if code => {}
            _ => prose.push(line),
        }
    }
    (prose, commands)
}

/// The words of a line that are options.
fn options(line: &str) -> impl Iterator<Item = String> {
    let is_part = |c: char| c == '-' || c == '_' || c.is_ascii_alphanumeric();
    let words = line.split(move |c| !is_part(c));
    let options = words.filter(|word| word.starts_with("--") && word.len() > 3);
    options.map(str::to_owned)
}

impl Outline {
    fn of(prose: &[&str]) -> Self {
        let mut outline = Self {
            headings: Vec::new(),
            tables: Vec::new(),
            options: prose.iter().flat_map(|line| options(line)).collect(),
            messages: Vec::new(),
        };
        let mut rows = 0;
        for line in prose.iter().chain([&""]) {
            if line.starts_with('#') {
                outline
                    .headings
                    .push(line.chars().take_while(|c| *c == '#').count());
            }
            if let Some(cells) = line.strip_prefix("| ") {
                let first = cells.split(" |").next().unwrap_or_default();
                let code = first.split('`').skip(1).step_by(2);
                outline.messages.extend(code.map(str::to_owned));
            }
            match line.starts_with('|') {
                true => rows += 1,
                false if rows > 0 => outline.tables.push(std::mem::take(&mut rows)),
                false => {}
            }
        }
        outline
    }
}

#[test]
fn both_languages_have_the_same_parts_options_messages_and_commands() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let read = |name: &str| fs::read_to_string(docs.join(name)).expect("a guide");
    let texts = [read("guide.md"), read("guide.zh.md")];
    let [(english, commands), (chinese, translated)] = texts.each_ref().map(|text| split(text));
    let (english, chinese) = (Outline::of(&english), Outline::of(&chinese));
    assert_eq!(english.headings, chinese.headings);
    assert_eq!(english.tables, chinese.tables);
    assert_eq!(english.options, chinese.options);
    for (ours, theirs) in english.messages.iter().zip(&chinese.messages) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(english.messages.len(), chinese.messages.len());
    let unknown: Vec<_> = translated.difference(&commands).collect();
    assert!(unknown.is_empty(), "only in Chinese: {unknown:#?}");
}
