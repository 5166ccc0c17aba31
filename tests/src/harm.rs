//! Programs of `tests/harm`, with the directives for building and running them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::artifacts;
use crate::limits::{Scarce, limit};
use crate::scratch::Scratch;

/// Deadline of programs without the directive `seconds`.
const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// Activity of the agent while a program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Agent is preloaded; no session.
    Idle,
    /// A session from the start, one sample every 1024 bytes.
    Every1024,
    /// A session from the start that samples every allocation.
    EveryAllocation,
    /// Short sessions one after the other.
    Toggled,
}

impl Mode {
    fn named(name: &str) -> Self {
        match name {
            "idle" => Self::Idle,
            "1024" => Self::Every1024,
            "1" => Self::EveryAllocation,
            "toggled" => Self::Toggled,
            _ => panic!("there is no mode {name:?}"),
        }
    }
}

/// Position of a preloaded library relative to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    BeforeTheAgent,
    AfterTheAgent,
}

/// Library that is preloaded together with the agent.
#[derive(Clone, Debug)]
struct Preload {
    library: PathBuf,
    place: Place,
}

/// One program, built.
#[derive(Clone, Debug)]
pub struct Program {
    /// File name of the source.
    pub name: String,
    /// Modes in which the program runs.
    pub modes: Vec<Mode>,
    /// Text for its standard input.
    pub input: String,
    /// Deadline of a run.
    pub deadline: Duration,
    binary: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    limits: Vec<(Scarce, u64)>,
    preloads: Vec<Preload>,
}

/// Returns the directory of the programs.
#[must_use]
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("harm")
}

/// Returns the sources of all programs, sorted by name.
#[must_use]
pub fn sources() -> Vec<PathBuf> {
    let entries = fs::read_dir(directory()).expect("the directory of programs");
    let is_source = |path: &PathBuf| {
        let extension = path.extension().and_then(|e| e.to_str());
        let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or("");
        matches!(extension, Some("c" | "cpp")) && !stem.ends_with("_lib")
    };
    let mut sources: Vec<_> = entries
        .flatten()
        .map(|e| e.path())
        .filter(is_source)
        .collect();
    sources.sort();
    sources
}

/// Directive for building or running a program.
struct Directive {
    name: String,
    value: String,
}

/// Returns the directives of a source: leading comment lines of the form `// name: value`.
fn directives(source: &Path) -> Vec<Directive> {
    const NAMES: [&str; 10] = [
        "guards",
        "build",
        "library",
        "preload",
        "arguments",
        "input",
        "limit",
        "environment",
        "seconds",
        "modes",
    ];
    let text = fs::read_to_string(source).expect("a source");
    let comments = text.lines().map_while(|line| line.strip_prefix("//"));
    let directive = |line: &str| {
        let (name, value) = line.trim().split_once(':')?;
        let (name, value) = (name.to_owned(), value.trim().to_owned());
        NAMES
            .contains(&name.as_str())
            .then_some(Directive { name, value })
    };
    comments.filter_map(directive).collect()
}

