//! Programs with debug information, as the parser reads them in its child.
#![no_main]

use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use symbols::internals::read_debug_info;

/// Bytes after which code is asked for, in a small program.
const ADDRESSES: std::ops::Range<u64> = 0x1000..0x1400;

/// Where the program lies: it is mapped, so it has to be a file.
static PLACE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/mem-fuzz.{}", std::process::id())));

fuzz_target!(|data: &[u8]| {
    let mut file = std::fs::File::create(&*PLACE).expect("room in /dev/shm");
    file.write_all(data).expect("room in /dev/shm");
    let addresses: Vec<u64> = ADDRESSES.step_by(3).collect();
    let found = mem_fuzz::bounded(data.len(), || read_debug_info(&PLACE, &addresses, &[]));
    if let Some(found) = found {
        assert_eq!(found.frames.len(), addresses.len());
    }
});
