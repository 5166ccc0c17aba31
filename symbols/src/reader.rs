//! Reading symbols, in a child process.
//!
//! A file may be truncated, damaged, crafted to mislead, or replaced while it
//! is read. Its reader ([`dwarf`], or else blazesym) may panic, which aborts
//! the process, or be killed by the kernel if a mapped file ends early.
//! So a child reads the file and writes its results into a pipe. If the child dies, the file
//! that it was reading is named, and another child continues with the next one.
//!
//! Debug information that is damaged costs its own facts: another child then reads the
//! tables of symbols alone.
//!
//! Promises: [`read`] gives one answer for each request, whatever the files
//! contain; a child takes bounded memory and time, leaves no core file and prints
//! nothing.
//!
//! The caller must be the only thread of its process.

use std::io::{self, PipeWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use heap_format::{opening, printable};

use blazesym::symbolize::source::{Elf as ElfSource, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};

use super::answer::{Answer, Failure, receive, send};
use super::dwarf::{self, stripped};
use super::frame::{Frame, Frames, Origin};
use super::links;

/// Memory that a child may use in addition to what it has and what its files need.
const MEMORY: u64 = 4 << 30;
/// CPU seconds that a child may use, in addition to one for each MiB of its files.
const SECONDS: u64 = 120;

/// A file, and the addresses to look up in it.
#[derive(Clone)]
pub struct Request {
    /// The file with the symbols.
    pub path: PathBuf,
    /// What code without symbols is named after, if it is to have names.
    pub module: Option<String>,
    /// Addresses in the file's own address space.
    pub addresses: Vec<u64>,
    /// Whether debug information is not read: another file's had everything, or it is damaged.
    pub tables_only: bool,
}

/// What a file says.
pub struct Reading {
    /// The frames of each address.
    pub frames: Frames,
    /// Why they are of the tables of symbols alone, if its debug information cannot be read.
    pub damage: Option<Error>,
}

/// Why the symbols of a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The child reported it.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The child died while reading the file.
    #[error(
        "{path}: symbols cannot be read: the file is damaged ({death}); its functions are not \
         named"
    )]
    Damaged {
        /// The file.
        path: String,
        /// How the child died.
        death: Death,
    },
    /// It still has names in its symbol tables.
    #[error(
        "{path}: its debug information is damaged, so its functions have the names of its symbol \
         table, without lines"
    )]
    DebugInfo {
        /// The file.
        path: String,
    },
    /// There is no child to read it.
    #[error("{path}: symbols cannot be read: {error}")]
    NoChild {
        /// The file.
        path: String,
        /// The kernel's error.
        error: io::Error,
    },
}

/// How a child died.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Death {
    /// It exceeded a time limit.
    #[error("reading it takes too long")]
    TooLong,
    /// A signal killed it.
    #[error("reading it ended by signal {0}")]
    Signal(i32),
    /// It exited without giving all answers.
    #[error("reading it ended with code {0}")]
    Exit(i32),
}

/// Answers all requests. An error is a warning for people.
pub fn read(requests: &[Request], debug_directories: &[PathBuf]) -> Vec<Result<Reading, Error>> {
    let answers = read_once(requests, debug_directories);
    let whole = |(request, answer): (&Request, Result<Frames, Error>)| match answer {
        Ok(frames) => Ok(Reading {
            frames,
            damage: None,
        }),
        Err(error) => by_tables(request, debug_directories).ok_or(error),
    };
    requests.iter().zip(answers).map(whole).collect()
}

/// The symbol tables' answers for a file that could not be read with its debug information.
fn by_tables(request: &Request, debug_directories: &[PathBuf]) -> Option<Reading> {
    if request.tables_only {
        return None;
    }
    let request = Request {
        tables_only: true,
        ..request.clone()
    };
    let path = printable::path(&request.path);
    let frames = read_once(&[request], debug_directories).pop()?.ok()?;
    let is_named = frames.iter().any(|own| !own.is_empty());
    is_named.then_some(Reading {
        frames,
        damage: Some(Error::DebugInfo { path }),
    })
}

