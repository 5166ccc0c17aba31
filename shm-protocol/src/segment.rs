//! Segment files: created by the agent, opened by the controller.
//!
//! Both sides use plain system calls and allocate nothing, so the agent can create a segment before
//! its program has a heap. The controller never maps a segment: it reads with `pread` and writes
//! with `pwrite`, so a target that truncates or overwrites its file cannot make it fault.

// Decision 01: shared memory with plain system calls.
// Decision 06: writing one byte publishes a command.
mod creation;
mod session;
mod store;

pub use creation::{Tables, create, map_whole};
pub use session::{IntervalPeriod, Session};
pub use store::{Descriptor, Errno, Store};

use crate::bank::Geometry;
use crate::cpu::CpuParams;
use crate::layout::{
    AT_EXIT_CHECKED, AT_EXIT_SEEN, AT_EXIT_UNCHECKED, AT_EXIT_WAITS, BANK_HEADER_BYTES, BankHeader,
    CONTROL_BYTES, Control, HEADER_BYTES, IntervalEntry, IntervalLog, MAX_INTERVALS,
    MAX_RECORDED_THREADS, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, MODULES_OFFSET, ModuleTable, Node,
    PAGE, Params, Record, STATUS_OFFSET, Status, ThreadEntry, ThreadTable, reserved_units, step_of,
};
use core::mem::{offset_of, size_of};
use store::check;

/// Default directory of the segments.
pub const DEFAULT_DIR: &str = "/dev/shm";
/// Environment variable that names another directory.
pub const DIR_VARIABLE: &str = "MEM_PROFILER_DIR";
/// Prefix of segment files, which are named `mem_profiler.<pid>.<start time>.<n>`. `n`
/// distinguishes the programs that one process has executed in turn.
pub const FILE_PREFIX: &str = "mem_profiler.";

fn is_segment_size(bytes: usize) -> bool {
    (MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&bytes)
}

/// Open segment. Does not own the descriptor, which the caller closes.
#[derive(Clone, Copy, Debug)]
pub struct SegmentFile<F = Descriptor> {
    file: F,
    bytes: usize,
}

impl SegmentFile {
    /// Wraps an open descriptor of a file of `bytes` bytes, writable if commands are to be written.
    /// The caller has checked that it is a regular file with the right owner. Returns `None` if no
    /// segment has this size.
    #[must_use]
    pub fn new(fd: libc::c_int, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        (bytes == CONTROL_BYTES || is_segment_size(bytes)).then_some(Self {
            file: Descriptor(fd),
            bytes,
        })
    }

    /// Extends the file to `bytes` bytes, with room for tables. Contents stay; the new part is not
    /// committed.
    ///
    /// # Errors
    /// `EINVAL` if no segment has this size; errors of `ftruncate`.
    pub fn grown(self, bytes: usize) -> Result<Self, Errno> {
        if !is_segment_size(bytes) || self.bytes > bytes {
            return Err(Errno(libc::EINVAL));
        }
        if self.bytes < bytes {
            // SAFETY: the call takes no pointers.
            check(unsafe { libc::ftruncate(self.file.0, bytes as libc::off_t) })?;
        }
        Ok(Self { bytes, ..self })
    }

    /// Frees the memory of parts that no reader needs: slots, nodes and records that were never
    /// claimed, and the unused part of the path area. Must be called only for a segment of a dead
    /// process: writing to a page that is not committed may kill a process.
    ///
    /// # Errors
    /// Errors of `pread` and `fallocate`.
    pub fn trim(&self) -> Result<(), Errno> {
        if !self.has_tables() {
            return Ok(());
        }
        let geometry = self.geometry();
        for bank in 0..2 {
            let at = geometry.bank_offset(bank);
            let nodes = at + geometry.nodes_offset();
            let records = at + geometry.records_offset();
            let used = |field: usize, fixed: usize, size: usize| {
                let count = self.read_u32(at + field)? as usize;
                Ok::<usize, Errno>(count.saturating_add(fixed).saturating_mul(size))
            };
            let node_bytes = used(offset_of!(BankHeader, node_count), 2, size_of::<Node>())?;
            let record_bytes = used(offset_of!(BankHeader, record_count), 1, size_of::<Record>())?;
            self.free_between(at + geometry.slots_offset(), nodes)?;
            self.free_between(nodes.saturating_add(node_bytes), records)?;
            let codes = at + geometry.codes_offset();
            let code_bytes = used(offset_of!(BankHeader, code_words), 2, 4)?;
            self.free_between(records.saturating_add(record_bytes), codes)?;
            self.free_between(codes.saturating_add(code_bytes), at + geometry.bank_bytes)?;
        }
        let paths = self.read_u32(MODULES_OFFSET + offset_of!(ModuleTable, path_bytes))? as usize;
        self.free_between(
            MODULES_OFFSET + offset_of!(ModuleTable, paths) + paths,
            HEADER_BYTES,
        )
    }

