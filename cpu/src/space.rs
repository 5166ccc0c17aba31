//! Executable mappings of a process, and the unwind rules found so far.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use profile::maps::{Entry, with_newlines};
use profile::opening;
use unwind::arch::{Machine, Native, Target};
use unwind::compile::{Scratch, compile, function_start};
use unwind::rule::Rule;

use crate::mixer::IntMap;
use crate::module::{Loaded, Tables};
use crate::source::Source;

/// Maximum number of executable mappings that are read of a process.
const MAX_MAPPED: usize = 1 << 16;
/// Maximum size in bytes of the tables of all modules together.
const MAX_TABLE_BYTES: usize = 512 << 20;
/// Minimum time between two readings of the maps because of unknown code: an absolute one, and a
/// multiple of the time that the last reading took, so that the maps of large processes are read
/// less often.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(1);
const READ_COST_FACTOR: u32 = 20;

/// Minimum size in bytes of code whose tables take long to read.
const LARGE_CODE_BYTES: u64 = 8 << 20;

/// Maximum number of cached return addresses.
const MAX_CALL_SITES: usize = 1 << 16;

/// Kind of code before a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallSite {
    /// Call of the function at this address.
    Known(u64),
    /// Call with an unknown target, or unreadable bytes.
    Unknown,
    /// Code that the process has generated.
    Generated,
}

/// Identity of a mapped file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// Inode; 0 if no file is mapped.
    pub inode: u64,
}

/// Range of executable memory.
#[derive(Clone)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Address after the last.
    pub end: u64,
    /// Offset of `start` in the file.
    pub offset: u64,
    /// File that is mapped.
    pub file: FileId,
    /// Path of the file, or the kernel's name in brackets.
    pub path: Rc<[u8]>,
    /// Unwind tables and load bias; `None` before they are first needed.
    tables: Option<(Rc<Tables>, u64)>,
    /// Build id of the file, if the caller has read it.
    known_build_id: Option<Rc<[u8]>>,
}

impl Range {
    /// Returns a range that maps a file.
    pub fn new(start: u64, end: u64, offset: u64, file: FileId, path: &[u8]) -> Self {
        Self {
            start,
            end,
            offset,
            file,
            path: path.into(),
            tables: None,
            known_build_id: None,
        }
    }

    /// Returns a range of a module whose build id is known.
    #[must_use]
    pub fn of_module(start: u64, end: u64, offset: u64, path: &[u8], build_id: &[u8]) -> Self {
        Self {
            known_build_id: Some(build_id.into()),
            ..Self::new(start, end, offset, FileId::default(), path)
        }
    }

    /// Returns true if the process has generated the code: no file is mapped there. Perf events
    /// report such mappings as `//anon`.
    pub fn is_generated(&self) -> bool {
        self.file.inode == 0 && (self.path.is_empty() || &*self.path == b"//anon")
    }

    /// Returns true if reading its tables takes milliseconds.
    pub fn is_large(&self) -> bool {
        self.end.saturating_sub(self.start) >= LARGE_CODE_BYTES
    }

    /// Returns the build id of its file; empty if not read or absent.
    pub fn build_id(&self) -> &[u8] {
        let tables = self.tables.as_ref();
        let known_build_id = self.known_build_id.as_deref().unwrap_or_default();
        tables.map_or(known_build_id, |(tables, _)| tables.build_id())
    }
}

/// Tables of all files read so far, shared by processes.
#[derive(Default)]
pub struct Library {
    files: HashMap<FileId, Rc<Tables>>,
    vdso: Option<Rc<Tables>>,
    bytes: usize,
}

impl Library {
    /// Returns the tables of a range; empty if its file cannot be read.
    fn tables(&mut self, pid: i32, range: &Range) -> Rc<Tables> {
        if &*range.path == b"[vdso]" {
            let vdso = self.vdso.get_or_insert_with(|| Rc::new(own_vdso()));
            return Rc::clone(vdso);
        }
        if range.file.inode == 0 {
            return Rc::default();
        }
        if let Some(tables) = self.files.get(&range.file) {
            return Rc::clone(tables);
        }
        let mut tables = open(pid, range).map_or_else(Tables::default, |file| Tables::read(&file));
        if self.bytes + tables.size() > MAX_TABLE_BYTES {
            // Existing tables are in use and stay. Stacks are truncated at code of the new module.
            tables = tables.without_frames();
        }
        self.bytes += tables.size();
        let tables = Rc::new(tables);
        self.files.insert(range.file, Rc::clone(&tables));
        tables
    }
}

