//! Command-line options that make a Python interpreter ignore its environment, on which
//! [`PYTHON_HIDES`](crate::layout::PYTHON_HIDES) depends. The agent reads them when its program
//! starts, the controller before that.

/// Returns true if the arguments after the program's name make CPython ignore its environment
/// (`-I`, `-E`).
pub fn ignore_environment<'a>(arguments: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let mut arguments = arguments.into_iter();
    while let Some([b'-', letters @ ..]) = arguments.next() {
        if letters == b"-check-hash-based-pycs" {
            arguments.next();
        }
        if letters.first() == Some(&b'-') {
            continue;
        }
        for (index, letter) in letters.iter().enumerate() {
            match letter {
                b'I' | b'E' => return true,
                b'c' | b'm' => return false,
                b'W' | b'X' => {
                    // The option's value is the rest of this argument, or the next one.
                    if index + 1 == letters.len() {
                        arguments.next();
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_among_others() {
        let ignore = |line: &str| ignore_environment(line.split(' ').map(str::as_bytes));
        for line in [
            "-I x.py",
            "-sE",
            "-X dev -I x.py",
            "-W ignore -uEm x",
            "--check-hash-based-pycs never -I",
        ] {
            assert!(ignore(line), "{line}");
        }
        for line in [
            "",
            "x.py -I",
            "-c -I",
            "-X E x.py",
            "-Wignore::E x.py",
            "-um E",
            "-",
            "-X",
            "--check-hash-based-pycs -I",
        ] {
            assert!(!ignore(line), "{line}");
        }
    }
}
