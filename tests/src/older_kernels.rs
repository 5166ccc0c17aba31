//! Commands that find system calls of newer kernels missing.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Number of `PAGEMAP_SCAN` (Linux 6.7), an `ioctl` on `/proc/PID/pagemap`.
const PAGEMAP_SCAN: u32 = 0xc060_6610;

/// Makes a command find no `PAGEMAP_SCAN`, as on Linux before 6.7. A filter refuses it, in the
/// command's children too.
pub fn without_pagemap_scan(command: &mut Command) {
    let refuse = || {
        refuse_scan()?;
        // SAFETY: refused by its number, before the descriptor is looked at.
        let result = unsafe { libc::ioctl(-1, PAGEMAP_SCAN as _, 0) };
        let error = io::Error::last_os_error();
        match (result, error.raw_os_error()) {
            (-1, Some(libc::ENOTTY)) => Ok(()),
            _ => Err(error),
        }
    };
    // SAFETY: `refuse` is async-signal-safe: three system calls on constants.
    unsafe { command.pre_exec(refuse) };
}

/// Installs the filter in the calling thread.
fn refuse_scan() -> io::Result<()> {
    const fn step(
        code: u32,
        skipped_if_equal: u8,
        skipped_otherwise: u8,
        value: u32,
    ) -> libc::sock_filter {
        libc::sock_filter {
            code: code as u16,
            jt: skipped_if_equal,
            jf: skipped_otherwise,
            k: value,
        }
    }
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    /// Offsets in `struct seccomp_data`: the call's number, and the low half of its second argument.
    const NUMBER: u32 = 0;
    const REQUEST: u32 = if cfg!(target_endian = "little") {
        24
    } else {
        28
    };
    let mut steps = [
        step(LOAD, 0, 0, NUMBER),
        step(EQUAL, 0, 3, libc::SYS_ioctl as u32),
        step(LOAD, 0, 0, REQUEST),
        step(EQUAL, 0, 1, PAGEMAP_SCAN),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOTTY as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: `program` and its steps outlive the call.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
