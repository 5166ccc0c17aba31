//! Per-thread memory of the sampler: random gaps between samples, caches, stack walker, free lists.
//!
//! The data cannot come from the heap, so each thread gets a slot of 2 MiB of address space
//! ([`slots`]) at its first sample; a stack of ordinary depth touches a few pages of it. When the
//! thread exits, the slot goes to the next thread. If the address space is limited, only as many
//! threads get a slot as leave most of the address space to the program. The others are not
//! sampled, and are counted.
//!
//! A thread may allocate after its thread-specific-data destructors have run for the last time; its
//! slot is then an orphan ([`orphans`]).

mod orphans;
mod slots;

use crate::arch::Interrupted;
use crate::cost;
use crate::local::Local;
use crate::range::{self, FreeLists, OutsideRange};
use crate::session::{self, Epoch};
use crate::trial::Trial;
use crate::{arch, cpu_totals, cycles, module, python, stats, tid, timers};
use core::cell::Cell;
use core::ffi::c_void;
use core::mem::{MaybeUninit, size_of};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use sampling::thinning::Sites;
use sampling::{Gaps, Weights};
use shm_protocol::layout::SHARED_SHARD;
use shm_protocol::record::{CPU_CLASS, NewSample, RecordKey, TABLE_FULL};
use shm_protocol::tree::PathNode;
use shm_protocol::{Bank, NodeId, RecordId, tree};
use unwind::Registers;
use unwind::seen::{Key, SeenStacks};
use unwind::walk::{self, Walk, Walker};

/// Entries of a thread's cache of records by stack.
const RECORD_CACHE: usize = 512;
/// Entries of a thread's cache that maps records of other threads to its own.
const FOREIGN_CACHE: usize = 128;
/// Mean number of samples and frees for each one that is timed.
const TIMED_EVERY: u32 = 64;

/// Part of a sample's time, in ns, that is multiplied by the factor of cost ([`crate::cost`]). Time
/// beyond it counts once: a longer sample evicts the program's data from the caches only once.
const SHORT_NS: u64 = 8_000;
/// Maximum time that a sample is assumed to take, in ns, apart from its frames. If it took longer,
/// the thread was suspended.
const MAX_SAMPLE_NS: u64 = 200_000;
/// Additional maximum for each frame of the stack, in ns. On slow processors, a frame takes 2 us.
const MAX_FRAME_NS: u64 = 4_000;

/// Sampling state of one thread.
#[repr(C)]
pub struct Thread {
    /// Current epoch; valid once `session` is not 0.
    pub epoch: MaybeUninit<Epoch>,
    /// Session number of `epoch`; 0 before the first.
    pub session: u64,
    /// Mean number of bytes between samples.
    pub interval: f64,
    /// Generator of the gaps between samples.
    pub gaps: Gaps,
    /// Shard of the counters in the segment.
    pub shard: u32,
    /// Free blocks for sampled objects; `None` before the first one.
    free_lists: Option<FreeLists>,
    /// Thread id if the memory is an [orphan](orphans); otherwise 0.
    orphan_of: u32,
    /// Weights of small objects at `interval`.
    pub weights: Weights,
    /// Sample whose object is being allocated outside the range (see `sample::untracked`).
    pub untracked: Untracked,
    /// Call sites of this thread's samples.
    pub sites: Sites,
    /// Samples and frees left until the next one is timed.
    until_timed: u32,
    /// Number of samples and frees that were timed.
    timed: u32,
    /// Trial of what a sample costs.
    pub trial: Trial,
    /// Generation of the modules at the last walk.
    generation: u16,
    /// Nodes in the session's tree above this thread's complete and truncated stacks.
    roots: [PathNode; 2],
    /// Random number that distinguishes the stacks of this thread in this session from all others
    /// in [`module::seen`].
    salt: u64,
    /// Records by stack and size class (see [`cache_key`]).
    records: [(u32, RecordId); RECORD_CACHE],
    /// Records of other threads, each with this thread's record of the same stack and size class.
    foreign: [(RecordId, RecordId); FOREIGN_CACHE],
    /// Innermost frame that has a node, of the last stack that did not fit into the tree.
    deepest_interned: PathNode,
    /// Slot that holds this memory.
    slot: slots::Slot,
    walker: Walker,
    handler_stack: HandlerStack,
    python: python::Frames,
}

