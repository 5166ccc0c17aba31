//! The code that stacks run through.
//!
//! A return address without a known rule is looked up with `_dl_find_object` (glibc
//! 2.35), which takes no lock and allocates nothing, or in `/proc/self/maps` where the C
//! library is older. Its module is then registered for good, and recorded in the segment
//! with path and build id, so that the profile of a dead process can be symbolized.
//! A module found gone starts a new generation: rules known so far no longer count.

mod find;
mod record;

pub use find::init;
pub use record::executable_build_id;
use record::publish_missing;

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use find::Found;
use unwind::Cause;
use unwind::cache::RuleCache;
use unwind::compile::{Scratch, compile};
use unwind::elf::Image;
use unwind::rule::Rule;
use unwind::walk::Code;

/// Rules of all modules, by return address.
static RULES: RuleCache = RuleCache::new();
/// Bumped when addresses may mean other code than before.
static GENERATION: AtomicU16 = AtomicU16::new(0);

/// Most modules that are kept apart. Beyond, modules are looked up each time.
const CAPACITY: usize = 1024;

const EMPTY: u8 = 0;
const WRITING: u8 = 1;
const LIVE: u8 = 2;
const GONE: u8 = 3;

/// A module that has been on a stack.
struct Slot {
    state: AtomicU8,
    start: AtomicU64,
    end: AtomicU64,
    /// What tells it from another module at the same place.
    identity: AtomicU64,
    /// An address in its code, and where its name is.
    pc: AtomicU64,
    name: AtomicU64,
    /// How many registered modules were at its place before.
    instance: AtomicU8,
    /// Where it was recorded: the segment's number, and its entry there plus one.
    segment: AtomicU32,
    entry: AtomicU32,
}

impl Slot {
    const fn new() -> Self {
        Self {
            state: AtomicU8::new(EMPTY),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            identity: AtomicU64::new(0),
            pc: AtomicU64::new(0),
            name: AtomicU64::new(0),
            instance: AtomicU8::new(0),
            segment: AtomicU32::new(0),
            entry: AtomicU32::new(0),
        }
    }

    fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) == LIVE
    }

    fn matches(&self, found: &Found) -> bool {
        self.start.load(Ordering::Relaxed) == found.start
            && self.end.load(Ordering::Relaxed) == found.end
            && self.identity.load(Ordering::Relaxed) == found.identity
    }

    fn overlaps(&self, found: &Found) -> bool {
        self.start.load(Ordering::Relaxed) < found.end
            && found.start < self.end.load(Ordering::Relaxed)
    }

    fn holds(&self, pc: u64) -> bool {
        (self.start.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed)).contains(&pc)
    }
}

static SLOTS: [Slot; CAPACITY] = [const { Slot::new() }; CAPACITY];

fn used_slots() -> impl Iterator<Item = &'static Slot> {
    SLOTS
        .iter()
        .take_while(|slot| slot.state.load(Ordering::Acquire) != EMPTY)
}

/// Bumped by each segment that this process makes (a forked child makes its own).
static SEGMENT: AtomicU32 = AtomicU32::new(1);

/// The modules have to be recorded anew: there is another segment.
pub fn publish_all() {
    SEGMENT.fetch_add(1, Ordering::Relaxed);
}

/// This process's code, as a walker asks for it.
pub struct Modules;

impl Code for Modules {
    #[inline]
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule {
        rule(ip, scratch)
    }

    #[cold]
    fn image(&self, ip: u64) -> Option<Image> {
        let pc = ip.wrapping_sub(1);
        let found = registered(pc).or_else(|| find::find(pc))?;
        // SAFETY: its code is on the stack, so the loader keeps it mapped.
        unsafe { Image::at(found.start, found.end) }
    }
}

/// The unwind rule of a return address. About 2 ns when it is known, 1 µs otherwise.
#[inline]
fn rule(ip: u64, scratch: &mut Scratch) -> Rule {
    let generation = GENERATION.load(Ordering::Relaxed);
    match RULES.get(ip, generation) {
        Some(rule) => rule,
        None => find_rule(ip, scratch),
    }
}

/// A thread's first sample in a session. The session's first one: nothing noticed what was
/// unloaded since the last session, so everything is looked up again.
pub fn start_session(session: u64) {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if LAST.swap(session, Ordering::Relaxed) != session {
        look_for_changes();
    }
    publish_missing();
}

/// The generation that rules are from; a walker forgets its stack when it changes.
#[inline]
pub fn generation() -> u16 {
    GENERATION.load(Ordering::Relaxed)
}

