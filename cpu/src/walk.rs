//! One stack, from the registers and the memory of the thread that it is of.

use unwind::compile::{Scratch, compile};
use unwind::rule::{Rule, Step};
use unwind::stack::{Interrupted, Memory};
use unwind::{Cause, Registers, remote};

use crate::clone;
use crate::frame_pointer;
use crate::leaf;
use crate::registers::Live;
use crate::space::{Library, Space};

/// Most frames of a stack.
pub const MOST_FRAMES: usize = 2048;

/// Unwinds stacks.
pub struct Unwinder {
    library: Library,
    scratch: Box<Scratch>,
    frames: Vec<Registers>,
    /// Whether the frame pointer is not known yet: no frame has restored it.
    lacks_fp: bool,
    /// The rule of the frame before the last.
    callee: Option<Rule>,
}

impl Default for Unwinder {
    fn default() -> Self {
        Self {
            library: Library::default(),
            scratch: Box::new(Scratch::new()),
            frames: Vec::new(),
            lacks_fp: false,
            callee: None,
        }
    }
}

/// A stack that was unwound.
pub struct Walked<'a> {
    /// The frames, innermost first.
    pub frames: &'a [Registers],
    /// Why it is cut off, if it is.
    pub cut: Option<Cause>,
}

impl Unwinder {
    /// Unwinds a thread's stack.
    pub fn walk(&mut self, space: &mut Space, live: &Live, memory: &mut impl Memory) -> Walked<'_> {
        self.frames.clear();
        self.frames.push(live.followed());
        self.lacks_fp = live.lacks_fp();
        self.callee = None;
        let cut = loop {
            match self.advance(space, live, memory) {
                Step::Caller { registers, .. } if self.frames.len() < MOST_FRAMES => {
                    self.frames.push(registers);
                }
                Step::Caller { .. } => break Some(Cause::TooDeep),
                Step::End { .. } => break None,
                Step::Truncated(cause) => break Some(cause),
            }
        };
        Walked {
            frames: &self.frames,
            cut,
        }
    }

    /// The step from the last frame.
    fn advance(&mut self, space: &mut Space, live: &Live, memory: &mut impl Memory) -> Step {
        match self.frames[..] {
            [at] => self.step(space, live, &mut Interrupted { at, memory }),
            _ => self.step(space, live, memory),
        }
    }

    fn step(&mut self, space: &mut Space, live: &Live, memory: &mut impl Memory) -> Step {
        let at = *self.frames.last().expect("a walk begins with a frame");
        let rule = space.rule(at.ip, &mut self.library, &mut self.scratch);
        if self.lacks_fp
            && rule.is_some_and(Rule::needs_fp)
            && let Some(fp) = frame_pointer::find(space, at, memory)
            && let Some(last) = self.frames.last_mut()
        {
            last.fp = fp;
            self.lacks_fp = false;
        }
        let at = *self.frames.last().expect("a walk begins with a frame");
        let step = rule.map_or(Step::Truncated(Cause::NoModule), |rule| {
            let (space, frames) = (&*space, (&self.frames[..], live.known()));
            let module = |ip| space.module(ip);
            let rules = |ip, scratch: &mut Scratch| match space.module(ip) {
                Some(found) => compile(&found, ip, scratch),
                None => Rule::failed(Cause::NoModule),
            };
            let code = (module, rules);
            remote::step((rule, self.callee), frames, code, memory, &mut self.scratch)
        });
        self.callee = rule;
        // What was on the stack is what the caller has.
        self.lacks_fp &= !matches!(step, Step::Caller { fp, .. } if fp.at != 0);
        match step {
            Step::Truncated(Cause::NoRule)
                if self.frames.len() == 1
                    && let Some(step) = clone::step(space, live, at, memory) =>
            {
                step
            }
            Step::Truncated(Cause::NoRule)
                if self.frames.len() == 1
                    && let Some(step) =
                        leaf::step((space, &mut self.library), live, at, memory) =>
            {
                step
            }
            Step::Truncated(cause @ (Cause::NoModule | Cause::NoRule)) => {
                frame_pointer::step(space, at, memory).unwrap_or(Step::Truncated(cause))
            }
            step => step,
        }
    }
}
