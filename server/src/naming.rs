//! A cache of names of code: an address of a file is looked up once, whichever processes run it.
//!
//! Files of targets may be crafted, and this program has threads, so that it cannot read them in a
//! fork of itself: they are read by `mem_server names`, a child with limits, which gets a profile
//! of the code that is new, and answers with its names. It is killed when it takes too long.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use heap_format::{
    BuildId, Detail, Facts, Function, Line, Location, Mapping, Profile, ProfileBuilder, marker_at,
};
use symbols::{Options, apart};

/// Longest time that new names are waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long nothing is asked after a failure.
const REST: Duration = Duration::from_secs(30);
/// How long names of code without a file are kept: it may be compiled again at any time.
const JIT_LIFE: Duration = Duration::from_secs(60);
/// Maximum number of addresses that are kept.
const MOST: usize = 1 << 20;
/// Maximum number of bytes of an answer.
const MOST_ANSWER: u64 = 1 << 30;

/// Names by address, for all processes.
pub struct Naming {
    /// This program.
    program: PathBuf,
    known: Mutex<Known>,
    /// Held while a child is asked, so that nothing is asked twice.
    asking: Mutex<()>,
}

#[derive(Default)]
struct Known {
    files: HashMap<(PathBuf, BuildId), u32>,
    frames: HashMap<Key, Named>,
    functions: HashMap<Function, Arc<Function>>,
    rest_until: Option<Instant>,
}

/// What an address means.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    /// For a file, by its number and offset.
    File(u32, u64),
    /// Of a process without a file.
    Jit(u32, u64),
}

/// Functions at an address, innermost first; none if nothing is known of it.
#[derive(Clone)]
struct Named {
    frames: Arc<[(Arc<Function>, u32, u32)]>,
    until: Option<Instant>,
}

impl Naming {
    /// Names found by `program`, which is this one.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            known: Mutex::default(),
            asking: Mutex::default(),
        }
    }

    /// Names the code of a profile as far as that is possible; why not all of it, if something
    /// failed.
    pub fn name(&self, profile: &mut Profile) -> Option<String> {
        let mut trouble = None;
        if !lock(&self.known).missing(profile).is_empty() {
            let _asking = lock(&self.asking);
            let missing = lock(&self.known).missing(profile);
            if !missing.is_empty() {
                trouble = self.look_up(profile, &missing).err();
            }
        }
        lock(&self.known).apply(profile);
        trouble.map(|error| format!("{error:#}"))
    }

    fn look_up(&self, profile: &Profile, missing: &[usize]) -> anyhow::Result<()> {
        let resting = lock(&self.known).rest_until;
        if resting.is_some_and(|until| Instant::now() < until) {
            bail!("functions are not named for a while, after a failure");
        }
        match self.ask(&code(profile, missing)) {
            Ok(named) => {
                lock(&self.known).learn(profile, missing, &named);
                Ok(())
            }
            Err(error) => {
                lock(&self.known).rest_until = Some(Instant::now() + REST);
                Err(error.context("functions cannot be named"))
            }
        }
    }

    /// Has a child name code.
    fn ask(&self, code: &Profile) -> anyhow::Result<Profile> {
        let mut question = Vec::new();
        heap_format::dump::write(code, &mut question)?;
        let mut child = Command::new(&self.program)
            .arg("names")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| self.program.display().to_string())?;
        let answer = talk(&mut child, question);
        end(&mut child);
        Ok(heap_format::read(&answer?, "names")?)
    }
}

