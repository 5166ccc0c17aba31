//! Reader of the interpreter frames of stopped threads.

use cpython::chain::Damaged;
use cpython::{Description, MAX_INITIAL_FAILURES, State};

use super::codes::Codes;
use super::frames::{Chain, RawFrame};
use super::memory::{Memory, Pages};
use super::runtime::Runtime;
use super::threads::Threads;
use super::{PythonFrame, PythonFrames};
use crate::memory::Copied;
use crate::script::ScriptLine;
use cpython::layout::Layout;

/// Reader for one process's interpreter.
pub struct Reader {
    pid: i32,
    runtime: Runtime,
    layout: Layout,
    threads: Threads,
    codes: Codes,
    pages: Pages,
    state: State,
    failures: u32,
    frames: Vec<RawFrame>,
}

impl Reader {
    /// Creates a reader for an interpreter that is assumed to have this layout, until its data
    /// contradict it.
    pub fn new(pid: i32, runtime: Runtime, layout: Layout) -> Self {
        Self {
            pid,
            runtime,
            layout,
            threads: Threads::default(),
            codes: Codes::new(layout.table),
            pages: Pages::new(pid),
            state: State::Detected,
            failures: 0,
            frames: Vec::new(),
        }
    }

    /// Returns a description of the interpreter.
    pub fn description(&self) -> Description {
        Description {
            version: self.runtime.version,
            is_free_threaded: self.layout.extra_header_bytes != 0,
            state: self.state,
        }
    }

    /// Finds new threads, while the process runs.
    pub fn prepare(&mut self) {
        self.threads.update(self.pid, self.runtime.at, &self.layout);
    }

    /// Returns the interpreter frames of the stopped thread with this thread pointer. `stack` is a
    /// copy of its stack.
    pub fn read_frames(&mut self, pointer: u64, stack: Copied<'_>) -> PythonFrames {
        self.frames.clear();
        if self.state == State::Differs {
            return PythonFrames::default();
        }
        let mut memory = Memory::new(&mut self.pages, stack);
        let runtime = self.runtime.at;
        let layout = &self.layout;
        let states = self.threads.find(&mut memory, runtime, layout, pointer);
        let mut chain = Chain::new(&self.layout, &mut memory, &mut self.frames);
        let collected = states.iter().try_for_each(|state| chain.collect(*state));
        let numbers = collected.and_then(|()| {
            let memory = &mut memory;
            let frames = &self.frames;
            self.codes.numbers(memory, &self.layout, frames)
        });
        match numbers {
            Ok(numbers) => {
                if !numbers.is_empty() {
                    self.state = State::Named;
                }
                let frames = self.frames.iter().zip(numbers);
                PythonFrames(
                    frames
                        .map(|(frame, code)| PythonFrame {
                            at: frame.at,
                            code,
                            offset: frame.instruction,
                        })
                        .collect(),
                )
            }
            Err(Damaged) => {
                self.failures = self.failures.saturating_add(1);
                if self.state == State::Detected && self.failures > MAX_INITIAL_FAILURES {
                    self.state = State::Differs;
                }
                PythonFrames::default()
            }
        }
    }

    /// Returns the line at an instruction offset of a code object.
    pub fn line(&self, code: u32, instruction: u32) -> ScriptLine {
        self.codes.line(code, instruction)
    }
}
