//! Reads the symbols of files in child processes.
//!
//! A file may be truncated, damaged, crafted, or replaced while it is read. Then its reader
//! ([`dwarf`] or blazesym) may panic, which aborts the process, or be killed by SIGBUS. So a child
//! reads the files and writes its results into a pipe. If the child dies, the file that it was
//! reading gets an error, and another child continues with the next file. If debug information is
//! damaged, another child reads the file's symbol tables alone.
//!
//! Guarantees: [`read`] returns one answer for each request, whatever the files contain. A child
//! takes bounded memory and time, leaves no core file and prints nothing.
//!
//! The calling process must have only one thread, because it forks.

// Decision 14: symbols are read in a child process.
use std::io::{self, PipeWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use profile::{opening, printable};

use blazesym::symbolize::source::{Elf as ElfSource, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};

use super::answer::{Answer, Failure, receive, send};
use super::dwarf::{self, Resolved, stripped};
use super::frame::{Frame, Frames, Origin};
use super::links;

/// Base of a child's address-space limit, in bytes; its own size and 16 times that of its files are
/// added.
const CHILD_MEMORY: u64 = 4 << 30;
/// Base of a child's CPU-time limit, in seconds; one second per MiB of its files is added.
const CHILD_SECONDS: u64 = 120;

/// A file, and the addresses to look up in it.
#[derive(Clone)]
pub struct Request {
    /// File with the symbols.
    pub path: PathBuf,
    /// Prefix of generated names for code without a symbol; `None` if such code gets no names.
    pub module: Option<String>,
    /// Addresses in the file's own address space.
    pub addresses: Vec<u64>,
    /// Set if only symbol tables are read: because another file had complete debug information, or
    /// because this file's debug information is damaged.
    pub tables_only: bool,
}

/// Result of reading one file.
pub struct Reading {
    /// Frames of each requested address.
    pub frames: Frames,
    /// Error of the debug information, if `frames` come from the symbol tables alone.
    pub damage: Option<Error>,
    /// Description of what `frames` lack because a file with debug information is missing.
    pub missing_note: Option<String>,
}

/// Error that leaves a file's functions without names or lines.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The child could not read the file.
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
        /// Cause of the child's death.
        death: Death,
    },
    /// The debug information is damaged; names come from the symbol tables.
    #[error(
        "{path}: its debug information is damaged, so its functions have the names of its symbol \
         table, without lines"
    )]
    DebugInfo {
        /// The file.
        path: String,
    },
    /// The child could not be started, or no answer could be read from its pipe.
    #[error("{path}: symbols cannot be read: {error}")]
    NoChild {
        /// The file.
        path: String,
        /// The kernel's error.
        error: io::Error,
    },
}

/// Cause of a child's death.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum Death {
    /// A time limit was exceeded.
    #[error("reading it takes too long")]
    TooLong,
    /// A signal.
    #[error("reading it ended by signal {0}")]
    Signal(i32),
    /// An exit before all answers were written.
    #[error("reading it ended with code {0}")]
    Exit(i32),
}

/// Reads the symbols of all requests. The errors are warnings for users.
pub fn read(requests: &[Request], debug_directories: &[PathBuf]) -> Vec<Result<Reading, Error>> {
    let answers = read_once(requests, debug_directories);
    let pairs = requests.iter().zip(answers);
    pairs
        .map(|(request, answer)| match answer {
            Ok(Resolved {
                frames,
                missing_note,
            }) => Ok(Reading {
                frames,
                damage: None,
                missing_note,
            }),
            Err(error) => read_tables(request, debug_directories).ok_or(error),
        })
        .collect()
}

/// Reads only the symbol tables of a file whose debug information could not be read. Returns `None`
/// if they name none of the addresses.
fn read_tables(request: &Request, debug_directories: &[PathBuf]) -> Option<Reading> {
    if request.tables_only {
        return None;
    }
    let request = Request {
        tables_only: true,
        ..request.clone()
    };
    let path = printable::path(&request.path);
    let frames = read_once(&[request], debug_directories).pop()?.ok()?.frames;
    let is_named = frames.iter().any(|list| !list.is_empty());
    is_named.then_some(Reading {
        frames,
        damage: Some(Error::DebugInfo { path }),
        missing_note: None,
    })
}

