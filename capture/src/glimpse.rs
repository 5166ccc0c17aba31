//! Glimpses: stops one thread for a few microseconds to read its registers and, if the caller
//! wants, memory.
//!
//! The thread is traced only for that time, so signals are delivered as usual, and it continues by
//! itself if this process is killed. A stop of its whole process (`SIGSTOP`) stays in effect.
//!
//! A thread of this process does the tracing. It cannot detach the traced thread if that does not
//! stop in time, was killed while stopped, or has gone to sleep and must not be interrupted. In
//! these cases the tracing thread exits, so that the kernel releases the traced one, and the next
//! glimpse starts a new tracing thread.

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
    /// Tracing thread, which traces nothing between two glimpses; `None` if a new one is needed.
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
    /// Returns the thread pointer, by which the C library identifies threads. Reading it may take
    /// another system call (aarch64).
    #[must_use]
    pub fn thread_pointer(&self) -> Option<u64> {
        arch::thread_pointer(self.tid, self.general).ok()
    }
}

/// Result of a glimpse.
struct GlimpseResult<R> {
    /// Result of `inspect`, as [`Glimpses::take`] returns it.
    result: io::Result<Option<R>>,
    /// True if the thread is no longer traced.
    is_released: bool,
}

impl<R> GlimpseResult<R> {
    fn nothing(is_released: bool) -> Self {
        let result = Ok(None);
        Self {
            result,
            is_released,
        }
    }
}

impl Glimpses {
    /// Stops a thread if it is running, calls `inspect` with its registers, and resumes it.
    /// `inspect` may also read the thread's memory. Returns `None` if the thread sleeps, did not
    /// stop within `limit`, has exited, or runs 32-bit code.
    ///
    /// When this returns, the thread is no longer traced, or is about to be released.
    ///
    /// # Errors
    /// Returns the kernel's error if it forbids tracing the thread, or starting the tracing thread.
    pub fn take<R: Send + 'static>(
        &mut self,
        pid: i32,
        tid: i32,
        limit: Duration,
        inspect: impl FnOnce(&Glimpse<'_>) -> R + Send + 'static,
    ) -> io::Result<Option<R>> {
        let Some(state) = StatFile::open(pid, tid) else {
            return Ok(None);
        };
        let tracer = match self.tracer.take() {
            Some(tracer) => tracer,
            None => Tracer::start()?,
        };
        let hold = Hold::new();
        let job = move || take_glimpse(tid, limit, || state.is_running(), inspect);
        // If the process calls exec during the glimpse, its other threads are killed, and the
        // kernel does not let any process trace or read it until these have been reaped.
        let glimpse = tracer
            .run_while(job, || reap_dead_threads(pid))
            .unwrap_or(GlimpseResult::nothing(false));
        self.tracer = glimpse.is_released.then_some(tracer);
        drop(hold);
        glimpse.result
    }
}

/// Takes a glimpse on the tracing thread. `is_running` returns true if the thread is running. It is
/// called before the thread is traced and again just before the interruption, since interrupting a
/// sleeping thread could make its system call return `EINTR`. Tracing alone does not affect a
/// thread.
fn take_glimpse<R>(
    tid: i32,
    limit: Duration,
    is_running: impl Fn() -> bool,
    inspect: impl FnOnce(&Glimpse<'_>) -> R,
) -> GlimpseResult<R> {
    if !is_running() {
        return GlimpseResult::nothing(true);
    }
    match request::seize(tid, 0) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
            return GlimpseResult::nothing(true);
        }
        Err(error) => {
            return GlimpseResult {
                result: Err(error),
                is_released: true,
            };
        }
    }
    // If the thread has just died, interrupting it fails, and it is released when the tracing
    // thread exits.
    if !is_running() || request::interrupt(tid).is_err() {
        return GlimpseResult::nothing(false);
    }
    let mut waiter = Waiter::new(limit).sparing();
    loop {
        // Does not reap an exit: the parent does, which the kernel notifies when the tracing thread
        // exits.
        match request::poll(tid, true) {
            Ok(None) if waiter.wait(tid) => {}
            Ok(None | Some(Event::Exited)) | Err(_) => return GlimpseResult::nothing(false),
            Ok(Some(Event::NotTraced)) => return GlimpseResult::nothing(true),
            Ok(Some(event)) => {
                let registers = request::general(tid).ok().flatten();
                let result = registers.map(|registers| inspect_registers(tid, &registers, inspect));
                return GlimpseResult {
                    result: Ok(result),
                    is_released: release(tid, event),
                };
            }
        }
    }
}

