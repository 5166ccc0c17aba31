//! Processes as `/proc` shows them. A process may vanish between two reads, so
//! every query may return nothing.

mod pidfd;
mod stat;
mod status;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use shm_protocol::snapshot::Header;

pub use cpu::proc::cpu_ns;
pub use pidfd::{has_ended, pidfd, wait_for_end};
pub use stat::{Stat, rss_bytes};
pub use status::Status;

use crate::text;

/// How many bytes of `/proc/PID/maps` are read: enough for a million mappings.
const MAPS_LIMIT: u64 = 128 << 20;
/// How many bytes of any other file in `/proc` are read.
const FILE_LIMIT: u64 = 1 << 20;
/// Bytes that `stat` and `status` of a process have at most, mostly.
const USUAL_SIZE: usize = 4096;

/// Why there is nothing to see of a process of this number.
pub fn absence(pid: i32) -> Option<String> {
    let Some(stat) = Stat::of(pid) else {
        return Some(format!("{pid}: there is no such process"));
    };
    match Status::of(pid).map(|status| status.tgid) {
        Some(process) if process != pid => Some(format!(
            "{pid} is a thread of process {process}: give that pid"
        )),
        _ if stat.is_dead() => Some(format!(
            "{pid}: the process has ended (it is a zombie until its parent, {}, waits for it)",
            stat.parent
        )),
        _ => None,
    }
}

/// What to say of a process that is stopped: it neither allocates nor answers.
pub fn stopped_hint(pid: i32) -> Option<String> {
    let stopped = cpu::proc::is_stopped(pid);
    stopped.then(|| format!("it is stopped (kill -CONT {pid} continues it)"))
}

/// Whether a debugger or the like traces the process.
pub fn is_traced(pid: i32) -> bool {
    let status = read(pid, "status", FILE_LIMIT).unwrap_or_default();
    let tracer = status
        .split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(b"TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim_ascii() != b"0")
}

/// How many threads of a process are examined.
const MAX_THREADS: usize = 1024;

/// Seccomp mode and number of filters of a process: the most that any of its threads has.
pub fn seccomp(pid: i32) -> (u32, u32) {
    let of = |tid| {
        let text = read(pid, &format!("task/{tid}/status"), FILE_LIMIT)?;
        let field = |field| status_field(&text, field)?.parse::<u32>().ok();
        Some((field("Seccomp:")?, field("Seccomp_filters:").unwrap_or(0)))
    };
    let threads = threads(pid).into_iter();
    threads.filter_map(of).max().unwrap_or((0, 0))
}

/// Threads of a process, up to `MAX_THREADS`; none if there is no such process.
pub fn threads(pid: i32) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let number = |name: OsString| name.to_str()?.parse().ok();
    let threads = threads.flatten().take(MAX_THREADS);
    threads
        .filter_map(|thread| number(thread.file_name()))
        .collect()
}

/// The name of a thread, zero-padded; `None` if there is no such thread.
pub fn thread_name(pid: i32, tid: i32) -> Option<[u8; 16]> {
    let text = read(pid, &format!("task/{tid}/comm"), FILE_LIMIT)?;
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let mut name = [0; 16];
    name.iter_mut()
        .zip(text)
        .for_each(|(byte, &own)| *byte = own);
    Some(name)
}

/// The number of a thread in the innermost pid namespace that it is in.
pub fn innermost_tid(pid: i32, tid: i32) -> Option<u32> {
    let text = read(pid, &format!("task/{tid}/status"), FILE_LIMIT)?;
    let numbers = status_field(&text, "NSpid:")?;
    numbers.split_ascii_whitespace().last()?.parse().ok()
}

/// The value of a line in `/proc/PID/status`.
pub fn status_field<'a>(text: &'a [u8], name: &str) -> Option<&'a str> {
    let mut lines = text.split(|b| *b == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name.as_bytes()))?;
    Some(std::str::from_utf8(value).ok()?.trim())
}

