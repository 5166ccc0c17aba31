//! Names JIT code by the perf map that its runtime writes:
//! `/tmp/perf-PID.map`, lines of `START SIZE NAME` in hex.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use profile::{Profile, opening, printable};

use super::names::Names;
use super::process::{directory, pid_here};

/// Bytes read of a perf map; more than any program writes.
const MAX_BYTES: u64 = 1 << 28;

/// Reason why a perf map is not used.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{path}: {error}")]
    Unreadable { path: String, error: io::Error },
    #[error("{path}: it belongs to another user; --perf-map uses it anyway")]
    Foreign { path: String },
}

/// A function of JIT code.
struct Function<'a> {
    start: u64,
    size: u64,
    name: &'a str,
}

/// Names the addresses at `locations`, which lie in no file, by the perf map given or else by that
/// of the process, if it ran on this machine. Returns a warning for users if the map cannot be
/// used.
pub fn name(
    profile: &Profile,
    locations: &[usize],
    given: Option<&Path>,
    names: &mut Names,
) -> Option<String> {
    let read = match given {
        Some(path) => opening::regular(path)
            .and_then(read)
            .map_err(|error| Error::Unreadable {
                path: printable::path(path),
                error,
            }),
        None if locations.is_empty() => return None,
        None => read_of_process(profile)?,
    };
    let text = match read {
        Ok(text) => text,
        Err(error) => return Some(error.to_string()),
    };
    let text = String::from_utf8_lossy(&text);
    let mut functions: Vec<Function> = text.lines().filter_map(parse).collect();
    // If several functions were at an address, the last one in the file is current.
    functions.sort_by_key(|f| f.start);
    for &index in locations {
        let address = profile.locations[index].address;
        let after = functions.partition_point(|f| f.start <= address);
        let last = functions[..after].iter().next_back();
        if let Some(f) = last.filter(|f| address - f.start < f.size) {
            match script_function(f.name) {
                Some(function) => names.add_function(index, function),
                None => names.add_name(index, f.name),
            }
        }
    }
    None
}

/// Splits the name of a script's function into function, file and line. Returns `None` for other
/// names.
fn script_function(name: &str) -> Option<profile::Function> {
    let parts = python(name).or_else(|| javascript(name))?;
    Some(profile::Function {
        name: parts.function.to_owned(),
        system_name: name.to_owned(),
        file: parts.file.to_owned(),
        start_line: parts.line,
    })
}

/// Parts of the name of a script's function.
struct ScriptName<'a> {
    function: &'a str,
    file: &'a str,
    /// Line at which the function begins; 0 if unknown.
    line: u32,
}

/// Parses a name written by Python (`-X perf`): `py::work:/srv/app.py`.
fn python(name: &str) -> Option<ScriptName<'_>> {
    let (function, file) = name.strip_prefix("py::")?.split_once(':')?;
    (!function.is_empty() && !file.is_empty()).then_some(ScriptName {
        function,
        file,
        line: 0,
    })
}

/// Parses a name written by node (`--perf-basic-prof`): `JS:*render /srv/a.js:7:12`. The character
/// after the colon is the optimization level.
fn javascript(name: &str) -> Option<ScriptName<'_>> {
    let kinds = ["JS:", "LazyCompile:", "Function:", "Script:", "Eval:"];
    let rest = kinds.iter().find_map(|kind| name.strip_prefix(kind))?;
    let rest = rest.trim_start_matches(['*', '~', '^', '+']);
    // File names rarely contain spaces, nor do function names, except for those of accessors.
    let starts = [" /", " file:", " node:"];
    let at = starts.iter().filter_map(|start| rest.find(start)).min();
    let (function, position) = rest.split_at(at.or_else(|| rest.rfind(' '))?);
    let mut parts = position.trim_start().rsplitn(3, ':');
    let last = parts.next()?;
    let middle = parts.next()?;
    let first = parts.next();
    let number = |text: &str| text.parse::<u32>().ok();
    let (file, line) = match (first, number(middle), number(last)) {
        (Some(file), Some(line), Some(_)) => (file, line),
        (_, _, Some(line)) => (position.trim_start().rsplit_once(':')?.0, line),
        _ => return None,
    };
    let function = if function.is_empty() {
        "(anonymous)"
    } else {
        function
    };
    (!file.is_empty()).then_some(ScriptName {
        function,
        file,
        line,
    })
}