/// Sample of an object that the range has no room for.
#[derive(Clone, Copy)]
pub struct Untracked {
    /// The sample; its weight is 0 if there is none.
    pub sample: NewSample,
    /// Reason why the object is outside the range.
    pub reason: OutsideRange,
}

impl Untracked {
    /// No sample.
    pub const NONE: Self = Self {
        sample: NewSample::NONE,
        reason: OutsideRange::Exhausted,
    };
}

/// Stack for taking CPU samples: an interrupted thread's own stack may have little room left. Its
/// pages become resident when it is first used.
#[repr(C, align(16))]
struct HandlerStack([MaybeUninit<u8>; 64 << 10]);

/// Stack tree of a bank, as an implementation of the walker's interface.
struct InterningTree<'a> {
    bank: &'a Bank<'static>,
    roots: &'a [PathNode; 2],
    seen: Option<&'static SeenStacks>,
    salt: u64,
    /// See [`Thread::deepest_interned`].
    deepest_interned: Cell<PathNode>,
}

#[inline]
fn node(node: PathNode) -> walk::Node {
    walk::Node {
        id: node.node,
        path: node.path,
    }
}

impl<'a> InterningTree<'a> {
    /// Creates the tree of an epoch, with the roots and the salt of a thread.
    #[inline(always)]
    fn new(epoch: &'a Epoch, roots: &'a [PathNode; 2], salt: u64) -> Self {
        Self {
            bank: &epoch.bank,
            roots,
            seen: module::seen(),
            salt,
            deepest_interned: Cell::new(roots[0]),
        }
    }
}

