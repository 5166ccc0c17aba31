//! Published counts of the buckets: those that the runtime's own profile shows.
//!
//! Each bucket has four counts: the published one, and one for each of three garbage collections
//! that are not published yet (used in turn). After the end of a collection, the runtime adds the
//! collection's count to the published one in all buckets, holding a lock.

// Decision 91: what is published, as in Go's own profiles.
use crate::buckets::{BucketList, ListedBucket};
use crate::{Error, Memory, Variables, word, words};

/// Number of counts in a bucket: the published one, and three that are not published yet.
const COUNTS: usize = 4;
/// Words of a count up to Go 1.26: objects allocated, objects freed, and the bytes of both.
const WORDS_WITH_BYTES: usize = 4;
/// Words of a count from Go 1.27 on: objects allocated, objects freed.
const WORDS_WITHOUT_BYTES: usize = 2;
/// Size of the counts of a bucket up to Go 1.26, in bytes.
const RECORD_BYTES: usize = 8 * COUNTS * WORDS_WITH_BYTES;
/// Maximum gap between records in one read, in bytes.
const MAX_GAP_BYTES: u64 = 1024;
/// Maximum size of one read, in bytes.
const MAX_READ_BYTES: u64 = 256 << 10;
/// Maximum number of readings until two consecutive ones are equal.
const ATTEMPTS: usize = 64;

/// Objects of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of objects allocated.
    pub allocated: u64,
    /// Number of these that were freed.
    pub freed: u64,
}

impl Count {
    fn add(&mut self, other: Self) {
        self.allocated = self.allocated.wrapping_add(other.allocated);
        self.freed = self.freed.wrapping_add(other.freed);
    }
}

/// Published counts.
#[derive(Debug, Default)]
pub struct Published {
    /// Counts, in the order of the buckets.
    pub counts: Vec<Count>,
    /// True if nothing is published yet; `counts` are then the sums of all unpublished counts.
    pub is_first: bool,
    /// True if some counts may be of an earlier garbage collection.
    pub is_mixed: bool,
}

/// State of the runtime's profiler.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State {
    /// Number of the garbage collection.
    cycle: u64,
    /// Nonzero while the published counts are being changed.
    lock: u64,
}

impl State {
    fn read(memory: &impl Memory, variables: &Variables) -> Result<Self, Error> {
        // The variable has 32 bits, of which the lowest is a flag.
        let cycle = u64::from(word(memory, variables.cycle)? as u32 >> 1);
        let lock = word(memory, variables.lock)?;
        Ok(Self { cycle, lock })
    }
}

impl Published {
    /// Reads the counts of the buckets in `list`.
    pub fn read(
        memory: &impl Memory,
        variables: &Variables,
        list: &BucketList,
    ) -> Result<Self, Error> {
        let records = Records::of(list);
        let mut bytes = vec![0; RECORD_BYTES * list.buckets.len()];
        let mut last = Self::default();
        for _ in 0..ATTEMPTS {
            let before = State::read(memory, variables)?;
            records.read(memory, &mut bytes)?;
            let mut now = published_counts(&bytes, &list.buckets, before.cycle);
            let after = State::read(memory, variables)?;
            now.is_mixed = before != after || before.lock != 0 || now.counts != last.counts;
            // Two consecutive readings are equal, so nothing was published during either.
            if list.buckets.is_empty() || !now.is_mixed {
                now.is_mixed = false;
                return Ok(now);
            }
            last = now;
        }
        Ok(last)
    }
}

/// Returns what is published in the counts that were read.
fn published_counts(bytes: &[u8], buckets: &[ListedBucket], cycle: u64) -> Published {
    let words: Vec<u64> = words(bytes).collect();
    let records = words.as_chunks::<{ COUNTS * WORDS_WITH_BYTES }>().0;
    // A record (the counts of one bucket) with bytes is recognised by its values: bytes are objects
    // times size. In a record without bytes, the words in that place are other counts or the next
    // bucket. They do not match, because each bucket has at least one object. The majority decides,
    // because counts that are just being changed may not match either.
    let has_bytes = |(record, bucket): &(&[u64; COUNTS * WORDS_WITH_BYTES], &ListedBucket)| {
        record.chunks_exact(WORDS_WITH_BYTES).all(|count| {
            let bytes = |objects: u64| objects.wrapping_mul(bucket.size);
            count[2] == bytes(count[0]) && count[3] == bytes(count[1])
        })
    };
    let with_bytes = records.iter().zip(buckets).filter(has_bytes).count();
    let width = if 2 * with_bytes > buckets.len() {
        WORDS_WITH_BYTES
    } else {
        WORDS_WITHOUT_BYTES
    };
    let count = |record: &[u64; COUNTS * WORDS_WITH_BYTES], index: usize| Count {
        allocated: record[index * width],
        freed: record[index * width + 1],
    };
    // The runtime adds the count of the last collection to the published one some time after its
    // end, and clears it. The sum is the same before and after.
    let ended_cycle = 1 + (cycle % (COUNTS as u64 - 1)) as usize;
    let mut counts: Vec<Count> = (records.iter())
        .map(|record| {
            let mut sum = count(record, 0);
            sum.add(count(record, ended_cycle));
            sum
        })
        .collect();
    let is_first = counts.iter().all(|sum| *sum == Count::default());
    if is_first {
        for (sum, record) in counts.iter_mut().zip(records) {
            (1..COUNTS).for_each(|index| sum.add(count(record, index)));
            sum.freed = sum.freed.min(sum.allocated);
        }
    }
    Published {
        counts,
        is_first,
        is_mixed: false,
    }
}