/// Sends the question and reads the answer, in time.
fn talk(child: &mut Child, question: Vec<u8>) -> anyhow::Result<Vec<u8>> {
    let (to, from) = (child.stdin.take(), child.stdout.take());
    let (mut to, from) = to.zip(from).context("there is no pipe")?;
    let (sender, receiver) = mpsc::channel();
    let talk = move || {
        let mut answer = Vec::new();
        let done = to.write_all(&question).and_then(|()| {
            drop(to);
            from.take(MOST_ANSWER).read_to_end(&mut answer)
        });
        // Perhaps no client is waiting any more.
        let _ = sender.send(done.map(|_| answer));
    };
    std::thread::Builder::new().spawn(talk)?;
    match receiver.recv_timeout(PATIENCE) {
        Ok(answer) => Ok(answer?),
        Err(RecvTimeoutError::Timeout) => bail!("reading their files takes too long"),
        Err(RecvTimeoutError::Disconnected) => bail!("the reader of files is gone"),
    }
}

/// Ends the child with all that it started.
fn end(child: &mut Child) {
    let pid = child.id().cast_signed();
    // SAFETY: plain calls; our own child, not yet waited for, and the group that it made for
    // itself.
    unsafe {
        libc::kill(-pid, libc::SIGKILL);
        libc::kill(pid, libc::SIGKILL);
    }
    // It has been killed; there is nothing to learn from how it ended.
    let _ = child.wait();
}

/// A profile of these locations alone, one a stack.
fn code(profile: &Profile, missing: &[usize]) -> Profile {
    let mut builder = ProfileBuilder::new(1);
    for mapping in &profile.mappings {
        builder.module(mapping.clone());
    }
    let facts = &profile.facts;
    builder.facts(Facts {
        pid: facts.pid,
        exe: facts.exe.clone(),
        exe_build_id: facts.exe_build_id.clone(),
        boot_id: facts.boot_id.clone(),
        ..Facts::default()
    });
    // Without values its stack would be left out.
    let detail = Detail {
        alloc_samples: 1,
        alloc_objects: 1.0,
        alloc_bytes: 1.0,
        ..Detail::default()
    };
    for &number in missing {
        let address = profile.locations[number].address;
        builder.stack([address.wrapping_add(1)], &detail);
    }
    builder.finish()
}

/// `mem_server names`: names the code of the profile on its standard input.
pub fn child() -> anyhow::Result<()> {
    apart::restrain();
    let mut profile = heap_format::read_from(io::stdin().lock(), "names")?;
    let options = Options {
        binary: None,
        force: false,
        demangle: symbols::demangle::Style::Simple,
        directories: &[],
        debuginfod: false,
        perf_map: None,
    };
    // What is missing is shown by its file.
    let _ = symbols::symbolize(&mut profile, &options);
    Ok(heap_format::pprof::write(
        &profile,
        &mut io::stdout().lock(),
    )?)
}

impl Known {
    /// The key of a location; `None` for what has no address or has its name already.
    fn key(&mut self, profile: &Profile, location: &Location) -> Option<Key> {
        if location.line_count > 0 || location.address == 0 || marker_at(location.address).is_some()
        {
            return None;
        }
        let pid = profile.facts.pid.unwrap_or(0);
        let mapping = profile.mappings.get(location.mapping as usize);
        let Some(mapping) = mapping.filter(|mapping| is_file(mapping)) else {
            return Some(Key::Jit(pid, location.address));
        };
        let next = self.files.len() as u32;
        let file = (mapping.path.clone(), mapping.build_id.clone());
        let file = *self.files.entry(file).or_insert(next);
        let offset = location.address - mapping.start.min(location.address);
        Some(Key::File(file, offset.wrapping_add(mapping.file_offset)))
    }

    /// The locations that are not known.
    fn missing(&mut self, profile: &Profile) -> Vec<usize> {
        let now = Instant::now();
        let mut missing = Vec::new();
        for (number, location) in profile.locations.iter().enumerate() {
            let Some(key) = self.key(profile, location) else {
                continue;
            };
            let named = self.frames.get(&key);
            if named.is_none_or(|named| named.until.is_some_and(|until| now >= until)) {
                missing.push(number);
            }
        }
        missing
    }

