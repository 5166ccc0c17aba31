//! Runs a function of this program inside a copy, on the copy's memory.
//!
//! Reading another process's memory through the kernel is slow, since it goes page by page. A copy
//! runs nothing of its own, so it can run a function of this program instead: this program's code
//! is written to an unnamed file (memfd), which the copy maps. The function communicates through
//! words of shared memory.
//!
//! The target may be able to write to the copy's memory and to kill the copy. So nothing that comes
//! from the copy is trusted: the shared words may hold anything, the file cannot be truncated while
//! it is in use, and the work has a deadline.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::arch::{self, General};
use crate::code::SyscallCode;
use crate::image::{Image, PAGE};
use crate::request::{self, Event};
use crate::tracer::Tracer;
use crate::waiter::next_event;

/// Function that a [`Worker`] runs. Its argument is the address of the shared words. It must call
/// nothing outside this program's file and use no global variables: no allocation, no output, no
/// panic. A function that breaks this rule fails without doing harm. To show progress, it must
/// change the first word at least every 30 s (`PROGRESS_TIMEOUT`).
pub type Work = unsafe extern "C" fn(words: *mut u64);

/// Reason why a copy did not do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Not supported on this machine, since it has been run on x86-64 only.
    #[error("that is done on x86-64 only")]
    Processor,
    /// This program's code could not be mapped into the copy.
    #[error(
        "our code could not be mapped there: a security module, vm.memfd_noexec or a limit (ulimit -v, -n, -f) forbids it"
    )]
    Unprepared,
    /// The copy has exited.
    #[error("it was killed while it worked, for example for lack of memory")]
    Ended,
    /// The copy received this signal because of an instruction that it executed.
    #[error("it got signal {0} for what it read")]
    Signal(i32),
    /// The work was not done within this time, or made no progress for this long.
    #[error("it was not done within {0:?}")]
    Deadline(Duration),
}

/// Maximum time of one system call; the longest ones map memory.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time without progress, after which the work is given up.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum and maximum interval between two checks of the copy.
const MIN_CHECK_INTERVAL: Duration = Duration::from_micros(50);
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Size of the function's stack, in bytes.
const STACK_BYTES: usize = 256 << 10;
const MFD_EXEC: libc::c_uint = 0x10;

/// A copy that is ready to do work.
pub struct Worker {
    tracer: Arc<Tracer>,
    copy: i32,
    shared: Arc<Shared>,
    setup: Setup,
}

/// Registers and memory with which the copy does the work.
#[derive(Clone, Copy)]
struct Setup {
    /// Registers with which the function starts.
    start: General,
    /// Registers of the copy when it does no work; system calls are made with them.
    idle: General,
    code: SyscallCode,
    /// The mapped code. The function returns to its start.
    image: Mapped,
    /// The shared memory.
    shared: Mapped,
}

/// Mapping in the copy.
#[derive(Clone, Copy)]
struct Mapped {
    start: u64,
    bytes: usize,
}

impl Worker {
    /// Prepares a copy for work with this many zeroed shared words.
    pub(crate) fn new(
        tracer: &Arc<Tracer>,
        copy: i32,
        code: SyscallCode,
        work: Work,
        words: usize,
    ) -> Result<Self, Failure> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Failure::Processor);
        }
        let image = Image::of(work as usize as u64).ok_or(Failure::Unprepared)?;
        let prepare = move || prepare(copy, &code, &image, words);
        let prepared = tracer.run(prepare).flatten();
        let (shared, setup) = prepared.ok_or(Failure::Unprepared)?;
        Ok(Self {
            tracer: Arc::clone(tracer),
            copy,
            shared: Arc::new(shared),
            setup,
        })
    }

    /// Returns the shared words. They may change at any time, even through the target.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        self.shared.words()
    }

    /// Runs the function to its end, but no longer than `limit`. Must not be called again after a
    /// failure.
    pub fn run(&self, limit: Duration) -> Result<(), Failure> {
        let copy = self.copy;
        let setup = self.setup;
        let shared = Arc::clone(&self.shared);
        let work = move || {
            let result = work(copy, &setup, &shared, limit);
            let restored = request::set_general(copy, &setup.idle);
            result.and(restored.map_err(|_| Failure::Ended))
        };
        self.tracer.run(work).unwrap_or(Err(Failure::Ended))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let copy = self.copy;
        let setup = self.setup;
        let unmap = move || {
            for Mapped { start, bytes } in [setup.image, setup.shared] {
                // If this fails, the memory remains mapped until the copy exits.
                let args = [start, bytes as u64, 0, 0, 0, 0];
                call(copy, &setup.calling(libc::SYS_munmap, args));
            }
            let _ = request::set_general(copy, &setup.idle);
        };
        self.tracer.run(unmap);
    }
}

