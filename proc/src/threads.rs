//! Threads of a process.

use std::fs;
use std::io;

use crate::files::{file, with_room};
use crate::status::Status;

/// Maximum number of threads that are examined for one that lives.
const MAX_EXAMINED: usize = 1024;

/// A number by which the kernel knows a process's memory, files and root: the process's own, or
/// that of another thread if the first one has ended before the others (`pthread_exit` in `main`)
/// and has released them. `/proc` has a directory for each thread, though it lists only processes.
#[must_use]
pub fn living_thread(pid: i32) -> i32 {
    let lives = |tid: &i32| Status::of_thread(pid, *tid).is_some_and(|status| !status.is_dead());
    if lives(&pid) {
        return pid;
    }
    let others = threads(pid).into_iter().filter(|tid| *tid != pid);
    others.take(MAX_EXAMINED).find(lives).unwrap_or(pid)
}

/// A thread that lives, where the first one does not.
pub(crate) fn other_thread(pid: i32) -> Option<i32> {
    Some(living_thread(pid)).filter(|tid| *tid != pid)
}

/// The threads of a process; none if it is gone.
pub fn threads(pid: i32) -> Vec<i32> {
    try_threads(pid).unwrap_or_default()
}

/// The threads of a process, or why they are not known.
pub fn try_threads(pid: i32) -> io::Result<Vec<i32>> {
    let entries = with_room(|| {
        let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
        Ok(entries.flatten().collect::<Vec<_>>())
    })?;
    let names = entries.into_iter().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect())
}

/// The name of a thread.
pub fn thread_name(pid: i32, tid: i32) -> Option<Vec<u8>> {
    let mut text = file(pid, &format!("task/{tid}/comm"))?;
    text.pop_if(|last| *last == b'\n');
    Some(text)
}

/// The function of the kernel that a thread sleeps in, where that may be known.
pub fn wchan(pid: i32, tid: i32) -> Option<String> {
    let text = file(pid, &format!("task/{tid}/wchan"))?;
    String::from_utf8(text).ok().filter(|name| name != "0")
}

/// CPU time that a thread has used, as far as the kernel has counted it: to its last turn or tick.
/// A kernel that keeps no such clock reports 0.
pub fn thread_ns(pid: i32, tid: i32) -> Option<u64> {
    first_number(&file(pid, &format!("task/{tid}/schedstat"))?)
}

/// The first number of a text such as `schedstat`, where it is a thread's CPU time.
pub fn first_number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}
