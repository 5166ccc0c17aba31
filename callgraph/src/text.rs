//! Text layout without a font: widths from a built-in table, and line breaks in names.

use std::ops::Range;

/// Advance widths of Helvetica (and of metrically compatible fonts: Arial, Liberation Sans, Nimbus
/// Sans) for `' '..='~'`, in thousandths of the font size.
const WIDTHS: [u16; 95] = [
    278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, // space-/
    556, 556, 556, 556, 556, 556, 556, 556, 556, 556, 278, 278, 584, 584, 584, 556, // 0-?
    1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778, // @-O
    667, 778, 722, 667, 611, 722, 667, 944, 667, 667, 611, 278, 278, 278, 469, 556, // P-_
    333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222, 833, 556, 556, // `-o
    556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584, // p-~
];

/// Advance widths of DejaVu Sans, like [`WIDTHS`]. Viewers without a font of Helvetica's widths use
/// DejaVu Sans, or Verdana, which is equally wide. Some viewers (librsvg) ignore `textLength`.
const WIDE_WIDTHS: [u16; 95] = [
    318, 401, 460, 838, 636, 950, 780, 275, 390, 390, 500, 838, 318, 361, 318, 337, // space-/
    636, 636, 636, 636, 636, 636, 636, 636, 636, 636, 337, 337, 838, 838, 838, 531, // 0-?
    1000, 684, 686, 698, 770, 632, 575, 775, 752, 295, 295, 656, 557, 863, 748, 787, // @-O
    603, 787, 695, 635, 611, 732, 684, 989, 685, 611, 685, 390, 337, 390, 838, 500, // P-_
    500, 613, 635, 550, 635, 615, 352, 635, 634, 278, 278, 579, 278, 974, 634, 612, // `-o
    635, 635, 411, 521, 392, 634, 592, 818, 592, 592, 525, 636, 337, 636, 838, // p-~
];
/// Maximum width of a letter outside ASCII in DejaVu Sans.
const WIDE_LETTER: f64 = 1.1;

/// Fonts with the widths in `WIDTHS`. Nearly every system has one of them.
pub const FONT: &str = "Helvetica, Arial, 'Liberation Sans', 'Nimbus Sans', sans-serif";

/// Maximum length of a name, in characters. Longer names are shortened in the middle.
const MAX_NAME: usize = 120;
/// Maximum number of lines of a name.
const MAX_LINES: usize = 6;

/// Returns the width of `text` at font size 1.
pub fn width(text: &str) -> f64 {
    text.chars().map(char_width).sum()
}

fn char_width(c: char) -> f64 {
    match c {
        ' '..='~' => f64::from(WIDTHS[c as usize - 32]) / 1000.0,
        '…' | '—' => 1.0,
        // Latin, Greek and Cyrillic characters are at most this wide. Most of the others are
        // ideographs and symbols, which are full squares.
        '\u{a0}'..='\u{58f}' => 0.78,
        _ => 1.0,
    }
}

/// Returns the width that `text` needs at font size 1 in any of the usual fonts.
pub fn max_width(text: &str) -> f64 {
    let wide = |c: char| match c {
        ' '..='~' => f64::from(WIDE_WIDTHS[c as usize - 32]) / 1000.0,
        _ => WIDE_LETTER,
    };
    let wide: f64 = text.chars().map(wide).sum();
    wide.max(width(text))
}

/// Replaces characters that cannot be shown by U+FFFD, so that they break neither XML nor a line.
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if is_shown(c) { c } else { '\u{fffd}' })
        .collect()
}

