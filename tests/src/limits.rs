//! Commands under a resource limit.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// A limited resource.
#[derive(Clone, Copy, Debug)]
pub enum Scarce {
    /// Address space, in bytes.
    AddressSpace,
    /// Writable private memory, in bytes.
    Data,
    /// Size of files, in bytes.
    FileSize,
    /// Locked memory, in bytes.
    Locked,
    /// Stack of the main thread, in bytes.
    Stack,
}

/// Makes a command start with this limit, soft and hard.
pub fn limit(command: &mut Command, scarce: Scarce, most: u64) {
    let resource = match scarce {
        Scarce::AddressSpace => libc::RLIMIT_AS,
        Scarce::Data => libc::RLIMIT_DATA,
        Scarce::FileSize => libc::RLIMIT_FSIZE,
        Scarce::Locked => libc::RLIMIT_MEMLOCK,
        Scarce::Stack => libc::RLIMIT_STACK,
    };
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    let set = move || {
        // SAFETY: a plain system call on a valid struct.
        match unsafe { libc::setrlimit(resource, &limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: `set` is async-signal-safe: one system call.
    unsafe { command.pre_exec(set) };
}
