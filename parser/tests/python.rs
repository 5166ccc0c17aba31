//! Python among native frames, in every view, on a hand-made dump.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use profile::{Detail, Function, Line, Mapping, Profile, ProfileBuilder, TRUNCATED_ADDRESS, dump};

const INTERPRETER: u64 = 0x40_0000;
const EXTENSION: u64 = 0x7f00_0000_0000;
const LIBC: u64 = 0x7f00_1000_0000;
const SERVER: u64 = 0x7f00_2000_0000;

/// A frame: native code of a module under a name, or a Python line.
#[derive(Clone, Copy)]
enum Frame {
    Native(u64, &'static str),
    Python(&'static str, &'static str, u32),
    Truncated,
}

use Frame::{Native, Python, Truncated};

const EVALUATION: Frame = Native(INTERPRETER, "_PyEval_EvalFrameDefault");
const CALL: Frame = Native(INTERPRETER, "cfunction_call");

/// Stack of a C extension that encodes a thumbnail, called through two Python functions.
const ENCODED: [Frame; 15] = [
    Native(LIBC, "malloc"),
    Native(INTERPRETER, "PyObject_Malloc"),
    Native(INTERPRETER, "PyBytes_FromStringAndSize"),
    Native(EXTENSION, "imaging_encode"),
    CALL,
    Python("make_thumbnail", "/srv/app.py", 4),
    EVALUATION,
    Native(INTERPRETER, "_PyEval_Vector"),
    Python("allocate", "/srv/app.py", 8),
    Python("<module>", "/srv/app.py", 11),
    EVALUATION,
    Native(INTERPRETER, "PyEval_EvalCode"),
    Native(INTERPRETER, "Py_RunMain"),
    Native(LIBC, "__libc_start_main"),
    Native(INTERPRETER, "_start"),
];

/// Stack of a C extension that passes a row to Python.
const CALLED_BACK: [Frame; 10] = [
    Native(LIBC, "malloc"),
    Native(INTERPRETER, "list_resize"),
    Python(
        "Rows.__iter__.<locals>.on_row",
        "/usr/lib/python3/dist-packages/rows/__init__.py",
        5,
    ),
    EVALUATION,
    Native(INTERPRETER, "PyObject_Call"),
    Native(EXTENSION, "each_row"),
    CALL,
    Python("<module>", "/srv/app.py", 12),
    EVALUATION,
    Native(INTERPRETER, "Py_RunMain"),
];

/// Stack of a server that embeds Python.
const EMBEDDED: [Frame; 6] = [
    Native(INTERPRETER, "PyDict_New"),
    Python("application", "/srv/app.py", 20),
    EVALUATION,
    Native(INTERPRETER, "PyObject_Call"),
    Native(SERVER, "serve_request"),
    Native(LIBC, "start_thread"),
];

/// Stack of a thread without Python.
const NATIVE: [Frame; 3] = [
    Native(LIBC, "malloc"),
    Native(EXTENSION, "worker"),
    Native(LIBC, "start_thread"),
];

const STACKS: [(&[Frame], f64); 4] = [
    (&ENCODED, 4000.0),
    (&CALLED_BACK, 300.0),
    (&EMBEDDED, 20.0),
    (&NATIVE, 1.0),
];

fn profile(stacks: &[(&[Frame], f64)]) -> Profile {
    let mut builder = ProfileBuilder::new(1);
    for (start, path) in [
        (INTERPRETER, "/usr/bin/python3.11"),
        (EXTENSION, "/srv/imaging.so"),
        (LIBC, "/lib/x86_64-linux-gnu/libc.so.6"),
        (SERVER, "/usr/sbin/server"),
    ] {
        builder.module(Mapping {
            start,
            end: start + 0x10_0000,
            path: path.into(),
            ..Mapping::default()
        });
    }
    let mut native: Vec<(u64, &str)> = Vec::new();
    let mut named = Vec::new();
    for &(stack, bytes) in stacks {
        let mut location = |frame: &Frame| match *frame {
            Python(name, file, line) => {
                let function = Function {
                    name: name.into(),
                    file: file.into(),
                    start_line: 1,
                    ..Function::default()
                };
                builder.python_location(function, line)
            }
            Truncated => builder.location(TRUNCATED_ADDRESS),
            Native(module, name) => {
                let known = native.iter().position(|known| *known == (module, name));
                let number = known.unwrap_or_else(|| {
                    native.push((module, name));
                    native.len() - 1
                });
                let address = module + 0x100 * number as u64;
                named.push((address, name));
                builder.location(address + 1)
            }
        };
        let frames: Vec<_> = stack.iter().map(&mut location).collect();
        let detail = Detail {
            alloc_samples: 1,
            alloc_objects: 1.0,
            alloc_bytes: bytes,
            ..Detail::default()
        };
        builder.stack_of(&frames, &detail);
    }
    let mut profile = builder.finish();
    for (address, name) in named {
        let location = profile
            .locations
            .iter_mut()
            .find(|l| l.address == address)
            .unwrap();
        location.first_line = profile.lines.len() as u32;
        location.line_count = 1;
        profile.lines.push(Line {
            function: profile.functions.len() as u32,
            ..Line::default()
        });
        profile.functions.push(Function {
            name: name.into(),
            system_name: name.into(),
            ..Function::default()
        });
    }
    profile
}

fn written(directory: &Path) -> PathBuf {
    written_of(directory, &STACKS)
}

fn written_of(directory: &Path, stacks: &[(&[Frame], f64)]) -> PathBuf {
    let path = directory.join("app.heap");
    let profile = profile(stacks);
    dump::write(&profile, &mut File::create(&path).unwrap()).unwrap();
    path
}

/// Returns the output and the messages.
fn shown(dump: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mem_parser"));
    let output = command.arg(dump).args(arguments).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {message}");
    (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        message,
    )
}

fn folded(dump: &Path, arguments: &[&str]) -> Vec<String> {
    let (text, _) = shown(dump, &[&["--folded"], arguments].concat());
    text.lines().map(str::to_owned).collect()
}

#[test]
fn interpreter_frames_between_python_lines_are_hidden() {
    let directory = tempfile::tempdir().unwrap();
    let dump = written(directory.path());
    assert_eq!(
        folded(&dump, &[]),
        [
            "<module> (app.py:11);allocate (app.py:8);make_thumbnail (app.py:4);\
             imaging_encode;PyBytes_FromStringAndSize 4000",
            "<module> (app.py:12);each_row;\
             Rows.__iter__.<locals>.on_row (rows/__init__.py:5);list_resize 300",
            "start_thread;serve_request;application (app.py:20);PyDict_New 20",
            "start_thread;worker 1",
        ]
    );
    assert_eq!(
        folded(&dump, &["--python-only"]),
        [
            "<module> (app.py:11);allocate (app.py:8);make_thumbnail (app.py:4) 4000",
            "<module> (app.py:12);Rows.__iter__.<locals>.on_row (rows/__init__.py:5) 300",
            "[native] 1",
            "application (app.py:20) 20",
        ]
    );
    let native = folded(&dump, &["--native"]);
    let whole = "_start;__libc_start_main;Py_RunMain;PyEval_EvalCode;_PyEval_EvalFrameDefault;\
                 <module> (app.py:11);allocate (app.py:8);_PyEval_Vector;\
                 _PyEval_EvalFrameDefault;make_thumbnail (app.py:4);cfunction_call;\
                 imaging_encode;PyBytes_FromStringAndSize;PyObject_Malloc 4000";
    assert!(native.iter().any(|line| line == whole), "{native:#?}");
}

#[test]
fn all_choices_have_the_same_total() {
    let directory = tempfile::tempdir().unwrap();
    let dump = written(directory.path());
    for choice in ["", "--native", "--python-only"] {
        for grain in ["--functions", "--lines", "--files", "--addresses"] {
            let arguments: Vec<&str> = [choice, grain]
                .into_iter()
                .filter(|a| !a.is_empty())
                .collect();
            let lines = folded(&dump, &arguments);
            let value = |line: &String| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap();
            assert_eq!(
                lines.iter().map(value).sum::<i64>(),
                4321,
                "{arguments:?} {lines:?}"
            );
        }
        let arguments: Vec<&str> = ["--traces", choice]
            .into_iter()
            .filter(|a| !a.is_empty())
            .collect();
        assert_eq!(
            shown(&dump, &arguments).0.matches("-----------+").count(),
            5,
            "{choice}"
        );
    }
    let by_function = folded(&dump, &["--functions", "--python-only"]);
    let first = "<module> (app.py);allocate (app.py);make_thumbnail (app.py) 4000";
    assert!(
        by_function.iter().any(|line| line == first),
        "{by_function:?}"
    );
    let by_file = folded(&dump, &["--files", "--python-only"]);
    let first = "/srv/app.py;/srv/app.py;/srv/app.py 4000";
    assert!(by_file.iter().any(|line| line == first), "{by_file:?}");
}

#[test]
fn every_view_names_python_lines() {
    let directory = tempfile::tempdir().unwrap();
    let dump = written(directory.path());
    let line = "make_thumbnail (app.py:4)";
    for view in [
        "-t", "--tree", "--traces", "--folded", "--dot", "-s", "--flame", "--html", "--json",
        "--csv",
    ] {
        let (text, message) = shown(&dump, &[view]);
        let text = text.replace("\\n", "\n");
        let parts = ["make_thumbnail", "app.py"];
        let named = text.contains(line) || ["--json", "--csv"].contains(&view);
        assert!(
            named && parts.iter().all(|part| text.contains(part)),
            "{view}: {text}"
        );
        assert!(!text.contains("Py_RunMain"), "{view}");
        assert_eq!(message, "", "{view}");
    }
    assert!(shown(&dump, &["--flame"]).0.contains("violet is Python"));
    let (text, _) = shown(&dump, &["--peek", "^allocate"]);
    for part in ["<module> (app.py:11)", line, "allocate (app.py:8)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (text, _) = shown(&dump, &["--callgrind"]);
    assert!(
        text.contains("/srv/app.py") && text.contains("make_thumbnail"),
        "{text}"
    );
    let (text, _) = shown(&dump, &["--raw"]);
    assert!(text.contains("make_thumbnail /srv/app.py:4"), "{text}");
    let (text, _) = shown(&dump, &["--leaks"]);
    assert!(
        text.contains("at /srv/app.py:4 in make_thumbnail"),
        "{text}"
    );
    // The callback belongs to a library; the line that called it is user code.
    assert!(text.contains("at /srv/app.py:12 in <module>"), "{text}");
}

#[test]
fn filters_match_python_names() {
    let directory = tempfile::tempdir().unwrap();
    let dump = written(directory.path());
    for (arguments, values) in [
        (["--focus", "^make_thumbnail$"], &[4000][..]),
        (["--focus", "rows/__init__"], &[300]),
        (["--ignore", "^<module>$"], &[20, 1]),
        (["--focus", "imaging"], &[4000, 300, 1]),
    ] {
        let lines = folded(&dump, &arguments);
        let value = |line: &String| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap();
        let found: Vec<i64> = lines.iter().map(value).collect();
        let mut sorted = found.clone();
        sorted.sort_by_key(|value| -value);
        assert_eq!(sorted, values, "{arguments:?} {lines:?}");
    }
}

#[test]
fn sources_of_python_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let dump = written(directory.path());
    let source = "import imaging\n\ndef make_thumbnail(image):\n    return imaging.encode(image)\n";
    fs::write(directory.path().join("app.py"), source).unwrap();
    let directories = directory.path().to_str().unwrap();
    let arguments = ["--list", "make_thumbnail", "--source_path", directories];
    let (text, _) = shown(&dump, &arguments);
    let line = text
        .lines()
        .find(|line| line.contains("imaging.encode(image)"));
    let line = line.unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("3.91KiB") && line.contains(" 4:"), "{line}");
}

