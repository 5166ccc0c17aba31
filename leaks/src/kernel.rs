//! Collects words that a program has passed to the kernel and that the kernel will return: the data
//! of epoll entries, `sigev_value`s of timers, and `user_data` and addresses of io_uring requests.
//! These words are roots, since they may be the only pointers to objects. They are read from
//! `/proc`.
//!
//! For io_uring, the words of the entries that wait in the rings are read. Of the requests in
//! flight, only the number is known. Their ring entries remain until they are overwritten, and the
//! ring is memory of the process, which is searched.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};

/// Maximum number of descriptors that are examined.
const MAX_DESCRIPTORS: usize = 1 << 16;
/// Maximum number of bytes of `fdinfo` that are read for all descriptors together; a descriptor may
/// be duplicated many times.
const MAX_ENTRY_BYTES: u64 = 1 << 28;
/// Maximum number of bytes read of another file in `/proc`.
const MAX_TEXT_BYTES: u64 = 1 << 24;

/// Words that the kernel stores for a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelData {
    /// Words by origin, with the name of the origin for display.
    pub words: Vec<(String, Vec<u64>)>,
    /// Number of io_uring requests in flight. The memory that they point to is unknown.
    pub in_flight: u64,
}

impl KernelData {
    /// Reads the words that the kernel stores for all descriptors of a process. Slow.
    pub fn of_descriptors(pid: i32) -> Self {
        let mut data = Self::default();
        // A main thread that has exited has no descriptors.
        let pid = proc::living_thread(pid);
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            return data;
        };
        let mut bytes_left = MAX_ENTRY_BYTES;
        for entry in descriptors.flatten().take(MAX_DESCRIPTORS) {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            let Ok(number) = entry.file_name().into_string() else {
                continue;
            };
            let open = || File::open(format!("/proc/{pid}/fdinfo/{number}")).ok();
            match target.to_str() {
                Some("anon_inode:[eventpoll]") => {
                    let words = open().map(|file| epoll_data(file, &mut bytes_left));
                    let name = format!("data of epoll descriptor {number}");
                    data.words.push((name, words.unwrap_or_default()));
                }
                Some("anon_inode:[io_uring]") => {
                    let ring = open().map(|file| Ring::read(file, &mut bytes_left));
                    let ring = ring.unwrap_or_default();
                    data.in_flight += ring.in_flight();
                    let name = format!("entries of io_uring descriptor {number}");
                    data.words.push((name, ring.words));
                }
                _ => {}
            }
        }
        data
    }

    /// Adds the `sigev_value`s of the process's POSIX timers.
    pub fn add_timers(&mut self, pid: i32) {
        let text = read_limited(&format!("/proc/{pid}/timers"));
        let words = timer_values(&text).collect();
        self.words
            .push(("sigev_value of a timer".to_owned(), words));
    }

    /// Adds the words of another reading.
    pub fn join(&mut self, other: Self) {
        self.words.extend(other.words);
        self.in_flight = self.in_flight.max(other.in_flight);
    }
}

/// Calls `each` for each line. Reads at most `bytes_left` bytes and subtracts what it read.
fn lines(text: impl Read, bytes_left: &mut u64, mut each: impl FnMut(&str)) {
    let mut text = BufReader::new(text.take(*bytes_left));
    let mut line = String::new();
    loop {
        line.clear();
        match text.read_line(&mut line) {
            Ok(read) if read > 0 => *bytes_left = bytes_left.saturating_sub(read as u64),
            _ => return,
        }
        each(&line);
    }
}

