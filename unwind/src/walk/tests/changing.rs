//! Tests with stacks that change from walk to walk, in part or entirely.

use super::*;

/// Returns a walker of a thread that started on the stack `memory`.
fn walker_on(memory: &[u64]) -> Box<Walker> {
    let mut walker = walker();
    walker.init(Ends {
        first: memory.as_ptr_range().end as u64,
        ..Ends::default()
    });
    walker
}

/// Returns frames of 32 bytes that save the frame pointer, or keep it; every third is found by it.
fn rules_by_fp(ip: u64, _: &mut Scratch) -> Rule {
    match ip % 3 {
        0 => Rule::new(Kind::Sp, 32, Some(-8), None),
        1 => Rule::new(Kind::Sp, 32, Some(-8), Some(-16)),
        _ => Rule::new(Kind::Fp, 32, Some(-8), Some(-16)),
    }
}

/// Lays a stack whose frames save the stack pointer of their caller as its frame pointer.
fn lay_with_fp(memory: &mut [u64], ips: &[u64]) -> Registers {
    let mut start = lay(memory, ips);
    start.fp = start.sp;
    let first = memory.len() - 4 * ips.len();
    for index in 0..ips.len() {
        let saves = (1..ips.len() - index)
            .map(|further| (further, ips[index + further]))
            .find(|(_, ip)| ip % 3 != 0);
        let next = index + saves.map_or(1, |(further, _)| further);
        memory[first + 4 * index + 2] = start.sp + 32 * next as u64;
    }
    if ips[0].is_multiple_of(3) {
        let next = ips.iter().position(|ip| ip % 3 != 0).unwrap_or(0);
        start.fp += 32 * next as u64;
    }
    start
}

proptest! {
    /// Cached walks are right where stacks change all the time, so that the cached stack is not
    /// updated.
    #[test]
    fn places_never_change_the_result(
        stacks in prop::collection::vec(prop::collection::vec(0x30u64..0x36, 8..14), 2..5),
        picks in prop::collection::vec((0usize..5, 0usize..20), 20..120),
    ) {
        // The memory after the stack, to which a damaged frame pointer may lead, does not change.
        let mut memory = vec![0u64; 8 * 16];
        let (memory, _) = memory.split_at_mut(4 * 16);
        let tree = Interned::default();
        let mut remembering = walker_on(memory);
        let mut forgetful = walker_on(memory);
        for (stack, damage) in picks {
            let ips = &stacks[stack % stacks.len()];
            let start = lay_with_fp(memory, ips);
            if damage == 0 {
                // A frame pointer that leads elsewhere.
                let at = memory.len() - 10;
                memory[at] = memory[at].wrapping_add(32);
            }
            forgetful.forget();
            forgetful.pace = Pace::SLOW;
            let expected = forgetful.walk(start, 0, &tree, rules_by_fp);
            prop_assert_eq!(walk(&mut remembering, start, &tree, rules_by_fp), expected);
            if damage != 0 {
                prop_assert_eq!(&tree.path(expected.leaf.unwrap()).0, ips);
            }
        }

    }
}

proptest! {
    /// Cached walks are right with interpreter frames that change together with the native ones or
    /// independently of them.
    #[test]
    fn places_never_change_the_result_with_an_interpreter(
        stacks in prop::collection::vec(prop::collection::vec(0x30u64..0x36, 8..14), 2..4),
        inside in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(0x900u64..0x903, 0..2), 14), 1..4),
        picks in prop::collection::vec((0usize..4, 0usize..6), 20..120),
    ) {
        let mut memory = vec![0u64; 4 * 16];
        let tree = Interned::default();
        let mut remembering = walker_on(&memory);
        let mut forgetful = walker_on(&memory);
        let mut last: Vec<InterpreterFrame> = Vec::new();
        for (stack, other) in picks {
            let ips = &stacks[stack % stacks.len()];
            let inside = &inside[other % inside.len()][..ips.len()];
            let start = lay_with_fp(&mut memory, ips);
            let frames = inserted(start, ips.len(), inside);
            let same = frames.iter().zip(&last).take_while(|(now, then)| now == then).count();
            let walk = |walker: &mut Walker, same| {
                let interpreter_frames = InterpreterFrames { frames: &frames, unchanged: same };
                walker.walk_with(start, 0, &tree, rules_by_fp, true, |_| interpreter_frames)
            };
            forgetful.forget();
            forgetful.pace = Pace::SLOW;
            let expected = walk(&mut forgetful, 0);
            prop_assert_eq!(walk(&mut remembering, same), expected);
            let mut path = Vec::new();
            for (ip, inside) in ips.iter().zip(inside) {
                path.extend(inside.iter().rev());
                path.push(*ip);
            }
            prop_assert_eq!(tree.path(expected.leaf.unwrap()).0, path);
            last = frames;
        }
    }
}

