//! The system calls on another process: each one wrapped, none combined.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io::{Error, Result};
use std::mem::offset_of;
use std::ptr;

use crate::arch::General;

/// Kinds of registers.
const NT_PRSTATUS: i32 = 1;
/// The same: floating point.
pub const NT_PRFPREG: i32 = 2;
/// The same: all extended state of x86.
#[cfg(target_arch = "x86_64")]
pub const NT_X86_XSTATE: i32 = 0x202;
/// The same: the thread pointer.
#[cfg(target_arch = "aarch64")]
pub const NT_ARM_TLS: i32 = 0x401;

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
/// Registers are read up to this size: more than any processor has.
const MOST_REGISTERS: usize = 64 << 10;

/// What happened to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Stopped by us, or with its process (`PTRACE_EVENT_STOP`).
    Stop,
    /// Stopped before or after a system call.
    Call,
    /// Stopped for a new child or thread.
    Birth,
    /// Stopped by a successful execve.
    Exec,
    /// Stopped because of another event.
    Other,
    /// Stopped before it receives this signal.
    Signal(i32),
    /// Ended.
    End,
    /// Not ours (any more).
    None,
}

/// A request with two plain numbers.
fn plain(request: libc::c_uint, tid: i32, address: usize, data: i32) -> Result<()> {
    let address = ptr::without_provenance_mut::<c_void>(address);
    let data = ptr::without_provenance_mut::<c_void>(data as usize);
    // SAFETY: the requests of this file that come here take numbers, and no memory of ours.
    check(unsafe { libc::ptrace(request, tid, address, data) })
}

/// A request that reads or writes `data`.
fn with<T: ?Sized>(request: libc::c_uint, tid: i32, address: usize, data: *mut T) -> Result<()> {
    let address = ptr::without_provenance_mut::<c_void>(address);
    // SAFETY: the callers pass a pointer to memory as large as the request says.
    check(unsafe { libc::ptrace(request, tid, address, data.cast::<c_void>()) })
}

fn check(result: libc::c_long) -> Result<()> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Begins to trace a thread, which keeps running.
pub fn seize(tid: i32, options: i32) -> Result<()> {
    plain(libc::PTRACE_SEIZE, tid, 0, options)
}

