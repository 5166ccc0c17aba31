//! What `perf script` prints.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    if !data.windows(2).any(|w| w == b": ") {
        return Corpus::Reject;
    }
    mem_fuzz::read(data);
    Corpus::Keep
});
