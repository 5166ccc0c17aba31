//! Scripts for boards: which programs get the agent, what is collected, and which files remain.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mem_tests::package::{applets, shell_command};
use mem_tests::session::{copy_program, tool, write_program};
use mem_tests::tiny_filesystem::TinyFilesystem;
use mem_tests::{Group, Outcome, Package, SHELLS, Scratch, Session, Target, run, wait};

/// A name that asks for quotes, in a shell and in the loader's variables.
const AWKWARD: &str = "mem profiler 内存";

/// Returns a program that stays, under some name.
fn module(scratch: &Scratch, name: &str) -> PathBuf {
    let path = scratch.file(name);
    copy_program("/bin/sleep", &path);
    path
}

fn listed(scratch: &Scratch) -> String {
    let outcome = run(scratch.profiler().arg("list"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.stdout
}

/// Returns the process whose executable this is, once it has loaded all of its libraries.
fn pid_of(program: &Path) -> i32 {
    wait::until("a module to run", || {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(|pid: &i32| {
            let proc = PathBuf::from(format!("/proc/{pid}"));
            // It sleeps: it has got to its own code.
            let sleeps = fs::read_to_string(proc.join("syscall"));
            fs::read_link(proc.join("exe")).is_ok_and(|exe| exe == program)
                && sleeps
                    .is_ok_and(|call| call.starts_with(&format!("{} ", libc::SYS_clock_nanosleep)))
        })
    })
}

fn maps(pid: i32) -> String {
    fs::read_to_string(format!("/proc/{pid}/maps")).expect("a live process")
}

#[test]
fn the_named_modules_carry_the_agent_however_they_are_started() {
    for shell in SHELLS {
        let scratch = Scratch::new();
        let package = Package::unpack(&scratch, AWKWARD);
        let [planner, lidar, other] =
            ["planner", "激光 node", "other"].map(|name| module(&scratch, name));
        let script = "use_mem_agent planner '激光*'\n\
                      ./planner 1000 &\n\
                      nohup nice -n 1 './激光 node' 1000 >/dev/null &\n\
                      ./other 1000 &\n\
                      wait";
        let _group = Group::start(&mut package.shell(&scratch, shell, script));
        let pids = [&planner, &lidar, &other].map(|program| pid_of(program));
        let agent = package.agent().display().to_string();
        let list = listed(&scratch);
        let rows: Vec<_> = list.lines().skip(1).collect();
        assert_eq!(rows.len(), 2, "{shell:?}: {list}");
        for (pid, name) in pids.iter().zip(["planner", "激光 node"]) {
            let row = |row: &&str| row.contains(&format!("{pid} ")) && row.contains(name);
            assert!(rows.iter().any(row), "{shell:?}: {list}");
            assert!(maps(*pid).contains(&agent), "{shell:?}: {name}");
        }
        let refused = run(scratch.profiler().args(["-p", "other", "-s", "1"]));
        refused.refused(1, &["MEM_PROFILER_ONLY"]);
    }
}

#[test]
fn without_names_every_program_carries_it_beside_what_was_preloaded() {
    for shell in SHELLS {
        let scratch = Scratch::new();
        for name in [AWKWARD, "plain"] {
            let package = Package::unpack(&scratch, name);
            let script = "use_mem_agent\nuse_mem_agent\necho \"$LD_PRELOAD\"\ncat /proc/self/maps";
            let mut command = package.shell(&scratch, shell, script);
            let outcome = run(command.env("LD_PRELOAD", "libm.so.6"));
            assert_eq!(outcome.code, Some(0), "{outcome:?}");
            let (preloaded, maps) = outcome.stdout.split_once('\n').expect("a line");
            assert_eq!(
                preloaded.matches("libmem_agent.so").count(),
                1,
                "{preloaded}"
            );
            assert!(preloaded.ends_with(":libm.so.6"), "{preloaded}");
            assert!(
                maps.contains(&package.agent().display().to_string()),
                "{maps}"
            );
            assert!(maps.contains("/libm.so.6"), "{maps}");
            assert_eq!(
                outcome.stderr.lines().count(),
                2,
                "a line each: {outcome:?}"
            );
        }
    }
}

/// Returns the messages and the output of a shell after a script that ends with its preloads.
fn preloads(scratch: &Scratch, shell: &[&str], variable: (&str, &str), call: &str) -> Outcome {
    let package = Package::unpack(scratch, &format!("package of {}", shell.join(" ")));
    let script = format!("{call}; echo \"$?\"; echo \"<${{LD_PRELOAD:-}}>\"");
    let mut command = package.shell(scratch, shell, &script);
    run(command.env(variable.0, variable.1))
}

/// Says what one allocation takes, then forks a child that allocates enough to be noticed.
const ALLOCATES: &str = "\
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
size = libc.malloc_usable_size(ctypes.c_void_p(libc.malloc(1)))
child = os.fork()
kept = [bytearray(100000) for _ in range(20)]
if child:
    print(size, flush=True)
    sys.stdin.read()
    os.waitpid(child, 0)
else:
    sys.stdin.read()
";

#[test]
fn a_process_that_is_left_out_keeps_its_allocator_and_makes_no_table() {
    // For one byte, glibc's malloc allocates 24 bytes and ours 16.
    for (only, size, listed_processes) in [
        ("nobody:python", "24", 0),
        ("python3*", "16", 2),
        ("lidar.py:planner", "16", 2),
        ("", "16", 2),
    ] {
        let scratch = Scratch::new();
        let script = scratch.file("lidar.py");
        write_program(
            &script,
            format!("#!/usr/bin/python3\n{ALLOCATES}").as_bytes(),
        );
        let mut command = scratch.preloaded(&script);
        let mut target = Target::start(command.env("MEM_PROFILER_ONLY", only));
        assert_eq!(target.hear(), size, "{only}");
        wait::until("the tables", || {
            (scratch.segments().len() >= listed_processes).then_some(())
        });
        if listed_processes == 0 {
            let children = format!("/proc/{0}/task/{0}/children", target.pid());
            let child = fs::read_to_string(children).expect("a live process");
            // It reads: it has allocated.
            let read = format!("{} ", libc::SYS_read);
            wait::until("the child to read", || {
                let call = fs::read_to_string(format!("/proc/{}/syscall", child.trim())).ok()?;
                call.starts_with(&read).then_some(())
            });
            assert!(scratch.segments().is_empty(), "{only}");
        }
        target.finish_well();
    }
}

#[test]
fn it_is_switched_off_by_one_variable() {
    let scratch = Scratch::new();
    for shell in SHELLS {
        let outcome = preloads(
            &scratch,
            shell,
            ("USE_MEM_AGENT", "0"),
            "use_mem_agent planner",
        );
        assert_eq!(outcome.stdout, "0\n<>\n", "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        assert!(outcome.stderr.contains("USE_MEM_AGENT=0"), "{outcome:?}");
        fs::remove_dir_all(scratch.file(&format!("package of {}", shell.join(" ")))).expect("ours");
    }
}

#[test]
fn an_agent_that_does_not_load_leaves_the_environment_alone() {
    let scratch = Scratch::new();
    let text = scratch.file("text.so");
    fs::write(&text, "no library\n".repeat(20)).expect("a file");
    let text = text.to_str().expect("a path of ours");
    for (agent, said) in [
        (text, "invalid ELF header"),
        ("/nowhere/agent.so", "/nowhere"),
    ] {
        let scratch = Scratch::new();
        for shell in SHELLS {
            let outcome = preloads(
                &scratch,
                shell,
                ("MEM_AGENT_LIB", agent),
                "use_mem_agent planner",
            );
            assert_eq!(outcome.stdout, "0\n<>\n", "{outcome:?}");
            assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
            assert!(outcome.stderr.contains(said), "{outcome:?}");
            assert!(
                outcome.stderr.contains("start without the agent"),
                "{outcome:?}"
            );
        }
    }
}

/// Small systems mount `/dev/shm` late or never. The modules start, and a line says what is missing.
#[test]
fn a_start_script_is_told_that_nothing_can_be_sampled() {
    let scratch = Scratch::new();
    let missing = scratch.file("not mounted").display().to_string();
    for shell in SHELLS {
        let outcome = preloads(
            &scratch,
            shell,
            ("MEM_PROFILER_DIR", &missing),
            "set -eu; use_mem_agent planner",
        );
        assert!(outcome.stdout.starts_with("0\n<"), "{outcome:?}");
        let lines: Vec<_> = outcome.stderr.lines().collect();
        assert_eq!(lines.len(), 2, "{outcome:?}");
        assert!(lines[0].contains("planner will carry"), "{outcome:?}");
        assert!(lines[1].contains(&missing), "{outcome:?}");
        assert!(lines[1].contains("before this line"), "{outcome:?}");
        fs::remove_dir_all(scratch.file(&format!("package of {}", shell.join(" ")))).expect("ours");
    }
}

/// A shell other than bash does not know where a sourced file is.
#[test]
fn a_package_at_another_place_is_asked_for() {
    let scratch = Scratch::new();
    let package = Package::unpack(&scratch, AWKWARD);
    for shell in [&["dash"][..], &["busybox", "sh"]] {
        let outcome = run(shell_command(&scratch, shell)
            .args(["-c", ". \"$HERE/setup.bash\" && use_mem_agent planner"])
            .env("HERE", package.home())
            .env("MEM_PROFILER_HOME", scratch.file("nothing")));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
        assert!(
            outcome.stderr.contains("set MEM_PROFILER_HOME"),
            "{outcome:?}"
        );
    }
}

/// Shells with the options that end a script most easily.
const STRICT_SHELLS: [&[&str]; 9] = [
    &["bash"],
    &["bash", "-eu"],
    &["bash", "--posix", "-eu"],
    &["dash", "-eu"],
    &["busybox", "sh", "-eu"],
    &["mksh", "-eu"],
    &["ksh", "-eu"],
    &["yash", "-eu"],
    // Knows no more than POSIX asks for, and no classes of characters.
    &["posh", "-eu"],
];

/// Damage that a package may have.
struct Damage {
    what: &'static str,
    inflict: fn(&Package),
    /// Part of the message of `use_mem_agent` or the shell.
    said: &'static str,
}

const DAMAGES: [Damage; 7] = [
    Damage {
        what: "no agent",
        inflict: |package| fs::remove_file(package.agent()).expect("ours"),
        said: "there is none at",
    },
    Damage {
        what: "no tools",
        inflict: |package| fs::remove_dir_all(package.home().join("bin")).expect("ours"),
        said: "planner:lidar* will carry",
    },
    Damage {
        what: "a script that ends inside a function",
        inflict: |package| {
            let script = package.script("setup.bash");
            let text = fs::read_to_string(&script).expect("a text");
            let end = text.find("_mem_names=").expect("a function");
            fs::write(script, &text[..end]).expect("ours");
        },
        said: "setup.bash",
    },
    Damage {
        what: "an agent of which the most is missing",
        inflict: |package| {
            let file = fs::File::options().write(true).open(package.agent());
            file.and_then(|file| file.set_len(100_000)).expect("ours");
        },
        said: "damaged",
    },
    Damage {
        what: "an agent for another architecture",
        inflict: |package| make_foreign(&package.agent()),
        said: "it does not load",
    },
    Damage {
        what: "a package for another architecture",
        inflict: |package| {
            make_foreign(&package.agent());
            for tool in ["mem_profiler", "mem_parser"] {
                make_foreign(&package.home().join("bin").join(tool));
            }
        },
        said: "it does not load",
    },
    Damage {
        what: "nothing",
        inflict: |package| fs::remove_dir_all(package.home()).expect("ours"),
        said: "setup.bash",
    },
];

/// Turns a file of the package into one for an architecture that no machine has.
fn make_foreign(file: &Path) {
    let mut content = fs::read(file).expect("a file");
    let e_machine = 18..20;
    content[e_machine].copy_from_slice(&0x1234u16.to_le_bytes());
    // The package may have links to what was built.
    fs::remove_file(file).expect("ours");
    fs::write(file, content).expect("ours");
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("ours");
}

#[test]
fn nothing_of_the_package_ends_a_start_script() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/guide/boards.md");
    let guide = fs::read_to_string(guide).expect("the guide");
    let is_line = |line: &&str| line.contains("use_mem_agent planner") && line.starts_with('(');
    let line = guide.lines().find(is_line).expect("a start script's line");
    for shell in STRICT_SHELLS {
        for damage in DAMAGES {
            let scratch = Scratch::new();
            let package = Package::unpack(&scratch, AWKWARD);
            (damage.inflict)(&package);
            let home = package.home().to_str().expect("a path of ours");
            let script = format!(
                "{}\necho started",
                line.replace("/opt/mem-profiler", "$HERE")
            );
            let script = script.replace("$HERE/setup.bash", "\"$HERE/setup.bash\"");
            let outcome = run(shell_command(&scratch, shell)
                .args(["-c", &script])
                .env("HERE", home)
                .env("MEM_PROFILER_HOME", home));
            let context = format!("{shell:?}: {}: {outcome:?}", damage.what);
            assert_eq!(outcome.code, Some(0), "{context}");
            assert_eq!(outcome.stdout, "started\n", "{context}");
            assert!(outcome.stderr.contains(damage.said), "{context}");
        }
    }
}

#[test]
fn a_second_call_adds_its_names() {
    for shell in STRICT_SHELLS {
        for (calls, programs) in [
            ("use_mem_agent a b; use_mem_agent 'b' 'c*'", "a:b:c*"),
            (
                "use_mem_agent a; use_mem_agent ./x; use_mem_agent x:y z",
                "a:z",
            ),
            ("use_mem_agent a; use_mem_agent", ""),
            ("use_mem_agent; use_mem_agent a", ""),
            ("MEM_PROFILER_ONLY=other; use_mem_agent a", "a"),
        ] {
            let scratch = Scratch::new();
            let package = Package::unpack(&scratch, AWKWARD);
            let script = format!("{calls}; echo \"$? <${{MEM_PROFILER_ONLY-}}> $LD_PRELOAD\"");
            let outcome = run(&mut package.shell(&scratch, shell, &script));
            // The agent is found through its directory, because a path in LD_PRELOAD ends at a
            // blank.
            let expected = format!("0 <{programs}> libmem_agent.so\n");
            assert_eq!(outcome.stdout, expected, "{shell:?}: {calls}: {outcome:?}");
        }
    }
    let outcome = preloads(
        &Scratch::new(),
        &["bash"],
        ("X", ""),
        "use_mem_agent ./bin/planner",
    );
    assert_eq!(outcome.stdout, "0\n<>\n", "{outcome:?}");
    assert!(
        outcome.stderr.contains("'./bin/planner' is left out"),
        "{outcome:?}"
    );
}

#[test]
fn what_is_preloaded_besides_is_not_taken_for_the_agent() {
    let scratch = Scratch::new();
    let source = scratch.file("loud.c");
    let text = "#include <unistd.h>\n\
        __attribute__((constructor)) static void say(void) { (void)!write(2, \"loud libmem_agent.so\\n\", 21); }\n";
    fs::write(&source, text).expect("a file");
    let loud = scratch.file("libloud.so");
    let [source, loud] = [&source, &loud].map(|path| path.to_str().expect("a path of ours"));
    tool("gcc", ["-shared", "-fPIC", "-o", loud, source]);
    for shell in SHELLS {
        for other in [loud, "/nowhere/other.so", "/nowhere/libmem_agent.so"] {
            let scratch = Scratch::new();
            let variable = ("LD_PRELOAD", other);
            let outcome = preloads(&scratch, shell, variable, "use_mem_agent planner");
            // In a directory with a blank in its name.
            let expected = format!("0\n<libmem_agent.so:{other}>\n");
            assert_eq!(outcome.stdout, expected, "{outcome:?}");
            assert!(outcome.stderr.contains("planner will carry"), "{outcome:?}");
        }
    }
}

#[test]
fn the_tools_and_the_manual_are_found_after_sourcing() {
    let scratch = Scratch::new();
    let package = Package::unpack(&scratch, AWKWARD);
    fs::create_dir_all(package.home().join("share/man")).expect("a directory");
    let link = package.home().join("setup.bash");
    for setup in [link, package.script("setup.bash")] {
        // In bash the script finds its own path, even through the link. Sourcing it again changes
        // nothing.
        let script =
            "set -eu; . \"$0\"; . \"$0\"; command -v mem_parser; echo \"$MANPATH\"; echo \"$PATH\"";
        let outcome = run(shell_command(&scratch, &["bash"])
            .args(["-c", script])
            .arg(&setup)
            .env_remove("MANPATH"));
        let home = package.home().display();
        let lines: Vec<_> = outcome.stdout.lines().collect();
        assert_eq!(
            lines[..2],
            [
                format!("{home}/bin/mem_parser"),
                format!("{home}/share/man:")
            ]
        );
        assert_eq!(lines[2].matches(AWKWARD).count(), 1, "{outcome:?}");
    }
    // Another shell cannot tell where the file is, and takes the place that the guide names.
    let outcome = run(shell_command(&scratch, &["dash"])
        .args(["-euc", ". \"$0\"; echo \"$MEM_PROFILER_HOME\""])
        .arg(package.script("setup.bash")));
    assert_eq!(outcome.stdout, "/opt/mem-profiler\n", "{outcome:?}");
}

/// Ports that nobody listens on.
fn free_ports() -> [String; 2] {
    let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
    listeners.map(|one| one.local_addr().expect("an address").port().to_string())
}

/// Running modules of the example, one of which gets work.
struct Modules {
    _group: Group,
    is_over: Arc<AtomicBool>,
    client: Option<JoinHandle<()>>,
}

impl Drop for Modules {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(client) = self.client.take() {
            // It ends by itself when the module does.
            let _ = client.join();
        }
    }
}

/// Stores values in redis until it is over, so that sessions have samples.
fn store(port: &str, is_over: &AtomicBool) {
    let port: u16 = port.parse().expect("a port");
    let connected = wait::until("redis to listen", || {
        TcpStream::connect(("127.0.0.1", port)).ok()
    });
    let (mut stream, mut answer) = (connected, [0; 64]);
    let value = "x".repeat(1000);
    for number in 0.. {
        let line = format!("SET key{} {value}\r\n", number % 1000);
        let stored = stream.write_all(line.as_bytes());
        if stored.is_err() || !matches!(stream.read(&mut answer), Ok(1..)) {
            return;
        }
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn start_modules(scratch: &Scratch, package: &Package) -> Modules {
    let [bus, maps] = free_ports();
    let port = bus.clone();
    let mut command = shell_command(scratch, &["bash"]);
    command
        .arg(package.script("start_all_modules.bash"))
        .arg(scratch.file("run"))
        .env("BUS_PORT", bus)
        .env("MAPS_PORT", maps);
    let group = Group::start(&mut command);
    wait::until("the modules", || {
        let list = listed(scratch);
        (list.contains("redis-server") && list.contains("python3")).then_some(())
    });
    let list = listed(scratch);
    assert!(!list.contains("bash") && !list.contains("nice"), "{list}");
    let is_over = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_over);
    Modules {
        _group: group,
        is_over,
        client: Some(std::thread::spawn(move || store(&port, &seen))),
    }
}

fn collect(scratch: &Scratch, package: &Package, shell: &[&str], arguments: &[&str]) -> Command {
    let mut command = shell_command(scratch, shell);
    command.arg(package.script("collect.bash")).args(arguments);
    if shell[0] == "busybox" {
        // Simulates a system that has no other programs.
        command.env("PATH", applets(scratch));
    }
    // As from a terminal. What runs in the background, as these tests may, ignores Ctrl-C, and a
    // shell cannot trap what was ignored before it began.
    // SAFETY: the call is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            Ok(())
        })
    };
    command
}