impl walk::Tree for InterningTree<'_> {
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
        let parent = PathNode {
            node: parent.id,
            path: parent.path,
        };
        let limit = self.bank.node_limit();
        let child = self.bank.tree.child(parent, address, limit);
        if child.is_none() {
            self.deepest_interned.set(parent);
        }
        child.map(node)
    }
    #[inline]
    fn prefetch(&self, path: u64, address: u64) -> u64 {
        let path = tree::path_to(path, address);
        if let Some(slot) = self.bank.tree.slot(path, self.bank.node_limit()) {
            arch::prefetch(slot);
        }
        path
    }
    #[inline]
    fn find_leaf(&self, stack: Key, address: u64) -> Option<u32> {
        let leaf = self.seen?.get(stack)?;
        let node = self.bank.tree.node(leaf)?;
        let differs = node.address.load(Ordering::Relaxed) ^ address;
        (differs << (u64::BITS - walk::ADDRESS_BITS) == 0).then_some(leaf)
    }
    #[inline]
    fn insert_leaf(&self, stack: Key, leaf: u32) {
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
    /// Returns the thread's free lists, which are created if necessary. Returns `None` in the last
    /// round of destructors: nobody would free the blocks, and jemalloc then allocates only from
    /// its first arena.
    #[inline]
    pub fn own_free_lists(&mut self) -> Option<&mut FreeLists> {
        if self.free_lists.is_none() && self.orphan_of == 0 {
            self.create_free_lists();
        }
        self.free_lists.as_mut()
    }

    /// Creates the thread's free lists. Out of line, so that no frame of the warm path has room
    /// for a copy of them.
    #[cold]
    #[inline(never)]
    fn create_free_lists(&mut self) {
        self.free_lists = Some(FreeLists::new());
    }

    /// Returns the thread's free lists, if it has any.
    #[inline]
    pub fn existing_free_lists(&mut self) -> Option<&mut FreeLists> {
        self.free_lists.as_mut()
    }

    /// Starts to sample in `epoch`.
    pub fn enter(&mut self, epoch: Epoch) {
        if self.session != epoch.session {
            self.session = epoch.session;
            self.untracked = Untracked::NONE;
            self.roots = epoch.bank.thread_roots(tid::current());
            // Random: a forked child inherits the stacks that its parent has seen.
            self.salt = seed(self);
            self.records = [(0, 0); RECORD_CACHE];
            self.foreign = [(TABLE_FULL, TABLE_FULL); FOREIGN_CACHE];
            self.walker.forget();
            self.python.forget_last();
            self.sites.forget();
        }
        let interval = cost::enter(&epoch);
        self.set_interval(interval);
        self.trial.discard();
        self.epoch.write(epoch);
    }

    /// Changes the interval of the following samples.
    fn set_interval(&mut self, interval: u64) {
        if self.interval != interval as f64 {
            self.interval = interval as f64;
            self.weights.forget();
        }
    }

    /// Adopts the interval in force in a governed session. Returns true if it has changed; the next
    /// gap must then be drawn again.
    #[cold]
    #[inline(never)]
    pub fn adopt_interval(&mut self, epoch: &Epoch) -> bool {
        let before = self.interval;
        self.set_interval(cost::interval().max(epoch.interval));
        self.trial.discard();
        self.interval != before
    }

    /// Returns the current epoch. Its lifetime is not tied to the thread, whose other fields are
    /// changed while the epoch is used.
    ///
    /// # Safety
    /// [`enter`](Self::enter) was called before, and is not called again while the result is used.
    #[inline]
    pub unsafe fn epoch<'a>(&self) -> &'a Epoch {
        // SAFETY: `enter` wrote it, and the thread's memory is mapped until the thread exits.
        unsafe { &*self.epoch.as_ptr() }
    }

    /// Returns true if the thread is the only writer of its shard.
    #[inline]
    pub fn is_exclusive(&self) -> bool {
        self.shard < SHARED_SHARD
    }

    /// Walks the stack from `registers` outwards and interns it.
    #[inline]
    pub fn walk(&mut self, registers: &Registers, epoch: &Epoch) -> Walk {
        self.drop_old_rules();
        if !python::is_known() {
            let repeated = self.walker.walk_if_unchanged(registers);
            return repeated.unwrap_or_else(|| self.walk_natively(registers, epoch));
        }
        let tree = InterningTree::new(epoch, &self.roots, self.salt);
        let thread = arch::thread_pointer();
        let code = module::Modules::new();
        let frames = &mut self.python;
        let by_stack = python::is_found_by_stack();
        let walk =
            self.walker
                .walk_with(*registers, thread, &tree, code, by_stack, |native_stack| {
                    python::read(frames, native_stack, epoch)
                });
        self.deepest_interned = tree.deepest_interned.get();
        walk
    }

    /// Walks a stack without looking for interpreter frames, after `Walker::walk_if_unchanged` has
    /// found it to differ from the last one.
    #[inline(always)]
    fn walk_natively(&mut self, registers: &Registers, epoch: &Epoch) -> Walk {
        let tree = InterningTree::new(epoch, &self.roots, self.salt);
        let thread = arch::thread_pointer();
        let code = module::Modules::new();
        let walk = self.walker.walk(*registers, thread, &tree, code);
        self.deepest_interned = tree.deepest_interned.get();
        walk
    }

    /// Enters an epoch, and counts the thread if the session is new to it.
    pub fn enter_and_count(&mut self, epoch: Epoch) {
        let session = epoch.session;
        let counters = &epoch.bank.header.counters;
        let is_new = self.session != session;
        self.enter(epoch);
        if is_new {
            counters.threads.fetch_add(1, Ordering::Relaxed);
            module::start_session(session);
            python::publish();
        }
    }

    /// Returns the end of the stack for taking CPU samples.
    pub fn stack_end(&mut self) -> *mut u8 {
        let stack = &raw mut self.handler_stack;
        // SAFETY: one past the end of the field, still within the thread's memory.
        unsafe { stack.add(1).cast() }
    }

    /// Walks the stack of the code that a signal interrupted, and interns it.
    pub fn walk_interrupted(&mut self, interrupted: &Interrupted, epoch: &Epoch) -> Walk {
        self.drop_old_rules();
        let tree = InterningTree::new(epoch, &self.roots, self.salt);
        let registers = interrupted.registers;
        let live = &interrupted.live[..];
        let thread = arch::thread_pointer();
        let code = module::Modules::new();
        let frames = &mut self.python;
        let walk =
            self.walker
                .walk_interrupted(registers, live, thread, &tree, code, |native_stack| {
                    python::read_interrupted(frames, native_stack, epoch)
                });
        self.deepest_interned = tree.deepest_interned.get();
        self.python.forget_interrupted();
        walk
    }

    /// Drops the cached stack if the unwind rules that it was walked with are out of date.
    #[inline]
    fn drop_old_rules(&mut self) {
        let generation = module::generation();
        if generation != self.generation {
            self.generation = generation;
            self.walker.forget();
        }
    }

    /// Returns this thread's record for a stack and a size class.
    #[inline]
    pub fn record_of(&mut self, leaf: NodeId, class: u32, epoch: &Epoch) -> RecordId {
        let key = cache_key(leaf, class);
        let slot = (leaf.wrapping_add(class.wrapping_mul(CLASS_STRIDE))) as usize % RECORD_CACHE;
        let (cached_key, record) = self.records[slot];
        if cached_key == key && leaf != 0 {
            return record;
        }
        let record = epoch
            .bank
            .record_of(RecordKey::new(leaf, class), self.shard);
        if record != TABLE_FULL {
            self.records[slot] = (key, record);
        }
        record
    }

    /// Returns the record in which stacks that did not fit into the tables are merged. It belongs
    /// to the innermost frame that has a node; if the whole stack has nodes (`leaf`) and only its
    /// record did not fit, to the leaf's caller.
    #[cold]
    pub fn merged_record(&self, leaf: Option<NodeId>, class: u32, epoch: &Epoch) -> RecordId {
        let bank = &epoch.bank;
        let path_node = leaf.map_or(self.deepest_interned, |leaf| bank.caller_of(leaf));
        let record = bank.merged_record(path_node, class, self.shard);
        if record != TABLE_FULL {
            let counters = &bank.header.counters;
            counters.table_merged.fetch_add(1, Ordering::Relaxed);
        }
        record
    }

    /// Returns this thread's record of the stack and size class of another record. Avoids reading
    /// the other record: its thread writes to that cache line.
    #[inline]
    pub fn own_record(&mut self, record: RecordId, epoch: &Epoch) -> RecordId {
        let (cached, own_record) = self.foreign[record as usize % FOREIGN_CACHE];
        if cached == record {
            return own_record;
        }
        let record = epoch.bank.committed_or_table_full(record);
        if epoch.bank.owns(record, self.shard) {
            record
        } else {
            self.look_up_own_record(record, epoch)
        }
    }

    /// Looks up this thread's record of the stack and size class of another thread's record.
    #[cold]
    fn look_up_own_record(&mut self, record: RecordId, epoch: &Epoch) -> RecordId {
        if record == TABLE_FULL {
            return record;
        }
        let key = epoch.bank.stack_of(record);
        let own_record =
            session::with_room(epoch, || epoch.bank.record_with_reserve(key, self.shard));
        if own_record != TABLE_FULL {
            self.foreign[record as usize % FOREIGN_CACHE] = (record, own_record);
        }
        own_record
    }

    /// Starts the timer for one in [`TIMED_EVERY`] samples and frees, at random: at a fixed
    /// distance, a program that allocates and frees in turn would have only one of the two timed.
    #[inline]
    pub fn start_timer(&mut self) -> Option<u64> {
        self.until_timed = self.until_timed.wrapping_sub(1);
        if self.until_timed != 0 {
            return None;
        }
        self.until_timed = self.gaps.draw_around(self.timed_every());
        cycles::read()
    }

    /// Returns n if one in n samples and frees is timed: 1 for the first ones, which cost most, and
    /// [`TIMED_EVERY`] later.
    fn timed_every(&self) -> u32 {
        /// Number of timed samples and frees before the distance doubles.
        const BEFORE_DOUBLING: u32 = 8;
        const { assert!(TIMED_EVERY.is_power_of_two()) };
        1 << (self.timed / BEFORE_DOUBLING).min(TIMED_EVERY.ilog2())
    }

    /// Adds the time of a timed sample or free to the agent's own CPU time, extrapolated.
    #[inline]
    pub fn stop_timer(&mut self, started: Option<u64>, epoch: &Epoch) {
        if let Some(started) = started {
            self.record_time(started, epoch);
        }
    }

    #[cold]
    #[inline(never)]
    fn record_time(&mut self, started: u64, epoch: &Epoch) {
        let cycles = cycles::read().map(|now| now.wrapping_sub(started));
        if let Some(ns) = cycles.and_then(stats::cycles_to_ns) {
            let totals = epoch.bank.totals(self.shard);
            let number = u64::from(self.timed_every());
            let short_ns = ns.min(SHORT_NS);
            totals
                .agent_ns
                .fetch_add(short_ns * number, Ordering::Relaxed);
            if ns > SHORT_NS {
                let log = &epoch.bank.header.cost;
                let sum = if number == 1 {
                    &log.first_ns
                } else {
                    &log.long_ns
                };
                let max_ns = MAX_SAMPLE_NS + MAX_FRAME_NS * self.walker.depth() as u64;
                let rest_ns = ns.min(max_ns) - SHORT_NS;
                sum.fetch_add(rest_ns * number, Ordering::Relaxed);
            }
            totals.timed.fetch_add(1, Ordering::Relaxed);
            self.timed = self.timed.saturating_add(1);
        }
        cost::evaluate(epoch);
    }
}

