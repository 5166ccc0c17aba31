//! Work on the copy's memory, done by the copy itself.
//!
//! The kernel is slow at reading another process's memory, page by page. A copy belongs to nobody
//! else and runs nothing of its own, so it can run a function of this program on memory that both
//! share: this program's code is written to an unnamed file (memfd), which the copy maps.
//!
//! The target may have the right to write to its copy, and to kill it. So nothing that comes from
//! there is trusted: the shared words may hold anything, the file cannot be truncated while it is
//! in use, and the work has a deadline.

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
use crate::code::Code;
use crate::image::{Image, PAGE};
use crate::request::{self, Event};
use crate::tracer::Tracer;
use crate::waiter::next_event;

/// Function that a [`Worker`] runs. It gets the address of the shared words. It must call nothing
/// outside this program's file and use none of its variables: no allocation, no output, no panic.
/// If it does so nevertheless, it fails, and no harm is done. It must change the first word now and
/// then while it works.
pub type Work = unsafe extern "C" fn(words: *mut u64);

/// Reason why a copy did not do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Not supported on this machine, since it has been run on x86-64 only.
    #[error("that is done on x86-64 only")]
    Processor,
    /// Code could not be mapped into the copy.
    #[error(
        "our code could not be mapped there: a security module, vm.memfd_noexec or a limit (ulimit -v, -n, -f) forbids it"
    )]
    Unprepared,
    /// Copy has ended.
    #[error("it was killed meanwhile, for example for lack of memory")]
    Ended,
    /// Copy received this signal because of what it did.
    #[error("it got signal {0} for what it read")]
    Signal(i32),
    /// No progress for this long, or not done after it.
    #[error("it was not done within {0:?}")]
    Deadline(Duration),
}

/// Maximum time of one system call, which maps some memory.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time without progress, after which the work is given up.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
/// Minimum and maximum interval between two checks of the copy.
const MIN_CHECK_INTERVAL: Duration = Duration::from_micros(50);
const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(10);
const STACK_BYTES: usize = 256 << 10;
const MFD_EXEC: libc::c_uint = 0x10;

/// Copy that is ready to do work.
pub struct Worker {
    tracer: Arc<Tracer>,
    copy: i32,
    shared: Arc<Shared>,
    there: There,
}

/// Registers and memory with which the copy does the work.
#[derive(Clone, Copy)]
struct There {
    /// Registers with which the function starts.
    start: General,
    /// Registers with which it makes system calls.
    rest: General,
    code: Code,
    /// Address and length of the mapped code, to whose start the function returns.
    image: (u64, usize),
    /// Address and length of the shared memory.
    room: (u64, usize),
}

impl Worker {
    /// Prepares a copy for work with this many shared words, which are zero.
    pub(crate) fn new(
        tracer: &Arc<Tracer>,
        copy: i32,
        code: Code,
        work: Work,
        words: usize,
    ) -> Result<Self, Failure> {
        if !cfg!(target_arch = "x86_64") {
            return Err(Failure::Processor);
        }
        let image = Image::of(work as usize as u64).ok_or(Failure::Unprepared)?;
        let prepare = move || prepare(copy, &code, &image, words);
        let prepared = tracer.run(prepare).flatten();
        let (shared, there) = prepared.ok_or(Failure::Unprepared)?;
        Ok(Self {
            tracer: Arc::clone(tracer),
            copy,
            shared: Arc::new(shared),
            there,
        })
    }

