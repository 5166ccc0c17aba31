//! Guarantees of an allocator at the end of threads, and for large or scarce memory: the same as
//! those of the C library's allocator, idle or in a session.

use mem_tests::{Scratch, Session, Target, run};

/// Returns what a program prints that is preloaded with the agent: idle, and in sessions, with
/// either allocator.
fn outputs(program: &str, flags: &[&str], args: &[&str]) -> Vec<(String, String)> {
    let scratch = Scratch::new();
    let program = scratch.compile(program, flags);
    let mut outputs = Vec::new();
    for allocator in ["jemalloc", "system"] {
        for interval in [None, Some("1024"), Some("1")] {
            let mut command = scratch.preloaded(&program);
            command.args(args).env("MEM_PROFILER_ALLOCATOR", allocator);
            if let Some(interval) = interval {
                command
                    .env("MEM_PROFILER_START", "1")
                    .env("MEM_PROFILER_INTERVAL", interval);
            }
            let name = format!("{allocator}, interval {interval:?}");
            let outcome = run(&mut command);
            assert_eq!(outcome.code, Some(0), "{name}: {outcome:?}");
            outputs.push((name, outcome.stdout.trim().to_owned()));
        }
    }
    outputs
}

/// Returns the numbers of one of the cases of `returning.c`.
fn numbers(case: &str) -> Vec<(String, Vec<u64>)> {
    let outputs = outputs("returning.c", &["-O0", "-fno-builtin"], &[case]);
    let words = |text: &str| {
        let words = text.split(' ').map(|word| word.parse().expect("a number"));
        words.collect()
    };
    let numbers = outputs
        .iter()
        .map(|(name, text)| (name.clone(), words(text)));
    numbers.collect()
}

#[test]
fn destructors_of_a_thread_that_ends_may_allocate() {
    for (name, output) in outputs("ending.c", &["-O1", "-pthread"], &[]) {
        assert_eq!(output, "done", "{name}");
    }
}

/// Otherwise the program is killed when it uses the memory that it got, and never learns why.
#[test]
fn what_the_machine_does_not_have_is_refused() {
    let policy = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").expect("Linux");
    for (name, output) in outputs("returning.c", &["-O0", "-fno-builtin"], &["refused"]) {
        let expected = match policy.trim() {
            "1" => "granted - granted granted",
            _ => "refused ENOMEM refused refused",
        };
        assert_eq!(output, expected, "{name}");
    }
}

#[test]
fn malloc_trim_gives_freed_objects_back() {
    for (name, numbers) in numbers("trimmed") {
        assert_eq!(numbers[0], 1, "{name}: whether there was anything");
        assert!(numbers[1] < 20, "{name}: {} % are left", numbers[1]);
    }
}

/// No sampled allocation follows that could reuse the memory.
#[test]
fn sampled_objects_freed_after_the_session_leave_nothing_resident() {
    let scratch = Scratch::new();
    let program = scratch.compile("kept_after.c", &["-O0"]);
    for allocator in ["jemalloc", "system"] {
        let mut command = scratch.preloaded(&program);
        let mut target = Target::start(command.env("MEM_PROFILER_ALLOCATOR", allocator));
        assert_eq!(target.hear(), "ready");
        let pid = target.pid();
        let mut resident_mib = |line: &str| -> u64 {
            target.say(line);
            target.hear().parse().expect("a number")
        };
        let session = Session::of(&scratch, pid, "1");
        let full = resident_mib("allocate");
        let outcome = session.stop();
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let freed = resident_mib("free");
        assert!(full > 200, "{allocator}: {full} MiB");
        assert!(freed < 20, "{allocator}: {freed} of {full} MiB are left");
        target.finish_well();
    }
}

/// If the object is moved at each step, half of the final size is faulted in again each time.
#[test]
fn a_large_object_that_grows_is_rarely_moved() {
    for (name, numbers) in numbers("grown") {
        assert!(numbers[0] < 15, "{name}: {} times", numbers[0]);
    }
}

#[test]
fn a_large_object_that_was_freed_is_used_again() {
    for (name, numbers) in numbers("used_again") {
        assert!(numbers[0] < 50, "{name}: {} % of all pages", numbers[0]);
    }
}

#[test]
fn the_smallest_objects_are_aligned_like_all_others() {
    for (name, numbers) in numbers("aligned") {
        assert_eq!(numbers, [0, 0], "{name}");
    }
}

#[test]
fn memory_in_use_is_reported_as_the_c_library_reports_it() {
    for (name, numbers) in numbers("reported") {
        let [in_use, from_system, as_int, left, adds_up] = numbers[..] else {
            panic!("{name}: {numbers:?}");
        };
        for added in [in_use, from_system, as_int] {
            assert!((100_000..125_000).contains(&added), "{name}: {numbers:?}");
        }
        assert!(left < 5_000 && adds_up == 1, "{name}: {numbers:?}");
    }
    for (name, text) in outputs("returning.c", &["-O0", "-fno-builtin"], &["told"]) {
        let is_one = text.starts_with("<malloc version=\"1\">") && text.ends_with("</malloc>");
        assert!(is_one, "{name}: {text}");
        let sizes = text.split("<system type=\"current\" size=\"").skip(1);
        let size = |text: &str| text.split('"').next().and_then(|size| size.parse().ok());
        let sizes: Vec<u64> = sizes.filter_map(size).collect();
        // If each allocation is sampled, none comes from the C library.
        let has_some = !name.starts_with("system, interval Some(\"1\")");
        assert!(
            !has_some || sizes.iter().any(|size| *size > 0),
            "{name}: {text}"
        );
    }
}

/// If it called such a function, the allocator would wait for itself, before `main`.
#[test]
fn functions_of_the_program_that_allocate_are_not_called() {
    for (name, output) in outputs("own_calls.c", &["-O0", "-rdynamic"], &[]) {
        assert_eq!(output, "done", "{name}");
    }
}
