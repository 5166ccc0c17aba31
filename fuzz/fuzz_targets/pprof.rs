//! profile.proto, as it is and gzipped.
#![no_main]

use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|data: &[u8]| -> Corpus {
    mem_fuzz::read(data);
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::none());
    std::io::Write::write_all(&mut packer, data).expect("memory takes all");
    mem_fuzz::read(&packer.finish().expect("memory takes all"));
    Corpus::Keep
});
