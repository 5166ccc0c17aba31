//! Remote unwinding: the stack of another process, from a copy of its words and the tables of
//! the modules that it runs.
//!
//! The rules, and the slow path, are the same as for the running thread's stack; there is no memo
//! and no cache. A caller that keeps rules goes step by step.

use crate::arch::{Machine, Native};
use crate::compile::{Scratch, compile_on};
use crate::elf::Module;
use crate::rare;
use crate::rule::{Rule, Step, step_on};
use crate::slow;
use crate::stack::Memory;
use crate::{Cause, Registers};
use core::marker::PhantomData;

/// The step from the last of `frames`, which are the innermost first, by its rule and that of the
/// frame directly further in. `live`: the registers of the innermost frame by their DWARF numbers,
/// as far as they are known: a function that was interrupted may hold in them what others find on
/// the stack. `rules` gives the rule of another return address.
pub fn step<'a, M: Module<'a>>(
    (rule, callee): (Rule, Option<Rule>),
    (frames, live): (&[Registers], &[u64]),
    (module, rules): (
        impl Fn(u64) -> Option<M>,
        impl Fn(u64, &mut Scratch) -> Rule,
    ),
    memory: &mut impl Memory,
    scratch: &mut Scratch,
) -> Step {
    let Some((at, inner)) = frames.split_last() else {
        return Step::Truncated(Cause::BadFrame);
    };
    if !rule.is_rare::<Native>() {
        return step_on::<Native>(rule, at, memory);
    }
    let callee = callee.zip(inner.last().map(|frame| frame.sp));
    let mut inner = slow::Inner {
        frame: |index: usize| inner[index],
        count: inner.len(),
        module,
        scratch,
        machine: PhantomData::<Native>,
        live,
    };
    rare::step(&rare::Frame { rule, at, callee }, memory, &mut inner, rules)
}

/// Walks from `start` to the end of the stack in `memory`, and writes the registers of each
/// frame, innermost first, to `frames`. `module` gives the module that holds a return address.
///
/// Returns the number of frames, and why the stack is truncated if it is:
/// [`Cause::TooDeep`] where it has more than fit.
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

/// The same for a process of another machine.
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
            let mut inner = slow::Inner {
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