impl Setup {
    /// Returns an error if the copy did not trap at the function's return address.
    fn check_return(&self, copy: i32) -> Result<(), Failure> {
        let regs = request::general(copy).ok().flatten();
        let pc = regs.ok_or(Failure::Ended)?.pc();
        if pc.wrapping_sub(self.image.start) <= arch::TRAP_CODE.len() as u64 {
            Ok(())
        } else {
            Err(Failure::Signal(libc::SIGTRAP))
        }
    }

    /// Returns the registers with which the copy makes a system call.
    fn calling(&self, number: i64, args: [u64; 6]) -> General {
        self.idle.calling(&self.code, number, args, self.idle.sp())
    }
}

/// Memory shared with a copy: words, then a stack.
struct Shared {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the memory is accessed through atomic words only, and unmapped by its only owner.
unsafe impl Send for Shared {}
// SAFETY: the memory is accessed through atomic words only.
unsafe impl Sync for Shared {}

impl Shared {
    /// Maps the words and the stack from a file, starting at `offset`. The file must be long
    /// enough.
    fn map(file: &File, offset: usize, words: usize) -> Option<Self> {
        let start = map(file, offset, words * 8 + STACK_BYTES)?.cast();
        Some(Self { start, words })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping starts with this many words, and exists until `self` is dropped.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// Returns the highest word of the stack.
    fn top(&self) -> &AtomicU64 {
        // SAFETY: this is the last word of the mapping.
        unsafe { self.start.add(self.words + STACK_BYTES / 8 - 1).as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping, and no reference to it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * 8 + STACK_BYTES) };
    }
}

/// Maps part of a file for writing.
fn map(file: &File, offset: usize, bytes: usize) -> Option<NonNull<c_void>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let file = file.as_raw_fd();
    let offset = offset as libc::off_t;
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            access,
            libc::MAP_SHARED,
            file,
            offset,
        )
    };
    NonNull::new(start).filter(|start| start.as_ptr() != libc::MAP_FAILED)
}

