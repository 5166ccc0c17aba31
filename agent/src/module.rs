//! Loaded modules of the process, for unwinding.
//!
//! The module of a return address without a known rule is found with `_dl_find_object` (glibc
//! 2.35), which takes no lock and allocates nothing, or in `/proc/self/maps` if the C library is
//! older ([`listing`]). It is then registered permanently, and recorded in the segment with its
//! path and build id, so that the profile of a dead process can be symbolized. When a module turns
//! out to be unloaded, a new generation starts, which invalidates all older rules.
//!
//! A misread return address may lie in any module. So a module's memory may only be read while
//! `dlclose` is kept waiting ([`close`]). Except for the unwind tables, everything about a module
//! is copied when it is registered.

mod close;
mod find;
mod found;
mod listing;
mod maps;
mod record;
mod tables;

pub use close::{close, reading};
use record::{Facts, publish_missing};
pub use tables::map as prepare;
use tables::tables;

use core::cell::{Cell, UnsafeCell};
use core::mem::MaybeUninit;
use core::ptr::{from_ref, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use found::FoundModule;
use unwind::Cause;
use unwind::cache::RuleCache;
use unwind::compile::{Scratch, compile};
use unwind::elf::Image;
use unwind::rule::Rule;
use unwind::seen::SeenStacks;
use unwind::walk::Code;

/// Incremented when addresses may refer to different code than before.
static GENERATION: AtomicU16 = AtomicU16::new(0);

/// State of a free slot.
const EMPTY: u8 = 0;
/// State of a slot that a thread is filling.
const WRITING: u8 = 1;
/// State of the slot of a loaded module.
const LIVE: u8 = 2;
/// State of the slot of a module that was unloaded.
const UNLOADED: u8 = 3;

/// Module that has been on a stack. All zeros is a free slot.
struct Slot {
    state: AtomicU8,
    start: AtomicU64,
    end: AtomicU64,
    /// Number that differs from that of another module at the same addresses.
    identity: AtomicU64,
    /// Address in the module's code.
    pc: AtomicU64,
    /// Facts that are recorded in the segment.
    facts: UnsafeCell<MaybeUninit<Facts>>,
    /// Number of modules that were registered at these addresses before.
    instance: AtomicU8,
    /// Number of the segment that the module was last recorded in.
    segment: AtomicU32,
    /// Index of the module's entry in that segment, plus one.
    entry: AtomicU32,
}

impl Slot {
    /// Returns the facts of a slot that is or was live.
    ///
    /// # Safety
    /// The slot is or was live.
    unsafe fn facts(&self) -> &Facts {
        debug_assert!(self.state.load(Ordering::Acquire) >= LIVE);
        // SAFETY: the thread that claimed the slot wrote them once, before the slot was live, and
        // the slot is or was live.
        unsafe { (*self.facts.get()).assume_init_ref() }
    }

    fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) == LIVE
    }

    fn matches(&self, found: &FoundModule) -> bool {
        self.start.load(Ordering::Relaxed) == found.start
            && self.end.load(Ordering::Relaxed) == found.end
            && self.identity.load(Ordering::Relaxed) == found.identity
    }

    /// Returns true if the module of a slot that is or was live is still loaded. If there is
    /// nothing to compare, it is assumed to be until another module takes its place.
    ///
    /// # Safety
    /// The slot is or was live.
    unsafe fn is_loaded(&self) -> bool {
        if find::is_cheap() {
            let now = find::find(self.pc.load(Ordering::Relaxed));
            return now.is_some_and(|found| self.matches(&found));
        }
        // SAFETY: the slot is or was live.
        unsafe { self.facts() }.fingerprint.is_still_mapped()
    }

    fn overlaps(&self, found: &FoundModule) -> bool {
        self.start.load(Ordering::Relaxed) < found.end
            && found.start < self.end.load(Ordering::Relaxed)
    }

    fn holds(&self, pc: u64) -> bool {
        (self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed)).contains(&pc)
    }
}