/// Names of files in a directory; hidden ones, too.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory").flatten();
    let mut names: Vec<_> = entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

#[test]
fn the_example_is_collected_into_one_archive() {
    let scratch = Scratch::new();
    let package = Package::unpack(&scratch, AWKWARD);
    let _modules = start_modules(&scratch, &package);
    for shell in SHELLS {
        let out = scratch.file(&format!("out of {}", shell.join(" ")));
        fs::create_dir(&out).expect("a new directory");
        let out_text = out.to_str().expect("a path of ours");
        let arguments = [
            "-s",
            "3",
            "-e",
            "1s",
            "-p",
            "redis-server",
            "-p",
            "python3*",
            "-o",
            out_text,
        ];
        let outcome = run(&mut collect(&scratch, &package, shell, &arguments));
        assert_eq!(outcome.code, Some(0), "{shell:?}: {outcome:?}");
        let archive = PathBuf::from(outcome.stdout.trim_end());
        assert_eq!(
            names(&out),
            [archive
                .file_name()
                .expect("a name")
                .to_str()
                .expect("UTF-8")]
        );
        tool(
            "tar",
            ["-xzf", archive.to_str().expect("UTF-8"), "-C", out_text],
        );
        let tree = archive.with_extension("").with_extension("");
        check_archive(&scratch, &tree);
    }
}

