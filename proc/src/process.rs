//! Facts about one process.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::files::{MAX_FILE_BYTES, MAX_MAPS_BYTES, bounded, file, is_gone, with_reserve};
use crate::stat::{Addresses, PF_EXITING, PF_FORKNOEXEC, PF_KTHREAD, Stat, page_bytes};
use crate::status::{Status, status_field};
use crate::threads::{living_thread, other_thread, threads, try_threads};

/// Identity of the program that a process runs. Each exec changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Start time of the process, in ticks since boot. Distinguishes processes with the same pid.
    pub start: u64,
    /// Device and inode of the executable.
    pub exe: (u64, u64),
    /// Addresses of the code and of the main thread's stack. They are randomized at each exec, even
    /// of the same file.
    pub addresses: Addresses,
}

/// Returns the program that a process currently runs; `None` if it is unknown or there is no such
/// process.
pub fn program(pid: i32) -> Option<Program> {
    let stat = Stat::of(pid)?;
    Some(Program {
        exe: executable(pid)?,
        start: stat.start_time,
        addresses: stat.addresses,
    })
}

/// Returns the device and inode of a process's executable.
pub fn executable(pid: i32) -> Option<(u64, u64)> {
    let metadata_of = |tid| fs::metadata(format!("/proc/{tid}/exe"));
    let metadata = match metadata_of(pid) {
        Err(error) if is_gone(&error) => metadata_of(living_thread(pid)).ok()?,
        result => result.ok()?,
    };
    Some((metadata.dev(), metadata.ino()))
}

/// Returns true for a kernel thread, which has no memory of its own.
pub fn is_kernel_thread(pid: i32) -> bool {
    Stat::read(pid).is_ok_and(|stat| stat.flags & PF_KTHREAD != 0)
}

/// Returns true for a forked process that has not executed a program since.
pub fn is_forked(pid: i32) -> bool {
    Stat::read(pid).is_ok_and(|stat| stat.flags & PF_FORKNOEXEC != 0)
}

/// Returns the pid of each visible process with that of its parent.
pub fn parents() -> Vec<(i32, i32)> {
    let with_parent = |pid: i32| Some((pid, Stat::read(pid).ok()?.parent));
    all_pids().into_iter().filter_map(with_parent).collect()
}

