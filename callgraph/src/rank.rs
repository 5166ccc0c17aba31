//! Assigns ranks (layers) to the boxes.
//!
//! Cycles are broken by reversing the back edges of a depth-first search that follows heavy wires
//! first. (Reversing the least total weight, as feedback arc heuristics do, makes graphs deeper and
//! adds a tenth more crossings on real profiles.) A second search follows the wires in another
//! order; tangled graphs get many more. Each may reverse other wires, which may lead to fewer
//! crossings. Network simplex then minimises the weighted sum of the wires' lengths. A box may have
//! several ranks to choose from at the same cost. Such boxes move to the narrowest rank in one
//! result and stay in another, because either may have fewer crossings.

use crate::layers::{Block, Wire};
use crate::simplex::{self, Constraint};

/// Maximum number of pivots.
const MAX_PIVOTS: usize = 20_000;

/// A graph is tangled if more than one in this many wires is reversed.
const TANGLED_RATIO: usize = 8;
/// Number of searches in a tangled graph.
const TANGLED_SEARCHES: usize = 12;
/// Maximum number of wires of a graph that gets the searches for tangled graphs.
const MAX_TANGLED_WIRES: usize = 120;

/// Returns one or more rankings: the rank of each box, from 0. Rankings from the same search have
/// the same total length. The ends of each wire differ in rank.
pub fn assign(blocks: &[Block], wires: &[Wire]) -> Vec<Vec<usize>> {
    let back = back_wires(blocks.len(), wires, SearchOrder::Heaviest);
    let mut rankings = ranks(blocks, wires, &back);
    let by_index = back_wires(blocks.len(), wires, SearchOrder::ByIndex);
    if by_index != back {
        rankings.extend(ranks(blocks, wires, &by_index));
    }
    rankings
}

/// Returns more rankings for a tangled graph, and none for others.
pub fn assign_tangled(blocks: &[Block], wires: &[Wire]) -> Vec<Vec<usize>> {
    let back = back_wires(blocks.len(), wires, SearchOrder::Heaviest);
    let reversed = back.iter().filter(|&&b| b).count();
    if wires.len() > MAX_TANGLED_WIRES || reversed * TANGLED_RATIO <= wires.len() {
        return Vec::new();
    }
    let search_order = |seed| back_wires(blocks.len(), wires, SearchOrder::Random(seed));
    (0..TANGLED_SEARCHES as u64)
        .flat_map(|seed| ranks(blocks, wires, &search_order(seed)))
        .collect()
}

/// Returns one or two rankings of the graph with the wires `back` reversed.
fn ranks(blocks: &[Block], wires: &[Wire], back: &[bool]) -> Vec<Vec<usize>> {
    let constraints: Vec<Constraint> = wires
        .iter()
        .zip(back)
        .map(|(wire, &back)| {
            let (tail, head) = if back {
                (wire.to, wire.from)
            } else {
                (wire.from, wire.to)
            };
            Constraint {
                tail,
                head,
                length: 1,
                weight: wire.weight,
            }
        })
        .collect();
    let x = simplex::solve(blocks.len(), &constraints, None, MAX_PIVOTS, false);
    let min = x.iter().min().copied().unwrap_or(0);
    let shortest: Vec<usize> = x.iter().map(|v| (v - min) as usize).collect();
    let mut balanced = shortest.clone();
    balance_ranks(blocks, &constraints, &mut balanced);
    if balanced == shortest {
        vec![shortest]
    } else {
        vec![balanced, shortest]
    }
}

/// Order in which a depth-first search starts from boxes and follows wires. Boxes that no wire
/// enters always come first.
#[derive(Clone, Copy)]
enum SearchOrder {
    /// Most outgoing weight first, heavy wires first.
    Heaviest,
    /// Order of the indices.
    ByIndex,
    /// Random order with this seed.
    Random(u64),
}

/// Returns which wires are back edges of a depth-first search: they lead to a box that is still
/// open.
fn back_wires(count: usize, wires: &[Wire], search_order: SearchOrder) -> Vec<bool> {
    let mut out: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut surplus = vec![0i64; count];
    let mut entered = vec![false; count];
    for (index, wire) in wires.iter().enumerate() {
        out[wire.from].push(index);
        entered[wire.to] = true;
        surplus[wire.from] += wire.weight;
        surplus[wire.to] -= wire.weight;
    }
    let key = |index: usize, weight: i64| match search_order {
        SearchOrder::Heaviest => -weight,
        SearchOrder::ByIndex => 0,
        SearchOrder::Random(seed) => pseudo_random(index as u64, seed),
    };
    for list in &mut out {
        list.sort_by_key(|&w| key(w, wires[w].weight));
    }
    let mut starts: Vec<usize> = (0..count).collect();
    starts.sort_by_key(|&v| (entered[v], key(v, surplus[v])));
    search_back_wires(&starts, &out, wires)
}

