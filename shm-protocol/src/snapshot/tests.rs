use super::*;
use crate::bank::{Bank, Geometry};
use crate::layout::{ABI_VERSION, HEADER_BYTES, IDENTITY_OFFSET, MAGIC};
use crate::layout::{BANK_HEADER_BYTES, MAX_RECORDED_THREADS, Record, SHARED_SHARD};
use crate::record::{CPU_CLASS, FreeSample, NewSample, RecordKey, TABLE_FULL, VARIANCE_ONE};
use crate::sync::Ordering;
use crate::tree::{PathNode, ROOT, TRUNCATED};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

const SEGMENT: usize = 1 << 20;

fn bank_memory(geometry: Geometry) -> Vec<u64> {
    vec![0u64; geometry.bank_bytes / 8 + 8]
}

fn as_bytes(words: &[u64]) -> &[u8] {
    // SAFETY: any initialised u64s are valid bytes.
    unsafe { core::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
}

fn aligned(words: &mut [u64]) -> usize {
    let at = words.as_ptr() as usize;
    (at.next_multiple_of(64) - at) / 8
}

#[test]
fn cpu_samples_and_objects_are_read_separately() {
    let geometry = Geometry::of_segment(SEGMENT);
    let mut words = bank_memory(geometry);
    let skip = aligned(&mut words);
    // SAFETY: the memory is zeroed, aligned to a cache line and large enough, and no other thread
    // uses it.
    let bank = unsafe { Bank::at(words[skip..].as_mut_ptr().cast(), geometry) };
    bank.header
        .grown_units
        .store(geometry.units, core::sync::atomic::Ordering::Relaxed);
    let limit = bank.node_limit();
    let leaf = bank.tree.child(PathNode::root(ROOT), 0x10, limit).unwrap();
    let record = bank.record_of(RecordKey::new(leaf.node, CPU_CLASS), 0);
    bank.count_cpu(record, 0, 1000, true);
    bank.count_cpu(record, 0, 234, true);
    bank.count_cpu(TABLE_FULL, 0, 7, true);
    let bytes = &as_bytes(&words)[skip * 8..][..geometry.bank_bytes];
    let summary = BankSummary::new(&bytes[..BANK_HEADER_BYTES], geometry).unwrap();
    let counted = summary.cpu();
    assert_eq!((counted.samples, counted.ns), (2, 1234));
    assert_eq!((counted.full_samples, counted.full_ns), (1, 7));
    assert_eq!(summary.totals().samples, 0);
    let records = &bytes[geometry.records_offset()..];
    let table = Table::new(&[], &records[..summary.records() * size_of::<Record>()]);
    let read: Vec<_> = table.records().filter_map(|record| record.cpu()).collect();
    assert_eq!(read, [(2, 1234)]);
}

#[test]
fn counted_samples_are_read_back() {
    let geometry = Geometry::of_segment(SEGMENT);
    let mut words = bank_memory(geometry);
    let skip = aligned(&mut words);
    // SAFETY: the memory is zeroed, aligned to a cache line and large enough, and no other thread
    // uses it.
    let bank = unsafe { Bank::at(words[skip..].as_mut_ptr().cast(), geometry) };
    bank.header
        .grown_units
        .store(geometry.units, core::sync::atomic::Ordering::Relaxed);
    bank.header.session.store(3, Ordering::Relaxed);
    let outer = bank
        .tree
        .child(PathNode::root(ROOT), 0x10, bank.node_limit())
        .unwrap();
    let leaf = bank
        .tree
        .child(outer, 0x20, bank.node_limit())
        .unwrap()
        .node;
    let cut = bank
        .tree
        .child(PathNode::root(TRUNCATED), 0x30, bank.node_limit())
        .unwrap()
        .node;
    let born = NewSample {
        bytes: 100,
        weight: 2.5,
        tick: 10,
    };
    for shard in [0, 1] {
        bank.count_new(
            bank.record_of(RecordKey::new(leaf, 6), shard),
            shard,
            &born,
            true,
        );
    }
    bank.count_free(
        bank.record_of(RecordKey::new(leaf, 6), 1),
        1,
        &FreeSample { born, tick: 30 },
        true,
    );
    bank.count_new(bank.record_of(RecordKey::new(cut, 6), 0), 0, &born, true);

    let bytes = &as_bytes(&words)[skip * 8..];
    let summary = BankSummary::new(bytes, geometry).unwrap();
    assert_eq!(
        (summary.session(), summary.nodes(), summary.records()),
        (3, 5, 4)
    );
    assert_eq!(summary.totals().alloc_bytes, 750.0);
    assert_eq!(summary.totals().live_bytes, 500.0);
    let nodes = &bytes[geometry.nodes_offset()..][..summary.nodes() * 16];
    let records = &bytes[geometry.records_offset()..][..summary.records() * size_of::<Record>()];
    let table = Table::new(nodes, records);
    let mut addresses = Vec::new();
    let end = |truncated| {
        Ok(StackEnd {
            truncated,
            thread: None,
        })
    };
    assert_eq!(table.stack(leaf, |a| addresses.push(a)), end(false));
    assert_eq!(addresses, [0x20, 0x10]);
    assert_eq!(table.stack(cut, |_| ()), end(true));
    let mut sum = RecordView::default();
    table
        .records()
        .filter(|r| r.node == leaf)
        .for_each(|r| sum.merge(&r));
    let sums = sum.sums(110);
    assert_eq!((sums.alloc_samples, sums.free_samples), (2, 1));
    assert_eq!((sums.alloc_objects, sums.alloc_bytes), (5.0, 500.0));
    assert_eq!((sums.free_objects, sums.free_bytes), (2.5, 250.0));
    assert_eq!(sums.live_age_ticks, 250.0);
    assert_eq!(sums.freed_lifetime_ticks, 50.0);
    assert!((sums.live_variance - 250.0 * 150.0).abs() <= 0.5 / VARIANCE_ONE);
    assert_eq!(sums.alloc_object_variance, 2.0 * 2.5 * 1.5);
    assert_eq!(sums.live_object_variance, 2.5 * 1.5);
    assert_eq!(sums.live_age_spread, Some(0.0));
}

#[test]
fn stacks_are_recorded_per_thread() {
    let geometry = Geometry::of_segment(SEGMENT);
    let mut words = bank_memory(geometry);
    let skip = aligned(&mut words);
    // SAFETY: the memory is zeroed, aligned to a cache line and large enough, and no other thread
    // uses it.
    let bank = unsafe { Bank::at(words[skip..].as_mut_ptr().cast(), geometry) };
    let units = &bank.header.grown_units;
    units.store(geometry.units, core::sync::atomic::Ordering::Relaxed);
    let shared = [ROOT, TRUNCATED].map(PathNode::root);
    assert_eq!(bank.thread_roots(0), shared);
    let [root, cut] = bank.thread_roots(4711);
    let [other, _] = bank.thread_roots(4712);
    assert!(root != other && root != cut && root.node > TRUNCATED);
    let leaf = |root| {
        bank.tree
            .child(root, 0x5000, bank.node_limit())
            .unwrap()
            .node
    };
    let own = leaf(root);
    let others = leaf(other);
    let unknown = leaf(shared[1]);
    for _ in 2..MAX_RECORDED_THREADS {
        assert_ne!(bank.thread_roots(1), shared);
    }
    assert_eq!(bank.thread_roots(1), shared);

    let bytes = &as_bytes(&words)[skip * 8..];
    let summary = BankSummary::new(bytes, geometry).unwrap();
    let tids: Vec<u32> = summary.thread_entries().map(|thread| thread.tid).collect();
    assert_eq!(
        (tids.len(), &tids[..3]),
        (MAX_RECORDED_THREADS, &[4711, 4712, 1][..])
    );
    let nodes = &bytes[geometry.nodes_offset()..][..summary.nodes() * 16];
    let table = Table::new(nodes, &[]);
    for (leaf, thread, truncated) in [
        (own, Some(0), false),
        (others, Some(1), false),
        (unknown, None, true),
    ] {
        let mut addresses = Vec::new();
        let end = table.stack(leaf, |a| addresses.push(a));
        assert_eq!(end, Ok(StackEnd { truncated, thread }));
        assert_eq!(addresses, [0x5000]);
    }
}

proptest! {
    /// With hostile bytes, views may return anything, but must return.
    #[test]
    fn arbitrary_bytes_never_panic(seed in any::<u64>(), flips in 0usize..4000) {
        let geometry = Geometry::of_segment(SEGMENT);
        let mut bytes = vec![0u8; HEADER_BYTES];
        let mut state = seed | 1;
        let mut next = || { state ^= state << 13; state ^= state >> 7; state ^= state << 17; state };
        for _ in 0..flips {
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
        }
        bytes[IDENTITY_OFFSET..IDENTITY_OFFSET + 8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[IDENTITY_OFFSET + 8..IDENTITY_OFFSET + 12].copy_from_slice(&ABI_VERSION.to_le_bytes());
        bytes[IDENTITY_OFFSET + 12..IDENTITY_OFFSET + 16].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
        bytes[IDENTITY_OFFSET + 16..IDENTITY_OFFSET + 24].copy_from_slice(&(SEGMENT as u64).to_le_bytes());
        let header = Header::new(&bytes, SEGMENT).unwrap();
        let _ = (header.exe(), header.exe_build_id(), header.agent_version(), header.session());
        for module in header.modules() {
            prop_assert!(module.start < module.end && module.build_id.len() <= 32);
        }
        let summary = BankSummary::new(&bytes, geometry).unwrap();
        prop_assert!(summary.nodes() <= geometry.nodes && summary.records() <= geometry.records);
        let _ = summary.totals();
        let table = Table::new(&bytes[..16 * 1000], &bytes);
        for id in 0..1000 {
            let mut frames = 0;
            let _ = table.stack(id, |_| frames += 1);
            prop_assert!(frames <= 1000);
        }
        for record in table.records() { let _ = record.sums(1); }
    }
}

#[test]
fn other_versions_are_refused_with_both_numbers() {
    let mut bytes = vec![0u8; HEADER_BYTES];
    assert_eq!(
        Header::new(&bytes[..100], SEGMENT).err(),
        Some(Invalid::TooShort)
    );
    assert_eq!(Header::new(&bytes, SEGMENT).err(), Some(Invalid::NoMagic));
    bytes[IDENTITY_OFFSET..IDENTITY_OFFSET + 8].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[IDENTITY_OFFSET + 8] = 255;
    assert_eq!(
        Header::new(&bytes, SEGMENT).err(),
        Some(Invalid::Version(255, ABI_VERSION))
    );
    bytes[IDENTITY_OFFSET + 8] = ABI_VERSION as u8;
    assert_eq!(Header::new(&bytes, SEGMENT).err(), Some(Invalid::Sizes));
}

#[test]
fn the_interval_history_is_read_within_its_capacity() {
    use crate::layout::MAX_INTERVALS;
    use crate::segment::{IntervalPeriod, SegmentFile};
    let name = c"intervals".as_ptr();
    // SAFETY: the name is NUL-terminated, and the kernel copies it.
    let file = unsafe { libc::syscall(libc::SYS_memfd_create, name, libc::MFD_CLOEXEC) } as i32;
    // SAFETY: `file` is a descriptor that only this test uses.
    assert_eq!(unsafe { libc::ftruncate(file, SEGMENT as libc::off_t) }, 0);
    let segment = SegmentFile::new(file, SEGMENT as u64).unwrap();
    let geometry = segment.geometry();
    let mut bytes = vec![0; BANK_HEADER_BYTES];
    segment
        .read_at(geometry.bank_offset(1), &mut bytes)
        .unwrap();
    let summary = BankSummary::new(&bytes, geometry).unwrap();
    assert_eq!(
        (summary.least_interval(), summary.intervals().count()),
        (None, 0)
    );
    let period = |at: u64| IntervalPeriod {
        from_ns: at,
        interval: 1000 + at,
        overhead: at.is_multiple_of(2).then_some(at as u32),
    };
    let periods: Vec<_> = (0..MAX_INTERVALS as u64 + 72).map(period).collect();
    segment.log_intervals(1, &periods, 64).unwrap();
    segment
        .read_at(geometry.bank_offset(1), &mut bytes)
        .unwrap();
    // SAFETY: only this test used the descriptor, and it is not used again.
    unsafe { libc::close(file) };
    let count_at = core::mem::offset_of!(crate::layout::BankHeader, intervals);
    for hostile in [false, true] {
        if hostile {
            bytes[count_at..count_at + 8].fill(0xff);
        }
        let summary = BankSummary::new(&bytes, geometry).unwrap();
        assert_eq!(summary.least_interval(), Some(64));
        assert!(summary.intervals().eq(periods[72..].iter().copied()));
    }
}

/// Parses a bank's bytes. Returns the epoch and tick of the peak, and the live bytes of each record
/// at the peak.
fn at_peak(bytes: &[u8], geometry: Geometry) -> (u32, u32, Vec<f64>) {
    let summary = BankSummary::new(bytes, geometry).unwrap();
    let records = &bytes[geometry.records_offset()..][..summary.records() * size_of::<Record>()];
    let peak = summary.peak();
    let records = Table::new(&[], records).records_at_peak(peak.epoch);
    let live = records.skip(1).map(|record| {
        let sums = record.sums(0);
        sums.alloc_bytes - sums.free_bytes
    });
    (peak.epoch, peak.tick, live.collect())
}

/// Size of 700 objects of 100 KiB, in bytes.
const SPIKE: u64 = 700 * (100 << 10);

#[test]
fn the_peak_is_the_state_before_the_first_free_after_a_maximum() {
    let geometry = Geometry::of_segment(SEGMENT);
    let mut words = bank_memory(geometry);
    let skip = aligned(&mut words);
    // SAFETY: the memory is zeroed, aligned to a cache line and large enough, and no other thread
    // uses it.
    let bank = unsafe { Bank::at(words[skip..].as_mut_ptr().cast(), geometry) };
    bank.header
        .grown_units
        .store(geometry.units, Ordering::Relaxed);
    let node = |address| {
        let place = bank.tree.child(PathNode::root(ROOT), address, 100);
        place.unwrap().node
    };
    let held = node(0x10);
    let spike = node(0x20);
    let sample = |bytes| NewSample {
        bytes,
        weight: 1.0,
        tick: 0,
    };
    let record = |leaf, shard| bank.record_of(RecordKey::new(leaf, 6), shard);
    let new = |leaf, bytes, shard, exclusive| {
        bank.count_new(record(leaf, shard), shard, &sample(bytes), exclusive);
    };
    let free = |leaf, bytes, shard, tick, exclusive| {
        let freed = FreeSample {
            born: sample(bytes),
            tick,
        };
        bank.count_free(record(leaf, shard), shard, &freed, exclusive);
    };
    let peak_of = |words: &Vec<u64>| at_peak(&as_bytes(words)[skip * 8..], geometry);
    new(held, 1000, 0, true);
    assert_eq!(peak_of(&words), (0, 0, std::vec![1000.0]));
    for _ in 0..700 {
        new(spike, 100 << 10, 0, true);
    }
    for _ in 0..700 {
        free(spike, 100 << 10, 0, 7, true);
    }
    let peak = SPIKE as f64;
    assert_eq!(peak_of(&words), (1, 7, std::vec![1000.0, peak]));
    // Neither a lower maximum changes the peak, nor one that is higher by less than a step.
    for tick in [20, 21] {
        new(held, SPIKE, 0, true);
        new(held, 3000, 0, true);
        free(held, SPIKE, 0, tick, true);
        free(held, 3000, 0, tick, true);
    }
    assert_eq!(peak_of(&words), (1, 7, std::vec![1000.0, peak]));
    // A higher maximum changes the peak, in another shard and in the shared one too. Records that
    // were created after the peak held nothing at its time.
    for (shard, exclusive, factor) in [(1, true, 2), (SHARED_SHARD, false, 4)] {
        new(held, SPIKE * factor, shard, exclusive);
        free(held, SPIKE * factor, shard, 30 + shard, exclusive);
        new(node(0x30 + u64::from(shard)), 5, 0, true);
        let (epoch, tick, live) = peak_of(&words);
        assert_eq!((epoch, tick), (1 + factor as u32 / 2, 30 + shard));
        assert_eq!(
            live.iter().sum::<f64>() as u64 / 1000,
            (1000 + peak as u64 * factor) / 1000
        );
        assert_eq!(live[1], 0.0);
    }
}

#[test]
fn unobserved_objects_do_not_count_for_the_peak() {
    let geometry = Geometry::of_segment(SEGMENT);
    let mut words = bank_memory(geometry);
    let skip = aligned(&mut words);
    // SAFETY: the memory is zeroed, aligned to a cache line and large enough, and no other thread
    // uses it.
    let bank = unsafe { Bank::at(words[skip..].as_mut_ptr().cast(), geometry) };
    bank.header
        .grown_units
        .store(geometry.units, Ordering::Relaxed);
    let leaf = bank
        .tree
        .child(PathNode::root(ROOT), 0x10, 100)
        .unwrap()
        .node;
    let sample = |bytes| NewSample {
        bytes,
        weight: 1.0,
        tick: 1,
    };
    let id = bank.record_of(RecordKey::new(leaf, 6), 0);
    bank.count_new(id, 0, &sample(1000), true);
    bank.count_unseen(id, 0, &sample(1 << 30), true);
    let bytes = &as_bytes(&words)[skip * 8..];
    assert_eq!(at_peak(bytes, geometry).2, std::vec![1000.0]);
    let summary = BankSummary::new(bytes, geometry).unwrap();
    assert_eq!(summary.totals().live_bytes, 1000.0);
    assert_eq!(summary.totals().alloc_bytes, 1000.0 + (1u64 << 30) as f64);
}
