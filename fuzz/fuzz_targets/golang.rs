//! A process whose heap profile of Go a hostile program wrote.
#![no_main]

use golang::{Memory, Variables, read};
use libfuzzer_sys::fuzz_target;

/// Address of the input.
const BASE: u64 = 0xc0_0000_0000;

/// The input at [`BASE`]. No other address can be read.
struct Input<'a>(&'a [u8]);

impl Memory for Input<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        let offset = address.checked_sub(BASE);
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let found = offset.and_then(|offset| self.0.get(offset..));
        let found = found.unwrap_or_default();
        let len = found.len().min(bytes.len());
        bytes[..len].copy_from_slice(&found[..len]);
        len
    }
}

fuzz_target!(|data: &[u8]| {
    let variables = Variables {
        buckets: BASE,
        rate: BASE + 8,
        cycle: BASE + 16,
        lock: BASE + 24,
    };
    mem_fuzz::bounded(data.len(), || {
        let Ok(heap) = read(&Input(data), &variables) else {
            return;
        };
        for bucket in &heap.buckets {
            assert!(bucket.freed <= bucket.allocated);
            assert!(heap.stack(bucket).len() <= 1024);
        }
    });
});
