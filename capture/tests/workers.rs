//! A copy does work for this process, unnoticed by the target.
#![cfg(target_arch = "x86_64")]

mod common;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use capture::{Copy, Failure, Worker};
use common::{TEST_TIMEOUT, Target, memory, wait_until};

/// Sums words of memory. The shared words are: progress, start address, number of words, sum.
unsafe extern "C" fn sum(words: *mut u64) {
    // SAFETY: there are at least four shared words. If the range that they give is not mapped in
    // the copy, the copy gets a signal, as the tests expect.
    unsafe {
        let address = *words.add(1);
        let count = *words.add(2);
        let start = std::ptr::with_exposed_provenance::<u64>(address as usize);
        let mut sum = 0_u64;
        let mut index = 0_usize;
        while index < count as usize {
            sum = sum.wrapping_add(start.add(index).read_volatile());
            index = index.wrapping_add(1);
            words.write_volatile(index as u64);
        }
        words.add(3).write_volatile(sum);
    }
}

/// Returns the start of a process's first private writable mapping.
fn private_mapping(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let line = text.lines().find(|line| line.contains(" rw-p "));
    let start = line
        .and_then(|line| line.split_once('-'))
        .expect("a mapping")
        .0;
    u64::from_str_radix(start, 16).expect("a number")
}

/// Drops the copy, and checks that the target continues undisturbed and finishes.
fn drop_and_finish(target: Target, copy: Copy, worker: Worker) {
    drop((worker, copy));
    target.wait_until_released();
    target.finish().assert_clean();
}

#[test]
fn a_copy_reads_its_own_memory() {
    const COUNT: u64 = 512;
    let target = Target::start(&["spin", "2", "8"]);
    let (copy, _) = target.capture();
    let at = private_mapping(copy.pid());
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
    // A worker can run repeatedly.
    for _ in 0..3 {
        worker.words()[3].store(0, Relaxed);
        assert_eq!(worker.run(TEST_TIMEOUT), Ok(()));
        let results = [0, 3].map(|index| worker.words()[index].load(Relaxed));
        assert_eq!(results, [COUNT, expected]);
    }
    drop(worker);
    // The worker has changed nothing in the copy, and a second one can be created.
    assert_eq!(memory(copy.pid(), at, COUNT as usize * 8), bytes);
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", copy.pid()));
    assert_eq!(descriptors.expect("its descriptors").count(), 0);
    let second = copy.worker(sum, 8).expect("another");
    second.words()[1].store(at, Relaxed);
    second.words()[2].store(COUNT, Relaxed);
    assert_eq!(second.run(TEST_TIMEOUT), Ok(()));
    assert_eq!(second.words()[3].load(Relaxed), expected);
    drop_and_finish(target, copy, second);
}

#[test]
fn work_that_reads_missing_memory_fails_harmlessly() {
    let target = Target::start(&["spin", "2", "8"]);
    let (copy, _) = target.capture();
    let at = private_mapping(copy.pid());
    let before = memory(copy.pid(), at, 64);
    let worker = copy.worker(sum, 8).expect("a worker");
    worker.words()[1].store(8, Relaxed);
    worker.words()[2].store(1, Relaxed);
    assert_eq!(
        worker.run(TEST_TIMEOUT),
        Err(Failure::Signal(libc::SIGSEGV))
    );
    // The copy's memory can still be read.
    assert!(copy.is_whole());
    assert_eq!(memory(copy.pid(), at, 64), before);
    drop_and_finish(target, copy, worker);
}

/// Signals that are sent to the copy are dropped.
#[test]
fn signals_do_not_disturb_the_work() {
    let target = Target::start(&["spin", "2", "64"]);
    let (copy, _) = target.capture();
    let worker = copy.worker(sum, 8).expect("a worker");
    worker.words()[1].store(private_mapping(copy.pid()), Relaxed);
    worker.words()[2].store(512, Relaxed);
    for signal in [libc::SIGTERM, libc::SIGUSR1, libc::SIGSTOP, libc::SIGCHLD] {
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::kill(copy.pid(), signal) }, 0);
        worker.words()[3].store(0, Relaxed);
        assert_eq!(worker.run(TEST_TIMEOUT), Ok(()), "{signal}");
        assert_eq!(worker.words()[0].load(Relaxed), 512);
    }
    drop_and_finish(target, copy, worker);
}

/// Never ends, but shows progress.
unsafe extern "C" fn count(words: *mut u64) {
    // SAFETY: there is at least one shared word.
    unsafe {
        let mut number = 0_u64;
        loop {
            number = number.wrapping_add(1);
            words.write_volatile(number);
        }
    }
}

/// Traps elsewhere than at the return address.
unsafe extern "C" fn trap(_words: *mut u64) {
    // SAFETY: the trap only stops the copy, which runs this function.
    unsafe { std::arch::asm!("nop", "nop", "int3") }
}

#[test]
fn work_that_does_not_end_is_stopped() {
    let target = Target::start(&["spin", "2", "8"]);
    let (copy, _) = target.capture();
    let at = private_mapping(copy.pid());
    let before = memory(copy.pid(), at, 64);
    let worker = copy.worker(count, 8).expect("a worker");
    let limit = Duration::from_millis(50);
    assert_eq!(worker.run(limit), Err(Failure::Deadline(limit)));
    assert!(worker.words()[0].load(Relaxed) > 0);
    assert!(copy.is_whole());
    // The copy is stopped, and its memory is unchanged.
    let last = worker.words()[0].load(Relaxed);
    assert_eq!(memory(copy.pid(), at, 64), before);
    assert_eq!(worker.words()[0].load(Relaxed), last);
    drop_and_finish(target, copy, worker);
}

#[test]
fn a_trap_elsewhere_than_at_the_return_address_is_a_failure() {
    let target = Target::start(&["spin", "2", "8"]);
    let (copy, _) = target.capture();
    let worker = copy.worker(trap, 8).expect("a worker");
    let result = worker.run(TEST_TIMEOUT);
    assert_eq!(result, Err(Failure::Signal(libc::SIGTRAP)));
    drop_and_finish(target, copy, worker);
}

/// The OOM killer or the target's user may kill the copy at any time.
#[test]
fn a_copy_that_is_killed_during_its_work_is_reported_as_gone() {
    let target = Target::start(&["spin", "2", "8"]);
    let (copy, _) = target.capture();
    assert!(copy.is_whole());
    let worker = copy.worker(count, 8).expect("a worker");
    let pid = copy.pid();
    let result = std::thread::scope(|scope| {
        let work = scope.spawn(|| worker.run(TEST_TIMEOUT));
        wait_until("the work to begin", || worker.words()[0].load(Relaxed) > 0);
        // SAFETY: the call takes no pointers.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        work.join().expect("a result")
    });
    assert_eq!(result, Err(Failure::Ended));
    assert!(!copy.is_whole());
    assert_eq!(worker.run(TEST_TIMEOUT), Err(Failure::Ended));
    let another = copy.worker(sum, 8).err();
    assert_eq!(another, Some(Failure::Unprepared));
    drop_and_finish(target, copy, worker);
}
