//! Stripped programs, whose functions the parser names by other tables, in its child.
#![no_main]

use std::io::Write;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use symbols::internals::{complete, lacks_debug_info};

/// Where stubs and code are asked for, in a small program.
const ADDRESSES: [std::ops::Range<u64>; 2] = [0x300..0x380, 0x1000..0x1400];

/// Where the program lies: it is mapped, so it has to be a file.
static PLACE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/mem-fuzz.{}", std::process::id())));

fuzz_target!(|data: &[u8]| {
    let mut file = std::fs::File::create(&*PLACE).expect("room in /dev/shm");
    file.write_all(data).expect("room in /dev/shm");
    let addresses: Vec<u64> = ADDRESSES.into_iter().flatten().step_by(3).collect();
    let mut frames = vec![Vec::new(); addresses.len()];
    mem_fuzz::bounded(data.len(), || {
        lacks_debug_info(&PLACE, &[]);
        complete(&PLACE, &[], Some("app"), &addresses, &mut frames);
    });
    assert!(frames.iter().all(|own| own.len() < 2));
});
