//! What the parts of a sample cost, each by itself.
//!
//! The allocations are whoever's malloc the process has: `tests/bench/run components` runs
//! them under jemalloc alone, under the agent, and under the agent with every one sampled.

use std::alloc::{Layout, alloc_zeroed};
use std::hint::black_box;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use criterion::Criterion;
use shm_protocol::layout::{Node, Record};
use shm_protocol::record::{RecordKey, RecordLimits};
use shm_protocol::tree::{Levels, PathNode};
use shm_protocol::{NewSample, Records, Tree};
use unwind::Registers;
use unwind::cache::RuleCache;
use unwind::compile::Scratch;
use unwind::rule::{Kind, Rule};
use unwind::stack::Ends;
use unwind::walk::{self, Walker};

const NODES: usize = 1 << 14;
/// Words of a frame: locals, then the return address.
const FRAME: usize = 4;

/// Returns zeroed memory as the segment has it.
fn zeroed<T>(count: usize) -> Box<[T]> {
    let layout = Layout::array::<T>(count).expect("a size that fits");
    // SAFETY: the layout is not empty; only used for types that are valid as zeroes.
    unsafe {
        let at: *mut T = alloc_zeroed(layout).cast();
        assert!(!at.is_null(), "out of memory");
        Box::from_raw(std::ptr::slice_from_raw_parts_mut(at, count))
    }
}

/// A tree in memory of its own.
struct Forest {
    slots: Box<[AtomicU32]>,
    nodes: Box<[Node]>,
    count: AtomicU32,
}

impl Forest {
    fn new() -> Self {
        Self {
            slots: zeroed(2 * NODES),
            nodes: zeroed(NODES),
            count: AtomicU32::new(0),
        }
    }

    fn tree(&self) -> Tree<'_> {
        Tree::new(
            &self.slots,
            Levels::new(NODES.ilog2(), 1),
            &self.nodes,
            &self.count,
        )
    }
}

struct Interned<'a>(Tree<'a>);

fn node(place: PathNode) -> walk::Node {
    walk::Node {
        id: place.node,
        path: place.path,
    }
}

impl unwind::walk::Tree for Interned<'_> {
    fn root(&self) -> walk::Node {
        node(PathNode::root(shm_protocol::tree::ROOT))
    }
    fn truncated(&self) -> walk::Node {
        node(PathNode::root(shm_protocol::tree::TRUNCATED))
    }

    fn child(&self, parent: walk::Node, address: u64) -> Option<walk::Node> {
        let parent = PathNode {
            node: parent.id,
            path: parent.path,
        };
        self.0.child(parent, address, NODES as u32).map(node)
    }
}

/// Returns a stack of this many frames, innermost first, that ends in 0; all that is read of it.
fn stack(frames: usize) -> Vec<u64> {
    let mut memory = vec![0; frames * FRAME];
    for frame in 0..frames - 1 {
        memory[frame * FRAME + FRAME - 1] = address(frame + 1);
    }
    memory
}

fn address(frame: usize) -> u64 {
    0x40_0000 + 64 * frame as u64
}

fn registers(memory: &[u64]) -> Registers {
    Registers {
        ip: address(0),
        sp: memory.as_ptr() as u64,
        fp: 0,
    }
}

fn walks(c: &mut Criterion) {
    let rule = Rule::new(Kind::Sp, (FRAME * 8) as i64, Some(-8), None);
    let cache = &zeroed::<RuleCache>(1)[0];
    let code = |ip: u64, _: &mut Scratch| {
        if ip == 0 {
            return Rule::END;
        }
        cache.get(ip, 1).unwrap_or_else(|| {
            cache.put(ip, 1, rule);
            rule
        })
    };
    let forest = Forest::new();
    let tree = Interned(forest.tree());
    for frames in [30, 200] {
        let memory = stack(frames);
        let walker = &mut zeroed::<Walker>(1)[0];
        let end = memory.as_ptr_range().end as u64;
        // These are the ends of a thread's own stack.
        walker.init(Ends {
            first: end,
            ..Ends::default()
        });
        c.bench_function(&format!("walk, {frames} frames unchanged"), |b| {
            b.iter(|| black_box(walker.walk(registers(&memory), 0, &tree, code)));
        });
        c.bench_function(&format!("walk, {frames} frames from scratch"), |b| {
            b.iter(|| {
                walker.forget();
                black_box(walker.walk(registers(&memory), 0, &tree, code))
            });
        });
    }
}

fn table(c: &mut Criterion) {
    let forest = Forest::new();
    let tree = forest.tree();
    c.bench_function("Tree::child, known", |b| {
        b.iter(|| {
            black_box(tree.child(
                PathNode::root(shm_protocol::tree::ROOT),
                black_box(4711),
                NODES as u32,
            ))
        });
    });
    let (memory, count) = (zeroed::<Record>(64), AtomicU32::new(0));
    let peak = AtomicU32::new(0);
    let records = Records::new(&memory, &count, &peak);
    let leaf = tree
        .child(PathNode::root(shm_protocol::tree::ROOT), 4711, NODES as u32)
        .expect("room");
    let node = tree.node(leaf.node).expect("a node");
    let room = RecordLimits {
        limit: 64,
        crowded: 64,
    };
    let record = records
        .find_or_create(node, RecordKey::new(leaf.node, 6), 0, room)
        .expect("room");
    let sample = NewSample {
        bytes: 100,
        weight: 10.7,
        tick: 9,
    };
    for (name, exclusive) in [("own", true), ("shared", false)] {
        c.bench_function(&format!("Records::count_new, {name} shard"), |b| {
            b.iter(|| records.count_new(record, black_box(&sample), exclusive));
        });
    }
}

fn arithmetic(c: &mut Criterion) {
    let mut gaps = sampling::Gaps::new(1);
    c.bench_function("gap", |b| b.iter(|| black_box(gaps.draw_gap(1024.0))));
    c.bench_function("weight", |b| {
        b.iter(|| black_box(sampling::weight(black_box(136), 1024.0)));
    });
}

fn allocations(c: &mut Criterion) {
    c.bench_function("malloc and free, 100 bytes", |b| {
        b.iter(|| {
            // SAFETY: what was allocated is freed, once.
            unsafe { libc::free(black_box(libc::malloc(black_box(100)))) }
        });
    });
}

fn main() {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(50)
        .without_plots()
        .configure_from_args();
    arithmetic(&mut criterion);
    table(&mut criterion);
    walks(&mut criterion);
    allocations(&mut criterion);
}
