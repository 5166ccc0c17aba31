//! Models of how a record's sums at a peak are kept while threads change it.

use super::memory::{record, totals};
use crate::layout::{PeakState, Record};
use crate::record::{FIRST_RECORD, NewSample, Records};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use std::vec::Vec;

/// Number of samples in the record at first.
const BEFORE: u64 = 5;

struct Memory {
    records: Vec<Record>,
    count: AtomicU32,
    peak: PeakState,
}

impl Memory {
    /// Returns memory with a record of [`BEFORE`] samples.
    fn new() -> Arc<Self> {
        let word32 = || AtomicU32::new(0);
        let word64 = || AtomicU64::new(0);
        let memory = Self {
            records: (0..2).map(|_| record()).collect(),
            count: word32(),
            peak: PeakState {
                epoch: word32(),
                tick: word32(),
                next_level: word64(),
                settled: word64(),
                reserved: [0; 5],
            },
        };
        memory.records[1]
            .alloc_samples
            .store(BEFORE, Ordering::Relaxed);
        Arc::new(memory)
    }

    /// Models `Bank::count_new` for the record.
    fn count(&self, exclusive: bool) {
        let records = Records::new(&self.records, &self.count, &self.peak.epoch);
        records.count_new(FIRST_RECORD, &NewSample::NONE, exclusive);
    }

    /// Models a free that starts a new peak epoch.
    fn mark(&self) {
        self.peak.epoch.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of samples at the last peak as a reader sees it, or `None` if the copy is
    /// not complete.
    fn read(&self) -> Option<u64> {
        let record = &self.records[1];
        let epoch = self.peak.epoch.load(Ordering::Acquire);
        let kept = [&record.peak_epoch, &record.kept_epoch].map(|e| e.load(Ordering::Acquire));
        (epoch != 0 && kept == [epoch; 2]).then(|| record.kept[0].load(Ordering::Relaxed))
    }
}

fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

/// Two threads of the shared shard change a record after a peak. The copy has the sums before both
/// changes, whichever thread makes it, whenever a reader uses it.
#[test]
fn racing_threads_keep_the_sums_at_the_peak() {
    explore(|| {
        let memory = Memory::new();
        memory.mark();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let memory = memory.clone();
                thread::spawn(move || memory.count(false))
            })
            .collect();
        if let Some(kept) = memory.read() {
            assert_eq!(kept, BEFORE);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(memory.read(), Some(BEFORE));
    });
}

/// A thread changes its own record while another one starts a peak epoch. The event in flight may
/// be missing from the copy; otherwise it has the sums at the peak.
#[test]
fn an_event_in_flight_is_before_or_after_the_peak() {
    explore(|| {
        let memory = Memory::new();
        let owner = memory.clone();
        let owner = thread::spawn(move || {
            owner.count(true);
            owner.count(true);
        });
        memory.mark();
        let read = memory.read();
        owner.join().unwrap();
        let counted = [BEFORE, BEFORE + 1, BEFORE + 2];
        if let Some(kept) = memory.read() {
            assert!(counted[..2].contains(&kept), "{kept}");
            assert!(read.is_none_or(|earlier| earlier == kept));
        } else {
            // Both events were counted before the peak, or were in flight.
            let now = memory.records[1].alloc_samples.load(Ordering::Relaxed);
            assert_eq!(now, BEFORE + 2);
        }
    });
}

/// Two threads detect the same maximum: there is one new epoch, with that maximum as its level.
#[test]
fn one_maximum_is_one_peak() {
    explore(|| {
        let memory = Memory::new();
        memory.peak.settled.store(1 << 20, Ordering::Relaxed);
        let other = memory.clone();
        let other = thread::spawn(move || other.peak.before_free(&totals(), 3));
        memory.peak.before_free(&totals(), 3);
        other.join().unwrap();
        assert_eq!(memory.peak.epoch.load(Ordering::Relaxed), 1);
        let next = memory.peak.next_level.load(Ordering::Relaxed);
        assert_eq!(next, (1 << 20) + (1 << 10));
        assert_eq!(memory.peak.tick.load(Ordering::Relaxed), 3);
    });
}