/// Requirements on what `collect.bash` packs: each process's dumps and what they say.
fn check_archive(scratch: &Scratch, tree: &Path) {
    let dumps = names(&tree.join("dumps"));
    let last: Vec<_> = dumps
        .iter()
        .filter(|name| name.ends_with(".0002.heap"))
        .collect();
    assert!(last.len() >= 2, "{dumps:?}");
    let symbolized = names(&tree.join("symbolized"));
    assert_eq!(symbolized.len(), 2, "the last of each: {symbolized:?}");
    for dump in &symbolized {
        let report = |end: &str| {
            let path = tree.join("reports").join(dump.replace(".heap", end));
            fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        assert!(report(".txt").contains("flat%"), "{dump}");
        assert!(report(".svg").contains("<svg"), "{dump}");
        assert!(report(".html").contains("</html>"), "{dump}");
        assert!(report(".rss.txt").contains("Resident memory"), "{dump}");
        assert!(report(".leaks.txt").contains("Leak suspects"), "{dump}");
        // Here without the program's files.
        let read = run(scratch
            .parser()
            .arg("-t")
            .arg(tree.join("symbolized").join(dump)));
        assert_eq!(read.code, Some(0), "{read:?}");
    }
    let facts = fs::read_to_string(tree.join("facts.txt")).expect("facts");
    for fact in [
        "$ uname -a\nLinux",
        "MemTotal",
        "GNU C Library",
        "Filesystem",
        "mem_profiler 0",
        "redis-server",
    ] {
        assert!(facts.contains(fact), "{fact}: {facts}");
    }
    let why = fs::read_to_string(tree.join("why.txt")).expect("an explanation");
    assert!(why.contains("live heap"), "{why}");
    let summary = fs::read_to_string(tree.join("summary.txt")).expect("a summary");
    assert!(!summary.contains("left out"), "{summary}");
}

#[test]
fn an_interrupted_collection_leaves_nothing() {
    let scratch = Scratch::new();
    let package = Package::unpack(&scratch, AWKWARD);
    let _modules = start_modules(&scratch, &package);
    for shell in SHELLS {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
            let out = scratch.file(&format!("{} {signal}", shell.join(" ")));
            fs::create_dir(&out).expect("a new directory");
            let arguments = ["-s", "600", "-o", out.to_str().expect("UTF-8")];
            let session = Session::start(&mut collect(&scratch, &package, shell, &arguments));
            wait::until("the session", || in_session(&scratch).then_some(()));
            session.signal(signal);
            if signal == libc::SIGKILL {
                end_orphan(&scratch, &out);
                session.wait();
                assert_eq!(names(&out).len(), 1, "{shell:?}: what it unpacked");
                let arguments = [
                    "-s",
                    "1",
                    "-p",
                    "redis-server",
                    "-o",
                    out.to_str().expect("UTF-8"),
                ];
                let next = run(&mut collect(&scratch, &package, shell, &arguments));
                assert_eq!(next.code, Some(0), "{next:?}");
                assert_eq!(names(&out).len(), 1, "{shell:?}: the archive");
                continue;
            }
            let outcome = session.wait();
            assert_eq!(outcome.code, Some(128 + signal), "{shell:?}: {outcome:?}");
            assert!(names(&out).is_empty(), "{shell:?}: {:?}", names(&out));
            assert!(!in_session(&scratch), "{shell:?}");
        }
    }
}

