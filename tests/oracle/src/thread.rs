//! Comparisons, and the state that a thread keeps between them.

use crate::judge::{self, Sight};
use crate::peer::Peer;
use crate::{arch, libgcc, module, session};
use std::cell::Cell;
use std::collections::HashMap;
use std::ptr::null_mut;
use std::sync::OnceLock;
use unwind::Registers;
use unwind::stack::Ends;
use unwind::walk::{self, Node, Walk, Walker};

thread_local! {
    // No destructors: registering one may allocate.
    static BUSY: Cell<bool> = const { Cell::new(false) };
    static LEFT: Cell<u32> = const { Cell::new(0) };
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    static THREAD: Cell<*mut Thread> = const { Cell::new(null_mut()) };
    static ENDED: Cell<bool> = const { Cell::new(false) };
}

/// A thread's own.
struct Thread {
    remembering: Box<Walker>,
    forgetful: Box<Walker>,
    generation: u16,
    stacks: Stacks,
    peer: Peer,
}

/// The tree that walks intern in.
#[derive(Default)]
struct Stacks {
    children: std::cell::RefCell<HashMap<(u32, u64), u32>>,
    nodes: std::cell::RefCell<Vec<(u32, u64)>>,
}

const FIRST: u32 = 2;

impl walk::Tree for Stacks {
    fn root(&self) -> Node {
        0.into()
    }
    fn truncated(&self) -> Node {
        1.into()
    }

    fn child(&self, parent: Node, address: u64) -> Option<Node> {
        let mut nodes = self.nodes.borrow_mut();
        let next = nodes.len() as u32 + FIRST;
        let mut children = self.children.borrow_mut();
        let child = *children.entry((parent.id, address)).or_insert(next);
        if child == next {
            nodes.push((parent.id, address));
        }
        Some(child.into())
    }
}

impl Stacks {
    /// Returns the return addresses up to the root, innermost first.
    fn frames(&self, walk: &Walk) -> Vec<u64> {
        let nodes = self.nodes.borrow();
        let mut frames = Vec::new();
        let mut node = walk.leaf.unwrap_or(0);
        while let Some(&(parent, address)) = node
            .checked_sub(FIRST)
            .and_then(|at| nodes.get(at as usize))
        {
            frames.push(address);
            node = parent;
        }
        frames
    }
}

fn walker() -> Box<Walker> {
    let layout = std::alloc::Layout::new::<Walker>();
    // SAFETY: of this layout, and zeroed memory is what `init` expects.
    let mut walker = unsafe {
        let zeroed = std::alloc::alloc_zeroed(layout).cast::<Walker>();
        assert!(!zeroed.is_null(), "no memory for a walker");
        Box::from_raw(zeroed)
    };
    walker.init(ends());
    walker
}

/// Returns the ends of stacks, found like in the agent. Assumes a program that unmaps no stack.
fn ends() -> Ends {
    // SAFETY: a plain lookup by a terminated name.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_stack_end".as_ptr()) };
    // SAFETY: null, or the loader's `void *__libc_stack_end`.
    let first = unsafe { at.cast::<u64>().as_ref() }.copied().unwrap_or(0);
    Ends {
        first,
        first_thread: 0,
        thread_slack: 8192,
    }
}

impl Thread {
    fn new() -> Self {
        Self {
            remembering: walker(),
            forgetful: walker(),
            generation: module::generation(),
            stacks: Stacks::default(),
            peer: Peer::new(),
        }
    }

    fn compare(&mut self, registers: &Registers) {
        let generation = module::generation();
        if generation != self.generation {
            self.generation = generation;
            self.remembering.forget();
        }
        let ceiling = arch::thread_pointer();
        let seen = |walk: Walk| Sight {
            frames: self.stacks.frames(&walk),
            truncated: walk.truncated,
        };
        let walker = &mut self.remembering;
        let remembered = seen(walker.walk(*registers, ceiling, &self.stacks, module::Cached));
        self.forgetful.forget();
        let walker = &mut self.forgetful;
        let anew = seen(walker.walk(*registers, ceiling, &self.stacks, module::Anew));
        let gcc = libgcc::trace(registers);
        self.peer.refresh();
        let peer = self.peer.trace(registers, &gcc);
        judge::judge(&remembered, &anew, &gcc, &peer);
    }
}

/// Runs `work` uncompared, with `errno` kept.
pub fn quietly(work: impl FnOnce()) {
    if BUSY.replace(true) {
        return;
    }
    // SAFETY: the calling thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    work();
    // SAFETY: as above.
    unsafe { *errno = saved };
    BUSY.set(false);
}

/// An allocation: compares if its turn has come.
pub fn allocated(registers: &Registers) {
    if !session::is_running() || BUSY.get() || ENDED.get() {
        return;
    }
    match LEFT.get() {
        0 => quietly(|| {
            LEFT.set(gap());
            let thread = THREAD.get();
            let thread = if thread.is_null() { make() } else { thread };
            // SAFETY: made for this thread, which is in here once.
            unsafe { (*thread).compare(registers) };
        }),
        left => LEFT.set(left - 1),
    }
}

/// Returns the number of allocations to skip. Random, so that it is not in step with the program.
fn gap() -> u32 {
    let mut random = RANDOM.get() | 1;
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    RANDOM.set(random);
    (random >> 33) as u32 % (2 * session::every() - 1)
}

fn make() -> *mut Thread {
    let thread = Box::into_raw(Box::new(Thread::new()));
    THREAD.set(thread);
    if let Some(key) = key() {
        // SAFETY: our key.
        unsafe { libc::pthread_setspecific(key, thread.cast()) };
    }
    thread
}

fn key() -> Option<libc::pthread_key_t> {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `ended` takes what `make` sets.
        let failed = unsafe { libc::pthread_key_create(&mut key, Some(ended)) };
        (failed == 0).then_some(key)
    })
}

unsafe extern "C" fn ended(thread: *mut libc::c_void) {
    ENDED.set(true);
    THREAD.set(null_mut());
    // SAFETY: `make` made it, and the thread compares no more.
    drop(unsafe { Box::from_raw(thread.cast::<Thread>()) });
}
