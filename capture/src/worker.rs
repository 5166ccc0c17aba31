//! Work on the copy's memory, done in the copy.
//!
//! The kernel is slow at reading another process's memory, page by page. A copy belongs to nobody
//! else and runs nothing of its own, so it can be made to run a function of ours, on memory that
//! both share: this program's code is put into an unnamed file (memfd), which the copy maps.
//!
//! The target may have the right to write to its copy, and to kill it. So nothing that comes from
//! there is trusted: the shared words may hold anything, the file cannot be truncated while we use
//! it, and the work has a deadline.

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
use crate::patience::next_event;
use crate::request::{self, Event};
use crate::tracer::Tracer;

/// A function that a [`Worker`] runs. It gets the address of the shared words there, calls nothing
/// outside this program's file and uses none of its variables: no allocation, no output, no panic.
/// If it does so nevertheless, it fails, and no harm is done. The first of the words must change
/// now and then while it works.
pub type Work = unsafe extern "C" fn(words: *mut u64);

/// Why a copy did not do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// It has been run on x86-64 only.
    #[error("that is done on x86-64 only")]
    Processor,
    /// Our code could not be brought there.
    #[error(
        "our code could not be mapped there: a security module, vm.memfd_noexec, or a limit of its own (address space, open files) or of ours (size of files) forbids it"
    )]
    Unprepared,
    /// It has ended.
    #[error("it was killed meanwhile, for example for lack of memory")]
    Ended,
    /// It got this signal for what it did.
    #[error("it got signal {0} for what it read")]
    Signal(i32),
    /// It made no progress for so long, or was not done after it.
    #[error("it was not done within {0:?}")]
    Deadline(Duration),
}

/// For one system call, which maps some memory.
const LIMIT: Duration = Duration::from_secs(10);
/// As long as nothing changes, it is given up after this time.
const STANDSTILL: Duration = Duration::from_secs(30);
/// Between two looks at it.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(10);
const STACK: usize = 256 << 10;
const MFD_EXEC: libc::c_uint = 0x10;

/// Somebody in the copy who can be given work.
pub struct Worker {
    tracer: Arc<Tracer>,
    copy: i32,
    shared: Arc<Shared>,
    there: There,
}

/// How a copy does the work.
#[derive(Clone, Copy)]
struct There {
    /// The state in which it begins.
    start: General,
    /// The state in which it makes system calls.
    rest: General,
    code: Code,
    /// Our code, to whose beginning the work returns, and its length.
    image: (u64, usize),
    /// The shared memory.
    room: (u64, usize),
}

impl Worker {
    /// Prepares a copy for some work with this many shared words, which are zero.
    pub(crate) fn new(
        (tracer, copy, code): (&Arc<Tracer>, i32, Code),
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

    /// The shared words. The target, too, might find a way to change them, at any time.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        self.shared.words()
    }

    /// Does the work, unless it takes longer than `limit`. If it fails, do not try again.
    pub fn run(&self, limit: Duration) -> Result<(), Failure> {
        let (copy, there, shared) = (self.copy, self.there, Arc::clone(&self.shared));
        let work = move || {
            let done = work(copy, &there, (&shared, limit));
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
                // At the latest when the copy ends.
                let args = [start, bytes as u64, 0, 0, 0, 0];
                call(copy, &there.calling(libc::SYS_munmap, args));
            }
            let _ = request::set_general(copy, &there.rest);
        };
        self.tracer.run(leave);
    }
}

