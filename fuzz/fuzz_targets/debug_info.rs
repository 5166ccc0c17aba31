//! Programs with debug information, as the parser reads them in its child.
#![no_main]

use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use symbols::internals::read_debug_info;

/// Addresses that are looked up: where a small program has its code.
const ADDRESSES: std::ops::Range<u64> = 0x1000..0x1400;

/// File of the program. It is mapped, so it has to be one.
static PATH: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/mem-fuzz.{}", std::process::id())));

fuzz_target!(|data: &[u8]| {
    let mut file = std::fs::File::create(&*PATH).expect("room in /dev/shm");
    file.write_all(data).expect("room in /dev/shm");
    let addresses: Vec<u64> = ADDRESSES.step_by(3).collect();
    let found = mem_fuzz::bounded(data.len(), || read_debug_info(&PATH, &addresses, &[]));
    if let Some(found) = found {
        assert_eq!(found.frames.len(), addresses.len());
    }
});
