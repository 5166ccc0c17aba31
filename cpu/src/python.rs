//! Lines of Python (CPython 3.8 to 3.15) in the stacks of a process, read from outside while the
//! thread is stopped. Nothing runs inside that process.
//!
//! # Guarantees
//! - An interpreter is found by the symbols of the program, and of files named like one. The search
//!   is done once per program, and costs other programs only a check of file names.
//! - All data are untrusted: each chain is bounded, each object must have the expected type, and a
//!   mismatch costs only the Python part of one stack.
//! - While a thread is stopped, a few pages are read, and all known code objects by one system
//!   call. The states of threads are searched between samples.
//!
//! # Limits
//! The process's other threads run meanwhile, so a stack may lack its lines while its thread's
//! state is being created. If the compiler has split the evaluation loop of 3.8 to 3.10, lines may
//! be placed in the next native frame.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `exports` | symbols of an interpreter in a file |
//! | `runtime` | its version, and the addresses of its data |
//! | `threads` | the states of its threads |
//! | `frames` | the frames that a state leads to |
//! | `codes` | code objects, each once |
//! | `memory` | the memory of the process |
//! | `reader` | all of them, for a stopped thread |

// Decision 60: ptrace reads Python lines without an agent.
mod codes;
mod exports;
mod frames;
mod memory;
mod reader;
mod runtime;
#[cfg(test)]
mod tests;
mod threads;

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cpython::layout::Style;
use cpython::{Description, State};
use unwind::Registers;

use crate::memory::Copied;
use crate::mixer::ByAddress;
use crate::script::Script;
#[cfg(doc)]
use crate::script::ScriptLine;
use crate::space::{self, FileId, Range, Space};
use exports::Names;
use reader::Reader;
use runtime::Runtime;

/// Maximum number of files whose symbols are cached.
const MAX_FILES: usize = 1 << 14;

/// Interpreter frames of a stopped thread, innermost first.
#[derive(Debug, Default)]
pub struct Ran(Vec<RanFrame>);

/// Interpreter frame of a stopped thread.
#[derive(Clone, Copy, Debug)]
struct RanFrame {
    /// Stack address inside the native frame that runs it. 0: the next native frame of the
    /// evaluation loop runs it.
    at: u64,
    /// Number of its code object.
    code: u32,
    /// Offset of its instruction in the code object.
    offset: u32,
}

/// Symbols of interpreters in files, for all processes that map them.
#[derive(Default)]
pub struct Files(HashMap<FileId, Option<Names>>);

impl Files {
    /// Returns the symbols in the file of a range.
    fn names(&mut self, pid: i32, range: &Range) -> Option<Names> {
        if self.0.len() >= MAX_FILES {
            self.0.clear();
        }
        let looks_further = is_called_python(&range.path);
        *self.0.entry(range.file).or_insert_with(|| {
            let file = space::open(pid, range)?;
            exports::read(&file, looks_further)
        })
    }
}

/// Reader of a process's interpreter, shared between threads.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Reader>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Reader> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the interpreter frames of a stopped thread, given its thread pointer and a copy of
    /// its stack.
    pub fn look(&self, pointer: u64, stack: Copied<'_>) -> Ran {
        self.lock().look(pointer, stack)
    }
}

/// Interpreter of a program.
#[derive(Default)]
pub struct Python {
    reader: Option<Shared>,
    /// Version of its mappings ([`Space::changes`]) when it was last searched in vain.
    looked: Option<u64>,
    /// Path of the program, once it was read.
    program: Option<Vec<u8>>,
    /// Description that was reported last.
    told: Option<State>,
    style: Option<(Style, (u64, u64))>,
    /// Frames by code object and instruction offset; `None` if a frame is not shown.
    lines: ByAddress<u64, Option<u64>>,
}