#[test]
fn alternating_stacks_are_walked_quickly() {
    let (one, other): (Vec<u64>, Vec<u64>) = (
        (0..9).map(|i| 0x30 + i).collect(),
        (0..9).map(|i| 0x50 + i).collect(),
    );
    let mut memory = vec![0u64; 4 * 16];
    let tree = Interned::default();
    type Way = fn(&mut Walker, Registers, &Interned) -> Walk;
    let native: Way = |walker, start, tree| walker.walk(start, 0, tree, rules_by_fp);
    let with: Way = |walker, start, tree| {
        walker.walk_with(start, 0, tree, rules_by_fp, true, |_| {
            InterpreterFrames::NONE
        })
    };
    for way in [native, with] {
        let mut walker = walker_on(&memory);
        let mut quick = 0;
        for _ in 0..100 {
            for ips in [&one, &other] {
                let start = lay_with_fp(&mut memory, ips);
                quick += usize::from(walker.pace.is_quick());
                let walk = way(&mut walker, start, &tree);
                assert_eq!(&tree.path(walk.leaf.unwrap()).0, ips);
            }
        }
        assert!(quick > 150, "{quick}");
        // Another stack is noticed.
        let new: Vec<u64> = (0..9).map(|i| 0x70 + i).collect();
        let start = lay_with_fp(&mut memory, &new);
        let walk = way(&mut walker, start, &tree);
        assert_eq!(tree.path(walk.leaf.unwrap()).0, new);
    }
}

proptest! {
    /// Cached walks are right where one function allocates at several call sites, and sometimes
    /// another function does.
    #[test]
    fn near_stacks_never_change_the_result(
        picks in prop::collection::vec((0u64..4, 0usize..16, 0usize..16), 20..120),
    ) {
        // The memory after the stack, to which a damaged frame pointer may lead, does not change.
        let mut memory = vec![0u64; 8 * 16];
        let (memory, _) = memory.split_at_mut(4 * 16);
        let tree = Interned::default();
        let mut remembering = walker_on(memory);
        let mut forgetful = walker_on(memory);
        for (inner, outer, damage) in picks {
            let mut ips: Vec<u64> = (0..9).map(|i| 0x30 + i).collect();
            ips[0] += 3 * inner;
            if outer == 0 {
                ips[4] += 3;
            }
            let start = lay_with_fp(memory, &ips);
            if damage == 0 {
                let at = memory.len() - 10;
                memory[at] = memory[at].wrapping_add(32);
            }
            forgetful.forget();
            let expected = forgetful.walk(start, 0, &tree, rules_by_fp);
            prop_assert_eq!(walk(&mut remembering, start, &tree, rules_by_fp), expected);
        }
    }
}

#[test]
fn a_repeated_or_similar_stack_looks_up_few_rules() {
    let lookups = Cell::new(0);
    let rules = |ip: u64, scratch: &mut Scratch| {
        lookups.set(lookups.get() + 1);
        rules_by_fp(ip, scratch)
    };
    let mut memory = vec![0u64; 4 * 16];
    let tree = Interned::default();
    let mut walker = walker_on(&memory);
    let mut rules_for = |innermost: u64| {
        let ips: Vec<u64> = (1..9).map(|i| 0x30 + i).collect();
        let ips = [&[innermost], &ips[..]].concat();
        let start = lay_with_fp(&mut memory, &ips);
        let before = lookups.get();
        let walk = walk(&mut walker, start, &tree, rules);
        assert_eq!(tree.path(walk.leaf.unwrap()).0, ips);
        lookups.get() - before
    };
    // Whether the first walk identifies the stack depends on where its memory lies.
    rules_for(0x33);
    rules_for(0x33);
    assert_eq!(rules_for(0x33), 0);
    // Alternates between two stacks: one is the cached stack, and the other is in the frame cache.
    let in_turn: usize = (0..100).map(|_| rules_for(0x36) + rules_for(0x33)).sum();
    assert!(in_turn < 120, "{in_turn}");
    // A stack that is walked twice in a row becomes the cached stack.
    rules_for(0x36);
    rules_for(0x36);
    assert_eq!(rules_for(0x36), 0);
}

