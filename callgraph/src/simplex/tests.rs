//! Compares the results for small problems with those of an exhaustive search.

use super::*;

fn c(tail: usize, head: usize, length: i64, weight: i64) -> Constraint {
    Constraint {
        tail,
        head,
        length,
        weight,
    }
}

fn cost(x: &[i64], constraints: &[Constraint]) -> i64 {
    constraints
        .iter()
        .map(|c| {
            assert!(x[c.head] - x[c.tail] >= c.length, "broken constraint");
            (x[c.head] - x[c.tail]) * c.weight
        })
        .sum()
}

#[test]
fn a_node_with_one_heavy_parent_moves_down_to_it() {
    // 0 -> 1 -> 2 -> 3 and 4 -> 3: 4 belongs right above 3, not at the top.
    let constraints = [c(0, 1, 1, 1), c(1, 2, 1, 1), c(2, 3, 1, 1), c(4, 3, 1, 1)];
    let x = solve(5, &constraints, None, usize::MAX, false);
    assert_eq!(x[3] - x[4], 1);
    assert_eq!(cost(&x, &constraints), 4);
}

#[test]
fn random_graphs_reach_the_optimum_of_exhaustive_search() {
    let mut seed = 7u64;
    let mut random = move |n: u64| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) % n
    };
    for _ in 0..200 {
        let mut constraints = Vec::new();
        for head in 1..6usize {
            for _ in 0..1 + random(2) {
                let tail = random(head as u64) as usize;
                constraints.push(c(tail, head, random(3) as i64, random(4) as i64));
            }
        }
        let x = solve(6, &constraints, None, usize::MAX, false);
        assert_eq!(cost(&x, &constraints), exhaustive(&constraints));
        let balanced = solve(6, &constraints, Some(x), usize::MAX, true);
        assert_eq!(cost(&balanced, &constraints), exhaustive(&constraints));
    }
}

/// Returns the minimum cost over all placements of six nodes in 0..=10.
fn exhaustive(constraints: &[Constraint]) -> i64 {
    fn go(x: &mut Vec<i64>, constraints: &[Constraint], best: &mut i64) {
        if x.len() == 6 {
            let feasible = constraints
                .iter()
                .all(|c| x[c.head] - x[c.tail] >= c.length);
            if feasible {
                let sum = constraints
                    .iter()
                    .map(|c| (x[c.head] - x[c.tail]) * c.weight)
                    .sum();
                *best = (*best).min(sum);
            }
            return;
        }
        let min = constraints
            .iter()
            .filter(|c| c.head == x.len())
            .map(|c| x[c.tail] + c.length)
            .max()
            .unwrap_or(0);
        for value in min..=10 {
            x.push(value);
            go(x, constraints, best);
            x.pop();
        }
    }
    let mut best = i64::MAX;
    go(&mut vec![0], constraints, &mut best);
    best
}