/// Functions of a program may have any name, or none.
#[test]
fn functions_without_a_name_have_their_file_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let stack = [
        Native(LIBC, "malloc"),
        Python("", "/srv/app.py", 12),
        EVALUATION,
    ];
    let dump = written_of(directory.path(), &[(&stack, 8.0)]);
    for (grain, shown) in [
        ("--lines", "<unnamed> (app.py:12) 8"),
        ("--functions", "<unnamed> (app.py) 8"),
        ("--files", "/srv/app.py 8"),
    ] {
        assert_eq!(folded(&dump, &["--python-only", grain]), [shown]);
    }
    for view in ["-t", "--tree", "--flame", "--json", "--csv"] {
        let (text, _) = shown(&dump, &[view]);
        let names = ["<unnamed>", "&lt;unnamed&gt;", "\\u003cunnamed\\u003e"];
        let is_named = names.iter().any(|name| text.contains(name));
        assert!(is_named && !text.contains("[python]]"), "{view}: {text}");
    }
}

#[test]
fn truncated_stacks_are_distinguished_from_complete_ones() {
    let directory = tempfile::tempdir().unwrap();
    let whole: &[Frame] = &[Python("work", "/srv/app.py", 4), EVALUATION];
    let cut: &[Frame] = &[Python("work", "/srv/app.py", 4), EVALUATION, Truncated];
    let native: &[Frame] = &[Native(EXTENSION, "worker"), Truncated];
    let stacks = [
        (whole, 1.0),
        (cut, 20.0),
        (native, 300.0),
        (&[Truncated], 4000.0),
    ];
    let dump = written_of(directory.path(), &stacks);
    assert_eq!(
        folded(&dump, &["--python-only"]),
        [
            "[truncated] 4000",
            "[truncated];[native] 300",
            "[truncated];work (app.py:4) 20",
            "work (app.py:4) 1",
        ]
    );
    for view in ["-t", "--traces", "--tree", "--flame"] {
        let (text, _) = shown(&dump, &[view, "--python-only"]);
        assert!(text.contains("[truncated]"), "{view}: {text}");
    }
}

