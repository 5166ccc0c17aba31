//! Text profiles of all versions of gperftools and tcmalloc: in use, growth and sampled.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    if !data.starts_with(b"heap profile:") {
        return Corpus::Reject;
    }
    mem_fuzz::read(data);
    Corpus::Keep
});
