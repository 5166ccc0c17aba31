//! Wrappers of the system calls that act on another process, one function for each.

use std::cell::RefCell;
use std::ffi::c_void;
use std::io::{Error, Result};
use std::mem::offset_of;
use std::ptr;

use crate::arch::General;

/// Register set: general registers.
const NT_PRSTATUS: i32 = 1;
/// Register set: floating-point registers.
pub const NT_PRFPREG: i32 = 2;
/// Register set: all extended state of x86.
#[cfg(target_arch = "x86_64")]
pub const NT_X86_XSTATE: i32 = 0x202;
/// Register set: thread pointer.
#[cfg(target_arch = "aarch64")]
pub const NT_ARM_TLS: i32 = 0x401;

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
/// Maximum size of a register set in bytes: more than any processor needs.
const MAX_REGISTER_BYTES: usize = 64 << 10;

/// Event of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Stopped by this process or by a group-stop (`PTRACE_EVENT_STOP`).
    Stop,
    /// Stopped at the start or end of a system call.
    Call,
    /// Stopped after creating a child or a thread.
    NewChild,
    /// Stopped by a successful execve.
    Exec,
    /// Stopped because of another event.
    Other,
    /// Stopped before it receives this signal.
    Signal(i32),
    /// Exited or killed.
    Exited,
    /// The thread is not traced, or not traced any more.
    NotTraced,
}

/// Makes a request whose arguments are numbers.
fn ptrace_numbers(request: libc::c_uint, tid: i32, address: usize, data: i32) -> Result<()> {
    let address = ptr::without_provenance_mut::<c_void>(address);
    let data = ptr::without_provenance_mut::<c_void>(data as usize);
    // SAFETY: the requests that are made with this function take no pointers.
    check(unsafe { libc::ptrace(request, tid, address, data) })
}

/// Makes a request that reads or writes `data`.
///
/// # Safety
/// The request accesses at most the `size_of::<T>()` bytes of `data`, and buffers to which `data`
/// points are valid.
unsafe fn ptrace_data<T>(
    request: libc::c_uint,
    tid: i32,
    address: usize,
    data: *mut T,
) -> Result<()> {
    let address = ptr::without_provenance_mut::<c_void>(address);
    // SAFETY: `data` is as large as the request requires, which the caller guarantees.
    check(unsafe { libc::ptrace(request, tid, address, data.cast::<c_void>()) })
}

fn check(result: libc::c_long) -> Result<()> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Starts to trace a thread, which keeps running.
pub fn seize(tid: i32, options: i32) -> Result<()> {
    ptrace_numbers(libc::PTRACE_SEIZE, tid, 0, options)
}

/// Stops a thread: immediately, or when it is resumed if it has stopped already.
pub fn interrupt(tid: i32) -> Result<()> {
    ptrace_numbers(libc::PTRACE_INTERRUPT, tid, 0, 0)
}

/// Resumes a thread and delivers a signal; 0 for none.
pub fn proceed(tid: i32, signal: i32) -> Result<()> {
    ptrace_numbers(libc::PTRACE_CONT, tid, 0, signal)
}

/// Resumes a thread up to the start or end of a system call.
pub fn proceed_to_call(tid: i32, signal: i32) -> Result<()> {
    ptrace_numbers(libc::PTRACE_SYSCALL, tid, 0, signal)
}

/// Stops tracing; the thread continues.
pub fn detach(tid: i32) -> Result<()> {
    detach_with(tid, 0)
}

/// Stops tracing; the thread continues and receives a signal.
pub fn detach_with(tid: i32, signal: i32) -> Result<()> {
    ptrace_numbers(libc::PTRACE_DETACH, tid, 0, signal)
}

/// Sets trace options: which events are reported, and what happens when the tracer ends.
pub fn set_options(tid: i32, options: i32) -> Result<()> {
    ptrace_numbers(libc::PTRACE_SETOPTIONS, tid, 0, options)
}

