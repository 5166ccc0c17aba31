//! Detection of exec and of new children, for engines that the kernel does not notify.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proc::{Addresses, Stat};

use crate::recording::Recording;

/// Minimum time between searches for new children.
const MIN_SEARCH_INTERVAL: Duration = Duration::from_millis(50);
/// Searches take at most 1 / `SEARCH_COST_FACTOR` of the time, so machines with many processes are
/// searched less often.
const SEARCH_COST_FACTOR: u32 = 20;

/// Change of a process since it was last checked. Reported even if another engine has noticed it
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No change, or none that can be detected.
    None,
    /// Exec of another program.
    Executed,
    /// The process has exited and its pid was reused.
    Ended,
}

/// Identity of one run of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    /// Start time of the process.
    started: u64,
    /// Program; `None` if it cannot be determined.
    program: Option<Program>,
}

/// Identity of a program: its file, and the addresses of its code and stack, which the kernel
/// chooses again at each exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Program {
    file: (u64, u64),
    addresses: Addresses,
}

/// Processes that are checked.
pub struct Programs {
    children: bool,
    /// Last known identity and serial number in the recording, by pid.
    known: HashMap<i32, (Identity, u64)>,
    next_search: Instant,
}

impl Programs {
    /// Creates an empty set. If `children`, children of recorded processes are searched for.
    pub fn new(children: bool) -> Self {
        Self {
            children,
            known: HashMap::new(),
            next_search: Instant::now(),
        }
    }

    /// Checks a process, and updates the recording if it has executed another program, or has
    /// exited and its pid was reused.
    pub fn check(&mut self, pid: i32, recording: &mut Recording) -> Change {
        let serial = recording.process(pid).map(|process| process.serial);
        let (Some(mut now), Some(serial)) = (Identity::of(pid), serial) else {
            return Change::None;
        };
        let (before, known_serial) = *self.known.entry(pid).or_insert((now, serial));
        if known_serial != serial {
            self.known.insert(pid, (now, serial));
            return Change::Executed;
        }
        if before.started != now.started {
            self.known.remove(&pid);
            recording.handle_exit(pid);
            return Change::Ended;
        }
        now.program = now.program.or(before.program);
        let has_changed = before.program.is_some() && before.program != now.program;
        if has_changed {
            recording.handle_exec(pid);
        }
        let process = recording.process(pid);
        let serial = process.map_or(serial, |process| process.serial);
        self.known.insert(pid, (now, serial));
        if has_changed {
            Change::Executed
        } else {
            Change::None
        }
    }

    /// Starts to record new descendants, and drops processes that are no longer recorded.
    pub fn search(&mut self, recording: &mut Recording) {
        self.known
            .retain(|pid, _| recording.process(*pid).is_some());
        let began = Instant::now();
        if !self.children || began < self.next_search {
            return;
        }
        add_children(recording);
        self.next_search =
            Instant::now() + MIN_SEARCH_INTERVAL.max(began.elapsed() * SEARCH_COST_FACTOR);
    }
}

/// Starts to record descendants of recorded processes.
pub fn add_children(recording: &mut Recording) {
    let mut parents = proc::parents();
    // A child usually has a larger pid than its parent, so parents come first. Other children are
    // found next time.
    parents.sort_unstable();
    for (pid, parent) in parents {
        let is_new = recording.process(pid).is_none() && recording.process(parent).is_some();
        // A zombie remains listed until its parent waits for it.
        if is_new && !proc::has_exited(pid) {
            recording.add_new(pid);
        }
    }
}

impl Identity {
    /// Reads the identity of a process. Returns `None` if it has ended.
    fn of(pid: i32) -> Option<Self> {
        let stat = Stat::of(pid)?;
        let file = proc::executable(pid);
        // An exec may have happened between the two readings.
        let again = Stat::of(pid)?;
        let is_same = again.start_time == stat.start_time && again.addresses == stat.addresses;
        // The kernel shows 0 or 1 instead of addresses that it hides.
        let Addresses { code, stack } = stat.addresses;
        let is_complete = is_same && code > 1 && stack > 1;
        let program = file.filter(|_| is_complete).map(|file| Program {
            file,
            addresses: stat.addresses,
        });
        Some(Self {
            started: stat.start_time,
            program,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::running::Running;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    fn start(script: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
    }

    /// Lets a script continue that waits in `read`.
    fn send_line(running: &mut Running) {
        running.0.stdin.as_mut().unwrap().write_all(b"x\n").unwrap();
    }

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !is_so() {
            assert!(Instant::now() < end, "waited {TEST_TIMEOUT:?} for {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn an_exec_is_noticed_even_of_the_same_program() {
        // The second one executes the same file again.
        for next in ["exec sleep 1000", "exec sh -c 'read line; :'"] {
            let mut running = start(&format!("read line; {next}"));
            let pid = running.pid();
            let mut recording = Recording::new(false);
            let mut programs = Programs::new(false);
            recording.add(pid);
            let serial = recording.process(pid).unwrap().serial;
            assert_eq!(programs.check(pid, &mut recording), Change::None);
            assert_eq!(programs.check(pid, &mut recording), Change::None);
            send_line(&mut running);
            until("exec", || {
                programs.check(pid, &mut recording) == Change::Executed
            });
            assert_ne!(recording.process(pid).unwrap().serial, serial);
            assert_eq!(programs.check(pid, &mut recording), Change::None);
        }
    }

    #[test]
    fn an_exec_that_another_engine_recorded_is_not_recorded_twice() {
        let pid = std::process::id().cast_signed();
        let mut recording = Recording::new(false);
        let mut programs = Programs::new(false);
        recording.add(pid);
        assert_eq!(programs.check(pid, &mut recording), Change::None);
        recording.handle_exec(pid);
        let serial = recording.process(pid).unwrap().serial;
        assert_eq!(programs.check(pid, &mut recording), Change::Executed);
        assert_eq!(programs.check(pid, &mut recording), Change::None);
        assert_eq!(recording.process(pid).unwrap().serial, serial);
    }

    #[test]
    fn live_children_are_found() {
        // The second one stays a zombie: `sleep` does not wait for it.
        let mut running = start("sleep 1000 & echo $!; : & echo $!; exec sleep 1000");
        let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
        let mut child = || lines.next().unwrap().unwrap().parse::<i32>().unwrap();
        let alive = child();
        let over = child();
        until("its end", || proc::has_exited(over));
        let mut recording = Recording::new(true);
        recording.add(running.pid());
        let mut programs = Programs::new(true);
        for _ in 0..2 {
            programs.next_search = Instant::now();
            programs.search(&mut recording);
            let mut pids = recording.pids();
            pids.sort_unstable();
            let mut expected = [running.pid(), alive];
            expected.sort_unstable();
            assert_eq!(pids, expected);
        }
        // SAFETY: takes numbers only.
        unsafe { libc::kill(alive, libc::SIGKILL) };
    }
}
