//! Frame pointers: followed where code has no tables, and searched for where that of a sleeping
//! thread is needed and not known.

use unwind::Registers;
use unwind::arch::{Machine, Native};
use unwind::compile::{Scratch, function};
use unwind::rule::{Step, Word};
use unwind::stack::Memory;

use crate::space::{Caller, Library, Space};

/// How far above the stack pointer a frame may end.
const REACH: u64 = 64 << 10;

/// Code without tables may keep frame pointers: compilers at run time do, and Go's. `None`: what is
/// there is no frame.
pub fn step(
    (space, library, scratch): (&mut Space, &mut Library, &mut Scratch),
    at: Registers,
    memory: &mut impl Memory,
) -> Option<Step> {
    // Nothing to continue from where there is no code.
    let index = space.find(at.ip.wrapping_sub(1))?;
    let is_generated = space.ranges()[index].is_generated();
    let step = by_record((space, library, scratch), at, memory);
    step.or_else(|| is_generated.then(|| padded(space, at, memory)).flatten())
}

/// By the record that the frame pointer leads to: the caller's frame pointer, then the return
/// address.
fn by_record(
    (space, library, scratch): (&mut Space, &mut Library, &mut Scratch),
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
        // Another function's record: this one has no table, and a frame that is more.
        return None;
    }
    let low = at.fp.checked_add(16)?;
    let sp = match Native::RECORD_ENDS_FRAME {
        true => low,
        false => space.rule(ip, library, scratch)?.sp_of_record(low, fp)?,
    };
    Some(caller(Registers { ip, sp, fp }))
}

/// Has the tables of the caller read that a record leads to, where they say what the record does
/// not: the caller's stack pointer.
pub fn load_caller(
    (space, library): (&mut Space, &mut Library),
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

/// The return address of the record at `fp`.
fn saved_address(fp: u64, memory: &mut impl Memory) -> Option<u64> {
    let word = memory.read(fp.checked_add(8)?).ok()?;
    Some(Native::return_address(word))
}

/// A trampoline of Python 3.12 or 3.13: a frame of two words, the outer one its return address.
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

/// Whether there is a table for an address, as far as tables were loaded.
fn has_table(space: &Space, address: u64) -> bool {
    let ip = address.wrapping_add(1);
    space
        .module(ip)
        .is_some_and(|module| function(&module, ip).is_some())
}

/// The frame pointer of a frame that has one, found by what such frames look like: the caller's
/// frame pointer, which is further out, and behind it a return address before which this very
/// function is called. `None`: it is called through a table of addresses, or has none.
pub fn find(space: &mut Space, at: Registers, memory: &mut impl Memory) -> Option<u64> {
    let start = function(&space.module(at.ip)?, at.ip)?;
    let first = at.sp.checked_add(7)? & !7;
    let slots = (first..first.checked_add(REACH)?).step_by(8);
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
