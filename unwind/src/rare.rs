//! Steps that need more than a frame's registers and its stack.
//!
//! There are five kinds: frames that need inner frames ([`slow`]); functions that a signal
//! interrupted before they saved their return address, which the kernel saved; code without unwind
//! tables, which is unwound by its frame record ([`record`]); code that was called from another
//! stack ([`switch`]); and code that has left the stack on which it was called ([`callback`]).

use crate::arch::{Machine, Target};
use crate::callback;
use crate::compile::Scratch;
use crate::elf::Module;
use crate::record::{self, Caller};
use crate::rule::{self, Rule, Step};
use crate::slow::{self, Callees};
use crate::stack::Memory;
use crate::switch;
use crate::{Cause, Registers};

/// Frame to step from.
pub(crate) struct Frame<'f> {
    pub(crate) rule: Rule,
    /// Registers of the frame.
    pub(crate) at: &'f Registers,
    /// Rule and stack pointer of the frame's callee; `None` if the frame is the innermost.
    pub(crate) callee: Option<(Rule, u64)>,
}

/// Steps from a frame to its caller. `rules` returns the rule of another return address.
pub(crate) fn step<'a, A, F, I, M>(
    from: &Frame<'_>,
    memory: &mut impl Memory,
    inner: &mut Callees<'_, A, F, I>,
    rules: impl Fn(u64, &mut Scratch) -> Rule,
) -> Step
where
    A: Machine,
    F: Fn(usize) -> Registers,
    I: Fn(u64) -> Option<M>,
    M: Module<'a>,
{
    let &Frame { rule, at, callee } = from;
    if rule.is_slow() {
        return slow::step(at, memory, inner);
    }
    if rule.is_switch() {
        let module = (inner.module)(at.ip);
        let step = module.and_then(|module| switch::step::<A>(&module, at, memory));
        return step.unwrap_or(Step::Truncated(Cause::Unsupported));
    }
    if rule.is_callback() {
        let module = (inner.module)(at.ip);
        let step = module.and_then(|module| callback::step::<A>(&module, at, memory));
        return step.unwrap_or(Step::Truncated(Cause::Unsupported));
    }
    let signal_callee = callee.filter(|(rule, _)| rule.is_signal());
    let signal_sp = signal_callee.map(|(_, sp)| sp);
    match (A::SIGNAL_FRAME, signal_sp) {
        (Some(saved), Some(sp)) if rule.is_leaf() => {
            match memory.read_callee_stack(sp, sp.wrapping_add_signed(saved.link)) {
                Ok(link) => rule::leaf_step::<A>(rule, at, link, memory),
                Err(cause) => Step::Truncated(cause),
            }
        }
        // The innermost function may have been interrupted before it saved its return address.
        (Some(_), None) if rule.is_leaf() && inner.count == 0 => {
            match inner.live.get(usize::from(A::NUMBERS.ra.0)) {
                Some(&link) => rule::leaf_step::<A>(rule, at, link, memory),
                None => rule::step_on::<A>(rule, at, memory),
            }
        }
        // Excludes functions that a signal interrupted, which may not have made their record yet.
        (_, None) if rule.is_bare() => {
            let step = bare_step::<A, _, _, _>(from, memory, inner, rules);
            step.unwrap_or_else(|| rule::step_on::<A>(rule, at, memory))
        }
        _ => rule::step_on::<A>(rule, at, memory),
    }
}

/// Steps from a frame whose code has no unwind table.
fn bare_step<'a, A, F, I, M>(
    from: &Frame<'_>,
    memory: &mut impl Memory,
    inner: &mut Callees<'_, A, F, I>,
    rules: impl Fn(u64, &mut Scratch) -> Rule,
) -> Option<Step>
where
    A: Machine,
    F: Fn(usize) -> Registers,
    I: Fn(u64) -> Option<M>,
    M: Module<'a>,
{
    let &Frame { rule, at, callee } = from;
    let Callees {
        module, scratch, ..
    } = inner;
    let mut describe_caller = |ip: u64| {
        let rule = rules(ip, scratch);
        let (is_called, target) = if rule.is_outside() {
            (false, None)
        } else {
            match A::call(module(ip)?.bytes_before(ip)?, ip) {
                Some(Target::Known(to)) => (true, Some(rules(to.wrapping_add(1), scratch))),
                Some(Target::Unknown) => (true, None),
                None => (false, None),
            }
        };
        Some(Caller {
            rule,
            is_called,
            target,
        })
    };
    // True if the frame was itself found by a frame record.
    let is_chained = callee.is_some_and(|(rule, _)| rule.is_bare());
    let step = record::step::<A>(at, is_chained, memory, &mut describe_caller);
    step.or_else(|| {
        if rule.is_outside() && !is_chained {
            record::step_from_trampoline::<A>(at, memory, describe_caller)
        } else {
            None
        }
    })
}
