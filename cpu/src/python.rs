//! Python lines (CPython 3.8 to 3.15) in the stacks of a process, read from outside while the
//! thread is stopped. Nothing runs inside that process.
//!
//! # Guarantees
//! - An interpreter is found by the symbols of the program and of mapped files that are named like
//!   an interpreter. The search is done once per program, and costs programs without Python only a
//!   check of file names.
//! - All data are untrusted: each chain is bounded, each object must have the expected type, and a
//!   mismatch costs only the Python part of one stack.
//! - While a thread is stopped, a few pages are read, and all known code objects by one system
//!   call. The states of threads are searched between samples.
//!
//! # Limits
//! The process's other threads keep running, so a stack may lack its Python lines while its thread
//! state is being created. If the compiler has split the evaluation loop of 3.8 to 3.10, lines may
//! be attached to the next native frame.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `exports` | symbols of an interpreter in a file |
//! | `runtime` | version of an interpreter, and the addresses of its data |
//! | `threads` | thread states |
//! | `frames` | Python frames of a thread |
//! | `codes` | cache of code objects |
//! | `memory` | reads the memory of the process |
//! | `reader` | all of this for a stopped thread |

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
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cpython::layout::Style;
use cpython::{Description, State};
use unwind::Registers;

use crate::memory::Copied;
use crate::mixer::IntMap;
use crate::script::Script;
#[cfg(doc)]
use crate::script::ScriptLine;
use crate::space::{self, FileId, Range, Space};
use exports::InterpreterSymbols;
use reader::Reader;
use runtime::Runtime;

/// Maximum number of files whose symbols are cached.
const MAX_FILES: usize = 1 << 14;

/// Interpreter frames of a stopped thread, innermost first.
#[derive(Debug, Default)]
pub struct PythonFrames(Vec<PythonFrame>);

/// Interpreter frame of a stopped thread.
#[derive(Clone, Copy, Debug)]
struct PythonFrame {
    /// Stack address inside the native frame that runs it; 0 if the next native frame of the
    /// evaluation loop runs it.
    at: u64,
    /// Number of its code object.
    code: u32,
    /// Offset of its instruction in the code object.
    offset: u32,
}

/// Symbols of interpreters in files, for all processes that map them.
#[derive(Default)]
pub struct Files(HashMap<FileId, Option<InterpreterSymbols>>);