/// Returns the pids of all visible processes.
pub fn all_pids() -> Vec<i32> {
    let entries = with_reserve(|| Ok(fs::read_dir("/proc")?.flatten().collect::<Vec<_>>()));
    entries
        .unwrap_or_default()
        .into_iter()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// Returns true if a process has exited, even if its parent has not reaped it yet. A process that
/// exists but cannot be read counts as running.
pub fn has_exited(pid: i32) -> bool {
    match Stat::read(pid) {
        Err(error) => is_gone(&error),
        // A zombie main thread looks the same whether or not other threads still run.
        Ok(stat) => stat.main_thread_has_exited() && is_alone(pid, is_gone),
    }
}

/// Returns true if a process is exiting or has exited, with all of its threads.
pub fn is_ending(pid: i32) -> bool {
    let is_exiting = Stat::read(pid).is_ok_and(|stat| stat.flags & PF_EXITING != 0);
    (is_exiting && is_alone(pid, |_| false)) || has_exited(pid)
}

/// Returns true if a process has at most one thread. `on_error` gives the result if its threads
/// cannot be listed.
fn is_alone(pid: i32, on_error: fn(&io::Error) -> bool) -> bool {
    match try_threads(pid) {
        Ok(threads) => threads.len() < 2,
        Err(error) => on_error(&error),
    }
}

/// Returns true if a process is stopped, by a signal or by its tracer.
pub fn is_stopped(pid: i32) -> bool {
    Stat::read(pid).is_ok_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// Returns the CPU time of a process in nanoseconds, including that of exited threads.
pub fn cpu_ns(pid: i32) -> Option<u64> {
    // A `clockid_t` holds the pid in 29 bits, one of which is the sign. A larger pid would select
    // the clock of another process.
    if !(1..1 << 28).contains(&pid) {
        return None;
    }
    let mut clock: libc::clockid_t = 0;
    // SAFETY: all zero is a valid timespec.
    let mut time: libc::timespec = unsafe { std::mem::zeroed() };
    // SAFETY: both calls write to locals of the type that they expect.
    let is_read = unsafe {
        libc::clock_getcpuclockid(pid, &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let ns = u64::try_from(time.tv_nsec).ok()?;
    if !is_read {
        return None;
    }
    seconds.checked_mul(1_000_000_000)?.checked_add(ns)
}

/// Returns true if a debugger or another tracer is attached to the process.
pub fn is_traced(pid: i32) -> bool {
    Status::of(pid).is_some_and(|status| status.tracer().is_some())
}

/// Maximum number of threads of a process that are examined.
const MAX_EXAMINED: usize = 1024;

/// Returns the seccomp mode and the number of filters of a process: the maximum over its threads.
pub fn seccomp(pid: i32) -> (u32, u32) {
    let mode_and_filters = |tid| {
        let text = file(pid, &format!("task/{tid}/status"))?;
        let number = |field| status_field(&text, field)?.parse::<u32>().ok();
        Some((number("Seccomp:")?, number("Seccomp_filters:").unwrap_or(0)))
    };
    let threads = threads(pid).into_iter().take(MAX_EXAMINED);
    threads.filter_map(mode_and_filters).max().unwrap_or((0, 0))
}

/// Returns the tid of a thread in its own, innermost pid namespace.
pub fn innermost_tid(pid: i32, tid: i32) -> Option<u32> {
    let text = file(pid, &format!("task/{tid}/status"))?;
    let tids = status_field(&text, "NSpid:")?;
    tids.split_ascii_whitespace().last()?.parse().ok()
}

/// Returns the size of a process's page tables, in bytes.
pub fn page_tables(pid: i32) -> Option<u64> {
    let text = file(pid, "status")?;
    let kib = status_field(&text, "VmPTE:")?.strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the number of bytes of address space that a process may still map; `None` if there is no
/// limit or it cannot be read.
pub fn address_space_left(pid: i32) -> Option<u64> {
    let limits = file(pid, "limits")?;
    let limit = status_field(&limits, "Max address space")?;
    let limit: u64 = limit.split_ascii_whitespace().next()?.parse().ok()?;
    let statm = file(pid, "statm")?;
    let pages: u64 = std::str::from_utf8(&statm)
        .ok()?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()?;
    Some(limit.saturating_sub(pages.saturating_mul(page_bytes()?)))
}

/// Returns the smaller of a process's limits on address space and data (`RLIMIT_AS`,
/// `RLIMIT_DATA`), in bytes; `None` if it has neither or they cannot be read.
pub fn memory_limit(pid: i32) -> Option<u64> {
    let limits = file(pid, "limits")?;
    let limit = |name| {
        let fields = status_field(&limits, name)?;
        fields.split_ascii_whitespace().next()?.parse().ok()
    };
    let limits = [limit("Max address space"), limit("Max data size")];
    limits.into_iter().flatten().min()
}

/// Returns a process's initial environment; `None` if it cannot be read or is empty.
pub fn environment(pid: i32) -> Option<Vec<u8>> {
    read_of_memory(pid, "environ", MAX_FILE_BYTES).filter(|text| !text.is_empty())
}

/// Returns the value of a variable in an environment.
pub fn value<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut variables = environment.split(|b| *b == 0);
    variables.find_map(|variable| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// Reads up to `max_bytes` bytes of a `/proc` file about a process's memory. If the main thread has
/// exited, that file is empty, and another thread's is read instead, since threads share their
/// memory.
fn read_of_memory(pid: i32, name: &str, max_bytes: u64) -> Option<Vec<u8>> {
    let text = bounded(pid, name, max_bytes)?;
    if !text.is_empty() {
        return Some(text);
    }
    let other = other_thread(pid).and_then(|tid| bounded(tid, name, max_bytes));
    Some(other.unwrap_or(text))
}

/// Returns the path of a `/proc` file about a process's memory. If the main thread has exited, the
/// path leads to the file of another thread (see `read_of_memory`).
pub fn path_of_memory(pid: i32, file: &str) -> String {
    if Stat::of(pid).is_some_and(|stat| stat.main_thread_has_exited())
        && let Some(tid) = other_thread(pid)
    {
        return format!("/proc/{pid}/task/{tid}/{file}");
    }
    format!("/proc/{pid}/{file}")
}

/// Returns the process's directory in `/proc` or, if its main thread has exited, that of another
/// thread, which has the same memory, executable and root.
pub fn directory(pid: i32) -> PathBuf {
    format!("/proc/{}", living_thread(pid)).into()
}

/// Returns the text of `/proc/PID/maps`; `None` without permission, empty for a zombie.
pub fn maps(pid: i32) -> Option<Vec<u8>> {
    let mut text = read_of_memory(pid, "maps", MAX_MAPS_BYTES)?;
    if text.len() as u64 == MAX_MAPS_BYTES {
        // The last line may be incomplete.
        let end = text
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |last| last + 1);
        text.truncate(end);
    }
    Some(text)
}

/// Returns the kernel's counters of a process's memory, by name, in bytes. The kernel keeps these
/// counters anyway, so reading them neither walks nor locks the process's memory.
pub fn memory_counters(pid: i32) -> Vec<(&'static str, u64)> {
    const NAMES: [(&str, &str); 5] = [
        ("RssAnon:", "rss_anon"),
        ("RssFile:", "rss_file"),
        ("RssShmem:", "rss_shmem"),
        ("VmSwap:", "swap"),
        ("VmHWM:", "peak"),
    ];
    let text = file(pid, "status").unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let value = |(field, name): &(&str, &'static str)| {
        let value = text.lines().find_map(|line| line.strip_prefix(field))?;
        let kib: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
        Some((*name, kib.saturating_mul(1024)))
    };
    NAMES.iter().filter_map(value).collect()
}

/// Returns the path of the executable; `None` without permission.
pub fn exe(pid: i32) -> Option<Vec<u8>> {
    let path = match fs::read_link(format!("/proc/{pid}/exe")) {
        Ok(path) => path,
        Err(_) => {
            let tid = other_thread(pid)?;
            fs::read_link(format!("/proc/{pid}/task/{tid}/exe")).ok()?
        }
    };
    Some(OsString::from(path).into_vec())
}

/// Returns the device and inode of a process's root directory; `None` without permission.
/// `process` is a pid or `self`.
pub fn root_of(process: &str) -> Option<(u64, u64)> {
    let root = fs::metadata(format!("/proc/{process}/root")).ok()?;
    Some((root.dev(), root.ino()))
}

/// Returns the root directory of a process, if it differs from ours. Its path is valid only if it
/// lies in our mount namespace.
pub fn other_root(pid: i32) -> Option<PathBuf> {
    let tid = living_thread(pid);
    let path = fs::read_link(format!("/proc/{tid}/root")).ok()?;
    (path != Path::new("/")).then_some(path)
}

/// Returns the arguments of a process's command line, without trailing empty ones: programs that
/// overwrite their command line with a title leave such arguments at the end.
pub fn command_line(pid: i32) -> Vec<Vec<u8>> {
    let text = read_of_memory(pid, "cmdline", MAX_FILE_BYTES).unwrap_or_default();
    let Some(last) = text.iter().rposition(|b| *b != 0) else {
        return Vec::new();
    };
    text[..=last]
        .split(|b| *b == 0)
        .map(<[u8]>::to_vec)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonexistent_pids_yield_nothing() {
        let pid = std::process::id() as i32;
        assert!(!crate::processors().is_empty());
        assert!(threads(pid).contains(&pid));
        assert!(cpu_ns(pid).is_some_and(|ns| ns > 0));
        assert!(!has_exited(pid) && has_exited(i32::MAX));
        assert!(maps(i32::MAX).is_none() && threads(i32::MAX).is_empty());
        for nonexistent in [i32::MAX, 1 << 28, 0, -1] {
            assert_eq!(cpu_ns(nonexistent), None, "{nonexistent}");
        }
    }

    #[test]
    fn programs_are_compared_by_identity() {
        use std::process::Command;
        let pid = std::process::id() as i32;
        let test_program = program(pid).expect("the test's program");
        assert_eq!(program(pid), Some(test_program));
        assert_eq!(executable(pid), Some(test_program.exe));
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let child_program = program(child.id() as i32);
        child.kill().expect("a running child");
        child.wait().expect("an exited child");
        assert!(child_program.is_some() && child_program != Some(test_program));
        assert_eq!(program(i32::MAX), None);
    }

    #[test]
    fn memory_counters_are_plausible() {
        let counters = memory_counters(std::process::id() as i32);
        let value = |wanted: &str| {
            let found = counters.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, bytes)| *bytes)
        };
        for name in ["rss_anon", "rss_file"] {
            assert!(value(name).is_some_and(|bytes| bytes > 0), "{counters:?}");
        }
        assert!(value("peak") >= value("rss_anon"), "{counters:?}");
        assert!(memory_counters(i32::MAX).is_empty());
    }

    #[test]
    fn this_process_is_described() {
        let pid = std::process::id() as i32;
        let stat = Stat::of(pid).unwrap();
        assert!(!stat.is_dead() && stat.start_time > 0);
        let status = Status::of(pid).unwrap();
        assert_eq!((status.tgid, status.ns_pids.first()), (pid, Some(&pid)));
        assert_eq!(status.uid(), fs::metadata("/proc/self").unwrap().uid());
        assert!(!crate::has_ended(&crate::pidfd(pid).unwrap()));
        assert!(Stat::of(i32::MAX).is_none());
    }
}
