//! Names of JIT code, from the list that its maker
//! writes: `/tmp/perf-PID.map`, lines of `START SIZE NAME` in hex.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use heap_format::{Profile, opening, printable};

use super::names::Names;
use super::process::pid_here;

/// More than any program writes.
const MOST_BYTES: u64 = 1 << 28;

/// Why a list is not used.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{path}: {error}")]
    Unreadable { path: String, error: io::Error },
    #[error("{path}: it is of another user; --perf-map takes it all the same")]
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
            names.add_name(number, f.name);
        }
    }
    None
}

/// The list of the profiled process: in its own `/tmp` while it lives, which
/// may be a container's, otherwise in ours.
///
/// Anybody can leave a file of that name behind, so it must be of the one who runs the
/// process, of root or of the reader. The error is a warning for people.
fn own(profile: &Profile) -> Option<Result<Vec<u8>, Error>> {
    let pid = pid_here(profile)?;
    let process = PathBuf::from(format!("/proc/{pid}"));
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
