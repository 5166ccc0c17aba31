//! Objects that one library allocates and another frees, however the two were loaded: a process has
//! one allocator, not two.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use mem_tests::{Outcome, Scratch, artifacts, run};

/// The agent asleep, awake, and over the program's own allocator.
const WAYS: [&[(&str, &str)]; 4] = [
    &[],
    &[("MEM_PROFILER_START", "1"), ("MEM_PROFILER_INTERVAL", "1")],
    &[
        ("MEM_PROFILER_START", "1"),
        ("MEM_PROFILER_INTERVAL", "1024"),
    ],
    &[
        ("MEM_PROFILER_ALLOCATOR", "system"),
        ("MEM_PROFILER_START", "1"),
        ("MEM_PROFILER_INTERVAL", "1"),
    ],
];

/// Runs a command without the agent, and with it in each way: all must end alike.
fn alike(scratch: &Scratch, command: impl Fn() -> Command) -> Outcome {
    let alone = run(command().stdin(Stdio::null()));
    assert_eq!(alone.code, Some(0), "{alone:?}");
    for way in WAYS {
        let mut command = command();
        command
            .env("LD_PRELOAD", artifacts::agent())
            .env("MEM_PROFILER_DIR", scratch.shared())
            .envs(way.iter().copied())
            .stdin(Stdio::null());
        let outcome = run(&mut command);
        assert_eq!(outcome.code, alone.code, "{way:?}: {outcome:?}");
        assert_eq!(outcome.stdout, alone.stdout, "{way:?}");
        assert_eq!(outcome.stderr, alone.stderr, "{way:?}");
    }
    alone
}

/// Returns a library in a directory below the test's.
fn library(scratch: &Scratch, directory: &str, name: &str, flags: &[&str]) -> PathBuf {
    std::fs::create_dir_all(scratch.file(directory)).expect("a new directory");
    let flags = [&["-shared", "-fPIC"], flags].concat();
    scratch.compile_as("guest.c", &format!("{directory}/{name}"), &flags)
}

#[test]
fn libraries_bound_to_themselves_first_share_the_programs_heap() {
    let scratch = Scratch::new();
    library(&scratch, "near", "libinner.so", &[]);
    library(&scratch, "far", "libhidden.so", &[]);
    let runpath = ["-Wl,-rpath,$ORIGIN/../far", "-Wl,--enable-new-dtags"];
    let guest = library(&scratch, "plugins", "libguest.so", &runpath);
    let early = ["-DEARLY", "-Wl,-rpath,$ORIGIN", "-Wl,-soname,libearly.so"];
    let early = library(&scratch, "near", "libearly.so", &early);
    let flags = [early.to_str().expect("UTF-8"), "-Wl,-rpath,$ORIGIN/near"];
    let host = scratch.compile("host.c", &flags);
    let outcome = alike(&scratch, || {
        let mut command = Command::new(&host);
        command.arg(&guest);
        command
    });
    let text = outcome.stdout;
    assert!(
        text.contains("by the program: null, libhidden.so: "),
        "{text}"
    );
    assert!(text.contains("by the guest: there, no error"), "{text}");
    assert!(text.ends_with("done\n"), "{text}");
}

#[test]
fn php_runs_with_its_extensions() {
    let scratch = Scratch::new();
    let script = "
        $xml = new DOMDocument();
        $xml->loadXML('<a>' . str_repeat('<b c=\"d\">text</b>', 500) . '</a>');
        echo strlen($xml->saveXML()), mb_strtoupper(str_repeat('grün', 300)),
            count(simplexml_load_string($xml->saveXML())->b),
            json_encode(array_map('md5', range(1, 500))), implode(',', get_loaded_extensions());";
    let outcome = alike(&scratch, || {
        let mut command = Command::new("php");
        command.args(["-r", script]);
        command
    });
    for extension in ["mbstring", "dom", "SimpleXML"] {
        assert!(outcome.stdout.contains(extension), "{extension} is missing");
    }
}

#[test]
fn python_frees_by_the_c_librarys_handle() {
    let scratch = Scratch::new();
    let script = "
import ctypes
libc = ctypes.CDLL('libc.so.6')
libc.strdup.restype = libc.malloc.restype = libc.realloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for size in range(1, 3000):
    libc.free(libc.strdup(b'x' * size))
    libc.free(libc.realloc(libc.malloc(size), size * 3))
print('done')";
    let outcome = alike(&scratch, || {
        let mut command = Command::new("python3");
        command.args(["-c", script]);
        command
    });
    assert_eq!(outcome.stdout, "done\n");
}
