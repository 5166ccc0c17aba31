//! Files of any format, which is recognised by its content.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    mem_fuzz::read(data);
    Corpus::Keep
});
