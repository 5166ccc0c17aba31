//! Cache of function names: each address of a file is looked up once for all processes that run it.
//!
//! Files of targets are untrusted, and this program cannot read them in a fork of itself, because
//! it has threads. So a child process `mem_server names` reads them, with resource limits. It gets
//! a profile of the code that is not cached, and returns the profile with names. It is killed if it
//! takes too long.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use profile::{
    BuildId, Detail, Facts, Function, Line, Location, Mapping, Profile, ProfileBuilder, marker_at,
};
use symbols::{Options, sandboxed};

/// Maximum time to wait for new names.
const NAMES_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after a failure in which no child is started.
const RETRY_AFTER: Duration = Duration::from_secs(30);
/// Time for which names of JIT code are cached. Such code may be recompiled at any time.
const JIT_LIFETIME: Duration = Duration::from_secs(60);
/// Maximum number of cached addresses.
const MAX_CACHED_ADDRESSES: usize = 1 << 20;
/// Maximum size of a child's answer, in bytes.
const MAX_ANSWER_BYTES: u64 = 1 << 30;

/// Cache of function names, and the program that looks them up.
pub struct FunctionNames {
    /// Path of this program.
    program: PathBuf,
    cache: Mutex<Cache>,
    /// Held while a child runs, so that no address is looked up twice at the same time.
    lookups: Mutex<()>,
}

/// Contents of the cache.
#[derive(Default)]
struct Cache {
    /// Number of each file.
    files: HashMap<(PathBuf, BuildId), u32>,
    frames: HashMap<Key, CachedNames>,
    functions: HashMap<Function, Arc<Function>>,
    /// Time until which no child is started, after a failure.
    retry_at: Option<Instant>,
}

/// Identity of a code address.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Number of the file, and offset in it.
    File(u32, u64),
    /// Pid, and address outside files.
    Jit(u32, u64),
}

/// Names of an address.
#[derive(Clone)]
struct CachedNames {
    /// Functions with line and column, innermost first; empty if unknown.
    frames: Arc<[(Arc<Function>, u32, u32)]>,
    /// Expiry; `None` if the entry never expires.
    expires: Option<Instant>,
}

impl FunctionNames {
    /// Creates an empty cache that is filled by `program`, which should be this program.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            cache: Mutex::default(),
            lookups: Mutex::default(),
        }
    }

    /// Names the code of a profile. Code whose name cannot be found keeps its address. Returns an
    /// error message if something failed.
    pub fn symbolize(&self, profile: &mut Profile) -> Option<String> {
        let mut error = None;
        if !lock(&self.cache).uncached(profile).is_empty() {
            let _lookups = lock(&self.lookups);
            let missing = lock(&self.cache).uncached(profile);
            if !missing.is_empty() {
                error = self.look_up(profile, &missing).err();
            }
        }
        lock(&self.cache).apply(profile);
        error.map(|error| format!("{error:#}"))
    }

    /// Looks up the names of the locations `missing` in a child, and caches the result.
    fn look_up(&self, profile: &Profile, missing: &[usize]) -> anyhow::Result<()> {
        let retry_at = lock(&self.cache).retry_at;
        if retry_at.is_some_and(|time| Instant::now() < time) {
            bail!("functions are not named for a while, after a failure");
        }
        match self.name_in_child(&profile_of_locations(profile, missing)) {
            Ok(named) => {
                lock(&self.cache).store(profile, missing, &named);
                Ok(())
            }
            Err(error) => {
                lock(&self.cache).retry_at = Some(Instant::now() + RETRY_AFTER);
                Err(error.context("functions cannot be named"))
            }
        }
    }

    /// Names the code in a profile in a child process. Returns that profile with names.
    fn name_in_child(&self, code: &Profile) -> anyhow::Result<Profile> {
        let mut request = Vec::new();
        profile::dump::write(code, &mut request)?;
        let mut child = Command::new(&self.program)
            .arg("names")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| self.program.display().to_string())?;
        let answer = ask_child(&mut child, request);
        kill_and_reap(&mut child);
        Ok(profile::read(&answer?, "names")?)
    }
}

/// Sends the request to a child and reads its answer, within the timeout.
fn ask_child(child: &mut Child, request: Vec<u8>) -> anyhow::Result<Vec<u8>> {
    let stdin = child.stdin.take();
    let stdout = child.stdout.take();
    let (mut stdin, stdout) = stdin.zip(stdout).context("there is no pipe")?;
    let (sender, receiver) = mpsc::channel();
    let run = move || {
        let mut answer = Vec::new();
        let result = stdin.write_all(&request).and_then(|()| {
            drop(stdin);
            stdout.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)
        });
        // Fails if the timeout has expired.
        let _ = sender.send(result.map(|_| answer));
    };
    std::thread::Builder::new().spawn(run)?;
    match receiver.recv_timeout(NAMES_TIMEOUT) {
        Ok(answer) => Ok(answer?),
        Err(RecvTimeoutError::Timeout) => bail!("reading their files takes too long"),
        Err(RecvTimeoutError::Disconnected) => bail!("the reader of files is gone"),
    }
}

/// Kills a child and its process group, and reaps the child.
fn kill_and_reap(child: &mut Child) {
    let pid = child.id().cast_signed();
    // SAFETY: both calls take integers. `child` is not reaped yet, so neither its pid nor the id of
    // the group that it made for itself can have been reused.
    unsafe {
        libc::kill(-pid, libc::SIGKILL);
        libc::kill(pid, libc::SIGKILL);
    }
    // Its exit status does not matter.
    let _ = child.wait();
}

