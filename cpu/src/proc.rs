//! What `/proc` says of processes and threads. They may end between two reads, so any question may
//! have no answer.
//!
//! A process is gone only if the kernel says so: a file that cannot be opened because descriptors
//! have run out says nothing about it. [`reserve_files`] keeps some descriptors for these reads.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, PoisonError};

/// How many bytes of `/proc/PID/maps` are read: enough for a million mappings.
const MOST_MAPS: u64 = 128 << 20;
pub(crate) const MOST_BYTES: u64 = 1 << 16;

/// Descriptors that files which are kept open leave to others.
const LEFT: u64 = 32;

/// Descriptors for reads that would fail without.
static RESERVE: Mutex<Vec<File>> = Mutex::new(Vec::new());

/// Keeps this many descriptors for reads of `/proc`, while something else takes all that it can
/// get; 0 releases them.
pub fn reserve_files(count: usize) {
    let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
    reserve.clear();
    let files = (0..count).map_while(|_| File::open("/dev/null").ok());
    reserve.extend(files);
}

/// Does a read that keeps no file open, if need be with a descriptor of the reserve.
fn with_room<T>(read: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match read() {
        Err(error) if is_full(&error) => {
            let mut reserve = RESERVE.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(spare) = reserve.pop() else {
                return Err(error);
            };
            drop(spare);
            let again = read();
            reserve.extend(File::open("/dev/null"));
            again
        }
        done => done,
    }
}

/// Whether an error says that there is no such process or thread.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// Whether an error says that no more files can be opened.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

pub(crate) fn try_read(path: &str, most: u64) -> io::Result<Vec<u8>> {
    with_room(|| {
        let mut bytes = Vec::new();
        File::open(path)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    })
}

fn read(path: &str, most: u64) -> Option<Vec<u8>> {
    try_read(path, most).ok()
}

/// A small file of `/proc` that is read again and again. It is kept open as long as enough
/// descriptors are left, and opened for each read otherwise.
pub(crate) struct Reread {
    path: String,
    kept: Option<File>,
}

impl Reread {
    pub fn new(path: String) -> io::Result<Self> {
        let file = with_room(|| File::open(&path))?;
        // The kernel gives the lowest number that is free.
        let number = u64::try_from(file.as_raw_fd()).unwrap_or(u64::MAX);
        let fits = file_limit().is_some_and(|limit| number.saturating_add(LEFT) < limit.rlim_cur);
        let kept = fits.then_some(file);
        Ok(Self { path, kept })
    }

    /// Its text, as far as there is room for it.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.kept {
            Some(file) => file.read_at(buffer, 0),
            None => {
                // Borrowed again for each attempt, of which the last one counts.
                let buffer = std::cell::RefCell::new(buffer);
                with_room(|| File::open(&self.path)?.read_at(&mut buffer.borrow_mut(), 0))
            }
        }
    }
}

/// The text of a process's maps.
pub fn maps(pid: i32) -> Option<Vec<u8>> {
    let of = |pid| read(&format!("/proc/{pid}/maps"), MOST_MAPS);
    let text = of(pid)?;
    // This is the case if the first thread has ended, but others continue.
    if text.is_empty() {
        return of(capture::living_thread(pid));
    }
    Some(text)
}

/// The threads of a process; none if it is gone.
pub fn threads(pid: i32) -> Vec<i32> {
    try_threads(pid).unwrap_or_default()
}

/// The threads of a process, or why they are not known.
pub(crate) fn try_threads(pid: i32) -> io::Result<Vec<i32>> {
    let entries = with_room(|| {
        let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
        Ok(entries.flatten().collect::<Vec<_>>())
    })?;
    let names = entries.into_iter().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect())
}

/// What distinguishes the programs that a process executes one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// When the process began, in ticks since boot: distinguishes processes with the same pid.
    pub start: u64,
    /// Device and inode of the executable.
    pub exe: (u64, u64),
    /// Where its code and its first stack are: new with each execution, also of the same file.
    pub addresses: (u64, u64),
}