/// Calls `inspect` with the registers of a stopped thread.
fn inspect_registers<R>(tid: i32, general: &General, inspect: impl FnOnce(&Glimpse<'_>) -> R) -> R {
    inspect(&Glimpse {
        registers: &general.by_number(),
        pc: general.pc(),
        tid,
        general,
    })
}

/// Detaches from a thread, and delivers the signal that it was about to receive. Returns false if
/// the thread was killed during the stop.
fn release(tid: i32, event: Event) -> bool {
    let signal = match event {
        Event::Signal(signal) => signal,
        _ => 0,
    };
    request::detach_with(tid, signal).is_ok()
}

/// `/proc/PID/task/TID/stat`, opened in advance, so that the check just before the interruption is
/// quick.
struct StatFile(File);

impl StatFile {
    fn open(pid: i32, tid: i32) -> Option<Self> {
        File::open(format!("/proc/{pid}/task/{tid}/stat"))
            .ok()
            .map(Self)
    }

    /// Returns true if the thread is running or runnable.
    fn is_running(&self) -> bool {
        let mut text = [0; 128];
        let length = self.0.read_at(&mut text, 0).unwrap_or(0);
        let text = &text[..length];
        // The command name, in parentheses, may contain any bytes. The state follows after a space.
        let name_end = text.iter().rposition(|b| *b == b')');
        name_end.and_then(|end| text.get(end + 2)) == Some(&b'R')
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
    /// Creates threads that run briefly, until there is something to read; then prints "done".
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
    /// Waits for a vfork child. Until the child reads a byte and exits, the program cannot be
    /// stopped.
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
    /// Prints the outcome of `epoll_wait`.
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

    /// A child, which is killed when this is dropped, and the lines that it writes.
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

        fn compile_and_start(source: &str) -> Self {
            let program = compile(source);
            let running = Self::start(&mut Command::new(&program));
            std::fs::remove_file(program).unwrap();
            running
        }

        fn pid(&self) -> i32 {
            self.0.id().cast_signed()
        }

        fn read_line(&self) -> String {
            self.1.recv_timeout(TEST_TIMEOUT).expect("a line")
        }

        fn send_byte(&mut self) {
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

    fn wait_until(event: &str, has_happened: impl Fn() -> bool) {
        let end = Instant::now() + TEST_TIMEOUT;
        while !has_happened() {
            assert!(Instant::now() < end, "waited {TEST_TIMEOUT:?} for {event}");
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

    /// Takes a glimpse in a tracing thread that then exits, like one of [`Glimpses`]. Returns true
    /// if the traced thread was detached.
    fn take_in_new_tracer(
        tid: i32,
        limit: Duration,
        is_running: impl Fn() -> bool + Send + 'static,
    ) -> bool {
        let take = move || take_glimpse(tid, limit, is_running, |_| ());
        let tracer = Tracer::start().unwrap();
        let glimpse = tracer.run(take).unwrap();
        assert!(glimpse.result.unwrap().is_none());
        glimpse.is_released
    }

    fn busy() -> Running {
        let running = Running::start(Command::new("sh").args(["-c", "while :; do :; done"]));
        wait_until("the loop", || state(running.pid()) == Some('R'));
        running
    }

    #[test]
    fn glimpses_of_a_running_thread_give_its_registers() {
        let running = busy();
        let pid = running.pid();
        let mut glimpses = Glimpses::default();
        let mut taken = 0;
        let mut last_pointer = None;
        let end = Instant::now() + TEST_TIMEOUT;
        // A program that is starting has no thread pointer yet.
        while taken < 20 || last_pointer.is_none_or(|pointer| pointer == 0) {
            assert!(Instant::now() < end, "{taken} glimpses in {TEST_TIMEOUT:?}");
            let inspect = |glimpse: &Glimpse<'_>| {
                (
                    glimpse.registers.len(),
                    glimpse.pc,
                    glimpse.thread_pointer(),
                )
            };
            // Just after a glimpse, the thread may not be running again yet.
            if let Some((count, pc, pointer)) =
                glimpses.take(pid, pid, TEST_TIMEOUT, inspect).unwrap()
            {
                assert!(count >= 16 && pc != 0);
                assert!(!is_traced(pid));
                taken += 1;
                last_pointer = pointer;
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
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        wait_until("the stop", || state(pid) == Some('T'));
        let tracer = Tracer::start().unwrap();
        // Simulates a process that is stopped just before the interruption.
        let glimpse = tracer.run(move || take_glimpse(pid, TEST_TIMEOUT, || true, |_| ()));
        assert!(matches!(glimpse.unwrap().result, Ok(Some(()))));
        // Between the tracing stop and the group-stop, the thread is briefly awake in the kernel.
        wait_until("the stop", || state(pid) == Some('T'));
        let mut glimpses = Glimpses::default();
        assert!(
            glimpses
                .take(pid, pid, TEST_TIMEOUT, |_| ())
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn the_exit_of_a_thread_killed_during_a_glimpse_is_reported_to_its_parent() {
        let script = "sh -c 'while :; do :; done' & echo $!; wait $!; echo ended $?";
        let parent = Running::start(Command::new("sh").args(["-c", script]));
        let pid: i32 = parent.read_line().parse().unwrap();
        wait_until("the loop", || state(pid) == Some('R'));
        let mut glimpses = Glimpses::default();
        // SAFETY: the call takes no pointers.
        let kill = move |_: &Glimpse<'_>| unsafe { libc::kill(pid, libc::SIGKILL) };
        let end = Instant::now() + TEST_TIMEOUT;
        while glimpses
            .take(pid, pid, TEST_TIMEOUT, kill)
            .unwrap()
            .is_none()
        {
            assert!(Instant::now() < end, "no glimpse succeeded");
        }
        // The parent is notified even though `glimpses` still exists.
        assert_eq!(parent.read_line(), "ended 137");
        drop(glimpses);
    }

    #[test]
    fn a_child_of_this_process_killed_during_a_glimpse_is_left_for_its_waiter() {
        let mut running = busy();
        let pid = running.pid();
        let mut glimpses = Glimpses::default();
        // SAFETY: the call takes no pointers.
        let kill = move |_: &Glimpse<'_>| unsafe { libc::kill(pid, libc::SIGKILL) };
        let end = Instant::now() + TEST_TIMEOUT;
        while glimpses
            .take(pid, pid, TEST_TIMEOUT, kill)
            .unwrap()
            .is_none()
        {
            assert!(Instant::now() < end, "no glimpse succeeded");
        }
        let status = running.0.wait().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(libc::SIGKILL)
        );
    }

    #[test]
    fn short_lived_threads_leave_no_zombies() {
        let mut running = Running::compile_and_start(SHORT_THREADS);
        let pid = running.pid();
        let mut glimpses = Glimpses::default();
        let mut taken = 0;
        let end = Instant::now() + TEST_TIMEOUT;
        while taken < 200 && Instant::now() < end {
            for tid in proc::threads(pid) {
                let limit = Duration::from_millis(2);
                let result = glimpses.take(pid, tid, limit, |_| ());
                // Tracing fails while the last glimpse's tracer has not released the thread yet.
                taken += u32::from(matches!(result, Ok(Some(()))));
            }
        }
        assert!(taken > 0);
        running.send_byte();
        assert_eq!(running.read_line(), "done");
        wait_until("the last thread to be gone", || proc::threads(pid) == [pid]);
        drop(glimpses);
    }

    #[test]
    fn a_thread_that_does_not_stop_in_time_is_released() {
        let mut running = Running::compile_and_start(VFORK);
        assert_eq!(running.read_line(), "ready");
        let pid = running.pid();
        wait_until("vfork", || state(pid) == Some('D'));
        assert!(!take_in_new_tracer(pid, Duration::from_millis(5), || true));
        wait_until("its release", || !is_traced(pid));
        running.send_byte();
        // The pending interruption must not stop the thread later.
        assert_eq!(running.read_line(), "done");
    }

    #[test]
    fn a_thread_that_has_just_gone_to_sleep_is_not_interrupted() {
        let mut running = Running::compile_and_start(EPOLL);
        assert_eq!(running.read_line(), "ready");
        let pid = running.pid();
        wait_until("the sleep", || state(pid) == Some('S'));
        for _ in 0..10 {
            let checks = AtomicU32::new(0);
            let is_running_at_first = move || checks.fetch_add(1, Ordering::Relaxed) == 0;
            assert!(!take_in_new_tracer(pid, TEST_TIMEOUT, is_running_at_first));
            wait_until("its release", || !is_traced(pid));
        }
        running.send_byte();
        assert_eq!(running.read_line(), "done");
    }
}