    /// Keeps what a child has found.
    fn learn(&mut self, profile: &Profile, missing: &[usize], named: &Profile) {
        self.forget_old(Instant::now());
        if self.frames.len() + missing.len() > MOST {
            *self = Self::default();
        }
        let found: HashMap<u64, &Location> =
            named.locations.iter().map(|l| (l.address, l)).collect();
        for &number in missing {
            let location = &profile.locations[number];
            let Some(key) = self.key(profile, location) else {
                continue;
            };
            let lines = found.get(&location.address).map(|l| named.lines_of(l));
            let lines = lines.unwrap_or_default().iter();
            let frames = lines.filter_map(|line| {
                let function = named.functions.get(line.function as usize)?;
                let function = match self.functions.get(function) {
                    Some(known) => Arc::clone(known),
                    None => {
                        let new = Arc::new(function.clone());
                        self.functions.insert(function.clone(), Arc::clone(&new));
                        new
                    }
                };
                Some((function, line.line, line.column))
            });
            let frames = frames.collect();
            let until = matches!(key, Key::Jit(..)).then(|| Instant::now() + JIT_LIFE);
            self.frames.insert(key, Named { frames, until });
        }
    }

    /// Forgets names of code without a file whose time is over: a process that compiles code has ever new ones.
    fn forget_old(&mut self, now: Instant) {
        let before = self.frames.len();
        let lasts = |named: &Named| named.until.is_none_or(|until| now < until);
        self.frames.retain(|_, named| lasts(named));
        if self.frames.len() < before {
            self.functions
                .retain(|_, function| Arc::strong_count(function) > 1);
        }
    }

    /// Writes the names that are known into a profile.
    fn apply(&mut self, profile: &mut Profile) {
        let mut numbers: HashMap<*const Function, u32> = HashMap::new();
        for number in 0..profile.locations.len() {
            let location = profile.locations[number];
            let first_line = profile.lines.len() as u32;
            if let Some(marker) = marker_at(location.address).filter(|_| location.line_count == 0) {
                let function = profile.functions.len() as u32;
                profile.functions.push(Function {
                    name: marker.name.to_owned(),
                    ..Function::default()
                });
                profile.lines.push(Line {
                    function,
                    ..Line::default()
                });
            } else if let Some(key) = self.key(profile, &location)
                && let Some(named) = self.frames.get(&key)
            {
                for (function, line, column) in named.frames.iter() {
                    let next = profile.functions.len() as u32;
                    let number = *numbers.entry(Arc::as_ptr(function)).or_insert_with(|| {
                        profile.functions.push(function.as_ref().clone());
                        next
                    });
                    profile.lines.push(Line {
                        function: number,
                        line: *line,
                        column: *column,
                    });
                }
            } else {
                continue;
            }
            let location = &mut profile.locations[number];
            location.first_line = first_line;
            location.line_count = profile.lines.len() as u32 - first_line;
        }
    }
}

/// Whether a mapping is of a file, which has the same code in each process.
fn is_file(mapping: &Mapping) -> bool {
    mapping.path.is_absolute() && !mapping.path.starts_with("/dev/zero")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is kept is whole between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_compiled_code_do_not_pile_up() {
        let now = Instant::now();
        let mut known = Known::default();
        let mut put = |key: Key, name: &str, until: Option<Instant>| {
            let function = Function {
                name: name.into(),
                ..Function::default()
            };
            let shared = Arc::new(function.clone());
            known.functions.insert(function, Arc::clone(&shared));
            let frames = [(shared, 0, 0)].into();
            known.frames.insert(key, Named { frames, until });
        };
        put(Key::File(0, 1), "of a file", None);
        put(Key::Jit(1, 1), "new", Some(now + JIT_LIFE));
        for address in 2..1000 {
            put(Key::Jit(1, address), &format!("old {address}"), Some(now));
        }
        known.forget_old(now);
        assert_eq!((known.frames.len(), known.functions.len()), (2, 2));
    }
}
