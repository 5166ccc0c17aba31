//! Entry points of the allocator: which exist, what each guarantees, and that each is sampled and
//! counted with every allocator.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use mem_tests::session::tool;
use mem_tests::truth::{assert_exact, expected};
use mem_tests::{Scratch, Session, Target, artifacts, sums};

/// Functions that the agent must serve instead of the C library.
const FAMILY: [&str; 17] = [
    "aligned_alloc",
    "calloc",
    "cfree",
    "free",
    "malloc",
    "malloc_trim",
    "mallinfo",
    "mallinfo2",
    "malloc_info",
    "malloc_stats",
    "malloc_usable_size",
    "memalign",
    "posix_memalign",
    "pvalloc",
    "realloc",
    "reallocarray",
    "valloc",
];

/// Newer than the C library of many a machine: C23.
const C23: [&str; 2] = ["free_sized", "free_aligned_sized"];

/// jemalloc's own, for programs that look for them.
const JEMALLOC: [&str; 11] = [
    "dallocx",
    "mallctl",
    "mallctlbymib",
    "mallctlnametomib",
    "malloc_stats_print",
    "mallocx",
    "nallocx",
    "rallocx",
    "sallocx",
    "sdallocx",
    "xallocx",
];

/// The C library's own names of its family.
const OWN_NAMES: [&str; 7] = [
    "__libc_calloc",
    "__libc_free",
    "__libc_malloc",
    "__libc_memalign",
    "__libc_pvalloc",
    "__libc_realloc",
    "__libc_valloc",
];

/// Functions of the loader, since the agent must know when code is unloaded, and no library may
/// find another allocator; and the function that lets AddressSanitizer start after a preloaded
/// library.
const PASSED_ON: [&str; 6] = [
    "__asan_default_options",
    "dlclose",
    "dlmopen",
    "dlopen",
    "dlsym",
    "dlvsym",
];

/// Names of the C library that sound like the family but hand out no objects of it.
const OTHERS: [&str; 23] = [
    "fallocate",
    "fallocate64",
    "freeaddrinfo",
    "freeifaddrs",
    "freelocale",
    "freopen",
    "freopen64",
    "globfree",
    "globfree64",
    "if_freenameindex",
    "inet6_option_alloc",
    "malloc_info",
    "malloc_stats",
    "obstack_alloc_failed_handler",
    "obstack_free",
    "pkey_alloc",
    "pkey_free",
    "posix_fallocate",
    "posix_fallocate64",
    "regfree",
    "wordfree",
    "xdr_free",
    "mallopt",
];

/// gperftools' heap profiler and leak checker, for programs that call them.
const GPERFTOOLS: [&str; 28] = [
    "GetHeapProfile",
    "HeapProfilerDump",
    "HeapProfilerStart",
    "HeapProfilerStop",
    "IsHeapProfilerRunning",
    "_Z32HeapLeakChecker_AfterDestructorsv",
    "_Z33HeapLeakChecker_InternalInitStartv",
    "_Z34HeapLeakChecker_BeforeConstructorsv",
    "_ZN11HeapCleaner15RunHeapCleanupsEv",
    "_ZN11HeapCleanerC1EPFvvE",
    "_ZN11HeapCleanerC2EPFvvE",
    "_ZN15HeapLeakChecker13GlobalCheckerEv",
    "_ZN15HeapLeakChecker13NoGlobalLeaksEv",
    "_ZN15HeapLeakChecker14DoIgnoreObjectEPKv",
    "_ZN15HeapLeakChecker14UnIgnoreObjectEPKv",
    "_ZN15HeapLeakChecker17CancelGlobalCheckEv",
    "_ZN15HeapLeakChecker8DisablerC1Ev",
    "_ZN15HeapLeakChecker8DisablerC2Ev",
    "_ZN15HeapLeakChecker8DisablerD1Ev",
    "_ZN15HeapLeakChecker8DisablerD2Ev",
    "_ZN15HeapLeakChecker8IsActiveEv",
    "_ZN15HeapLeakChecker9DoNoLeaksENS_15ShouldSymbolizeE",
    "_ZN15HeapLeakCheckerC1EPKc",
    "_ZN15HeapLeakCheckerC2EPKc",
    "_ZN15HeapLeakCheckerD1Ev",
    "_ZN15HeapLeakCheckerD2Ev",
    "_ZNK15HeapLeakChecker11BytesLeakedEv",
    "_ZNK15HeapLeakChecker13ObjectsLeakedEv",
];

/// gperftools' CPU profiler, likewise.
const CPU_PROFILER: [&str; 9] = [
    "ProfilerDisable",
    "ProfilerEnable",
    "ProfilerFlush",
    "ProfilerGetCurrentState",
    "ProfilerRegisterThread",
    "ProfilerStart",
    "ProfilerStartWithOptions",
    "ProfilerStop",
    "ProfilingIsEnabledForAllThreads",
];

/// LeakSanitizer's interface, likewise.
const SANITIZER: [&str; 7] = [
    "__lsan_disable",
    "__lsan_do_leak_check",
    "__lsan_do_recoverable_leak_check",
    "__lsan_enable",
    "__lsan_ignore_object",
    "__lsan_register_root_region",
    "__lsan_unregister_root_region",
];

fn exports(library: &Path) -> BTreeSet<String> {
    let listing = tool(
        "nm",
        [Path::new("-D"), Path::new("--defined-only"), library],
    );
    let name = |line: &str| {
        Some(
            line.split_whitespace()
                .nth(2)?
                .split('@')
                .next()?
                .to_owned(),
        )
    };
    listing.lines().filter_map(name).collect()
}

