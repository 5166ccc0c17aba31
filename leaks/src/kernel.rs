//! Collects words that a program has passed to the kernel and that the kernel will return: the data
//! of epoll entries, values of timers, and `user_data` and addresses of io_uring requests. They are
//! roots, since they may be the only pointers to objects.
//!
//! The words are read from `/proc`. For io_uring, that covers the entries waiting in the rings. Of
//! requests in progress, only the number is known. Their ring entries remain until they are
//! overwritten, and the ring is memory of the process, which is searched.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};

/// Maximum number of descriptors that are examined.
const MAX_DESCRIPTORS: usize = 1 << 16;
/// Maximum number of bytes read about the entries of all descriptors; a descriptor may be
/// duplicated many times.
const MAX_ENTRY_BYTES: u64 = 1 << 28;
/// Maximum number of bytes read of another file in `/proc`.
const MAX_TEXT_BYTES: u64 = 1 << 24;

/// Words that the kernel stores for a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelData {
    /// Words by origin, with the name of the origin for display.
    pub words: Vec<(String, Vec<u64>)>,
    /// Number of io_uring requests in progress. What they point to is unknown.
    pub under_way: u64,
}

impl KernelData {
    /// Reads the words behind all descriptors of a process. Slow.
    pub fn of_descriptors(pid: i32) -> Self {
        let mut data = Self::default();
        // A main thread that has exited has no descriptors.
        let pid = proc::living_thread(pid);
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            return data;
        };
        let mut left = MAX_ENTRY_BYTES;
        for entry in descriptors.flatten().take(MAX_DESCRIPTORS) {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            let Ok(number) = entry.file_name().into_string() else {
                continue;
            };
            let open = || File::open(format!("/proc/{pid}/fdinfo/{number}")).ok();
            match target.to_str() {
                Some("anon_inode:[eventpoll]") => {
                    let words = open().map(|file| entries(file, &mut left));
                    let name = format!("data of epoll descriptor {number}");
                    data.words.push((name, words.unwrap_or_default()));
                }
                Some("anon_inode:[io_uring]") => {
                    let ring = open().map(|file| Ring::read(file, &mut left));
                    let ring = ring.unwrap_or_default();
                    data.under_way += ring.under_way();
                    let name = format!("entries of io_uring descriptor {number}");
                    data.words.push((name, ring.words));
                }
                _ => {}
            }
        }
        data
    }

    /// Adds the values of the process's POSIX timers.
    pub fn add_timers(&mut self, pid: i32) {
        let text = limited(&format!("/proc/{pid}/timers"));
        let words = timer_values(&text).collect();
        self.words.push(("value of a timer".to_owned(), words));
    }

    /// Adds the words of another reading.
    pub fn join(&mut self, other: Self) {
        self.words.extend(other.words);
        self.under_way = self.under_way.max(other.under_way);
    }
}

/// Calls `each` for each line. Reads at most `left` bytes and subtracts what it read.
fn lines(text: impl Read, left: &mut u64, mut each: impl FnMut(&str)) {
    let mut text = BufReader::new(text.take(*left));
    let mut line = String::new();
    loop {
        line.clear();
        match text.read_line(&mut line) {
            Ok(read) if read > 0 => *left = left.saturating_sub(read as u64),
            _ => return,
        }
        each(&line);
    }
}

/// Parses the fdinfo of an epoll descriptor and returns the data of its entries.
fn entries(text: impl Read, left: &mut u64) -> Vec<u64> {
    let mut words = Vec::new();
    lines(text, left, |line| {
        let data = line
            .strip_prefix("tfd:")
            .and_then(|line| line.split_once("data:"));
        let word = data.and_then(|(_, rest)| rest.split_whitespace().next());
        words.extend(word.and_then(|word| u64::from_str_radix(word, 16).ok()));
    });
    words
}

/// Parsed fdinfo of an io_uring descriptor (Linux, `io_uring/fdinfo.c`).
#[derive(Debug, Default, PartialEq, Eq)]
struct Ring {
    /// `user_data` and addresses of waiting entries and of completions.
    words: Vec<u64>,
    /// Number of submissions that the kernel has taken, modulo 2^32.
    taken: Option<u32>,
    /// Number of completions that the kernel has posted, modulo 2^32.
    given: Option<u32>,
    /// Number of poll requests.
    polls: u64,
}

impl Ring {
    fn read(text: impl Read, left: &mut u64) -> Self {
        let mut ring = Self::default();
        let mut in_polls = false;
        lines(text, left, |line| {
            let is_head = !line.starts_with(' ');
            if let (true, Some((head, value))) = (is_head, line.split_once(':')) {
                in_polls = head == "PollList";
                match head {
                    "CachedSqHead" => ring.taken = value.trim().parse().ok(),
                    "CachedCqTail" => ring.given = value.trim().parse().ok(),
                    _ => {}
                }
                return;
            }
            ring.polls += u64::from(in_polls);
            let fields = line.split([' ', ',']);
            ring.words.extend(fields.filter_map(word));
        });
        ring
    }

    /// Returns the number of requests in progress: taken and not completed. A multishot request
    /// completes many times, so poll requests are counted separately.
    fn under_way(&self) -> u64 {
        let pair = self.taken.zip(self.given);
        let rest = pair.map_or(0, |(taken, given)| taken.wrapping_sub(given) as i32);
        u64::try_from(rest).unwrap_or(0).max(self.polls)
    }
}