    /// Frees the whole pages between two offsets.
    fn free_between(&self, from: usize, to: usize) -> Result<(), Errno> {
        let from = from.saturating_add(PAGE - 1) & !(PAGE - 1);
        let to = to & !(PAGE - 1);
        if from < to {
            self.punch(from, to - from)
        } else {
            Ok(())
        }
    }

    fn punch(&self, from: usize, len: usize) -> Result<(), Errno> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the call takes no pointers.
        check(unsafe {
            libc::fallocate(self.file.0, mode, from as libc::off_t, len as libc::off_t)
        })
        .map(|_| ())
    }
}

impl<F: Store> SegmentFile<F> {
    /// Returns a segment whose contents are the words of a model.
    #[cfg(all(test, loom))]
    pub(crate) fn over(file: F, bytes: usize) -> Self {
        Self { file, bytes }
    }

    /// Returns the size of the file when it was opened or grown.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if the segment has tables, not just its first three pages.
    #[must_use]
    pub fn has_tables(&self) -> bool {
        self.bytes > CONTROL_BYTES
    }

    /// Returns the layout of its banks.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        Geometry::of_segment(self.bytes)
    }

    /// Reads at an offset. Returns fewer bytes than requested only at the end of the file.
    ///
    /// # Errors
    /// Errors of `pread`.
    pub fn read_at(&self, offset: usize, buffer: &mut [u8]) -> Result<usize, Errno> {
        self.file.read_at(offset, buffer)
    }

    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
        self.file.write_at(offset, bytes)
    }

    fn write_word(&self, offset: usize, value: u64) -> Result<(), Errno> {
        self.write_at(offset, &value.to_le_bytes())
    }

    /// Clears the session's bank and commits the module table and `units` units of nodes, records
    /// and slots. The agent may commit more, up to `max_units` units.
    ///
    /// Memory that an earlier session used is overwritten with zeros, not freed. A thread that was
    /// stopped in the middle of a sample may still write there, and if the filesystem is full,
    /// writing to a page that is not committed would kill its process.
    ///
    /// # Errors
    /// `ENOSPC` if the filesystem is full. The session must not be published then.
    pub fn prepare_bank(&self, session: u64, units: u32, max_units: u32) -> Result<(), Errno> {
        let geometry = self.geometry();
        let base = geometry.bank_offset(session);
        self.file.reserve(0, HEADER_BYTES)?;
        self.empty_bank(base)?;
        self.file.reserve(base, BANK_HEADER_BYTES)?;
        self.reserve_units(session, units)?;
        self.limit_units(session, max_units)?;
        self.write_word(base + offset_of!(BankHeader, session), session)
    }

    /// Limits the number of units of a bank that the agent may commit.
    ///
    /// # Errors
    /// Errors of `pwrite`.
    pub fn limit_units(&self, session: u64, max_units: u32) -> Result<(), Errno> {
        let at = self.geometry().bank_offset(session) + offset_of!(BankHeader, max_units);
        self.write_at(at, &max_units.to_le_bytes())
    }

    /// Overwrites the used parts of a bank with zeros.
    fn empty_bank(&self, base: usize) -> Result<(), Errno> {
        let geometry = self.geometry();
        let mut reserved = [0];
        self.read_at(base + offset_of!(BankHeader, reserved_step), &mut reserved)?;
        let grown = self.read_u32(base + offset_of!(BankHeader, grown_units))?;
        let units = reserved_units(reserved[0]).max(grown);
        if units == 0 {
            // The bank was never used. Its holes read as zeros.
            return Ok(());
        }
        let nodes = self.used(
            base,
            offset_of!(BankHeader, node_count),
            geometry.nodes_in(units),
        )?;
        let records = offset_of!(BankHeader, record_count);
        let records = self.used(base, records, geometry.records_in(units))?;
        let codes = self.used(
            base,
            offset_of!(BankHeader, code_words),
            (geometry.codes / 4) as u32,
        )?;
        self.clear(base, BANK_HEADER_BYTES)?;
        self.clear(base + geometry.codes_offset(), codes * 4)?;
        self.clear(
            base + geometry.slots_offset(),
            geometry.slot_bytes_in(units),
        )?;
        self.clear(base + geometry.nodes_offset(), nodes * size_of::<Node>())?;
        self.clear(
            base + geometry.records_offset(),
            records * size_of::<Record>(),
        )
    }

    /// Returns the number of nodes or records in use, fixed ones included, or `limit` if it is
    /// lower.
    fn used(&self, base: usize, field: usize, limit: u32) -> Result<usize, Errno> {
        const FIXED: u32 = 2;
        Ok(self
            .read_u32(base + field)?
            .saturating_add(FIXED)
            .min(limit) as usize)
    }

    /// Overwrites a range with zeros.
    fn clear(&self, from: usize, len: usize) -> Result<(), Errno> {
        // Small, since it is part of the library's file. Not on the stack, which may be small: the
        // agent creates a segment on any stack on which a forked child allocates.
        static ZEROS: [u8; PAGE] = [0; PAGE];
        let mut cleared = 0;
        while cleared < len {
            let part = (len - cleared).min(ZEROS.len());
            self.write_at(from + cleared, &ZEROS[..part])?;
            cleared += part;
        }
        Ok(())
    }

    /// Commits at least `units` units of nodes and records, with their slots, then lets the agent
    /// use them.
    ///
    /// # Errors
    /// `ENOSPC` if the directory's filesystem is full; the agent continues with what it had.
    pub fn reserve_units(&self, session: u64, units: u32) -> Result<(), Errno> {
        let geometry = self.geometry();
        let base = geometry.bank_offset(session);
        let step = step_of(units.min(geometry.units));
        let units = reserved_units(step);
        let nodes = geometry.nodes_in(units) as usize * size_of::<Node>();
        let records = geometry.records_in(units) as usize * size_of::<Record>();
        let slots = geometry.slot_bytes_in(units);
        self.file.reserve(base + geometry.slots_offset(), slots)?;
        self.file
            .reserve(base + geometry.nodes_offset(), nodes.max(PAGE))?;
        self.file
            .reserve(base + geometry.records_offset(), records.max(PAGE))?;
        self.write_at(base + offset_of!(BankHeader, reserved_step), &[step])
    }

    fn read_u32(&self, offset: usize) -> Result<u32, Errno> {
        let mut bytes = [0; 4];
        self.read_at(offset, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Publishes the next epoch: writes its parameters, then its number. They apply from each
    /// thread's next allocation on. Returns the new epoch.
    ///
    /// Starts a session, or changes the interval or deadline of the running one (`session.number`
    /// unchanged). The bank must have been prepared.
    ///
    /// # Errors
    /// Errors of `pwrite`.
    pub fn publish(&self, session: &Session) -> Result<u32, Errno> {
        let epoch = self.next_epoch(session.is_probe())?;
        let at = offset_of!(Control, params) + (epoch as usize & 1) * size_of::<Params>();
        for (field, value) in [
            (offset_of!(Params, session), session.number),
            (offset_of!(Params, interval), session.interval),
            (offset_of!(Params, deadline_ns), session.deadline_ns),
            (offset_of!(Params, start_ns), session.start_ns),
            (offset_of!(Params, start_unix_ns), session.start_unix_ns),
            (offset_of!(Params, controller_pid), session.controller_pid),
            (offset_of!(Params, range_limit), session.range_limit),
            (offset_of!(Params, thinning), session.thinning),
            (offset_of!(Params, max_overhead), session.max_overhead),
        ] {
            self.write_word(at + field, value)?;
        }
        let cpu = offset_of!(Control, cpu) + (epoch as usize & 1) * size_of::<CpuParams>();
        self.write_word(cpu + offset_of!(CpuParams, rate), session.cpu.rate)?;
        self.write_word(cpu + offset_of!(CpuParams, avoid), session.cpu.avoid)?;
        let [lowest, others @ ..] = epoch.to_le_bytes();
        self.write_at(offset_of!(Control, last_epoch), &epoch.to_le_bytes())?;
        self.write_at(offset_of!(Control, epoch) + 1, &others)?;
        self.write_at(offset_of!(Control, epoch), &[lowest])?;
        Ok(epoch)
    }

    /// Writes the interval history of a session: the last [`MAX_INTERVALS`] of `periods`, and the
    /// smallest interval of all.
    ///
    /// # Errors
    /// Errors of `pwrite`.
    pub fn log_intervals(
        &self,
        session: u64,
        periods: &[IntervalPeriod],
        least: u64,
    ) -> Result<(), Errno> {
        const ENTRY: usize = size_of::<IntervalEntry>();
        let log = self.geometry().bank_offset(session) + offset_of!(BankHeader, intervals);
        let kept = &periods[periods.len().saturating_sub(MAX_INTERVALS)..];
        let mut bytes = [0; MAX_INTERVALS * ENTRY];
        for (period, entry) in kept.iter().zip(bytes.chunks_exact_mut(ENTRY)) {
            let overhead = period.overhead.map_or(0, |share| u64::from(share) + 1);
            let words = [period.from_ns, period.interval, overhead];
            for (word, bytes) in words.iter().zip(entry.chunks_exact_mut(8)) {
                bytes.copy_from_slice(&word.to_le_bytes());
            }
        }
        let entries = log + offset_of!(IntervalLog, entries);
        self.write_at(entries, &bytes[..kept.len() * ENTRY])?;
        self.write_word(log + offset_of!(IntervalLog, least), least)?;
        self.write_word(log + offset_of!(IntervalLog, count), kept.len() as u64)
    }

    /// Writes the name of a thread, given its index in the session's [`ThreadTable`].
    ///
    /// # Errors
    /// Errors of `pwrite`.
    pub fn name_thread(&self, session: u64, index: usize, name: [u8; 16]) -> Result<(), Errno> {
        let table = self.geometry().bank_offset(session) + offset_of!(BankHeader, threads);
        let entries = table + offset_of!(ThreadTable, entries);
        let entry = entries + index.min(MAX_RECORDED_THREADS - 1) * size_of::<ThreadEntry>();
        self.write_at(entry + offset_of!(ThreadEntry, name), &name)
    }

    /// Turns sampling off. The session's data are kept; later allocations and frees are not
    /// counted.
    ///
    /// # Errors
    /// Errors of `pwrite`.
    pub fn stop(&self) -> Result<(), Errno> {
        self.write_at(offset_of!(Control, epoch), &[0])
    }

    /// Records the time when a session ended.
    ///
    /// # Errors
    /// Errors of `pwrite`.
    pub fn mark_ended(&self, session: u64, at_ns: u64) -> Result<(), Errno> {
        self.write_word(STATUS_OFFSET + offset_of!(Status, ended_ns), at_ns)?;
        self.write_word(STATUS_OFFSET + offset_of!(Status, ended_session), session)
    }

    /// Records that a session's profile was written, so that it need not be recovered.
    ///
    /// # Errors
    /// Errors of `pwrite`.
    pub fn mark_collected(&self, session: u64) -> Result<(), Errno> {
        self.write_word(
            STATUS_OFFSET + offset_of!(Status, collected_session),
            session,
        )
    }

    /// Returns true if the process waits at its exit for a leak check, and acknowledges that in the
    /// segment.
    ///
    /// # Errors
    /// Errors of `pread` and `pwrite`.
    pub fn waits_at_exit(&self) -> Result<bool, Errno> {
        let state = self.at_exit()?;
        if state == AT_EXIT_WAITS {
            self.write_word(STATUS_OFFSET + offset_of!(Status, at_exit), AT_EXIT_SEEN)?;
        }
        Ok(state == AT_EXIT_WAITS || state == AT_EXIT_SEEN)
    }

    /// Returns true if the process wants no leak check at exit.
    ///
    /// # Errors
    /// Errors of `pread`.
    pub fn exits_unchecked(&self) -> Result<bool, Errno> {
        Ok(self.at_exit()? == AT_EXIT_UNCHECKED)
    }

    fn at_exit(&self) -> Result<u64, Errno> {
        let mut word = [0; 8];
        self.read_at(STATUS_OFFSET + offset_of!(Status, at_exit), &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Releases a process that waits at its exit.
    ///
    /// # Errors
    /// Errors of `pwrite`.
    pub fn let_exit(&self) -> Result<(), Errno> {
        self.write_word(STATUS_OFFSET + offset_of!(Status, at_exit), AT_EXIT_CHECKED)
    }

    /// Returns the number of the next epoch. Skips one if both the last session and the next are
    /// probes, so that the parameters of the last real session are kept.
    fn next_epoch(&self, is_probe: bool) -> Result<u32, Errno> {
        let last = self.read_u32(offset_of!(Control, last_epoch))?;
        let at = offset_of!(Control, params) + (last as usize & 1) * size_of::<Params>();
        let mut thinning = [0; 8];
        self.read_at(at + offset_of!(Params, thinning), &mut thinning)?;
        let next = Control::after(last);
        Ok(
            if is_probe && u64::from_le_bytes(thinning) == Session::PROBE {
                Control::after(next)
            } else {
                next
            },
        )
    }
}
