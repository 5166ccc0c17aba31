//! Demangles the names of C++, Rust and D functions.

mod d;
mod simple;

use cpp_demangle::{DemangleOptions, Symbol};
use profile::Profile;

/// Detail of a demangled name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Neither parameters nor template arguments, as pprof shows names.
    #[default]
    Simple,
    /// Template arguments, but no parameters.
    Templates,
    /// Template arguments and parameters, like c++filt.
    Full,
    /// No demangling.
    None,
}

/// Suffix of the name of a stub that jumps to the function of that name in another module.
const STUB_SUFFIX: &str = "@plt";

/// Demangles a name from a symbol table.
pub fn demangle(name: &str, style: Style) -> String {
    if style == Style::None {
        return name.to_owned();
    }
    if let Some(target) = name.strip_suffix(STUB_SUFFIX) {
        return demangle(target, style) + STUB_SUFFIX;
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // The alternate form omits the hash.
        return if style == Style::Full {
            format!("{rust}")
        } else {
            format!("{rust:#}")
        };
    }
    if name.starts_with("_Z") || name.starts_with("__Z") {
        let (base, suffix) = split_clone(name);
        if let Some(shown) = cpp(base, style) {
            return match style {
                Style::Full => shown + &clone_note(suffix),
                _ => shown,
            };
        }
    }
    d::demangle(name, style).unwrap_or_else(|| name.to_owned())
}

/// Demangles the names in a profile from a format with mangled names: perf's text, folded stacks,
/// some profiles in pprof's format.
pub fn demangle_profile(profile: &mut Profile, style: Style) {
    for function in &mut profile.functions {
        let is_own = function.system_name.is_empty() || function.system_name == function.name;
        if !is_own || !is_mangled(&function.name) {
            continue;
        }
        let shown = demangle(&function.name, style);
        if shown != function.name {
            function.system_name = std::mem::replace(&mut function.name, shown);
        }
    }
}

