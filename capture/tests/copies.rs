//! Copies are equal to the target at its stop, however often they are taken.
#![cfg(target_arch = "x86_64")]

mod common;

use std::time::{Duration, Instant};

use common::{Target, memory};

/// Private writable mappings that a copy has: start and end.
fn mappings(pid: i32) -> Vec<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let private = text.lines().filter(|line| line.contains(" rw-p "));
    let ends = private.filter_map(|line| line.split_once(' ')?.0.split_once('-'));
    let number = |text| u64::from_str_radix(text, 16).expect("a number");
    ends.map(|(start, end)| (number(start), number(end)))
        .collect()
}

#[test]
fn memory_and_registers_are_the_targets() {
    let target = Target::start(&["spin", "6", "64"]);
    let mut stopped = target.stop().expect("stopped");
    let threads = stopped.threads().to_vec();
    let first = threads
        .iter()
        .find(|thread| thread.tid == target.pid())
        .expect("the first");
    for word in [
        0x1111_1111_1111_1111,
        0x4444_4444_4444_4444,
        1.5_f64.to_bits(),
        2.5_f64.to_bits(),
    ] {
        let mut words = first.words.iter().chain(&first.scratch);
        assert!(words.any(|there| *there == word), "{word:x}");
    }
    let copy = stopped.copy().expect("a copy");
    assert_eq!(mappings(target.pid()), mappings(copy.pid()));
    let mut different = 0;
    for (start, end) in mappings(target.pid()) {
        let bytes = (end - start) as usize;
        let (there, here) = (
            memory(target.pid(), start, bytes),
            memory(copy.pid(), start, bytes),
        );
        let words = there.chunks(8).zip(here.chunks(8));
        different += words.filter(|(there, here)| there != here).count();
    }
    // The kernel's notes of the processor, in one thread's area for rseq.
    assert!(different <= 3, "{different} words differ");
    stopped.resume();
    drop(copy);
    target.finish().assert_clean();
}

#[test]
fn a_copy_does_not_change() {
    let target = Target::start(&["churn", "8", "8"]);
    let (copy, _) = target.capture();
    let read = || -> Vec<_> {
        let all = mappings(copy.pid());
        all.iter()
            .map(|&(from, to)| memory(copy.pid(), from, (to - from) as usize))
            .collect()
    };
    let before = read();
    let (second, _) = target.capture();
    assert!(read() == before);
    assert!(
        std::fs::read_dir(format!("/proc/{}/fd", copy.pid()))
            .unwrap()
            .next()
            .is_none()
    );
    assert_eq!(target.others().len(), 2);
    drop(second);
    assert!(read() == before);
    drop(copy);
    target.until_left_alone();
    target.finish().assert_clean();
}

/// What is raised for the stop is a copy's no more when the target runs on, whatever priority that
/// has.
#[test]
fn a_copy_has_the_target_s_priority() {
    let target = Target::start(&["read", "4"]);
    let nice = |pid: i32| {
        // SAFETY: takes numbers only.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, pid.cast_unsigned()) }
    };
    for wanted in [5, 7] {
        for thread in std::fs::read_dir(format!("/proc/{}/task", target.pid())).expect("alive") {
            let tid = thread.expect("its thread").file_name();
            let tid: u32 = tid
                .to_str()
                .and_then(|tid| tid.parse().ok())
                .expect("a number");
            // SAFETY: takes numbers only.
            let set = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, wanted) };
            assert_eq!(set, 0);
        }
        let (copy, _) = target.capture();
        assert_eq!(nice(target.pid()), wanted);
        assert_eq!(nice(copy.pid()), wanted);
    }
    target.finish().assert_clean();
}

#[test]
fn two_copies_of_one_stop() {
    let target = Target::start(&["read", "4"]);
    let mut stopped = target.stop().expect("stopped");
    let copies = [stopped.copy().expect("one"), stopped.copy().expect("two")];
    assert_ne!(copies[0].pid(), copies[1].pid());
    drop(stopped);
    drop(copies);
    target.until_left_alone();
    target.finish().assert_clean();
}

#[test]
fn sixty_four_threads() {
    let target = Target::start(&["futex", "62"]);
    for _ in 0..10 {
        let began = Instant::now();
        let mut stopped = target.stop().expect("stopped");
        assert_eq!(stopped.threads().len(), 64);
        assert!(
            stopped
                .threads()
                .iter()
                .all(|thread| thread.thread_pointer > thread.sp || thread.tid == target.pid())
        );
        let copy = stopped.copy().expect("a copy");
        let pause = stopped.resume();
        assert_eq!(pause.threads, 64);
        assert!(pause.cloned > Duration::ZERO && pause.cloned < pause.stopped);
        assert!(pause.stopped < began.elapsed());
        drop(copy);
    }
    target.finish().assert_clean();
}

#[test]
fn two_hundred_in_a_row_under_load() {
    let target = Target::start(&["churn", "16", "16"]);
    for _ in 0..200 {
        drop(target.capture());
    }
    target.until_left_alone();
    target.finish().assert_clean();
}
