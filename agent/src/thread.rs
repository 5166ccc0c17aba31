//! A thread's memory for sampling.
//!
//! Made at the thread's first sample, in a slot of its own ([`slots`]: 2 MiB of address space, of which
//! a stack of ordinary depth touches a few pages), given back when the thread ends, and reused by
//! the next one. Where the address space is limited, only as many threads have it as leave most of
//! that to the program; the others are not sampled, and counted.

mod slots;

use crate::arch::Interrupted;
use crate::local::Local;
use crate::range::{self, FreeLists, NoPlace};
use crate::sampler::{Gaps, Weights};
use crate::session::{self, Epoch};
use crate::thinning::Sites;
use crate::{arch, cpu_totals, cycles, module, python, stats, tid, timers};
use core::cell::Cell;
use core::ffi::c_void;
use core::mem::{MaybeUninit, size_of};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use shm_protocol::layout::SHARED_SHARD;
use shm_protocol::record::{CPU_CLASS, NewSample, TABLE_FULL};
use shm_protocol::tree::Place;
use shm_protocol::{Bank, NodeId, RecordId, tree};
use unwind::Registers;
use unwind::seen::{Key, Seen};
use unwind::walk::{self, Walk, Walker};

/// Stacks for which a thread caches the record.
const CACHED: usize = 512;
/// Records of other threads for which it caches its own.
const FOREIGN: usize = 128;
/// One sample or free in this many is timed.
const TIMED: u32 = 64;

/// A thread's own.
#[repr(C)]
pub struct Thread {
    /// The epoch it samples in.
    pub epoch: MaybeUninit<Epoch>,
    /// Session of that epoch; 0: none yet.
    pub session: u64,
    /// Mean bytes between samples.
    pub interval: f64,
    /// Generator of gaps between samples.
    pub gaps: Gaps,
    /// Shard of the counters.
    pub shard: u32,
    /// Free blocks for its sampled objects; `None` before its first one.
    pub free_lists: Option<FreeLists>,
    /// Weights of small objects at its interval.
    pub weights: Weights,
    /// A sample whose object is being made outside the range, see `sample::untracked`.
    pub untracked: (NewSample, NoPlace),
    /// Call sites that it has sampled.
    pub sites: Sites,
    until_timed: u32,
    generation: u16,
    /// Nodes above its complete and its truncated stacks in the session's tree.
    roots: [Place; 2],
    /// Distinguishes its stacks in this session from all others in [`module::seen`].
    salt: u64,
    /// By stack and size class, see [`cache_key`].
    records: [(u32, RecordId); CACHED],
    /// Records of other threads, and its own of the same stacks and size classes.
    foreign: [(RecordId, RecordId); FOREIGN],
    /// Of the last stack that found no room in the tree, the innermost frame that did.
    cut: Place,
    /// Slot that this memory is in.
    slot: slots::Slot,
    walker: Walker,
    handler: HandlerStack,
    python: python::Frames,
}

/// No such sample.
pub const NONE_UNTRACKED: (NewSample, NoPlace) = (NewSample::NONE, NoPlace::Exhausted);

/// The stack that samples of CPU time are taken on: the one that a signal meets may have little
/// room left. It takes memory when it is used first.
#[repr(C, align(16))]
struct HandlerStack([MaybeUninit<u8>; 64 << 10]);

/// The tree of a bank, as the walker wants it.
struct Interned<'a> {
    bank: &'a Bank<'static>,
    roots: &'a [Place; 2],
    seen: Option<&'static Seen>,
    salt: u64,
    /// Of the last frame that found no room, its caller.
    cut: Cell<Place>,
}

#[inline]
fn node(place: Place) -> walk::Node {
    walk::Node {
        id: place.node,
        path: place.path,
    }
}

impl<'a> Interned<'a> {
    /// The session's tree, with a thread's roots and salt.
    #[inline(always)]
    fn new(epoch: &'a Epoch, roots: &'a [Place; 2], salt: u64) -> Self {
        Self {
            bank: &epoch.bank,
            roots,
            seen: module::seen(),
            salt,
            cut: Cell::new(roots[0]),
        }
    }
}

