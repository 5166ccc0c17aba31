//! gperftools' binary CPU profile, behind a header of each layout.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    let Some((&kind, rest)) = data.split_first() else {
        return Corpus::Reject;
    };
    let mut bytes = Vec::new();
    for word in [0u64, 3, 0, 10_000, 0] {
        let little = word.to_le_bytes();
        let word = &little[..if kind & 1 == 0 { 8 } else { 4 }];
        if kind & 2 == 0 {
            bytes.extend(word);
        } else {
            bytes.extend(word.iter().rev());
        }
    }
    bytes.extend(rest);
    mem_fuzz::read(&bytes);
    Corpus::Keep
});