impl Files {
    /// Returns the symbols in the file of a range.
    fn symbols(&mut self, pid: i32, range: &Range) -> Option<InterpreterSymbols> {
        if self.0.len() >= MAX_FILES {
            self.0.clear();
        }
        let is_named_python = is_named_python(&range.path);
        *self.0.entry(range.file).or_insert_with(|| {
            let file = space::open(pid, range)?;
            exports::read(&file, is_named_python)
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
    pub fn read_frames(&self, pointer: u64, stack: Copied<'_>) -> PythonFrames {
        self.lock().read_frames(pointer, stack)
    }
}

/// Interpreter of a program.
#[derive(Default)]
pub struct Python {
    reader: Option<Shared>,
    /// Version of the process's mappings ([`Space::changes`]) when no interpreter was found in
    /// them.
    searched: Option<u64>,
    /// Path of the program; `None` before it is first needed.
    program: Option<Vec<u8>>,
    /// State of the interpreter that was last reported to [`Script`].
    reported: Option<State>,
    /// Linkage of frames, and the address range of the evaluation loop.
    style: Option<(Style, RangeInclusive<u64>)>,
    /// Frames by code object and instruction offset; `None` if a frame is not shown.
    lines: IntMap<u64, Option<u64>>,
}

impl Python {
    /// Searches the mappings for an interpreter, unless they were searched before. Returns the
    /// address at which its file is mapped, and its symbols.
    pub fn find_interpreter(
        &mut self,
        space: &Space,
        files: &mut Files,
    ) -> Option<(u64, InterpreterSymbols)> {
        if self.reader.is_some() || self.searched == Some(space.changes()) {
            return None;
        }
        let pid = space.pid();
        let program = self.program.get_or_insert_with(|| {
            let tid = proc::living_thread(pid);
            let path = std::fs::read_link(format!("/proc/{tid}/exe")).unwrap_or_default();
            path.as_os_str().as_bytes().to_vec()
        });
        let may_be_interpreter = |range: &&Range| {
            range.file.inode != 0 && (is_named_python(&range.path) || *range.path == program[..])
        };
        let mut ranges = space.ranges().iter().filter(may_be_interpreter);
        let found = ranges.find_map(|range| Some((range.start, files.symbols(pid, range)?)));
        if found.is_none() {
            self.searched = Some(space.changes());
        }
        found
    }

    /// Sets the interpreter, given its symbols and load bias.
    pub fn set_interpreter(
        &mut self,
        space: &Space,
        symbols: &InterpreterSymbols,
        bias: u64,
        script: &mut Script,
    ) {
        let Some(runtime) = Runtime::of(space.pid(), symbols, bias) else {
            // The interpreter is still being loaded, or reading is not permitted.
            return;
        };
        let Some(layout) = runtime.layout else {
            self.searched = Some(space.changes());
            script.interpreter = Some(Description {
                version: runtime.version,
                is_free_threaded: false,
                state: State::Unknown,
            });
            return;
        };
        self.style = Some((layout.style, runtime.evaluation_loop.clone()));
        let reader = Reader::new(space.pid(), runtime, layout);
        self.reader = Some(Shared(Arc::new(Mutex::new(reader))));
    }

    /// Searches for new threads of the interpreter. Returns the reader of its frames, or `None` if
    /// the program has no interpreter.
    pub fn prepare_reader(&mut self, script: &mut Script) -> Option<Shared> {
        let reader = self.reader.as_ref()?;
        reader.lock().prepare();
        let reader = reader.clone();
        self.report_state(script);
        Some(reader)
    }

    /// Updates the interpreter's description in `script`, if its state has changed.
    fn report_state(&mut self, script: &mut Script) {
        let Some(reader) = &self.reader else { return };
        let description = reader.lock().description();
        if self.reported != Some(description.state) {
            self.reported = Some(description.state);
            script.interpreter = Some(description);
        }
    }

    /// Appends the merged frames of a walk to `frames`, innermost first: native frames by their
    /// lookup addresses, each preceded by the Python frames that it runs.
    pub fn merge(
        &mut self,
        PythonFrames(mut python): PythonFrames,
        native: &[Registers],
        script: &mut Script,
        frames: &mut Vec<u64>,
    ) {
        self.assign_to_native_frames(&mut python, native);
        self.report_state(script);
        let mut remaining = python.into_iter().peekable();
        for (index, registers) in native.iter().enumerate() {
            let end = native.get(index + 1).map_or(u64::MAX, |caller| caller.sp);
            while let Some(frame) = remaining.next_if(|frame| frame.at < end) {
                frames.extend(self.frame(frame.code, frame.offset, script));
            }
            frames.push(registers.ip.wrapping_sub(1));
        }
    }

    /// Assigns each Python frame to a native frame, and sorts them by it.
    fn assign_to_native_frames(&self, python: &mut Vec<PythonFrame>, native: &[Registers]) {
        if let Some((Style::Objects, evaluation_loop)) = &self.style {
            let (from, to) = (*evaluation_loop.start(), *evaluation_loop.end());
            let loops = native
                .iter()
                .filter(|frame| frame.ip > from && frame.ip <= to);
            let mut count = 0;
            for (frame, native) in python.iter_mut().zip(loops) {
                frame.at = native.sp;
                count += 1;
            }
            // No native frame is known to run the others.
            python.truncate(count);
        }
        // The sort is stable: frames of one native frame stay in order.
        python.sort_by_key(|frame| frame.at);
    }

    /// Returns the profile's frame for an instruction of a code object, or `None` for a shim
    /// ([`ScriptLine::is_shim`]).
    fn frame(&mut self, code: u32, offset: u32, script: &mut Script) -> Option<u64> {
        let key = (u64::from(code) << 32) | u64::from(offset);
        let reader = self.reader.as_ref();
        *self.lines.entry(key).or_insert_with(|| {
            let line = reader?.lock().line(code, offset);
            (!line.is_shim()).then(|| script.frame(line))
        })
    }
}

/// Returns true if a file is named like interpreters and their libraries.
fn is_named_python(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"python") || name.starts_with(b"libpython3"))
}
