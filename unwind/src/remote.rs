//! Remote unwinding: walks the stack of another process, from a copy of its words and the tables of
//! its modules.
//!
//! Rules and slow path are the same as for the running thread. Nothing is cached; a caller that
//! caches rules calls [`step`] for each frame.

use crate::arch::{Machine, Native};
use crate::compile::{Scratch, compile_on};
use crate::elf::Module;
use crate::rare;
use crate::rule::{Rule, Step, step_on};
use crate::slow;
use crate::stack::Memory;
use crate::{Cause, Registers};
use core::marker::PhantomData;

/// Frames unwound so far, and the rules of the outermost two.
pub struct Unwound<'f> {
    /// Registers of the frames, innermost first.
    pub frames: &'f [Registers],
    /// Rule of the last frame.
    pub rule: Rule,
    /// Rule of that frame's callee; `None` if there is none.
    pub callee: Option<Rule>,
    /// Registers of the innermost frame that are known, by DWARF number. An interrupted function
    /// may hold values in them that it would have saved by its next call.
    pub live: &'f [u64],
}

/// Steps from the last frame to its caller.
///
/// `module` returns the module that contains a return address, and `rules` the rule of a return
/// address.
pub fn step<'a, M: Module<'a>>(
    unwound: &Unwound<'_>,
    module: impl Fn(u64) -> Option<M>,
    rules: impl Fn(u64, &mut Scratch) -> Rule,
    memory: &mut impl Memory,
    scratch: &mut Scratch,
) -> Step {
    let &Unwound {
        frames,
        rule,
        callee,
        live,
    } = unwound;
    let Some((at, inner)) = frames.split_last() else {
        return Step::Truncated(Cause::BadFrame);
    };
    if !rule.is_rare::<Native>() {
        return step_on::<Native>(rule, at, memory);
    }
    let callee = callee.zip(inner.last().map(|frame| frame.sp));
    let mut inner = slow::Callees {
        frame: |index: usize| inner[index],
        count: inner.len(),
        module,
        scratch,
        machine: PhantomData::<Native>,
        live,
    };
    rare::step(&rare::Frame { rule, at, callee }, memory, &mut inner, rules)
}

/// Walks from `start` to the end of the stack in `memory` and writes the registers of each frame,
/// innermost first, to `frames`. `module` returns the module of a return address.
///
/// Returns the number of frames, and the reason if the stack is truncated: [`Cause::TooDeep`] if it
/// has more frames than fit.
///
/// ```
/// use unwind::elf::{Section, Sections};
/// use unwind::stack::Copied;
/// use unwind::{Cause, Registers, compile::Scratch, remote};
///
/// let words = [0x1234u64, 0];
/// let start = Registers { ip: 0x40_1000, sp: 0x7000, fp: 0 };
/// let mut frames = [Registers::default(); 16];
/// let no_module = |_| None::<Sections<'_>>;
/// let mut memory = Copied::new(0x7000, &words);
/// let walked = remote::walk(start, no_module, &mut memory, &mut Scratch::new(), &mut frames);
/// assert_eq!(walked, (1, Some(Cause::NoModule)));
/// assert_eq!(frames[0], start);
/// ```
pub fn walk<'a, M: Module<'a>>(
    start: Registers,
    module: impl Fn(u64) -> Option<M>,
    memory: &mut impl Memory,
    scratch: &mut Scratch,
    frames: &mut [Registers],
) -> (usize, Option<Cause>) {
    walk_on::<Native, M>(start, module, memory, scratch, frames)
}

/// Like [`walk`], for a process of another machine.
pub fn walk_on<'a, A: Machine, M: Module<'a>>(
    start: Registers,
    module: impl Fn(u64) -> Option<M>,
    memory: &mut impl Memory,
    scratch: &mut Scratch,
    frames: &mut [Registers],
) -> (usize, Option<Cause>) {
    let mut at = start;
    let mut callee: Option<(Rule, u64)> = None;
    for count in 0..frames.len() {
        frames[count] = at;
        let rules = |ip, scratch: &mut Scratch| match module(ip) {
            Some(found) => compile_on::<A>(&found, ip, scratch),
            None => Rule::failed(Cause::NoModule),
        };
        let rule = rules(at.ip, scratch);
        let step = if rule.is_rare::<A>() {
            let mut inner = slow::Callees {
                frame: |index: usize| frames[index],
                count,
                module: &module,
                scratch: &mut *scratch,
                machine: PhantomData::<A>,
                live: &[],
            };
            let at = &at;
            rare::step(&rare::Frame { rule, at, callee }, memory, &mut inner, rules)
        } else {
            step_on::<A>(rule, &at, memory)
        };
        callee = Some((rule, at.sp));
        match step {
            Step::Caller { registers, .. } => at = registers,
            Step::End { .. } => return (count + 1, None),
            Step::Truncated(cause) => return (count + 1, Some(cause)),
        }
    }
    (frames.len(), Some(Cause::TooDeep))
}
