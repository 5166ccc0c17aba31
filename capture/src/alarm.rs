//! Waits for a traced thread without polling, which would keep a processor busy. A timer interrupts
//! the wait regularly, so that the caller can check its deadline.

use std::cell::RefCell;
use std::io::Error;
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

use crate::request;

/// Interval at which a wait is interrupted.
const TICK: Duration = Duration::from_millis(2);

/// Returns the timer's signal, which nothing else in this process uses.
fn signal() -> i32 {
    libc::SIGRTMAX() - 1
}

thread_local! {
    /// Timer of this thread; `None` if none was created.
    static TIMER: RefCell<Option<Timer>> = const { RefCell::new(None) };
}

/// Timer that sends a signal to the thread that created it.
struct Timer(i32);

/// Creates a timer for the calling thread. Without one, [`wait_for`] does nothing.
pub fn set_up() {
    let timer = Timer::new();
    TIMER.with_borrow_mut(|slot| *slot = timer);
}

/// Waits until a thread that this one traces has an event, at most for one [`TICK`]. Returns false
/// without waiting if this thread has no timer or does not trace the other one.
pub fn wait_for(tid: i32) -> bool {
    TIMER.with_borrow(|timer| {
        let Some(timer) = timer else {
            return false;
        };
        if !timer.set(TICK) {
            return false;
        }
        let result = request::await_change(tid);
        timer.set(Duration::ZERO);
        // If a tick interrupted the wait, it still took time.
        let is_tick = |error: &Error| error.raw_os_error() == Some(libc::EINTR);
        result.as_ref().err().is_none_or(is_tick)
    })
}

// Uses raw system calls, since older C libraries have the timer functions in a separate library.
impl Timer {
    fn new() -> Option<Self> {
        // SAFETY: all-zero bytes are a valid `sigevent`.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = signal();
        // SAFETY: `gettid` takes no arguments.
        event.sigev_notify_thread_id = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        if !install_handler() {
            return None;
        }
        let mut timer = 0;
        let event = &raw const event;
        let id = &raw mut timer;
        let clock = libc::CLOCK_MONOTONIC;
        // SAFETY: both pointers are to locals, and the signal has a handler.
        if unsafe { libc::syscall(libc::SYS_timer_create, clock, event, id) } != 0 {
            return None;
        }
        unblock_signal();
        Some(Self(timer))
    }

    /// Starts the timer with this interval. It is periodic: if the first tick comes just before the
    /// wait begins, the next one still interrupts it. An interval of zero stops the timer.
    fn set(&self, interval: Duration) -> bool {
        let time = libc::timespec {
            tv_sec: 0,
            tv_nsec: interval.subsec_nanos().into(),
        };
        let ticks = libc::itimerspec {
            it_interval: time,
            it_value: time,
        };
        let ticks = &raw const ticks;
        let old = ptr::null_mut::<libc::itimerspec>();
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

/// Installs a handler that does nothing, so that the signal only interrupts system calls. Returns
/// true on success. Later calls return the first result.
fn install_handler() -> bool {
    extern "C" fn ignore(_: i32) {}
    static IS_INSTALLED: OnceLock<bool> = OnceLock::new();
    *IS_INSTALLED.get_or_init(|| {
        // SAFETY: all-zero bytes are a valid `sigaction`. Without flags, system calls are not
        // restarted.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ignore as extern "C" fn(i32) as usize;
        // SAFETY: the handler does nothing.
        unsafe { libc::sigaction(signal(), &raw const action, ptr::null_mut()) == 0 }
    })
}

/// Unblocks the signal in the calling thread.
fn unblock_signal() {
    // SAFETY: `sigemptyset` initializes the set; the call changes this thread's mask only.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
    }
}