/// Returns true if the long session is running, and not the short one of `why`.
fn in_session(scratch: &Scratch) -> bool {
    let list = listed(scratch);
    list.contains("sampling") && list.contains(" min")
}

/// Ends the session of a controller whose script is gone, and waits until it has left.
fn end_orphan(scratch: &Scratch, out: &Path) {
    let stopped = run(scratch.profiler().args(["stop", "-o", "orphan_"]));
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    wait::until("the controller to end", || {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let mut places = processes.filter_map(|one| fs::read_link(one.path().join("cwd")).ok());
        (!places.any(|place| place.starts_with(out))).then_some(())
    });
}

#[test]
fn where_there_is_no_room_nothing_is_started_or_pages_are_left_out() {
    let scratch = Scratch::new();
    let package = Package::unpack(&scratch, "package");
    let _modules = start_modules(&scratch, &package);
    for (size, code) in [("128k", 1), ("4m", 1), ("64m", 0)] {
        let disk = scratch.file(&format!("disk of {size}"));
        let _mounted = TinyFilesystem::mount(&disk, size);
        for shell in SHELLS {
            let arguments = ["-s", "1", "-o", disk.to_str().expect("UTF-8")];
            let outcome = run(&mut collect(&scratch, &package, shell, &arguments));
            assert_eq!(outcome.code, Some(code), "{size}, {shell:?}: {outcome:?}");
            match size {
                "128k" => {
                    let said = [
                        "processes need ",
                        " KiB at least, 128 KiB are free, of which half may be used",
                    ];
                    assert!(
                        said.iter().all(|part| outcome.stderr.contains(part)),
                        "{outcome:?}"
                    );
                    assert!(outcome.stderr.contains("use another -o"), "{outcome:?}");
                    assert!(names(&disk).is_empty(), "{:?}", names(&disk));
                }
                "4m" => assert!(
                    outcome
                        .stderr
                        .contains(".html (space: needs about 3.0 MiB, "),
                    "{outcome:?}"
                ),
                _ => assert!(!outcome.stderr.contains("left out"), "{outcome:?}"),
            }
            for name in names(&disk) {
                assert!(name.ends_with(".tar.gz"), "{name}");
                fs::remove_file(disk.join(name)).expect("ours");
            }
        }
    }
}