/// Maps this program's code and shared memory into a copy. Returns that memory, and the setup for
/// starting the function.
fn prepare(copy: i32, code: &SyscallCode, image: &Image, words: usize) -> Option<(Shared, Setup)> {
    let words = words.checked_next_multiple_of(PAGE / 8)?;
    let shared_bytes = words.checked_mul(8)?.checked_add(STACK_BYTES)?;
    let length = image.len().checked_add(shared_bytes)?;
    let regs = request::general(copy).ok()??;
    let mut setup = Setup {
        start: regs,
        idle: regs,
        code: *code,
        image: Mapped {
            start: 0,
            bytes: image.len(),
        },
        shared: Mapped {
            start: 0,
            bytes: shared_bytes,
        },
    };
    let idle = setup;
    let call = |number, args| call(copy, &idle.calling(number, args));
    let descriptor = create_memfd(copy, regs.sp(), &call)?;
    let path = format!("/proc/{copy}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(path).ok()?;
    fix_length(&file, length as u64)?;
    let shared = Shared::map(&file, image.len(), words)?;
    image.write(&file).ok()?;
    let map_file = |bytes: usize, access: i32, offset: usize| {
        let flags = libc::MAP_SHARED as u64;
        let args = [
            0,
            bytes as u64,
            access as u64,
            flags,
            descriptor,
            offset as u64,
        ];
        call(libc::SYS_mmap, args)
    };
    setup.image.start = map_file(image.len(), libc::PROT_READ | libc::PROT_EXEC, 0)?;
    setup.shared.start = map_file(
        shared_bytes,
        libc::PROT_READ | libc::PROT_WRITE,
        image.len(),
    )?;
    // Without the descriptor, other processes cannot open the file through `/proc`.
    call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
    request::set_general(copy, &regs).ok()?;
    let entry = setup.image.start + image.entry();
    let return_address = setup.image.start;
    let stack = setup.shared.start + shared_bytes as u64;
    shared.top().store(return_address, Ordering::Relaxed);
    setup.start = regs.entering(entry, setup.shared.start, stack, return_address);
    Some((shared, setup))
}

/// Sets a file's length and seals it. Otherwise another process could truncate the file, and this
/// process's accesses to its mapping would fail.
fn fix_length(file: &File, length: u64) -> Option<()> {
    // Exceeding the limit would raise SIGXFSZ.
    if length > max_file_bytes() {
        return None;
    }
    file.set_len(length).ok()?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the call takes no pointers.
    let status = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    // Another process may have changed the length before the file was sealed.
    (status == 0 && file.metadata().ok()?.len() == length).then_some(())
}

/// Returns the maximum size in bytes of a file that this process may create.
fn max_file_bytes() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// Creates an unnamed file in a copy, whose stack pointer is `sp`. Returns the file's descriptor.
fn create_memfd(copy: i32, sp: u64, call: &dyn Fn(i64, [u64; 6]) -> Option<u64>) -> Option<u64> {
    let mut saved = [0; 8];
    if request::read(copy, sp, &mut saved) < saved.len() {
        return None;
    }
    // The file's name: an empty string on the stack.
    request::write(copy, sp, &[0; 8]).ok()?;
    // Before Linux 6.3, `MFD_EXEC` does not exist and is not needed.
    let base = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let flags = [base | MFD_EXEC, base];
    let descriptor = flags
        .into_iter()
        .find_map(|flags| call(libc::SYS_memfd_create, [sp, flags.into(), 0, 0, 0, 0]));
    // The copy's memory must not change.
    request::write(copy, sp, &saved).ok()?;
    descriptor
}

/// Makes a system call in a copy. Returns `None` if it failed.
pub fn call(copy: i32, regs: &General) -> Option<u64> {
    request::set_general(copy, regs).ok()?;
    let mut is_in_call = false;
    loop {
        request::proceed_to_call(copy, 0).ok()?;
        match next_event(copy, copy, false, CALL_TIMEOUT).ok()? {
            Event::Call if is_in_call => break,
            Event::Call => is_in_call = true,
            Event::Exited | Event::NotTraced => return None,
            // Signals are dropped.
            _ => {}
        }
    }
    let result = request::general(copy).ok()??.result();
    u64::try_from(result).ok()
}

/// Runs the function in a copy, to its end.
fn work(copy: i32, setup: &Setup, shared: &Shared, limit: Duration) -> Result<(), Failure> {
    let ended = |_| Failure::Ended;
    request::set_general(copy, &setup.start).map_err(ended)?;
    let progress = || {
        shared
            .words()
            .first()
            .map(|word| word.load(Ordering::Relaxed))
    };
    let began = Instant::now();
    let mut last_progress = progress();
    let mut last_change = began;
    request::proceed(copy, 0).map_err(ended)?;
    loop {
        match request::poll(copy, false).map_err(ended)? {
            Some(Event::Signal(libc::SIGTRAP)) => return setup.check_return(copy),
            Some(Event::Signal(
                signal
                @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGSYS),
            )) => return Err(Failure::Signal(signal)),
            Some(Event::Exited | Event::NotTraced) => return Err(Failure::Ended),
            // Other signals are dropped.
            Some(_) => request::proceed(copy, 0).map_err(ended)?,
            // Checks become rarer the longer the work takes, since each check takes CPU time.
            None => sleep((began.elapsed() / 16).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)),
        }
        let current = progress();
        if current != last_progress {
            last_progress = current;
            last_change = Instant::now();
        }
        let exceeded = if began.elapsed() > limit {
            limit
        } else if last_change.elapsed() > PROGRESS_TIMEOUT {
            PROGRESS_TIMEOUT
        } else {
            continue;
        };
        request::interrupt(copy).map_err(ended)?;
        // Waits until the copy has stopped, whatever the event is.
        let _ = next_event(copy, copy, false, CALL_TIMEOUT);
        return Err(Failure::Deadline(exceeded));
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;

    /// Other processes may find the shared file and write to it, but they cannot truncate it.
    #[test]
    fn a_fixed_length_cannot_be_changed() {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a NUL-terminated string.
        let descriptor =
            unsafe { libc::syscall(libc::SYS_memfd_create, c"shared".as_ptr(), flags) };
        // SAFETY: the descriptor is new, so nothing else owns it.
        let file = unsafe { File::from_raw_fd(descriptor as i32) };
        assert_eq!(fix_length(&file, 1 << 20), Some(()));
        for length in [0, 1 << 30] {
            let error = file.set_len(length).expect_err("another length");
            assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        }
        // A file that is sealed already cannot be given another length.
        assert_eq!(fix_length(&file, 2 << 20), None);
    }
}
