//! Formats text for display and for file names. Escapes bytes that a target chose.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use profile::printable::is_hidden;
use unicode_width::UnicodeWidthStr;

/// Maximum length of a process name within a file name, in bytes.
pub const NAME_BYTES: usize = 64;

/// Escapes bytes for a terminal: control characters, characters that reorder or hide text, line
/// ends and invalid UTF-8 become `\xNN`.
pub fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if is_hidden(c) {
                let mut utf8 = [0; 4];
                c.encode_utf8(&mut utf8)
                    .bytes()
                    .for_each(|b| hex(&mut out, b));
            } else {
                out.push(c);
            }
        }
        chunk.invalid().iter().for_each(|b| hex(&mut out, *b));
    }
    out
}

/// Escapes a path or file name for a terminal.
pub fn path(path: impl AsRef<OsStr>) -> String {
    escape(path.as_ref().as_bytes())
}

/// Escapes a line of text for a terminal.
pub fn line(text: &str) -> Cow<'_, str> {
    if text.chars().any(is_hidden) {
        Cow::Owned(escape(text.as_bytes()))
    } else {
        Cow::Borrowed(text)
    }
}

/// Escapes JSON for a terminal. Unsafe characters occur only within strings, so they become
/// `\uNNNN` escapes there. Line ends remain.
pub fn json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c != '\n' && is_hidden(c) {
            let mut units = [0; 2];
            for unit in c.encode_utf16(&mut units) {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

fn hex(out: &mut String, byte: u8) {
    // Writing to a String cannot fail.
    let _ = write!(out, "\\x{byte:02x}");
}

/// Turns a process name into part of a file name: letters, digits and `._+-`, at most
/// [`NAME_BYTES`] long, never starting with a dot.
pub fn file_name_part(name: &[u8]) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._+-".contains(&b);
    let clean: String = name
        .iter()
        .take(NAME_BYTES)
        .map(|&b| if is_plain(b) { char::from(b) } else { '_' })
        .collect();
    match clean.trim_start_matches('.') {
        "" => "process".to_owned(),
        rest => rest.to_owned(),
    }
}

/// Returns the last component of a path, without the kernel's ` (deleted)`.
pub fn base_name(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

/// Quotes a path for a shell if necessary. Paths with characters that are unsafe on a terminal are
/// quoted as `$'…'`, which bash, zsh, ksh and busybox understand.
pub fn shell_word(path: impl AsRef<OsStr>) -> String {
    let bytes = path.as_ref().as_bytes();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=".contains(c);
    match std::str::from_utf8(bytes) {
        Ok(text) if text.chars().any(is_hidden) => dollar_quoted(bytes),
        Ok(text) if !text.is_empty() && text.chars().all(is_plain) => text.to_owned(),
        Ok(text) => format!("'{}'", text.replace('\'', r"'\''")),
        Err(_) => dollar_quoted(bytes),
    }
}

fn dollar_quoted(bytes: &[u8]) -> String {
    let mut out = "$'".to_owned();
    // Always three digits, since a digit may follow.
    let octal = |out: &mut String, byte: u8| {
        // Writing to a String cannot fail.
        let _ = write!(out, "\\{byte:03o}");
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let mut utf8 = [0; 4];
            match c {
                '\'' | '\\' => out.extend(['\\', c]),
                _ if is_hidden(c) => c
                    .encode_utf8(&mut utf8)
                    .bytes()
                    .for_each(|byte| octal(&mut out, byte)),
                _ => out.push(c),
            }
        }
        chunk
            .invalid()
            .iter()
            .for_each(|byte| octal(&mut out, *byte));
    }
    out.push('\'');
    out
}

/// Formats a count with its noun in the singular or plural.
pub fn count(n: u64, one: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { more })
}

/// Formats a number of bytes with a suitable unit.
pub fn bytes(n: f64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n.max(0.0);
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{value:.0} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// Formats a fraction as a percentage with at most four decimals.
pub fn percent(share: f64) -> String {
    format!("{} %", (share * 1e6).round() / 1e4)
}

/// Formats a duration, rounded to the second, or to the minute if it is an hour or longer.
pub fn duration(time: Duration) -> String {
    const NEARLY_AN_HOUR: f64 = 3599.5;
    let s = time.as_secs_f64();
    let s = if s < NEARLY_AN_HOUR {
        s.round() as u64
    } else {
        (s / 60.0).round() as u64 * 60
    };
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} min", s / 3600, s / 60 % 60),
    }
}

/// Formats a duration that may be short, to three digits: `12.3 s`, `45.0 ms`.
pub fn short_time(time: Duration) -> String {
    let s = time.as_secs_f64();
    match s {
        0.0..0.9995 => format!("{:.1} ms", s * 1e3),
        0.0..99.95 => format!("{s:.2} s"),
        _ => duration(time),
    }
}

