//! Tests that a ring becomes readable with its first sample: the part of a stack beyond its copy
//! soon changes.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use cpu::{Perf, Recording, Sampling};

/// Script that waits for a line, works for a few samples (far fewer than fill the ring), and waits
/// for the end of its input.
const WORK: &str = "read line; i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done; read line";
/// Number of samples per second of CPU time.
const RATE: u32 = 50;
/// Maximum time until the first sample, in milliseconds.
const TIMEOUT_MS: i32 = 60_000;

#[test]
fn a_single_sample_is_reported() {
    let mut command = Command::new("sh");
    command.args(["-c", WORK]).stdin(Stdio::piped());
    let mut child = command.spawn().expect("a shell");
    let pid = child.id().cast_signed();
    let mut perf = Perf::open(Sampling {
        rate: RATE,
        children: false,
    })
    .expect("perf events");
    let mut recording = Recording::new(false);
    recording.add(pid);
    perf.attach(pid, &mut recording).expect("a process of ours");
    let mut input = child.stdin.take().expect("a pipe");
    writeln!(input).expect("a shell that reads");
    let mut descriptors: Vec<libc::pollfd> = (perf.descriptors())
        .map(|descriptor| libc::pollfd {
            fd: descriptor.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let count = descriptors.len() as libc::nfds_t;
    // SAFETY: `descriptors` has `count` entries.
    let ready = unsafe { libc::poll(descriptors.as_mut_ptr(), count, TIMEOUT_MS) };
    assert!(ready > 0, "no ring became readable");
    drop(input);
    child.wait().expect("a child");
}