/// Compiles a source file. `flags` come last on the command line.
fn compile(source: &Path, out: &Path, flags: &[String]) {
    let compiler = match source.extension().and_then(|e| e.to_str()) {
        Some("cpp") => "g++",
        _ => "gcc",
    };
    let mut command = Command::new(compiler);
    command
        .args(["-O1", "-g", "-w", "-pthread", "-fno-builtin-malloc", "-o"])
        .arg(out)
        .arg(source)
        .args(flags);
    let output = command.output().expect("a compiler");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Splits the value of a directive into words.
fn words(value: &str) -> Vec<String> {
    value.split_whitespace().map(str::to_owned).collect()
}

/// Compiles a library for the program `owner`. The first of `words` is the name of its source, and
/// the others are flags.
fn library(scratch: &Scratch, owner: &str, words: &[String]) -> PathBuf {
    let (name, flags) = words.split_first().expect("a library's name");
    let beside = directory().join(name);
    let source = if beside.exists() {
        beside
    } else {
        directory().join("lib").join(name)
    };
    let stem = name.split('.').next().unwrap_or(name);
    let out = scratch.file(&format!("lib{owner}_{stem}.so"));
    let mut all = vec!["-shared".to_owned(), "-fPIC".to_owned()];
    all.extend(flags.iter().cloned());
    compile(&source, &out, &all);
    out
}

/// Parses a size with an optional K, M or G.
fn size(text: &str) -> u64 {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    digits.parse::<u64>().expect("a number") << shift
}

/// Parses `name=size`.
fn limited(text: &str) -> (Scarce, u64) {
    let (name, value) = text.split_once('=').expect("NAME=SIZE");
    let scarce = match name {
        "stack" => Scarce::Stack,
        "as" => Scarce::AddressSpace,
        "data" => Scarce::Data,
        "fsize" => Scarce::FileSize,
        "memlock" => Scarce::Locked,
        _ => panic!("there is no limit {name:?}"),
    };
    (scarce, size(value))
}

impl Program {
    /// Builds a program and its libraries.
    #[must_use]
    pub fn build(scratch: &Scratch, source: &Path) -> Self {
        let name = source.file_name().expect("a name").to_string_lossy();
        let stem = source.file_stem().expect("a name").to_string_lossy();
        let mut program = Self {
            name: name.into_owned(),
            modes: vec![
                Mode::Idle,
                Mode::Every1024,
                Mode::EveryAllocation,
                Mode::Toggled,
            ],
            input: String::new(),
            deadline: DEFAULT_DEADLINE,
            binary: scratch.file(&stem),
            arguments: Vec::new(),
            environment: Vec::new(),
            limits: Vec::new(),
            preloads: Vec::new(),
        };
        let mut flags = vec!["-I".to_owned(), directory().display().to_string()];
        for Directive { name, value } in directives(source) {
            match name.as_str() {
                "build" => flags.extend(words(&value)),
                "library" => {
                    let path = library(scratch, &stem, &words(&value));
                    flags.push(path.display().to_string());
                    flags.push(format!("-Wl,-rpath,{}", scratch.files().display()));
                }
                "preload" => program.preloads.push(preload(scratch, &stem, &value)),
                "arguments" => program.arguments = words(&value),
                "input" => program.input = value.replace("\\n", "\n"),
                "limit" => program.limits.push(limited(&value)),
                "environment" => {
                    let (name, value) = value.split_once('=').expect("NAME=VALUE");
                    let pair = (name.to_owned(), value.to_owned());
                    program.environment.push(pair);
                }
                "seconds" => {
                    let seconds = value.parse().expect("a number of seconds");
                    program.deadline = Duration::from_secs(seconds);
                }
                "modes" => {
                    program.modes = value.split(',').map(|m| Mode::named(m.trim())).collect()
                }
                _ => {}
            }
        }
        flags.push("-ldl".to_owned());
        compile(source, &program.binary, &flags);
        program
    }

    /// Returns the command that runs the program: plain, or with the agent in a mode.
    #[must_use]
    pub fn command(&self, scratch: &Scratch, mode: Option<Mode>) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(scratch.files());
        let at = |place| {
            let there = self.preloads.iter().filter(move |p| p.place == place);
            there.map(|p| p.library.clone())
        };
        let agent = mode.map(|_| artifacts::agent());
        let preloaded: Vec<String> = at(Place::BeforeTheAgent)
            .chain(agent)
            .chain(at(Place::AfterTheAgent))
            .map(|path| path.display().to_string())
            .collect();
        if !preloaded.is_empty() {
            command.env("LD_PRELOAD", preloaded.join(":"));
        }
        if let Some(mode) = mode {
            command.env("MEM_PROFILER_DIR", scratch.shared());
            let interval = match mode {
                Mode::Every1024 => "1024",
                Mode::EveryAllocation => "1",
                Mode::Idle | Mode::Toggled => "",
            };
            if !interval.is_empty() {
                command
                    .env("MEM_PROFILER_START", "1")
                    .env("MEM_PROFILER_INTERVAL", interval);
            }
        }
        for (scarce, max) in &self.limits {
            limit(&mut command, *scarce, *max);
        }
        command
    }
}

/// Returns a library that is preloaded. `value` consists of its name and its place: `before` or
/// `after` the agent. A library of the system has the name by which the loader finds it; of others,
/// `value` has the name of their source, and flags for compiling it.
fn preload(scratch: &Scratch, owner: &str, value: &str) -> Preload {
    let mut words = words(value);
    let place = match words.pop().as_deref() {
        Some("before") => Place::BeforeTheAgent,
        Some("after") => Place::AfterTheAgent,
        _ => panic!("{value}: before the agent, or after it?"),
    };
    let library = match words.as_slice() {
        [name] if name.contains(".so") => PathBuf::from(name),
        words => library(scratch, owner, words),
    };
    Preload { library, place }
}
