use std::time::Instant;

use super::*;

#[test]
fn templates_match_as_in_leak_sanitizer() {
    for (template, text, is_match) in [
        ("foo", "a foo bar", true),
        ("foo", "fo", false),
        ("^foo", "foobar", true),
        ("^foo", "a foo", false),
        ("^foo$", "foo", true),
        ("^foo$", "foo2", false),
        ("foo$", "a foo", true),
        ("foo$", "foo a", false),
        // A part matches only at its first occurrence.
        ("foo$", "foo foo", false),
        ("^*foo", "a foo", true),
        ("^a*c$", "abc", true),
        ("a*b*c", "1a2b3c4", true),
        ("a*b*c", "1a2c3b4", false),
        ("*", "x", true),
        ("*$", "x", true),
        ("a*$", "a x", true),
        ("a**b", "ab", true),
        ("", "x", true),
        ("", "", false),
        ("*", "", false),
        ("^", "x", true),
        ("$", "x", false),
        ("lib*.so", "/usr/lib/libz.so.1", true),
        ("ä*ö", "xäyöz", true),
    ] {
        assert_eq!(matches(template, text), is_match, "{template:?} {text:?}");
    }
}

fn read(text: &[u8]) -> Result<Vec<String>, (usize, String)> {
    let mut suppressions = Suppressions::default();
    suppressions.add(text).map(|()| suppressions.templates)
}

#[test]
fn files_have_templates_comments_and_blank_lines() {
    let text = b"# known\n\nleak:one\r\n \t leak:two words \t\n   \r\n#leak:no\nleak:^a*b$";
    let expected = ["one", "two words", "^a*b$"];
    assert_eq!(read(text).unwrap(), expected);
    assert_eq!(read(b"").unwrap(), [""; 0]);
}

#[test]
fn errors_have_line_numbers() {
    for (text, line, what) in [
        (&b"leak:a\n\nrace:b\n"[..], 3, "\"race:b\""),
        (b"leak\n", 1, "leak:TEMPLATE"),
        (b"leak:a\nleak:\xff\n", 2, "not text"),
        (b"\x7fELF\x02\x01\0\0", 1, "not text"),
        (b"bad\x1b[31m", 1, "\\x1b"),
    ] {
        let (number, why) = read(text).unwrap_err();
        assert_eq!(number, line, "{why}");
        assert!(why.contains(what), "{why}");
    }
    let many = "leak:a\n".repeat(MAX_TEMPLATES + 1);
    let (number, why) = read(many.as_bytes()).unwrap_err();
    assert_eq!(number, MAX_TEMPLATES + 1);
    assert!(why.contains("more than"), "{why}");
    let mut suppressions = Suppressions::default();
    let endless = suppressions.add_file(Path::new("/dev/zero")).unwrap_err();
    assert!(
        endless.contains("/dev/zero: more than 1.0 MiB"),
        "{endless}"
    );
}

#[test]
fn matching_hostile_templates_terminates() {
    let begin = Instant::now();
    let text = "a".repeat(1 << 20);
    for template in [
        "*a".repeat(1 << 18),
        "a*".repeat(1 << 18) + "b",
        "aab*".repeat(9),
    ] {
        matches(&template, &text);
    }
    let mut suppressions = Suppressions::default();
    let line = format!("leak:{}b\n", "*a".repeat(40));
    suppressions.add(line.repeat(10_000).as_bytes()).unwrap();
    let mut left = 1 << 30;
    for _ in 0..1_000_000 {
        assert_eq!(suppressions.first_match(&text, &mut left), None);
        if left == 0 {
            break;
        }
    }
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
}
