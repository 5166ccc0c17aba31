//! Our CPU profiles, behind their first line.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    let mut bytes = b"mem-profiler cpu profile 1\n".to_vec();
    bytes.extend(data.strip_prefix(&bytes[..]).unwrap_or(data));
    mem_fuzz::read(&bytes);
    Corpus::Keep
});
