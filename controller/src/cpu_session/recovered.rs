//! Recovers the CPU profile of a dead process from its segment, for `recover`. Needed if the
//! session's controller has died too.

use std::path::Path;
use std::time::Duration;

use cpu::Recording;
use cpu::kernel::Symbols;
use mem_agents::discovery::Agent;
use mem_agents::dump;
use mem_agents::output::{self, Output};
use profile::cpu::{Mode, Sampling};
use shm_protocol::snapshot::Header;

use super::agents_or_ptrace::KERNEL_HIDDEN_BY_TIMERS;
use super::{CpuFormat, Description, Session, Written, member};

/// Writes the CPU profile of a dead process. Returns `None` if its session has no CPU samples.
pub fn write(
    prefix: &Path,
    agent: &Agent,
    session: &shm_protocol::segment::Session,
    header: &Header<'_>,
) -> anyhow::Result<Option<Written>> {
    let snapshot = dump::snapshot(agent, session, header)?;
    let totals = &snapshot.cpu_totals;
    if totals.samples == 0 && totals.full_samples == 0 {
        return Ok(None);
    }
    let pid = agent.pid;
    let title = agent.title();
    let mut recording = Recording::new(false);
    recording.add_dead(pid);
    let Some(process) = recording.process(pid) else {
        return Ok(None);
    };
    // The pid may have been reused, so `/proc/PID/maps` may be another process's.
    member::fill_from_segment(process, &snapshot, header, &[]);
    let end = dump::end_of(session, header).ns;
    let profile = Session {
        sampling: Sampling {
            engine: "timers".to_owned(),
            mode: Mode::Cpu,
            rate: u32::try_from(session.cpu.rate).unwrap_or(u32::MAX),
            process_ns: None,
            lost: 0,
            kernel_hidden: Some(KERNEL_HIDDEN_BY_TIMERS.to_owned()),
            fallbacks: Vec::new(),
        },
        format: CpuFormat::Cpu,
        has_clock: false,
        is_filtered: false,
        start_unix_ns: session.start_unix_ns,
        length: Duration::from_nanos(end.saturating_sub(session.start_ns)),
    };
    let description = Description {
        name: agent.name.clone(),
        ..Description::from_mappings(process)
    };
    let output = Output::open_for(prefix, output::CPU)?;
    let path = output.write(&description.name, pid, |number, file| {
        profile.write(process, &description, &Symbols::default(), number, file)
    })?;
    Ok(Some(Written {
        path,
        pid,
        title,
        samples: process.counts.samples,
        ns: process.cpu_ns(),
        remark: profile.remark(process, None),
        program: description.exe_without_build_id(process),
    }))
}
