//! Profiles of V8: the JSON of `.cpuprofile` and `.heapprofile`.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    if !data.starts_with(b"{") {
        return Corpus::Reject;
    }
    mem_fuzz::read(data);
    Corpus::Keep
});
