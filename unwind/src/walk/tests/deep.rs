//! Stacks near the maximum number of frames, and deeper ones.

use super::*;

/// Returns a walker for the thread whose stack ends where `memory` does.
fn walker_on(memory: &[u64]) -> Box<Walker> {
    let mut walker = walker();
    walker.init(Ends {
        first: memory.as_ptr_range().end as u64,
        ..Ends::default()
    });
    walker
}

/// Number of frames for which `memory` has room.
const ROOM: usize = MAX_FRAMES + 1200;

/// Lays a stack of `depth` frames. Stacks of different depths have the same outer frames. `variant`
/// is in the return address of the frame `changed`, counted from the outermost.
fn lay_recursion(memory: &mut [u64], depth: usize, changed: usize, variant: u64) -> Registers {
    let ip = |outer: usize| {
        let variant = if outer == changed { variant } else { 0 };
        0x10_0000 + 16 * outer as u64 + 2 * variant
    };
    let ips: Vec<u64> = (0..depth).rev().map(ip).collect();
    lay(memory, &ips)
}

/// Compares the walks of a walker with those of one that remembers nothing.
fn compare(depths: &[(usize, usize, u64)]) {
    let mut memory = vec![0u64; 4 * ROOM + 4];
    let tree = Interned::default();
    let mut remembering = walker_on(&memory);
    let mut forgetful = walker_on(&memory);
    for (depth, changed, variant) in depths {
        let start = lay_recursion(&mut memory, *depth, *changed, *variant);
        forgetful.forget();
        let expected = forgetful.walk(start, 0, &tree, rules);
        let is_deep = *depth > MAX_FRAMES;
        assert_eq!(expected.truncated, is_deep.then_some(Cause::TooDeep));
        for _ in 0..2 {
            assert_eq!(
                walk(&mut remembering, start, &tree, rules),
                expected,
                "{depth}"
            );
        }
    }
}

#[test]
fn depths_around_the_maximum_are_distinguished() {
    let up = (MAX_FRAMES - 3..MAX_FRAMES + 4).map(|depth| (depth, 0, 0));
    let down = up.clone().rev();
    let jumps = [
        400, -300, 1100, -800, 200, -900, 0, 1, -1, 257, 256, 255, 0, 700,
    ];
    let jumps = jumps.map(|by: isize| (MAX_FRAMES.strict_add_signed(by), 0, 0));
    compare(&up.chain(down).chain(jumps).collect::<Vec<_>>());
}

#[test]
fn a_changed_outer_frame_is_detected_when_the_stack_is_shallow_again() {
    let deep = MAX_FRAMES + 1000;
    let changes = [(deep, 5, 0), (deep, 5, 1), (MAX_FRAMES - 1, 5, 1)];
    let back = [(deep, 5, 2), (MAX_FRAMES, 5, 2), (100, 5, 2), (deep, 5, 1)];
    let inner = [(deep, deep - 40, 1), (deep, deep - 40, 0), (deep, 900, 3)];
    compare(&[&changes[..], &back[..], &inner[..]].concat());
}

/// A deep stack is walked once; further samples in it take a few steps each.
#[test]
fn a_deep_stack_is_not_walked_again() {
    let mut memory = vec![0u64; 4 * ROOM + 4];
    let mut walker = walker_on(&memory);
    let tree = Interned::default();
    let steps = Cell::new(0);
    let code = |ip: u64, scratch: &mut Scratch| {
        steps.set(steps.get() + 1);
        rules(ip, scratch)
    };
    let mut taken = |depth: usize| {
        let start = lay_recursion(&mut memory, depth, 0, 0);
        let before = steps.get();
        let lookups = tree.lookups.get();
        walk(&mut walker, start, &tree, code);
        (steps.get() - before, tree.lookups.get() - lookups)
    };
    let deep = MAX_FRAMES + 700;
    for _ in 0..3 {
        taken(deep);
    }
    assert_eq!(taken(deep), (0, 0));
    for by in 1..100 {
        let (steps, nodes) = taken(deep - by);
        assert!(
            steps <= 1 && nodes <= DEEP_FRAMES,
            "{steps} steps, {nodes} nodes"
        );
        let (steps, nodes) = taken(deep + by % 3);
        assert!(
            steps <= by + 3 && nodes <= DEEP_FRAMES,
            "{steps} steps, {nodes} nodes"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// For any depths and changes, the cache does not change the result.
    #[test]
    fn the_cache_never_changes_the_result(
        stacks in prop::collection::vec(
            (MAX_FRAMES - 400..ROOM, 0usize..ROOM, 0u64..3), 1..12),
    ) {
        compare(&stacks);
    }
}
