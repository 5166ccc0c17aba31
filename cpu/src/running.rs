//! Child processes for tests.

use std::process::{Child, Command};

/// Child process, which is killed when this is dropped.
pub struct Running(pub Child);

impl Running {
    /// Starts the program.
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("a program that is installed"))
    }

    /// Returns its process id.
    pub fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