/// Answers each request as it is.
fn read_once(requests: &[Request], debug_directories: &[PathBuf]) -> Vec<Result<Frames, Error>> {
    let mut answers = Vec::new();
    while answers.len() < requests.len() {
        let rest = &requests[answers.len()..];
        match in_child(rest, debug_directories, &mut answers) {
            Ok(End::Finished) => {}
            Ok(End::Died(death)) => {
                let path = rest_path(requests, answers.len());
                answers.push(Err(Error::Damaged { path, death }));
            }
            Err(error) => {
                let path = rest_path(requests, answers.len());
                answers.push(Err(Error::NoChild { path, error }));
            }
        }
    }
    answers.truncate(requests.len());
    answers
}

fn rest_path(requests: &[Request], at: usize) -> String {
    let path = requests.get(at).map(|r| printable::path(&r.path));
    path.unwrap_or_default()
}

enum End {
    /// It answered everything.
    Finished,
    /// It ended early.
    Died(Death),
}

/// Makes a child answer as many requests as it can.
fn in_child(
    requests: &[Request],
    debug_directories: &[PathBuf],
    answers: &mut Vec<Result<Frames, Error>>,
) -> io::Result<End> {
    let (mut from, to) = io::pipe()?;
    // SAFETY: this process has one thread, so the child's copy of it is whole:
    // no lock is held by a thread that the child does not have.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(from);
            let code = i32::from(answer_all(requests, debug_directories, to).is_err());
            // SAFETY: _exit ends the process; nothing of it is used afterwards.
            unsafe { libc::_exit(code) }
        }
        child => {
            drop(to);
            let before = answers.len();
            while let Some(answer) = receive(&mut from)? {
                answers.push(answer.map_err(Error::from));
            }
            drop(from);
            let death = wait_for(child)?;
            if answers.len() - before == requests.len() {
                return Ok(End::Finished);
            }
            Ok(End::Died(death))
        }
    }
}

/// Waits for a child. Returns how it died if it did not answer everything.
fn wait_for(child: libc::pid_t) -> io::Result<Death> {
    let mut status = 0;
    // SAFETY: `status` has room for one int, which is all that is written.
    while unsafe { libc::waitpid(child, &mut status, 0) } == -1 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(if libc::WIFSIGNALED(status) {
        match libc::WTERMSIG(status) {
            libc::SIGXCPU | libc::SIGALRM => Death::TooLong,
            signal => Death::Signal(signal),
        }
    } else {
        Death::Exit(libc::WEXITSTATUS(status))
    })
}

/// Runs in the child.
fn answer_all(
    requests: &[Request],
    debug_directories: &[PathBuf],
    to: PipeWriter,
) -> io::Result<()> {
    restrain(requests);
    let mut to = io::BufWriter::new(to);
    let symbolizer = Symbolizer::builder()
        .enable_demangling(false)
        .set_debug_dirs(Some(debug_directories))
        .build();
    for request in requests {
        let mut found = by_debug_info(&symbolizer, request, debug_directories);
        if let Ok(frames) = &mut found {
            let Request {
                path,
                module,
                addresses,
                ..
            } = request;
            let file = (path.as_path(), debug_directories);
            stripped::complete(file, module.as_deref(), addresses, frames);
        }
        send(&mut to, &found)?;
        // Results so far survive if the next file kills this process.
        to.flush()?;
    }
    Ok(())
}