/// Bytes of a process's page tables.
pub fn page_tables(pid: i32) -> Option<u64> {
    let text = read(pid, "status", FILE_LIMIT)?;
    let kib = status_field(&text, "VmPTE:")?.strip_suffix("kB")?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes of address space that a process may still map; `None` if there is no limit, or it
/// cannot be read.
pub fn address_space_left(pid: i32) -> Option<u64> {
    let limits = read(pid, "limits", FILE_LIMIT)?;
    let limit = status_field(&limits, "Max address space")?;
    let limit: u64 = limit.split_ascii_whitespace().next()?.parse().ok()?;
    let used = read(pid, "statm", FILE_LIMIT)?;
    let pages: u64 = std::str::from_utf8(&used)
        .ok()?
        .split_ascii_whitespace()
        .next()?
        .parse()
        .ok()?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    Some(limit.saturating_sub(pages.saturating_mul(u64::try_from(page).ok()?)))
}

/// A file of `/proc/PID`, bounded.
pub fn file(pid: i32, name: &str) -> Option<Vec<u8>> {
    read(pid, name, FILE_LIMIT)
}

/// A process's environment at its start; `None` if it cannot be read or holds nothing.
pub fn environment(pid: i32) -> Option<Vec<u8>> {
    read_of_memory(pid, "environ", FILE_LIMIT).filter(|text| !text.is_empty())
}

/// The value of a variable in an environment.
pub fn value<'a>(environment: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut variables = environment.split(|b| *b == 0);
    variables.find_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

fn read(pid: i32, file: &str, limit: u64) -> Option<Vec<u8>> {
    // Room for most of these files: without, they are read in small pieces.
    let mut bytes = Vec::with_capacity(USUAL_SIZE);
    let file = File::open(format!("/proc/{pid}/{file}")).ok()?;
    file.take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// What is mounted here, as the kernel lists it.
pub fn own_mounts() -> Option<Vec<u8>> {
    std::fs::read("/proc/self/mountinfo").ok()
}

/// A file about the memory of a process, of which the kernel shows nothing where its first thread
/// has ended: there, that of another thread, which has the same.
fn read_of_memory(pid: i32, file: &str, limit: u64) -> Option<Vec<u8>> {
    let text = read(pid, file, limit)?;
    if !text.is_empty() {
        return Some(text);
    }
    let other = other_thread(pid).and_then(|tid| read(tid, file, limit));
    Some(other.unwrap_or(text))
}

/// A file of `/proc` about the memory of a process, by its path: see `read_of_memory`.
pub fn path_of_memory(pid: i32, file: &str) -> String {
    let is_shown = Stat::of(pid).is_none_or(|stat| !stat.first_has_ended());
    match other_thread(pid).filter(|_| !is_shown) {
        Some(tid) => format!("/proc/{pid}/task/{tid}/{file}"),
        None => format!("/proc/{pid}/{file}"),
    }
}

/// A thread that lives, where the first one does not.
fn other_thread(pid: i32) -> Option<i32> {
    Some(capture::living_thread(pid)).filter(|tid| *tid != pid)
}

/// The process's directory in `/proc`; where its first thread has ended, that of another thread,
/// which has the same memory, executable and root.
pub fn directory(pid: i32) -> PathBuf {
    format!("/proc/{}", capture::living_thread(pid)).into()
}

/// The text of `/proc/PID/maps`; `None` without permission, empty for a zombie.
pub fn maps(pid: i32) -> Option<Vec<u8>> {
    let mut text = read_of_memory(pid, "maps", MAPS_LIMIT)?;
    if text.len() as u64 == MAPS_LIMIT {
        let whole = text
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |at| at + 1);
        text.truncate(whole);
    }
    Some(text)
}

/// Bytes of memory that the machine can give to programs without swapping, as the kernel estimates
/// it; before Linux 3.14, what is free.
pub fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let value = |field: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(field))?;
        let kilobytes: u64 = rest.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kilobytes.saturating_mul(1024))
    };
    value("MemAvailable:").or_else(|| value("MemFree:"))
}

/// The kernel's counters of a process's memory, in bytes by name. The kernel keeps these
/// counters anyway: reading them neither walks nor locks the process's memory.
pub fn memory(pid: i32) -> Vec<(&'static str, u64)> {
    const NAMES: [(&str, &str); 5] = [
        ("RssAnon:", "rss_anon"),
        ("RssFile:", "rss_file"),
        ("RssShmem:", "rss_shmem"),
        ("VmSwap:", "swap"),
        ("VmHWM:", "peak"),
    ];
    let text = read(pid, "status", 1 << 16).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let value = |(field, name): &(&str, &'static str)| {
        let rest = text.lines().find_map(|line| line.strip_prefix(field))?;
        let kilobytes: u64 = rest.trim().strip_suffix(" kB")?.parse().ok()?;
        Some((*name, kilobytes.saturating_mul(1024)))
    };
    NAMES.iter().filter_map(value).collect()
}

/// Path of the executable; `None` without permission.
pub fn exe(pid: i32) -> Option<Vec<u8>> {
    let of_other = || {
        let tid = other_thread(pid)?;
        fs::read_link(format!("/proc/{pid}/task/{tid}/exe")).ok()
    };
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let path = path.or_else(of_other)?;
    Some(OsString::from(path).into_vec())
}

/// Device and inode of a process's root directory; `None` without permission. The process is a
/// pid, or `self`.
pub fn root_of(process: &str) -> Option<(u64, u64)> {
    let root = fs::metadata(format!("/proc/{process}/root")).ok()?;
    Some((root.dev(), root.ino()))
}

/// The root directory of a process, if it differs from ours and has a name here.
pub fn other_root(pid: i32) -> Option<PathBuf> {
    let shown = capture::living_thread(pid);
    let path = fs::read_link(format!("/proc/{shown}/root")).ok()?;
    (path != Path::new("/")).then_some(path)
}