    /// Returns the shared words. The target might find a way to change them at any time.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        self.shared.words()
    }

    /// Does the work, unless it takes longer than `limit`. Must not be called again after a
    /// failure.
    pub fn run(&self, limit: Duration) -> Result<(), Failure> {
        let (copy, there, shared) = (self.copy, self.there, Arc::clone(&self.shared));
        let work = move || {
            let done = work(copy, &there, &shared, limit);
            let rests = request::set_general(copy, &there.rest);
            done.and(rests.map_err(|_| Failure::Ended))
        };
        self.tracer.run(work).unwrap_or(Err(Failure::Ended))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let (copy, there) = (self.copy, self.there);
        let leave = move || {
            for (start, bytes) in [there.image, there.room] {
                // Unmapped at the latest when the copy ends.
                let args = [start, bytes as u64, 0, 0, 0, 0];
                call(copy, &there.calling(libc::SYS_munmap, args));
            }
            let _ = request::set_general(copy, &there.rest);
        };
        self.tracer.run(leave);
    }
}

impl There {
    /// Checks that the copy trapped where the function returns to.
    fn has_returned(&self, copy: i32) -> Result<(), Failure> {
        let regs = request::general(copy).ok().flatten();
        let pc = regs.ok_or(Failure::Ended)?.pc();
        let is_back = pc.wrapping_sub(self.image.0) <= arch::TRAP_CODE.len() as u64;
        is_back.then_some(()).ok_or(Failure::Signal(libc::SIGTRAP))
    }