#[test]
fn changed_rules_for_the_same_addresses_are_detected() {
    let stacks: [Vec<u64>; 2] = [
        (0..9).map(|i| 0x30 + i).collect(),
        (0..9).map(|i| 0x50 + i).collect(),
    ];
    let mut memory = vec![0u64; 4 * 16];
    let tree = Interned::default();
    let mut walker = walker_on(&memory);
    for index in 0..40 {
        let start = lay_with_fp(&mut memory, &stacks[index % 2]);
        walker.walk(start, 0, &tree, rules_by_fp);
    }
    assert!(walker.pace.is_quick());
    let start = lay_with_fp(&mut memory, &stacks[0]);
    walker.forget();
    let end = |_: u64, _: &mut Scratch| Rule::END;
    let walk = walker.walk(start, 0, &tree, end);
    assert_eq!(tree.path(walk.leaf.unwrap()).0, [stacks[0][0]]);
}

#[test]
fn different_stacks_have_different_sums() {
    // All stacks of five frames of two sizes, with seven similar addresses.
    for salt in [0, 1, 0x1234_5678_9ABC_DEF0, u64::MAX] {
        let mut sums = HashMap::new();
        for number in 0..7u64.pow(5) {
            for step in [16, 32] {
                let part = |frame: u32| {
                    let address = 0x5555_5555_0000 + 5 * (number / 7u64.pow(frame) % 7);
                    last_stack::frame_hash(
                        address,
                        0x7fff_ffff_0000 + step * u64::from(frame),
                        salt,
                    )
                };
                let sum = (0..5).map(part).fold(0, u64::wrapping_add);
                assert_eq!(sums.insert(sum, (number, step)), None, "{number} {step}");
            }
        }
    }
}

#[test]
fn new_frames_that_read_too_many_words_are_kept() {
    // Frames that read one word each are replaced by more frames, which read two.
    let outer = (0..400).map(|i| 0x1000 + 2 * i);
    let few: Vec<u64> = (0..100)
        .map(|i| 0x3000 + 2 * i)
        .chain(outer.clone())
        .collect();
    let many: Vec<u64> = (0..330).map(|i| 0x4001 + 2 * i).chain(outer).collect();
    let mut memory = vec![0u64; 4 * many.len()];
    let mut walker = walker();
    let tree = Interned::default();
    for ips in [&few, &many, &few, &many] {
        let start = lay(&mut memory, ips);
        for saved in memory.iter_mut().skip(2).step_by(4) {
            *saved = start.fp;
        }
        let walk = walker.walk(start, 0, &tree, rules);
        let (path, truncated) = tree.path(walk.leaf.unwrap());
        assert!(!truncated && path == *ips);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Cached walks are right where the inner part of a deep stack is replaced by a longer or
    /// shorter one, whose frames read one or two words.
    #[test]
    fn whatever_is_replaced_of_a_deep_stack_is_noticed(
        edits in prop::collection::vec((0usize..700, 0usize..700, 0u64..4), 1..30),
    ) {
        const MAX_DEPTH: usize = 2000;
        let mut memory = vec![0u64; 4 * MAX_DEPTH];
        let tree = Interned::default();
        let mut remembering = walker_on(&memory);
        let mut forgetful = walker_on(&memory);
        // Outermost first.
        let mut stack: Vec<u64> = (0..300).map(|i| 0x10 + 2 * i).collect();
        for (removed, added, kind) in edits {
            stack.truncate(stack.len().saturating_sub(removed).max(1));
            let count = added.min(MAX_DEPTH - stack.len()) as u64;
            stack.extend((0..count).map(|i| 0x1000 * (kind + 1) + i % 7 * 2 + kind % 2));
            let ips: Vec<u64> = stack.iter().rev().copied().collect();
            let start = lay(&mut memory, &ips);
            for saved in memory.iter_mut().skip(2).step_by(4) {
                *saved = start.fp;
            }
            forgetful.forget();
            forgetful.pace = Pace::SLOW;
            let expected = forgetful.walk(start, 0, &tree, rules);
            prop_assert_eq!(walk(&mut remembering, start, &tree, rules), expected);
        }
    }
}
