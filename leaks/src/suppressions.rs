//! Suppressions of known leaks, in LeakSanitizer's format.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use mem_agents::text;

/// Maximum size of a file, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of templates, over all files.
const MAX_TEMPLATES: usize = 10_000;

/// Templates in the order in which they are tried.
#[derive(Clone, Debug, Default)]
pub struct Suppressions {
    templates: Vec<String>,
}

impl Suppressions {
    /// Adds the suppressions of a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line is invalid. The text names file and line.
    pub fn add_file(&mut self, path: &Path) -> Result<(), String> {
        let name = text::path(path);
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes))
            .map_err(|error| format!("{name}: the suppressions cannot be read: {error}"))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(format!(
                "{name}: more than {}, too large for a file of suppressions: name another",
                text::bytes(MAX_BYTES as f64)
            ));
        }
        self.add(&bytes)
            .map_err(|(line, what)| format!("{name}:{line}: {what}"))
    }

    /// Adds suppressions that the program declares. The error text is for display.
    pub fn add_declared(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.add(bytes)
            .map_err(|(line, what)| format!("__lsan_default_suppressions(), line {line}: {what}"))
    }

    /// Adds the suppressions of a text. The error has the line number and a description.
    fn add(&mut self, bytes: &[u8]) -> Result<(), (usize, String)> {
        for (line, number) in bytes.split(|byte| *byte == b'\n').zip(1..) {
            let line = std::str::from_utf8(line).ok().filter(|l| !l.contains('\0'));
            let line = line.ok_or((number, "not text: name a file of suppressions".to_owned()))?;
            let line = line.trim_matches([' ', '\t', '\r']);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let Some(template) = line.strip_prefix("leak:") else {
                let start: String = line.chars().take(40).collect();
                let start = text::escape(start.as_bytes());
                return Err((
                    number,
                    format!("\"{start}\" is not a suppression: write leak:TEMPLATE"),
                ));
            };
            if self.templates.len() == MAX_TEMPLATES {
                let why = format!("more than {MAX_TEMPLATES} suppressions: join some with *");
                return Err((number, why));
            }
            self.templates.push(template.to_owned());
        }
        Ok(())
    }

    /// Returns true if there are no templates.
    pub fn is_empty(&self) -> bool {
        self.templates.is_empty()
    }

    /// Returns a template, for display.
    pub fn template(&self, index: usize) -> String {
        let template = self.templates.get(index).map_or("", |text| text);
        text::escape(template.as_bytes())
    }

    /// Returns the index of the first template that matches a text. Compares at most `bytes_left`
    /// bytes, and subtracts what it compared.
    pub fn first_match(&self, text: &str, bytes_left: &mut u64) -> Option<usize> {
        self.templates.iter().position(|template| {
            let cost = (template.len() + text.len()) as u64;
            let is_affordable = *bytes_left >= cost;
            *bytes_left = bytes_left.saturating_sub(cost);
            is_affordable && matches(template, text)
        })
    }
}

/// Returns true if a text matches a template, as in LeakSanitizer: the parts between `*` must occur
/// in order. `^` at the start and `$` anchor the text's beginning and end. Each part matches at its
/// first occurrence, without backtracking, so the time is linear in both lengths.
fn matches(template: &str, text: &str) -> bool {
    if text.is_empty() {
        return false;
    }
    let mut is_start = template.starts_with('^');
    let mut template = template.strip_prefix('^').unwrap_or(template);
    let mut text = text;
    let mut is_after_star = false;
    while !template.is_empty() {
        if let Some(rest) = template.strip_prefix('*') {
            template = rest;
            is_start = false;
            is_after_star = true;
            continue;
        }
        if template.starts_with('$') {
            return text.is_empty() || is_after_star;
        }
        let end = template.find(['*', '$']).unwrap_or(template.len());
        let (part, rest) = template.split_at(end);
        let found = if is_start {
            text.starts_with(part).then_some(0)
        } else {
            text.find(part)
        };
        let Some(found) = found else {
            return false;
        };
        text = &text[found + part.len()..];
        template = rest;
        is_start = false;
        is_after_star = false;
    }
    true
}

#[cfg(test)]
mod tests;
