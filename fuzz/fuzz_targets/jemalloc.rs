//! jemalloc's text profiles.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    if !data.starts_with(b"heap_v2/") {
        return Corpus::Reject;
    }
    mem_fuzz::read(data);
    Corpus::Keep
});
