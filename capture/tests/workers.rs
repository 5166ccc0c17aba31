//! A copy does work for us, and the target knows nothing of it.
#![cfg(target_arch = "x86_64")]

mod common;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use capture::{Copy, Failure, Worker};
use common::{PATIENCE, Target, memory, until};

/// Sums words: the first shared word counts, the next two say which ones, the fourth gets the sum.
unsafe extern "C" fn sum(words: *mut u64) {
    // SAFETY: there are so many words, and those that they name are the copy's.
    unsafe {
        let (start, count) = (*words.add(1), *words.add(2));
        let start = std::ptr::with_exposed_provenance::<u64>(start as usize);
        let (mut sum, mut index) = (0_u64, 0_usize);
        while index < count as usize {
            sum = sum.wrapping_add(start.add(index).read_volatile());
            index = index.wrapping_add(1);
            words.write_volatile(index as u64);
        }
        words.add(3).write_volatile(sum);
    }
}

/// Where a target keeps something: its first private mapping that can be written.
fn place(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let line = text.lines().find(|line| line.contains(" rw-p "));
    let start = line.and_then(|line| line.split_once('-')).expect("one").0;
    u64::from_str_radix(start, 16).expect("a number")
}

/// Drops the copy; the target must continue undisturbed, and end well.
fn let_go(target: Target, copy: Copy, worker: Worker) {
    drop((worker, copy));
    target.until_left_alone();
    target.finish().assert_clean();
}

#[test]
fn a_copy_reads_its_own_memory() {
    const COUNT: u64 = 512;
    let target = Target::start(&["spin", "2", "8"]);
    let (copy, _) = target.capture();
    let at = place(copy.pid());
    let bytes = memory(copy.pid(), at, COUNT as usize * 8);
    let words = bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word));
    let expected = words.fold(0, u64::wrapping_add);
    let worker = copy.worker(sum, 8).expect("a worker");
    for (index, word) in [(1, at), (2, COUNT)] {
        worker.words()[index].store(word, Relaxed);
    }
    // As often as it is wanted.
    for _ in 0..3 {
        worker.words()[3].store(0, Relaxed);
        assert_eq!(worker.run(PATIENCE), Ok(()));
        let done = [0, 3].map(|index| worker.words()[index].load(Relaxed));
        assert_eq!(done, [COUNT, expected]);
    }
    drop(worker);
    // It has changed nothing, and there can be another one.
    assert_eq!(memory(copy.pid(), at, COUNT as usize * 8), bytes);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", copy.pid()));
    assert_eq!(descriptors.expect("its descriptors").count(), 0);
    let second = copy.worker(sum, 8).expect("another");
    second.words()[1].store(at, Relaxed);
    second.words()[2].store(COUNT, Relaxed);
    assert_eq!(second.run(PATIENCE), Ok(()));
    assert_eq!(second.words()[3].load(Relaxed), expected);
    let_go(target, copy, second);
}

#[test]
fn work_that_reads_missing_memory_fails_harmlessly() {
    let target = Target::start(&["spin", "2", "8"]);
    let (copy, _) = target.capture();
    let at = place(copy.pid());
    let before = memory(copy.pid(), at, 64);
    let worker = copy.worker(sum, 8).expect("a worker");
    worker.words()[1].store(8, Relaxed);
    worker.words()[2].store(1, Relaxed);
    assert_eq!(worker.run(PATIENCE), Err(Failure::Signal(libc::SIGSEGV)));
    // Its memory is still there to be read.
    assert!(copy.is_whole());
    assert_eq!(memory(copy.pid(), at, 64), before);
    let_go(target, copy, worker);
}

/// Signals are not for it: it has none of the program's handlers, and need not end.
#[test]
fn signals_do_not_disturb_the_work() {
    let target = Target::start(&["spin", "2", "64"]);
    let (copy, _) = target.capture();
    let worker = copy.worker(sum, 8).expect("a worker");
    worker.words()[1].store(place(copy.pid()), Relaxed);
    worker.words()[2].store(512, Relaxed);
    for signal in [libc::SIGTERM, libc::SIGUSR1, libc::SIGSTOP, libc::SIGCHLD] {
        // SAFETY: takes numbers only.
        assert_eq!(unsafe { libc::kill(copy.pid(), signal) }, 0);
        worker.words()[3].store(0, Relaxed);
        assert_eq!(worker.run(PATIENCE), Ok(()), "{signal}");
        assert_eq!(worker.words()[0].load(Relaxed), 512);
    }
    let_go(target, copy, worker);
}

/// Never ends, and says that it gets on.
unsafe extern "C" fn count(words: *mut u64) {
    // SAFETY: the first word is ours.
    unsafe {
        let mut number = 0_u64;
        loop {
            number = number.wrapping_add(1);
            words.write_volatile(number);
        }
    }
}

/// Jumps to where nothing of ours is.
unsafe extern "C" fn trap(_words: *mut u64) {
    // SAFETY: stops the process that runs it, which is a copy.
    unsafe { std::arch::asm!("nop", "nop", "int3") }
}

#[test]
fn work_that_does_not_end_is_stopped() {
    let target = Target::start(&["spin", "2", "8"]);
    let (copy, _) = target.capture();
    let at = place(copy.pid());
    let before = memory(copy.pid(), at, 64);
    let worker = copy.worker(count, 8).expect("a worker");
    let limit = Duration::from_millis(50);
    assert_eq!(worker.run(limit), Err(Failure::Deadline(limit)));
    assert!(worker.words()[0].load(Relaxed) > 0);
    assert!(copy.is_whole());
    // It rests, and its memory is as it was.
    let last = worker.words()[0].load(Relaxed);
    assert_eq!(memory(copy.pid(), at, 64), before);
    assert_eq!(worker.words()[0].load(Relaxed), last);
    let_go(target, copy, worker);
}

#[test]
fn a_trap_that_is_not_the_end_is_a_failure() {
    let target = Target::start(&["spin", "2", "8"]);
    let (copy, _) = target.capture();
    let worker = copy.worker(trap, 8).expect("a worker");
    let done = worker.run(PATIENCE);
    assert_eq!(done, Err(Failure::Signal(libc::SIGTRAP)));
    let_go(target, copy, worker);
}

/// As the kernel does for lack of memory, or the target's user whenever he likes.
#[test]
fn a_copy_that_is_killed_at_work_is_known_to_be_gone() {
    let target = Target::start(&["spin", "2", "8"]);
    let (copy, _) = target.capture();
    assert!(copy.is_whole());
    let worker = copy.worker(count, 8).expect("a worker");
    let pid = copy.pid();
    let done = std::thread::scope(|scope| {
        let work = scope.spawn(|| worker.run(PATIENCE));
        until("the work to begin", || worker.words()[0].load(Relaxed) > 0);
        // SAFETY: takes numbers only.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        work.join().expect("an answer")
    });
    assert_eq!(done, Err(Failure::Ended));
    assert!(!copy.is_whole());
    assert_eq!(worker.run(PATIENCE), Err(Failure::Ended));
    let another = copy.worker(sum, 8).err();
    assert_eq!(another, Some(Failure::Unprepared));
    let_go(target, copy, worker);
}
