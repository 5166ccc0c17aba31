//! Derives rules from epilogues, for code without an unwind table.
//!
//! If a call is the last thing that a function does before it returns, the instructions after the
//! call show how large the frame is. The `main` that rustc generates is such a function: with
//! `panic=abort` it has no table, and it is on every stack of the main thread. So is
//! Go's `crosscall2`, through which C calls Go.

use crate::arch::Machine;
use crate::elf::Module;
use crate::rule::{Kind, Rule};

/// Returns the rule of `ip`, if it follows a call and the function ends there.
#[cold]
pub(crate) fn rule<'a, A: Machine>(module: &impl Module<'a>, ip: u64) -> Option<Rule> {
    let epilogue = A::epilogue(&module.after_call::<A>(ip)?)?;
    let kind = if epilogue.by_fp { Kind::Fp } else { Kind::Sp };
    let rule = Rule::new(kind, epilogue.cfa, Some(epilogue.ra), epilogue.fp);
    rule.is_plain().then_some(rule)
}
