//! Hostile names: no output and no message contains characters that control a terminal, begin a new
//! line or change the direction of text.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use profile::printable::is_hidden;
use profile::{
    Detail, Facts, Function, Label, LabelValue, Line, Mapping, Profile, ProfileBuilder, dump, pprof,
};

/// A name that sets a terminal's title and colour (by a C1 character), moves to another line,
/// deletes, and changes the direction of text. It ends in what folded stacks and callgrind could
/// read as further data.
const HOSTILE: &str =
    "evil\x1b]0;title\x07\u{9b}31m\x7f\u{202e}back\nINJECTED 1;x\r\nfn=INJECTED\t\u{2028}INJECTED";

mod formats;

/// Returns the flags of every format, for some also with more options.
fn outputs() -> Vec<String> {
    let mut outputs = formats::options();
    let more = [
        "--top --ci --lines",
        "--svg --ci",
        "--top --addresses",
        "--top --files --cum",
    ];
    outputs.extend(more.map(str::to_owned));
    outputs
}

fn parser(options: &str, files: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mem_parser"));
    command.args(options.split(' ')).stdin(Stdio::null());
    for file in files {
        command.arg("-f").arg(file);
    }
    command.output().unwrap()
}

/// Fails on what acts on a terminal, and on lines that are not this program's.
fn assert_inert(what: &str, bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
    let acts = |c: &char| is_hidden(*c) && !"\n\t\r".contains(*c);
    let line = |text: &str| {
        text.lines()
            .find(|l| l.contains(|c| acts(&c)))
            .map(str::to_owned)
    };
    assert_eq!(text.chars().find(acts), None, "{what}: {:?}", line(text));
    let injected = |line: &str| line.starts_with("INJECTED") || line.starts_with("fn=INJECTED");
    let forged = text.split(['\n', '\r']).find(|line| injected(line));
    assert_eq!(forged, None, "{what}");
}

fn assert_output(what: &str, output: &Output) {
    if !what.contains("--proto") {
        assert_inert(what, &output.stdout);
    }
    assert_inert(what, &output.stderr);
}

/// Returns a profile in which everything that has a name has a hostile one.
fn profile(facts: Facts) -> Profile {
    let mut builder = ProfileBuilder::new(1024);
    builder.facts(facts);
    builder.module(Mapping {
        start: 0x1000,
        end: 0x9000,
        path: PathBuf::from(format!("/{HOSTILE}")),
        ..Mapping::default()
    });
    let detail = Detail {
        alloc_samples: 9,
        alloc_objects: 9000.0,
        alloc_bytes: 9e6,
        live_variance: 1e9,
        live_object_variance: 1e6,
        ..Detail::default()
    };
    // The last location has no name, so its file is searched.
    for stack in [[0x1101, 0x1201], [0x1101, 0x1301], [0x1401, 0x1501]] {
        builder.stack(stack, &detail);
    }
    let mut profile = builder.finish();
    profile.comments.push(HOSTILE.into());
    for (number, location) in profile.locations.iter_mut().enumerate().take(4) {
        profile.functions.push(Function {
            name: format!("{number}{HOSTILE}"),
            system_name: format!("{number}{HOSTILE}s"),
            file: format!("/src/{HOSTILE}.c"),
            start_line: 1,
        });
        profile.lines.push(Line {
            function: number as u32,
            line: 7,
            column: 1,
        });
        location.first_line = number as u32;
        location.line_count = 1;
    }
    profile
}

fn facts() -> Facts {
    let named = || [(HOSTILE.to_owned(), 5), ("allocated".to_owned(), 9_000_000)].into();
    let text = Some(HOSTILE.to_owned());
    Facts {
        pid: Some(4711),
        process: text.clone(),
        exe: Some(PathBuf::from(format!("/{HOSTILE}"))),
        command_line: vec![HOSTILE.into(); 2],
        boot_id: text.clone(),
        trigger: text.clone(),
        ended: text,
        counters: named(),
        allocator: named(),
        memory: [("rss_anon".to_owned(), 9_000_000), (HOSTILE.to_owned(), 1)].into(),
        maps_text: format!(
            "1000-9000 r-xp 00000000 08:01 42 /{}\n",
            HOSTILE.replace('\n', "\x08")
        )
        .into_bytes(),
        ..Facts::default()
    }
}