impl walk::Tree for Interned<'_> {
    #[inline]
    fn root(&self) -> walk::Node {
        node(self.roots[0])
    }
    #[inline]
    fn truncated(&self) -> walk::Node {
        node(self.roots[1])
    }
    #[inline]
    fn child(&self, parent: walk::Node, address: u64) -> Option<walk::Node> {
        let parent = Place {
            node: parent.id,
            path: parent.path,
        };
        let limit = self.bank.node_limit();
        let child = self.bank.tree.child(parent, address, limit);
        if child.is_none() {
            self.cut.set(parent);
        }
        child.map(node)
    }
    #[inline]
    fn expect(&self, path: u64, address: u64) -> u64 {
        let path = tree::path_to(path, address);
        if let Some(slot) = self.bank.tree.slot(path, self.bank.node_limit()) {
            arch::prefetch(slot);
        }
        path
    }
    #[inline]
    fn seen(&self, stack: Key, address: u64) -> Option<u32> {
        let leaf = self.seen?.get(stack)?;
        let node = self.bank.tree.node(leaf)?;
        let differs = node.address.load(Ordering::Relaxed) ^ address;
        (differs << (u64::BITS - walk::ADDRESS_BITS) == 0).then_some(leaf)
    }
    #[inline]
    fn see(&self, stack: Key, leaf: u32) {
        if let Some(seen) = self.seen {
            seen.put(stack, leaf);
        }
    }
    #[inline]
    fn salt(&self) -> u64 {
        self.salt
    }
}

impl Thread {
    /// Starts to sample in `epoch`.
    pub fn enter(&mut self, epoch: Epoch) {
        if self.session != epoch.session {
            self.session = epoch.session;
            self.untracked = NONE_UNTRACKED;
            self.roots = epoch.bank.roots_of(tid::own());
            // At random: a forked child has a copy of what its parent has seen.
            self.salt = seed(self);
            self.records = [(0, 0); CACHED];
            self.foreign = [(TABLE_FULL, TABLE_FULL); FOREIGN];
            self.walker.forget();
            self.python.forget_last();
            self.sites.forget();
        }
        if self.interval != epoch.interval as f64 {
            self.interval = epoch.interval as f64;
            self.weights.forget();
        }
        self.epoch.write(epoch);
    }

    /// The epoch it samples in. Not borrowed from the thread, which is used beside it.
    ///
    /// # Safety
    /// [`enter`](Self::enter) was called, and is not while the epoch is used.
    #[inline]
    pub unsafe fn epoch<'a>(&self) -> &'a Epoch {
        // SAFETY: the caller's; a thread's memory stays for as long as the thread samples.
        unsafe { &*self.epoch.as_ptr() }
    }

    /// Whether it is the only writer of its shard.
    #[inline]
    pub fn is_exclusive(&self) -> bool {
        self.shard < SHARED_SHARD
    }

    /// Walks the stack above `registers` and interns it.
    #[inline]
    pub fn walk(&mut self, registers: &Registers, epoch: &Epoch) -> Walk {
        self.drop_old_rules();
        if !python::is_known() {
            let again = self.walker.again(registers);
            return again.unwrap_or_else(|| self.walk_anew(registers, epoch));
        }
        let tree = Interned::new(epoch, &self.roots, self.salt);
        let (thread, code) = (arch::thread_pointer(), module::Modules::now());
        let python = &mut self.python;
        let by_stack = python::is_found_by_stack();
        let walk = self
            .walker
            .walk_with(*registers, thread, &tree, code, by_stack, |trail| {
                python.read(trail, epoch)
            });
        self.cut = tree.cut.get();
        walk
    }

    /// Walks a stack that is not the last one once more.
    #[inline(always)]
    fn walk_anew(&mut self, registers: &Registers, epoch: &Epoch) -> Walk {
        let tree = Interned::new(epoch, &self.roots, self.salt);
        let (thread, code) = (arch::thread_pointer(), module::Modules::now());
        let walk = self.walker.walk(*registers, thread, &tree, code);
        self.cut = tree.cut.get();
        walk
    }

    /// Meets the epoch, outside of the slow path.
    pub fn meet(&mut self, epoch: Epoch) {
        let (session, counters) = (epoch.session, &epoch.bank.header.counters);
        let is_new = self.session != session;
        self.enter(epoch);
        if is_new {
            counters.threads.fetch_add(1, Ordering::Relaxed);
            module::start_session(session);
            python::publish();
        }
    }

    /// The end of the stack for a signal's handler.
    pub fn stack_end(&mut self) -> *mut u8 {
        let stack = &raw mut self.handler;
        // SAFETY: one past the field.
        unsafe { stack.add(1).cast() }
    }

    /// Walks the stack of what a signal interrupted, and interns it.
    pub fn walk_interrupted(&mut self, interrupted: &Interrupted, epoch: &Epoch) -> Walk {
        self.drop_old_rules();
        let tree = Interned::new(epoch, &self.roots, self.salt);
        let from = (interrupted.registers, &interrupted.live[..]);
        let (thread, code) = (arch::thread_pointer(), module::Modules::now());
        let python = &mut self.python;
        let walk = self
            .walker
            .walk_interrupted(from, thread, &tree, code, |trail| {
                python.read_interrupted(trail, epoch)
            });
        self.cut = tree.cut.get();
        self.python.forget_interrupted();
        walk
    }