/// Opens the file of a range: through the process's mapping if that is allowed, otherwise by its
/// name.
pub fn open(pid: i32, range: &Range) -> Option<File> {
    let pid = proc::living_thread(pid);
    let mapped = format!("/proc/{pid}/map_files/{:x}-{:x}", range.start, range.end);
    if let Ok(file) = opening::regular(mapped.as_ref()) {
        return Some(file);
    }
    let path = Path::new(OsStr::from_bytes(&range.path));
    let inside = path.strip_prefix("/").ok()?;
    let roots = [format!("/proc/{pid}/root"), "/".to_owned()];
    let has_inode = |file: &File| file.metadata().is_ok_and(|m| m.ino() == range.file.inode);
    let mut files = roots
        .iter()
        .filter_map(|root| opening::regular(&Path::new(root).join(inside)).ok());
    files.find(has_inode)
}

/// Returns the tables of the vdso, which the kernel maps into every process, this one included.
fn own_vdso() -> Tables {
    let text = std::fs::read("/proc/self/maps").unwrap_or_default();
    let vdso = Entry::all(&text).find(|entry| entry.path == b"[vdso]");
    let read = vdso.and_then(|vdso| {
        let size = usize::try_from(vdso.end.checked_sub(vdso.start)?).ok()?;
        let mut bytes = vec![0; size.min(1 << 20)];
        let read = File::open("/proc/self/mem")
            .ok()?
            .read_at(vdso.start, &mut bytes);
        bytes.truncate(read);
        Some(Tables::read(&bytes[..]))
    });
    read.unwrap_or_default()
}

/// Executable memory of a process.
#[derive(Clone, Default)]
pub struct Space {
    pid: i32,
    /// Ranges by address, without overlap.
    ranges: Vec<Range>,
    /// Calls before return addresses in files' code.
    call_sites: IntMap<u64, Option<CallSite>>,
    /// Number of changes of the mappings.
    changes: u64,
    /// True if the maps were read since the last change.
    is_fresh: bool,
    /// Earliest time at which the maps are read again even if `is_fresh`, because the ptrace engine
    /// is not notified when libraries are loaded.
    next_refresh: Option<Instant>,
}

impl Space {
    /// Reads the current mappings of a process.
    pub fn of(pid: i32) -> Self {
        let mut space = Self {
            pid,
            ..Self::default()
        };
        space.refresh();
        space
    }

    /// Creates an empty space, for a process that has just executed a program.
    pub fn empty(pid: i32) -> Self {
        Self {
            pid,
            ..Self::default()
        }
    }

    /// Returns a copy for a process that was just forked from this one.
    pub fn copy_for_fork(&self, pid: i32) -> Self {
        Self {
            pid,
            is_fresh: false,
            ..self.clone()
        }
    }

    /// Returns the ranges, by address.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Returns the process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns a number that changes whenever the mappings do.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the start addresses of the large ranges.
    pub fn large_range_starts(&self) -> Vec<u64> {
        let large = self.ranges.iter().filter(|range| range.is_large());
        large.map(|range| range.start).collect()
    }

    /// Loads the tables of the range that contains an address.
    pub fn prepare(&mut self, address: u64, library: &mut Library) {
        if let Some(index) = self.position(address) {
            self.load(index, library);
        }
    }

    /// Reads the current mappings, if the process still exists.
    fn refresh(&mut self) {
        let began = Instant::now();
        let text = proc::maps(self.pid).unwrap_or_default();
        let entries = Entry::all(&text).filter(|entry| entry.permissions.contains(&b'x'));
        for entry in entries.take(MAX_MAPPED) {
            let file = FileId {
                device: entry.device,
                inode: entry.inode,
            };
            let path = with_newlines(entry.path);
            self.map(Range::new(
                entry.start,
                entry.end,
                entry.file_offset,
                file,
                &path,
            ));
        }
        self.is_fresh = true;
        let cost = began.elapsed();
        self.next_refresh =
            Some(Instant::now() + MIN_READ_INTERVAL.max(cost.saturating_mul(READ_COST_FACTOR)));
    }

    /// Adds a mapping.
    pub fn map(&mut self, range: Range) {
        if range.start >= range.end || self.ranges.len() >= MAX_MAPPED {
            return;
        }
        let first = self
            .ranges
            .partition_point(|known| known.end <= range.start);
        let last = self.ranges.partition_point(|known| known.start < range.end);
        if let [known] = &self.ranges[first..last]
            && (known.start, known.end) == (range.start, range.end)
            && (known.offset, known.file) == (range.offset, range.file)
        {
            return;
        }
        self.is_fresh = false;
        self.changes += 1;
        self.call_sites.clear();
        self.ranges.splice(first..last, [range]);
    }

    /// Replaces whatever was mapped at a range.
    pub fn replace(&mut self, range: Range) {
        let start = range.start;
        let end = range.end;
        self.ranges
            .retain(|known| known.end <= start || end <= known.start);
        self.map(range);
    }

    /// Returns the index of the range that contains an address. On a miss, the maps are read again,
    /// unless that was done too recently.
    pub fn find(&mut self, address: u64) -> Option<usize> {
        let found = self.position(address);
        let may_be_old = || self.next_refresh.is_none_or(|next| Instant::now() >= next);
        if found.is_some() || self.is_fresh && !may_be_old() {
            return found;
        }
        self.refresh();
        self.position(address)
    }

