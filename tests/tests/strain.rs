//! Load that is hard on a profiler: very many samples, stacks and threads; switched stacks;
//! allocations by the loader. The program continues, and the totals are right.

use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Session, Steps, code, sums};
use profile::{Profile, marker_at};

/// Starts `strain.c` with a command that `prepare` changes, and makes it print a line, so that the
/// memory that printing needs is allocated.
fn strain(scratch: &Scratch, prepare: impl FnOnce(&mut std::process::Command)) -> Steps {
    let program = scratch.compile("strain.c", &[]);
    let mut command = scratch.preloaded(&program);
    prepare(&mut command);
    let mut steps = Steps::run(program, &mut command);
    steps.step("expected");
    steps
}

/// Runs a step in a session that samples everything, and checks the totals of every site.
fn exact_after(step: &str) -> Profile {
    let scratch = Scratch::new();
    let mut program = strain(&scratch, |_| {});
    let session = Session::of(&scratch, program.pid(), "1");
    program.step(step);
    let expected = program.expected();
    let profile = session.stop().profile();
    assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
    program.target.finish_well();
    profile
}

fn truncated(profile: &Profile) -> u64 {
    let counters = profile.facts.counters.iter();
    counters
        .filter(|(name, _)| name.starts_with("truncated"))
        .map(|(_, n)| n)
        .sum()
}

/// Returns the objects and bytes allocated in stacks that `wanted` picks.
fn allocated(profile: &Profile, wanted: impl Fn(&[u32]) -> bool) -> (f64, f64) {
    let stacks = profile.stacks.iter().zip(&profile.details);
    stacks
        .filter(|(stack, _)| wanted(stack))
        .fold((0.0, 0.0), |(objects, bytes), (_, detail)| {
            (objects + detail.alloc_objects, bytes + detail.alloc_bytes)
        })
}

#[test]
fn every_allocation_of_a_program_that_does_nothing_else_is_counted() {
    let profile = exact_after("pairs 5000000 2");
    assert_eq!(profile.facts.counters["untracked"], 0);
}

#[test]
fn a_million_stacks_in_a_table_of_one_mebibyte_lose_no_byte() {
    const STACKS: f64 = 1_000_000.0;
    let scratch = Scratch::new();
    let mut program = strain(&scratch, |command| {
        command.env("MEM_PROFILER_TABLE", "1M");
    });
    let session = Session::of(&scratch, program.pid(), "1");
    program.step(&format!("paths {STACKS}"));
    let profile = session.stop().profile();
    assert_eq!(allocated(&profile, |_| true), (STACKS, 40.0 * STACKS));
    let is = |stack: &[u32], name: &str| {
        let marker = marker_at(profile.locations[stack[0] as usize].address);
        marker.is_some_and(|marker| marker.name == name)
    };
    let (full, _) = allocated(&profile, |stack| is(stack, "[table full]"));
    assert_eq!(full, profile.facts.counters["table_full"] as f64);
    let (merged, _) = allocated(&profile, |stack| is(stack, "[deeper frames merged]"));
    assert_eq!(merged, profile.facts.counters["table_merged"] as f64);
    assert!(merged > STACKS / 2.0, "{merged}");
    // Nearly all of them are still known by their outer frames.
    assert!(full < STACKS / 100.0, "{full}");
    let found = sums(&profile, &[&program.program], "site_");
    assert!(found["site_paths"].detail.alloc_objects + full >= 0.99 * STACKS);
    program.target.finish_well();
}

/// While a program has few stacks, most of a table of 96 MiB has no memory. It gets memory when
/// there are many stacks, and all earlier stacks are still known, with a controller and without.
#[test]
fn a_table_takes_as_much_memory_as_there_are_stacks() {
    for alone in [true, false] {
        let scratch = Scratch::new();
        let mut program = strain(&scratch, |command| {
            command.env("MEM_PROFILER_TABLE", "96M");
            if alone {
                command.env("MEM_PROFILER_START", "1");
                command.env("MEM_PROFILER_INTERVAL", "1");
            }
        });
        let session = (!alone).then(|| Session::of(&scratch, program.pid(), "1"));
        program.step("paths 200");
        let few = scratch.shared_bytes();
        assert!(few < 1 << 20, "{few} bytes for 200 stacks, alone: {alone}");
        program.step("paths 50000");
        let many = scratch.shared_bytes();
        assert!(
            many > 8 << 20,
            "{many} bytes for 50,000 stacks, alone: {alone}"
        );
        let pid = program.pid().to_string();
        let profile = match session {
            Some(session) => session.stop().profile(),
            None => {
                let prefix = scratch.file("dump_");
                let mut command = scratch.profiler();
                command.args(["dump", "-p", &pid, "-o"]).arg(&prefix);
                mem_tests::run(&mut command).profile()
            }
        };
        assert_eq!(profile.facts.counters["table_full"], 0);
        let found = sums(&profile, &[&program.program], "site_");
        assert_eq!(found["site_paths"].detail.alloc_objects, 50_200.0);
        program.target.finish_well();
    }
}