impl There {
    /// Whether the trap that a copy met is the one that the work returns to.
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

/// Memory that a copy has, too: words, then a stack.
struct Shared {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the memory is used through atomic words only, and unmapped by its one owner.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// For a file that is long enough, from `offset` on.
    fn map(file: &File, offset: usize, words: usize) -> Option<Self> {
        let start = map(file, offset, words * 8 + STACK)?.cast();
        Some(Self { start, words })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: a mapping of this many words and a stack, until this is dropped.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// The uppermost word of the stack.
    fn top(&self) -> &AtomicU64 {
        // SAFETY: the last word of the mapping.
        unsafe { self.start.add(self.words + STACK / 8 - 1).as_ref() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and used by nobody any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.words * 8 + STACK) };
    }
}

/// Maps part of a file, to be written.
fn map(file: &File, offset: usize, bytes: usize) -> Option<NonNull<c_void>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (file, offset) = (file.as_raw_fd(), offset as libc::off_t);
    // SAFETY: a new mapping, where the kernel finds room.
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

/// Maps this program's code and shared memory into a copy. Gives that memory, and the state in
/// which the function begins and the address that it returns to.
fn prepare(copy: i32, code: &Code, image: &Image, words: usize) -> Option<(Shared, There)> {
    let words = words.checked_next_multiple_of(PAGE / 8)?;
    let room = words.checked_mul(8)?.checked_add(STACK)?;
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
    // It cannot be found there from now on.
    call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0])?;
    request::set_general(copy, &regs).ok()?;
    let (entry, back) = (there.image.0 + image.entry(), there.image.0);
    let stack = there.room.0 + room as u64;
    shared.top().store(back, Ordering::Relaxed);
    there.start = regs.entering(entry, there.room.0, stack, back);
    Some((shared, there))
}

/// Gives a file a length that nobody can change any more; otherwise our mapping could become
/// invalid.
fn fix_length(file: &File, length: u64) -> Option<()> {
    // Beyond the limit we would get a signal.
    (length <= longest_file()).then(|| file.set_len(length).ok())??;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: takes numbers only.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    // Somebody else might have changed it before.
    (sealed == 0 && file.metadata().ok()?.len() == length).then_some(())
}

/// How long a file this process may make.
fn longest_file() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills the two numbers.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// Makes a file without a name in a copy, whose stack is at `sp`; its descriptor.
fn nameless(copy: i32, sp: u64, call: &dyn Fn(i64, [u64; 6]) -> Option<u64>) -> Option<u64> {
    let mut saved = [0; 8];
    if request::read(copy, sp, &mut saved) < saved.len() {
        return None;
    }
    request::write(copy, sp, &[0; 8]).ok()?;
    // Before Linux 6.3 there is no such flag, and no need for it.
    let usual = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let flags = [usual | MFD_EXEC, usual];
    let made = flags
        .into_iter()
        .find_map(|flags| call(libc::SYS_memfd_create, [sp, flags.into(), 0, 0, 0, 0]));
    // The memory is to stay as it was.
    request::write(copy, sp, &saved).ok()?;
    made
}

/// A system call of a copy; `None` if it failed.
pub fn call(copy: i32, regs: &General) -> Option<u64> {
    request::set_general(copy, regs).ok()?;
    let mut inside = false;
    loop {
        request::proceed_to_call(copy, 0).ok()?;
        match next_event(copy, copy, false, LIMIT).ok()? {
            Event::Call if inside => break,
            Event::Call => inside = true,
            Event::End | Event::None => return None,
            // Signals are not for it.
            _ => {}
        }
    }
    let result = request::general(copy).ok()??.result();
    u64::try_from(result).ok()
}

/// Makes a copy do the work, to its end.
fn work(copy: i32, there: &There, (shared, limit): (&Shared, Duration)) -> Result<(), Failure> {
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
            // Other signals are not for it.
            Some(_) => request::proceed(copy, 0).map_err(ended)?,
            // Looked at rather often while it is short, and seldom later: that takes time, too.
            None => sleep((began.elapsed() / 16).clamp(SHORTEST, LONGEST)),
        }
        if progress() != last.0 {
            last = (progress(), Instant::now());
        }
        let late = [(began, limit), (last.1, STANDSTILL)];
        if let Some((_, limit)) = late.into_iter().find(|(from, most)| from.elapsed() > *most) {
            request::interrupt(copy).map_err(ended)?;
            // What it does then is nothing to us, but it is to rest.
            let _ = next_event(copy, copy, false, LIMIT);
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