/// Returns true if a name begins like a mangled one.
fn is_mangled(name: &str) -> bool {
    ["_Z", "__Z", "_R", "_D"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// Formats a name from debug information, which is spelled as in the source.
pub fn of_source(name: &str, style: Style) -> String {
    if style != Style::Simple {
        return name.to_owned();
    }
    let short = without_templates(name);
    // `<lambda>` and the like consist of angle brackets only.
    if short.is_empty() || short.ends_with(':') {
        return name.to_owned();
    }
    short
}

/// Splits off the suffix of a cloned function, such as `.part.0`.
fn split_clone(name: &str) -> (&str, &str) {
    name.find('.').map_or((name, ""), |at| name.split_at(at))
}

fn clone_note(suffix: &str) -> String {
    if suffix.is_empty() {
        String::new()
    } else {
        format!(" [clone {suffix}]")
    }
}

fn cpp(name: &str, style: Style) -> Option<String> {
    let short = (style == Style::Simple).then(|| simple::simple(name));
    short
        .flatten()
        .or_else(|| cpp_by_library(name, style))
        .or_else(|| cpp_without_parameters(name, style))
}

/// Demangles a name without its parameters, because the library does not parse all of those:
/// `std::make_shared` of gcc 12 has `srSt8is_arrayIT_E5value`.
fn cpp_without_parameters(name: &str, style: Style) -> Option<String> {
    let (short, name) = simple::without_parameters(name)?;
    match style {
        Style::Simple => Some(short),
        _ => cpp_by_library(name, style),
    }
}

/// Demangles a name with `cpp_demangle`.
fn cpp_by_library(name: &str, style: Style) -> Option<String> {
    let symbol = Symbol::new(name).ok()?;
    let options = match style {
        Style::Full => DemangleOptions::new(),
        _ => DemangleOptions::new().no_params().no_return_type(),
    };
    let shown = symbol.demangle_with_options(&options).ok()?;
    // Empty argument packs leave commas behind, as in `<a, >`.
    let shown = move_references(&shown.replace(", >", ">").replace(",>", ">"));
    let shown = shorten_literals(&rewrite_thunk(name, shown));
    Some(if style == Style::Simple {
        let short = without_templates(&shown);
        // A reference qualifier of the function counts as a parameter.
        short.trim_end_matches(" &&").trim_end_matches(" &").into()
    } else {
        shown
    })
}

/// Rewrites the name of a thunk as c++filt does: `virtual thunk to f()`.
fn rewrite_thunk(name: &str, shown: String) -> String {
    let kind = match name.get(..4) {
        Some("_ZTh") => "non-virtual",
        Some("_ZTv") => "virtual",
        _ => return shown,
    };
    let inner = shown.strip_prefix("{virtual override thunk(");
    let inner = inner.and_then(|rest| rest.strip_suffix(")}"));
    match inner.and_then(|rest| rest.split_once(")}, ")) {
        Some((_, target)) => format!("{kind} thunk to {target}"),
        None => shown,
    }
}

/// Writes numbers of other types than `int` with a suffix: `1ul` rather than `(unsigned long)1`.
fn shorten_literals(name: &str) -> String {
    const SUFFIXES: [(&str, &str); 5] = [
        ("(unsigned long long)", "ull"),
        ("(unsigned long)", "ul"),
        ("(unsigned int)", "u"),
        ("(long long)", "ll"),
        ("(long)", "l"),
    ];
    let mut name = name.to_owned();
    for (cast, suffix) in SUFFIXES {
        let mut parts = name.split(cast);
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let digits = part.strip_prefix('-').unwrap_or(part);
            let digits = digits.len()
                - digits
                    .trim_start_matches(|c: char| c.is_ascii_digit())
                    .len();
            let length = digits + usize::from(digits > 0 && part.starts_with('-'));
            let (number, rest) = part.split_at(length);
            if number.is_empty() {
                out = out + cast + rest;
            } else {
                out = out + number + suffix + rest;
            }
        }
        name = out;
    }
    name
}

/// Moves a reference after the whole type: `A::B&` rather than `A&::B`, which is not a type.
fn move_references(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("&::") {
        let after = &rest[at + 1..];
        let inner = |c: char| c != ':' && c != '_' && !c.is_ascii_alphanumeric();
        let end = after.find(inner).unwrap_or(after.len());
        out.push_str(&rest[..at]);
        out.push_str(&after[..end]);
        out.push('&');
        rest = &after[end..];
    }
    out + rest
}

/// Removes template arguments: everything between angle brackets that do not belong to an operator.
fn without_templates(name: &str) -> String {
    let bytes = name.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut depth = 0usize;
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        if depth == 0
            && let Some(length) = operator_length(&out, rest)
        {
            out.extend_from_slice(&rest[..length]);
            at += length;
            continue;
        }
        match rest[0] {
            b'<' => depth += 1,
            // The arrow of a function type inside the arguments does not close a
            // bracket.
            b'>' if depth > 0 && bytes[..at].ends_with(b"-") => {}
            b'>' if depth > 0 => depth -= 1,
            c if depth == 0 => out.push(c),
            _ => {}
        }
        at += 1;
    }
    if depth == 0 {
        String::from_utf8(out).unwrap_or_else(|_| name.to_owned())
    } else {
        name.to_owned()
    }
}