/// The program that a process runs now; `None`: it is not known, or there is no process.
pub fn program(pid: i32) -> Option<Program> {
    let shown = capture::living_thread(pid);
    let (first, stat) = (stat(pid).ok()?, stat(shown).ok()?);
    let of = |stat, at| field(stat, at)?.parse().ok();
    let number = |at| of(&stat, at);
    Some(Program {
        exe: executable(pid)?,
        // Threads begin later than their process.
        start: of(&first, 22)?,
        addresses: (number(26)?, number(28)?),
    })
}

/// Device and inode of a process's executable.
pub(crate) fn executable(pid: i32) -> Option<(u64, u64)> {
    let of = |pid| fs::metadata(format!("/proc/{pid}/exe"));
    let meta = of(pid).or_else(|error| match is_gone(&error) {
        true => of(capture::living_thread(pid)),
        false => Err(error),
    });
    let meta = meta.ok()?;
    Some((meta.dev(), meta.ino()))
}

fn stat(pid: i32) -> io::Result<Vec<u8>> {
    try_read(&format!("/proc/{pid}/stat"), MOST_BYTES)
}

/// A field of a `stat`, numbered from 1 as in proc(5); from the third on.
fn field(stat: &[u8], number: usize) -> Option<&str> {
    // The name, which is the second, may contain anything.
    let name = stat.iter().rposition(|b| *b == b')')?;
    let rest = std::str::from_utf8(stat.get(name + 1..)?).ok()?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

/// Whether it is a thread of the kernel, which has no memory of its own.
pub(crate) fn is_of_kernel(pid: i32) -> bool {
    const KTHREAD: u64 = 0x0020_0000;
    let flags = stat(pid).ok();
    let flags = flags.and_then(|stat| field(&stat, 9)?.parse::<u64>().ok());
    flags.is_some_and(|flags| flags & KTHREAD != 0)
}

/// The name of a thread.
pub fn thread_name(pid: i32, tid: i32) -> Option<Vec<u8>> {
    let text = read(&format!("/proc/{pid}/task/{tid}/comm"), MOST_BYTES)?;
    Some(text.strip_suffix(b"\n").unwrap_or(&text).to_vec())
}

/// The function of the kernel that a thread sleeps in, where that may be known.
pub fn wchan(pid: i32, tid: i32) -> Option<String> {
    let text = read(&format!("/proc/{pid}/task/{tid}/wchan"), MOST_BYTES)?;
    String::from_utf8(text).ok().filter(|name| name != "0")
}

/// All processes with their parents.
pub fn parents() -> Vec<(i32, i32)> {
    let entries = with_room(|| Ok(fs::read_dir("/proc")?.flatten().collect::<Vec<_>>()));
    let parent = |pid: i32| Some((pid, field(&stat(pid).ok()?, 4)?.parse().ok()?));
    let pids = entries.unwrap_or_default().into_iter();
    pids.filter_map(|entry| parent(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// Whether a process has ended, even if its parent has not waited for it yet. One that cannot be
/// read for another reason counts as running.
pub fn is_over(pid: i32) -> bool {
    match stat(pid) {
        Err(error) => is_gone(&error),
        // A first thread that has ended before the others looks the same.
        Ok(text) => {
            matches!(field(&text, 3), Some("Z" | "X" | "x"))
                && match try_threads(pid) {
                    Ok(threads) => threads.len() < 2,
                    Err(error) => is_gone(&error),
                }
        }
    }
}

/// Whether a process is exiting (`PF_EXITING`), or has ended, with all of its threads.
pub fn is_ending(pid: i32) -> bool {
    const EXITING: u64 = 4;
    let flags = |text: &[u8]| field(text, 9).and_then(|flags| flags.parse::<u64>().ok());
    let first_is = stat(pid).is_ok_and(|text| flags(&text).is_some_and(|f| f & EXITING != 0));
    first_is && try_threads(pid).is_ok_and(|threads| threads.len() < 2) || is_over(pid)
}

/// Whether a process is stopped, by a signal or by who traces it.
pub fn is_stopped(pid: i32) -> bool {
    stat(pid).is_ok_and(|text| matches!(field(&text, 3), Some("T" | "t")))
}

/// CPU time that a process has used in all its threads, also in those that have ended.
pub fn cpu_ns(pid: i32) -> Option<u64> {
    // A clock's number has 29 bits for the process. What exceeds them would name another one.
    if !(1..1 << 28).contains(&pid) {
        return None;
    }
    let mut clock: libc::clockid_t = 0;
    // SAFETY: all zero is a valid timespec.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: both calls write to locals of the type that they expect.
    let known = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let ns = u64::try_from(time.tv_nsec).ok()?;
    known.then_some(seconds.checked_mul(1_000_000_000)?.checked_add(ns)?)
}

/// CPU time that a thread has used, as far as the kernel has counted it: to its last turn or tick.
/// A kernel that keeps no such clock reports 0.
pub fn thread_ns(pid: i32, tid: i32) -> Option<u64> {
    first_number(&read(
        &format!("/proc/{pid}/task/{tid}/schedstat"),
        MOST_BYTES,
    )?)
}

/// The first number of a text such as `schedstat`, where it is a thread's CPU time.
pub(crate) fn first_number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// How many files a process may open.
#[derive(Clone, Copy)]
pub struct FileLimit(libc::rlimit);

impl FileLimit {
    /// Gives a process that this one has started the limit that it would have had.
    pub fn restore(self, pid: i32) {
        // SAFETY: a struct of ours is read; a failure leaves the process its higher limit.
        unsafe {
            libc::prlimit(
                pid,
                libc::RLIMIT_NOFILE,
                &raw const self.0,
                std::ptr::null_mut(),
            );
        }
    }
}

fn file_limit() -> Option<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call takes a struct of ours.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (read == 0).then_some(limit)
}

/// Allows this process, and what it starts from then on, to open as many files as it may. The limit
/// that there was, if it was changed.
pub fn allow_files() -> Option<FileLimit> {
    let before = file_limit().filter(|limit| limit.rlim_cur < limit.rlim_max)?;
    let all = libc::rlimit {
        rlim_cur: before.rlim_max,
        ..before
    };
    // SAFETY: the call takes a struct of ours; a failure leaves the limit as it is.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const all) };
    (set == 0).then_some(FileLimit(before))
}

/// The processors that are switched on.
pub fn processors() -> Vec<u32> {
    let text = read("/sys/devices/system/cpu/online", MOST_BYTES).unwrap_or_default();
    let online = list(String::from_utf8_lossy(&text).trim());
    if online.is_empty() {
        // SAFETY: no pointer is passed.
        let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        return (0..u32::try_from(count).unwrap_or(1).max(1)).collect();
    }
    online
}

/// A list as the kernel writes it: `0-3,8`.
fn list(text: &str) -> Vec<u32> {
    const MOST: u32 = 1 << 14;
    let part = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (last < MOST).then_some(first..=last)
    };
    text.split(',').filter_map(part).flatten().collect()
}

/// A number in a file of `/proc/sys/kernel`.
pub fn setting(name: &str) -> Option<i64> {
    let text = read(&format!("/proc/sys/kernel/{name}"), MOST_BYTES)?;
    String::from_utf8_lossy(&text).trim().parse().ok()
}

/// Whether this process may lock any amount of memory (`CAP_IPC_LOCK`).
pub(crate) fn may_lock() -> bool {
    read("/proc/self/status", MOST_BYTES).is_some_and(|status| locks(&status))
}

fn locks(status: &[u8]) -> bool {
    const IPC_LOCK: u32 = 14;
    let status = String::from_utf8_lossy(status);
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    effective.is_some_and(|bits| bits >> IPC_LOCK & 1 == 1)
}

/// Bytes of the machine's memory.
pub(crate) fn memory() -> usize {
    let known = |name| {
        // SAFETY: no pointer is passed.
        usize::try_from(unsafe { libc::sysconf(name) }).unwrap_or(0)
    };
    known(libc::_SC_PHYS_PAGES).saturating_mul(known(libc::_SC_PAGESIZE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_as_the_kernel_writes_them() {
        assert!(locks(b"Name:\tx\nCapEff:\t000001ffffffffff\nSeccomp:\t0\n"));
        assert!(locks(b"CapEff:\t0000000000004000\n"));
        assert!(!locks(
            b"CapPrm:\t0000000000004000\nCapEff:\t0000000000000000\n"
        ));
        assert!(!locks(b"CapEff:\tmany\n") && !locks(b""));
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(list("0-2,5,7-8"), [0, 1, 2, 5, 7, 8]);
        assert_eq!(list("0"), [0]);
        assert!(list("").is_empty() && list("x-3,4-").is_empty() && list("0-99999999").is_empty());
    }

    #[test]
    fn own_process_reads() {
        let pid = std::process::id() as i32;
        assert!(!processors().is_empty());
        assert!(threads(pid).contains(&pid));
        assert!(cpu_ns(pid).is_some_and(|ns| ns > 0));
        assert!(!is_over(pid) && is_over(i32::MAX));
        assert!(maps(i32::MAX).is_none() && threads(i32::MAX).is_empty());
        for none in [i32::MAX, 1 << 28, 0, -1] {
            assert_eq!(cpu_ns(none), None, "{none}");
        }
    }

    #[test]
    fn names_of_processes_do_not_move_the_fields() {
        let stat = b"7 (a) R 9 (b)) S 1 2 3 4 5 6\n";
        assert_eq!(field(stat, 3), Some("S"));
        assert_eq!(field(stat, 4), Some("1"));
        assert_eq!(field(stat, 9), Some("6"));
        assert_eq!(field(stat, 10), None);
        assert_eq!(field(b"", 3), None);
    }

    #[test]
    fn only_what_the_kernel_calls_gone_is_gone() {
        let error = io::Error::from_raw_os_error;
        for number in [libc::ENOENT, libc::ESRCH] {
            assert!(is_gone(&error(number)) && !is_full(&error(number)));
        }
        for number in [libc::EMFILE, libc::ENFILE] {
            assert!(!is_gone(&error(number)) && is_full(&error(number)));
        }
        assert!(!is_gone(&error(libc::EACCES)) && !is_full(&error(libc::EACCES)));
    }

    #[test]
    fn the_reserve_lets_a_read_succeed_that_found_no_room() {
        use std::cell::Cell;
        let attempts = Cell::new(0);
        let second = || {
            attempts.set(attempts.get() + 1);
            match attempts.get() % 2 {
                1 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
                _ => Ok(()),
            }
        };
        reserve_files(1);
        assert!(with_room(second).is_ok() && with_room(second).is_ok());
        assert_eq!(attempts.get(), 4);
        reserve_files(0);
        assert!(with_room(second).is_err());
    }

    #[test]
    fn an_execution_changes_the_program() {
        use std::process::Command;
        let pid = std::process::id() as i32;
        let own = program(pid).expect("its own program");
        assert_eq!(program(pid), Some(own));
        assert_eq!(executable(pid), Some(own.exe));
        let mut other = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let of_other = program(other.id() as i32);
        other.kill().expect("a child");
        other.wait().expect("a child");
        assert!(of_other.is_some() && of_other != Some(own));
        assert_eq!(program(i32::MAX), None);
    }

    #[test]
    fn files_are_read_again_with_and_without_being_kept() {
        let file = Reread::new("/proc/self/stat".to_owned()).expect("a file");
        let unkept = Reread {
            path: file.path.clone(),
            kept: None,
        };
        let mut text = [0; 512];
        for file in [&file, &file, &unkept, &unkept] {
            assert!(file.read(&mut text).is_ok_and(|read| read > 0));
        }
        let error = Reread::new("/proc/self/none".to_owned()).err();
        assert!(error.is_some_and(|error| is_gone(&error)));
    }
}