/// Reads the files, replacing each child that dies. Does not fall back to symbol tables.
fn read_once(requests: &[Request], debug_directories: &[PathBuf]) -> Vec<Result<Resolved, Error>> {
    let mut answers = Vec::new();
    while answers.len() < requests.len() {
        let rest = &requests[answers.len()..];
        match in_child(rest, debug_directories, &mut answers) {
            Ok(End::Finished) => {}
            Ok(End::Died(death)) => {
                let path = path_of(requests, answers.len());
                answers.push(Err(Error::Damaged { path, death }));
            }
            Err(error) => {
                let path = path_of(requests, answers.len());
                answers.push(Err(Error::NoChild { path, error }));
            }
        }
    }
    answers.truncate(requests.len());
    answers
}

/// Returns the path of request number `at`, for messages.
fn path_of(requests: &[Request], at: usize) -> String {
    let path = requests.get(at).map(|r| printable::path(&r.path));
    path.unwrap_or_default()
}

/// Outcome of one child.
enum End {
    /// All requests were answered.
    Finished,
    /// The child died before that.
    Died(Death),
}

/// Sends requests to a child, which answers as many as it can. Appends the answers.
fn in_child(
    requests: &[Request],
    debug_directories: &[PathBuf],
    answers: &mut Vec<Result<Resolved, Error>>,
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

/// Waits for a child. Returns its cause of death, to be used if answers are missing.
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

/// Writes the answers to all requests into `to`. Runs in the child.
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
        if let Ok(Resolved { frames, .. }) = &mut found {
            let Request {
                path,
                module,
                addresses,
                ..
            } = request;
            stripped::complete(
                path,
                debug_directories,
                module.as_deref(),
                addresses,
                frames,
            );
        }
        send(&mut to, &found)?;
        // Answers so far survive if the next file kills this process.
        to.flush()?;
    }
    Ok(())
}

/// Sets the child's resource limits and silences its output.
fn restrain(requests: &[Request]) {
    std::panic::set_hook(Box::new(|_| {}));
    // Counts allocated blocks, because a sparse file may claim any length.
    let size = |r: &Request| std::fs::metadata(&r.path).map_or(0, |m| m.blocks() * 512);
    let files: u64 = requests.iter().map(size).fold(0, u64::saturating_add);
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    let current_size = pages.unwrap_or(0).saturating_mul(4096);
    let memory = CHILD_MEMORY
        .saturating_add(current_size)
        .saturating_add(files.saturating_mul(16));
    let seconds = CHILD_SECONDS.saturating_add(files >> 20);
    for (resource, value) in [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_AS, memory),
        (libc::RLIMIT_CPU, seconds),
    ] {
        let limit = libc::rlimit {
            rlim_cur: value,
            rlim_max: value,
        };
        // SAFETY: `limit` is a complete rlimit. Failure means that a lower limit is in
        // force, which is good enough.
        unsafe { libc::setrlimit(resource, &limit) };
    }
    // A blocked read takes no CPU time: the filesystem may not answer, or a FIFO may have
    // replaced a file. So elapsed time is limited as well.
    let timeout = u32::try_from(seconds.saturating_mul(4)).unwrap_or(u32::MAX);
    // SAFETY: this process has no handlers of its own; SIGALRM's default action ends it.
    unsafe {
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::alarm(timeout);
    }
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        use std::os::fd::AsRawFd;
        // SAFETY: both are descriptors of this process, which writes nothing
        // to its standard error from here on.
        unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) };
    }
}

