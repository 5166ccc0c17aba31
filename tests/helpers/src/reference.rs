//! Renders the command line of one program into `docs/guide/reference.md` and checks that the page
//! is up to date.
//!
//! With `UPDATE_GOLDEN=1` the page is written. The Chinese page keeps its own texts, by command and
//! option; a new option appears there in English until somebody translates it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use clap::{Arg, Command};

/// Phrases of the page in one language.
struct Phrases {
    page: &'static str,
    header: &'static str,
    default: &'static str,
    values: &'static str,
    above: &'static str,
    end: &'static str,
    separator: &'static str,
}

const ENGLISH: Phrases = Phrases {
    page: "reference.md",
    header: "| option | meaning |",
    default: " Default: ",
    values: " Values: ",
    above: "As above: ",
    end: ".",
    separator: ", ",
};

const CHINESE: Phrases = Phrases {
    page: "zh/reference.md",
    header: "| 选项 | 含义 |",
    default: " 默认：",
    values: " 取值：",
    above: "同上：",
    end: "。",
    separator: "、",
};

/// Texts of a page that a person translated, by heading and option; option `""` is the paragraph
/// below the heading, `"**1"` the first group's title.
type Texts = BTreeMap<(String, String), String>;

/// Checks that a program's definitions are consistent, and compares its section of the page with
/// them, in both languages.
///
/// # Panics
/// If they differ.
pub fn check(mut command: Command) {
    command.build();
    for phrases in [&ENGLISH, &CHINESE] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("../../docs/guide")
            .join(phrases.page);
        let page = fs::read_to_string(&path).expect("the reference");
        let (begin, end) = (
            format!("<!-- {} -->\n", command.get_name()),
            format!("<!-- end of {} -->\n", command.get_name()),
        );
        let (head, rest) = page.split_once(&begin).expect("the section's beginning");
        let (current, tail) = rest.split_once(&end).expect("the section's end");
        let is_translated = phrases.page == CHINESE.page;
        let texts = if is_translated {
            texts(current)
        } else {
            Texts::new()
        };
        let rendered = Page::render(&command, phrases, &texts);
        if rendered == current {
            continue;
        }
        assert!(
            std::env::var_os("UPDATE_GOLDEN").is_some(),
            "{path:?} differs from the definitions of {}: UPDATE_GOLDEN=1 writes it",
            command.get_name()
        );
        let page = format!("{head}{begin}{rendered}{end}{tail}");
        fs::write(&path, page).expect("the reference");
    }
}

/// Reads the translated texts of a section.
fn texts(section: &str) -> Texts {
    let mut texts = Texts::new();
    let (mut heading, mut groups) = (String::new(), 0);
    for line in section.lines() {
        if line.starts_with('#') {
            heading = line.trim_start_matches(['#', ' ']).to_owned();
            groups = 0;
        } else if let Some(row) = line.strip_prefix("| `") {
            let Some((option, text)) = row.split_once("` | ") else {
                continue;
            };
            let text = text.trim_end_matches(" |");
            let ends = [CHINESE.default, CHINESE.values].map(|phrase| text.find(phrase));
            let end = ends.into_iter().flatten().min().unwrap_or(text.len());
            let key = (heading.clone(), option.to_owned());
            texts.insert(key, text[..end].to_owned());
        } else if let Some(title) = line.strip_prefix("**") {
            groups += 1;
            let title = title.trim_end_matches("**").to_owned();
            texts.insert((heading.clone(), format!("**{groups}")), title);
        } else if !line.is_empty() && !line.starts_with(['|', '`', '<']) {
            let key = (heading.clone(), String::new());
            texts.entry(key).or_insert_with(|| line.to_owned());
        }
    }
    texts
}

/// A section that is being rendered.
struct Page<'a> {
    phrases: &'a Phrases,
    texts: &'a Texts,
    /// English texts of the options so far.
    seen: BTreeMap<String, String>,
    text: String,
}

impl<'a> Page<'a> {
    fn render(command: &Command, phrases: &'a Phrases, texts: &'a Texts) -> String {
        let mut page = Self {
            phrases,
            texts,
            seen: BTreeMap::new(),
            text: String::new(),
        };
        page.command(command, 2, command.get_name());
        page.text
    }

    /// Returns the translated text of an option, or the English one.
    fn translated(&self, heading: &str, option: &str, english: &str) -> String {
        let key = (heading.to_owned(), option.to_owned());
        let own = self.texts.get(&key);
        own.map_or(english, String::as_str).to_owned()
    }