#[test]
fn a_collection_without_a_sample_says_so() {
    let scratch = Scratch::new();
    let package = Package::unpack(&scratch, "package");
    let planner = module(&scratch, "planner");
    let mut command = package.shell(
        &scratch,
        &["bash"],
        "use_mem_agent planner\n./planner 1000 & wait",
    );
    let _group = Group::start(&mut command);
    pid_of(&planner);
    for shell in SHELLS {
        let outcome = run(&mut collect(&scratch, &package, shell, &["-s", "1"]));
        assert_eq!(outcome.code, Some(1), "{shell:?}: {outcome:?}");
        assert!(
            outcome.stderr.contains("no dump has a sample"),
            "{outcome:?}"
        );
        // The archive also keeps the known facts about the machine.
        let archive = outcome.stdout.trim_end();
        let tree = Path::new(archive).with_extension("").with_extension("");
        let summary = format!(
            "{}/summary.txt",
            tree.file_name().expect("a name").display()
        );
        let summary = tool("tar", ["-xzOf", archive, &summary]);
        assert!(summary.contains("no dump has a sample"), "{summary}");
    }
}

#[test]
fn an_agent_that_other_users_cannot_read_is_refused_to_root() {
    for shell in STRICT_SHELLS {
        let scratch = Scratch::new();
        let package = Package::unpack(&scratch, "package");
        let closed = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("ours");
        };
        let call = "use_mem_agent planner; echo \"$? <${LD_PRELOAD-}>\"";
        for (path, mode, usual) in [
            (package.home().to_owned(), 0o700, 0o755),
            (scratch.files().to_owned(), 0o750, 0o755),
            (package.agent(), 0o600, 0o755),
        ] {
            closed(&path, mode);
            let outcome = run(&mut package.shell(&scratch, shell, call));
            assert_eq!(outcome.stdout, "0 <>\n", "{shell:?}: {outcome:?}");
            let said = format!("other users cannot read it, {} is ", path.display());
            assert!(outcome.stderr.contains(&said), "{shell:?}: {outcome:?}");
            assert!(!outcome.stderr.contains("will carry"), "{outcome:?}");
            let mut own = package.shell(&scratch, shell, call);
            let outcome = run(own.env("USE_MEM_AGENT", "own"));
            assert!(outcome.stderr.contains("planner will carry"), "{outcome:?}");
            closed(&path, usual);
        }
        let outcome = run(&mut package.shell(&scratch, shell, call));
        assert!(outcome.stderr.contains("planner will carry"), "{outcome:?}");
    }
}

