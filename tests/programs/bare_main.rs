//! Allocates and computes for so many seconds. With `panic=abort`, rustc's `main` has no unwind
//! table.
use std::hint::black_box;
use std::time::{Duration, Instant};

#[inline(never)]
fn site_compute(rounds: u64) -> u64 {
    (0..rounds).fold(0, |sum, round| black_box(sum * 31 + round) & 0xffff)
}

#[inline(never)]
fn site_keep(kept: &mut Vec<Vec<u8>>) {
    kept.push(vec![1; 100 + kept.len() % 50]);
}

fn main() {
    let argument = std::env::args().nth(1).expect("seconds");
    let time = Duration::from_secs_f64(argument.parse().expect("a number"));
    let start = Instant::now();
    let mut kept = Vec::new();
    while start.elapsed() < time {
        black_box(site_compute(100_000));
        site_keep(&mut kept);
    }
    println!("{}", kept.len());
}
