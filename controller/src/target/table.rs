//! Memory for a process's table: before a session, and while it fills up.

use shm_protocol::Geometry;
use shm_protocol::layout::{
    BANK_HEADER_BYTES, EARLY_STEPS, HEADER_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, Node,
    RESERVE_STEPS, Record,
};
use shm_protocol::segment::Session;

use super::{Density, Error, NoRoom, Target, obstacle};
use crate::discovery::Agent;
use crate::process;
use crate::segment::{Head, Refusal, io_error};
use crate::text;

/// Share of a process's remaining address space that sampled objects may reserve.
const RANGE_SHARE: u64 = 16;
/// Parts of a table, of [`RESERVE_STEPS`], that are backed by memory at first where the process
/// cannot add any by itself, and a controller does.
const FIRST_STEPS: u8 = 4;

impl Target {
    /// Memory in the shared directory needed to start a session.
    pub fn first_bytes(&self) -> u64 {
        let g = Geometry::of_segment(self.segment_bytes);
        let steps = self.first_steps();
        let table = g.nodes_in(steps) as usize * size_of::<Node>()
            + g.records_in(steps) as usize * size_of::<Record>();
        (HEADER_BYTES + BANK_HEADER_BYTES + g.slot_bytes_in(steps) + table) as u64
    }

    /// Parts of the table that are backed by memory when a session begins: few where the process
    /// itself can add more when it needs them, otherwise all that it will have, or what lasts until
    /// the controller has looked again.
    fn first_steps(&self) -> u8 {
        let mut head = Head::new();
        let at_start = self
            .agent
            .segment
            .head(&mut head)
            .map(|header| header.seccomp());
        let is_free = at_start.is_ok_and(|at_start| process::seccomp(self.agent.pid) <= at_start);
        match self.session.controller_pid {
            _ if is_free && can_populate() => EARLY_STEPS,
            0 => RESERVE_STEPS,
            _ => FIRST_STEPS,
        }
    }

    /// Clears a bank for the next session.
    pub fn prepare(&mut self, density: Density) -> Result<(), Error> {
        let segment = &self.agent.segment;
        let mut head = Head::new();
        let header = segment.head(&mut head)?;
        let is_probe = density.thinning == Session::PROBE;
        let number = header
            .session()
            .map_or(1, |last| last.next_number(is_probe));
        obstacle(&self.agent, &header).map_or(Ok(()), Err)?;
        self.session.range_limit = process::address_space_left(self.agent.pid).map_or(0, |left| {
            // 0 would be no limit.
            (left / RANGE_SHARE).max(1)
        });
        self.session.number = number;
        self.session.interval = density.interval;
        self.session.thinning = density.thinning;
        self.steps = self.first_steps();
        let grown = segment.grow(self.segment_bytes as u64);
        let number = self.session.number;
        let prepared = grown.and_then(|()| segment.view().prepare_bank(number, self.steps));
        prepared.map_err(|error| match error.0 {
            libc::ENOSPC => self.no_room().into(),
            libc::EFBIG => Error::FileLimit,
            _ => Error::Prepare(io_error(error)),
        })
    }

    fn no_room(&self) -> NoRoom {
        let directory = &self.agent.segment.directory;
        NoRoom {
            directory: directory.path.clone(),
            needs: self.first_bytes(),
            free: directory.free_bytes().ok(),
        }
    }

    /// Gives the table more memory.
    pub(super) fn grow(&mut self) {
        let steps = self.steps.saturating_mul(2).min(RESERVE_STEPS);
        match self
            .agent
            .segment
            .view()
            .reserve_steps(self.session.number, steps)
        {
            Ok(()) => self.steps = steps,
            Err(error) => {
                self.full = true;
                let directory = text::path(&self.agent.segment.directory.path);
                self.warnings.push(format!(
                    "{}: its table cannot grow in {directory} ({}): further new stacks are counted \
                     together as [table full]; make room there, or move it with MEM_PROFILER_DIR",
                    self.agent.title(),
                    io_error(error)
                ));
            }
        }
    }
}

/// Whether a process can back more of its table with memory itself: since Linux 5.14.
fn can_populate() -> bool {
    let release = nix::sys::utsname::uname();
    let release = release
        .as_ref()
        .map(|name| name.release().to_string_lossy());
    let mut numbers = release.iter().flat_map(|release| {
        let parts = release.split(|c: char| !c.is_ascii_digit());
        parts.map(|part| part.parse().unwrap_or(0u32))
    });
    (numbers.next(), numbers.next()) >= (Some(5), Some(14))
}

/// Size of an agent's segment with tables, according to the segment.
pub(super) fn segment_bytes(agent: &Agent) -> Result<usize, Refusal> {
    let mut head = Head::new();
    let bytes = agent.segment.head(&mut head)?.segment_bytes();
    match usize::try_from(bytes) {
        Ok(bytes) if (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes) => Ok(bytes),
        _ => Err(Refusal::Size(bytes)),
    }
}