    /// Forgets the last stack if rules of its generation are no longer valid.
    #[inline]
    fn drop_old_rules(&mut self) {
        let generation = module::generation();
        if generation != self.generation {
            self.generation = generation;
            self.walker.forget();
        }
    }

    /// The record of this thread's shard for objects of a size class from a stack.
    #[inline]
    pub fn record_of(&mut self, leaf: NodeId, class: u32, epoch: &Epoch) -> RecordId {
        let key = cache_key(leaf, class);
        let slot = (leaf.wrapping_add(class.wrapping_mul(CLASS_STRIDE))) as usize % CACHED;
        let (known, record) = self.records[slot];
        if known == key && leaf != 0 {
            return record;
        }
        let record = epoch.bank.record_of((leaf, class), self.shard);
        if record != TABLE_FULL {
            self.records[slot] = (key, record);
        }
        record
    }

    /// The record for objects of a size class from a stack that found no room, whose leaf is known if
    /// only its record did not.
    #[cold]
    pub fn merged_record(&self, leaf: Option<NodeId>, class: u32, epoch: &Epoch) -> RecordId {
        let bank = &epoch.bank;
        let place = leaf.map_or(self.cut, |leaf| bank.caller_of(leaf));
        let record = bank.merged(place, class, self.shard);
        if record != TABLE_FULL {
            let counters = &bank.header.counters;
            counters.table_merged.fetch_add(1, Ordering::Relaxed);
        }
        record
    }

    /// The record of this thread's shard that corresponds to an object's record. That of another
    /// thread is read as seldom as possible, since that thread writes to its cache line.
    #[inline]
    pub fn own_record(&mut self, record: RecordId, epoch: &Epoch) -> RecordId {
        let (known, own) = self.foreign[record as usize % FOREIGN];
        if known == record {
            return own;
        }
        let record = epoch.bank.checked(record);
        match epoch.bank.owns(record, self.shard) {
            true => record,
            false => self.record_here(record, epoch),
        }
    }

    /// For another thread's object: this thread's record of the same stack and size class.
    #[cold]
    fn record_here(&mut self, record: RecordId, epoch: &Epoch) -> RecordId {
        if record == TABLE_FULL {
            return record;
        }
        let (leaf, class) = epoch.bank.stack_of(record);
        let own = epoch.bank.record_of_known((leaf, class), self.shard);
        if own != TABLE_FULL {
            self.foreign[record as usize % FOREIGN] = (record, own);
        }
        own
    }

    /// Starts the clock for one in [`TIMED`] samples and frees.
    #[inline]
    pub fn start_timer(&mut self) -> Option<u64> {
        self.until_timed = self.until_timed.wrapping_sub(1);
        if self.until_timed != 0 {
            return None;
        }
        self.until_timed = TIMED;
        cycles::read()
    }

    /// Accounts for the time of a timed sample or free, extrapolated to those not timed.
    #[inline]
    pub fn stop_timer(&self, started: Option<u64>, bank: &Bank<'_>) {
        if let Some(started) = started {
            self.account(started, bank);
        }
    }