/// Returns the pid of the child that an [`Event::NewChild`] reports.
pub fn child_of_event(tid: i32) -> Result<i32> {
    let mut pid: libc::c_ulong = 0;
    // SAFETY: the request writes an `unsigned long`.
    unsafe { ptrace_data(libc::PTRACE_GETEVENTMSG, tid, 0, &raw mut pid) }?;
    i32::try_from(pid).map_err(Error::other)
}

/// Returns a register set.
pub fn register_set(tid: i32, kind: i32) -> Result<Vec<u8>> {
    thread_local! {
        // Allocated once, since zeroing it for each of many threads would take longer than the
        // system call.
        static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_REGISTER_BYTES]);
    }
    BUFFER.with_borrow_mut(|buffer| {
        let len = fill_registers(tid, kind, buffer)?;
        Ok(buffer[..len].to_vec())
    })
}

/// Reads a register set into a buffer and returns its size.
fn fill_registers(tid: i32, kind: i32, buffer: &mut [u8]) -> Result<usize> {
    let mut area = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: the request updates the `iovec`, and writes only to its area, which is `buffer`.
    unsafe { ptrace_data(libc::PTRACE_GETREGSET, tid, kind as usize, &raw mut area) }?;
    Ok(area.iov_len.min(buffer.len()))
}

/// Returns the general registers, or `None` for a 32-bit program.
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

/// Sets the general registers.
pub fn set_general(tid: i32, regs: &General) -> Result<()> {
    let mut copy = *regs;
    let base = (&raw mut copy.0).cast();
    let mut area = libc::iovec {
        iov_base: base,
        iov_len: size_of_val(&copy.0),
    };
    let kind = NT_PRSTATUS as usize;
    // SAFETY: the request updates the `iovec`, and reads only its area, which is `copy`.
    unsafe { ptrace_data(libc::PTRACE_SETREGSET, tid, kind, &raw mut area) }
}

/// Returns the mask of blocked signals.
pub fn mask(tid: i32) -> Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: the request writes a mask of the given size.
    unsafe { ptrace_data(PTRACE_GETSIGMASK, tid, size_of::<u64>(), &raw mut mask) }?;
    Ok(mask)
}

/// Sets the mask of blocked signals.
pub fn set_mask(tid: i32, mut mask: u64) -> Result<()> {
    // SAFETY: the request reads a mask of the given size.
    unsafe { ptrace_data(PTRACE_SETSIGMASK, tid, size_of::<u64>(), &raw mut mask) }
}

/// `struct ptrace_rseq_configuration`.
#[repr(C)]
struct RseqConfiguration {
    address: u64,
    size: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// Returns the address of a thread's `struct rseq`, or `None` if it has registered none.
pub fn rseq_area(tid: i32) -> Option<u64> {
    let mut configuration = RseqConfiguration {
        address: 0,
        size: 0,
        signature: 0,
        flags: 0,
        padding: 0,
    };
    let request = PTRACE_GET_RSEQ_CONFIGURATION;
    let size = size_of::<RseqConfiguration>();
    // SAFETY: the request writes a `ptrace_rseq_configuration` of at most the given size.
    let result = unsafe { ptrace_data(request, tid, size, &raw mut configuration) };
    // Kernels before 5.13 do not have this request; programs on them rarely use rseq.
    result.ok()?;
    (configuration.address != 0).then_some(configuration.address)
}

/// Returns a thread's next event, if there is one. If `keep_exit`, an exit is not reaped, because
/// the thread's process is also a child of this one, and others wait for its exit.
pub fn poll(tid: i32, keep_exit: bool) -> Result<Option<Event>> {
    match wait_event(tid, keep_exit) {
        // A killed thread may be reaped by another tracing thread between two requests.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Some(Event::NotTraced)),
        result => result,
    }
}

fn wait_event(tid: i32, keep_exit: bool) -> Result<Option<Event>> {
    // `__WNOTHREAD`: only threads that the calling thread traces.
    let kinds = libc::WEXITED | libc::WSTOPPED | libc::__WNOTHREAD;
    let peek = if keep_exit { libc::WNOWAIT } else { 0 };
    let Some((code, status)) = wait(tid, kinds | peek)? else {
        return Ok(None);
    };
    if matches!(code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED) {
        return Ok(Some(Event::Exited));
    }
    if keep_exit {
        // If the thread was killed since, the stop is gone, and its exit will follow.
        return Ok(wait(tid, libc::WSTOPPED | libc::__WNOTHREAD)?.map(|_| event(status)));
    }
    Ok(Some(event(status)))
}

/// Decodes the status of a stop: the signal and, in the next byte, the ptrace event.
fn event(status: i32) -> Event {
    /// Bit that `PTRACE_O_TRACESYSGOOD` adds to the signal of a stop at a system call.
    const SYSTEM_CALL: i32 = 0x80;
    let signal = status & 0xff;
    match status >> 8 {
        0 if signal == (libc::SIGTRAP | SYSTEM_CALL) => Event::Call,
        0 => Event::Signal(signal),
        libc::PTRACE_EVENT_STOP => Event::Stop,
        libc::PTRACE_EVENT_CLONE | libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
            Event::NewChild
        }
        libc::PTRACE_EVENT_EXEC => Event::Exec,
        _ => Event::Other,
    }
}