/// Parses a field with a word: `addr:0xHEX`, `user_data:NUMBER` or `user_data=NUMBER`.
fn word(field: &str) -> Option<u64> {
    let field = field.trim();
    if let Some(address) = field.strip_prefix("addr:0x") {
        return u64::from_str_radix(address, 16).ok().filter(|at| *at != 0);
    }
    let rest = field.strip_prefix("user_data")?;
    rest.strip_prefix([':', '='])?.parse().ok()
}

/// Reads a file in `/proc`, up to a limit. Returns an empty text if it cannot be read.
fn limited(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(MAX_TEXT_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the values that timers pass to the program, from lines `signal: NUMBER/VALUE`.
fn timer_values(text: &str) -> impl Iterator<Item = u64> {
    text.lines().filter_map(|line| {
        let (_, value) = line.strip_prefix("signal:")?.split_once('/')?;
        u64::from_str_radix(value.trim().trim_start_matches("0x"), 16).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_have_their_values() {
        let text = "ID: 1\nsignal: 60/00007fff86e452a8\nnotify: signal/pid.2634\nClockID: 0\n";
        assert_eq!(timer_values(text).collect::<Vec<_>>(), [0x7fff_86e4_52a8]);
    }

    #[test]
    fn entries_of_many_descriptors_end() {
        let text = "pos:\t0\ntfd: 5 events: 1 data: 1234 pos:0\n".repeat(100);
        let mut left = text.len() as u64 * 3 / 2;
        assert_eq!(entries(text.as_bytes(), &mut left), [0x1234; 100]);
        assert!(entries(text.as_bytes(), &mut left).len() <= 50);
        assert_eq!(left, 0);
        assert!(entries(text.as_bytes(), &mut left).is_empty());
    }

    #[test]
    fn epoll_entries_have_their_data() {
        // SAFETY: plain system calls on descriptors that are closed at the end.
        unsafe {
            let poll = libc::epoll_create1(0);
            let event = libc::eventfd(0, 0);
            let mut entry = libc::epoll_event {
                events: libc::EPOLLIN as u32,
                u64: 0x1234_5678_9abc,
            };
            assert_eq!(
                libc::epoll_ctl(poll, libc::EPOLL_CTL_ADD, event, &mut entry),
                0
            );
            let data = KernelData::of_descriptors(std::process::id() as i32);
            let name = format!("data of epoll descriptor {poll}");
            let own = data.words.iter().find(|(own, _)| *own == name);
            assert_eq!(
                own.map(|(_, words)| &words[..]),
                Some(&[0x1234_5678_9abc][..])
            );
            libc::close(event);
            libc::close(poll);
        }
    }

    /// In the form of Linux 6.18.
    const RING: &str = "pos:\t0\nflags:\t02000002\nmnt_id:\t17\nino:\t80661\nSqMask:\t0x7\nSqHead:\t3\n\
        SqTail:\t4\nCachedSqHead:\t3\nCqMask:\t0xf\nCqHead:\t0\nCqTail:\t1\nCachedCqTail:\t1\nSQEs:\t1\n\
        \x20   3: opcode:READ, fd:4, flags:0, off:0, addr:0x7f5ad0a68010, rw_flags:0x0, buf_index:0 \
        user_data:26214\nCQEs:\t1\n    0: user_data:30583, res:0, flag:0\nSqThread:\t-1\n\
        SqThreadCpu:\t-1\nUserFiles:\t0\nUserBufs:\t0\nPollList:\n  op=6, task_works=0\n\
        \x20 op=22, task_works=0\nCqOverflowList:\n  user_data=140026, res=4, flags=0\nNAPI:\tdisabled\n";

    #[test]
    fn a_ring_shows_what_waits_in_it() {
        let ring = Ring::read(RING.as_bytes(), &mut { MAX_ENTRY_BYTES });
        assert_eq!(ring.words, [0x7f5a_d0a6_8010, 26214, 30583, 140_026]);
        assert_eq!((ring.taken, ring.given, ring.polls), (Some(3), Some(1), 2));
        assert_eq!(ring.under_way(), 2);
    }

    #[test]
    fn requests_under_way_are_those_that_are_not_answered() {
        let under_way = |taken: u32, given: u32, polls: usize| {
            let polls = "  op=6, task_works=0\n".repeat(polls);
            let text =
                format!("CachedSqHead:\t{taken}\nCachedCqTail:\t{given}\nPollList:\n{polls}");
            Ring::read(text.as_bytes(), &mut { MAX_ENTRY_BYTES }).under_way()
        };
        assert_eq!(under_way(7, 7, 0), 0);
        assert_eq!(under_way(7, 5, 0), 2);
        // One that is answered again and again.
        assert_eq!(under_way(7, 9, 1), 1);
        assert_eq!(under_way(1, u32::MAX, 0), 2);
        // Kernels that show less.
        let ring = Ring::read(&b"SqThread:\t-1\nPollList:\n"[..], &mut { MAX_ENTRY_BYTES });
        assert_eq!((ring.under_way(), ring.words), (0, vec![]));
    }
}