/// Makes it stop, at once or when it is continued.
pub fn interrupt(tid: i32) -> Result<()> {
    plain(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Resumes it, with a signal or 0.
pub fn proceed(tid: i32, signal: i32) -> Result<()> {
    plain(libc::PTRACE_CONT, tid, 0, signal)
}

/// Runs it up to the beginning or the end of a system call.
pub fn proceed_to_call(tid: i32, signal: i32) -> Result<()> {
    plain(libc::PTRACE_SYSCALL, tid, 0, signal)
}

/// Ends tracing; the thread continues.
pub fn detach(tid: i32) -> Result<()> {
    detach_with(tid, 0)
}

/// The same; it receives a signal.
pub fn detach_with(tid: i32, signal: i32) -> Result<()> {
    plain(libc::PTRACE_DETACH, tid, 0, signal)
}

/// Sets what is traced, and what happens when the tracer ends.
pub fn set_options(tid: i32, options: i32) -> Result<()> {
    plain(libc::PTRACE_SETOPTIONS, tid, 0, options)
}

/// The pid of the child that a [`Event::Birth`] is about.
pub fn newborn(tid: i32) -> Result<i32> {
    let mut pid: libc::c_ulong = 0;
    with(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut pid)?;
    i32::try_from(pid).map_err(Error::other)
}

/// A set of registers, of whatever size.
pub fn register_set(tid: i32, kind: i32) -> Result<Vec<u8>> {
    thread_local! {
        // Made once: clearing it for each of many threads takes longer than the kernel does.
        static ROOM: RefCell<Vec<u8>> = RefCell::new(vec![0; MOST_REGISTERS]);
    }
    ROOM.with_borrow_mut(|room| {
        let len = fill_registers(tid, kind, room)?;
        Ok(room[..len].to_vec())
    })
}

/// The same, into room that is large enough; gives its length.
fn fill_registers(tid: i32, kind: i32, room: &mut [u8]) -> Result<usize> {
    let mut area = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    // The kernel fills at most the area, whose length is that of `room`.
    with(libc::PTRACE_GETREGSET, tid, kind as usize, &raw mut area)?;
    Ok(area.iov_len.min(room.len()))
}

/// The general registers; `None` for a program of another word size.
pub fn general(tid: i32) -> Result<Option<General>> {
    let mut bytes = [0; size_of::<General>() + 8];
    let len = fill_registers(tid, NT_PRSTATUS, &mut bytes)?;
    let mut regs = General::empty();
    if len != size_of_val(&regs.0) {
        return Ok(None);
    }
    for (register, word) in regs.0.iter_mut().zip(bytes.as_chunks().0) {
        *register = u64::from_le_bytes(*word);
    }
    Ok(Some(regs))
}

/// Sets them.
pub fn set_general(tid: i32, regs: &General) -> Result<()> {
    let mut copy = *regs;
    let base = (&raw mut copy.0).cast();
    // The kernel reads at most the area, whose length is that of `copy`.
    let mut area = libc::iovec {
        iov_base: base,
        iov_len: size_of_val(&copy.0),
    };
    with(
        libc::PTRACE_SETREGSET,
        tid,
        NT_PRSTATUS as usize,
        &raw mut area,
    )
}

/// The signals it blocks.
pub fn mask(tid: i32) -> Result<u64> {
    let mut mask = 0_u64;
    with(PTRACE_GETSIGMASK, tid, size_of::<u64>(), &raw mut mask)?;
    Ok(mask)
}

/// Sets them.
pub fn set_mask(tid: i32, mut mask: u64) -> Result<()> {
    with(PTRACE_SETSIGMASK, tid, size_of::<u64>(), &raw mut mask)
}

/// `struct ptrace_rseq_configuration`.
#[repr(C)]
struct Sequences {
    area: u64,
    size: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// Where its area for restartable sequences is; 0 without one.
pub fn sequences(tid: i32) -> u64 {
    let mut found = Sequences {
        area: 0,
        size: 0,
        signature: 0,
        flags: 0,
        padding: 0,
    };
    let got = with(
        PTRACE_GET_RSEQ_CONFIGURATION,
        tid,
        size_of::<Sequences>(),
        &raw mut found,
    );
    // Kernels before 5.13 do not say; programs on them rarely had one.
    got.map_or(0, |()| found.area)
}

/// What happened to a thread since the last query, if anything did. The end of a process that is
/// also our child is left for those who wait for it (`keep_end`).
pub fn poll(tid: i32, keep_end: bool) -> Result<Option<Event>> {
    match take(tid, keep_end) {
        // Or it has gone: a killed thread can be reaped between two of these requests.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Some(Event::None)),
        found => found,
    }
}

fn take(tid: i32, keep_end: bool) -> Result<Option<Event>> {
    // Only what the calling thread traces.
    let kinds = libc::WEXITED | libc::WSTOPPED | libc::__WNOTHREAD;
    let look = if keep_end { libc::WNOWAIT } else { 0 };
    let Some((code, status)) = wait(tid, kinds | look)? else {
        return Ok(None);
    };
    if matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) {
        return Ok(Some(Event::End));
    }
    if keep_end {
        // It may have been killed since: then there is no stop any more, but soon an end.
        return Ok(wait(tid, libc::WSTOPPED | libc::__WNOTHREAD)?.map(|_| event(status)));
    }
    Ok(Some(event(status)))
}

fn event(status: i32) -> Event {
    let trap = status & 0xff;
    match status >> 8 {
        0 if trap == libc::SIGTRAP | 0x80 => Event::Call,
        0 => Event::Signal(trap),
        libc::PTRACE_EVENT_STOP => Event::Stop,
        libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
            Event::Birth
        }
        libc::PTRACE_EVENT_EXEC => Event::Exec,
        _ => Event::Other,
    }
}

/// Looks at the end of a thread that another thread of this process traces; nothing if it has
/// not ended, or is not traced.
pub fn reap(tid: i32) {
    let _ = wait(tid, libc::WEXITED);
}

/// Waits until a thread that the calling one traces has stopped or ended, or a signal comes; what
/// happened is left for [`poll`].
pub fn await_change(tid: i32) -> Result<()> {
    let kinds = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WNOTHREAD;
    wait_with(tid, kinds).map(drop)
}

fn wait(tid: i32, kinds: i32) -> Result<Option<(i32, i32)>> {
    wait_with(tid, kinds | libc::WNOHANG)
}

fn wait_with(tid: i32, kinds: i32) -> Result<Option<(i32, i32)>> {
    // SAFETY: plain numbers and a union of them.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = kinds | libc::__WALL;
    // SAFETY: `info` is ours to fill.
    let got = unsafe { libc::waitid(libc::P_PID, tid.cast_unsigned(), &raw mut info, options) };
    check(got.into())?;
    // SAFETY: for a child's change the kernel fills these members; without one they are zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((pid != 0).then_some((info.si_code, status)))
}

/// Kills a process.
pub fn kill(pid: i32) -> Result<()> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::kill(pid, libc::SIGKILL) }.into())
}

/// Reads another process's memory, as far as it can be read.
pub fn read(pid: i32, address: u64, bytes: &mut [u8]) -> usize {
    let here = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let there = remote(address, bytes.len());
    let got = of_living(pid, |tid| {
        // SAFETY: the kernel writes at most `bytes`, and checks the other side itself.
        unsafe { libc::process_vm_readv(tid, &raw const here, 1, &raw const there, 1, 0) }
    });
    usize::try_from(got).unwrap_or(0)
}

