//! Programs that end with the test that started them.

use std::process::{Child, Command};

/// A program. It is killed when this is dropped.
pub struct Running(pub Child);

impl Running {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        Self(command.spawn().expect("a program that is installed"))
    }

    /// Its process id.
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
