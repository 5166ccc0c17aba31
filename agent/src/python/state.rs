//! The state of the running thread, among those of all threads of all interpreters.

use super::layout::Layout;
use super::memory::{STATE, word};
use super::runtime::Runtime;
use unwind::probe;

/// Most interpreters, and most threads of one, that are looked at.
const INTERPRETERS: usize = 256;
const THREADS: usize = 4096;
/// Most states of one thread: one for each interpreter that it runs.
pub const OWN: usize = 4;

/// The states of the thread with this number, as the C library has it, newest interpreter first.
///
/// Other threads may change the lists meanwhile: each address is probed before it is followed,
/// and the memory of a state that is gone stays mapped for longer than this takes.
#[cold]
pub fn find(runtime: &Runtime, thread: u64) -> [u64; OWN] {
    let layout = &runtime.layout;
    let mut found = [0; OWN];
    let mut count = 0;
    let Some(mut interpreter) = follow(runtime.at + layout.interpreters) else {
        return found;
    };
    for _ in 0..INTERPRETERS {
        let Some(mut state) = follow(interpreter + layout.threads) else {
            break;
        };
        for _ in 0..THREADS {
            if is_of(layout, state, thread) && count < OWN {
                found[count] = state;
                count += 1;
            }
            match follow(state + layout.next_thread) {
                Some(next) => state = next,
                None => break,
            }
        }
        match follow(interpreter + layout.next_interpreter) {
            Some(next) => interpreter = next,
            None => break,
        }
    }
    found
}

/// Whether a state is readable and of a thread.
fn is_of(layout: &Layout, state: u64, thread: u64) -> bool {
    // SAFETY: found readable.
    probe::are_readable(state, state + STATE) && unsafe { word(state + layout.thread_id) } == thread
}

/// The pointer at an address, if there is one.
fn follow(at: u64) -> Option<u64> {
    if !probe::are_readable(at, at.checked_add(8)?) {
        return None;
    }
    // SAFETY: found readable.
    let pointer = unsafe { word(at) };
    (pointer != 0 && pointer.is_multiple_of(8) && pointer < 1 << 56).then_some(pointer)
}
