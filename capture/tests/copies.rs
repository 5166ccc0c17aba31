//! Copies equal the target at its stop, however many are taken.
#![cfg(target_arch = "x86_64")]

mod common;

use std::time::{Duration, Instant};

use common::{Target, memory};

/// Returns the private writable mappings of a process: start and end.
fn mappings(pid: i32) -> Vec<(u64, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let private = text.lines().filter(|line| line.contains(" rw-p "));
    let ranges = private.filter_map(|line| line.split_once(' ')?.0.split_once('-'));
    let address = |text| u64::from_str_radix(text, 16).expect("an address");
    ranges
        .map(|(start, end)| (address(start), address(end)))
        .collect()
}

#[test]
fn memory_and_registers_equal_the_targets() {
    let target = Target::start(&["spin", "6", "64"]);
    let mut stopped = target.stop().expect("stopped");
    let threads = stopped.threads().to_vec();
    let main_thread = threads
        .iter()
        .find(|thread| thread.tid == target.pid())
        .expect("the main thread");
    for word in [
        0x1111_1111_1111_1111,
        0x4444_4444_4444_4444,
        1.5_f64.to_bits(),
        2.5_f64.to_bits(),
    ] {
        let mut words = main_thread.words.iter().chain(&main_thread.scratch);
        assert!(words.any(|found| *found == word), "{word:x}");
    }
    let copy = stopped.copy().expect("a copy");
    assert_eq!(mappings(target.pid()), mappings(copy.pid()));
    let mut different = 0;
    for (start, end) in mappings(target.pid()) {
        let bytes = (end - start) as usize;
        let original = memory(target.pid(), start, bytes);
        let copied = memory(copy.pid(), start, bytes);
        let words = original.chunks(8).zip(copied.chunks(8));
        different += words.filter(|(one, other)| one != other).count();
    }
    // The kernel records the current processor in one thread's `struct rseq`.
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
        mappings(copy.pid())
            .iter()
            .map(|&(start, end)| memory(copy.pid(), start, (end - start) as usize))
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
    assert_eq!(target.other_processes().len(), 2);
    drop(second);
    assert!(read() == before);
    drop(copy);
    target.wait_until_released();
    target.finish().assert_clean();
}

/// The priority that a copy inherits was raised for the stop. When the target continues, the copy
/// gets the target's original priority.
#[test]
fn a_copy_has_the_targets_priority() {
    let target = Target::start(&["read", "4"]);
    let nice = |pid: i32| {
        // SAFETY: the call takes no pointers.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, pid.cast_unsigned()) }
    };
    for wanted in [5, 7] {
        for thread in std::fs::read_dir(format!("/proc/{}/task", target.pid())).expect("alive") {
            let tid = thread.expect("its thread").file_name();
            let tid: u32 = tid
                .to_str()
                .and_then(|tid| tid.parse().ok())
                .expect("a number");
            // SAFETY: the call takes no pointers.
            let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid, wanted) };
            assert_eq!(result, 0);
        }
        let (copy, _) = target.capture();
        assert_eq!(nice(target.pid()), wanted);
        assert_eq!(nice(copy.pid()), wanted);
    }
    target.finish().assert_clean();
}

#[test]
fn one_stop_can_give_two_copies() {
    let target = Target::start(&["read", "4"]);
    let mut stopped = target.stop().expect("stopped");
    let copies = [stopped.copy().expect("one"), stopped.copy().expect("two")];
    assert_ne!(copies[0].pid(), copies[1].pid());
    drop(stopped);
    drop(copies);
    target.wait_until_released();
    target.finish().assert_clean();
}

#[test]
fn sixty_four_threads_are_stopped_and_resumed() {
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
fn two_hundred_copies_in_a_row_leave_a_busy_target_unharmed() {
    let target = Target::start(&["churn", "16", "16"]);
    for _ in 0..200 {
        drop(target.capture());
    }
    target.wait_until_released();
    target.finish().assert_clean();
}
