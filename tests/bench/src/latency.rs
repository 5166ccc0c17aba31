//! From the command to the first sample in the target.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::config::Config;
use crate::segment::Segment;
use crate::stats::median;
use crate::table::{Table, duration};
use crate::tools::Tools;

/// Units of a table that the controller provides at first. It adds more as the table fills.
const FIRST_UNITS: u32 = 1;
const SAMPLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Measured times, in seconds.
pub struct Latency {
    /// By the calls that the controller makes, without starting a program.
    pub command: Vec<f64>,
    /// By the controller, from its own start on.
    pub controller: Vec<f64>,
}

impl Latency {
    /// Starts this many sessions in a process that allocates all the time.
    pub fn take(tools: &Tools, sessions: u32) -> Result<Self> {
        let target = Target::start(tools)?;
        let segment = target.segment(tools)?;
        let command = (0..sessions).map(|_| by_calls(&segment)).collect();
        let controller = (0..sessions.div_ceil(5))
            .map(|_| by_controller(tools, &segment, target.pid()))
            .collect();
        let latency = Self {
            command: Result::from_iter::<Vec<_>>(command)?,
            controller: Result::from_iter::<Vec<_>>(controller)?,
        };
        drop(target);
        segment.remove()?;
        Ok(latency)
    }

    /// Returns the results as a table.
    pub fn table(&self) -> Table {
        let mut table = Table::new(["command to first sample", "times", "median", "worst"]);
        for (name, values) in [
            ("session published", &self.command),
            ("mem_profiler started", &self.controller),
        ] {
            let worst = values.iter().copied().fold(0.0, f64::max);
            table.row(vec![
                name.to_owned(),
                values.len().to_string(),
                duration(median(values)),
                duration(worst),
            ]);
        }
        table
    }
}

/// Process that allocates until it is killed.
struct Target(Child);

impl Target {
    fn start(tools: &Tools) -> Result<Self> {
        let mut command = Command::new(tools.program("micro"));
        command.args(["30", "1", &i64::MAX.to_string()]);
        Config::Off.apply(tools, &mut command)?;
        Ok(Self(command.spawn()?))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn segment(&self, tools: &Tools) -> Result<Segment> {
        let mut found = None;
        wait("the target's segment", || {
            found = Segment::of(tools, self.pid())?;
            Ok(found.is_some())
        })?;
        found.context("no segment")
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Fails only if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn by_calls(segment: &Segment) -> Result<f64> {
    let start = Instant::now();
    let number = segment.start(1024, FIRST_UNITS)?;
    wait("a first sample", || Ok(segment.counts(number)?.samples > 0))?;
    let latency = start.elapsed().as_secs_f64();
    let file = segment.file()?;
    file.stop()?;
    file.mark_collected(number)?;
    Ok(latency)
}

fn by_controller(tools: &Tools, segment: &Segment, pid: u32) -> Result<f64> {
    let number = segment.session()?.map_or(0, |session| session.number) + 1;
    let start = Instant::now();
    let mut controller = controller(&tools.controller(), tools, pid).spawn()?;
    let sampled = wait("mem_profiler to sample", || {
        Ok(segment.counts(number)?.samples > 0)
    });
    let latency = start.elapsed().as_secs_f64();
    // SAFETY: our own child, not yet waited for.
    unsafe { libc::kill(controller.id() as i32, libc::SIGINT) };
    let status = controller.wait()?;
    sampled?;
    ensure!(status.success(), "mem_profiler: {status}");
    Ok(latency)
}

fn controller(path: &Path, tools: &Tools, pid: u32) -> Command {
    let mut command = Command::new(path);
    command
        .args(["-p", &pid.to_string(), "-o"])
        .arg(tools.scratch("prof_"))
        .env("MEM_PROFILER_DIR", tools.segments())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Waits without sleeping, so that the measured time contains nothing else.
fn wait(what: &str, mut ready: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + SAMPLE_TIMEOUT;
    while !ready()? {
        ensure!(Instant::now() < deadline, "waited too long for {what}");
        std::hint::spin_loop();
    }
    Ok(())
}