/// Reads the perf map of the profiled process: from its own `/tmp` (which may be a container's)
/// while it lives, otherwise from this program's. Returns `None` if there is none.
///
/// Any user can create a file of that name, so its owner must be the user of the process, root or
/// the current user. The error is a warning for users.
fn read_of_process(profile: &Profile) -> Option<Result<Vec<u8>, Error>> {
    let pid = pid_here(profile)?;
    let process = directory(pid).unwrap_or_else(|| PathBuf::from(format!("/proc/{pid}")));
    let inside = inner_pid(pid).unwrap_or(pid);
    let paths = [
        process.join(format!("root/tmp/perf-{inside}.map")),
        PathBuf::from(format!("/tmp/perf-{pid}.map")),
    ];
    let mut owners = vec![0, own_user()];
    owners.extend(std::fs::metadata(&process).map(|m| m.uid()));
    let open = |path: &PathBuf| Some((path.clone(), opening::regular(path).ok()?));
    let (path, file) = paths.iter().find_map(open)?;
    // These paths were built here, so they need no escapes.
    let path = path.display().to_string();
    let text = match file.metadata() {
        Ok(metadata) if owners.contains(&metadata.uid()) => read(file),
        Ok(_) => return Some(Err(Error::Foreign { path })),
        Err(error) => Err(error),
    };
    Some(text.map_err(|error| Error::Unreadable { path, error }))
}

fn own_user() -> u32 {
    // SAFETY: geteuid has no precondition.
    unsafe { libc::geteuid() }
}

/// Returns the process's pid in its own PID namespace.
fn inner_pid(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

/// Parses one line of a perf map.
fn parse(line: &str) -> Option<Function<'_>> {
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let (start, rest) = line.split_once(' ')?;
    let (size, name) = rest.trim_start().split_once(' ')?;
    let name = name.trim();
    Some(Function {
        start: hex(start)?,
        size: hex(size)?,
        name: (!name.is_empty()).then_some(name)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_scripts_have_their_location() {
        let message = |name| script_function(name).map(|f| (f.name, f.file, f.start_line));
        for (name, (shown, file, line)) in [
            ("py::Cache.put:/srv/app.py", ("Cache.put", "/srv/app.py", 0)),
            ("JS:*render /srv/a.js:7:12", ("render", "/srv/a.js", 7)),
            (
                "LazyCompile:~ /srv/a.js:9:1",
                ("(anonymous)", "/srv/a.js", 9),
            ),
            (
                "JS:^get size /srv/my app/a.js:7:1",
                ("get size", "/srv/my app/a.js", 7),
            ),
            ("JS:+emit node:events:508:44", ("emit", "node:events", 508)),
            ("JS:*render a.js:7", ("render", "a.js", 7)),
            ("JS:f file:///srv/m.mjs:1:2", ("f", "file:///srv/m.mjs", 1)),
        ] {
            let expected = (shown.to_owned(), file.to_owned(), line);
            assert_eq!(message(name), Some(expected), "{name}");
        }
        for name in [
            "Builtin:ArrayMap",
            "py::",
            "py::f",
            "JS:",
            "JS:f",
            "JS:f x",
            "Lcom/A;::b",
            "JS:f :1:2",
        ] {
            assert_eq!(message(name), None, "{name}");
        }
    }

    #[test]
    fn perf_map_lines_are_parsed() {
        let f = parse("7f00 1a LazyCompile:*work /a b.js:3").unwrap();
        assert_eq!((f.start, f.size), (0x7f00, 0x1a));
        assert_eq!(f.name, "LazyCompile:*work /a b.js:3");
        assert_eq!(parse("0x10 0x2 f").unwrap().size, 2);
        for bad in ["", "7f00", "7f00 1a", "7f00 1a ", "x 1a f", "1 -1 f"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
