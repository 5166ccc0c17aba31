//! Chooses the thread of the target that makes system calls for this process.

use crate::code::{SyscallCode, mapping_of};
use crate::frames::Frames;
use crate::process::{self, Mapping};
use crate::seizure::{Seizure, TracedThread};
use crate::{Refusal, arch, request};
use proc::Status;

/// Chosen thread, and the state to restore.
pub struct Chosen {
    /// Thread id.
    pub tid: i32,
    /// Registers to restore.
    pub regs: arch::General,
    /// Blocked signals to restore.
    pub mask: u64,
    /// Signal frames on its stack, from which it restores its state.
    pub frames: Frames,
}

/// Returns the thread whose state is easiest to restore. `code` holds the addresses of the target's
/// instructions for system calls.
pub fn choose(seizure: &Seizure, code: &SyscallCode) -> Result<Chosen, Refusal> {
    let pid = seizure.pid;
    let mappings = process::mappings(pid)?;
    let mut threads: Vec<&TracedThread> = seizure.threads.iter().collect();
    // Among equals the main thread is preferred, since its stack has room.
    threads.sort_by_key(|thread| (thread.regs.rank(), thread.tid != pid));
    let mut first_obstacle = None;
    let mut in_sequence = None;
    for thread in threads {
        if let Some(obstacle) = obstacle(pid, thread.tid) {
            first_obstacle.get_or_insert(obstacle);
            continue;
        }
        let abort = rseq_abort_address(pid, thread);
        let Some(chosen) = prepare(thread, abort, &mappings, code)
            .map_err(|error| Refusal::kernel(pid, "read the registers of", error))?
        else {
            first_obstacle
                .get_or_insert(Obstacle::Other("no thread is on its own stack, with room"));
            continue;
        };
        if abort.is_none() {
            return Ok(chosen);
        }
        // A thread inside a restartable sequence, which would be aborted, is the second choice.
        in_sequence.get_or_insert(chosen);
    }
    in_sequence.ok_or(match first_obstacle {
        Some(Obstacle::Seccomp) => Refusal::Seccomp { pid },
        Some(Obstacle::Other(reason)) => Refusal::NoThread { pid, reason },
        None => Refusal::Ended { pid },
    })
}

/// Reason why a thread cannot be used.
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

/// Returns the thread as the chosen one if it is on its own stack and the signal frames fit there.
fn prepare(
    thread: &TracedThread,
    abort: Option<u64>,
    mappings: &[Mapping],
    code: &SyscallCode,
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

/// Returns true if the frames fit on a thread's own stack: `[stack]`, or a mapping that also
/// contains the thread pointer. Other stacks (of coroutines or signal handlers) may be so small
/// that unrelated data lies below them.
fn fits(frames: &Frames, sp: u64, thread_pointer: u64, mappings: &[Mapping]) -> bool {
    let Some(stack) = mapping_of(mappings, sp) else {
        return false;
    };
    let has_thread_pointer = sp < thread_pointer && thread_pointer < stack.end;
    let is_own = stack.name == "[stack]" || has_thread_pointer;
    is_own && stack.writable && frames.bottom >= stack.start
}

/// Returns the address at which the kernel would continue a thread that is inside a restartable
/// sequence (rseq), or `None` if it is in none. Once this process has changed the thread's program
/// counter, the kernel no longer knows that the thread was in one.
fn rseq_abort_address(pid: i32, thread: &TracedThread) -> Option<u64> {
    /// Offset of `rseq_cs` in `struct rseq`.
    const RSEQ_CS: u64 = 8;
    // Offsets in `struct rseq_cs`, after the version and the flags.
    const START_IP: u64 = 8;
    const POST_COMMIT_OFFSET: u64 = 16;
    const ABORT_IP: u64 = 24;
    let word = |address: u64| {
        let mut bytes = [0; 8];
        (request::read(pid, address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    };
    let area = request::rseq_area(thread.tid)?;
    let sequence = word(area.checked_add(RSEQ_CS)?).filter(|&sequence| sequence != 0)?;
    let field = |offset| word(sequence.checked_add(offset)?);
    let start = field(START_IP)?;
    let length = field(POST_COMMIT_OFFSET)?;
    let abort = field(ABORT_IP)?;
    (thread.regs.pc().wrapping_sub(start) < length).then_some(abort)
}