/// Addresses of the counts of all buckets, grouped into reads.
struct Records {
    pieces: Vec<Piece>,
}

/// Range of addresses with records.
struct Piece {
    start: u64,
    end: u64,
    /// Records in the range, in ascending order.
    records: Vec<Record>,
}

/// Counts of one bucket.
struct Record {
    /// Address of the counts.
    at: u64,
    /// Index of the bucket in the list.
    bucket: usize,
}

impl Records {
    fn of(list: &BucketList) -> Self {
        let mut records: Vec<Record> = (list.buckets.iter().enumerate())
            .map(|(bucket, listed)| Record {
                at: listed.counts(),
                bucket,
            })
            .collect();
        records.sort_unstable_by_key(|record| record.at);
        let mut pieces: Vec<Piece> = Vec::new();
        for record in records {
            let (start, end) = (record.at, record.at.saturating_add(RECORD_BYTES as u64));
            match pieces.last_mut() {
                Some(piece)
                    if start <= piece.end + MAX_GAP_BYTES
                        && end <= piece.start + MAX_READ_BYTES =>
                {
                    piece.end = end.max(piece.end);
                    piece.records.push(record);
                }
                _ => pieces.push(Piece {
                    start,
                    end,
                    records: vec![record],
                }),
            }
        }
        Self { pieces }
    }

