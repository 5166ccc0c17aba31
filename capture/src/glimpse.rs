//! Glimpses: stops one thread for a few microseconds to read its registers, and memory if the
//! caller wants.
//!
//! The thread is traced only that long, so signals are delivered as usual, and it continues by
//! itself if this process is killed. A stop of its whole process (`SIGSTOP`) stays in effect.
//!
//! A thread of this process does the tracing. Sometimes it cannot detach a thread with a request:
//! because that does not stop soon, was killed while stopped, or must not be interrupted any more.
//! Then the tracing thread ends, by which the kernel releases the traced one, and the next glimpse
//! uses another.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::arch::{self, General};
use crate::request::{self, Event};
use crate::seizure::reap_dead_threads;
use crate::suspension::Hold;
use crate::tracer::Tracer;
use crate::waiter::Waiter;

/// Takes glimpses of threads, one after another.
#[derive(Default)]
pub struct Glimpses {
    /// Tracing thread, which traces nothing between two glimpses.
    tracer: Option<Tracer>,
}

/// State of a thread while it is stopped.
pub struct Glimpse<'a> {
    /// General registers by DWARF number.
    pub registers: &'a [u64],
    /// Program counter.
    pub pc: u64,
    tid: i32,
    general: &'a General,
}

impl Glimpse<'_> {
    /// Returns the thread pointer, by which the C library identifies threads. Read only on request,
    /// since on some machines it takes another system call.
    #[must_use]
    pub fn thread_pointer(&self) -> Option<u64> {
        arch::thread_pointer(self.tid, self.general).ok()
    }
}

/// Result of a glimpse.
struct Taken<R> {
    seen: io::Result<Option<R>>,
    /// True if the thread is no longer traced.
    is_free: bool,
}

impl<R> Taken<R> {
    fn nothing(is_free: bool) -> Self {
        let seen = Ok(None);
        Self { seen, is_free }
    }
}

impl Glimpses {
    /// Stops a thread if it is running, calls `look` and resumes it. `look` gets its registers, and
    /// may read its memory. Returns `None` if the thread sleeps, did not stop within `limit`, has
    /// ended, or runs 32-bit code.
    ///
    /// In any case, afterwards the thread is not traced by this process, or is about to be
    /// released.
    ///
    /// # Errors
    /// Errors of the kernel, which forbids tracing the thread or starting a thread that traces.
    pub fn take<R: Send + 'static>(
        &mut self,
        pid: i32,
        tid: i32,
        limit: Duration,
        look: impl FnOnce(&Glimpse<'_>) -> R + Send + 'static,
    ) -> io::Result<Option<R>> {
        let Some(state) = State::open(pid, tid) else {
            return Ok(None);
        };
        let tracer = match self.tracer.take() {
            Some(tracer) => tracer,
            None => Tracer::start()?,
        };
        let hold = Hold::new();
        let job = move || take(tid, limit, || state.is_running(), look);
        // If the process executes a program meanwhile, its other threads are killed, and the kernel
        // does not let any process trace or read it until these have been waited for.
        let taken = tracer.run_while(job, || reap_dead_threads(pid));
        let taken = taken.unwrap_or(Taken::nothing(false));
        self.tracer = taken.is_free.then_some(tracer);
        drop(hold);
        taken.seen
    }
}

