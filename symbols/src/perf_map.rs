//! Names of JIT code, from the list that its maker
//! writes: `/tmp/perf-PID.map`, lines of `START SIZE NAME` in hex.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use heap_format::{Profile, opening, printable};

use super::names::Names;
use super::process::{directory, pid_here};

/// More than any program writes.
const MOST_BYTES: u64 = 1 << 28;

/// Why a list is not used.
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

/// Names those of `locations`, which are in no file, by the list given or by
/// that of the process, if it ran on this machine. Returns a warning for
/// people if the list given cannot be read.
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
        None => own(profile)?,
    };
    let text = match read {
        Ok(text) => text,
        Err(error) => return Some(error.to_string()),
    };
    let text = String::from_utf8_lossy(&text);
    let mut functions: Vec<Function> = text.lines().filter_map(parse).collect();
    // The last one written for an address is the one that was there at the end.
    functions.sort_by_key(|f| f.start);
    for &number in locations {
        let address = profile.locations[number].address;
        let behind = functions.partition_point(|f| f.start <= address);
        let found = functions[..behind].iter().next_back();
        if let Some(f) = found.filter(|f| address - f.start < f.size) {
            match function(f.name) {
                Some(function) => names.add_function(number, function),
                None => names.add_name(number, f.name),
            }
        }
    }
    None
}

/// What the name of a script's function says besides: its file, and the line where it begins.
fn function(name: &str) -> Option<heap_format::Function> {
    let (shown, file, start_line) = python(name).or_else(|| javascript(name))?;
    Some(heap_format::Function {
        name: shown.to_owned(),
        system_name: name.to_owned(),
        file: file.to_owned(),
        start_line,
    })
}

/// As Python writes it (`-X perf`): `py::work:/srv/app.py`.
fn python(name: &str) -> Option<(&str, &str, u32)> {
    let (shown, file) = name.strip_prefix("py::")?.split_once(':')?;
    (!shown.is_empty() && !file.is_empty()).then_some((shown, file, 0))
}

/// As node writes it (`--perf-basic-prof`): `JS:*render /srv/a.js:7:12`, with a mark of how far it
/// is optimized.
fn javascript(name: &str) -> Option<(&str, &str, u32)> {
    let kinds = ["JS:", "LazyCompile:", "Function:", "Script:", "Eval:"];
    let rest = kinds.iter().find_map(|kind| name.strip_prefix(kind))?;
    let rest = rest.trim_start_matches(['*', '~', '^', '+']);
    // Neither may a path hold blanks as a rule, nor a name, except for those of accessors.
    let starts = [" /", " file:", " node:"];
    let at = starts.iter().filter_map(|start| rest.find(start)).min();
    let (shown, place) = rest.split_at(at.or_else(|| rest.rfind(' '))?);
    let mut parts = place.trim_start().rsplitn(3, ':');
    let (last, middle, first) = (parts.next()?, parts.next()?, parts.next());
    let number = |text: &str| text.parse::<u32>().ok();
    let (file, line) = match (first, number(middle), number(last)) {
        (Some(file), Some(line), Some(_)) => (file, line),
        (_, _, Some(line)) => (place.trim_start().rsplit_once(':')?.0, line),
        _ => return None,
    };
    let shown = match shown.is_empty() {
        true => "(anonymous)",
        false => shown,
    };
    (!file.is_empty()).then_some((shown, file, line))
}

/// The list of the profiled process: in its own `/tmp` while it lives, which
/// may be a container's, otherwise in ours.
///
/// Anybody can leave a file of that name behind, so it must be of the one who runs the
/// process, of root or of the reader. The error is a warning for people.
fn own(profile: &Profile) -> Option<Result<Vec<u8>, Error>> {
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
    // These paths are of our own making: they need no escapes.
    let path = path.display().to_string();
    let text = match file.metadata().map(|m| owners.contains(&m.uid())) {
        Ok(true) => read(file),
        Ok(false) => return Some(Err(Error::Foreign { path })),
        Err(error) => Err(error),
    };
    Some(text.map_err(|error| Error::Unreadable { path, error }))
}

fn own_user() -> u32 {
    // SAFETY: it has no precondition.
    unsafe { libc::geteuid() }
}

/// The process's id in its own namespace.
fn inner_pid(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

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
    fn names_of_scripts_say_where_they_are() {
        let said = |name| function(name).map(|f| (f.name, f.file, f.start_line));
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
            assert_eq!(said(name), Some(expected), "{name}");
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
            assert_eq!(said(name), None, "{name}");
        }
    }

    #[test]
    fn lines_are_those_that_perf_reads() {
        let f = parse("7f00 1a LazyCompile:*work /a b.js:3").unwrap();
        assert_eq!((f.start, f.size), (0x7f00, 0x1a));
        assert_eq!(f.name, "LazyCompile:*work /a b.js:3");
        assert_eq!(parse("0x10 0x2 f").unwrap().size, 2);
        for bad in ["", "7f00", "7f00 1a", "7f00 1a ", "x 1a f", "1 -1 f"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