impl Python {
    /// Returns the load bias and the symbols of a file that may contain an interpreter and was not
    /// examined yet.
    pub fn candidate(&mut self, space: &Space, files: &mut Files) -> Option<(u64, Names)> {
        if self.reader.is_some() || self.looked == Some(space.changes()) {
            return None;
        }
        let pid = space.pid();
        let program = self.program.get_or_insert_with(|| {
            let shown = proc::living_thread(pid);
            let path = std::fs::read_link(format!("/proc/{shown}/exe")).unwrap_or_default();
            path.as_os_str().as_bytes().to_vec()
        });
        let may = |range: &&Range| {
            range.file.1 != 0 && (is_called_python(&range.path) || *range.path == program[..])
        };
        let mut ranges = space.ranges().iter().filter(may);
        let found = ranges.find_map(|range| Some((range.start, files.names(pid, range)?)));
        if found.is_none() {
            self.looked = Some(space.changes());
        }
        found
    }

    /// Sets the interpreter, which has these symbols and load bias.
    pub fn take(&mut self, space: &Space, names: &Names, bias: u64, script: &mut Script) {
        let Some(runtime) = Runtime::of(space.pid(), names, bias) else {
            // The interpreter is still being loaded, or reading is not permitted.
            return;
        };
        let Some(layout) = runtime.layout else {
            self.looked = Some(space.changes());
            script.interpreter = Some(Description {
                version: runtime.version,
                is_free_threaded: false,
                state: State::Unknown,
            });
            return;
        };
        self.style = Some((layout.style, runtime.loop_at));
        let reader = Reader::new(space.pid(), runtime, layout);
        self.reader = Some(Shared(Arc::new(Mutex::new(reader))));
    }

    /// Returns the reader of its frames, if it has an interpreter, after a search for new threads.
    pub fn prepared(&mut self, script: &mut Script) -> Option<Shared> {
        let reader = self.reader.as_ref()?;
        reader.lock().prepare();
        let reader = reader.clone();
        self.tell(script);
        Some(reader)
    }

    fn tell(&mut self, script: &mut Script) {
        let Some(reader) = &self.reader else { return };
        let description = reader.lock().description();
        if self.told != Some(description.state) {
            self.told = Some(description.state);
            script.interpreter = Some(description);
        }
    }

    /// Merges the frames of a walk, innermost first: native frames by their lookup addresses, each
    /// preceded by the lines that it runs.
    pub fn merge(
        &mut self,
        Ran(mut ran): Ran,
        native: &[Registers],
        script: &mut Script,
        frames: &mut Vec<u64>,
    ) {
        self.assign(&mut ran, native);
        self.tell(script);
        let mut rest = ran.into_iter().peekable();
        for (index, registers) in native.iter().enumerate() {
            let end = native.get(index + 1).map_or(u64::MAX, |caller| caller.sp);
            while let Some(ran) = rest.next_if(|ran| ran.at < end) {
                frames.extend(self.frame(ran.code, ran.offset, script));
            }
            frames.push(registers.ip.wrapping_sub(1));
        }
    }

    /// Assigns each line to a native frame, and sorts them.
    fn assign(&self, ran: &mut Vec<RanFrame>, native: &[Registers]) {
        if let Some((Style::Objects, (from, to))) = self.style {
            let runs = native
                .iter()
                .filter(|frame| frame.ip > from && frame.ip <= to);
            let count = (ran.iter_mut().zip(runs))
                .map(|(line, frame)| line.at = frame.sp)
                .count();
            // No native frame is known to run the others.
            ran.truncate(count);
        }
        // A stable sort: lines of one native frame stay in order.
        ran.sort_by_key(|ran| ran.at);
    }

    /// Returns the frame of a line, or `None` for a shim ([`ScriptLine::is_shim`]).
    fn frame(&mut self, code: u32, offset: u32, script: &mut Script) -> Option<u64> {
        let key = u64::from(code) << 32 | u64::from(offset);
        let reader = self.reader.as_ref();
        *self.lines.entry(key).or_insert_with(|| {
            let line = reader?.lock().line(code, offset);
            (!line.is_shim()).then(|| script.frame(line))
        })
    }
}

/// Returns true if a file is named like interpreters and their libraries.
fn is_called_python(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"python") || name.starts_with(b"libpython3"))
}
