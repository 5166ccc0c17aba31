//! `/proc/PID/stat`.

use std::io;

use crate::files::{self, MAX_FILE_BYTES};
use crate::machine::clock_shift;
use crate::threads::other_thread;

/// Flag in [`Stat::flags`]: the process is exiting.
pub(crate) const PF_EXITING: u64 = 4;
/// Flag in [`Stat::flags`]: forked, and has not executed a program since.
pub(crate) const PF_FORKNOEXEC: u64 = 0x40;
/// Flag in [`Stat::flags`]: kernel thread.
pub(crate) const PF_KTHREAD: u64 = 0x0020_0000;

/// Addresses of a program; each is 0 or 1 if the kernel hides it from us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// Start of the code.
    pub code: u64,
    /// Start of the main thread's stack.
    pub stack: u64,
}

/// The fields of `/proc/PID/stat` that are used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name of the main thread, as the process chose it.
    pub comm: Vec<u8>,
    /// State, as a letter: `R`, `S`, `T`, `Z`, …
    pub state: u8,
    /// Pid of the parent.
    pub parent: i32,
    /// The kernel's flags (`PF_…`).
    pub flags: u64,
    /// CPU time used, in clock ticks.
    pub cpu_ticks: u64,
    /// Number of threads, including an exited main thread until the process is reaped.
    pub threads: u64,
    /// Start time, in clock ticks since the machine's boot, whatever our time namespace. Together
    /// with the pid, it identifies the process uniquely.
    pub start_time: u64,
    /// Number of resident pages.
    pub rss_pages: u64,
    /// Addresses of the program, randomized at each exec.
    pub addresses: Addresses,
    /// Exit status, as from `wait`; meaningless while the process runs.
    pub wait_status: Option<i32>,
}

impl Stat {
    /// Reads the state of a process; `None` if there is no such process. If only the main thread
    /// has exited, facts about memory come from another thread.
    pub fn of(pid: i32) -> Option<Self> {
        let mut stat = Self::read(pid).ok()?;
        if stat.main_thread_has_exited()
            && let Some(tid) = other_thread(pid)
            && let Some(text) = files::file(pid, &format!("task/{tid}/stat"))
            && let Some(other) = Self::parse(&text)
        {
            stat.rss_pages = other.rss_pages;
            stat.addresses = other.addresses;
        }
        Some(stat)
    }

    /// Reads the file of the process itself, without asking other threads. If the main thread has
    /// exited before the others, the fields about memory are 0.
    pub fn read(pid: i32) -> io::Result<Self> {
        let text = files::read(&format!("/proc/{pid}/stat"), MAX_FILE_BYTES)?;
        Self::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The name may contain any bytes, including parentheses and spaces.
        let open = text.iter().position(|b| *b == b'(')?;
        let close = text.iter().rposition(|b| *b == b')')?;
        let after_name = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        // Index 0 is the third field of proc_pid_stat(5), the state.
        let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(Self {
            comm: text.get(open + 1..close)?.to_vec(),
            state: *fields.first()?.as_bytes().first()?,
            parent: fields.get(1)?.parse().ok()?,
            flags: number(6)?,
            cpu_ticks: number(11)?.checked_add(number(12)?)?,
            threads: number(17)?,
            start_time: clock_shift().machine_start_time(number(19)?),
            rss_pages: number(21).unwrap_or(0),
            addresses: Addresses {
                code: number(23).unwrap_or(0),
                stack: number(25).unwrap_or(0),
            },
            wait_status: number(49).map(|status| status as i32),
        })
    }

    /// Returns the resident memory, in bytes.
    pub fn rss_bytes(&self) -> Option<u64> {
        Some(self.rss_pages.saturating_mul(page_bytes()?))
    }

    /// Returns true if the process has exited and has not been reaped by its parent yet. If only
    /// its main thread has exited (`pthread_exit` in `main`), the state is the same, but there are
    /// other threads.
    pub fn is_dead(&self) -> bool {
        self.main_thread_has_exited() && self.threads < 2
    }

    /// Returns true if the main thread has exited. The files in `/proc/PID` then show nothing about
    /// the process's memory.
    pub fn main_thread_has_exited(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// Returns the page size in bytes.
pub(crate) fn page_bytes() -> Option<u64> {
    // SAFETY: no pointer is passed.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).ok().filter(|bytes| *bytes > 0)
}

/// Returns the resident memory of a process, in bytes.
pub fn rss_bytes(pid: i32) -> Option<u64> {
    Stat::of(pid)?.rss_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn fields_are_counted_after_the_name() {
        let text =
            b"7 (a) R b) S 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.parent, stat.flags, stat.threads), (4, 9, 20));
        assert_eq!(
            (stat.start_time, stat.addresses),
            (
                22,
                Addresses {
                    code: 26,
                    stack: 28
                }
            )
        );
        assert_eq!(Stat::parse(b"7 (a) S 4"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn a_process_whose_main_thread_has_exited_is_not_dead() {
        let parse_with_threads = |threads: &str| {
            let text = format!("42 (a) Z 1 1 1 0 -1 0 1 2 3 4 50 60 0 0 20 0 {threads} 0 9999 0 0");
            Stat::parse(text.as_bytes()).unwrap()
        };
        let others_run = parse_with_threads("2");
        assert!(others_run.main_thread_has_exited() && !others_run.is_dead());
        assert!(parse_with_threads("1").is_dead());
        assert!(parse_with_threads("0").is_dead());
    }
}
