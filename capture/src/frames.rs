//! Return frames, written to the unused part of a thread's stack.
//!
//! While a thread makes system calls for this process, its stack pointer points to signal frames.
//! If this process is killed during that time, the kernel releases the thread, which then returns
//! into these frames by itself: it reaps the child that it may have been made to create, and
//! restores its own registers. The child returns into a frame that makes it exit, and runs none of
//! the program's code.

use crate::arch::{self, General};
use crate::code::SyscallCode;

/// Size in bytes of the area below the stack pointer that a leaf function may use.
const RED_ZONE: u64 = 128;
/// Pid that does not exist. Waiting for it fails immediately.
const NO_PID: u64 = i32::MAX as u64;
/// Size in bytes of the area for [`Frames::result`], which keeps the frames' alignment.
const RESULT_BYTES: u64 = 64;
/// Alignment of signal frames in bytes, which XSAVE requires.
const FRAME_ALIGNMENT: u64 = 64;
/// Mask of all signals, which are blocked until the last frame.
pub const ALL_SIGNALS: u64 = u64::MAX;

/// Return frames, in the order of use from the lowest address up: a handler that runs on this stack
/// in the meantime overwrites only what is below the current frame.
pub struct Frames {
    /// Address of the lowest frame.
    pub bottom: u64,
    /// Contents of the stack from `bottom` up.
    pub bytes: Vec<u8>,
    /// Address of the frame that waits for the child and then enters `restore`.
    pub wait: u64,
    /// Address of the frame that restores the thread's own registers.
    pub restore: u64,
    /// Address of the frame that exits.
    pub exit: u64,
    /// Address of a word to which the kernel writes a result.
    pub result: u64,
}

impl Frames {
    /// Builds the frames for a thread in this state. Returns `None` if no stack can hold them.
    pub fn new(regs: &General, vector: &[u8], mask: u64, code: &SyscallCode) -> Option<Self> {
        let small = arch::frame(0, regs, &[], mask, code).len() as u64;
        let large = arch::frame(0, regs, vector, mask, code).len() as u64;
        let size = 2 * small + large + RESULT_BYTES;
        let bottom = regs.sp().checked_sub(RED_ZONE + size)? & !(FRAME_ALIGNMENT - 1);
        let wait = bottom;
        let restore = wait + small;
        let exit = restore + large;
        let result = exit + small;
        let options = u64::from(libc::__WALL.cast_unsigned());
        let waiting = regs.calling(
            code,
            libc::SYS_wait4,
            [NO_PID, 0, options, 0, 0, 0],
            restore,
        );
        let exiting = regs.calling(code, libc::SYS_exit_group, [0; 6], exit);
        let mut bytes = arch::frame(wait, &waiting, &[], ALL_SIGNALS, code);
        bytes.extend(arch::frame(restore, &regs.restarted(), vector, mask, code));
        bytes.extend(arch::frame(exit, &exiting, &[], ALL_SIGNALS, code));
        bytes.extend([0; RESULT_BYTES as usize]);
        Some(Self {
            bottom,
            bytes,
            wait,
            restore,
            exit,
            result,
        })
    }

    /// Returns the address to which `clone` must write the child's pid: that of the pid argument in
    /// the frame that waits for the child.
    pub fn child_pid_address(&self) -> u64 {
        self.wait + arch::FIRST_ARGUMENT
    }
}