/// Accesses a process's memory, by another thread where the first one has ended and has none.
fn of_living(pid: i32, access: impl Fn(i32) -> isize) -> isize {
    let got = access(pid);
    if got >= 0 || Error::last_os_error().raw_os_error() != Some(libc::ESRCH) {
        return got;
    }
    // Asked again in any case: the search leaves another error behind.
    access(proc::living_thread(pid))
}

/// Maximum number of parts that are read by one system call: `IOV_MAX`.
const MOST_PARTS: usize = 1024;

/// Reads parts of another process's memory, by their addresses and lengths, one after another into
/// `bytes`, which has room for all of them. The number of parts that were read whole: of a part
/// that cannot be read, and of those after it in the same system call, nothing is known.
pub fn read_parts(pid: i32, parts: &[(u64, usize)], bytes: &mut [u8]) -> usize {
    let (mut whole, mut rest) = (0, bytes);
    for parts in parts.chunks(MOST_PARTS) {
        let length = parts.iter().map(|(_, length)| *length).sum::<usize>();
        let Some((first, others)) = std::mem::take(&mut rest).split_at_mut_checked(length) else {
            break;
        };
        rest = others;
        let here = libc::iovec {
            iov_base: first.as_mut_ptr().cast(),
            iov_len: first.len(),
        };
        let there: Vec<libc::iovec> = (parts.iter())
            .map(|&(address, length)| remote(address, length))
            .collect();
        let count = there.len() as libc::c_ulong;
        let got = of_living(pid, |tid| {
            // SAFETY: the kernel writes at most `first`, and checks the other side itself.
            unsafe { libc::process_vm_readv(tid, &raw const here, 1, there.as_ptr(), count, 0) }
        });
        let mut got = usize::try_from(got).unwrap_or(0);
        let is_whole = |&&(_, length): &&(u64, usize)| match got.checked_sub(length) {
            Some(left) => {
                got = left;
                true
            }
            None => false,
        };
        let found = parts.iter().take_while(is_whole).count();
        whole += found;
        if found < parts.len() {
            break;
        }
    }
    whole
}

/// Why a process's memory may not be read, as the kernel's error number; `None`: it may.
pub fn read_error(pid: i32) -> Option<i32> {
    let mut byte = 0u8;
    let here = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let there = remote(0, 1);
    let got = of_living(pid, |tid| {
        // SAFETY: one byte of ours, which the kernel may fill.
        unsafe { libc::process_vm_readv(tid, &raw const here, 1, &raw const there, 1, 0) }
    });
    let error = Error::last_os_error().raw_os_error();
    // Nothing is at address 0.
    error.filter(|error| got < 0 && *error != libc::EFAULT)
}

/// Writes another process's memory, all of it or it is an error.
pub fn write(pid: i32, address: u64, bytes: &[u8]) -> Result<()> {
    let base = bytes.as_ptr().cast_mut().cast();
    let here = libc::iovec {
        iov_base: base,
        iov_len: bytes.len(),
    };
    let there = remote(address, bytes.len());
    let got = of_living(pid, |tid| {
        // SAFETY: the kernel only reads `bytes`, and checks the other side itself.
        unsafe { libc::process_vm_writev(tid, &raw const here, 1, &raw const there, 1, 0) }
    });
    match usize::try_from(got) {
        Err(_) => Err(Error::last_os_error()),
        Ok(got) if got < bytes.len() => Err(Error::from_raw_os_error(libc::EFAULT)),
        Ok(_) => Ok(()),
    }
}

fn remote(address: u64, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: ptr::without_provenance_mut(address as usize),
        iov_len: bytes,
    }
}

const _: () = assert!(offset_of!(Sequences, padding) == 20, "as the kernel has it");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_up_to_one_that_cannot_be() {
        let pid = std::process::id().cast_signed();
        let words: Vec<u64> = (0..4096).collect();
        let at = |index: usize| (&raw const words[index]) as u64;
        let mut bytes = vec![0; 8 * words.len()];
        // More than one system call takes.
        let mut parts: Vec<(u64, usize)> = (0..3000).map(|index| (at(index), 8)).collect();
        parts.push((at(0), 0));
        parts.push((at(3000), 16));
        assert_eq!(read_parts(pid, &parts, &mut bytes), parts.len());
        assert_eq!(bytes[8 * 2999..8 * 3000], 2999u64.to_le_bytes());
        assert_eq!(bytes[8 * 3001..8 * 3002], 3001u64.to_le_bytes());
        parts[2500] = (8, 8);
        assert!((2048..=2500).contains(&read_parts(pid, &parts, &mut bytes)));
        assert_eq!(read_parts(pid, &parts, &mut bytes[..9000]), 1024);
        assert_eq!(read_parts(pid, &[], &mut bytes), 0);
    }
}
