//! Captures a process some times and says how long it stood still.
//!
//! `cargo run --release -p capture --example capture_measure -- PID [TIMES]`

use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let pid = arguments.next().ok_or("which pid?")?.parse()?;
    let times = arguments.next().map_or(Ok(5), |times| times.parse())?;
    for _ in 0..times {
        let mut stopped = capture::Stopped::stop(pid, Duration::from_secs(10))?;
        let copy = stopped.copy()?;
        let pause = stopped.resume();
        let (all, cloned) = (pause.stopped, pause.cloned);
        println!(
            "stopped {all:.1?}, of it copying {cloned:.1?}; {} threads",
            pause.threads
        );
        drop(copy);
    }
    Ok(())
}
