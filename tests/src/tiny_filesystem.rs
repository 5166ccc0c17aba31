//! Filesystems that can be filled up.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;

use crate::session::tool;

/// A mounted filesystem of a few MiB; unmounted with this value.
pub struct TinyFilesystem<'a>(&'a std::path::Path);

impl<'a> TinyFilesystem<'a> {
    /// Mounts a filesystem at a new directory. `size` is written as for `mount`.
    pub fn mount(at: &'a std::path::Path, size: &str) -> Self {
        fs::create_dir(at).expect("a new directory");
        let option = format!("size={size}");
        let at_text = at.to_str().expect("a path of ours");
        tool(
            "mount",
            ["-t", "tmpfs", "-o", &option, "mem-tests", at_text],
        );
        Self(at)
    }

    /// Fills the filesystem up.
    pub fn fill(&self) {
        let file = File::create(self.0.join("filler")).expect("a file");
        let zeros = vec![0; 1 << 16];
        let mut at = 0;
        while let Ok(n @ 1..) = file.write_at(&zeros, at) {
            at += n as u64;
        }
    }
}

impl Drop for TinyFilesystem<'_> {
    fn drop(&mut self) {
        // If this fails, an empty filesystem stays mounted until the machine is shut down.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