#[cold]
fn find_rule(ip: u64, scratch: &mut Scratch) -> Rule {
    let pc = ip.wrapping_sub(1);
    let Some(found) = registered(pc).or_else(|| find::find(pc)) else {
        return Rule::failed(Cause::NoModule);
    };
    let instance = register(&found, pc);
    // SAFETY: its code is on the stack, so the loader keeps it mapped.
    let image = unsafe { Image::at(found.start, found.end) };
    let rule = image.map_or(Rule::failed(Cause::NoRule), |image| {
        compile(&image, ip, scratch)
    });
    let rule = rule.with_instance(instance);
    RULES.put(ip, GENERATION.load(Ordering::Relaxed), rule);
    rule
}

/// Where finding is expensive, a registered module is taken at its word until
/// [`look_for_changes`] says otherwise.
fn registered(pc: u64) -> Option<Found> {
    if find::is_cheap() {
        return None;
    }
    used_slots()
        .find(|slot| slot.is_live() && slot.holds(pc))
        .map(|slot| Found {
            start: slot.start.load(Ordering::Relaxed),
            end: slot.end.load(Ordering::Relaxed),
            identity: slot.identity.load(Ordering::Relaxed),
            name: slot.name.load(Ordering::Relaxed),
        })
}

/// Registers a module that is not yet; returns how many were at its place before.
fn register(found: &Found, pc: u64) -> u8 {
    if let Some(slot) = used_slots().find(|slot| slot.is_live() && slot.matches(found)) {
        return slot.instance.load(Ordering::Relaxed);
    }
    for slot in used_slots().filter(|slot| slot.is_live() && slot.overlaps(found)) {
        retire(slot);
    }
    let before = used_slots().filter(|slot| slot.overlaps(found)).count();
    let instance = before.min(usize::from(unwind::rule::MAX_INSTANCE)) as u8;
    let free = |slot: &&Slot| {
        slot.state
            .compare_exchange(EMPTY, WRITING, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    };
    let Some(slot) = SLOTS.iter().find(free) else {
        return instance;
    };
    slot.start.store(found.start, Ordering::Relaxed);
    slot.end.store(found.end, Ordering::Relaxed);
    slot.identity.store(found.identity, Ordering::Relaxed);
    slot.name.store(found.name, Ordering::Relaxed);
    slot.instance.store(instance, Ordering::Relaxed);
    slot.pc.store(pc, Ordering::Relaxed);
    slot.state.store(LIVE, Ordering::Release);
    record::publish(slot);
    instance
}

fn retire(slot: &Slot) {
    let was = slot
        .state
        .compare_exchange(LIVE, GONE, Ordering::AcqRel, Ordering::Relaxed);
    if was.is_ok() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
        record::note_unloaded(slot);
    }
}

/// The loader's `dlclose`, looked up when it is first called: outside any allocation.
static DLCLOSE: AtomicUsize = AtomicUsize::new(0);

/// Calls the loader's `dlclose`, then looks what is gone.
///
/// # Safety
/// That of dlclose(3).
pub unsafe fn close(handle: *mut c_void) -> c_int {
    let mut real = DLCLOSE.load(Ordering::Relaxed);
    if real == 0 {
        // SAFETY: a plain lookup by a terminated name.
        real = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dlclose".as_ptr()) } as usize;
        DLCLOSE.store(real, Ordering::Relaxed);
    }
    if real == 0 {
        return -1;
    }
    // SAFETY: the loader's function of this type.
    let real: unsafe extern "C" fn(*mut c_void) -> c_int = unsafe { core::mem::transmute(real) };
    // SAFETY: the caller's.
    let result = unsafe { real(handle) };
    look_for_changes();
    result
}

/// Finds modules that were unloaded, by asking again who is at their place. No memory of
/// theirs is touched. About 50 ns a module, or one reading of the maps where the C library
/// cannot tell; called at most once a second, and after `dlclose`.
pub fn look_for_changes() {
    if !find::is_cheap() {
        return look_in_maps();
    }
    for slot in used_slots().filter(|slot| slot.is_live()) {
        let now = find::find(slot.pc.load(Ordering::Relaxed));
        if !now.is_some_and(|found| slot.matches(&found)) {
            retire(slot);
        }
    }
}

/// The same by the maps. Where these cannot be read nothing is known to be gone.
#[cold]
fn look_in_maps() {
    // Those that are registered meanwhile may be younger than what is read.
    let before = used_slots().count();
    let mut there = [false; CAPACITY];
    let read = find::each_in_maps(|found| {
        for (slot, there) in used_slots().zip(&mut there) {
            *there |= slot.matches(found);
        }
    });
    if read {
        let known = used_slots().take(before).zip(there);
        known
            .filter(|(slot, there)| !there && slot.is_live())
            .for_each(|(slot, _)| retire(slot));
    }
}
