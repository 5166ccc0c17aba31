use super::*;

/// Checks that jemalloc's layout is what [`Count`] relies on.
#[test]
fn jemallocs_counters_are_followed_by_their_limits() {
    for (allocates, name) in [
        (true, c"thread.allocatedp"),
        (false, c"thread.deallocatedp"),
    ] {
        let count = ByteCounter::new(name);
        let mut limits = std::vec::Vec::new();
        for _ in 0..20_000 {
            // SAFETY: plain allocation calls; the words are this thread's.
            unsafe {
                let before = *count.0;
                let p = jemalloc::mallocx(100, 0);
                let between = *count.0;
                jemalloc::dallocx(p, 0);
                let after = *count.0;
                let (from, to) = if allocates {
                    (before, between)
                } else {
                    (between, after)
                };
                assert_eq!(to[0], from[0] + 112);
                assert!(to[0] < to[1], "the limit is not ahead: {to:?}");
                // The limit moves exactly when it is reached.
                assert_eq!(
                    to[1] != from[1],
                    from[0] + 112 >= from[1],
                    "{from:?} {to:?}"
                );
                limits.push(to[1]);
            }
        }
        limits.dedup();
        assert!(limits.len() > 2, "no limit was reached: {limits:?}");
    }
}

#[test]
fn jemalloc_counts_what_reaches_the_limit() {
    let mut words = [100, 200];
    let count = ByteCounter(&raw mut words);
    assert!(count.add(99));
    assert!(!count.add(1));
    assert_eq!(count.count_instead(64, || 5), 5);
    assert_eq!(words, [263, 200]);
    let mut words = [100, 0];
    assert!(ByteCounter(&raw mut words).add(1));
}
