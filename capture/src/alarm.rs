//! Waits for a traced thread without polling, which would keep a processor busy and wake this one
//! again and again: a timer interrupts the wait now and then.

use std::cell::RefCell;
use std::io::Error;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::request;

/// After this time somebody looks at whether there is still something to wait for.
const TICK: Duration = Duration::from_millis(2);

/// The timer's signal, which nothing else uses.
fn signal() -> i32 {
    libc::SIGRTMAX() - 1
}

thread_local! {
    /// This thread's timer, if it has one.
    static TIMER: RefCell<Option<Timer>> = const { RefCell::new(None) };
}

/// A timer that sends a signal to the thread that has made it.
struct Timer(i32);

/// Gives the calling thread a timer. Without one, [`wait_for`] does nothing.
pub fn set_up() {
    let timer = Timer::new();
    TIMER.with_borrow_mut(|own| *own = timer);
}

/// Waits until something happens to a thread that this one traces, or for a moment; false if that
/// cannot be done, or there is nothing to wait for.
pub fn wait_for(tid: i32) -> bool {
    TIMER.with_borrow(|timer| {
        let Some(timer) = timer.as_ref().filter(|timer| timer.set(TICK)) else {
            return false;
        };
        let waited = request::await_change(tid);
        timer.set(Duration::ZERO);
        // A signal came: as good as a sleep.
        let is_tick = |error: &Error| error.raw_os_error() == Some(libc::EINTR);
        waited.as_ref().err().is_none_or(is_tick)
    })
}

// The system calls themselves: the C library has had these functions in a library of their own.
impl Timer {
    fn new() -> Option<Self> {
        // SAFETY: plain numbers and null pointers.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal();
        // SAFETY: takes nothing.
        event.sigev_notify_thread_id = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        let mut timer = 0;
        let (event, number) = (&raw const event, &raw mut timer);
        let create = libc::SYS_timer_create;
        // SAFETY: both are ours; the signal has a handler.
        let made =
            handle() && unsafe { libc::syscall(create, libc::CLOCK_MONOTONIC, event, number) == 0 };
        made.then(|| {
            unblock();
            Self(timer)
        })
    }

    /// Makes it tick at this interval, so that no tick that comes just before a wait is the only
    /// one; zero: not at all.
    fn set(&self, interval: Duration) -> bool {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: interval.subsec_nanos().into(),
        };
        let ticks = libc::itimerspec {
            it_interval: time,
            it_value: time,
        };
        let (ticks, old) = (&raw const ticks, ptr::null_mut::<libc::itimerspec>());
        // SAFETY: a timer that exists as long as this does.
        unsafe { libc::syscall(libc::SYS_timer_settime, self.0, 0, ticks, old) == 0 }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and used by nobody any more.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0) };
    }
}

/// Makes the signal interrupt what a thread waits for, and nothing else. Once for all.
fn handle() -> bool {
    extern "C" fn ignore(_: i32) {}
    static DONE: OnceLock<bool> = OnceLock::new();
    *DONE.get_or_init(|| {
        // SAFETY: plain numbers; no flags, so system calls are not started again.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
        // SAFETY: the handler does nothing.
        unsafe { libc::sigaction(signal(), &raw const action, ptr::null_mut()) == 0 }
    })
}

/// Directs the signal to the calling thread.
fn unblock() {
    // SAFETY: plain numbers, filled by sigemptyset; the call changes this thread's mask only.
    unsafe {
        let mut own: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut own);
        libc::sigaddset(&raw mut own, signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, ptr::null_mut());
    }
}