/// Distance between successive size classes of one stack in a thread's cache of records, in
/// entries.
const CLASS_STRIDE: u32 = 37;

/// Returns the key of a record in a thread's cache: nodes have 24 bits, size classes 8.
#[inline]
fn cache_key(leaf: NodeId, class: u32) -> u32 {
    const { assert!(tree::MAX_NODES < 1 << 24 && CPU_CLASS < 1 << 8) };
    leaf | (class << 24)
}

/// Returns a thread's memory for sampling; null before its first sample.
#[inline(always)]
pub fn state_of(local: &Local) -> *mut Thread {
    local.thread.cast()
}

/// Thread-specific data whose destructor is [`release_memory`].
static KEY: AtomicU32 = AtomicU32::new(u32::MAX);

/// Creates the key. Called at start-up: glibc stores the values of the first keys in the thread's
/// own control block, so that setting them allocates nothing.
pub fn make_key() {
    let mut key = 0;
    // SAFETY: the values of the key are pointers that `make` sets, as `release_memory` expects.
    if unsafe { libc::pthread_key_create(&mut key, Some(release_memory)) } == 0 {
        KEY.store(key, Ordering::Relaxed);
    }
}

/// Memory of exited threads, for reuse, followed by the memory of [orphans].
#[cfg_attr(not(test), unsafe(link_section = ".llvm.linkonce.b.rare"))]
static SPARE: [AtomicPtr<Thread>; SPARES] = [const { AtomicPtr::new(null_mut()) }; SPARES];
/// Number of pointers in [`SPARE`].
pub const SPARES: usize = MAX_KEPT + orphans::MAX_ORPHANS;
/// Maximum number of exited threads whose memory is kept for reuse.
const MAX_KEPT: usize = 256;

