//! Return frames, written to the unused part of a thread's stack.
//!
//! While a thread makes system calls for this process, its stack pointer points to signal frames.
//! If this process is killed then, the kernel releases the thread, and it returns into these frames
//! by itself: it waits for the child that it may have been made to create, and then restores its
//! own registers. The child returns into a frame that makes it exit, and runs none of the program's
//! code.

use crate::arch::{self, General};
use crate::code::Code;

/// Size in bytes of the area below the stack pointer that a leaf function may use.
const RED_ZONE: u64 = 128;
/// Pid of no child. Waiting for it fails at once.
const NOBODY: u64 = i32::MAX as u64;
/// Mask of all signals, which are blocked until the last frame.
pub const ALL_SIGNALS: u64 = u64::MAX;

/// Return frames. The lowest is used first, since a handler that runs on this stack meanwhile uses
/// what is below it.
pub struct Frames {
    /// Address of the lowest frame.
    pub bottom: u64,
    /// Contents.
    pub bytes: Vec<u8>,
    /// Address of the frame that waits for the child and then returns.
    pub wait: u64,
    /// Address of the frame that returns.
    pub back: u64,
    /// Address of the frame that exits.
    pub exit: u64,
    /// Address of a word for a result of the kernel.
    pub answer: u64,
}

impl Frames {
    /// Builds the frames for a thread in this state. Returns `None` if no stack can hold them.
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

    /// Returns the address to which `clone` must write the child's pid: an argument of the call
    /// that waits for it.
    pub fn child(&self) -> u64 {
        self.wait + arch::FIRST_ARGUMENT
    }
}