/// Takes a glimpse on the tracing thread. `runs` returns true if the thread is running. It is
/// called before the thread is traced and at the last moment, since interrupting a sleeping thread
/// could make its system call return `EINTR`. Being traced without an interruption does not affect
/// it.
fn take<R>(
    tid: i32,
    limit: Duration,
    runs: impl Fn() -> bool,
    look: impl FnOnce(&Glimpse<'_>) -> R,
) -> Taken<R> {
    if !runs() {
        return Taken::nothing(true);
    }
    match request::seize(tid, 0) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Taken::nothing(true),
        Err(error) => {
            let seen = Err(error);
            return Taken {
                seen,
                is_free: true,
            };
        }
    }
    // If the thread died just now, interrupting it fails, and it is released when the tracing
    // thread ends.
    if !runs() || request::interrupt(tid).is_err() {
        return Taken::nothing(false);
    }
    let mut waiter = Waiter::new(limit).sparing();
    loop {
        // Its exit status is left unread. When the tracing thread ends, the kernel notifies the
        // parent.
        match request::poll(tid, true) {
            Ok(None) if waiter.wait(tid) => {}
            Ok(None | Some(Event::End)) | Err(_) => return Taken::nothing(false),
            Ok(Some(Event::None)) => return Taken::nothing(true),
            Ok(Some(event)) => {
                let registers = request::general(tid).ok().flatten();
                let seen = registers.map(|registers| seen(tid, &registers, look));
                return Taken {
                    seen: Ok(seen),
                    is_free: release(tid, event),
                };
            }
        }
    }
}