/// Returns the address of [`SPARE`], which has [`SPARES`] pointers.
pub fn spare() -> *const AtomicPtr<Thread> {
    SPARE.as_ptr()
}

/// Returns the pointers to memory for reuse and to orphans.
fn spares() -> (&'static [AtomicPtr<Thread>], &'static [AtomicPtr<Thread>]) {
    SPARE.split_at(MAX_KEPT)
}

/// Maximum size of the memory of all threads, in bytes.
static MAX_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Limits the memory of all threads. `limit` is the process's limit of address space or of data in
/// bytes, `u64::MAX` if unlimited. Called at start-up, and when the program sets a limit.
pub fn start(limit: u64) {
    let bytes = usize::try_from(limit / range::LIMIT_SHARE).unwrap_or(usize::MAX);
    MAX_BYTES.fetch_min(bytes, Ordering::Relaxed);
}

/// Maps memory for a thread. Returns null if that would leave too little of a limited address space
/// to the program, whose own threads need stacks. `limit` is a further maximum for all threads, in
/// bytes, which the controller derived from the free memory of the machine; 0: none. The first
/// thread that takes a sample always gets its memory.
fn map(limit: u64) -> *mut Thread {
    let max_bytes = match usize::try_from(limit) {
        Ok(limit) if limit != 0 => limit.min(MAX_BYTES.load(Ordering::Relaxed)),
        _ => MAX_BYTES.load(Ordering::Relaxed),
    };
    let Some((slot, at)) = slots::take(size_of::<Thread>(), max_bytes) else {
        return null_mut();
    };
    let thread: *mut Thread = at.cast();
    // SAFETY: newly mapped memory of the size of a `Thread`, which nobody else uses.
    unsafe { (*thread).slot = slot };
    thread
}