/// Runs the depth-first search. Returns which wires lead to a box that is still open.
fn search_back_wires(starts: &[usize], out: &[Vec<usize>], wires: &[Wire]) -> Vec<bool> {
    let mut seen = vec![false; out.len()];
    let mut open = vec![false; out.len()];
    let mut back = vec![false; wires.len()];
    for &start in starts {
        let mut stack = if seen[start] {
            vec![]
        } else {
            vec![(start, 0)]
        };
        seen[start] = true;
        while let Some((v, i)) = stack.pop() {
            open[v] = true;
            let Some(&w) = out[v].get(i) else {
                open[v] = false;
                continue;
            };
            stack.push((v, i + 1));
            let to = wires[w].to;
            if open[to] {
                back[w] = true;
            } else if !seen[to] {
                seen[to] = true;
                stack.push((to, 0));
            }
        }
    }
    back
}

/// Returns a pseudo-random number that depends on both arguments only.
fn pseudo_random(index: u64, seed: u64) -> i64 {
    let mixed = (index + 1)
        .wrapping_mul(6364136223846793005 + 2 * seed)
        .rotate_left(17)
        .wrapping_mul(1442695040888963407);
    (mixed >> 1) as i64
}

/// Moves boxes whose wires pull equally up and down to the narrowest rank possible.
fn balance_ranks(blocks: &[Block], constraints: &[Constraint], ranks: &mut [usize]) {
    let depth = ranks.iter().max().map_or(0, |r| r + 1);
    let width = |v: usize| blocks[v].size.w + blocks[v].loop_width;
    let mut rank_widths = vec![0.0; depth];
    let mut pull = vec![0i64; blocks.len()];
    let mut edges: Vec<Vec<usize>> = vec![Vec::new(); blocks.len()];
    for (v, &rank) in ranks.iter().enumerate() {
        rank_widths[rank] += width(v);
    }
    for (e, c) in constraints.iter().enumerate() {
        pull[c.head] += c.weight;
        pull[c.tail] -= c.weight;
        edges[c.head].push(e);
        edges[c.tail].push(e);
    }
    for v in (0..blocks.len()).filter(|&v| pull[v] == 0) {
        let mut low = 0;
        let mut high = depth - 1;
        for c in edges[v].iter().map(|&e| constraints[e]) {
            if c.head == v {
                low = low.max(ranks[c.tail] + 1);
            } else {
                high = high.min(ranks[c.head] - 1);
            }
        }
        rank_widths[ranks[v]] -= width(v);
        let best = (low..=high).min_by(|&a, &b| rank_widths[a].total_cmp(&rank_widths[b]));
        ranks[v] = best.unwrap_or(ranks[v]);
        rank_widths[ranks[v]] += width(v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Size;

    fn wires(list: &[(usize, usize, i64)]) -> Vec<Wire> {
        list.iter()
            .map(|&(from, to, weight)| Wire {
                from,
                to,
                weight,
                label: Size::default(),
                thickness: 1.0,
            })
            .collect()
    }

    fn ranks(count: usize, list: &[(usize, usize, i64)]) -> Vec<usize> {
        let block = Block {
            size: Size { w: 10.0, h: 10.0 },
            loop_width: 0.0,
        };
        assign(&vec![block; count], &wires(list)).swap_remove(0)
    }

    #[test]
    fn callers_stand_above_callees() {
        assert_eq!(
            ranks(4, &[(0, 1, 1), (1, 2, 1), (0, 2, 1), (2, 3, 1)]),
            [0, 1, 2, 3]
        );
    }

    #[test]
    fn in_a_cycle_the_lighter_arrow_points_up() {
        let list = [(0, 1, 9), (1, 2, 9), (2, 1, 1), (2, 0, 1)];
        assert_eq!(ranks(3, &list), [0, 1, 2]);
        assert_eq!(
            back_wires(3, &wires(&list), SearchOrder::Heaviest),
            [false, false, true, true]
        );
    }

    #[test]
    fn ends_of_every_wire_differ_even_in_a_complete_graph() {
        let mut list = Vec::new();
        for a in 0..9 {
            for b in 0..9 {
                if a != b {
                    list.push((a, b, 1 + (a * 7 + b * 3) as i64 % 5));
                }
            }
        }
        let ranks = ranks(9, &list);
        assert!(list.iter().all(|&(a, b, _)| ranks[a] != ranks[b]));
    }
}
