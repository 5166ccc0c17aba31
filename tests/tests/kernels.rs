//! Older kernels, and containers whose runtime forbids unknown system calls: calls are missing for
//! the program, the controller and the parser.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::container::{contained, pid_of};
use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Session, Steps, artifacts, run, sums};

/// What a command meets: the kernel's year, and the error of a call that came later.
const KERNELS: [[&str; 2]; 3] = [["2016", "38"], ["2016", "1"], ["2013", "38"]];

/// Returns a command that runs `program` on such a kernel.
fn on(scratch: &Scratch, kernel: [&str; 2], program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(scratch.file("old_kernel"));
    command
        .args(kernel)
        .arg(program)
        .env("MEM_PROFILER_DIR", scratch.shared())
        .current_dir(scratch.files())
        .stdin(Stdio::null());
    command
}

/// Starts `steps.c` with the agent on such a kernel.
fn start(scratch: &Scratch, kernel: [&str; 2]) -> Steps {
    scratch.compile("old_kernel.c", &[]);
    let program = scratch.compile("steps.c", &[]);
    let mut preload = std::ffi::OsString::from("LD_PRELOAD=");
    preload.push(artifacts::agent());
    let mut command = on(scratch, kernel, "env");
    command
        .arg(preload)
        .arg(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    Steps::run(program, &mut command)
}

/// Runs a command that must succeed; gives its output.
fn done(command: &mut Command) -> String {
    let outcome = run(command);
    assert_eq!(outcome.code, Some(0), "{command:?}: {outcome:?}");
    outcome.stdout
}

#[test]
fn a_session_and_all_that_is_asked_of_it_work() {
    for kernel in KERNELS {
        let scratch = Scratch::new();
        let mut program = start(&scratch, kernel);
        let pid = program.pid().to_string();
        let profiler = || on(&scratch, kernel, artifacts::profiler());
        assert!(done(profiler().arg("list")).contains("idle"));
        let args = ["-c", "1", "-o", "prof_", "-p", &pid];
        let session = Session::start(profiler().args(args));
        scratch.wait_for_sampling(program.pid());
        program.step("keep 100");
        program.step("threads 10");
        program.fork("fork", 3);
        let expected = program.expected();
        for command in ["dump -o middle_", "top --once", "why"] {
            let command = command.split(' ').chain(["-p", &pid]);
            done(profiler().args(command));
        }
        let outcome = session.stop();
        // Its children have theirs.
        let of = format!(".{pid}.");
        let dumps = outcome.dumps().into_iter();
        let mut own = dumps.filter(|dump| dump.to_string_lossy().contains(&of));
        let dump = own.next().expect("a dump of the process");
        let dump = scratch.file(&dump.to_string_lossy());
        let profile = profile::open(&dump).expect("a dump");
        assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
        read(&scratch, kernel, &dump);
        program.target.finish_well();
    }
}

/// Tables, pictures and the page of a dump.
fn read(scratch: &Scratch, kernel: [&str; 2], dump: &Path) {
    let parser = || {
        let mut command = on(scratch, kernel, artifacts::parser());
        command.arg(dump);
        command
    };
    assert!(done(parser().arg("-t")).contains("site_main"));
    for (flag, file) in [("-s", "out.svg"), ("--html", "out.html")] {
        done(parser().args([flag, "-o", file]));
        let text = std::fs::read_to_string(scratch.file(file)).expect("its output");
        assert!(text.contains("site_main"), "{kernel:?}: {file}");
    }
}

#[test]
fn a_killed_process_is_recovered_and_a_program_is_run() {
    for kernel in KERNELS {
        let scratch = Scratch::new();
        let mut program = start(&scratch, kernel);
        let profiler = || on(&scratch, kernel, artifacts::profiler());
        let pid = program.pid().to_string();
        let args = ["-c", "1", "-o", "prof_", "-p", &pid];
        let session = Session::start(profiler().args(args));
        scratch.wait_for_sampling(program.pid());
        program.step("keep 70");
        let expected = program.expected();
        session.signal(libc::SIGKILL);
        session.wait();
        program.target.kill();
        let outcome = run(profiler().args(["recover", "-o", "left_"]));
        let dump = scratch.file(&outcome.dump().to_string_lossy());
        let profile = profile::open(&dump).expect("a dump");
        assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));

        let agent = artifacts::agent();
        let mut command = profiler();
        command.args(["run", "-c", "1", "-o", "run_", "--agent"]);
        command.arg(agent).arg(&program.program);
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{kernel:?}: {outcome:?}");
        let succeeded = outcome.stderr.contains("succeeded in collecting");
        assert!(succeeded, "{kernel:?}: {outcome:?}");
    }
}

#[test]
fn a_process_in_a_container_is_found_from_outside() {
    for kernel in KERNELS {
        let scratch = Scratch::new();
        scratch.compile("old_kernel.c", &[]);
        let program = scratch.compile_as("steps.c", "contained", &[]);
        let target = contained(&scratch, &program);
        let pid = pid_of(&program).to_string();
        let profiler = || on(&scratch, kernel, artifacts::profiler());
        assert!(done(profiler().arg("list")).contains(&pid), "{kernel:?}");
        let args = ["-s", "0.2", "-o", "c_", "-p", &pid];
        assert!(
            done(profiler().args(args)).contains("c_contained"),
            "{kernel:?}"
        );
        target.finish_well();
    }
}
