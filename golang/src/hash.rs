//! The hash by which Go's runtime finds buckets.

/// Returns the hash of a stack and an object size.
pub fn of(stack: &[u64], size: u64) -> u64 {
    let mixed = stack.iter().chain([&size]).fold(0_u64, |hash, &value| {
        let hash = hash.wrapping_add(value);
        let hash = hash.wrapping_add(hash << 10);
        hash ^ hash >> 6
    });
    let mixed = mixed.wrapping_add(mixed << 3);
    mixed ^ mixed >> 11
}
