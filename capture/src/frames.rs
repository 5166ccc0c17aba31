//! The way back, written onto the unused part of a thread's stack.
//!
//! While a thread makes system calls for us, its stack pointer points at signal frames. If we are
//! killed then, the kernel releases the thread, and it returns into them by itself: it waits for
//! the child that it may have been made to create, and then restores its own registers. The child
//! returns into a frame that makes it exit, and runs none of the program's code.

use crate::arch::{self, General};
use crate::code::Code;

/// Below the stack pointer a leaf function may use so much.
const RED_ZONE: u64 = 128;
/// No child has this pid: waiting for it fails at once.
const NOBODY: u64 = i32::MAX as u64;
/// Signals are blocked until the last frame.
pub const ALL_SIGNALS: u64 = u64::MAX;

/// The frames. The lowest is used first: a handler that runs on this stack meanwhile uses what
/// is below it.
pub struct Frames {
    /// Where they begin.
    pub bottom: u64,
    /// Their bytes.
    pub bytes: Vec<u8>,
    /// Waits for the child, and then goes back.
    pub wait: u64,
    /// Goes back.
    pub back: u64,
    /// Exits.
    pub exit: u64,
    /// A word for an answer of the kernel's.
    pub answer: u64,
}

impl Frames {
    /// Frames for a thread in this state; `None` if no stack can hold them.
    pub fn new(regs: &General, vector: &[u8], mask: u64, code: &Code) -> Option<Self> {
        let small = arch::frame(0, regs, &[], mask, code).len() as u64;
        let large = arch::frame(0, regs, vector, mask, code).len() as u64;
        let size = 2 * small + large + 64;
        let bottom = regs.sp().checked_sub(RED_ZONE + size)? & !63;
        let (wait, back) = (bottom, bottom + small);
        let exit = back + large;
        let all = u64::from(libc::__WALL.cast_unsigned());
        let waiting = regs.calling(code, libc::SYS_wait4, [NOBODY, 0, all, 0, 0, 0], back);
        let exiting = regs.calling(code, libc::SYS_exit_group, [0; 6], exit);
        let mut bytes = arch::frame(wait, &waiting, &[], ALL_SIGNALS, code);
        bytes.extend(arch::frame(back, &regs.restarted(), vector, mask, code));
        bytes.extend(arch::frame(exit, &exiting, &[], ALL_SIGNALS, code));
        let answer = exit + small;
        bytes.extend([0; 64]);
        Some(Self {
            bottom,
            bytes,
            wait,
            back,
            exit,
            answer,
        })
    }

    /// Where `clone` is to write the child's pid: into the call that waits for it.
    pub fn child(&self) -> u64 {
        self.wait + arch::FIRST_ARGUMENT
    }
}
