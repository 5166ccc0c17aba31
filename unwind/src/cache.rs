//! Rule cache, shared by all threads.
//!
//! Four-way set-associative, with one set per cache line. Each address has a preferred entry in its
//! set, which is used if it is free, and is looked up first. An entry is a key (return address and
//! generation) and a rule. A writer claims an entry by replacing its key with `BUSY`, stores the
//! rule, then stores the new key. A reader uses the rule only if it sees its own key both before
//! and after. Within one generation, the rule of a key never changes, so it does no harm if the
//! entry was replaced and restored in between.
//!
//! Cost of a hit: one cache line and, unless the cache is crowded, one compare.

use crate::rule::Rule;
use core::sync::atomic::{AtomicU64, Ordering, fence};

const WAYS: usize = 4;
const SETS: usize = 4096;
const BUSY: u64 = u64::MAX;

/// Cache entry.
#[repr(C)]
struct Entry {
    key: AtomicU64,
    rule: AtomicU64,
}

impl Entry {
    /// Returns the rule if the entry has this key.
    #[inline(always)]
    fn get(&self, key: u64) -> Option<Rule> {
        if self.key.load(Ordering::Acquire) != key {
            return None;
        }
        let rule = self.rule.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        (self.key.load(Ordering::Relaxed) == key).then_some(Rule::from_bits(rule))
    }
}

#[repr(C, align(64))]
struct Set {
    entries: [Entry; WAYS],
}

impl Set {
    const fn new() -> Self {
        Self {
            entries: [const {
                Entry {
                    key: AtomicU64::new(0),
                    rule: AtomicU64::new(0),
                }
            }; WAYS],
        }
    }
}

/// Cache of 16,384 rules, 256 KiB. Zeroed memory is an empty cache.
pub struct RuleCache {
    sets: [Set; SETS],
}

impl RuleCache {
    /// Creates an empty cache, for a static.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "too large to be made by value")]
    pub const fn new() -> Self {
        Self {
            sets: [const { Set::new() }; SETS],
        }
    }

    /// Returns the rule of a return address in this generation, or `None` if it is not cached.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, ip: u64, generation: u16) -> Option<Rule> {
        let key = key(ip, generation);
        let (set, first) = slot_of(ip);
        let rule = self.sets[set].entries[first].get(key);
        if rule.is_some() {
            return rule;
        }
        self.get_from_set(set, key)
    }

    /// Looks up a rule in all entries of its set.
    #[inline(never)]
    fn get_from_set(&self, set: usize, key: u64) -> Option<Rule> {
        self.sets[set]
            .entries
            .iter()
            .find_map(|entry| entry.get(key))
    }

    /// Caches a rule, in place of another if the set is full. May do nothing if threads race.
    pub fn put(&self, ip: u64, generation: u16, rule: Rule) {
        let key = key(ip, generation);
        let (set, first) = slot_of(ip);
        let entries = &self.sets[set].entries;
        let key_of = |way: usize| entries[way].key.load(Ordering::Relaxed);
        if (0..WAYS).any(|way| key_of(way) == key) {
            return;
        }
        let is_free = |way: usize| match key_of(way) {
            BUSY => false,
            other => other == 0 || other as u16 != generation,
        };
        let mut ways = (0..WAYS).map(|distance| (first + distance) % WAYS);
        // If no entry is free, the replaced one is as good as random.
        let random = (rule.bits().wrapping_add(ip >> 3) % WAYS as u64) as usize;
        let way = ways.find(|way| is_free(*way)).unwrap_or(random);
        let victim = &entries[way];
        let old = victim.key.load(Ordering::Relaxed);
        if old == BUSY {
            return;
        }
        let claim = victim
            .key
            .compare_exchange(old, BUSY, Ordering::Acquire, Ordering::Relaxed);
        if claim.is_ok() {
            // The rule must not become visible before the old key is gone.
            fence(Ordering::Release);
            victim.rule.store(rule.bits(), Ordering::Relaxed);
            victim.key.store(key, Ordering::Release);
        }
    }
}

#[inline]
fn key(ip: u64, generation: u16) -> u64 {
    (ip << 16) | u64::from(generation)
}

/// Returns the set of a return address and its preferred entry there.
#[inline]
fn slot_of(ip: u64) -> (usize, usize) {
    const BITS: u32 = (SETS * WAYS).ilog2();
    let index = (ip.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - BITS)) as usize;
    (index / WAYS, index % WAYS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::Kind;
    use std::sync::Arc;

    fn cache() -> Arc<RuleCache> {
        // SAFETY: zeroed memory is a valid, empty table.
        unsafe { Arc::<RuleCache>::new_zeroed().assume_init() }
    }

    fn rule_for(ip: u64) -> Rule {
        Rule::new(Kind::Sp, (ip % 1000) as i64 * 8 + 8, Some(-8), None)
    }

    #[test]
    fn a_new_generation_discards_earlier_rules() {
        let cache = cache();
        cache.put(0x1234, 1, rule_for(1));
        assert_eq!(cache.get(0x1234, 1), Some(rule_for(1)));
        assert_eq!(cache.get(0x1234, 2), None);
        cache.put(0x1234, 2, rule_for(2));
        assert_eq!(cache.get(0x1234, 2), Some(rule_for(2)));
    }

    #[test]
    fn eight_thousand_rules_fit_with_few_losses() {
        let cache = cache();
        for ip in 0..8192u64 {
            cache.put(0x7f00_0000_0000 + ip * 37, 1, rule_for(ip));
        }
        let kept = (0..8192u64)
            .filter(|ip| cache.get(0x7f00_0000_0000 + ip * 37, 1) == Some(rule_for(*ip)))
            .count();
        assert!(kept > 7300, "{kept}");
    }

    #[test]
    fn racing_writers_never_give_a_wrong_rule() {
        let cache = cache();
        // All keys fall into a few sets, so that entries are replaced all the time.
        let ips: std::vec::Vec<u64> = (1u64..).filter(|ip| slot_of(*ip).0 < 4).take(64).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let cache = &cache;
                let ips = &ips;
                scope.spawn(move || {
                    for i in 0..200_000usize {
                        let ip = ips[(i * 7 + thread * 13) % ips.len()];
                        match cache.get(ip, 3) {
                            Some(rule) => assert_eq!(rule, rule_for(ip)),
                            None => cache.put(ip, 3, rule_for(ip)),
                        }
                    }
                });
            }
        });
    }
}