// SAFETY: `facts` is written by the thread that claimed the slot, before it is live, and only read
// afterwards.
unsafe impl Sync for Slot {}

/// Returns all slots; an empty slice before the first session of this process.
fn slots() -> &'static [Slot] {
    tables().map_or(&[], |tables| &tables.slots)
}

fn used_slots() -> impl Iterator<Item = &'static Slot> {
    slots()
        .iter()
        .take_while(|slot| slot.state.load(Ordering::Acquire) != EMPTY)
}

/// Code of this process, as the walker reads it during one walk.
pub struct Modules {
    rules: Option<&'static RuleCache>,
    generation: Cell<u16>,
}

impl Modules {
    /// Begins a walk.
    #[inline]
    pub fn new() -> Self {
        Self {
            rules: tables().map(|tables| &tables.rules),
            generation: Cell::new(generation()),
        }
    }
}

impl Code for Modules {
    /// Takes about 2 ns for a known rule, 1 µs otherwise.
    #[inline(always)]
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule {
        let cached = self
            .rules
            .and_then(|rules| rules.get(ip, self.generation.get()));
        cached.unwrap_or_else(|| {
            let rule = find_rule(ip, scratch);
            // The lookup may have found that another module took the place of an older one.
            self.generation.set(generation());
            rule
        })
    }

    #[cold]
    fn image(&self, ip: u64) -> Option<Image> {
        let pc = ip.wrapping_sub(1);
        let found = find_registered(pc).or_else(|| find::find(pc))?;
        // SAFETY: the walker requests images, and uses them, only inside `reading`. The module has
        // just been found, and no `dlclose` can unmap it inside `reading`.
        unsafe { Image::at(found.start, found.end) }
    }

    fn reading<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        close::reading(work)
    }
}

/// Functions that are called when modules are found and unloaded.
pub struct Watcher {
    /// Called with the name and the first address of a module that was found on a stack for the
    /// first time. It stays loaded during the call.
    pub found: unsafe fn(&[u8], u64),
    /// Called with the first address and the end of a module that was unloaded.
    pub unloaded: fn(u64, u64),
}

/// The watcher; null before [`init`].
static WATCHER: AtomicPtr<Watcher> = AtomicPtr::new(null_mut());

fn watcher() -> Option<&'static Watcher> {
    // SAFETY: null, or the `&'static` passed to `init`.
    unsafe { WATCHER.load(Ordering::Relaxed).as_ref() }
}

/// Looks up the loader's functions, at start-up.
pub fn init(watcher: &'static Watcher) {
    WATCHER.store(from_ref(watcher).cast_mut(), Ordering::Relaxed);
    find::init();
    close::find();
    crate::atfork::add_child_handler(close::in_child);
}

/// Returns the table of stacks seen so far; `None` before the first session.
#[inline]
pub fn seen() -> Option<&'static SeenStacks> {
    tables().map(|tables| &tables.seen)
}

/// Handles a thread's first sample in a session. At the first sample of the session, checks all
/// modules, because unloading between sessions goes unnoticed.
pub fn start_session(session: u64) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if LAST.swap(session, Ordering::Relaxed) != session {
        find_unloaded();
    }
    publish_missing();
}

/// Returns the current generation of rules. A walker drops its cached stack when it changes.
#[inline]
pub fn generation() -> u16 {
    GENERATION.load(Ordering::Relaxed)
}

#[cold]
fn find_rule(ip: u64, scratch: &mut Scratch) -> Rule {
    // `None` while a module is being unloaded: the frame then cannot be unwound, and is not cached.
    close::reading(|| find_rule_inside(ip, scratch)).unwrap_or(Rule::NOT_NOW)
}

