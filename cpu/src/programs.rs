//! Which program each process runs, for an engine that is not notified when that changes.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proc::Stat;

use crate::recording::Recording;

/// Time between looks for new children, at least.
const SEARCH: Duration = Duration::from_millis(50);
/// A look may take this part of the time: machines with many processes are examined less often.
const SHARE: u32 = 20;

/// What became of a process since it was last examined, even if another engine has noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that is known.
    None,
    /// It executes another program.
    Executed,
    /// It has ended, and another one has its number.
    Ended,
}

/// A run of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    /// When the process was born.
    born: u64,
    /// What it runs; `None`: that may not be known.
    program: Option<Program>,
}

/// A program: its file, and where the kernel put its code and its stack. They are chosen again when
/// the same file is executed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Program {
    file: (u64, u64),
    places: (u64, u64),
}

/// The processes that are examined.
pub struct Programs {
    children: bool,
    /// With the serial numbers of what is recorded.
    known: HashMap<i32, (Identity, u64)>,
    next: Instant,
}

impl Programs {
    /// None yet. `children`: those of recorded processes are looked for.
    pub fn new(children: bool) -> Self {
        Self {
            children,
            known: HashMap::new(),
            next: Instant::now(),
        }
    }

    /// Tells the recording if a process executes another program, or is another one.
    pub fn look(&mut self, pid: i32, recording: &mut Recording) -> Change {
        let serial = recording.process(pid).map(|process| process.serial);
        let (Some(mut now), Some(serial)) = (Identity::of(pid), serial) else {
            return Change::None;
        };
        let (before, of) = *self.known.entry(pid).or_insert((now, serial));
        if of != serial {
            self.known.insert(pid, (now, serial));
            return Change::Executed;
        }
        if before.born != now.born {
            self.known.remove(&pid);
            recording.ended(pid);
            return Change::Ended;
        }
        now.program = now.program.or(before.program);
        let is_other = before.program.is_some() && before.program != now.program;
        if is_other {
            recording.executed(pid);
        }
        let process = recording.process(pid);
        let serial = process.map_or(serial, |process| process.serial);
        self.known.insert(pid, (now, serial));
        match is_other {
            true => Change::Executed,
            false => Change::None,
        }
    }

    /// Records the descendants that are new, and forgets who is recorded no longer.
    pub fn search(&mut self, recording: &mut Recording) {
        self.known
            .retain(|pid, _| recording.process(*pid).is_some());
        let began = Instant::now();
        if !self.children || began < self.next {
            return;
        }
        add_children(recording);
        self.next = Instant::now() + SEARCH.max(began.elapsed() * SHARE);
    }
}

/// Records the children of recorded processes that are not recorded yet, and theirs.
pub fn add_children(recording: &mut Recording) {
    let mut parents = proc::parents();
    // Parents first: a child has the larger number, mostly; the rest comes the next time.
    parents.sort_unstable();
    for (pid, parent) in parents {
        let is_new = recording.process(pid).is_none() && recording.process(parent).is_some();
        // One that has ended stays in the list until its parent waits for it.
        if is_new && !proc::is_over(pid) {
            recording.add_newborn(pid);
        }
    }
}

impl Identity {
    /// `None`: the process is gone.
    fn of(pid: i32) -> Option<Self> {
        let stat = Stat::of(pid)?;
        let file = proc::executable(pid);
        // Between the two it may have executed a program.
        let again = Stat::of(pid)?;
        let is_same = (again.start_time, again.addresses) == (stat.start_time, stat.addresses);
        // The kernel shows 0 or 1 where they may not be known.
        let is_whole = is_same && stat.addresses.0 > 1 && stat.addresses.1 > 1;
        let program = file.filter(|_| is_whole).map(|file| Program {
            file,
            places: stat.addresses,
        });
        Some(Self {
            born: stat.start_time,
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

    const LONG: Duration = Duration::from_secs(60);

    fn start(script: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
    }

    fn say(running: &mut Running) {
        running.0.stdin.as_mut().unwrap().write_all(b"x\n").unwrap();
    }

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let end = Instant::now() + LONG;
        while !is_so() {
            assert!(Instant::now() < end, "waited {LONG:?} for {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn another_program_is_noticed_and_so_is_the_same_one_again() {
        // Twice the same file.
        for next in ["exec sleep 1000", "exec sh -c 'read line; :'"] {
            let mut running = start(&format!("read line; {next}"));
            let pid = running.pid();
            let mut recording = Recording::new(false);
            let mut programs = Programs::new(false);
            recording.add(pid);
            let serial = recording.process(pid).unwrap().serial;
            assert_eq!(programs.look(pid, &mut recording), Change::None);
            assert_eq!(programs.look(pid, &mut recording), Change::None);
            say(&mut running);
            until("exec", || {
                programs.look(pid, &mut recording) == Change::Executed
            });
            assert_ne!(recording.process(pid).unwrap().serial, serial);
            assert_eq!(programs.look(pid, &mut recording), Change::None);
        }
    }

    #[test]
    fn what_another_engine_has_noticed_is_not_reported_again() {
        let pid = std::process::id().cast_signed();
        let mut recording = Recording::new(false);
        let mut programs = Programs::new(false);
        recording.add(pid);
        assert_eq!(programs.look(pid, &mut recording), Change::None);
        recording.executed(pid);
        let serial = recording.process(pid).unwrap().serial;
        assert_eq!(programs.look(pid, &mut recording), Change::Executed);
        assert_eq!(programs.look(pid, &mut recording), Change::None);
        assert_eq!(recording.process(pid).unwrap().serial, serial);
    }

    #[test]
    fn children_are_found_but_not_those_that_have_ended() {
        // The second one stays a zombie: `sleep` does not wait for it.
        let mut running = start("sleep 1000 & echo $!; : & echo $!; exec sleep 1000");
        let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
        let mut child = || lines.next().unwrap().unwrap().parse::<i32>().unwrap();
        let (alive, over) = (child(), child());
        until("its end", || proc::is_over(over));
        let mut recording = Recording::new(true);
        recording.add(running.pid());
        let mut programs = Programs::new(true);
        for _ in 0..2 {
            programs.next = Instant::now();
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
