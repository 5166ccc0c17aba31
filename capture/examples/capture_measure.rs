//! Measures how long a process is stopped for a copy.
//!
//! - `cargo run --release -p capture --example capture_measure`: starts processes of 1 GiB with 1,
//!   16 and 64 threads, on pages of 4 KiB and on huge pages, and compares their own `fork` with our
//!   copy, in turns. Fails if a median exceeds the limit. `… -- of 64`: the same with 64 MiB.
//! - `… -- PID [TIMES]`: copies a running process.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const HUGE_PAGE: usize = 2 << 20;
const ROUNDS: usize = 15;
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare(1024),
        ["of", mib] => compare(mib.parse()?),
        ["target", threads, pages, mib] => run_target(
            threads.parse()?,
            *pages == "huge",
            mib.parse::<usize>()? * MIB,
        ),
        [pid] => measure(pid.parse()?, 5),
        [pid, times, ..] => measure(pid.parse()?, times.parse()?),
    }
}

/// Captures a process several times.
fn measure(pid: i32, times: usize) -> Result<(), Box<dyn Error>> {
    for _ in 0..times {
        let pause = capture(pid)?;
        println!(
            "stopped for {:.1?}, including {:.1?} for the copy; {} threads",
            pause.stopped, pause.cloned, pause.threads
        );
    }
    Ok(())
}

fn capture(pid: i32) -> Result<capture::Pause, capture::Refusal> {
    let (stopped, copy) = capture::Stopped::stop_with_copy(pid, STOP_TIMEOUT)?;
    let copy = copy?;
    let pause = stopped.resume();
    drop(copy);
    Ok(pause)
}

/// Prints a table of processes, forks and copies.
fn compare(mib: usize) -> Result<(), Box<dyn Error>> {
    let mut misses = 0;
    println!("| pages | threads | its own `fork` | stopped | limit | of that, copying |");
    println!("|---|---|---|---|---|---|");
    for pages in ["4 KiB", "huge"] {
        for threads in [1, 16, 64] {
            let mut target = Target::start(threads, pages, mib)?;
            let mut forks = Vec::new();
            let mut pauses = Vec::new();
            let mut copies = Vec::new();
            for _ in 0..ROUNDS {
                forks.push(target.fork()?);
                let pause = capture(target.child.id().cast_signed())?;
                assert_eq!(pause.threads, threads);
                pauses.push(pause.stopped);
                copies.push(pause.cloned);
            }
            let fork = median(&mut forks);
            let limit = fork + Duration::from_micros(1000 + 20 * threads as u64);
            misses += u32::from(median(&mut pauses) > limit);
            println!(
                "| {pages} | {threads} | {} | {} | {} | {} |",
                spread(&mut forks),
                spread(&mut pauses),
                milliseconds(limit),
                spread(&mut copies)
            );
        }
    }
    println!("Milliseconds: median (minimum) of {ROUNDS}. Limit: fork + 1 ms + 20 µs per thread.");
    match misses {
        0 => Ok(()),
        _ => Err(format!("{misses} of the medians are above their limit").into()),
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn milliseconds(time: Duration) -> String {
    format!("{:.2}", time.as_secs_f64() * 1e3)
}

fn spread(times: &mut [Duration]) -> String {
    let median = milliseconds(median(times));
    format!("{median} ({})", milliseconds(times[0]))
}

/// A process that forks on request.
struct Target {
    child: Child,
    requests: ChildStdin,
    results: BufReader<ChildStdout>,
}

impl Target {
    fn start(threads: usize, pages: &str, mib: usize) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["target", &threads.to_string(), pages, &mib.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let requests = child.stdin.take().ok_or("no pipe")?;
        let results = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut target = Self {
            child,
            requests,
            results,
        };
        // The first line shows that the target is ready.
        target.read_result()?;
        Ok(target)
    }

    fn read_result(&mut self) -> Result<u64, Box<dyn Error>> {
        let mut line = String::new();
        self.results.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }

    /// Makes the process fork, and returns how long that took.
    fn fork(&mut self) -> Result<Duration, Box<dyn Error>> {
        self.requests.write_all(b"f")?;
        Ok(Duration::from_nanos(self.read_result()?))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs as the target: uses all its memory, starts threads that wait, and forks on request.
fn run_target(threads: usize, huge: bool, memory: usize) -> Result<(), Box<dyn Error>> {
    fill_memory(huge, memory)?;
    for _ in 1..threads {
        std::thread::spawn(|| {
            loop {
                std::thread::park();
            }
        });
    }
    println!("0");
    for _ in std::io::stdin().lock().bytes() {
        let began = Instant::now();
        // SAFETY: the child does nothing but exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: `_exit` is async-signal-safe, so it takes no lock that a thread may have
            // held.
            unsafe { libc::_exit(0) };
        }
        let took = began.elapsed();
        // SAFETY: the status pointer may be null.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        println!("{}", took.as_nanos());
    }
    Ok(())
}

fn fill_memory(huge: bool, memory: usize) -> Result<(), Box<dyn Error>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let bytes = memory + HUGE_PAGE;
    // SAFETY: the mapping is new, and only `memory` bytes of it are used, from its first multiple
    // of a huge page on.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let start = start.cast::<u8>();
        let aligned = start.add(start.align_offset(HUGE_PAGE));
        let advice = if huge {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        libc::madvise(aligned.cast(), memory, advice);
        aligned.write_bytes(1, memory);
    }
    Ok(())
}
