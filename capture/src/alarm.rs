//! Waits for a traced thread without polling, which would keep a processor busy: a timer interrupts
//! the wait now and then.

use std::cell::RefCell;
use std::io::Error;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::request;

/// Interval of the timer, after which the caller checks that there is still something to wait for.
const TICK: Duration = Duration::from_millis(2);

/// Returns the timer's signal, which nothing else uses.
fn signal() -> i32 {
    libc::SIGRTMAX() - 1
}

thread_local! {
    /// Timer of this thread, if it has one.
    static TIMER: RefCell<Option<Timer>> = const { RefCell::new(None) };
}

/// Timer that sends a signal to the thread that created it.
struct Timer(i32);

/// Creates a timer for the calling thread. Without one, [`wait_for`] does nothing.
pub fn set_up() {
    let timer = Timer::new();
    TIMER.with_borrow_mut(|own| *own = timer);
}

/// Waits until a thread that this one traces has an event, or for a moment. Returns false if that
/// is not possible, or there is nothing to wait for.
pub fn wait_for(tid: i32) -> bool {
    TIMER.with_borrow(|timer| {
        let Some(timer) = timer.as_ref().filter(|timer| timer.set(TICK)) else {
            return false;
        };
        let waited = request::await_change(tid);
        timer.set(Duration::ZERO);
        // A signal arrived, which counts as a sleep.
        let is_tick = |error: &Error| error.raw_os_error() == Some(libc::EINTR);
        waited.as_ref().err().is_none_or(is_tick)
    })
}

// Raw system calls, since older C libraries have these functions in a separate library.
impl Timer {
    fn new() -> Option<Self> {
        // SAFETY: all zero is valid: numbers and null pointers.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal();
        // SAFETY: `gettid` takes no arguments.
        event.sigev_notify_thread_id = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        let mut timer = 0;
        let (event, number) = (&raw const event, &raw mut timer);
        let create = libc::SYS_timer_create;
        // SAFETY: both pointers are to locals, and the signal has a handler.
        let made =
            handle() && unsafe { libc::syscall(create, libc::CLOCK_MONOTONIC, event, number) == 0 };
        made.then(|| {
            unblock();
            Self(timer)
        })
    }

    /// Starts the timer with this interval, so that a tick just before a wait is not the only one.
    /// Zero stops it.
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
        // SAFETY: the timer exists as long as `self`.
        unsafe { libc::syscall(libc::SYS_timer_settime, self.0, 0, ticks, old) == 0 }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: `new` created the timer, and nothing uses it any more.
        unsafe { libc::syscall(libc::SYS_timer_delete, self.0) };
    }
}

/// Installs a handler by which the signal only interrupts system calls. Done once.
fn handle() -> bool {
    extern "C" fn ignore(_: i32) {}
    static DONE: OnceLock<bool> = OnceLock::new();
    *DONE.get_or_init(|| {
        // SAFETY: all zero is valid. Without flags, system calls are not restarted.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
        // SAFETY: the handler does nothing.
        unsafe { libc::sigaction(signal(), &raw const action, ptr::null_mut()) == 0 }
    })
}

/// Unblocks the signal in the calling thread.
fn unblock() {
    // SAFETY: `sigemptyset` initializes the set; the call changes this thread's mask only.
    unsafe {
        let mut own: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut own);
        libc::sigaddset(&raw mut own, signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const own, ptr::null_mut());
    }
}
