//! Lines of Python (CPython 3.8 to 3.15) in the stacks of a process, read from outside while the
//! thread is stopped: nothing of ours is in that process.
//!
//! # Promises
//! - An interpreter is found by the symbols of the program, and of files that are named like one;
//!   it is searched for once per program, and costs other programs only a look at their file names.
//! - All that is read is hostile: each chain is bounded, each object must have the expected type,
//!   and a mismatch costs only the Python part of one stack.
//! - While a thread is stopped, a few pages are read, and all of its known code objects by one
//!   system call. The states of threads are looked for between samples.
//!
//! # Limits
//! The process's other threads run meanwhile: a stack may lack its lines while its thread's state
//! is being made. Of an evaluation loop that compilers have split, 3.8 to 3.10, lines may be placed
//! in the next native frame.
//!
//! # Modules
//!
//! | module | contents |
//! |---|---|
//! | `exports` | an interpreter's names in a file |
//! | `runtime` | its version, and where its data are |
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

/// Maximum number of files whose names are remembered.
const MOST_FILES: usize = 1 << 14;

/// What a stopped thread's interpreter ran, innermost first: an address of the stack that lies in
/// the native frame (0: the next one of the evaluation loop), the number of a code object, and the
/// place in it.
#[derive(Debug, Default)]
pub struct Ran(Vec<(u64, u32, u32)>);

/// Names of interpreters in files, for all processes that map them.
#[derive(Default)]
pub struct Files(HashMap<FileId, Option<Names>>);

impl Files {
    /// Those of the file of a range.
    fn names(&mut self, pid: i32, range: &Range) -> Option<Names> {
        if self.0.len() >= MOST_FILES {
            self.0.clear();
        }
        let looks_further = is_called_python(&range.path);
        *self.0.entry(range.file).or_insert_with(|| {
            let file = space::open(pid, range)?;
            exports::read(&file, looks_further)
        })
    }
}

/// Reads a process's interpreter, in whichever thread may do so.
#[derive(Clone)]
pub struct Shared(Arc<Mutex<Reader>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Reader> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frames of a thread that is stopped now, by its thread pointer and a copy of its stack.
    pub fn look(&self, pointer: u64, stack: Copied<'_>) -> Ran {
        self.lock().look(pointer, stack)
    }
}

/// The interpreter of a program.
#[derive(Default)]
pub struct Python {
    reader: Option<Shared>,
    /// The state of its code when it was last searched for without success.
    looked: Option<u64>,
    /// The path of the program, once it was requested.
    program: Option<Vec<u8>>,
    /// What was reported last.
    told: Option<State>,
    style: Option<(Style, (u64, u64))>,
    /// By code object and place; `None`: it is not shown.
    lines: ByAddress<u64, Option<u64>>,
}

impl Python {
    /// The place of a file that may have an interpreter which was not examined yet.
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

    /// Takes the interpreter whose names these are, loaded at addresses that are `bias` more.
    pub fn take(&mut self, space: &Space, names: &Names, bias: u64, script: &mut Script) {
        let Some(runtime) = Runtime::of(space.pid(), names, bias) else {
            // It is being loaded; or nothing may be read.
            return;
        };
        let Some(layout) = runtime.layout else {
            self.looked = Some(space.changes());
            script.interpreter = Some(Description {
                version: runtime.version,
                is_unlocked: false,
                state: State::Unknown,
            });
            return;
        };
        self.style = Some((layout.style, runtime.loop_at));
        let reader = Reader::new(space.pid(), runtime, layout);
        self.reader = Some(Shared(Arc::new(Mutex::new(reader))));
    }

    /// What reads its frames, if there is one; after a look for new threads.
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

    /// The frames of a walk, innermost first: the native ones by their lookup addresses, and on the
    /// inner side of each the lines that it runs.
    pub fn merge(
        &mut self,
        Ran(mut ran): Ran,
        native: &[Registers],
        script: &mut Script,
        frames: &mut Vec<u64>,
    ) {
        self.place(&mut ran, native);
        self.tell(script);
        let mut rest = ran.into_iter().peekable();
        for (index, registers) in native.iter().enumerate() {
            let end = native.get(index + 1).map_or(u64::MAX, |caller| caller.sp);
            while let Some((_, code, place)) = rest.next_if(|(at, ..)| *at < end) {
                frames.extend(self.frame((code, place), script));
            }
            frames.push(registers.ip.wrapping_sub(1));
        }
    }

    /// Gives each line a place on the stack, and puts them in their order.
    fn place(&self, ran: &mut Vec<(u64, u32, u32)>, native: &[Registers]) {
        if let Some((Style::Objects, (from, to))) = self.style {
            let runs = native
                .iter()
                .filter(|frame| frame.ip > from && frame.ip <= to);
            let count = (ran.iter_mut().zip(runs))
                .map(|(line, frame)| line.0 = frame.sp)
                .count();
            // No native frame is known to run the others.
            ran.truncate(count);
        }
        // Those of one native frame stay in their order.
        ran.sort_by_key(|(at, ..)| *at);
    }

    /// The frame of a line, unless it is a shim: the interpreter's own (see
    /// [`ScriptLine::is_shim`]).
    fn frame(&mut self, (code, place): (u32, u32), script: &mut Script) -> Option<u64> {
        let key = u64::from(code) << 32 | u64::from(place);
        let reader = self.reader.as_ref();
        *self.lines.entry(key).or_insert_with(|| {
            let line = reader?.lock().line(code, place);
            (!line.is_shim()).then(|| script.frame(line))
        })
    }
}

/// Whether a file is named like interpreters and their libraries.
fn is_called_python(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"python") || name.starts_with(b"libpython3"))
}