    /// Reads the counts of all buckets into `bytes`, in the order of the list.
    fn read(&self, memory: &impl Memory, bytes: &mut [u8]) -> Result<(), Error> {
        let mut buffer = Vec::new();
        for piece in &self.pieces {
            buffer.clear();
            buffer.resize((piece.end - piece.start) as usize, 0);
            let read = memory.read(piece.start, &mut buffer);
            for record in &piece.records {
                let offset = (record.at - piece.start) as usize;
                let target = &mut bytes[RECORD_BYTES * record.bucket..][..RECORD_BYTES];
                let source = &buffer[offset..offset + RECORD_BYTES];
                // A record without bytes is shorter, and may end where the readable memory ends.
                let needed = 8 * COUNTS * WORDS_WITHOUT_BYTES;
                if offset + needed <= read {
                    target.copy_from_slice(source);
                } else if memory.read(record.at, target) < needed {
                    return Err(Error::Unreadable(record.at));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::synthetic::{Synthetic, VARIABLES};
    use crate::{Error, Heap, Memory, read};

    /// Counts as the runtime has them up to Go 1.26, for objects of `size` bytes.
    fn wide(size: u64, counts: [[u64; 2]; 4]) -> Vec<u64> {
        let words = counts.iter();
        let words = words.flat_map(|[a, f]| [*a, *f, a * size, f * size]);
        words.collect()
    }

    fn narrow(_size: u64, counts: [[u64; 2]; 4]) -> Vec<u64> {
        counts.as_flattened().to_vec()
    }

    /// A layout of counts.
    struct Layout {
        record_words: usize,
        words: fn(u64, [[u64; 2]; 4]) -> Vec<u64>,
    }

    const LAYOUTS: [Layout; 2] = [
        Layout {
            record_words: 16,
            words: wide,
        },
        Layout {
            record_words: 8,
            words: narrow,
        },
    ];

    /// Returns memory with buckets of 8, 16, 24… bytes, and these counts.
    fn memory(layout: &Layout, buckets: &[[[u64; 2]; 4]]) -> Synthetic {
        let mut memory = Synthetic::new();
        memory.record_words = layout.record_words;
        for (size, counts) in (8..).step_by(8).zip(buckets) {
            let at = memory.add(size, &[0x401000 + size, 0x402000]);
            memory.count(at, &(layout.words)(size, *counts));
        }
        memory
    }

    /// Returns the objects of each bucket, allocated and freed, the newest bucket first.
    fn counts(heap: &Heap) -> Vec<[u64; 2]> {
        let counts = heap.buckets.iter().map(|b| [b.allocated, b.freed]);
        counts.collect()
    }

    #[test]
    fn published_counts_are_read_in_both_layouts() {
        let buckets = [
            [[10, 4], [1, 1], [100, 7], [1000, 0]],
            [[0, 0], [0, 0], [0, 0], [5, 0]],
            [[3, 3], [0, 0], [2, 0], [0, 0]],
        ];
        for layout in &LAYOUTS {
            let mut memory = memory(layout, &buckets);
            for (cycle, expected) in [
                (0, [[3, 3], [0, 0], [11, 5]]),
                (1, [[5, 3], [0, 0], [110, 11]]),
                (2, [[3, 3], [5, 0], [1010, 4]]),
                (3, [[3, 3], [0, 0], [11, 5]]),
            ] {
                // The lowest bit is a flag, and what follows is another variable.
                memory.set(VARIABLES.cycle, 7 << 32 | cycle << 1 | 1);
                memory.set(VARIABLES.rate, 524_288);
                let heap = read(&memory, &VARIABLES).expect("a heap");
                assert_eq!(counts(&heap), expected, "{cycle}");
                assert_eq!(heap.rate, 524_288);
                assert!(!heap.is_first && !heap.is_mixed);
                assert_eq!(heap.stack(&heap.buckets[0]), [0x401018, 0x402000]);
            }
        }
    }

    #[test]
    fn before_the_first_collection_all_counts_are_shown() {
        for layout in &LAYOUTS {
            let mut memory = memory(layout, &[[[0, 0], [0, 0], [7, 0], [2, 1]]]);
            memory.set(VARIABLES.cycle, 0);
            let heap = read(&memory, &VARIABLES).expect("a heap");
            assert_eq!(counts(&heap), [[9, 1]]);
            assert!(heap.is_first);
        }
    }

    #[test]
    fn counts_that_cannot_be_are_refused() {
        for layout in &LAYOUTS {
            for bad in [[1, 2], [u64::MAX, 0], [0, u64::MAX], [1 << 63, 0]] {
                let good = [[1, 0], [0, 0], [0, 0], [0, 0]];
                let buckets = [good, good, [bad, [0, 0], [0, 0], [0, 0]]];
                let mut memory = Synthetic::new();
                memory.record_words = layout.record_words;
                for counts in buckets {
                    let at = memory.add(1, &[]);
                    memory.count(at, &(layout.words)(1, counts));
                }
                let error = read(&memory, &VARIABLES).expect_err("no heap");
                assert!(matches!(error, Error::Damaged { .. }), "{bad:?}: {error}");
            }
        }
    }

    #[test]
    fn while_the_runtime_publishes_the_counts_are_read_again() {
        /// Memory in which the lock is held for some readings of it.
        struct Locked {
            memory: Synthetic,
            readings: Cell<usize>,
        }
        impl Memory for Locked {
            fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
                let read = self.memory.read(address, bytes);
                if address == VARIABLES.lock && self.readings.get() > 0 {
                    self.readings.set(self.readings.get() - 1);
                    bytes[0] = 1;
                }
                read
            }
        }
        for (readings, is_mixed) in [(0, false), (5, false), (usize::MAX, true)] {
            let locked = Locked {
                memory: memory(&LAYOUTS[0], &[[[1, 0], [0, 0], [0, 0], [0, 0]]]),
                readings: Cell::new(readings),
            };
            let heap = read(&locked, &VARIABLES).expect("a heap");
            assert_eq!(heap.is_mixed, is_mixed, "{readings}");
            assert_eq!(counts(&heap), [[1, 0]]);
        }
        let torn = Locked {
            memory: memory(&LAYOUTS[0], &[[[1, 2], [0, 0], [0, 0], [0, 0]]]),
            readings: Cell::new(usize::MAX),
        };
        let heap = read(&torn, &VARIABLES).expect("a heap");
        assert_eq!(counts(&heap), [[1, 1]]);
    }

    #[test]
    fn counts_at_the_end_of_readable_memory_are_read_in_the_short_layout_only() {
        for (layout, is_readable) in LAYOUTS.iter().zip([false, true]) {
            let mut memory = memory(layout, &[[[1, 0], [0, 0], [0, 0], [0, 0]]]);
            memory.cut(9 * usize::from(!is_readable));
            assert_eq!(read(&memory, &VARIABLES).is_ok(), is_readable);
        }
    }

    #[test]
    fn variables_that_cannot_be_read_are_named() {
        let memory = memory(&LAYOUTS[0], &[[[1, 0], [0, 0], [0, 0], [0, 0]]]);
        for wild in [0, 8, u64::MAX - 3] {
            let variables = crate::Variables {
                lock: wild,
                ..VARIABLES
            };
            assert_eq!(read(&memory, &variables), Err(Error::Unreadable(wild)));
        }
    }
}
