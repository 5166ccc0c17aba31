//! Hints about CPython, which keeps small objects in its own allocator. The agent sees at most the
//! arenas of that allocator, unless the environment has `PYTHONMALLOC=malloc`.

use mem_agents::text;
use profile::maps::Entry;
use shm_protocol::options::ignore_environment;

/// Environment variable that selects CPython's allocator.
pub const VARIABLE: &str = "PYTHONMALLOC";

/// Returns true for a file named like CPython's interpreter: `python`, `python3`, `python3.13t`.
pub fn is_interpreter(path: &[u8]) -> bool {
    let version = text::base_name(path).strip_prefix(b"python");
    version.is_some_and(|version| is_version(version.strip_suffix(b"t").unwrap_or(version)))
}

/// Returns true for a file named like a free-threaded interpreter, which takes all objects from its
/// own allocator and does not start with another one.
pub fn is_free_threaded(path: &[u8]) -> bool {
    is_interpreter(path) && path.ends_with(b"t")
}

/// Returns true for a file named like CPython's library, which other programs embed.
fn is_library(path: &[u8]) -> bool {
    let name = text::base_name(path).strip_prefix(b"libpython");
    let end = name.and_then(|name| name.windows(3).position(|part| part == b".so"));
    end.is_some_and(|end| name.is_some_and(|name| is_version(&name[..end])))
}

/// Parses the version of CPython from a file name such as `python3.7` or `libpython2.7.so.1.0`.
/// Returns it in the format of `PY_VERSION_HEX`, without the patch level.
pub fn version_of(path: &[u8]) -> Option<u32> {
    let name = text::base_name(path);
    let name = name.strip_prefix(b"lib").unwrap_or(name);
    let version = std::str::from_utf8(name.strip_prefix(b"python")?).ok()?;
    let (major, after_major) = version.split_once('.')?;
    let minor = after_major.split(|c: char| !c.is_ascii_digit()).next()?;
    let number = |digits: &str| digits.parse::<u8>().ok();
    Some((u32::from(number(major)?) << 24) | (u32::from(number(minor)?) << 16))
}

fn is_version(text: &[u8]) -> bool {
    text.iter().all(|b| *b == b'.' || b.is_ascii_digit())
}

/// Returns true if CPython takes small objects from its own allocator, given a value of
/// [`VARIABLE`].
pub fn hides_objects(value: Option<&[u8]>) -> bool {
    !matches!(value, Some(b"malloc" | b"malloc_debug"))
}

/// Returns true if a command line makes CPython ignore its environment (`-I`, `-E`), including
/// [`VARIABLE`].
pub fn ignores_environment<T: AsRef<[u8]>>(command_line: &[T]) -> bool {
    let mut arguments = command_line.iter().map(AsRef::as_ref);
    let is_python = |program: &[u8]| is_interpreter(program);
    arguments.next().is_some_and(is_python) && ignore_environment(arguments)
}

/// Returns a hint about running CPython processes whose small objects the agent cannot see, or
/// `None` if there are none. One line for all of them.
pub fn hint<'a>(processes: impl Iterator<Item = (i32, &'a [u8])>) -> Option<String> {
    let mut hiding = processes.filter(|(pid, _)| process_hides_objects(*pid));
    let (pid, name) = hiding.next()?;
    let verb = match hiding.count() {
        0 => "keeps".to_owned(),
        1 => "and another process keep".to_owned(),
        n => format!("and {n} other processes keep"),
    };
    let name = text::escape(name);
    Some(format!(
        "hint: {name} ({pid}) {verb} small objects in CPython's own allocator: start it with \
         {VARIABLE}=malloc (run --python-malloc)"
    ))
}

/// Returns true if a process is CPython and hides its small objects; false if that is unknown.
fn process_hides_objects(pid: i32) -> bool {
    let is_interpreter_process = || {
        let is_interpreter_file = |exe: Vec<u8>| is_interpreter(&exe) && !is_free_threaded(&exe);
        proc::exe(pid).is_some_and(is_interpreter_file)
    };
    let has_library = || {
        let maps = proc::maps(pid).unwrap_or_default();
        Entry::all(&maps).any(|entry| is_library(entry.path))
    };
    let is_python = is_interpreter_process() || has_library();
    let hides = |environment: Vec<u8>| {
        hides_objects(proc::value(&environment, VARIABLE))
            || ignores_environment(&proc::command_line(pid))
    };
    is_python && proc::environment(pid).is_some_and(hides)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreters_are_recognised_by_their_names() {
        for name in [
            "python",
            "/usr/bin/python3",
            "/opt/python3.11",
            "python3.13t",
        ] {
            assert!(is_interpreter(name.as_bytes()), "{name}");
        }
        for name in ["python-build", "pypy3", "ipython3", "python3.11-config", ""] {
            assert!(!is_interpreter(name.as_bytes()), "{name}");
        }
        assert!(is_free_threaded(b"/opt/python3.13t") && !is_free_threaded(b"/t/python3"));
        assert!(!is_free_threaded(b"pytest"));
        assert!(is_library(b"/usr/lib/libpython3.11.so.1.0"));
        for name in ["libpython3.11.a", "libpythonic.so", "libpython"] {
            assert!(!is_library(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn the_version_is_read_from_the_file_name() {
        for (name, version) in [
            ("/usr/bin/python3.7", Some(0x0307_0000)),
            ("/opt/lib/libpython3.13t.so.1.0", Some(0x030d_0000)),
            ("python2.7", Some(0x0207_0000)),
            ("libpython3.6m.so.1.0", Some(0x0306_0000)),
            ("/usr/bin/python3", None),
            ("libpython3.so", None),
            ("python3.999", None),
            ("python-build", None),
            ("pypy3.9", None),
        ] {
            assert_eq!(version_of(name.as_bytes()), version, "{name}");
        }
    }

    #[test]
    fn the_environment_decides_whether_objects_are_hidden() {
        let hides = |environment: &[u8]| hides_objects(proc::value(environment, VARIABLE));
        assert!(hides(b"PATH=/bin\0PYTHONMALLOCSTATS=1\0"));
        assert!(hides(b"PYTHONMALLOC=pymalloc\0"));
        assert!(hides(b"\xff\0XPYTHONMALLOC=malloc\0PYTHONMALLOC=\0"));
        assert!(!hides(b"PATH=/bin\0PYTHONMALLOC=malloc"));
        assert!(!hides(b"PYTHONMALLOC=malloc_debug\0"));
    }

    #[test]
    fn options_make_python_ignore_the_environment() {
        assert!(ignores_environment(&["/usr/bin/python3.11", "-sE", "x.py"]));
        assert!(!ignores_environment(&["/usr/bin/python3.11", "x.py", "-E"]));
        assert!(!ignores_environment(&["node", "-E"]));
        assert!(!ignores_environment::<&str>(&[]));
    }

    #[test]
    fn other_programs_get_no_hint() {
        let pid = std::process::id() as i32;
        assert_eq!(hint([(pid, &b"x"[..]), (i32::MAX, b"y")].into_iter()), None);
    }
}