/// Looks addresses up in debug information, by [`dwarf`] or else by blazesym. Leaves the frames of
/// a program without debug information empty, because [`stripped::complete`] looks its symbols up
/// together with those of its separate debug files.
fn by_debug_info(
    symbolizer: &Symbolizer,
    request: &Request,
    debug_directories: &[PathBuf],
) -> Answer {
    let Request {
        path, addresses, ..
    } = request;
    if stripped::can_complete(path) {
        if request.tables_only || stripped::lacks_debug_info(path, debug_directories) {
            return Ok(Resolved::from(vec![Vec::new(); addresses.len()]));
        }
    } else if request.tables_only {
        return by_blazesym(symbolizer, request, None);
    }
    let found = dwarf::read(path, addresses, debug_directories);
    found.map_or_else(
        || by_blazesym(symbolizer, request, Some(debug_directories)),
        Ok,
    )
}

/// Looks addresses up by blazesym. Without `debug_directories`, only in the symbol tables.
fn by_blazesym(
    symbolizer: &Symbolizer,
    request: &Request,
    debug_directories: Option<&[PathBuf]>,
) -> Answer {
    let path_text = printable::path(&request.path);
    opening::regular(&request.path).map_err(|error| Failure(format!("{path_text} {error}")))?;
    let mut source = ElfSource::new(&request.path);
    source.debug_syms = debug_directories
        .is_some_and(|directories| links::lead_to_regular_files(&request.path, directories));
    let source = Source::Elf(source);
    let found = symbolizer
        .symbolize(&source, Input::VirtOffset(&request.addresses))
        .map_err(|e| Failure(format!("{path_text}: symbols cannot be read: {e:#}")))?;
    let to_frames = |symbol: &Symbolized| match symbol {
        Symbolized::Sym(symbol) => frames(symbol),
        Symbolized::Unknown(_) => Vec::new(),
    };
    Ok(found.iter().map(to_frames).collect::<Frames>().into())
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

/// Returns true if `path` is a regular file.
pub fn is_regular_file(path: &Path) -> bool {
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
        let start = hex(1);
        let size = hex(3);
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
            let name = words.next();
            let _kind = words.next();
            let address = words.next();
            let addresses = symbols.entry(name.unwrap().to_owned()).or_default();
            addresses.extend(address.map(str::to_owned));
        }
        symbols
    }

    #[test]
    fn the_reader_of_many_addresses_agrees_with_the_library() {
        let path = std::env::current_exe().unwrap();
        let addresses = spread(&path);
        let many = dwarf::read(&path, &addresses, &[])
            .expect("it has debug information")
            .frames;
        let request = request(path, addresses);
        let symbolizer = Symbolizer::builder().enable_demangling(false).build();
        let library = by_blazesym(&symbolizer, &request, Some(&[]))
            .unwrap()
            .frames;
        let symbols = symbols(&request.path);
        let mut inlined = 0;
        for ((address, ours), theirs) in request.addresses.iter().zip(&many).zip(&library) {
            // If several symbols have the same address and size, each reader may choose any.
            let is_same = |ours: &Frame, theirs: &Frame| {
                let addresses = |frame: &Frame| symbols.get(frame.name.as_ref());
                let renamed = Frame {
                    name: Rc::clone(&theirs.name),
                    origin: theirs.origin,
                    ..ours.clone()
                };
                // The library leaves names unqualified if the debug information does.
                let base = theirs.name.split(['<', '{']).next().unwrap_or_default();
                let is_qualified = ours.name.contains(base);
                let is_alias = addresses(ours).is_some_and(|ours| Some(ours) == addresses(theirs));
                renamed == *theirs && (is_alias || is_qualified)
            };
            let mut pairs = ours.iter().zip(theirs);
            let equal = ours.len() == theirs.len() && pairs.all(|(a, b)| is_same(a, b));
            assert!(equal, "{address:x}: {ours:?}, not {theirs:?}");
            inlined += usize::from(ours.len() > 1);
        }
        let named = many.iter().filter(|frames| !frames.is_empty()).count();
        assert!(named > 2000 && inlined > 100, "{named} {inlined}");
    }

    #[test]
    fn truncated_and_damaged_files_are_read_without_panic() {
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
        // Every request has an answer, even after a corrupt file.
        assert_eq!(read(&requests, &[]).len(), requests.len());
    }
}