    fn calling(&self, number: i64, args: [u64; 6]) -> General {
        self.rest.calling(&self.code, number, args, self.rest.sp())
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
    /// Maps a file that is long enough, from `offset` on.
    fn map(file: &File, offset: usize, words: usize) -> Option<Self> {
        let start = map(file, offset, words * 8 + STACK_BYTES)?.cast();
        Some(Self { start, words })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this many words, and a stack, until this is dropped.
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
    let (file, offset) = (file.as_raw_fd(), offset as libc::off_t);
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

/// Maps this program's code and shared memory into a copy. Returns that memory, and what is needed
/// to start the function.
fn prepare(copy: i32, code: &Code, image: &Image, words: usize) -> Option<(Shared, There)> {
    let words = words.checked_next_multiple_of(PAGE / 8)?;
    let room = words.checked_mul(8)?.checked_add(STACK_BYTES)?;
    let length = image.len().checked_add(room)?;
    let regs = request::general(copy).ok()??;
    let mut there = There {
        start: regs,
        rest: regs,
        code: *code,
        image: (0, image.len()),
        room: (0, room),
    };
    let resting = there;
    let call = |number, args| call(copy, &resting.calling(number, args));
    let descriptor = nameless(copy, regs.sp(), &call)?;
    let path = format!("/proc/{copy}/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(path).ok()?;
    fix_length(&file, length as u64)?;
    let shared = Shared::map(&file, image.len(), words)?;
    image.write(&file).ok()?;
    let mapped = |bytes: usize, access: i32, offset: usize| {
        let (flags, bytes) = (libc::MAP_SHARED as u64, bytes as u64);
        let args = [0, bytes, access as u64, flags, descriptor, offset as u64];
        call(libc::SYS_mmap, args)
    };
    there.image.0 = mapped(image.len(), libc::PROT_READ | libc::PROT_EXEC, 0)?;
    there.room.0 = mapped(room, libc::PROT_READ | libc::PROT_WRITE, image.len())?;
    // Without the descriptor, the copy's file cannot be opened by others.
    call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
    request::set_general(copy, &regs).ok()?;
    let (entry, back) = (there.image.0 + image.entry(), there.image.0);
    let stack = there.room.0 + room as u64;
    shared.top().store(back, Ordering::Relaxed);
    there.start = regs.entering(entry, there.room.0, stack, back);
    Some((shared, there))
}

/// Sets a file's length and seals it. Otherwise the mapping in this process could become invalid.
fn fix_length(file: &File, length: u64) -> Option<()> {
    // Beyond the limit, this process would get a signal.
    (length <= longest_file()).then(|| file.set_len(length).ok())??;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: the call takes no pointers.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    // Another process might have changed the length before the seal.
    (sealed == 0 && file.metadata().ok()?.len() == length).then_some(())
}

/// Returns the maximum size in bytes of a file that this process may create.
fn longest_file() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is writable.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// Creates an unnamed file in a copy, whose stack is at `sp`. Returns its descriptor.
fn nameless(copy: i32, sp: u64, call: &dyn Fn(i64, [u64; 6]) -> Option<u64>) -> Option<u64> {
    let mut saved = [0; 8];
    if request::read(copy, sp, &mut saved) < saved.len() {
        return None;
    }
    request::write(copy, sp, &[0; 8]).ok()?;
    // Before Linux 6.3 the flag does not exist and is not needed.
    let usual = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let flags = [usual | MFD_EXEC, usual];
    let made = flags
        .into_iter()
        .find_map(|flags| call(libc::SYS_memfd_create, [sp, flags.into(), 0, 0, 0, 0]));
    // The copy's memory must not change.
    request::write(copy, sp, &saved).ok()?;
    made
}

/// Makes a system call in a copy. Returns `None` if it failed.
pub fn call(copy: i32, regs: &General) -> Option<u64> {
    request::set_general(copy, regs).ok()?;
    let mut inside = false;
    loop {
        request::proceed_to_call(copy, 0).ok()?;
        match next_event(copy, copy, false, CALL_TIMEOUT).ok()? {
            Event::Call if inside => break,
            Event::Call => inside = true,
            Event::End | Event::None => return None,
            // Signals are suppressed.
            _ => {}
        }
    }
    let result = request::general(copy).ok()??.result();
    u64::try_from(result).ok()
}

/// Runs the function in a copy, to its end.
fn work(copy: i32, there: &There, shared: &Shared, limit: Duration) -> Result<(), Failure> {
    let ended = |_| Failure::Ended;
    request::set_general(copy, &there.start).map_err(ended)?;
    let progress = || {
        shared
            .words()
            .first()
            .map(|word| word.load(Ordering::Relaxed))
    };
    let began = Instant::now();
    let mut last = (progress(), began);
    request::proceed(copy, 0).map_err(ended)?;
    loop {
        match request::poll(copy, false).map_err(ended)? {
            Some(Event::Signal(libc::SIGTRAP)) => return there.has_returned(copy),
            Some(Event::Signal(
                signal
                @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGSYS),
            )) => return Err(Failure::Signal(signal)),
            Some(Event::End | Event::None) => return Err(Failure::Ended),
            // Other signals are suppressed.
            Some(_) => request::proceed(copy, 0).map_err(ended)?,
            // Checked often while it is short, and seldom later, since a check takes time too.
            None => sleep((began.elapsed() / 16).clamp(MIN_CHECK_INTERVAL, MAX_CHECK_INTERVAL)),
        }
        if progress() != last.0 {
            last = (progress(), Instant::now());
        }
        let late = [(began, limit), (last.1, PROGRESS_TIMEOUT)];
        if let Some((_, limit)) = late.into_iter().find(|(from, most)| from.elapsed() > *most) {
            request::interrupt(copy).map_err(ended)?;
            // The result does not matter, but the copy must be stopped.
            let _ = next_event(copy, copy, false, CALL_TIMEOUT);
            return Err(Failure::Deadline(limit));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::FromRawFd;

    use super::*;

    /// Whoever finds the shared file may write to it. He cannot take it away from under us.
    #[test]
    fn a_fixed_length_cannot_be_changed() {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: makes a descriptor, which is nobody else's.
        let file = unsafe { libc::syscall(libc::SYS_memfd_create, c"shared".as_ptr(), flags) };
        // SAFETY: that one.
        let file = unsafe { File::from_raw_fd(file as i32) };
        assert_eq!(fix_length(&file, 1 << 20), Some(()));
        for length in [0, 1 << 30] {
            let refused = file.set_len(length).expect_err("another length");
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        }
        // One that somebody else had fixed is not changed either.
        assert_eq!(fix_length(&file, 2 << 20), None);
    }
}
