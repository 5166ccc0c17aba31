//! Choice of the thread that makes the system calls.

use crate::code::{Code, mapping_of};
use crate::frames::Frames;
use proc::Status;

use crate::process::{self, Mapping};
use crate::seizure::{Seized, Seizure};
use crate::{Refusal, arch, request};

/// Chosen thread, and how to restore it.
pub struct Chosen {
    /// Thread id.
    pub tid: i32,
    /// Registers to restore.
    pub regs: arch::General,
    /// Blocked signals to restore.
    pub mask: u64,
    /// Return frames.
    pub frames: Frames,
}

/// Returns the thread whose state is easiest to restore.
pub fn choose(seizure: &Seizure, code: &Code) -> Result<Chosen, Refusal> {
    let pid = seizure.pid;
    let mappings = process::mappings(pid)?;
    let mut threads: Vec<&Seized> = seizure.threads.iter().collect();
    // The first thread's stack is the process's, which has room.
    threads.sort_by_key(|thread| (thread.regs.rank(), thread.tid != pid));
    let (mut reason, mut second) = (None, None);
    for thread in threads {
        if let Some(found) = obstacle(pid, thread.tid) {
            reason.get_or_insert(found);
            continue;
        }
        let abort = abort_of_sequence(pid, thread);
        let Some(chosen) = prepare(thread, abort, &mappings, code)
            .map_err(|error| Refusal::kernel(pid, "read the registers of", error))?
        else {
            reason.get_or_insert(Obstacle::Other("no thread is on its own stack, with room"));
            continue;
        };
        if abort.is_none() {
            return Ok(chosen);
        }
        second.get_or_insert(chosen);
    }
    second.ok_or(match reason {
        Some(Obstacle::Seccomp) => Refusal::Seccomp { pid },
        Some(Obstacle::Other(reason)) => Refusal::NoThread { pid, reason },
        None => Refusal::Ended { pid },
    })
}

enum Obstacle {
    Seccomp,
    Other(&'static str),
}

fn obstacle(pid: i32, tid: i32) -> Option<Obstacle> {
    let Some(status) = Status::of_thread(pid, tid) else {
        return Some(Obstacle::Other("its threads cannot be read"));
    };
    if status.has_seccomp() {
        return Some(Obstacle::Seccomp);
    }
    if status.has_shadow_stack() {
        return Some(Obstacle::Other("its threads have shadow stacks"));
    }
    arch::obstacle(tid).map(Obstacle::Other)
}

/// Returns the frames for a thread, if it is on its own stack and they fit there.
fn prepare(
    thread: &Seized,
    abort: Option<u64>,
    mappings: &[Mapping],
    code: &Code,
) -> std::io::Result<Option<Chosen>> {
    let mut regs = thread.regs;
    if let Some(abort) = abort {
        regs.set_pc(abort);
    }
    let thread_pointer = arch::thread_pointer(thread.tid, &regs)?;
    let mask = request::mask(thread.tid)?;
    let frames = Frames::new(&regs, &thread.vector, mask, code);
    Ok(frames
        .filter(|frames| fits(frames, regs.sp(), thread_pointer, mappings))
        .map(|frames| Chosen {
            tid: thread.tid,
            regs,
            mask,
            frames,
        }))
}

/// Returns true if the frames fit on a thread's own stack: the process's, or the mapping that also
/// contains its thread pointer. Other stacks (of coroutines or signal handlers) may be so small
/// that other data lies below.
fn fits(frames: &Frames, sp: u64, thread_pointer: u64, mappings: &[Mapping]) -> bool {
    let Some(stack) = mapping_of(mappings, sp) else {
        return false;
    };
    let own = stack.name == "[stack]" || sp < thread_pointer && thread_pointer < stack.end;
    own && stack.writable && frames.bottom >= stack.start
}

/// Returns where the kernel would continue a thread that is inside a restartable sequence (rseq).
/// After this process has used the thread, the kernel no longer knows that it was in one.
fn abort_of_sequence(pid: i32, thread: &Seized) -> Option<u64> {
    /// Offset of `rseq_cs` in `struct rseq`.
    const CURRENT: u64 = 8;
    let word = |address: u64| {
        let mut bytes = [0; 8];
        (request::read(pid, address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    };
    let area = Some(request::sequences(thread.tid)).filter(|&area| area != 0)?;
    let sequence = word(area.checked_add(CURRENT)?).filter(|&sequence| sequence != 0)?;
    // `struct rseq_cs`: version and flags, start, length, abort address.
    let part = |offset| word(sequence.checked_add(offset)?);
    let (start, length, abort) = (part(8)?, part(16)?, part(24)?);
    (thread.regs.pc().wrapping_sub(start) < length).then_some(abort)
}
