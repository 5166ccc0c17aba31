//! A second thread beside the caller's, on another processor from its first moment.
//!
//! Promises: numbered pieces of work are done by both, each once, their results in order.
//!
//! Left to itself, a kernel may start a thread where its parent runs and move it only
//! milliseconds later, or, in a virtual machine, wake one where its waker runs: work of a
//! few milliseconds is then done by one processor, one thread after the other. So the
//! second thread is put elsewhere as it starts, where it may, and neither waits for the
//! other asleep.

use std::os::unix::thread::JoinHandleExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// Runs `work` on a thread of its own, on another processor than the caller's.
///
/// `None` where there is just one processor, or no thread to be had: the caller then
/// works alone.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    let allowed = allowed()?;
    let mut others = allowed;
    // SAFETY: both look at a set that is ours.
    let elsewhere = unsafe {
        let here = usize::try_from(libc::sched_getcpu()).ok()?;
        if here < 8 * size_of::<libc::cpu_set_t>() {
            libc::CPU_CLR(here, &mut others);
        }
        libc::CPU_COUNT(&others) > 0
    };
    if !elsewhere {
        return None;
    }
    let thread = std::thread::Builder::new().spawn(work).ok()?;
    // First elsewhere, then free to go where the kernel wants it. Where that is refused,
    // nothing is lost but time.
    for set in [others, allowed] {
        // SAFETY: the thread is not joined yet, so its handle is valid; the set is ours.
        unsafe {
            libc::pthread_setaffinity_np(thread.as_pthread_t(), size_of_val(&set), &set);
        }
    }
    Some(thread)
}

/// The processors that this thread may run on; `None` where there are too many to tell.
fn allowed() -> Option<libc::cpu_set_t> {
    // SAFETY: a set is plain bits, all of them may be zero.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is ours, and as large as we say.
    let told = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    (told == 0).then_some(set)
}

/// Numbered pieces of work, which a second thread has begun with.
pub struct Shared<T> {
    work: Arc<Work<T>>,
    thread: Option<JoinHandle<()>>,
}

struct Work<T> {
    next: AtomicUsize,
    done: Vec<OnceLock<T>>,
    work: Box<dyn Fn(usize) -> T + Send + Sync>,
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Begins with the pieces 0 to `count`.
    pub fn start(count: usize, work: impl Fn(usize) -> T + Send + Sync + 'static) -> Self {
        let work = Arc::new(Work {
            next: AtomicUsize::new(0),
            done: (0..count).map(|_| OnceLock::new()).collect(),
            work: Box::new(work),
        });
        let theirs = Arc::clone(&work);
        let thread = (count > 1).then(|| spawn(move || theirs.help())).flatten();
        Self { work, thread }
    }

    /// Does what is left, and gives all results.
    pub fn finish(self) -> Vec<T> {
        self.work.help();
        if let Some(thread) = self.thread {
            // A panic aborts: there is nothing to be told here.
            let _ = thread.join();
        }
        let work = Arc::into_inner(self.work);
        let done = work.into_iter().flat_map(|work| work.done);
        done.filter_map(OnceLock::into_inner).collect()
    }
}

impl<T> Work<T> {
    fn help(&self) {
        loop {
            let piece = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(done) = self.done.get(piece) else {
                return;
            };
            done.get_or_init(|| (self.work)(piece));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_and_in_order() {
        for count in [0, 1, 2, 1000] {
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&calls);
            let shared = Shared::start(count, move |piece| {
                counted.fetch_add(1, Ordering::Relaxed);
                piece * piece
            });
            let squares: Vec<usize> = (0..count).map(|piece| piece * piece).collect();
            assert_eq!(shared.finish(), squares);
            assert_eq!(calls.load(Ordering::Relaxed), count);
        }
    }

    #[test]
    fn the_second_thread_may_run_wherever_its_parent_may() {
        let masks = |set: &libc::cpu_set_t| -> Vec<bool> {
            // SAFETY: the set is ours, the number within it.
            (0..1024)
                .map(|cpu| unsafe { libc::CPU_ISSET(cpu, set) })
                .collect()
        };
        let ours = masks(&allowed().unwrap());
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = spawn(move || {
            wait.recv().unwrap();
            tell.send(masks(&allowed().unwrap())).unwrap();
        });
        // With one processor there is no second thread.
        assert_eq!(
            thread.is_some(),
            ours.iter().filter(|may| **may).count() > 1
        );
        if let Some(thread) = thread {
            go.send(()).unwrap();
            assert_eq!(told.recv().unwrap(), ours);
            thread.join().unwrap();
        }
    }
}