/// Sets limits that no file can make the child exceed, and silences it.
fn restrain(requests: &[Request]) {
    std::panic::set_hook(Box::new(|_| {}));
    // Counts the blocks on disk: a sparse file may claim any length.
    let size = |r: &Request| std::fs::metadata(&r.path).map_or(0, |m| m.blocks() * 512);
    let files: u64 = requests.iter().map(size).fold(0, u64::saturating_add);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    let own = pages.unwrap_or(0).saturating_mul(4096);
    let memory = MEMORY
        .saturating_add(own)
        .saturating_add(files.saturating_mul(16));
    let seconds = SECONDS.saturating_add(files >> 20);
    for (what, most) in [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_AS, memory),
        (libc::RLIMIT_CPU, seconds),
    ] {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: `limit` is a complete rlimit. If it cannot be set because a
        // lower one is in force, that is good enough.
        unsafe { libc::setrlimit(what, &limit) };
    }
    // Waiting takes no CPU time: a filesystem that does not answer, or a FIFO that has just
    // replaced a file.
    let patience = u32::try_from(seconds.saturating_mul(4)).unwrap_or(u32::MAX);
    // SAFETY: this process has no handlers of its own; the signal's default ends it.
    unsafe {
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::alarm(patience);
    }
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        use std::os::fd::AsRawFd;
        // SAFETY: both are descriptors of this process, which writes nothing
        // to its standard error from here on.
        unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) };
    }
}

/// What debug information says, or else the library: not of a program without any, whose symbols
/// are looked up with what belongs to it.
fn by_debug_info(
    symbolizer: &Symbolizer,
    request: &Request,
    debug_directories: &[PathBuf],
) -> Answer {
    let Request {
        path, addresses, ..
    } = request;
    if stripped::is_readable(path) {
        if request.tables_only || stripped::lacks_debug_info(path, debug_directories) {
            return Ok(vec![Vec::new(); addresses.len()]);
        }
    } else if request.tables_only {
        return answer(symbolizer, request, None);
    }
    let found = dwarf::read(path, addresses, debug_directories);
    found.map_or_else(|| answer(symbolizer, request, Some(debug_directories)), Ok)
}

/// What the library says; without directories, of the tables of symbols alone.
fn answer(
    symbolizer: &Symbolizer,
    request: &Request,
    debug_directories: Option<&[PathBuf]>,
) -> Answer {
    let shown = printable::path(&request.path);
    opening::regular(&request.path).map_err(|error| Failure(format!("{shown} {error}")))?;
    let mut source = ElfSource::new(&request.path);
    source.debug_syms = debug_directories
        .is_some_and(|directories| links::are_harmless(&request.path, directories));
    let source = Source::Elf(source);
    let found = symbolizer
        .symbolize(&source, Input::VirtOffset(&request.addresses))
        .map_err(|e| Failure(format!("{shown}: symbols cannot be read: {e:#}")))?;
    let one = |symbol: &Symbolized| match symbol {
        Symbolized::Sym(symbol) => frames(symbol),
        Symbolized::Unknown(_) => Vec::new(),
    };
    Ok(found.iter().map(one).collect())
}

fn frames(symbol: &Sym) -> Vec<Frame> {
    let inlined = symbol.inlined.iter().rev();
    let mut frames: Vec<Frame> = inlined
        .map(|f| frame(&f.name, f.code_info.as_ref()))
        .collect();
    frames.push(frame(&symbol.name, symbol.code_info.as_deref()));
    frames
}

fn frame(name: &str, code: Option<&CodeInfo>) -> Frame {
    Frame {
        name: name.into(),
        file: code.map_or_else(Rc::default, |c| c.to_path().to_string_lossy().into()),
        line: code.and_then(|c| c.line).unwrap_or(0),
        column: code.and_then(|c| c.column).unwrap_or(0).into(),
        origin: Origin::Symbol,
    }
}

