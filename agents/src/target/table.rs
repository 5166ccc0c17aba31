//! Gives a process's table memory, before a session and as the table fills up. Memory is added in
//! units of fixed size ([`Geometry`]).

use shm_protocol::Geometry;
use shm_protocol::layout::{BANK_HEADER_BYTES, HEADER_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES};
use shm_protocol::segment::Session;

use super::{Density, Error, NoRoom, Target, obstacle};
use crate::cgroup;
use crate::discovery::Agent;
use crate::process;
use crate::segment::{Head, Refusal, io_error};
use crate::text;

/// Maximum part of a process's remaining address space that sampled objects reserve: 1/16.
const RANGE_DIVISOR: u64 = 16;
/// Initial size of a table that the process cannot enlarge itself, in bytes. It lasts until the
/// controller's next poll.
const FIRST_BYTES: u64 = 2 << 20;
/// Size of a table that neither the process nor a controller can enlarge, in bytes.
const ALONE_BYTES: u64 = 32 << 20;
/// Number of units up to which a table is doubled when it is half full; larger ones grow by a
/// quarter.
const MAX_DOUBLED_UNITS: u32 = 16;
/// Maximum part of the available memory that one step gives to a table: 1/8.
const MEMORY_DIVISOR: u64 = 8;

impl Target {
    /// Returns the memory needed in the shared directory to start a session, in bytes.
    pub fn first_bytes(&self) -> u64 {
        let geometry = self.geometry();
        let table = geometry.bytes_in(self.first_units(&geometry));
        (HEADER_BYTES + BANK_HEADER_BYTES + table) as u64
    }

    /// Returns the layout of the segment with tables.
    pub(super) fn geometry(&self) -> Geometry {
        Geometry::of_segment(self.segment_bytes)
    }

    /// Returns the number of units that are backed by memory when a session starts. One is enough
    /// if the process can add more itself. Otherwise the table must last until the controller polls
    /// again, or, without a controller, for the whole session.
    fn first_units(&self, geometry: &Geometry) -> u32 {
        let mut head = Head::new();
        let at_start = self
            .agent
            .segment
            .head(&mut head)
            .map(|header| header.seccomp());
        let is_free = at_start.is_ok_and(|at_start| proc::seccomp(self.agent.pid) <= at_start);
        match self.session.controller_pid {
            _ if is_free && can_populate() => 1,
            0 => geometry.units_within(ALONE_BYTES),
            _ => geometry.units_within(FIRST_BYTES),
        }
    }

    /// Prepares a bank for the next session.
    pub fn prepare(&mut self, density: Density) -> Result<(), Error> {
        let segment = &self.agent.segment;
        let mut head = Head::new();
        let header = segment.head(&mut head)?;
        let is_probe = density.thinning == Session::PROBE;
        let number = header
            .session()
            .map_or(1, |last| last.next_number(is_probe));
        if let Some(obstacle) = obstacle(&self.agent, &header) {
            return Err(obstacle);
        }
        if let Some(why) = process::shortage(self.agent.pid) {
            return Err(Error::Shortage(why));
        }
        self.session.range_limit = proc::address_space_left(self.agent.pid).map_or(0, |left| {
            // A limit of 0 would mean no limit.
            (left / RANGE_DIVISOR).max(1)
        });
        self.session.number = number;
        self.session.interval = density.interval;
        self.session.thinning = density.thinning;
        let geometry = self.geometry();
        self.units = self.first_units(&geometry);
        let max_bytes = match self.session.controller_pid {
            0 => ALONE_BYTES.min(self.memory_left()),
            _ => self.memory_left(),
        };
        let max_units = geometry.units_within(max_bytes);
        let grown = segment.grow(self.segment_bytes as u64);
        let number = self.session.number;
        let prepared = grown.and_then(|()| {
            segment
                .view()
                .prepare_bank(number, self.units, max_units.max(self.units))
        });
        prepared.map_err(|error| match error.0 {
            libc::ENOSPC => self.no_room().into(),
            libc::EFBIG => Error::FileLimit,
            libc::EOPNOTSUPP => Error::Unreserved(segment.directory.path.clone()),
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

    /// Returns the memory that the table may take now: a small part of what is available on the
    /// machine, in its control groups and in the shared directory.
    fn memory_left(&self) -> u64 {
        let machine = proc::available_memory().unwrap_or(u64::MAX);
        let group = cgroup::room(self.agent.pid).unwrap_or(u64::MAX);
        let directory = self.agent.segment.directory.free_bytes();
        machine.min(group).min(directory.unwrap_or(u64::MAX)) / MEMORY_DIVISOR
    }

    /// Enlarges the table, unless too little memory is left.
    pub(super) fn grow(&mut self) {
        let geometry = self.geometry();
        let added = if self.units < MAX_DOUBLED_UNITS {
            self.units
        } else {
            self.units / 4
        };
        let units = (self.units + added.max(1)).min(geometry.units);
        let needed = (geometry.bytes_in(units) - geometry.bytes_in(self.units)) as u64;
        let view = self.agent.segment.view();
        let left = self.memory_left();
        if needed > left {
            // Keeps the agent from adding units, too.
            let _ = view.limit_units(self.session.number, self.units);
            return self.keep_size("there is too little memory left");
        }
        let max_units =
            geometry.units_within((geometry.bytes_in(self.units) as u64).saturating_add(left));
        let grown = view.reserve_units(self.session.number, units);
        match grown.and_then(|()| view.limit_units(self.session.number, max_units)) {
            Ok(()) => self.units = units,
            Err(error) => self.keep_size(&io_error(error).to_string()),
        }
    }

    /// Leaves the table at its size, and warns with the reason.
    fn keep_size(&mut self, why: &str) {
        self.is_table_fixed = true;
        let directory = text::path(&self.agent.segment.directory.path);
        self.warnings.push(format!(
            "{}: its table cannot grow in {directory} ({why}): make room there, or use a larger -c",
            self.agent.title(),
        ));
    }
}

/// Returns true if a process can add memory to its table itself (`MADV_POPULATE_WRITE`, Linux 5.14
/// and later).
fn can_populate() -> bool {
    let system = nix::sys::utsname::uname();
    let release = system.as_ref().map(|name| name.release().to_string_lossy());
    let mut numbers = release.iter().flat_map(|release| {
        let parts = release.split(|c: char| !c.is_ascii_digit());
        parts.map(|part| part.parse().unwrap_or(0u32))
    });
    (numbers.next(), numbers.next()) >= (Some(5), Some(14))
}

/// Returns the size of an agent's segment with tables, as the segment states it.
pub(super) fn segment_bytes(agent: &Agent) -> Result<usize, Refusal> {
    let mut head = Head::new();
    let bytes = agent.segment.head(&mut head)?.segment_bytes();
    match usize::try_from(bytes) {
        Ok(bytes) if (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes) => Ok(bytes),
        _ => Err(Refusal::Size(bytes)),
    }
}