/// Returns the length of an operator with angle brackets, such as `<<=`, directly after `operator`.
fn operator_length(before: &[u8], rest: &[u8]) -> Option<usize> {
    if !before.ends_with(b"operator") {
        return None;
    }
    let operators: [&[u8]; 10] = [
        b"<=>", b"<<=", b">>=", b"->*", b"<<", b">>", b"<=", b">=", b"->", b"<",
    ];
    let found = operators
        .iter()
        .find(|op| rest.starts_with(op))
        .map(|op| op.len());
    found.or((rest[0] == b'>').then_some(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_names_lack_parameters_and_template_arguments() {
        let cases = [
            ("main", "main"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector::push_back",
            ),
            ("_Znwm", "operator new"),
            ("_ZlsRSoRK1A", "operator<<"),
            ("_ZNKSt4lessIiEclERKiS2_", "std::less::operator()"),
            ("_Z3fooIiEvT_", "foo"),
            ("_Zbroken", "_Zbroken"),
            ("_RNvCskwGfYPst2Cb_3foo3bar", "foo::bar"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
        ];
        for (mangled, expected) in cases {
            assert_eq!(demangle(mangled, Style::Simple), expected);
        }
    }

    #[test]
    fn full_names_match_cxxfilt() {
        let cases = [
            (
                "_ZNSt6vectorIiSaIiEE9push_backERKi",
                "std::vector<int, std::allocator<int> >::push_back(int const&)",
            ),
            ("_Znwm", "operator new(unsigned long)"),
            (
                "_ZlsRSoRK1A.part.0",
                "operator<<(std::ostream&, A const&) [clone .part.0]",
            ),
        ];
        for (mangled, expected) in cases {
            assert_eq!(demangle(mangled, Style::Full), expected);
        }
    }

    #[test]
    fn template_arguments_are_kept_if_requested() {
        assert_eq!(demangle("_Z3fooIiEvT_", Style::Templates), "foo<int>");
        assert_eq!(demangle("_Z3fooIiEvT_", Style::None), "_Z3fooIiEvT_");
    }

    #[test]
    fn lengths_beyond_the_end_of_a_name_of_d_are_refused() {
        for name in [
            "_D__T1aX9",
            "_D__T1aX9Z",
            "_D__T1aVAya9_00Z",
            "_D__T1aViA9",
            "_D9a",
        ] {
            assert_eq!(demangle(name, Style::Simple), name);
        }
    }

    /// Returns the mangled symbols of a file, and the names that c++filt prints for them.
    fn filtered(file: &str) -> Vec<(String, String)> {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let nm = Command::new("nm")
            .args(["-D", "--defined-only", file])
            .output();
        let names = String::from_utf8(nm.unwrap().stdout).unwrap();
        let name = |line: &str| {
            let mut fields = line.split(' ').skip(1);
            let kind = fields.next()?;
            let name = fields.next()?;
            // Only functions, since tables do not occur in stacks.
            let function = matches!(kind, "T" | "W" | "i");
            function.then_some(name.split('@').next()?.to_owned())
        };
        let mut names: Vec<String> = names.lines().filter_map(name).collect();
        names.retain(|n| n.starts_with("_Z") || n.starts_with("_R"));
        names.sort();
        names.dedup();
        let mut filter = Command::new("c++filt")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = filter.stdin.take().unwrap();
        let text = names.join("\n") + "\n";
        let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
        let output = filter.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        names
            .into_iter()
            .zip(shown.lines().map(str::to_owned))
            .collect()
    }

    /// Returns the short name of an instance in the standard library.
    fn short(name: &str) -> String {
        let traits = "char, std::char_traits<char>";
        let string = format!("std::basic_string<{traits}, std::allocator<char> >");
        let mut name = name.replace(&string, "std::string");
        for stream in ["ostream", "istream", "iostream"] {
            let long = format!("std::basic_{stream}<{traits} >");
            name = name.replace(&long, &format!("std::{stream}"));
        }
        let name = name
            .replace(" >", ">")
            .replace("decltype(nullptr)", "std::nullptr_t");
        let long = ["string", "ostream", "istream", "iostream"];
        long.iter().fold(name, |name, class| {
            let name = name.replace(&format!("::basic_{class}("), &format!("::{class}("));
            name.replace(&format!("::~basic_{class}("), &format!("::~{class}("))
        })
    }

    /// Nearly all names in the C++ library equal c++filt's, except that `std::string` and similar
    /// types are always written in their short form. The exceptions are constructor templates,
    /// whose first parameter is treated as a result type.
    #[test]
    fn demangled_library_names_match_cxxfilt() {
        let gcc = std::process::Command::new("gcc")
            .arg("-print-file-name=libstdc++.so.6")
            .output();
        let library = String::from_utf8(gcc.unwrap().stdout).unwrap();
        let pairs = filtered(library.trim());
        assert!(pairs.len() > 3000, "{}", pairs.len());
        let other: Vec<_> = pairs
            .iter()
            .filter(|(name, shown)| short(&demangle(name, Style::Full)) != short(shown))
            .collect();
        let strange: Vec<_> = other
            .iter()
            .filter(|(name, _)| !["C1I", "C2I"].iter().any(|c| name.contains(c)))
            .map(|(name, shown)| (demangle(name, Style::Full), shown))
            .collect();
        assert!(
            strange.is_empty(),
            "{} of {}: {strange:#?}",
            strange.len(),
            pairs.len()
        );
        assert!(
            other.len() * 100 < pairs.len(),
            "{} of {}",
            other.len(),
            pairs.len()
        );
    }

    /// Short names that are extracted directly equal those of the demangling library.
    #[test]
    fn both_ways_to_a_short_name_agree() {
        let gcc = std::process::Command::new("gcc")
            .arg("-print-file-name=libstdc++.so.6")
            .output();
        let library = String::from_utf8(gcc.unwrap().stdout).unwrap();
        let names = filtered(library.trim());
        let direct: Vec<_> = names
            .iter()
            .filter_map(|(name, _)| Some((name, simple::simple(name)?)))
            .collect();
        for (name, short) in &direct {
            let whole = cpp_by_library(name, Style::Simple);
            assert_eq!(whole.as_ref(), Some(short), "{name}");
        }
        assert!(
            direct.len() * 10 > names.len() * 8,
            "{} of {}",
            direct.len(),
            names.len()
        );
    }
}
