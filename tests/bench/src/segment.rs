//! Counts of an agent, read from its segment like the controller does.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shm_protocol::clock;
use shm_protocol::layout::{BANK_HEADER_BYTES, CONTROL_BYTES, HEADER_BYTES, Node, Record};
use shm_protocol::segment::{FILE_PREFIX, SegmentFile, Session};
use shm_protocol::snapshot::{BankSummary, Header, StackSums, Table};

use crate::tools::Tools;

/// Maximum time for an agent to create its segment.
const SEGMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// An agent's segment.
pub struct Segment {
    path: PathBuf,
    file: File,
}

/// Counts of a session so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Number of samples.
    pub samples: u64,
    /// Samples counted under `[table full]`.
    pub table_full: u64,
    /// Samples that were not followed to their free.
    pub untracked: u64,
    /// Samples with a truncated stack.
    pub truncated: u64,
}

impl Segment {
    /// Returns the segments in our directory: of a process that has ended, or of the one that runs.
    pub fn all(tools: &Tools) -> Result<Vec<Self>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(tools.segments())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(FILE_PREFIX) {
                let file = OpenOptions::new().read(true).write(true).open(&path)?;
                found.push(Self { path, file });
            }
        }
        Ok(found)
    }

    /// Opens the segment of a process, once it exists and is complete.
    pub fn of(tools: &Tools, pid: u32) -> Result<Option<Self>> {
        let found = Self::all(tools)?
            .into_iter()
            .find(|segment| segment.pid().is_some_and(|its| its == pid));
        Ok(found)
    }

    fn pid(&self) -> Option<u32> {
        let head = self.head().ok()?;
        let header = Header::new(&head, self.file().ok()?.bytes()).ok()?;
        Some(header.pid())
    }

    /// Reads the head of the segment; zeros where it has no tables yet.
    fn head(&self) -> Result<Vec<u8>> {
        let mut head = vec![0; HEADER_BYTES];
        if self.file()?.read_at(0, &mut head)? < CONTROL_BYTES {
            bail!("{} ends early", self.path.display());
        }
        Ok(head)
    }

    /// Returns the file, for commands and reading.
    pub fn file(&self) -> Result<SegmentFile> {
        let bytes = self.file.metadata()?.len();
        SegmentFile::new(self.file.as_raw_fd(), bytes)
            .with_context(|| format!("{}: no segment has this size", self.path.display()))
    }

    /// Returns the last session, or `None` before the first.
    pub fn session(&self) -> Result<Option<Session>> {
        let head = self.head()?;
        let header = Header::new(&head, self.file()?.bytes())?;
        Ok(header.session())
    }

    /// Starts the next session, with memory behind `units` of the table's nodes and records; gives
    /// its number.
    pub fn start(&self, interval: u64, units: u32) -> Result<u64> {
        let number = self.session()?.map_or(0, |session| session.number) + 1;
        let head = self.head()?;
        let file = self.file()?;
        let bytes = Header::new(&head, file.bytes())?.segment_bytes();
        let file = file.grown(usize::try_from(bytes)?)?;
        file.prepare_bank(number, units, 0)?;
        file.publish(&Session {
            number,
            interval,
            deadline_ns: 0,
            start_ns: clock::now_ns(),
            start_unix_ns: clock::unix_ns(),
            controller_pid: u64::from(std::process::id()),
            range_limit: 0,
            thinning: 0,
            max_overhead: 0,
            cpu: Default::default(),
        })?;
        Ok(number)
    }

    /// Returns the counts of the session with this number; zeros if the bank is another session's.
    pub fn counts(&self, session: u64) -> Result<Counts> {
        let base = self.file()?.geometry().bank_offset(session);
        let head = self.read(base, BANK_HEADER_BYTES)?;
        let summary = BankSummary::new(&head, self.file()?.geometry())?;
        if summary.session() != session {
            return Ok(Counts::default());
        }
        Ok(Counts {
            samples: summary.totals().samples,
            table_full: summary.table_full(),
            untracked: summary.untracked(),
            truncated: summary
                .counters()
                .filter(|(counter, _)| counter.name.starts_with("truncated_"))
                .map(|(_, count)| count)
                .sum(),
        })
    }

    /// Reads the whole table of a session as a dump does; gives each stack, leaf first, to
    /// `each`.
    pub fn stacks(&self, session: u64, mut each: impl FnMut(&[u64], StackSums)) -> Result<()> {
        let geometry = self.file()?.geometry();
        let base = geometry.bank_offset(session);
        let head = self.read(base, BANK_HEADER_BYTES)?;
        let summary = BankSummary::new(&head, geometry)?;
        let nodes = summary.nodes() * size_of::<Node>();
        let records = summary.records() * size_of::<Record>();
        let nodes = self.read(base + geometry.nodes_offset(), nodes)?;
        let records = self.read(base + geometry.records_offset(), records)?;
        let table = Table::new(&nodes, &records);
        let mut stack = Vec::new();
        for record in table.records().filter(|record| !record.is_empty()) {
            stack.clear();
            table.stack(record.node, |address| stack.push(address))?;
            each(&stack, record.sums(0));
        }
        Ok(())
    }

    fn read(&self, offset: usize, bytes: usize) -> Result<Vec<u8>> {
        let mut buffer = vec![0; bytes];
        let read = self.file()?.read_at(offset, &mut buffer)?;
        if read < bytes {
            bail!("{} ends early", self.path.display());
        }
        Ok(buffer)
    }

    /// Removes the file.
    pub fn remove(self) -> Result<()> {
        std::fs::remove_file(&self.path)
            .with_context(|| format!("cannot remove {}", self.path.display()))
    }
}

/// Starts a session in a process that has just been started, as the controller does. All
/// of the table has memory: nobody is there to add some.
pub fn start(tools: &Tools, pid: u32, interval: u64) -> Result<()> {
    let deadline = Instant::now() + SEGMENT_TIMEOUT;
    loop {
        if let Some(segment) = Segment::of(tools, pid)? {
            return segment.start(interval, u32::MAX).map(|_| ());
        }
        ensure!(Instant::now() < deadline, "{pid} has no agent that works");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Adds up the counts of the segments that agents left, and removes these. Returns `None` if there
/// are none.
pub fn collect(tools: &Tools) -> Result<Option<Counts>> {
    let mut all = None;
    for segment in Segment::all(tools)? {
        if let Some(session) = segment.session()? {
            let counts = segment.counts(session.number)?;
            let sum: &mut Counts = all.get_or_insert_default();
            sum.samples += counts.samples;
            sum.table_full += counts.table_full;
            sum.untracked += counts.untracked;
            sum.truncated += counts.truncated;
        }
        segment.remove()?;
    }
    Ok(all)
}