/// Returns initialised memory for a thread, or null if there is none. `limit`: see [`map`].
#[cold]
pub fn make(limit: u64) -> *mut Thread {
    let (kept, orphaned) = spares();
    let reused = kept.iter().find_map(|slot| {
        let is_used = !slot.load(Ordering::Relaxed).is_null();
        let thread = is_used.then(|| slot.swap(null_mut(), Ordering::Acquire));
        thread.filter(|thread| !thread.is_null())
    });
    let reused = reused.or_else(|| orphans::take_dead(orphaned));
    let thread = reused.unwrap_or_else(|| map(limit));
    if thread.is_null() {
        return thread;
    }
    let mut orphan_of = 0;
    // SAFETY: the word is the thread's own, and is only read.
    if unsafe { (*arch::local()).is_last_round() } {
        orphan_of = tid::current();
        // SAFETY: mapped, and used by this thread alone.
        unsafe { (*thread).orphan_of = orphan_of };
        if orphan_of == 0 || !orphans::add(orphaned, thread) {
            keep_or_release(thread);
            return null_mut();
        }
    }
    // SAFETY: mapped, and used by this thread alone. The fields are plain data for which zeros and
    // the values of an exited thread are valid, until the lines below and `enter` set them.
    unsafe {
        (*thread).session = 0;
        (*thread).untracked = Untracked::NONE;
        (&raw mut (*thread).free_lists).write(None);
        (*thread).orphan_of = orphan_of;
        (*thread).weights.forget();
        (*thread).until_timed = 1;
        (*thread).timed = 0;
        (*thread).trial = Trial::NONE;
        (*thread).shard = session::take_shard();
        (*thread).gaps = Gaps::new(seed(thread));
        (*thread).roots = [tree::ROOT, tree::TRUNCATED].map(PathNode::root);
        (*thread).deepest_interned = PathNode::root(tree::ROOT);
        (*thread).walker.init(crate::ends::recorded());
        (*thread).python.forget();
    }
    let key = KEY.load(Ordering::Relaxed);
    if key != u32::MAX && orphan_of == 0 {
        // SAFETY: the key was created. If this fails, the memory is lost when the thread exits.
        unsafe { libc::pthread_setspecific(key, thread.cast()) };
    }
    thread
}

/// Returns a number that differs between threads and between calls.
fn seed(thread: *const Thread) -> u64 {
    let cycles = cycles::read().unwrap_or_else(shm_protocol::clock::now_ns);
    cycles ^ ((thread as u64) << 16) ^ arch::thread_pointer().rotate_left(32)
}

/// Makes the calling thread forget its session. Called in a forked child, for the session of the
/// parent.
pub fn forget_session(local: &mut Local) {
    // SAFETY: null, or this thread's memory, which is not borrowed while the process forks.
    let thread = unsafe { state_of(local).as_mut() };
    // Writes only if necessary: each page that a child writes to is copied.
    if let Some(thread) = thread.filter(|thread| thread.session != 0) {
        thread.session = 0;
    }
}

/// Returns the shard of a thread, or `None` before its first sample.
pub fn shard_of(local: &Local) -> Option<u32> {
    // SAFETY: null, or memory that `make` returned to this thread.
    unsafe { state_of(local).as_ref().map(|thread| thread.shard) }
}

/// Releases the memory of an exiting thread. Other destructors may still allocate. They find the
/// thread in the state before its first sample; if they take a sample, this destructor runs once
/// more.
unsafe extern "C" fn release_memory(value: *mut c_void) {
    let saved = crate::sys::errno();
    let thread: *mut Thread = value.cast();
    // SAFETY: the state is the exiting thread's own, and `make` returned the memory to it. Only
    // signal handlers of this thread can run now, and `busy` keeps them from using the state.
    unsafe {
        let local = arch::local();
        (*local).busy = 1;
        (*local).thread = null_mut();
        (*local).epoch = 0;
        if let Some(mut free_lists) = (*thread).free_lists.take() {
            free_lists.clear();
        }
        session::release_shard((*thread).shard);
        cpu_totals::record_clock();
        timers::end_in_thread();
        (*local).busy = 0;
    }
    keep_or_release(thread);
    crate::sys::set_errno(saved);
}

/// Keeps a slot for the next thread, or releases it if enough are kept. Changes `errno`.
fn keep_or_release(thread: *mut Thread) {
    let claim = |slot: &AtomicPtr<Thread>| {
        slot.compare_exchange(null_mut(), thread, Ordering::Release, Ordering::Relaxed)
            .is_ok()
    };
    if !spares().0.iter().any(claim) {
        // SAFETY: the memory lies in this slot, and nobody uses it any more.
        unsafe { slots::give_back((*thread).slot, thread.cast(), size_of::<Thread>()) };
    }
}
