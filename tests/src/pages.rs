//! Markdown pages of this repository: headings, code blocks, links, prose.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the files of the repository whose paths match git's patterns, relative to the root.
///
/// # Panics
/// If git cannot list them.
pub fn files(patterns: &[&str]) -> Vec<PathBuf> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]);
    let listed = git.arg("--").args(patterns).current_dir(root()).output();
    let listed = listed.expect("git");
    assert!(listed.status.success(), "{listed:?}");
    let names = String::from_utf8(listed.stdout).expect("names in UTF-8");
    let paths = names.lines().map(PathBuf::from);
    paths.filter(|path| root().join(path).is_file()).collect()
}

/// A page, split into code blocks and the rest.
#[derive(Debug)]
pub struct Page {
    /// Path from the root.
    pub path: PathBuf,
    /// Code blocks: the language and the lines.
    pub blocks: Vec<(String, Vec<String>)>,
    /// Lines outside of code blocks; an empty line stands for each block.
    pub prose: Vec<String>,
}

impl Page {
    /// Reads a page, given by its path from the root.
    ///
    /// # Panics
    /// If there is none.
    pub fn read(path: &Path) -> Self {
        let text = fs::read_to_string(root().join(path));
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut page = Self {
            path: path.to_owned(),
            blocks: Vec::new(),
            prose: Vec::new(),
        };
        let mut in_block = false;
        for line in text.lines() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                in_block = !in_block;
                if in_block {
                    page.blocks.push((language.to_owned(), Vec::new()));
                    page.prose.push(String::new());
                }
            } else if in_block {
                let (_, lines) = page.blocks.last_mut().expect("a block");
                lines.push(line.to_owned());
            } else {
                page.prose.push(line.to_owned());
            }
        }
        page
    }

    /// Returns the commands: lines of blocks marked `sh`, without comments, and lines after a
    /// prompt.
    pub fn commands(&self) -> Vec<String> {
        let mut commands = Vec::new();
        for (language, lines) in &self.blocks {
            for line in lines.iter().map(|line| line.trim()) {
                if let Some(command) = line.strip_prefix("$ ") {
                    commands.push(command.to_owned());
                } else if language == "sh" && !line.starts_with('#') {
                    let command = line.split(" # ").next().unwrap_or(line).trim();
                    commands.extend((!command.is_empty()).then(|| command.to_owned()));
                }
            }
        }
        commands
    }

    /// Returns the headings, without their marks.
    pub fn headings(&self) -> impl Iterator<Item = &str> {
        let headings = self.prose.iter().filter(|line| line.starts_with('#'));
        headings.map(|line| line.trim_start_matches(['#', ' ']))
    }

    /// Returns the anchors that GitHub makes of the headings.
    pub fn anchors(&self) -> Vec<String> {
        let is_part = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
        let anchor = |heading: &str| {
            let lower = heading.to_lowercase();
            let kept: String = lower.chars().filter(is_part).collect();
            kept.replace(' ', "-")
        };
        self.headings().map(anchor).collect()
    }

    /// Returns the targets of links and pictures.
    pub fn links(&self) -> Vec<&str> {
        let mut links = Vec::new();
        for line in &self.prose {
            for (start, end) in [("](", ')'), ("src=\"", '"')] {
                let targets = line.split(start).skip(1);
                links.extend(targets.filter_map(|rest| rest.split(end).next()));
            }
        }
        links
    }

    /// Returns the number of words outside of code and pictures.
    pub fn words(&self) -> usize {
        let is_word = |word: &&str| word.chars().any(char::is_alphanumeric);
        let lines = self.prose.iter().filter(|line| !line.starts_with("<img"));
        let words = lines.map(|line| {
            let outside = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
            let mut parts = outside.split("](");
            let mut text = parts.next().unwrap_or_default().to_owned();
            for part in parts {
                let (_target, rest) = part.split_once(')').unwrap_or(("", part));
                text = text + " " + rest;
            }
            text.split_whitespace().filter(is_word).count()
        });
        words.sum()
    }
}