/// No process is blamed for a library that the tools lack.
#[test]
fn a_collection_whose_tools_do_not_run_says_so() {
    for shell in SHELLS {
        let scratch = Scratch::new();
        let package = Package::unpack(&scratch, "package");
        let tool = package.home().join("bin/mem_profiler");
        fs::remove_file(&tool).expect("ours");
        let script = "#!/bin/sh\necho libgcc_s.so.1: cannot open >&2\nexit 127\n";
        write_program(&tool, script.as_bytes());
        let outcome = run(&mut collect(&scratch, &package, shell, &["-s", "1"]));
        outcome.refused(1, &["mem_profiler does not run", "libgcc_s.so.1"]);
        assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    }
}

#[test]
fn bad_usage_of_the_collection_is_refused() {
    let scratch = Scratch::new();
    let package = Package::unpack(&scratch, "package");
    for shell in SHELLS {
        for (arguments, code, said) in [
            (&["-s", "0"][..], 2, "-s takes"),
            (&["-s", "x"], 2, "-s takes"),
            (&["-m"], 2, "-m takes a value"),
            (&["now"], 2, "'now'"),
            (&["-o", "/nowhere"], 1, "/nowhere"),
            (&["-s", "1"], 1, "no process carries the agent"),
        ] {
            let outcome = run(&mut collect(&scratch, &package, shell, arguments));
            outcome.refused(code, &["collect: ", said]);
        }
        let help = run(&mut collect(&scratch, &package, shell, &["-h"]));
        assert!(
            help.stdout.contains("-s SECONDS") && help.code == Some(0),
            "{help:?}"
        );
        assert!(!help.stdout.contains("set -u"), "{help:?}");
    }
}

