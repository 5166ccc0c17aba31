//! Folded stacks, which start like no other format.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    let other = data.starts_with(b"heap") || data.starts_with(&[0x1f, 0x8b]);
    if other || !data.contains(&b' ') {
        return Corpus::Reject;
    }
    mem_fuzz::read(data);
    Corpus::Keep
});