/// Looks up and compiles the rule of a return address. Must be called inside [`close::reading`].
fn find_rule_inside(ip: u64, scratch: &mut Scratch) -> Rule {
    let pc = ip.wrapping_sub(1);
    let generation = GENERATION.load(Ordering::Acquire);
    let Some(found) = find_registered(pc).or_else(|| find::find(pc)) else {
        return Rule::failed(Cause::NoModule);
    };
    // SAFETY: just found, and no `dlclose` can unmap it inside `reading`.
    let image = unsafe { Image::at(found.start, found.end) };
    let instance = register(&found, pc, image.as_ref());
    let rule = image.map_or(Rule::failed(Cause::NoRule), |image| {
        compile(&image, ip, scratch)
    });
    let rule = rule.with_instance(instance);
    // Cached only if registering the module did not start a new generation.
    if let Some(tables) = tables()
        && generation == self::generation()
    {
        tables.rules.put(ip, generation, rule);
    }
    rule
}

/// Returns the registered module that contains `pc`, if lookups are expensive. It is assumed to be
/// loaded until [`find_unloaded`] finds otherwise.
fn find_registered(pc: u64) -> Option<FoundModule> {
    if find::is_cheap() {
        return None;
    }
    used_slots()
        .find(|slot| slot.is_live() && slot.holds(pc))
        .map(|slot| FoundModule {
            start: slot.start.load(Ordering::Relaxed),
            end: slot.end.load(Ordering::Relaxed),
            identity: slot.identity.load(Ordering::Relaxed),
            ..FoundModule::default()
        })
}

/// Registers a module if it is new. Returns the number of modules that were at its addresses
/// before. Must be called inside [`close::reading`].
fn register(found: &FoundModule, pc: u64, image: Option<&Image>) -> u8 {
    if let Some(slot) = used_slots().find(|slot| slot.is_live() && slot.matches(found)) {
        return slot.instance.load(Ordering::Relaxed);
    }
    for slot in used_slots().filter(|slot| slot.is_live() && slot.overlaps(found)) {
        mark_unloaded(slot);
    }
    let before = used_slots().filter(|slot| slot.overlaps(found)).count();
    let instance = before.min(usize::from(unwind::rule::MAX_INSTANCE)) as u8;
    let claim = |slot: &&Slot| {
        slot.state
            .compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    };
    let Some(slot) = slots().iter().find(claim) else {
        return instance;
    };
    slot.start.store(found.start, Ordering::Relaxed);
    slot.end.store(found.end, Ordering::Relaxed);
    slot.identity.store(found.identity, Ordering::Relaxed);
    slot.instance.store(instance, Ordering::Relaxed);
    slot.pc.store(pc, Ordering::Relaxed);
    // SAFETY: this thread claimed the slot, and no other thread reads it before it is live. The
    // module stays loaded inside `reading`.
    unsafe { (*slot.facts.get()).write(Facts::read(found, pc, image)) };
    slot.state.store(LIVE, Ordering::Release);
    // SAFETY: the slot is live.
    unsafe { record::publish(slot) };
    if let Some(watcher) = watcher()
        && image.is_some()
    {
        // SAFETY: the slot is live, the module's headers were read, and it stays loaded inside
        // `reading`.
        unsafe { (watcher.found)(slot.facts().name, found.start) };
    }
    instance
}

fn mark_unloaded(slot: &Slot) {
    let previous = slot
        .state
        .compare_exchange(LIVE, UNLOADED, Ordering::AcqRel, Ordering::Relaxed);
    if previous.is_ok() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        record::record_unloaded(slot);
        let start = slot.start.load(Ordering::Relaxed);
        let end = slot.end.load(Ordering::Relaxed);
        if let Some(watcher) = watcher() {
            (watcher.unloaded)(start, end);
        }
    }
}

/// Finds modules that were unloaded, by looking up their addresses again without touching their
/// memory. Takes about 50 ns per module, or 1 µs if the C library cannot look up addresses. Called
/// at most once a second, and after `dlclose`.
pub fn find_unloaded() {
    for slot in used_slots().filter(|slot| slot.is_live()) {
        // SAFETY: the slot was live.
        if !unsafe { slot.is_loaded() } {
            mark_unloaded(slot);
        }
    }
}
