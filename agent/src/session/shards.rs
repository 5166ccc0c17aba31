//! Assigns shards of the counters to threads, each of which is the only writer of its shard.

use core::sync::atomic::{AtomicU32, Ordering};
use shm_protocol::layout::SHARED_SHARD;

/// Bit set of the shards that have an owner. Threads without a shard use [`SHARED_SHARD`].
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static SHARDS: AtomicU32 = AtomicU32::new(0);

/// Takes a shard for the calling thread.
pub fn take_shard() -> u32 {
    let mut taken = SHARDS.load(Ordering::Relaxed);
    loop {
        let free = (!taken).trailing_zeros();
        if free >= SHARED_SHARD {
            return SHARED_SHARD;
        }
        let wanted = taken | (1 << free);
        match SHARDS.compare_exchange_weak(taken, wanted, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return free,
            Err(other) => taken = other,
        }
    }
}

/// Releases a shard.
pub fn release_shard(shard: u32) {
    if shard < SHARED_SHARD {
        SHARDS.fetch_and(!(1 << shard), Ordering::Release);
    }
}

/// Keeps only the calling thread's shard, after a fork.
pub fn keep_only(shard: Option<u32>) {
    let kept = shard
        .filter(|shard| *shard < SHARED_SHARD)
        .map_or(0, |shard| 1 << shard);
    if SHARDS.load(Ordering::Relaxed) != kept {
        SHARDS.store(kept, Ordering::Relaxed);
    }
}