/// Returns the C library that this very process has loaded.
fn c_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("own maps");
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    PathBuf::from(
        path.into_iter()
            .find(|p| p.ends_with("/libc.so.6"))
            .expect("a C library"),
    )
}

/// Returns C++'s `operator new` and `operator delete` in all their forms. Programs linked with
/// tcmalloc or jemalloc would otherwise have those of these libraries.
fn operators() -> BTreeSet<String> {
    let path = tool("g++", ["-print-file-name=libstdc++.so.6"]);
    let is_operator = |name: &String| {
        let starts = ["_Znw", "_Zna", "_Zdl", "_Zda"];
        starts.iter().any(|start| name.starts_with(start))
    };
    let operators: BTreeSet<_> = exports(Path::new(path.trim()))
        .into_iter()
        .filter(is_operator)
        .collect();
    assert!(operators.len() >= 20, "{operators:?}");
    operators
}

#[test]
fn the_agent_exports_glibcs_whole_family_and_nothing_else() {
    let ours = exports(&artifacts::agent());
    let own = FAMILY.iter().chain(&C23).chain(&JEMALLOC);
    let own = own.chain(&OWN_NAMES).chain(&PASSED_ON);
    let own = own
        .chain(&GPERFTOOLS)
        .chain(&CPU_PROFILER)
        .chain(&SANITIZER);
    let mut expected: BTreeSet<_> = own.map(|name| (*name).to_owned()).collect();
    expected.extend(operators());
    // Made as the C library makes them; the agent must know of seccomp filters, of threads, of
    // signals that the program handles or fetches, and of its end. Its fork handlers come first.
    let called_through = [
        "__register_atfork",
        // A limit on address space is one on reserved addresses, too.
        "prlimit",
        "prlimit64",
        "setrlimit",
        "setrlimit64",
        "prctl",
        "syscall",
        "pthread_create",
        "sigaction",
        "sigaltstack",
        "signal",
        "sigwait",
        "sigwaitinfo",
        "sigtimedwait",
        "signalfd",
        "_exit",
        "_Exit",
    ];
    expected.extend(called_through.map(str::to_owned));
    assert_eq!(ours, expected);

    // Programs that are linked with these find ours by the very names.
    let tcmalloc = tool("g++", ["-print-file-name=libtcmalloc.so.4"]);
    let tcmalloc = exports(Path::new(tcmalloc.trim()));
    let lsan = exports(Path::new(
        tool("gcc", ["-print-file-name=liblsan.so"]).trim(),
    ));
    let profiler = tool("g++", ["-print-file-name=libprofiler.so.0"]);
    let profiler = exports(Path::new(profiler.trim()));
    for (names, theirs) in [
        (&GPERFTOOLS[..], tcmalloc),
        (&CPU_PROFILER, profiler),
        (&SANITIZER, lsan),
    ] {
        let missing = names.iter().find(|name| !theirs.contains(**name));
        assert_eq!(missing, None);
    }

    // glibc's names that begin with one are its own affair, but for those of the family.
    let libc = exports(&c_library());
    for name in OWN_NAMES {
        assert!(libc.contains(name), "{name} is no longer the C library's");
    }
    // What a newer C library brings has to be looked at: the family's or not?
    let sounds = |name: &&String| {
        let parts = ["alloc", "memalign", "free", "frealloc"];
        !name.starts_with('_') && parts.iter().any(|part| name.contains(part))
    };
    for name in libc.iter().filter(sounds) {
        let known = FAMILY
            .iter()
            .chain(&C23)
            .chain(&OTHERS)
            .any(|known| known == name);
        assert!(
            known,
            "{name} of the C library: neither answered for nor known to be another's"
        );
    }
}

/// Runs the program that calls each entry point, with everything sampled.
fn every_entry_point(flags: &[&str], jemalloc: bool, environment: &[(&str, &str)]) {
    let scratch = Scratch::new();
    let program = scratch.compile("entries.cpp", flags);
    let mut command = scratch.preloaded(&program);
    command.envs(environment.iter().copied());
    if !jemalloc {
        command.arg("without jemalloc's own names");
    }
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    target.say("go");
    let truth = expected(&target.hear_until("done"));
    let profile = session.stop().profile();
    assert_eq!(truth.len(), if jemalloc { 24 } else { 21 });
    assert_exact(&truth, &sums(&profile, &[&program], "site_"));
    // Also while nothing is sampled, with objects of the session still there.
    target.say("go");
    target.hear_until("done");
    target.finish_well();
}

const SYSTEM: &[(&str, &str)] = &[("MEM_PROFILER_ALLOCATOR", "system")];

#[test]
fn each_is_sampled_and_counted() {
    every_entry_point(&[], true, &[]);
}

#[test]
fn each_is_sampled_and_counted_over_glibcs_own() {
    every_entry_point(&[], false, SYSTEM);
}

#[test]
fn each_is_sampled_and_counted_over_tcmalloc() {
    every_entry_point(&["-l:libtcmalloc_minimal.so.4"], false, SYSTEM);
}

#[test]
fn each_is_sampled_and_counted_over_the_programs_jemalloc() {
    every_entry_point(&["-Wl,--no-as-needed", "-l:libjemalloc.so.2"], true, SYSTEM);
}