/// Returns a profile with only these locations, each as a stack.
fn profile_of_locations(profile: &Profile, missing: &[usize]) -> Profile {
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
    // The values are not used, but a stack without values would be dropped.
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

/// Returns a profile of the code that has no name in `profile`; `None` if all code has one.
pub fn unnamed(profile: &Profile) -> Option<Profile> {
    let missing = Cache::default().uncached(profile);
    (!missing.is_empty()).then(|| profile_of_locations(profile, &missing))
}

/// Names the code of a profile. `named` is the profile that [`unnamed`] has returned, with names.
pub fn apply(profile: &mut Profile, named: &Profile) {
    let mut cache = Cache::default();
    let missing = cache.uncached(profile);
    cache.store(profile, &missing, named);
    cache.apply(profile);
}

/// Runs `mem_server names`: names the code of the profile on standard input.
pub fn run_child() -> anyhow::Result<()> {
    sandboxed::restrain();
    let mut profile = profile::read_from(io::stdin().lock(), "names")?;
    let options = Options {
        binary: None,
        force: false,
        demangle: symbols::demangle::Style::Simple,
        directories: &[],
        debuginfod: false,
        perf_map: None,
    };
    // Warnings are not needed: unnamed code is shown with its file.
    let _ = symbols::symbolize(&mut profile, &options);
    Ok(profile::pprof::write(&profile, &mut io::stdout().lock())?)
}

impl Cache {
    /// Returns the key of a location, or `None` if it has no address or already has its name.
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

    /// Returns the indices of the locations that are not cached.
    fn uncached(&mut self, profile: &Profile) -> Vec<usize> {
        let now = Instant::now();
        let mut missing = Vec::new();
        for (number, location) in profile.locations.iter().enumerate() {
            let Some(key) = self.key(profile, location) else {
                continue;
            };
            let named = self.frames.get(&key);
            if named.is_none_or(|named| named.expires.is_some_and(|expires| now >= expires)) {
                missing.push(number);
            }
        }
        missing
    }

    /// Caches what a child has found for the locations `missing` of a profile.
    fn store(&mut self, profile: &Profile, missing: &[usize], named: &Profile) {
        self.forget_old(Instant::now());
        if self.frames.len() + missing.len() > MAX_CACHED_ADDRESSES {
            *self = Self::default();
        }
        let location_at: HashMap<u64, &Location> = named
            .locations
            .iter()
            .map(|location| (location.address, location))
            .collect();
        for &number in missing {
            let location = &profile.locations[number];
            let Some(key) = self.key(profile, location) else {
                continue;
            };
            let lines = location_at
                .get(&location.address)
                .map(|location| named.lines_of(location));
            let lines = lines.unwrap_or_default().iter();
            let frames = lines.filter_map(|line| {
                let function = named.functions.get(line.function as usize)?;
                let function = match self.functions.get(function) {
                    Some(shared) => Arc::clone(shared),
                    None => {
                        let shared = Arc::new(function.clone());
                        self.functions.insert(function.clone(), Arc::clone(&shared));
                        shared
                    }
                };
                Some((function, line.line, line.column))
            });
            let frames = frames.collect();
            let expires = matches!(key, Key::Jit(..)).then(|| Instant::now() + JIT_LIFETIME);
            self.frames.insert(key, CachedNames { frames, expires });
        }
    }

    /// Drops expired names. Otherwise a process with a JIT would fill the cache.
    fn forget_old(&mut self, now: Instant) {
        let before = self.frames.len();
        let is_valid = |named: &CachedNames| named.expires.is_none_or(|expires| now < expires);
        self.frames.retain(|_, named| is_valid(named));
        if self.frames.len() < before {
            self.functions
                .retain(|_, function| Arc::strong_count(function) > 1);
        }
    }

    /// Stores cached names in a profile.
    fn apply(&mut self, profile: &mut Profile) {
        let mut numbers: HashMap<*const Function, u32> = HashMap::new();
        for number in 0..profile.locations.len() {
            let location = profile.locations[number];
            let first_line = profile.lines.len() as u32;
            if location.line_count == 0
                && let Some(marker) = marker_at(location.address)
            {
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

/// Returns true if a mapping refers to a file, whose code is then the same in every process.
fn is_file(mapping: &Mapping) -> bool {
    mapping.path.is_absolute() && !mapping.path.starts_with("/dev/zero")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each statement leaves the cache consistent, so a panic of another thread does no harm.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_names_of_jit_code_are_dropped() {
        let now = Instant::now();
        let mut cache = Cache::default();
        let mut put = |key: Key, name: &str, expires: Option<Instant>| {
            let function = Function {
                name: name.into(),
                ..Function::default()
            };
            let shared = Arc::new(function.clone());
            cache.functions.insert(function, Arc::clone(&shared));
            let frames = [(shared, 0, 0)].into();
            cache.frames.insert(key, CachedNames { frames, expires });
        };
        put(Key::File(0, 1), "of a file", None);
        put(Key::Jit(1, 1), "new", Some(now + JIT_LIFETIME));
        for address in 2..1000 {
            put(Key::Jit(1, address), &format!("old {address}"), Some(now));
        }
        cache.forget_old(now);
        assert_eq!((cache.frames.len(), cache.functions.len()), (2, 2));
    }
}
