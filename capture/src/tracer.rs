//! The thread that traces. Tracing belongs to a thread, not to a process: only this one may make
//! requests, and when it ends, the kernel releases everything that it traced.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::RaisedPriority;

const IDLE: Duration = Duration::from_millis(10);

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does what it is given, one after another.
pub struct Tracer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Starts it. Signals of this process are not handled there.
    pub fn start() -> std::io::Result<Self> {
        let (jobs, todo) = channel::<Job>();
        let work = move || {
            block_signals();
            // Before the target's own threads.
            let _raised = RaisedPriority::new();
            sleep_exactly();
            crate::alarm::set_up();
            todo.into_iter().for_each(|job| job());
        };
        let thread = Builder::new().name("capture".to_owned()).spawn(work)?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Does this there, and waits for the answer; `None` if the thread has panicked.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        self.run_while(job, || {})
    }

    /// The same; meanwhile `idle` is called here, now and then.
    pub fn run_while<R: Send + 'static>(
        &self,
        job: impl FnOnce() -> R + Send + 'static,
        idle: impl Fn(),
    ) -> Option<R> {
        let (answer, answered) = channel();
        let job = Box::new(move || {
            // No receiver is left only if the caller has panicked.
            let _ = answer.send(job());
        });
        self.jobs.as_ref()?.send(job).ok()?;
        loop {
            match answered.recv_timeout(IDLE) {
                Err(RecvTimeoutError::Timeout) => idle(),
                answer => return answer.ok(),
            }
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // What it panicked with has been printed.
            let _ = thread.join();
        }
    }
}

fn block_signals() {
    // SAFETY: plain numbers, filled by sigfillset; the call changes this thread's mask only.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

/// Without the 50 µs by which the kernel may lengthen each sleep: the target is stopped for a
/// shorter time.
fn sleep_exactly() {
    // SAFETY: takes numbers only, and concerns the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}
