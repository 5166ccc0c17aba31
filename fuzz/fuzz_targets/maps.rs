//! The text of /proc/PID/maps, as heap dumps contain it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use profile::maps;

fuzz_target!(|data: &[u8]| {
    let mappings = mem_fuzz::bounded(data.len(), || maps::parse(data));
    for mapping in &mappings {
        maps::strip_deleted(&mapping.path);
        assert!(!mapping.contains(mapping.end), "{mapping:?}");
    }
});
