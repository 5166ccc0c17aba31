//! Names of C++ and Rust functions as people read them.

use clap::ValueEnum;
use cpp_demangle::{DemangleOptions, Symbol};

/// How much of a demangled name is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Style {
    /// Neither parameters nor template arguments, as pprof shows names
    #[default]
    Simple,
    /// Template arguments, but no parameters
    Templates,
    /// Everything, as c++filt
    Full,
    /// The name in the symbol table
    None,
}

/// The name to show for one in a symbol table.
pub fn demangle(name: &str, style: Style) -> String {
    if style == Style::None {
        return name.to_owned();
    }
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // The alternate form leaves the hash out.
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
    name.to_owned()
}

/// Splits off what compilers append to copies of a function: `.part.0`.
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
    let symbol = Symbol::new(name).ok()?;
    let options = match style {
        Style::Full => DemangleOptions::new(),
        _ => DemangleOptions::new().no_params().no_return_type(),
    };
    let shown = symbol.demangle_with_options(&options).ok()?;
    // `<a, >` and the like: empty argument packs leave commas behind.
    let shown = shown.replace(", >", ">").replace(",>", ">");
    Some(if style == Style::Simple {
        without_templates(&shown)
    } else {
        shown
    })
}

/// Removes template arguments: everything between angle brackets that are no
/// operator.
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
            // The arrow of a function type inside the arguments is no end.
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

/// Length of `<`, `<<=`, `->` and the like directly behind `operator`.
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
    fn full_names_are_as_cxxfilt_prints_them() {
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
    fn template_arguments_are_kept_when_asked_for() {
        assert_eq!(demangle("_Z3fooIiEvT_", Style::Templates), "foo<int>");
        assert_eq!(demangle("_Z3fooIiEvT_", Style::None), "_Z3fooIiEvT_");
    }
}