/// Parses the fdinfo of an epoll descriptor and returns the data of its entries.
fn epoll_data(text: impl Read, bytes_left: &mut u64) -> Vec<u64> {
    let mut words = Vec::new();
    lines(text, bytes_left, |line| {
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
    /// Number of submissions that the kernel has accepted (`CachedSqHead`), modulo 2^32.
    sq_head: Option<u32>,
    /// Number of completions that the kernel has posted (`CachedCqTail`), modulo 2^32.
    cq_tail: Option<u32>,
    /// Number of poll requests.
    polls: u64,
}

impl Ring {
    fn read(text: impl Read, bytes_left: &mut u64) -> Self {
        let mut ring = Self::default();
        let mut in_polls = false;
        lines(text, bytes_left, |line| {
            let is_header = !line.starts_with(' ');
            if is_header && let Some((name, value)) = line.split_once(':') {
                in_polls = name == "PollList";
                match name {
                    "CachedSqHead" => ring.sq_head = value.trim().parse().ok(),
                    "CachedCqTail" => ring.cq_tail = value.trim().parse().ok(),
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

    /// Returns the number of requests in flight: accepted and not completed. A multishot poll
    /// completes many times, so the number of poll requests is a lower limit.
    fn in_flight(&self) -> u64 {
        let counts = self.sq_head.zip(self.cq_tail);
        let pending = counts.map_or(0, |(head, tail)| head.wrapping_sub(tail) as i32);
        u64::try_from(pending).unwrap_or(0).max(self.polls)
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
fn read_limited(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        let _ = file.take(MAX_TEXT_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the `sigev_value`s of timers, from lines `signal: NUMBER/VALUE`.
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
    fn values_of_timers_are_parsed() {
        let text = "ID: 1\nsignal: 60/00007fff86e452a8\nnotify: signal/pid.2634\nClockID: 0\n";
        assert_eq!(timer_values(text).collect::<Vec<_>>(), [0x7fff_86e4_52a8]);
    }

    #[test]
    fn entries_stop_at_the_byte_limit() {
        let text = "pos:\t0\ntfd: 5 events: 1 data: 1234 pos:0\n".repeat(100);
        let mut bytes_left = text.len() as u64 * 3 / 2;
        assert_eq!(epoll_data(text.as_bytes(), &mut bytes_left), [0x1234; 100]);
        assert!(epoll_data(text.as_bytes(), &mut bytes_left).len() <= 50);
        assert_eq!(bytes_left, 0);
        assert!(epoll_data(text.as_bytes(), &mut bytes_left).is_empty());
    }

    #[test]
    fn data_of_epoll_entries_are_read() {
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
            let words = data.words.iter().find(|(other, _)| *other == name);
            assert_eq!(
                words.map(|(_, words)| &words[..]),
                Some(&[0x1234_5678_9abc][..])
            );
            libc::close(event);
            libc::close(poll);
        }
    }

    /// `fdinfo` as written by Linux 6.18.
    const RING: &str = "pos:\t0\nflags:\t02000002\nmnt_id:\t17\nino:\t80661\nSqMask:\t0x7\nSqHead:\t3\n\
        SqTail:\t4\nCachedSqHead:\t3\nCqMask:\t0xf\nCqHead:\t0\nCqTail:\t1\nCachedCqTail:\t1\nSQEs:\t1\n\
        \x20   3: opcode:READ, fd:4, flags:0, off:0, addr:0x7f5ad0a68010, rw_flags:0x0, buf_index:0 \
        user_data:26214\nCQEs:\t1\n    0: user_data:30583, res:0, flag:0\nSqThread:\t-1\n\
        SqThreadCpu:\t-1\nUserFiles:\t0\nUserBufs:\t0\nPollList:\n  op=6, task_works=0\n\
        \x20 op=22, task_works=0\nCqOverflowList:\n  user_data=140026, res=4, flags=0\nNAPI:\tdisabled\n";

    #[test]
    fn waiting_entries_of_a_ring_are_parsed() {
        let ring = Ring::read(RING.as_bytes(), &mut { MAX_ENTRY_BYTES });
        assert_eq!(ring.words, [0x7f5a_d0a6_8010, 26214, 30583, 140_026]);
        assert_eq!(
            (ring.sq_head, ring.cq_tail, ring.polls),
            (Some(3), Some(1), 2)
        );
        assert_eq!(ring.in_flight(), 2);
    }

    #[test]
    fn uncompleted_requests_are_in_flight() {
        let in_flight = |sq_head: u32, cq_tail: u32, polls: usize| {
            let polls = "  op=6, task_works=0\n".repeat(polls);
            let text =
                format!("CachedSqHead:\t{sq_head}\nCachedCqTail:\t{cq_tail}\nPollList:\n{polls}");
            Ring::read(text.as_bytes(), &mut { MAX_ENTRY_BYTES }).in_flight()
        };
        assert_eq!(in_flight(7, 7, 0), 0);
        assert_eq!(in_flight(7, 5, 0), 2);
        // A multishot poll: more completions than submissions.
        assert_eq!(in_flight(7, 9, 1), 1);
        assert_eq!(in_flight(1, u32::MAX, 0), 2);
        // Older kernels show fewer fields.
        let ring = Ring::read(&b"SqThread:\t-1\nPollList:\n"[..], &mut { MAX_ENTRY_BYTES });
        assert_eq!((ring.in_flight(), ring.words), (0, vec![]));
    }
}
