//! Rules for return addresses, as the agent finds them.

#[path = "../../../agent/src/module/find.rs"]
#[allow(
    dead_code,
    reason = "the agent's file, of which this uses the lookup only"
)]
mod find;

use find::Found;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, Ordering};
use unwind::Cause;
use unwind::cache::RuleCache;
use unwind::compile::{Scratch, compile};
use unwind::elf::Image;
use unwind::rule::Rule;

static RULES: RuleCache = RuleCache::new();
static GENERATION: AtomicU16 = AtomicU16::new(0);
/// Modules that rules came from, each with an address in its code.
static SEEN: Mutex<Vec<(Found, u64)>> = Mutex::new(Vec::new());

/// The generation that cached rules are from.
pub fn generation() -> u16 {
    GENERATION.load(Ordering::Relaxed)
}

/// The rule of a return address, cached.
pub fn cached(ip: u64, scratch: &mut Scratch) -> Rule {
    let generation = generation();
    if let Some(rule) = RULES.get(ip, generation) {
        return rule;
    }
    let pc = ip.wrapping_sub(1);
    let Some(found) = find::find(pc) else {
        return Rule::failed(Cause::NoModule);
    };
    register(found, pc);
    let rule = compiled(&found, ip, scratch);
    RULES.put(ip, generation, rule);
    rule
}

/// The rule of a return address, compiled anew.
pub fn uncached(ip: u64, scratch: &mut Scratch) -> Rule {
    match find::find(ip.wrapping_sub(1)) {
        Some(found) => compiled(&found, ip, scratch),
        None => Rule::failed(Cause::NoModule),
    }
}

fn compiled(found: &Found, ip: u64, scratch: &mut Scratch) -> Rule {
    // SAFETY: its code is on the stack, so the loader keeps it mapped.
    let image = unsafe { Image::at(found.start, found.end) };
    image.map_or(Rule::failed(Cause::NoRule), |image| {
        compile(&image, ip, scratch)
    })
}

fn is_same(a: &Found, b: &Found) -> bool {
    (a.start, a.end, a.identity) == (b.start, b.end, b.identity)
}

fn register(found: Found, pc: u64) {
    let mut seen = SEEN.lock().unwrap_or_else(|e| e.into_inner());
    if !seen.iter().any(|(other, _)| is_same(other, &found)) {
        seen.push((found, pc));
    }
}

/// Starts a new generation if a module is gone.
pub fn look_for_changes() {
    crate::thread::quietly(|| {
        let mut seen = SEEN.lock().unwrap_or_else(|e| e.into_inner());
        let before = seen.len();
        seen.retain(|(module, pc)| find::find(*pc).is_some_and(|now| is_same(module, &now)));
        if seen.len() != before {
            GENERATION.fetch_add(1, Ordering::Relaxed);
        }
    });
}
