//! Stripped programs, whose functions the parser names by other tables, in its child.
#![no_main]

use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use symbols::internals::{complete, lacks_debug_info};

/// Addresses that are looked up: where a small program has its stubs and its code.
const ADDRESSES: [std::ops::Range<u64>; 2] = [0x300..0x380, 0x1000..0x1400];

/// File of the program. It is mapped, so it has to be one.
static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/mem-fuzz.{}", std::process::id())));

fuzz_target!(|data: &[u8]| {
    let mut file = std::fs::File::create(&*PATH).expect("room in /dev/shm");
    file.write_all(data).expect("room in /dev/shm");
    let addresses: Vec<u64> = ADDRESSES.into_iter().flatten().step_by(3).collect();
    let mut frames = vec![Vec::new(); addresses.len()];
    mem_fuzz::bounded(data.len(), || {
        lacks_debug_info(&PATH, &[]);
        complete(&PATH, &[], Some("app"), &addresses, &mut frames);
    });
    assert!(frames.iter().all(|own| own.len() < 2));
});
