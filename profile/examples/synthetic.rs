//! Writes a synthetic dump, for measuring readers and writers:
//! `synthetic STACKS DEPTH [INTERVAL] > x.heap`.

use std::io::{self, Write};
use std::time::Instant;

use helpers::random::Random;
use profile::{Detail, Mapping, ProfileBuilder, TABLE_FULL_ADDRESS, TRUNCATED_ADDRESS, dump};

fn main() -> io::Result<()> {
    let mut numbers = std::env::args()
        .skip(1)
        .map(|a| a.parse::<u64>().expect("a number"));
    let stacks = numbers.next().unwrap_or(100_000);
    let depth = numbers.next().unwrap_or(30);
    let interval = numbers.next().unwrap_or(1024);
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut builder = ProfileBuilder::new(interval);
    let base = 0x55d0_0000_0000;
    builder.module(Mapping {
        start: base,
        end: base + (1 << 24),
        path: "/usr/bin/synthetic".into(),
        ..Mapping::default()
    });
    let building = Instant::now();
    builder.stack([TABLE_FULL_ADDRESS], &detail(&mut random, interval));
    for i in 1..stacks {
        let detail = detail(&mut random, interval);
        // Outer frames are shared by many stacks, as in real programs.
        let frames = (0..depth).map(|level| {
            let outer = depth - level;
            base + (outer << 16) + (i.wrapping_mul(0x9e37_79b9) >> (16 - outer.min(16))) % 2048 * 16
        });
        let end = (i % 100 == 0).then_some(TRUNCATED_ADDRESS);
        builder.stack(frames.chain(end), &detail);
    }
    let profile = builder.finish();
    let built = building.elapsed();
    let writing = Instant::now();
    let mut text = Vec::new();
    dump::write(&profile, &mut text)?;
    let wrote = writing.elapsed();
    eprintln!(
        "{} stacks, {} locations: built in {built:?}, {} MB written in {wrote:?}; totals {:?}",
        profile.stacks.len(),
        profile.locations.len(),
        text.len() / 1_000_000,
        [0, 1, 2, 3].map(|column| profile.total(column)),
    );
    io::stdout().write_all(&text)
}

/// Returns counts of one to 40 samples, mostly of one size, of which some are freed.
fn detail(random: &mut Random, interval: u64) -> Detail {
    let mut d = Detail::default();
    let size = 16 + random.below(4096);
    let mixed = random.below(3) == 0;
    for _ in 0..1 + random.below(40) {
        let size = if mixed { 8 << random.below(12) } else { size } as f64;
        let weight = if interval <= 1 {
            1.0
        } else {
            -1.0 / (-size / interval as f64).exp_m1()
        };
        d.alloc_samples += 1;
        d.alloc_objects += weight;
        d.alloc_bytes += weight * size;
        d.alloc_variance += weight * size * (weight * size - size);
        d.alloc_object_variance += weight * (weight - 1.0);
        if random.below(4) == 0 {
            d.free_samples += 1;
            d.freed_objects += weight;
            d.freed_bytes += weight * size;
            d.freed_lifetime_ms_sum += weight * random.below(10_000) as f64;
        } else {
            d.live_age_ms_sum += weight * random.below(60_000) as f64;
            d.live_variance += weight * size * (weight * size - size);
            d.live_object_variance += weight * (weight - 1.0);
        }
    }
    d
}
