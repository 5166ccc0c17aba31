//! Steps by frame pointers in code without tables, and a search for the frame pointer of a sleeping
//! thread, whose registers are not known.

use unwind::Registers;
use unwind::arch::{Machine, Native};
use unwind::compile::{Scratch, function};
use unwind::rule::{Step, Word};
use unwind::stack::Memory;

use crate::space::{Caller, Library, Space};

/// Maximum distance in bytes from the stack pointer to the end of a frame.
const MAX_FRAME_BYTES: u64 = 64 << 10;

/// Steps from code without tables, which may keep frame pointers: JIT compilers and Go do. Returns
/// `None` if there is no valid frame.
pub fn step(
    space: &mut Space,
    library: &mut Library,
    scratch: &mut Scratch,
    at: Registers,
    memory: &mut impl Memory,
) -> Option<Step> {
    // There must be code at the address.
    let index = space.find(at.ip.wrapping_sub(1))?;
    let is_generated = space.ranges()[index].is_generated();
    let step = by_record(space, library, scratch, at, memory);
    step.or_else(|| is_generated.then(|| padded(space, at, memory)).flatten())
}

/// Steps by the frame record: the caller's frame pointer, then the return address.
fn by_record(
    space: &mut Space,
    library: &mut Library,
    scratch: &mut Scratch,
    at: Registers,
    memory: &mut impl Memory,
) -> Option<Step> {
    if at.fp < at.sp || !at.fp.is_multiple_of(8) {
        return None;
    }
    let fp = memory.read(at.fp).ok()?;
    let ip = saved_address(at.fp, memory)?;
    if ip == 0 && fp == 0 {
        let ra = Word::default();
        return Some(Step::End { ra });
    }
    if let Caller::Of(function) = space.caller(ip)?
        && at.fp != at.sp
        && has_table(space, function)
    {
        // The record is another function's: this one has no table, and the call's target has one.
        return None;
    }
    let low = at.fp.checked_add(16)?;
    let sp = if Native::RECORD_ENDS_FRAME {
        low
    } else {
        space.rule(ip, library, scratch)?.sp_of_record(low, fp)?
    };
    Some(caller(Registers { ip, sp, fp }))
}

/// Loads the tables of the caller that a record leads to, on machines where the record does not
/// give the caller's stack pointer.
pub fn load_caller(
    space: &mut Space,
    library: &mut Library,
    at: Registers,
    memory: &mut impl Memory,
) {
    if !Native::RECORD_ENDS_FRAME
        && at.fp >= at.sp
        && let Some(ip) = saved_address(at.fp, memory)
    {
        space.function(ip, library);
    }
}

/// Returns the return address in the record at `fp`.
fn saved_address(fp: u64, memory: &mut impl Memory) -> Option<u64> {
    let word = memory.read(fp.checked_add(8)?).ok()?;
    Some(Native::return_address(word))
}

/// Steps from a trampoline of Python 3.12 or 3.13, whose frame is two words, the outer one its
/// return address.
fn padded(space: &mut Space, at: Registers, memory: &mut impl Memory) -> Option<Step> {
    let code = Native::PADDED?;
    if !code.starts_with(&space.before(at.ip.wrapping_add(2))) {
        return None;
    }
    let ip = memory.read(at.sp.checked_add(8)?).ok()?;
    space.caller(ip)?;
    let sp = at.sp.checked_add(16)?;
    Some(caller(Registers { ip, sp, fp: at.fp }))
}

fn caller(registers: Registers) -> Step {
    let word = Word::default();
    Step::Caller {
        registers,
        ra: word,
        fp: word,
    }
}

/// Returns true if an address has an unwind table, as far as tables are loaded.
fn has_table(space: &Space, address: u64) -> bool {
    let ip = address.wrapping_add(1);
    space
        .module(ip)
        .is_some_and(|module| function(&module, ip).is_some())
}

/// Searches the stack for the frame's frame pointer. It points to the caller's frame pointer, which
/// is further out, and a return address after a call of this very function. Returns `None` if the
/// function is called through a table of addresses or has no frame pointer.
pub fn find(space: &mut Space, at: Registers, memory: &mut impl Memory) -> Option<u64> {
    let start = function(&space.module(at.ip)?, at.ip)?;
    let first = at.sp.checked_add(7)? & !7;
    let slots = (first..first.checked_add(MAX_FRAME_BYTES)?).step_by(8);
    for fp in slots {
        let saved = memory.read(fp).ok()?;
        let is_outer = saved == 0 || saved > fp && saved.is_multiple_of(8);
        if !is_outer {
            continue;
        }
        let ip = saved_address(fp, memory)?;
        if space.caller(ip) == Some(Caller::Of(start)) {
            return Some(fp);
        }
    }
    None
}
