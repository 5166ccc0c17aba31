//! Threads of a process.

use std::fs;
use std::io;

use crate::files::{file, with_reserve};
use crate::status::Status;

/// Maximum number of threads that are examined to find a live one.
const MAX_EXAMINED: usize = 1024;

/// Returns a tid whose `/proc/TID` shows the process's memory, files and root: the pid itself or,
/// if the main thread has exited before the others (`pthread_exit` in `main`), the tid of a live
/// thread. Returns the pid if there is none. `/proc/TID` exists for each thread, though it is not
/// listed.
#[must_use]
pub fn living_thread(pid: i32) -> i32 {
    let is_live = |tid: &i32| Status::of_thread(pid, *tid).is_some_and(|status| !status.is_dead());
    if is_live(&pid) {
        return pid;
    }
    let others = threads(pid).into_iter().filter(|tid| *tid != pid);
    others.take(MAX_EXAMINED).find(is_live).unwrap_or(pid)
}

/// Returns a live thread other than the main thread, if the main thread has exited.
pub(crate) fn other_thread(pid: i32) -> Option<i32> {
    let tid = living_thread(pid);
    (tid != pid).then_some(tid)
}

/// Returns the tids of a process's threads; empty if the process is gone or cannot be read.
pub fn threads(pid: i32) -> Vec<i32> {
    try_threads(pid).unwrap_or_default()
}

/// Returns the tids of a process's threads, or the error with which listing them failed.
pub fn try_threads(pid: i32) -> io::Result<Vec<i32>> {
    let entries = with_reserve(|| {
        let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
        Ok(entries.flatten().collect::<Vec<_>>())
    })?;
    let names = entries.into_iter().map(|entry| entry.file_name());
    Ok(names
        .filter_map(|name| name.to_str()?.parse().ok())
        .collect())
}

/// Returns the name of a thread.
pub fn thread_name(pid: i32, tid: i32) -> Option<Vec<u8>> {
    let mut text = file(pid, &format!("task/{tid}/comm"))?;
    text.pop_if(|last| *last == b'\n');
    Some(text)
}

/// Returns the kernel function in which a thread sleeps, if it sleeps and we may see that.
pub fn wchan(pid: i32, tid: i32) -> Option<String> {
    let text = file(pid, &format!("task/{tid}/wchan"))?;
    String::from_utf8(text).ok().filter(|name| name != "0")
}

/// Returns a thread's CPU time in nanoseconds, up to its last context switch or timer tick; 0 if
/// the kernel keeps no scheduler statistics.
pub fn thread_ns(pid: i32, tid: i32) -> Option<u64> {
    first_number(&file(pid, &format!("task/{tid}/schedstat"))?)
}

/// Parses the first number of a file such as `schedstat`, where it is a thread's CPU time.
pub fn first_number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}