/// Returns true for characters that a line of text may contain: those that XML 1.0 allows, except
/// for control characters, line ends and bidirectional controls.
pub fn is_shown(c: char) -> bool {
    !c.is_control()
        && !matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{2028}' | '\u{2029}')
        // Bidirectional controls could make a name read as another one.
        && !matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Breaks a function name into lines. A name of at most the width `free_width` (at font size 1)
/// stays on one line, up to a limit. Shortens a very long name first.
pub fn wrap_name(name: &str, free_width: f64) -> Vec<String> {
    let name = shorten(&printable(name), MAX_NAME);
    if name.trim().is_empty() {
        return vec!["?".to_string()];
    }
    let pieces = pieces(&name);
    let widest = pieces.iter().map(|p| width(p)).fold(0.0, f64::max);
    let total = width(&name);
    // Aims at a box about three times as wide as it is high. A line is as high as two digits are
    // wide.
    let width_aim = (total * 3.2)
        .sqrt()
        .max(widest)
        .clamp(7.0, 20.0)
        .max(free_width.min(20.0));
    let mut lines = fill_lines(&pieces, width_aim);
    if lines.len() > MAX_LINES {
        lines = fill_lines(&pieces, total / MAX_LINES as f64 + widest);
    }
    lines
}

/// Fills lines up to a width. Breaks between pieces only, or inside a piece that is too long.
fn fill_lines(pieces: &[String], width_aim: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for piece in pieces {
        if !line.is_empty() && width(&line) + width(piece.trim_end()) > width_aim {
            lines.push(std::mem::take(&mut line));
        }
        for c in piece.chars() {
            // A piece of more than one and a half lines has no better place to break.
            if width(&line) > width_aim * 1.5 {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    lines.push(line);
    lines
        .iter()
        .map(|l| l.trim().to_string())
        .filter(|l| !l.is_empty())
        .collect()
}

/// Splits a name where it may break: after `::`, `,`, `/`, `>`, `.`, spaces, and underscores inside
/// long words; before `<`, `(`, `[` and `{`.
fn pieces(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut pieces = Vec::new();
    let mut piece = String::new();
    for (i, &c) in chars.iter().enumerate() {
        let before = i.checked_sub(1).map(|j| chars[j]);
        let opens = matches!(c, '<' | '(' | '[' | '{') && before.is_some_and(char::is_alphanumeric);
        let after_path = before == Some(':') && c != ':';
        let after_mark = matches!(before, Some(',' | '/' | ' ' | '>')) && is_word(c);
        // Does not break at the dot of a file name that follows the function's name.
        let in_file = piece.starts_with('(');
        let after_dot = before == Some('.') && is_word(c) && is_long_word(&piece) && !in_file;
        let after_underscore = before == Some('_') && c != '_' && piece.chars().count() > 8;
        if opens || after_path || after_mark || after_dot || after_underscore {
            pieces.push(std::mem::take(&mut piece));
        }
        piece.push(c);
    }
    pieces.push(piece);
    pieces.retain(|p| !p.is_empty());
    pieces
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '(' | '<' | '[' | '{' | '*' | '~' | '&')
}

/// Returns true if a piece that ends in a dot is longer than an abbreviation, so that a break is
/// natural.
fn is_long_word(piece: &str) -> bool {
    piece.chars().count() > 3
}

/// Shortens a name to `max_length` characters: drops the inside of template and call brackets,
/// innermost first, then the middle.
fn shorten(name: &str, max_length: usize) -> String {
    let mut name = name.to_string();
    for _ in 0..64 {
        if name.chars().count() <= max_length {
            return name;
        }
        let Some(shorter) = drop_deepest(&name) else {
            break;
        };
        name = shorter;
    }
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= max_length {
        return name;
    }
    let head = max_length * 3 / 5;
    let tail = max_length * 2 / 5 - 1;
    let head: String = chars[..head].iter().collect();
    let tail: String = chars[chars.len() - tail..].iter().collect();
    format!("{head}…{tail}")
}

/// Replaces the inside of the longest innermost `<…>` or `(…)` by `…`. Returns `None` if that does
/// not make the name shorter.
fn drop_deepest(name: &str) -> Option<String> {
    let mut open: Option<usize> = None;
    let mut best: Option<Range<usize>> = None;
    for (at, c) in name.char_indices() {
        match c {
            '<' | '(' => open = Some(at + 1),
            '>' | ')' => {
                if let Some(from) = open.take()
                    && at - from > '…'.len_utf8()
                    && best.as_ref().is_none_or(|b| at - from > b.len())
                {
                    best = Some(from..at);
                }
            }
            _ => {}
        }
    }
    best.map(|inside| format!("{}…{}", &name[..inside.start], &name[inside.end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_stay_on_one_line() {
        assert_eq!(wrap_name("main", 0.0), ["main"]);
        assert_eq!(wrap_name("zmalloc", 0.0), ["zmalloc"]);
        assert_eq!(wrap_name("   ", 0.0), ["?"]);
    }

    #[test]
    fn cpp_names_break_at_their_joints() {
        let lines = wrap_name(
            "std::vector<std::string, std::allocator<std::string> >::push_back",
            0.0,
        );
        assert_eq!(lines.concat().replace(' ', ""), {
            "std::vector<std::string,std::allocator<std::string>>::push_back"
        });
        assert!(lines.len() > 1 && lines.len() <= MAX_LINES, "{lines:?}");
        assert!(
            lines
                .iter()
                .skip(1)
                .all(|l| !l.starts_with(',') && !l.starts_with(':'))
        );
    }

    #[test]
    fn a_file_after_a_name_is_not_broken() {
        let lines = wrap_name("Worker.handle (worker.py:12)", 0.0);
        assert_eq!(lines, ["Worker.handle", "(worker.py:12)"]);
    }

    #[test]
    fn very_long_names_lose_template_arguments_first() {
        let name = format!(
            "ns::map<{}>::insert(int, {})",
            "a, ".repeat(100),
            "b, ".repeat(100)
        );
        let lines = wrap_name(&name, 0.0).concat();
        assert!(lines.starts_with("ns::map<…>::insert("), "{lines}");
        assert!(lines.chars().count() <= MAX_NAME);
    }

    #[test]
    fn endless_words_are_cut_and_broken() {
        let lines = wrap_name(&"x".repeat(10_000), 0.0);
        assert!(lines.len() <= MAX_LINES, "{lines:?}");
        assert!(lines.iter().all(|l| width(l) < 40.0), "{lines:?}");
    }

    #[test]
    fn control_and_direction_characters_are_removed() {
        let shown = printable("a\nb\0c\u{202e}d\u{ffff}");
        assert_eq!(shown, "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}");
    }
}
