//! Processes as `/proc` shows them. A process may vanish between two reads, so
//! every query may return nothing.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

pub use cpu::proc::cpu_ns;

use crate::text;

/// How many bytes of `/proc/PID/maps` are read: enough for a million mappings.
const MAPS_LIMIT: u64 = 128 << 20;
/// How many bytes of any other file in `/proc` are read.
const FILE_LIMIT: u64 = 1 << 20;
/// Bytes that `stat` and `status` of a process have at most, mostly.
const USUAL_SIZE: usize = 4096;

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name of the main thread, as the process chose it.
    pub comm: Vec<u8>,
    /// One letter: `R`, `S`, `T`, `Z`, …
    pub state: u8,
    /// Parent.
    pub parent: i32,
    /// CPU time used, in clock ticks.
    pub cpu_ticks: u64,
    /// Threads, the first one included as long as the process has a number.
    pub threads: u64,
    /// Start, in clock ticks since boot: together with the pid, it uniquely identifies the
    /// process.
    pub start_time: u64,
    /// Resident pages.
    pub rss_pages: u64,
    /// Exit status, as from `wait`; meaningless while it runs.
    pub wait_status: Option<i32>,
}

impl Stat {
    /// Reads it; `None` if there is no such process.
    pub fn of(pid: i32) -> Option<Self> {
        let mut stat = Self::parse(&read(pid, "stat", FILE_LIMIT)?)?;
        if stat.first_has_ended()
            && let Some(other) = other_thread(pid)
            && let Some(other) = read(pid, &format!("task/{other}/stat"), FILE_LIMIT)
        {
            stat.rss_pages = Self::parse(&other).map_or(0, |other| other.rss_pages);
        }
        Some(stat)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The name may contain anything, including parentheses and blanks.
        let open = text.iter().position(|b| *b == b'(')?;
        let close = text.iter().rposition(|b| *b == b')')?;
        let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            comm: text.get(open + 1..close)?.to_vec(),
            state: *fields.first()?.as_bytes().first()?,
            parent: fields.get(1)?.parse().ok()?,
            cpu_ticks: number(11)?.checked_add(number(12)?)?,
            threads: number(17)?,
            start_time: crate::clock::shift().start_time(number(19)?),
            rss_pages: number(21).unwrap_or(0),
            wait_status: number(49).map(|status| status as i32),
        })
    }

    /// Resident memory.
    pub fn rss_bytes(&self) -> Option<u64> {
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
        Some(self.rss_pages.saturating_mul(page.max(1) as u64))
    }

    /// Whether the process has ended and waits for its parent to reap it. Its first thread may have
    /// ended before the others (`pthread_exit` in `main`), which looks the same except for those.
    pub fn is_dead(&self) -> bool {
        self.first_has_ended() && self.threads < 2
    }

    /// Whether its first thread has ended: the kernel shows nothing of the process's memory there.
    pub fn first_has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

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

/// The fields of `/proc/PID/status` that are used here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Process that this thread belongs to.
    pub tgid: i32,
    /// Real, effective, saved and filesystem user.
    pub uids: [u32; 4],
    /// Pids from our namespace to the process's own.
    pub ns_pids: Vec<i32>,
}

impl Status {
    /// Reads it; `None` if there is no such process.
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(&read(pid, "status", FILE_LIMIT)?)
    }

    /// Reads our own, by whatever pid `/proc` knows us.
    pub fn of_self() -> Option<Self> {
        let mut text = Vec::new();
        let file = File::open("/proc/self/status").ok()?;
        file.take(FILE_LIMIT).read_to_end(&mut text).ok()?;
        Self::parse(&text)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut status = Self::default();
        let mut uids_seen = false;
        for line in text.split(|b| *b == b'\n') {
            let Some(colon) = line.iter().position(|b| *b == b':') else {
                continue;
            };
            let Ok(value) = std::str::from_utf8(&line[colon + 1..]) else {
                continue;
            };
            let mut words = value.split_ascii_whitespace();
            match &line[..colon] {
                b"Tgid" => status.tgid = words.next()?.parse().ok()?,
                b"Uid" => {
                    for uid in &mut status.uids {
                        *uid = words.next()?.parse().ok()?;
                    }
                    uids_seen = true;
                }
                b"NSpid" => status.ns_pids = words.filter_map(|w| w.parse().ok()).collect(),
                _ => {}
            }
        }
        uids_seen.then_some(status)
    }

    /// Effective user.
    pub fn uid(&self) -> u32 {
        self.uids[1]
    }

    /// Pid as the process itself sees it.
    pub fn own_pid(&self) -> i32 {
        self.ns_pids.last().copied().unwrap_or(self.tgid)
    }
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

/// A descriptor that becomes readable when the process ends; `None` on kernels
/// before 5.3 or if the process is gone.
pub fn pidfd(pid: i32) -> Option<OwnedFd> {
    if !proc_is_ours() {
        return None;
    }
    // SAFETY: a plain call; a descriptor that it returns is ours alone.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as libc::c_int))
    }
}

/// Whether the process behind a pidfd has ended.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    wait_for_end(pidfd, Duration::ZERO)
}

/// Waits for the process behind a pidfd to end. Returns whether it has ended.
pub fn wait_for_end(pidfd: &OwnedFd, longest: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let ms = i32::try_from(longest.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `poll` is one initialised pollfd, and the count says so.
    unsafe { libc::poll(&raw mut poll, 1, ms) > 0 }
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
    fn hostile_names_do_not_shift_the_fields() {
        let text = b"42 (a) R 1 (x) S 7 0 0 0 -1 0 1 2 3 4 50 60 0 0 20 0 1 0 9999 4096 77 1";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat.comm, b"a) R 1 (x");
        assert_eq!((stat.state, stat.parent), (b'S', 7));
        assert_eq!(
            (stat.cpu_ticks, stat.start_time, stat.rss_pages),
            (110, 9999, 77)
        );
        assert_eq!(Stat::parse(b"42 (a"), None);
    }

    #[test]
    fn a_process_whose_first_thread_has_ended_is_not_dead() {
        let of = |threads: &str| {
            let text = format!("42 (a) Z 1 1 1 0 -1 0 1 2 3 4 50 60 0 0 20 0 {threads} 0 9999 0 0");
            Stat::parse(text.as_bytes()).unwrap()
        };
        assert!(of("2").first_has_ended() && !of("2").is_dead());
        assert!(of("1").is_dead() && of("0").is_dead());
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
    fn status_of_a_process_in_a_container() {
        let text = b"Name:\tx\nTgid:\t400\nUid:\t1\t2\t3\t4\nNSpid:\t400\t7\n";
        let status = Status::parse(text).unwrap();
        assert_eq!((status.uid(), status.own_pid(), status.tgid), (2, 7, 400));
        assert_eq!(Status::parse(b"Uid:\t1\t2\n"), None);
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