    fn position(&self, address: u64) -> Option<usize> {
        let index = self.ranges.partition_point(|range| range.end <= address);
        let range = self.ranges.get(index)?;
        (range.start <= address).then_some(index)
    }

    /// Allows the next miss to read the maps again. Called from time to time.
    pub fn allow_refresh(&mut self) {
        self.is_fresh = false;
    }

    /// Returns the bytes before an address; zeros if they are unreadable.
    pub fn bytes_before(&self, address: u64) -> [u8; 8] {
        let mut bytes = [0; 8];
        capture::read_memory(self.pid, address.wrapping_sub(8), &mut bytes);
        bytes
    }

    /// Reads memory of the process. Returns true if all of it was readable.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        capture::read_memory(self.pid, address, bytes) == bytes.len()
    }

    /// Returns a word of its memory.
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)
            .then(|| u64::from_ne_bytes(bytes))
    }

    /// Returns true if two addresses are in the same range.
    pub fn are_in_one_range(&self, first: u64, second: u64) -> bool {
        self.position(first)
            .is_some_and(|index| self.position(second) == Some(index))
    }

    /// Returns true if the tables describe a function that starts in `first..=last`. The tables of
    /// that range must be loaded.
    pub fn has_function(&self, first: u64, last: u64) -> bool {
        let module = self.module(last.wrapping_add(1));
        module.is_none_or(|module| {
            let [first, last] = [first, last].map(|address| address.wrapping_sub(module.bias));
            module.tables.has_function(first, last)
        })
    }

    /// Returns true if the tables describe the function that contains a return address. Returns
    /// `None` if no code is mapped there.
    pub fn function(&mut self, ip: u64, library: &mut Library) -> Option<bool> {
        let index = self.find(ip.wrapping_sub(1))?;
        self.load(index, library);
        Some(function_start(&self.module(ip)?, ip).is_some())
    }

    /// Returns the kind of code before a return address, or `None` if it is not a call. Generated
    /// code is not examined, since it changes.
    pub fn call_site(&mut self, ip: u64) -> Option<CallSite> {
        let index = self.find(ip.wrapping_sub(1))?;
        if self.ranges[index].is_generated() {
            return Some(CallSite::Generated);
        }
        if let Some(known) = self.call_sites.get(&ip) {
            return *known;
        }
        let before = self.bytes_before(ip);
        let found = match Native::call(before, ip) {
            Some(Target::Known(to)) => Some(CallSite::Known(to)),
            Some(Target::Unknown) => Some(CallSite::Unknown),
            None => (before == [0; 8]).then_some(CallSite::Unknown),
        };
        if self.call_sites.len() >= MAX_CALL_SITES {
            self.call_sites.clear();
        }
        self.call_sites.insert(ip, found);
        found
    }

    /// Loads the tables of a range.
    fn load(&mut self, index: usize, library: &mut Library) {
        let pid = self.pid;
        let range = &mut self.ranges[index];
        if range.tables.is_none() {
            let tables = library.tables(pid, range);
            let bias = tables
                .bias(range.start, range.offset)
                .unwrap_or(range.start);
            range.tables = Some((tables, bias));
        }
    }

    /// Returns the module that holds a return address, if its tables are loaded.
    pub fn module(&self, ip: u64) -> Option<Loaded<'_>> {
        let range = &self.ranges[self.position(ip.wrapping_sub(1))?];
        let (tables, bias) = range.tables.as_ref()?;
        Some(Loaded {
            tables,
            bias: *bias,
            pid: self.pid,
        })
    }

    /// Returns the rule of a return address, or `None` if no code is mapped there.
    pub fn rule(&mut self, ip: u64, library: &mut Library, scratch: &mut Scratch) -> Option<Rule> {
        let index = self.find(ip.wrapping_sub(1))?;
        self.load(index, library);
        let module = self.module(ip)?;
        let rule = module.tables.rule(ip.wrapping_sub(module.bias), || {
            compile(&module, ip, scratch)
        });
        Some(rule)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn newlines_in_paths_are_decoded() {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("a b\n\nc");
        // `cp` writes the file: children that other tests fork could inherit a descriptor of this
        // process, and a file that is open for writing cannot be executed.
        let mut copy = Command::new("cp");
        let copied = copy.arg("/bin/cat").arg(&program).status();
        assert!(copied.expect("cp").success());
        let mut command = Command::new(&program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        // When the program answers, it is mapped.
        let mut input = child.stdin.take().expect("a pipe");
        let mut output = [0];
        input.write_all(b"x").expect("its input");
        let answer = child.stdout.as_mut().expect("a pipe");
        answer.read_exact(&mut output).expect("its output");
        let space = Space::of(child.id().cast_signed());
        let path = program.as_os_str().as_bytes();
        let is_there = space.ranges().iter().any(|range| &*range.path == path);
        drop(input);
        child.wait().expect("a child");
        assert!(is_there);
    }
}
