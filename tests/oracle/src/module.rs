//! Rules for return addresses, as the agent finds them: through `_dl_find_object`, which
//! takes no lock and allocates nothing.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use unwind::Cause;
use unwind::cache::RuleCache;
use unwind::compile::{Scratch, compile};
use unwind::elf::Image;
use unwind::rule::Rule;
use unwind::walk::Code;

/// glibc's `struct dl_find_object`, with room for what later versions may add.
#[repr(C)]
struct DlFound {
    flags: u64,
    start: u64,
    end: u64,
    link_map: u64,
    eh_frame: u64,
    reserved: [u64; 16],
}

unsafe extern "C" {
    fn _dl_find_object(pc: *mut c_void, result: *mut DlFound) -> c_int;
}

/// A loaded module, and what tells it from another one at the same place.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Found {
    start: u64,
    end: u64,
    identity: (u64, u64),
}

fn find(pc: u64) -> Option<Found> {
    // SAFETY: all zero is a valid value.
    let mut result: DlFound = unsafe { std::mem::zeroed() };
    // SAFETY: async-signal-safe by its contract; the result has room.
    let missing = unsafe { _dl_find_object(pc as *mut c_void, &mut result) };
    (missing == 0).then_some(Found {
        start: result.start,
        end: result.end,
        identity: (result.eh_frame, result.link_map),
    })
}

static RULES: RuleCache = RuleCache::new();
static GENERATION: AtomicU16 = AtomicU16::new(0);
/// Modules that rules came from, each with an address in its code.
static SEEN: Mutex<Vec<(Found, u64)>> = Mutex::new(Vec::new());

/// Returns the generation that cached rules are from.
pub fn generation() -> u16 {
    GENERATION.load(Ordering::Relaxed)
}

/// Rules as the agent gets them: kept once they are compiled.
pub struct Cached;

/// Rules recompiled each time.
pub struct Anew;

impl Code for Cached {
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule {
        let generation = generation();
        if let Some(rule) = RULES.get(ip, generation) {
            return rule;
        }
        let pc = ip.wrapping_sub(1);
        let Some(found) = find(pc) else {
            return Rule::failed(Cause::NoModule);
        };
        register(found, pc);
        let rule = Anew.rule(ip, scratch);
        RULES.put(ip, generation, rule);
        rule
    }

    fn image(&self, ip: u64) -> Option<Image> {
        Anew.image(ip)
    }
}

impl Code for Anew {
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule {
        let Some(found) = find(ip.wrapping_sub(1)) else {
            return Rule::failed(Cause::NoModule);
        };
        let image = image(&found);
        image.map_or(Rule::failed(Cause::NoRule), |image| {
            compile(&image, ip, scratch)
        })
    }

    fn image(&self, ip: u64) -> Option<Image> {
        image(&find(ip.wrapping_sub(1))?)
    }
}

fn image(found: &Found) -> Option<Image> {
    // SAFETY: its code is on the stack, so the loader keeps it mapped.
    unsafe { Image::at(found.start, found.end) }
}

fn register(found: Found, pc: u64) {
    let mut seen = SEEN.lock().unwrap_or_else(|e| e.into_inner());
    if !seen.iter().any(|(other, _)| *other == found) {
        seen.push((found, pc));
    }
}

/// Starts a new generation if a module is gone.
pub fn look_for_changes() {
    crate::thread::quietly(|| {
        let mut seen = SEEN.lock().unwrap_or_else(|e| e.into_inner());
        let before = seen.len();
        seen.retain(|(module, pc)| find(*pc) == Some(*module));
        if seen.len() != before {
            GENERATION.fetch_add(1, Ordering::Relaxed);
        }
    });
}
