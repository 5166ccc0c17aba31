//! Unwinds by frame pointers in code without tables, and searches for the frame pointer of a
//! sleeping thread, whose registers are not known.

use unwind::Registers;
use unwind::arch::{Machine, Native};
use unwind::compile::{Scratch, function_start};
use unwind::rule::{Step, Word};
use unwind::stack::Memory;

use crate::space::{CallSite, Library, Space};

/// Maximum distance in bytes from the stack pointer to the end of a frame.
const MAX_FRAME_BYTES: u64 = 64 << 10;

/// Steps from code without tables. Such code may keep frame pointers, as JIT compilers' and Go's
/// does. Returns `None` if there is no valid frame record.
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
    if let Some(step) = by_record(space, library, scratch, at, memory) {
        return Some(step);
    }
    if is_generated {
        from_trampoline(space, at, memory)
    } else {
        None
    }
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
    if fp == 0 && is_outermost(space, ip) {
        // Here, the return address follows no call: a goroutine's first frame was built by hand.
        let sp = at.fp.checked_add(16)?;
        return Some(caller(Registers { ip, sp, fp }));
    }
    if let CallSite::Known(function) = space.call_site(ip)?
        && at.fp != at.sp
        && has_table(space, function)
    {
        // The record belongs to another function: the call's target has a table, and the current
        // function has none.
        return None;
    }
    let low = at.fp.checked_add(16)?;
    let sp = if Native::FRAME_RECORD_IS_OUTERMOST {
        low
    } else {
        space.rule(ip, library, scratch)?.sp_of_record(low, fp)?
    };
    Some(caller(Registers { ip, sp, fp }))
}

/// Returns true if a frame record whose frame pointer is 0 leads to the outermost frame, at `ip`:
/// code without tables in a file.
fn is_outermost(space: &mut Space, ip: u64) -> bool {
    let index = space.find(ip.wrapping_sub(1));
    let is_file = index.is_some_and(|index| !space.ranges()[index].is_generated());
    is_file && !has_table(space, ip.wrapping_sub(1))
}

/// Loads the tables of the caller that a record leads to, if this machine's records do not give the
/// caller's stack pointer.
pub fn load_caller(
    space: &mut Space,
    library: &mut Library,
    at: Registers,
    memory: &mut impl Memory,
) {
    if !Native::FRAME_RECORD_IS_OUTERMOST
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

/// Steps from a trampoline of Python 3.12 or 3.13. Its frame has two words; the second is its
/// return address.
fn from_trampoline(space: &mut Space, at: Registers, memory: &mut impl Memory) -> Option<Step> {
    let code = Native::PYTHON_TRAMPOLINE?;
    if !code.starts_with(&space.bytes_before(at.ip.wrapping_add(2))) {
        return None;
    }
    let ip = memory.read(at.sp.checked_add(8)?).ok()?;
    space.call_site(ip)?;
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

/// Returns true if an address has an unwind table that is loaded.
fn has_table(space: &Space, address: u64) -> bool {
    let ip = address.wrapping_add(1);
    space
        .module(ip)
        .is_some_and(|module| function_start(&module, ip).is_some())
}

/// Searches the stack for the current frame's frame pointer. It points to the caller's frame
/// pointer, which is a higher address, and to a return address after a call of this very function.
/// Returns `None` if the function has no frame pointer or is called through a function pointer.
pub fn find(space: &mut Space, at: Registers, memory: &mut impl Memory) -> Option<u64> {
    let start = function_start(&space.module(at.ip)?, at.ip)?;
    let first = at.sp.checked_add(7)? & !7;
    let slots = (first..first.checked_add(MAX_FRAME_BYTES)?).step_by(8);
    for fp in slots {
        let saved = memory.read(fp).ok()?;
        let may_be_callers = saved == 0 || (saved > fp && saved.is_multiple_of(8));
        if !may_be_callers {
            continue;
        }
        let ip = saved_address(fp, memory)?;
        if space.call_site(ip) == Some(CallSite::Known(start)) {
            return Some(fp);
        }
    }
    None
}