/// The controller enlarges the table from outside; a burst of new stacks does not wait for it.
#[test]
fn a_burst_of_stacks_has_room_while_the_controller_is_held_up() {
    const STACKS: f64 = 20_000.0;
    let scratch = Scratch::new();
    let mut program = strain(&scratch, |_| {});
    let session = Session::of(&scratch, program.pid(), "1");
    session.signal(libc::SIGSTOP);
    program.step(&format!("paths {STACKS}"));
    session.signal(libc::SIGCONT);
    let profile = session.stop().profile();
    assert_eq!(profile.facts.counters["table_full"], 0);
    let found = sums(&profile, &[&program.program], "site_");
    assert_eq!(found["site_paths"].detail.alloc_objects, STACKS);
    program.target.finish_well();
}

/// A thread that only frees learns about the session from the objects that it frees.
#[test]
fn what_a_thread_frees_that_allocates_nothing_is_counted() {
    for freed in [10, 50_000] {
        let profile = exact_after(&format!("handed {freed}"));
        let threads = profile.facts.counters["threads"];
        assert_eq!(threads, if freed > 1000 { 2 } else { 1 });
    }
}

#[test]
fn five_hundred_threads_at_once_are_counted() {
    let profile = exact_after("crowd 500");
    assert!(profile.facts.counters["threads"] >= 500);
    assert_eq!(truncated(&profile), 0);
}

#[test]
fn stacks_switched_by_hand_are_whole() {
    let profile = exact_after("switched 50");
    assert_eq!(truncated(&profile), 0);
}

/// Returns the names of the program's and its libraries' functions on stacks that end in the
/// loader's own code, with their objects.
fn in_the_loader(profile: &Profile, library: &std::path::Path, name: &str) -> f64 {
    let code = [code::Code::of(library)];
    let of_loader = |id: u32| {
        let mapping = profile.locations[id as usize].mapping as usize;
        let path = profile.mappings.get(mapping).map(|m| m.path.clone());
        path.is_some_and(|path| path.to_string_lossy().contains("/ld-linux"))
    };
    let wanted = |stack: &[u32]| {
        stack.first().is_some_and(|leaf| of_loader(*leaf))
            && code::names(profile, stack, &code).contains(&name)
    };
    allocated(profile, wanted).0
}

#[test]
fn what_the_loader_allocates_in_lazy_binding_has_its_callers() {
    let scratch = Scratch::new();
    let flags = ["-shared", "-fPIC", "-DPROVIDER"];
    let provider = scratch.compile_as("binding.c", "libprovider.so", &flags);
    let flags = ["-shared", "-fPIC", "-Wl,-z,lazy"];
    let user = scratch.compile_as("binding.c", "libuser.so", &flags);
    let mut program = strain(&scratch, |_| {});
    let session = Session::of(&scratch, program.pid(), "1");
    program.step(&format!(
        "lazy {} {} 20",
        provider.display(),
        user.display()
    ));
    let profile = session.stop().profile();
    let found = sums(&profile, &[&user], "site_lazy");
    let noted = in_the_loader(&profile, &user, "site_lazy");
    assert!(noted >= 1.0, "the loader notes who needs whom");
    assert_eq!(found["site_lazy"].detail.alloc_objects, 20.0 + noted);
    assert_eq!(truncated(&profile), 0, "{:?}", profile.facts.counters);
    program.target.finish_well();
}

#[test]
fn thread_local_storage_made_at_its_first_use_has_its_callers() {
    const THREADS: f64 = 30.0;
    let mut flags = vec!["-shared", "-fPIC"];
    if cfg!(target_arch = "x86_64") {
        // Descriptors, as on aarch64: the call saves every register by hand.
        flags.push("-mtls-dialect=gnu2");
    }
    let scratch = Scratch::new();
    let user = scratch.compile_as("binding.c", "libuser.so", &flags);
    let mut program = strain(&scratch, |_| {});
    let session = Session::of(&scratch, program.pid(), "1");
    program.step(&format!("local {} {THREADS}", user.display()));
    let profile = session.stop().profile();
    let made = in_the_loader(&profile, &user, "site_local");
    assert!(made >= THREADS, "{made}");
    assert_eq!(truncated(&profile), 0, "{:?}", profile.facts.counters);
    program.target.finish_well();
}
