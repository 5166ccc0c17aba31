//! Tracing thread. Tracing belongs to a thread, not to a process: only this thread may make
//! requests, and when it ends, the kernel releases all threads that it traced.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::RaisedPriority;

const IDLE: Duration = Duration::from_millis(10);

type Job = Box<dyn FnOnce() + Send>;

/// Thread that runs jobs one after another.
pub struct Tracer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Tracer {
    /// Starts the thread. It handles no signals of this process.
    pub fn start() -> std::io::Result<Self> {
        let (jobs, todo) = channel::<Job>();
        let work = move || {
            block_signals();
            // Scheduled before the target's own threads.
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

    /// Runs a job on the thread and waits for its result. Returns `None` if the thread has
    /// panicked.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> Option<R> {
        self.run_while(job, || {})
    }

    /// Like [`run`](Self::run), but calls `idle` here now and then meanwhile.
    pub fn run_while<R: Send + 'static>(
        &self,
        job: impl FnOnce() -> R + Send + 'static,
        idle: impl Fn(),
    ) -> Option<R> {
        let (answer, answered) = channel();
        let job = Box::new(move || {
            // The receiver is gone only if the caller has panicked.
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
            // The panic's message has been printed.
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

/// Disables the timer slack, by which the kernel may lengthen each sleep by 50 µs, so that the
/// target is stopped for a shorter time.
fn sleep_exactly() {
    // SAFETY: the call takes no pointers, and concerns the calling thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}