/// Writes it as a dump, and as a pprof profile whose values and labels have that name, too.
fn files(directory: &Path) -> [PathBuf; 2] {
    let dump_path = directory.join("x.heap");
    let mut bytes = Vec::new();
    dump::write(&profile(facts()), &mut bytes).unwrap();
    fs::write(&dump_path, bytes).unwrap();
    let mut other = profile(facts());
    for kind in &mut other.sample_types {
        kind.kind += HOSTILE;
        kind.unit += HOSTILE;
    }
    let label = |value| Label {
        stack: 0,
        key: HOSTILE.into(),
        value,
    };
    other.labels.push(label(LabelValue::Text(HOSTILE.into())));
    other
        .labels
        .push(label(LabelValue::Number(5, HOSTILE.into())));
    let pprof_path = directory.join("x.pb");
    let mut bytes = Vec::new();
    pprof::write(&other, &mut bytes).unwrap();
    fs::write(&pprof_path, bytes).unwrap();
    [dump_path, pprof_path]
}

#[test]
fn no_output_or_warning_contains_control_characters() {
    let directory = tempfile::tempdir().unwrap();
    let mut shown = 0;
    for file in files(directory.path()) {
        for options in outputs() {
            for program in [" -p /usr/bin/true --force", " --symbol-path /nonexistent"] {
                let options = format!("{options}{program}");
                let output = parser(&options, &[&file]);
                shown += usize::from(output.status.success());
                assert_output(&format!("{options} {}", file.display()), &output);
            }
        }
    }
    assert!(shown > 70, "only {shown} were shown");
}

#[test]
fn a_hostile_file_name_does_not_reach_the_terminal_raw() {
    let directory = tempfile::tempdir().unwrap();
    let [dump, _] = files(directory.path());
    let named = directory.path().join(HOSTILE.replace('/', "_"));
    fs::copy(&dump, &named).unwrap();
    for options in outputs() {
        let options = format!("{options} -p /usr/bin/true --force");
        assert_output(&options, &parser(&options, &[&named]));
        assert_output(&options, &parser(&options, &[&named, &dump]));
    }
    // Bytes that are not UTF-8, and C1 control bytes, which old terminals interpret.
    let bytes = directory
        .path()
        .join(std::ffi::OsStr::from_bytes(b"x\x9b31m\xff\x1b[2J"));
    fs::write(&bytes, "no profile \x1b[2J").unwrap();
    let refused = parser("-t -p /usr/bin/true", &[&bytes]);
    assert_eq!(refused.status.code(), Some(1));
    assert_output("a file that is no profile", &refused);
    let absent = "-t -p /usr/bin/true";
    let missing = parser(absent, &[&directory.path().join(format!("no{HOSTILE}"))]);
    assert_eq!(missing.status.code(), Some(1));
    assert_output("a file that is not there", &missing);
}

#[test]
fn differences_and_comparisons_contain_no_control_characters() {
    let directory = tempfile::tempdir().unwrap();
    for file in files(directory.path()) {
        for base in ["--base", "--diff_base"] {
            for output in ["-t", "--html", "-s", "--traces", "--folded"] {
                let options = format!(
                    "{output} -p /usr/bin/true --force {base} {}",
                    file.display()
                );
                assert_output(&options, &parser(&options, &[&file]));
            }
        }
    }
}

/// Each folded stack is one line: frames separated by semicolons, a blank, and the value.
#[test]
fn folded_stacks_keep_their_shape() {
    let directory = tempfile::tempdir().unwrap();
    let [dump, _] = files(directory.path());
    let output = parser("--folded -p /usr/bin/true --force", &[&dump]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    for line in text.lines() {
        let (stack, value) = line.rsplit_once(' ').unwrap();
        assert_eq!((stack.split(';').count(), value), (2, "9000000"), "{line}");
    }
}
