//! `pthread_create`, which enlarges small stacks by what the agent uses of them, and tells a CPU
//! session of new threads immediately. Otherwise, a new thread that never allocates, while all
//! others wait, would go unnoticed. All other calls are passed on unchanged.

use crate::arch::starting_thread;
use crate::entry::thread_stacks::EnlargedStack;
use crate::sys::next_symbol;
use crate::{cpu, timers};
use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Start routine of a thread.
type Routine = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Create =
    unsafe extern "C" fn(*mut c_void, *const c_void, Option<Routine>, *mut c_void) -> c_int;

/// The C library's function; null if it has no threads.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks up the function, at start-up. A library with threads may be loaded later.
pub fn find_next() {
    REAL.store(next_symbol(c"pthread_create"), Ordering::Relaxed);
}

/// Returns the C library's function.
fn real() -> Option<Create> {
    let mut found = REAL.load(Ordering::Relaxed);
    if found.is_null() {
        find_next();
        found = REAL.load(Ordering::Relaxed);
    }
    // SAFETY: null, or the C library's function of this type.
    unsafe { transmute::<*mut c_void, Option<Create>>(found) }
}

/// Thread that is about to start.
struct NewThread {
    /// Address of the start routine. 0: free; 1: about to be filled in.
    routine: AtomicUsize,
    argument: AtomicPtr<c_void>,
}

/// Threads that are about to start at the same time. Further ones are noticed a little later.
#[cfg_attr(not(test), unsafe(link_section = ".llvm.linkonce.b.rare"))]
static NEW_THREADS: [NewThread; 48] = [const {
    NewThread {
        routine: AtomicUsize::new(0),
        argument: AtomicPtr::new(null_mut()),
    }
}; 48];

impl NewThread {
    /// Claims an entry and fills it in. Returns `None` if all are in use.
    fn claim(routine: Routine, argument: *mut c_void) -> Option<&'static Self> {
        let claim = |new_thread: &&Self| {
            new_thread
                .routine
                .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        };
        let claimed = NEW_THREADS.iter().find(claim)?;
        claimed.argument.store(argument, Ordering::Relaxed);
        claimed.routine.store(routine as usize, Ordering::Release);
        Some(claimed)
    }

    fn free(&self) {
        self.routine.store(0, Ordering::Release);
    }
}

/// pthread_create(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut c_void,
    attributes: *const c_void,
    routine: Option<Routine>,
    argument: *mut c_void,
) -> c_int {
    let Some(real) = real() else {
        return libc::EAGAIN;
    };
    // SAFETY: the program guarantees that its attributes are null or initialized.
    let enlarged = unsafe { EnlargedStack::new(attributes.cast()) };
    let attributes = enlarged
        .as_ref()
        .map_or(attributes, EnlargedStack::attributes);
    let new_thread = match (timers::session(), routine) {
        (0, _) | (_, None) => None,
        (_, Some(routine)) => NewThread::claim(routine, argument),
    };
    let Some(new_thread) = new_thread else {
        // SAFETY: the program's arguments, which it guarantees to be valid, or attributes that
        // differ from them in the size of the stack only.
        return unsafe { real(thread, attributes, routine, argument) };
    };
    let entry = (&raw const *new_thread).cast_mut().cast();
    // SAFETY: the program guarantees that its arguments are valid. The start routine is replaced by
    // `begin`, which continues with the program's.
    let result = unsafe { real(thread, attributes, Some(begin), entry) };
    if result != 0 {
        new_thread.free();
    }
    result
}

starting_thread! {
    /// Start routine of threads that are created in a CPU session.
    begin, enter_thread
}

/// Gives the thread its timer. Writes its own start routine and argument to `to`.
///
/// # Safety
/// `entry` is a claimed [`NewThread`], and `to` has room for two words.
unsafe extern "C" fn enter_thread(entry: *const NewThread, to: *mut [usize; 2]) {
    // SAFETY: a claimed entry, and room for two words.
    unsafe {
        let new_thread = &*entry;
        let routine = new_thread.routine.load(Ordering::Acquire);
        let argument = new_thread.argument.load(Ordering::Relaxed);
        to.write([routine, argument as usize]);
        new_thread.free();
    }
    cpu::thread_begins();
}