/// Reaps a thread that another thread of this process traces. Does nothing if it has not exited or
/// is not traced.
pub fn reap(tid: i32) {
    let _ = wait(tid, libc::WEXITED);
}

/// Waits until a thread that the calling thread traces has stopped or exited, or a signal arrives.
/// The event is left for [`poll`].
pub fn await_change(tid: i32) -> Result<()> {
    let kinds = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WNOTHREAD;
    wait_with(tid, kinds).map(drop)
}

/// Like [`wait_with`], but returns immediately if there is no event.
fn wait(tid: i32, kinds: i32) -> Result<Option<(i32, i32)>> {
    wait_with(tid, kinds | libc::WNOHANG)
}

/// Waits for an event. Returns its `si_code` and `si_status`.
fn wait_with(tid: i32, kinds: i32) -> Result<Option<(i32, i32)>> {
    // SAFETY: all-zero bytes are a valid `siginfo_t`.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = kinds | libc::__WALL;
    // SAFETY: `info` is writable.
    let result = unsafe { libc::waitid(libc::P_PID, tid.cast_unsigned(), &raw mut info, options) };
    check(result.into())?;
    // SAFETY: the kernel sets these members if there is an event; otherwise they are zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((pid != 0).then_some((info.si_code, status)))
}

/// Kills a process.
pub fn kill(pid: i32) -> Result<()> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::kill(pid, libc::SIGKILL) }.into())
}

/// Reads another process's memory up to the first unreadable byte. Returns the number of bytes
/// read.
pub fn read(pid: i32, address: u64, bytes: &mut [u8]) -> usize {
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let remote = remote_range(address, bytes.len());
    let result = through_live_thread(pid, |tid| {
        // SAFETY: the kernel writes at most `bytes`, and checks the other process's addresses
        // itself.
        unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) }
    });
    usize::try_from(result).unwrap_or(0)
}

/// Accesses a process's memory, through another thread if the main thread has exited.
fn through_live_thread(pid: i32, access: impl Fn(i32) -> isize) -> isize {
    let result = access(pid);
    if result >= 0 || Error::last_os_error().raw_os_error() != Some(libc::ESRCH) {
        return result;
    }
    // Repeated even if no other thread is found, since the search changes errno.
    access(proc::living_thread(pid))
}

/// Maximum number of parts in one system call: `IOV_MAX`.
const MAX_PARTS: usize = 1024;

