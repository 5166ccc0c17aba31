//! A shell's processes, together.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// A command and all that it starts; killed with this value.
pub struct Group(Child);

impl Group {
    /// Starts a command as the first of its group.
    pub fn start(command: &mut Command) -> Self {
        let child = command.process_group(0).spawn();
        Self(child.unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: our own child, not yet waited for, so the group is still its own.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        // Worst case it has ended already.
        let _ = self.0.wait();
    }
}