/// File names as `zipimport` has them.
#[test]
fn sources_within_a_zip_file_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("app.egg");
    fs::write(&archive, "PK").unwrap();
    let here = format!("{}/pkg/mod.py", archive.display());
    for (file, archive) in [
        (here.as_str(), archive.to_str().unwrap()),
        ("/opt/nowhere/app.pyz/pkg/mod.py", "/opt/nowhere/app.pyz"),
    ] {
        let file: &'static str = file.to_owned().leak();
        let stack = [Native(LIBC, "malloc"), Python("load", file, 2), EVALUATION];
        let dump = written_of(directory.path(), &[(&stack, 4000.0)]);
        let (text, _) = shown(&dump, &["--list", "load"]);
        let message = format!("Error: {file} is within {archive}, a zip file");
        assert!(
            text.contains(&message) && text.contains("--source_path"),
            "{text}"
        );
        // The source as it is in the archive.
        let unpacked = directory.path().join("unpacked");
        fs::create_dir_all(unpacked.join("pkg")).unwrap();
        fs::write(
            unpacked.join("pkg/mod.py"),
            "def load():\n    return read()\n",
        )
        .unwrap();
        let directories = unpacked.to_str().unwrap();
        let (text, _) = shown(&dump, &["--list", "load", "--source_path", directories]);
        assert!(text.contains("return read()"), "{text}");
    }
    let stack = [Python("load", "/opt/nowhere/pkg/mod.py", 2), EVALUATION];
    let dump = written_of(directory.path(), &[(&stack, 4000.0)]);
    let (text, _) = shown(&dump, &["--list", "load"]);
    assert!(text.contains("was not found"), "{text}");
}

#[test]
fn dumps_with_symbols_keep_all_frames_and_need_no_program() {
    let directory = tempfile::tempdir().unwrap();
    let dump = written(directory.path());
    let whole = directory.path().join("whole.heap");
    shown(&dump, &["--symbolize", "-o", whole.to_str().unwrap()]);
    assert_eq!(folded(&whole, &["--native"]), folded(&dump, &["--native"]));
    assert_eq!(folded(&whole, &[]), folded(&dump, &[]));
    // A dump without Python frames gives a message.
    let plain = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/shop.heap");
    let (_, message) = shown(Path::new(plain), &["--python-only"]);
    assert!(message.contains("no frames of Python"), "{message}");
}
