//! Addresses of the agent's own memory, for a leak check from outside: pointers of the agent and
//! jemalloc do not make an object reachable by the program.

use crate::local::Local;
use crate::thread::Thread;
use crate::{arch, exemptions, library, own, thread};
use core::mem::{offset_of, size_of};
use shm_protocol::layout::AgentMemory;

/// Returns the addresses of the agent's own memory.
pub fn memory() -> AgentMemory {
    let local = arch::local() as u64 + offset_of!(Local, thread) as u64;
    let (start, end) = library::bounds();
    let (variables, variables_bytes) = library::variables();
    AgentMemory {
        start,
        end,
        variables,
        variables_bytes,
        thread: local.wrapping_sub(arch::thread_pointer()),
        thread_bytes: size_of::<Thread>() as u64,
        spare: thread::spare().addr() as u64,
        spare_count: thread::SPARES as u64,
        exemptions: exemptions::list_address(),
        own: own::list_address().addr() as u64,
        own_count: own::CAPACITY as u64,
    }
}