    #[cold]
    fn account(&self, started: u64, bank: &Bank<'_>) {
        let cycles = cycles::read().map(|now| now.wrapping_sub(started));
        if let Some(ns) = cycles.and_then(stats::cycles_to_ns) {
            let totals = bank.totals(self.shard);
            totals
                .agent_ns
                .fetch_add(ns * u64::from(TIMED), Ordering::Relaxed);
            totals.timed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Distance of the size classes of one stack in a thread's cache of records.
const CLASS_STRIDE: u32 = 37;

/// Names a stack's record of a size class: nodes have 24 bits, size classes 7.
#[inline]
fn cache_key(leaf: NodeId, class: u32) -> u32 {
    const { assert!(tree::MAX_NODES < 1 << 24 && CPU_CLASS < 1 << 8) };
    leaf | class << 24
}

/// A thread's memory for sampling; null before its first sample.
#[inline(always)]
pub fn of(local: &Local) -> *mut Thread {
    local.thread.cast()
}

/// Calls [`ended`] when a thread that sampled ends.
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Makes the key. At start-up, so that it is among the first, whose values need no
/// memory of their own.
pub fn make_key() {
    let mut key = 0;
    // SAFETY: `ended` takes what `make` sets.
    if unsafe { libc::pthread_key_create(&mut key, Some(ended)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
}

/// Threads' memory that waits for its next user.
static SPARE: [AtomicPtr<Thread>; SPARES] = [const { AtomicPtr::new(null_mut()) }; SPARES];
/// Maximum number of threads whose memory waits.
pub const SPARES: usize = 256;

/// Where the pointers to the memory that waits are.
pub fn spare() -> *const AtomicPtr<Thread> {
    SPARE.as_ptr()
}

/// Address space that the memory of all threads may take, by the process's limits.
static MOST: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Determines how much threads may take; `limit` is what the process may map, `u64::MAX` for
/// anything. At start-up, and when the program limits itself.
pub fn start(limit: u64) {
    let most = usize::try_from(limit / range::SHARE).unwrap_or(usize::MAX);
    MOST.fetch_min(most, Ordering::Relaxed);
}

/// New memory for a thread, unless that would leave too little of a limited address space to the
/// program, whose own threads need stacks. `limit` is the most bytes for all threads as well, which
/// the session's starter derived from what is left; 0: none. The first thread always has its
/// memory.
fn map(limit: u64) -> *mut Thread {
    let most = match usize::try_from(limit) {
        Ok(limit) if limit != 0 => limit.min(MOST.load(Ordering::Relaxed)),
        _ => MOST.load(Ordering::Relaxed),
    };
    let Some((slot, at)) = slots::take(size_of::<Thread>(), most) else {
        return null_mut();
    };
    let thread: *mut Thread = at.cast();
    // SAFETY: memory of this size, the caller's alone.
    unsafe { (*thread).slot = slot };
    thread
}

/// A thread's memory, initialised; null if there is none to be had. `limit` is [`map`]'s.
#[cold]
pub fn make(limit: u64) -> *mut Thread {
    let spare = SPARE.iter().find_map(|slot| {
        let seen = !slot.load(Ordering::Relaxed).is_null();
        Some(seen.then(|| slot.swap(null_mut(), Ordering::Acquire))?).filter(|t| !t.is_null())
    });
    let thread = spare.unwrap_or_else(|| map(limit));
    if thread.is_null() {
        return thread;
    }
    // SAFETY: mapped, ours alone; plain data for which zero or old values are valid, until
    // the lines below and `enter` set them.
    unsafe {
        (*thread).session = 0;
        (*thread).untracked = NONE_UNTRACKED;
        (&raw mut (*thread).free_lists).write(None);
        (*thread).weights.forget();
        // At random, so that threads that end before their first timed sample count as well.
        (*thread).until_timed = 1 + seed(thread) as u32 % TIMED;
        (*thread).shard = session::take_shard();
        (*thread).gaps = Gaps::new(seed(thread));
        (*thread).roots = [tree::ROOT, tree::TRUNCATED].map(Place::root);
        (*thread).cut = Place::root(tree::ROOT);
        (*thread).walker.init(crate::ends::known());
        (*thread).python.forget();
    }
    let key = KEY.load(Ordering::Relaxed);
    if key != u32::MAX {
        // SAFETY: our key. Without the value, only this memory is lost at the thread's end.
        unsafe { libc::pthread_setspecific(key, thread.cast()) };
    }
    thread
}

fn seed(thread: *const Thread) -> u64 {
    let cycles = cycles::read().unwrap_or_else(shm_protocol::clock::now_ns);
    cycles ^ (thread as u64) << 16 ^ arch::thread_pointer().rotate_left(32)
}

/// Makes the calling thread forget the session that it was in: a child's was its parent's.
pub fn forget_session(local: &mut Local) {
    // SAFETY: null, or the thread's own memory, which is not borrowed while the process forks.
    let thread = unsafe { of(local).as_mut() };
    // Only where it is needed: each page that a child writes to is copied for it.
    if let Some(thread) = thread.filter(|thread| thread.session != 0) {
        thread.session = 0;
    }
}

/// The shard of a thread, if it has one.
pub fn shard_of(local: &Local) -> Option<u32> {
    // SAFETY: null, or what `make` made for this thread.
    unsafe { of(local).as_ref().map(|thread| thread.shard) }
}

/// A thread that sampled has ended. Other destructors may still allocate: they find the
/// thread as one that never sampled, and if they sample this runs once more.
unsafe extern "C" fn ended(value: *mut c_void) {
    let saved = crate::sys::errno();
    let thread: *mut Thread = value.cast();
    // SAFETY: the ending thread's state, and the memory that `make` gave it; no other code of
    // this thread runs meanwhile but signal handlers, which `busy` keeps away.
    unsafe {
        let local = arch::local();
        (*local).busy = 1;
        (*local).thread = null_mut();
        (*local).epoch = 0;
        if let Some(mut free_lists) = (*thread).free_lists.take() {
            free_lists.clear();
        }
        session::release_shard((*thread).shard);
        cpu_totals::note_clock();
        timers::thread_ends();
        (*local).busy = 0;
    }
    let put = |slot: &AtomicPtr<Thread>| {
        slot.compare_exchange(null_mut(), thread, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    };
    if !SPARE.iter().any(put) {
        // SAFETY: the slot that the memory is in, used by nobody.
        unsafe { slots::give_back((*thread).slot, thread.cast(), size_of::<Thread>()) };
    }
    crate::sys::set_errno(saved);
}
