//! Our dumps.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    let signature = b"# mem-profiler dump ";
    let signed = data.windows(signature.len()).any(|w| w == signature);
    if !data.starts_with(b"heap profile:") || !signed {
        return Corpus::Reject;
    }
    mem_fuzz::read(data);
    Corpus::Keep
});