#[test]
fn the_short_command_lines_work_as_they_are_typed() {
    let scratch = Scratch::new();
    // It leaks all the time.
    let program = scratch.compile_as("../../docs/pictures/server.cpp", "bin", &[]);
    let mut command = scratch.preloaded(&program);
    let target = Target::start(&mut command);
    wait::until("the agent", || {
        listed(&scratch).contains("idle").then_some(())
    });
    let done = "succeeded in collecting memory data!";
    let perform = |line: &str| {
        let path = std::env::var("PATH").expect("a path");
        let package = scratch.file("package/bin");
        let path = format!("{}:{path}", package.display());
        run(shell_command(&scratch, &["sh"])
            .args(["-c", line])
            .env("PATH", path))
    };
    Package::unpack(&scratch, "package");
    // Uses this test's directory instead of /tmp, and a session of one second.
    let line = "mem_profiler -s 60 -c 1024 -o /tmp/prof_";
    let outcome = perform(&line.replace("/tmp/", "./").replace("60", "1"));
    assert!(outcome.stdout.contains(done), "{outcome:?}");
    let dump = outcome.dump();
    assert_eq!(
        dump,
        Path::new(&format!("./prof_bin.{}.0001.heap", target.pid()))
    );
    fs::rename(scratch.files().join(dump), scratch.file("x.heap")).expect("a dump");
    for shown in ["-t", "-s -o out.svg"] {
        let outcome = perform(&format!("mem_parser -p bin -f x.heap {shown}"));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let drawn = fs::read_to_string(scratch.file("out.svg")).unwrap_or_default();
        assert!(
            (outcome.stdout + &drawn).contains("open_session"),
            "{shown}"
        );
    }
    // Without options: until Ctrl-C, to the default name.
    let session = Session::start(scratch.profiler().env_remove("TERM"));
    scratch.wait_for_sampling(target.pid());
    let outcome = session.stop();
    assert!(outcome.stdout.contains(done), "{outcome:?}");
    let name = format!("custom_prof.bin.{}.0001.heap", target.pid());
    assert_eq!(outcome.dump(), Path::new("./").join(name));
}