fn seen<R>(tid: i32, general: &General, look: impl FnOnce(&Glimpse<'_>) -> R) -> R {
    look(&Glimpse {
        registers: &general.by_number(),
        pc: general.pc(),
        tid,
        general,
    })
}

/// Resumes a thread, with the signal that it was about to receive. Returns false if it was killed
/// meanwhile.
fn release(tid: i32, event: Event) -> bool {
    let signal = match event {
        Event::Signal(signal) => signal,
        _ => 0,
    };
    request::detach_with(tid, signal).is_ok()
}

/// `/proc/PID/task/TID/stat`, opened in advance: at the last moment, a read is quicker.
struct State(File);

impl State {
    fn open(pid: i32, tid: i32) -> Option<Self> {
        File::open(format!("/proc/{pid}/task/{tid}/stat"))
            .ok()
            .map(Self)
    }

    /// Returns true if the thread is running or runnable.
    fn is_running(&self) -> bool {
        let mut text = [0; 128];
        let read = self.0.read_at(&mut text, 0).unwrap_or(0);
        let text = &text[..read];
        // The command name may contain any bytes.
        let name = text.iter().rposition(|b| *b == b')');
        name.and_then(|at| text.get(at + 2)) == Some(&b'R')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::path::PathBuf;
    use std::process::{Child, Command, Stdio};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);
    /// Makes threads that run for a moment, until it reads something; then says so.
    const SHORT_THREADS: &str = r#"
        #include <poll.h>
        #include <pthread.h>
        #include <stdio.h>
        static void *run(void *count) {
            for (volatile long i = 0; i < (long)count; i++) {}
            return 0;
        }
        int main(void) {
            struct pollfd end = {0, POLLIN, 0};
            while (poll(&end, 1, 0) == 0) {
                pthread_t threads[8];
                for (long i = 0; i < 8; i++)
                    pthread_create(&threads[i], 0, run, (void *)(100000 * (i + 1)));
                for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
            }
            puts("done");
            fflush(stdout);
            getchar();
            getchar();
        }"#;
    /// Waits for a child of vfork, and does not stop meanwhile; says so.
    const VFORK: &str = r#"
        #include <stdio.h>
        #include <unistd.h>
        int main(void) {
            puts("ready");
            fflush(stdout);
            char byte;
            if (vfork() == 0) {
                read(0, &byte, 1);
                _exit(0);
            }
            puts("done");
            fflush(stdout);
            read(0, &byte, 1);
        }"#;
    /// Says how epoll_wait ended.
    const EPOLL: &str = r#"
        #include <errno.h>
        #include <stdio.h>
        #include <sys/epoll.h>
        int main(void) {
            struct epoll_event event = {.events = EPOLLIN};
            int epoll = epoll_create1(0);
            epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &event);
            puts("ready");
            fflush(stdout);
            int got = epoll_wait(epoll, &event, 1, -1);
            puts(got == 1 ? "done" : errno == EINTR ? "interrupted" : "failed");
            fflush(stdout);
            getchar();
        }"#;

    /// A child that is killed at the latest with this, and the lines that it writes.
    struct Running(Child, Receiver<String>);

    impl Running {
        fn start(command: &mut Command) -> Self {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let (line, lines) = channel();
            let output = BufReader::new(child.stdout.take().unwrap());
            std::thread::spawn(move || {
                output
                    .lines()
                    .map_while(Result::ok)
                    .try_for_each(|text| line.send(text))
            });
            Self(child, lines)
        }

        fn of_c(source: &str) -> Self {
            let program = compile(source);
            let running = Self::start(&mut Command::new(&program));
            std::fs::remove_file(program).unwrap();
            running
        }

        fn pid(&self) -> i32 {
            self.0.id().cast_signed()
        }

        fn hear(&self) -> String {
            self.1.recv_timeout(TEST_TIMEOUT).expect("a line")
        }

        fn say(&mut self) {
            let input = self.0.stdin.as_mut().unwrap();
            input.write_all(b"x").unwrap();
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn compile(source: &str) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("glimpse-{}-{number}", std::process::id());
        let program = std::env::temp_dir().join(name);
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-w", "-pthread", "-x", "c", "-", "-o"])
            .arg(&program);
        let mut gcc = gcc.stdin(Stdio::piped()).spawn().expect("gcc");
        let mut input = gcc.stdin.take().unwrap();
        input.write_all(source.as_bytes()).unwrap();
        drop(input);
        assert!(gcc.wait().unwrap().success());
        program
    }

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !is_so() {
            assert!(Instant::now() < end, "waited {TEST_TIMEOUT:?} for {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn state(pid: i32) -> Option<char> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.trim_start().chars().next()
    }

    fn is_traced(pid: i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        !status.contains("TracerPid:\t0\n")
    }

    /// In a thread that ends, as that of [`Glimpses`].
    fn take_alone(tid: i32, limit: Duration, runs: impl Fn() -> bool + Send + 'static) -> bool {
        let take = move || take(tid, limit, runs, |_| ());
        let tracer = Tracer::start().unwrap();
        let taken = tracer.run(take).unwrap();
        assert!(taken.seen.unwrap().is_none());
        taken.is_free
    }

    fn busy() -> Running {
        let running = Running::start(Command::new("sh").args(["-c", "while :; do :; done"]));
        until("it to run", || state(running.pid()) == Some('R'));
        running
    }

    #[test]
    fn a_thread_is_seen_and_runs_on() {
        let running = busy();
        let pid = running.pid();
        let mut glimpses = Glimpses::default();
        let (mut seen, mut last) = (0, None);
        let end = Instant::now() + TEST_TIMEOUT;
        // A program that begins has no thread pointer yet.
        while seen < 20 || last.is_none_or(|pointer| pointer == 0) {
            assert!(
                Instant::now() < end,
                "seen {seen} times in {TEST_TIMEOUT:?}"
            );
            let look = |glimpse: &Glimpse<'_>| {
                (
                    glimpse.registers.len(),
                    glimpse.pc,
                    glimpse.thread_pointer(),
                )
            };
            // It is not running for a moment while it is being let go.
            if let Some((count, pc, pointer)) = glimpses.take(pid, pid, TEST_TIMEOUT, look).unwrap()
            {
                assert!(count >= 16 && pc != 0);
                assert!(!is_traced(pid));
                (seen, last) = (seen + 1, pointer);
            }
        }
        drop(running);
        assert!(matches!(
            glimpses.take(pid, pid, TEST_TIMEOUT, |_| ()),
            Ok(None)
        ));
    }

    #[test]
    fn a_stopped_process_stays_stopped() {
        let running = busy();
        let pid = running.pid();
        // SAFETY: takes numbers only.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        until("the stop", || state(pid) == Some('T'));
        let tracer = Tracer::start().unwrap();
        // As if it had stopped at the last moment.
        let taken = tracer.run(move || take(pid, TEST_TIMEOUT, || true, |_| ()));
        assert!(matches!(taken.unwrap().seen, Ok(Some(()))));
        // On its way from our stop to the other one it is awake for a moment, in the kernel.
        until("the stop", || state(pid) == Some('T'));
        let mut glimpses = Glimpses::default();
        assert!(
            glimpses
                .take(pid, pid, TEST_TIMEOUT, |_| ())
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_thread_that_is_killed_meanwhile_ends_for_its_parent() {
        let script = "sh -c 'while :; do :; done' & echo $!; wait $!; echo ended $?";
        let parent = Running::start(Command::new("sh").args(["-c", script]));
        let pid: i32 = parent.hear().parse().unwrap();
        until("it to run", || state(pid) == Some('R'));
        let mut glimpses = Glimpses::default();
        // SAFETY: takes numbers only.
        let kill = move |_: &Glimpse<'_>| unsafe { libc::kill(pid, libc::SIGKILL) };
        let end = Instant::now() + TEST_TIMEOUT;
        while glimpses
            .take(pid, pid, TEST_TIMEOUT, kill)
            .unwrap()
            .is_none()
        {
            assert!(Instant::now() < end, "it was never seen");
        }
        // While the other end of this still stands.
        assert_eq!(parent.hear(), "ended 137");
        drop(glimpses);
    }

    #[test]
    fn our_own_child_that_is_killed_meanwhile_is_left_for_its_waiter() {
        let mut running = busy();
        let pid = running.pid();
        let mut glimpses = Glimpses::default();
        // SAFETY: takes numbers only.
        let kill = move |_: &Glimpse<'_>| unsafe { libc::kill(pid, libc::SIGKILL) };
        let end = Instant::now() + TEST_TIMEOUT;
        while glimpses
            .take(pid, pid, TEST_TIMEOUT, kill)
            .unwrap()
            .is_none()
        {
            assert!(Instant::now() < end, "it was never seen");
        }
        let status = running.0.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(libc::SIGKILL)
        );
    }

    #[test]
    fn threads_that_come_and_go_leave_no_zombies() {
        let mut running = Running::of_c(SHORT_THREADS);
        let pid = running.pid();
        let mut glimpses = Glimpses::default();
        let (mut seen, end) = (0, Instant::now() + TEST_TIMEOUT);
        while seen < 200 && Instant::now() < end {
            for tid in proc::threads(pid) {
                let limit = Duration::from_millis(2);
                let taken = glimpses.take(pid, tid, limit, |_| ());
                // One that is not let go by the last glimpse's tracer yet is refused.
                seen += u32::from(matches!(taken, Ok(Some(()))));
            }
        }
        assert!(seen > 0);
        running.say();
        assert_eq!(running.hear(), "done");
        until("the last thread to be gone", || proc::threads(pid) == [pid]);
        drop(glimpses);
    }

    #[test]
    fn a_thread_that_does_not_stop_is_let_go() {
        let mut running = Running::of_c(VFORK);
        assert_eq!(running.hear(), "ready");
        let pid = running.pid();
        until("vfork", || state(pid) == Some('D'));
        assert!(!take_alone(pid, Duration::from_millis(5), || true));
        until("it to be let go", || !is_traced(pid));
        running.say();
        // It stops nowhere on its way.
        assert_eq!(running.hear(), "done");
    }

    #[test]
    fn a_thread_that_has_gone_to_sleep_meanwhile_is_not_interrupted() {
        let mut running = Running::of_c(EPOLL);
        assert_eq!(running.hear(), "ready");
        let pid = running.pid();
        until("it to sleep", || state(pid) == Some('S'));
        for _ in 0..10 {
            let asked = AtomicU32::new(0);
            let runs_at_first = move || asked.fetch_add(1, Ordering::Relaxed) == 0;
            assert!(!take_alone(pid, TEST_TIMEOUT, runs_at_first));
            until("it to be let go", || !is_traced(pid));
        }
        running.say();
        assert_eq!(running.hear(), "done");
    }
}