/// Whether `path` can be read at all; checked before looking anything up in it.
pub fn is_there(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|m| m.is_file())
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn request(path: PathBuf, addresses: Vec<u64>) -> Request {
        Request {
            path,
            module: Some("program".to_owned()),
            addresses,
            tables_only: false,
        }
    }

    /// Addresses all over the code of a program.
    fn spread(path: &Path) -> Vec<u64> {
        let sections = std::process::Command::new("readelf")
            .args(["-SW", path.to_str().unwrap()])
            .output();
        let sections = String::from_utf8(sections.unwrap().stdout).unwrap();
        let text = sections.split(" .text ").nth(1).unwrap();
        let hex = |n| u64::from_str_radix(text.split_whitespace().nth(n).unwrap(), 16).unwrap();
        let (start, size) = (hex(1), hex(3));
        let step = size / 3000;
        (0..3000).map(|i| start + i * step + i % 7).collect()
    }

    /// Addresses and sizes of each symbol of a program.
    fn symbols(path: &Path) -> HashMap<String, Vec<String>> {
        let table = std::process::Command::new("nm")
            .args(["-S", path.to_str().unwrap()])
            .output();
        let mut symbols: HashMap<String, Vec<String>> = HashMap::new();
        for line in String::from_utf8(table.unwrap().stdout).unwrap().lines() {
            let mut words = line.rsplitn(3, ' ');
            let (name, _kind, address) = (words.next(), words.next(), words.next());
            let addresses = symbols.entry(name.unwrap().to_owned()).or_default();
            addresses.extend(address.map(str::to_owned));
        }
        symbols
    }

    #[test]
    fn the_reader_of_many_addresses_agrees_with_the_library() {
        let path = std::env::current_exe().unwrap();
        let addresses = spread(&path);
        let many = dwarf::read(&path, &addresses, &[]).expect("it has debug information");
        let request = request(path, addresses);
        let symbolizer = Symbolizer::builder().enable_demangling(false).build();
        let library = answer(&symbolizer, &request, Some(&[])).unwrap();
        let symbols = symbols(&request.path);
        let mut inlined = 0;
        for ((address, own), theirs) in request.addresses.iter().zip(&many).zip(&library) {
            // Of symbols of one address and size each takes any.
            let alias = |(own, theirs): (&Frame, &Frame)| {
                let addresses = |frame: &Frame| symbols.get(frame.name.as_ref());
                let renamed = Frame {
                    name: Rc::clone(&theirs.name),
                    ..own.clone()
                };
                own == theirs
                    || (renamed == *theirs
                        && addresses(own).is_some_and(|p| Some(p) == addresses(theirs)))
            };
            let equal = own.len() == theirs.len() && own.iter().zip(theirs).all(alias);
            assert!(equal, "{address:x}: {own:?}, not {theirs:?}");
            inlined += usize::from(own.len() > 1);
        }
        let named = many.iter().filter(|frames| !frames.is_empty()).count();
        assert!(named > 2000 && inlined > 100, "{named} {inlined}");
    }

    #[test]
    fn files_that_end_early_or_have_other_bytes_are_answered_or_left() {
        let directory = tempfile::tempdir().unwrap();
        let exe = std::env::current_exe().unwrap();
        let small = directory.path().join("small");
        let source = directory.path().join("small.cpp");
        let text = "#include <string>\nstd::string s(int n) { return std::string(n, 'x'); }\n\
                    int main(int n, char **) { return s(n).size(); }\n";
        std::fs::write(&source, text).unwrap();
        let built = std::process::Command::new("g++")
            .args(["-g", "-O1", "-o"])
            .args([&small, &source])
            .status();
        assert!(built.unwrap().success());
        let addresses: Vec<u64> = (0x1000..0x2000).collect();
        assert!(dwarf::read(&exe, &addresses, &[]).is_some());
        let whole = std::fs::read(&small).unwrap();
        let requests: Vec<Request> = (0..60)
            .map(|i| {
                let path = directory.path().join(format!("{i}"));
                let mut bytes = whole.clone();
                if i % 3 == 0 {
                    bytes.truncate(whole.len() * i / 60);
                } else {
                    let start = whole.len() * i / 60;
                    bytes[start..]
                        .iter_mut()
                        .step_by(97)
                        .for_each(|b| *b ^= 0x55);
                }
                std::fs::write(&path, bytes).unwrap();
                request(path, addresses.clone())
            })
            .collect();
        // Whatever each is, it has an answer, and the next one too.
        assert_eq!(read(&requests, &[]).len(), requests.len());
    }
}