    fn command(&mut self, command: &Command, level: usize, name: &str) {
        let about = command.get_about().map(ToString::to_string);
        let about = self.translated(name, "", &sentence(&about.unwrap_or_default()));
        let _ = write!(self.text, "{} {name}\n\n{about}\n\n", "#".repeat(level));
        let mut usage = command.clone().render_usage().to_string();
        usage = usage.replace("Usage: ", "").replace("\n       ", "\n");
        let _ = write!(self.text, "```text\n{}\n```\n\n", usage.trim());
        self.options(command, name);
        for subcommand in command.get_subcommands() {
            if subcommand.is_hide_set() || subcommand.get_name() == "help" {
                continue;
            }
            let name = format!("{name} {}", subcommand.get_name());
            self.command(subcommand, 3, &name);
        }
    }

    /// A table for each group of options, without those that an earlier command has.
    fn options(&mut self, command: &Command, name: &str) {
        let is_shown = |arg: &&Arg| {
            !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str())
        };
        let mut groups: Vec<(Option<&str>, Vec<&Arg>)> = Vec::new();
        for arg in command.get_arguments().filter(is_shown) {
            let heading = arg.get_help_heading();
            match groups.iter_mut().find(|(title, _)| *title == heading) {
                Some((_, args)) => args.push(arg),
                None => groups.push((heading, vec![arg])),
            }
        }
        let (mut above, mut titles) = (Vec::new(), 0);
        for (title, args) in groups {
            let (old, new): (Vec<&Arg>, Vec<&Arg>) =
                args.into_iter().partition(|arg| self.is_seen(arg));
            above.extend(old.into_iter().map(|arg| format!("`{}`", short(arg))));
            if new.is_empty() {
                continue;
            }
            if let Some(title) = title {
                titles += 1;
                let title = self.translated(name, &format!("**{titles}"), title);
                let _ = write!(self.text, "**{title}**\n\n");
            }
            let _ = write!(self.text, "{}\n|---|---|\n", self.phrases.header);
            for arg in new {
                self.row(arg, name);
            }
            self.text.push('\n');
        }
        if !above.is_empty() {
            let list = above.join(self.phrases.separator);
            let (above, end) = (self.phrases.above, self.phrases.end);
            let _ = write!(self.text, "{above}{list}{end}\n\n");
        }
    }

    /// Returns true if an earlier command has the same option; remembers it.
    fn is_seen(&mut self, arg: &Arg) -> bool {
        let text = format!("{}{:?}", help(arg), arg.get_default_values());
        let old = self.seen.insert(option(arg), text.clone());
        old.is_some_and(|old| old == text)
    }

    fn row(&mut self, arg: &Arg, name: &str) {
        let option = option(arg);
        let mut text = self.translated(name, &option, &sentence(&help(arg)));
        let phrases = self.phrases;
        let values = arg.get_possible_values();
        let values: Vec<_> = values.iter().filter(|value| !value.is_hide_set()).collect();
        let takes_value = arg.get_action().takes_values();
        if takes_value && !values.is_empty() {
            let names = values.iter().map(|value| format!("`{}`", value.get_name()));
            let names = names.collect::<Vec<_>>().join(phrases.separator);
            let _ = write!(text, "{}{names}{}", phrases.values, phrases.end);
        }
        let default = arg.get_default_values().first();
        if takes_value && let Some(default) = default {
            let default = default.to_string_lossy();
            let _ = write!(text, "{}`{default}`{}", phrases.default, phrases.end);
        }
        let _ = writeln!(self.text, "| `{option}` | {text} |");
    }
}

/// Returns an option or argument as it is written on a command line.
fn option(arg: &Arg) -> String {
    let value = arg.get_value_names().unwrap_or_default();
    let value = value.first().map(|value| value.replace('|', "\\|"));
    let takes_value = arg.get_action().takes_values();
    let value = value.filter(|_| takes_value).unwrap_or_default();
    let is_optional = arg
        .get_num_args()
        .is_some_and(|range| range.min_values() == 0);
    if let (true, Some(long)) = (is_optional && takes_value, arg.get_long()) {
        return format!("--{long}[={value}]");
    }
    match (arg.get_short(), arg.get_long()) {
        (None, None) => value,
        (Some(short), None) => format!("-{short} {value}").trim_end().to_owned(),
        (None, Some(long)) => format!("--{long} {value}").trim_end().to_owned(),
        (Some(short), Some(long)) => format!("-{short}, --{long} {value}").trim_end().to_owned(),
    }
}

fn short(arg: &Arg) -> String {
    let named = arg.get_short().map(|short| format!("-{short}"));
    let long = || arg.get_long().map(|long| format!("--{long}"));
    named.or_else(long).unwrap_or_else(|| option(arg))
}

/// Returns the help of an option, as one line that fits into a table.
fn help(arg: &Arg) -> String {
    let help = arg.get_help().map(ToString::to_string);
    let words = help.unwrap_or_default();
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "\\<")
}

fn sentence(text: &str) -> String {
    if text.is_empty() || text.ends_with(['.', ')', ']']) {
        return text.to_owned();
    }
    format!("{text}.")
}