/// The command line, argument by argument. Programs that overwrite it with a title leave
/// empty arguments behind: trailing ones are dropped.
pub fn command_line(pid: i32) -> Vec<Vec<u8>> {
    let text = read_of_memory(pid, "cmdline", FILE_LIMIT).unwrap_or_default();
    let used = text.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1);
    match used {
        0 => Vec::new(),
        _ => text[..used]
            .split(|b| *b == 0)
            .map(<[u8]>::to_vec)
            .collect(),
    }
}

/// The name by which users know a process: its executable's, or the link's if it was started
/// through one (`redis-server` may be a link to a differently named file). A name that the process
/// gave itself counts only if it agrees with these.
pub fn display_name(comm: &[u8], exe: &[u8], arguments: &[Vec<u8>]) -> Vec<u8> {
    let exe = text::base_name(exe);
    let first = arguments.first().map_or(&b""[..], |a| a);
    let word = first.split(|b| *b == b' ').next().unwrap_or(first);
    let word = text::base_name(word);
    let word = word.strip_suffix(b":").unwrap_or(word);
    let agrees = |name: &[u8]| !comm.is_empty() && name.starts_with(comm);
    if !agrees(exe) && agrees(word) {
        word.to_vec()
    } else {
        exe.to_vec()
    }
}

/// All processes that we can see.
pub fn all() -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse().ok())
        .collect()
}

/// The kernel's boot id: binary, and as text.
pub fn boot_id() -> Option<([u8; 16], String)> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let id = shm_protocol::clock::parse_boot_id(text.as_bytes())?;
    Some((id, text.trim().to_owned()))
}

/// The id of the boot that a segment is of, as text; this one's if the segment does not say.
pub fn boot_id_of(header: &Header<'_>) -> Option<String> {
    let own = boot_id();
    let id = header.boot_id();
    let is_other = id.iter().any(|byte| *byte != 0);
    let is_other = is_other && own.as_ref().is_none_or(|(own, _)| own != id);
    if !is_other {
        return own.map(|(_, text)| text);
    }
    let digits = id.iter().map(|byte| format!("{byte:02x}"));
    let mut text: String = digits.collect();
    for dash in [20, 16, 12, 8] {
        text.insert(dash.min(text.len()), '-');
    }
    Some(text)
}

/// Whether `/proc` is what it should be.
pub fn is_proc_mounted() -> bool {
    Status::of_self().is_some()
}

/// Whether `/proc` shows the pids of our own pid namespace. It may belong to another one
/// (`unshare --pid` without `--mount-proc`), in which case its pids denote other
/// processes for us.
pub fn proc_is_ours() -> bool {
    static OURS: OnceLock<bool> = OnceLock::new();
    *OURS.get_or_init(|| Status::of_self().is_some_and(|status| status.ns_pids.len() <= 1))
}

/// Name of a user, or the number if it has none.
pub fn user_name(uid: u32) -> String {
    match nix::unistd::User::from_uid(uid.into()) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_is_counted() {
        let memory = memory(std::process::id() as i32);
        let of = |name: &str| {
            memory
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, bytes)| *bytes)
        };
        assert!(of("rss_anon").is_some_and(|bytes| bytes > 0), "{memory:?}");
        assert!(of("rss_file").is_some_and(|bytes| bytes > 0), "{memory:?}");
        assert!(of("peak") >= of("rss_anon"), "{memory:?}");
        assert!(super::memory(i32::MAX).is_empty());
    }

    #[test]
    fn own_process_reads() {
        let pid = std::process::id() as i32;
        let stat = Stat::of(pid).unwrap();
        assert!(!stat.is_dead() && stat.start_time > 0);
        let status = Status::of(pid).unwrap();
        assert_eq!((status.tgid, status.ns_pids.first()), (pid, Some(&pid)));
        assert_eq!(status.uid(), nix::unistd::geteuid().as_raw());
        assert!(!has_ended(&pidfd(pid).unwrap()));
        assert!(Stat::of(i32::MAX).is_none());
    }

    #[test]
    fn names_follow_links_but_not_whims() {
        let name =
            |comm: &[u8], exe: &[u8], first: &[u8]| display_name(comm, exe, &[first.to_vec()]);
        let redis = b"/usr/bin/redis-server *:7000";
        assert_eq!(
            name(b"redis-server", b"/usr/bin/redis-check-rdb", redis),
            b"redis-server"
        );
        assert_eq!(name(b"MainThread", b"/usr/bin/node", b"node"), b"node");
        assert_eq!(name(b"run.sh", b"/usr/bin/dash", b"/bin/sh"), b"dash");
        assert_eq!(
            name(b"python3", b"/usr/bin/python3.11", b"python3"),
            b"python3.11"
        );
        assert_eq!(
            name(b"nginx", b"/usr/sbin/nginx", b"nginx: worker process"),
            b"nginx"
        );
        assert_eq!(display_name(b"", b"/a/b", &[]), b"b");
    }
}
