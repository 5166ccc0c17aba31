//! A shared segment that a hostile process wrote: its header, banks, tree and records.
#![no_main]

use libfuzzer_sys::fuzz_target;
use shm_protocol::bank::Geometry;
use shm_protocol::layout::{
    ABI_VERSION, BANK_HEADER_BYTES, HEADER_BYTES, IDENTITY_OFFSET, MAGIC, MODULE_CAPACITY,
    MODULES_OFFSET, STATUS_OFFSET,
};
use shm_protocol::snapshot::{BankSummary, Header, Table};

/// Offset and size of the header's parts that are filled from the input. The rest is zero, so that
/// inputs stay small.
const HEADER_PARTS: [(usize, usize); 4] = [
    (0, 256),
    (IDENTITY_OFFSET, 768),
    (STATUS_OFFSET, 512),
    (MODULES_OFFSET, 304),
];

fn take<'a>(data: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = data.split_at(most.min(data.len()));
    *data = rest;
    taken
}

fn place(bytes: &mut [u8], at: usize, part: &[u8]) {
    bytes[at..at + part.len()].copy_from_slice(part);
}

fuzz_target!(|data: &[u8]| {
    let mut data = data;
    let mut size = [0; 4];
    place(&mut size, 0, take(&mut data, 4));
    let size = u32::from_le_bytes(size) as usize;
    let mut bytes = vec![0; HEADER_BYTES];
    for (at, most) in HEADER_PARTS {
        place(&mut bytes, at, take(&mut data, most));
    }
    check_header(bytes, size);
    let mut bank = vec![0; BANK_HEADER_BYTES];
    place(&mut bank, 0, take(&mut data, 512));
    let geometry = Geometry::of_segment(size);
    let summary = BankSummary::new(&bank, geometry).expect("all of it");
    let _ = summary.totals();
    let _ = summary.counters().count();
    assert!(
        summary
            .thread_entries()
            .all(|thread| thread.name().len() <= 16)
    );
    assert!(summary.nodes() <= geometry.nodes && summary.records() <= geometry.records);
    let (nodes, records) = data.split_at(data.len() / 2);
    check_table(&Table::new(nodes, records), size as u32);
});

fn check_table(table: &Table, tick: u32) {
    for record in table.records() {
        let mut length = 0;
        let _ = table.stack(record.node, |_| length += 1);
        assert!(length <= table.node_count());
        let mut sum = record;
        sum.merge(&record);
        let sums = sum.sums(tick);
        assert!(sums.alloc_bytes.is_finite() && sums.live_age_ticks.is_finite());
    }
}

/// Reads everything in the header: as it is, and with the right magic, version and sizes.
fn check_header(mut bytes: Vec<u8>, size: usize) {
    if let Ok(header) = Header::new(&bytes, size) {
        read_all(&header);
    }
    place(&mut bytes, IDENTITY_OFFSET, &MAGIC.to_le_bytes());
    place(&mut bytes, IDENTITY_OFFSET + 8, &ABI_VERSION.to_le_bytes());
    let length = (HEADER_BYTES as u32).to_le_bytes();
    place(&mut bytes, IDENTITY_OFFSET + 12, &length);
    place(
        &mut bytes,
        IDENTITY_OFFSET + 16,
        &(size as u64).to_le_bytes(),
    );
    read_all(&Header::new(&bytes, size).expect("a header as it should be"));
}

fn read_all(header: &Header) {
    let texts = [
        header.boot_id(),
        header.comm(),
        header.exe(),
        header.exe_build_id(),
        header.agent_version(),
    ];
    assert!(texts.iter().all(|text| text.len() <= HEADER_BYTES));
    let _ = header.session();
    let _ = header.ended();
    let _ = header.exited();
    let _ = header.allocator_stats();
    let modules = header.modules().inspect(|module| {
        assert!(module.path.len() <= HEADER_BYTES && module.build_id.len() <= 32);
    });
    assert!(modules.count() <= MODULE_CAPACITY);
}