/// Formats a table whose columns are as wide as their widest cells. `right` lists the columns that
/// are flush right.
pub fn table(head: &[&str], right: &[usize], rows: Vec<Vec<String>>) -> Vec<String> {
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(column, (cell, width))| {
                // `width` counts two columns for a Chinese character.
                let space = " ".repeat(width - cell.width());
                if right.contains(&column) {
                    format!("{space}{cell}")
                } else {
                    format!("{cell}{space}")
                }
            });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_controls_are_escaped() {
        assert_eq!(escape(b"a\x1b[2Jb\n"), "a\\x1b[2Jb\\x0a");
        assert_eq!(
            escape("caf\u{e9} \u{202e}".as_bytes()),
            "caf\u{e9} \\xe2\\x80\\xae"
        );
        assert_eq!(escape(b"\xff/bin"), "\\xff/bin");
        assert_eq!(escape("\u{9b}2J\u{7f}".as_bytes()), "\\xc2\\x9b2J\\x7f");
        assert_eq!(escape("a\u{200b}b".as_bytes()), "a\\xe2\\x80\\x8bb");
        assert_eq!(line("two\nlines"), "two\\x0alines");
        assert_eq!(path("/tmp/\r"), "/tmp/\\x0d");
    }

    #[test]
    fn json_stays_json() {
        let value = serde_json::json!({ "name": "\u{1b}[2J\u{9b}\u{202e}\u{e0041}\u{7f}é" });
        let text = json(&serde_json::to_string_pretty(&value).unwrap());
        assert!(text.chars().all(|c| c == '\n' || !is_hidden(c)), "{text:?}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }

    #[test]
    fn file_names_cannot_leave_their_directory() {
        assert_eq!(file_name_part(b"../../etc/passwd"), "_.._etc_passwd");
        assert_eq!(file_name_part(b".hidden"), "hidden");
        assert_eq!(file_name_part(b"..."), "process");
        assert_eq!(file_name_part(b""), "process");
        assert_eq!(file_name_part(b"redis-server"), "redis-server");
        assert_eq!(file_name_part(&[b'a'; 500]).len(), NAME_BYTES);
    }

    #[test]
    fn shell_words_are_quoted_if_necessary() {
        for (path, word) in [
            ("/tmp/prof_x.1.heap", "/tmp/prof_x.1.heap"),
            ("/tmp/\u{e4}", "/tmp/\u{e4}"),
            ("/a b", "'/a b'"),
            ("/it's", r"'/it'\''s'"),
            ("/$(x)", "'/$(x)'"),
        ] {
            assert_eq!(shell_word(path), word);
        }
    }

    /// A shell decodes a word to the original bytes, and the word contains nothing that a terminal
    /// acts on.
    #[test]
    fn shell_words_decode_to_the_original_bytes() {
        let words: [&[u8]; 8] = [
            b"a\nb",
            b"a\n1'\\\x1b[31m",
            b"\xff\xfe 7",
            "\u{202e}\u{e4}$(x)`y`".as_bytes(),
            b"~/x",
            b"*",
            b"",
            b"\\n",
        ];
        for bytes in words {
            let word = shell_word(OsStr::from_bytes(bytes));
            assert!(!word.chars().any(is_hidden), "{word}");
            let mut bash = std::process::Command::new("bash");
            let output = bash.args(["-c", &format!("printf %s {word}")]).output();
            assert_eq!(output.unwrap().stdout, bytes, "{word}");
        }
    }

    #[test]
    fn base_names() {
        assert_eq!(base_name(b"/usr/bin/python3.11 (deleted)"), b"python3.11");
        assert_eq!(base_name(b"init"), b"init");
        assert_eq!(base_name(b""), b"");
    }

    #[test]
    fn tables_align() {
        let rows = vec![
            vec!["a".to_owned(), "1".to_owned()],
            vec!["long".to_owned(), "22".to_owned()],
        ];
        assert_eq!(
            table(&["NAME", "N"], &[1], rows),
            ["NAME   N", "a      1", "long  22"]
        );
        let wide = ["服务器", "e\u{301}", "b"].map(|name| vec![name.to_owned(), "7".to_owned()]);
        assert_eq!(
            table(&["NAME", "N"], &[1], wide.to_vec()),
            ["NAME    N", "服务器  7", "e\u{301}       7", "b       7"]
        );
    }

    #[test]
    fn units() {
        assert_eq!(bytes(1023.0), "1023 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(-4.0), "0 B");
    }

    #[test]
    fn durations_are_rounded_to_the_nearest() {
        for (seconds, text) in [
            (0.4, "0 s"),
            (4.995, "5 s"),
            (59.4, "59 s"),
            (59.6, "1 min 00 s"),
            (119.7, "2 min 00 s"),
            (3599.4, "59 min 59 s"),
            (3599.6, "1 h 00 min"),
            (3725.0, "1 h 02 min"),
            (3751.0, "1 h 03 min"),
            (7199.0, "2 h 00 min"),
        ] {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), text);
        }
    }
}
