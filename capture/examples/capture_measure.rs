//! Says how long a process stands still for a copy.
//!
//! - `cargo run --release -p capture --example capture_measure`: processes of 1 GiB with 1, 16 and
//!   64 threads, on pages of 4 KiB and huge ones; for each, in turns, its own `fork` and our copy.
//!   An error if a median is above the limit.
//!   `… -- of 64`: the same with 64 MiB.
//! - `… -- PID [TIMES]`: a process that runs already.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const HUGE_PAGE: usize = 2 << 20;
const ROUNDS: usize = 15;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => compare(1024),
        ["of", mib] => compare(mib.parse()?),
        ["target", threads, pages, mib] => be_target(
            threads.parse()?,
            *pages == "huge",
            mib.parse::<usize>()? * MIB,
        ),
        [pid] => measure(pid.parse()?, 5),
        [pid, times, ..] => measure(pid.parse()?, times.parse()?),
    }
}

/// Captures a process some times.
fn measure(pid: i32, times: usize) -> Result<(), Box<dyn Error>> {
    for _ in 0..times {
        let pause = capture(pid)?;
        let (all, cloned) = (pause.stopped, pause.cloned);
        println!(
            "stopped {all:.1?}, of it copying {cloned:.1?}; {} threads",
            pause.threads
        );
    }
    Ok(())
}

fn capture(pid: i32) -> Result<capture::Pause, capture::Refusal> {
    let (stopped, copy) = capture::Stopped::stop_with_copy(pid, PATIENCE)?;
    let copy = copy?;
    let pause = stopped.resume();
    drop(copy);
    Ok(pause)
}

/// Prints a table of processes, forks and copies.
fn compare(mib: usize) -> Result<(), Box<dyn Error>> {
    let mut misses = 0;
    println!("| pages | threads | its own `fork` | it stands still | limit | of that, copying |");
    println!("|---|---|---|---|---|---|");
    for pages in ["4 KiB", "huge"] {
        for threads in [1, 16, 64] {
            let mut target = Target::start(threads, pages, mib)?;
            let (mut forks, mut pauses, mut copies) = (Vec::new(), Vec::new(), Vec::new());
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
    println!(
        "Milliseconds: the median of {ROUNDS}, and the shortest. The limit: fork + 1 ms + 20 µs a thread."
    );
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

/// A process that forks when it is told to.
struct Target {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Target {
    fn start(threads: usize, pages: &str, mib: usize) -> Result<Self, Box<dyn Error>> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["target", &threads.to_string(), pages, &mib.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let orders = child.stdin.take().ok_or("no pipe")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let mut target = Self {
            child,
            orders,
            answers,
        };
        target.answer()?;
        Ok(target)
    }

    fn answer(&mut self) -> Result<u64, Box<dyn Error>> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim().parse()?)
    }

    /// How long its `fork` takes.
    fn fork(&mut self) -> Result<Duration, Box<dyn Error>> {
        self.orders.write_all(b"f")?;
        Ok(Duration::from_nanos(self.answer()?))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the process itself: memory that is all in use, threads that wait, and forks.
fn be_target(threads: usize, huge: bool, memory: usize) -> Result<(), Box<dyn Error>> {
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
            // SAFETY: ends the child, without a call of anything that may be locked.
            unsafe { libc::_exit(0) };
        }
        let took = began.elapsed();
        // SAFETY: waits for the child; its status is not wanted.
        unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
        println!("{}", took.as_nanos());
    }
    Ok(())
}

fn fill_memory(huge: bool, memory: usize) -> Result<(), Box<dyn Error>> {
    let (access, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let bytes = memory + HUGE_PAGE;
    // SAFETY: a new mapping, of which the part that begins at a multiple of a huge page is written.
    unsafe {
        let start = libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0);
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error().into());
        }
        let start = start.cast::<u8>();
        let start = start.add(start.align_offset(HUGE_PAGE));
        let advice = if huge {
            libc::MADV_HUGEPAGE
        } else {
            libc::MADV_NOHUGEPAGE
        };
        libc::madvise(start.cast(), memory, advice);
        start.write_bytes(1, memory);
    }
    Ok(())
}
