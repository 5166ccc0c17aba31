//! Threads that sleep through many sessions: none confuses one session with another.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use mem_tests::code::sums;
use mem_tests::{Scratch, Session as Running, Target};
use shm_protocol::cpu::CpuSetting;
use shm_protocol::segment::{SegmentFile, Session};

/// Offset of the number of the last epoch.
const LAST_EPOCH: u64 = 4;

fn last_epoch(file: &File) -> u32 {
    let mut word = [0; 4];
    file.read_exact_at(&mut word, LAST_EPOCH)
        .expect("a segment's first page");
    u32::from_le_bytes(word)
}

/// Begins and ends a session that nobody notices.
fn pass(file: &File, number: u64) {
    let bytes = file.metadata().expect("its size").len();
    let segment = SegmentFile::new(file.as_raw_fd(), bytes).expect("a segment");
    let session = Session {
        number,
        interval: 1,
        deadline_ns: 0,
        start_ns: 1,
        start_unix_ns: 1,
        controller_pid: 1,
        range_limit: 0,
        thinning: 0,
        max_overhead: 0,
        cpu: CpuSetting { rate: 0, avoid: 0 },
    };
    segment.publish(&session).expect("a session");
    segment.stop().expect("its end");
}

/// A session with a large interval gives the thread a long countdown. The thread allocates again in
/// the last of 256 further sessions.
#[test]
fn a_thread_that_slept_through_all_numbers_of_a_byte_notices_the_next_session() {
    let scratch = Scratch::new();
    let program = scratch.compile("sleeper.c", &[]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let pid = target.pid();
    let mut tell = |line: &str| {
        target.say(line);
        assert_eq!(target.hear(), "done");
    };
    // The first number of all was never used again.
    Running::of(&scratch, pid, "100M").stop();
    let session = Running::of(&scratch, pid, "100M");
    tell("one");
    session.stop();
    let path = scratch.segment(pid).expect("a segment");
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.expect("a segment");
    let first = last_epoch(&file);
    // The numbers of a byte were 2 to 255, over and over.
    let before = match first as u8 {
        2 => 255,
        byte => byte - 1,
    };
    let mut number = 2;
    while last_epoch(&file) as u8 != before {
        number += 1;
        assert!(number < 300, "{first:x} {:x}", last_epoch(&file));
        pass(&file, number);
    }
    assert!(number > 200, "{number} sessions");
    let session = Running::of(&scratch, pid, "1");
    assert_eq!(last_epoch(&file) as u8, first as u8, "the same byte");
    tell("many");
    let profile = session.stop().profile();
    let found = sums(&profile, &[&program], "site_many")["site_many"];
    let counted = (found.detail.alloc_objects, found.detail.alloc_bytes);
    assert_eq!(counted, (1000.0, 100_000.0));
    target.finish_well();
}