/// Reads parts of another process's memory, given as address and length, one after another into
/// `bytes`, which must have room for all. Returns the number of parts that were read completely.
/// The contents of an unreadable part, and of those after it in the same system call, are
/// undefined.
pub fn read_parts(pid: i32, parts: &[(u64, usize)], bytes: &mut [u8]) -> usize {
    let mut complete = 0;
    let mut rest = bytes;
    for batch in parts.chunks(MAX_PARTS) {
        let length = batch.iter().map(|(_, length)| *length).sum::<usize>();
        let Some((target, after)) = std::mem::take(&mut rest).split_at_mut_checked(length) else {
            break;
        };
        rest = after;
        let local = libc::iovec {
            iov_base: target.as_mut_ptr().cast(),
            iov_len: target.len(),
        };
        let remote: Vec<libc::iovec> = (batch.iter())
            .map(|&(address, length)| remote_range(address, length))
            .collect();
        let count = remote.len() as libc::c_ulong;
        let result = through_live_thread(pid, |tid| {
            // SAFETY: the kernel writes at most `target`, and checks the other process's addresses
            // itself.
            unsafe { libc::process_vm_readv(tid, &raw const local, 1, remote.as_ptr(), count, 0) }
        });
        let mut bytes_left = usize::try_from(result).unwrap_or(0);
        for &(_, length) in batch {
            let Some(left) = bytes_left.checked_sub(length) else {
                return complete;
            };
            bytes_left = left;
            complete += 1;
        }
    }
    complete
}

/// Returns the error with which the kernel refuses to read a process's memory, or `None` if it is
/// permitted.
pub fn read_error(pid: i32) -> Option<i32> {
    let mut byte = 0u8;
    let local = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    let remote = remote_range(0, 1);
    let result = through_live_thread(pid, |tid| {
        // SAFETY: the byte is writable.
        unsafe { libc::process_vm_readv(tid, &raw const local, 1, &raw const remote, 1, 0) }
    });
    let errno = Error::last_os_error().raw_os_error();
    // Address 0 is not mapped, so EFAULT shows that reading is permitted.
    errno.filter(|errno| result < 0 && *errno != libc::EFAULT)
}

/// Writes another process's memory. Fails if not all of it could be written.
pub fn write(pid: i32, address: u64, bytes: &[u8]) -> Result<()> {
    let base = bytes.as_ptr().cast_mut().cast();
    let local = libc::iovec {
        iov_base: base,
        iov_len: bytes.len(),
    };
    let remote = remote_range(address, bytes.len());
    let result = through_live_thread(pid, |tid| {
        // SAFETY: the kernel only reads `bytes`, and checks the other process's addresses itself.
        unsafe { libc::process_vm_writev(tid, &raw const local, 1, &raw const remote, 1, 0) }
    });
    match usize::try_from(result) {
        Err(_) => Err(Error::last_os_error()),
        Ok(written) if written < bytes.len() => Err(Error::from_raw_os_error(libc::EFAULT)),
        Ok(_) => Ok(()),
    }
}

fn remote_range(address: u64, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: ptr::without_provenance_mut(address as usize),
        iov_len: bytes,
    }
}

const _: () = assert!(
    offset_of!(RseqConfiguration, padding) == 20,
    "the kernel's layout"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_up_to_the_first_unreadable_one() {
        let pid = std::process::id().cast_signed();
        let words: Vec<u64> = (0..4096).collect();
        let address = |index: usize| (&raw const words[index]) as u64;
        let mut bytes = vec![0; 8 * words.len()];
        // More parts than one system call accepts.
        let mut parts: Vec<(u64, usize)> = (0..3000).map(|index| (address(index), 8)).collect();
        parts.push((address(0), 0));
        parts.push((address(3000), 16));
        assert_eq!(read_parts(pid, &parts, &mut bytes), parts.len());
        assert_eq!(bytes[8 * 2999..8 * 3000], 2999u64.to_le_bytes());
        assert_eq!(bytes[8 * 3001..8 * 3002], 3001u64.to_le_bytes());
        parts[2500] = (8, 8);
        assert!((2048..=2500).contains(&read_parts(pid, &parts, &mut bytes)));
        assert_eq!(read_parts(pid, &parts, &mut bytes[..9000]), 1024);
        assert_eq!(read_parts(pid, &[], &mut bytes), 0);
    }
}
