use super::*;
use core::ptr::without_provenance_mut;
use core::sync::atomic::AtomicU64;

#[test]
fn batches_have_a_bounded_size() {
    assert_eq!((batch_blocks(16), batch_blocks(512)), (MAX_BLOCKS, 8));
}

#[test]
fn each_batch_is_taken_once() {
    let transfer = Transfer::new();
    assert_eq!(transfer.take(|_| panic!("there is nothing")), 0);
    let mut at = 0;
    let mut next = || {
        at += 16;
        without_provenance_mut(at)
    };
    for _ in 0..SLOTS {
        assert!(transfer.put(3, &mut next));
    }
    assert!(!transfer.put(3, || panic!("there is no room")));
    let mut taken = std::vec::Vec::new();
    while transfer.take(|block| taken.push(block.addr())) == 3 {}
    let all: std::vec::Vec<usize> = (1..=3 * SLOTS).map(|i| 16 * i).collect();
    assert_eq!(taken, all);
}

/// Threads that put and take at once neither lose a block nor get one twice.
#[test]
fn threads_exchange_every_block_once() {
    const BLOCKS: u64 = 200_000;
    let transfer = Transfer::new();
    let given = AtomicU64::new(0);
    let got = AtomicU64::new(0);
    let sum = AtomicU64::new(0);
    let wanted = BLOCKS * (BLOCKS + 1) / 2;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let first = given.fetch_add(10, Ordering::Relaxed);
                    if first >= BLOCKS {
                        break;
                    }
                    let mut at = first;
                    while !transfer.put(10, || {
                        at += 1;
                        without_provenance_mut(at as usize)
                    }) {
                        std::thread::yield_now();
                    }
                }
            });
            scope.spawn(|| {
                while got.load(Ordering::Relaxed) < BLOCKS {
                    let count = transfer.take(|block| {
                        sum.fetch_add(block.addr() as u64, Ordering::Relaxed);
                    });
                    got.fetch_add(count as u64, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
        }
    });
    assert_eq!(sum.load(Ordering::Relaxed), wanted);
    assert_eq!(got.load(Ordering::Relaxed), BLOCKS);
}
