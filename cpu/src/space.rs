//! The code of a process: what is mapped where, and the unwind rules found so far.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use heap_format::maps::{Entry, with_newlines};
use heap_format::opening;
use unwind::arch::{Machine, Native, Target};
use unwind::compile::{Scratch, compile, function};
use unwind::rule::Rule;

use crate::mixer::ByAddress;
use crate::module::{Loaded, Tables};
use crate::source::Source;

/// Maximum number of mappings of code that a process is believed to have.
const MOST_MAPPED: usize = 1 << 16;
/// Maximum number of bytes of tables that are kept of all modules.
const MOST_BYTES: usize = 512 << 20;
/// Minimum time between readings of the maps for missing code, and the share of the time that they
/// may take: large processes are examined less often.
const AGAIN: Duration = Duration::from_millis(1);
const SHARE: u32 = 20;

/// Bytes of code from which on reading its tables takes long.
const LARGE: u64 = 8 << 20;

/// Addresses of which it is remembered whether they follow a call.
const MOST_CALLERS: usize = 1 << 16;

/// A place that a function may return to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Behind a call of the function at this address.
    Of(u64),
    /// After a call whose instruction does not say where it goes, or whose bytes cannot be read.
    OfAny,
    /// In code that the process has made itself.
    Generated,
}

/// Device and inode of a file.
pub type FileId = ((u32, u32), u64);

/// A range of executable memory.
#[derive(Clone)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// End.
    pub end: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// Device and inode of the file; inode 0: there is none.
    pub file: FileId,
    /// The file, or the kernel's name in brackets.
    pub path: Rc<[u8]>,
    /// Its tables and bias, once they were requested.
    tables: Option<(Rc<Tables>, u64)>,
    /// Its file's build id, if somebody else has read it.
    told: Option<Rc<[u8]>>,
}

impl Range {
    /// Memory at these addresses, of this file.
    pub fn new((start, end): (u64, u64), offset: u64, file: FileId, path: &[u8]) -> Self {
        Self {
            start,
            end,
            offset,
            file,
            path: path.into(),
            tables: None,
            told: None,
        }
    }

    /// The same for a module whose build id is known.
    #[must_use]
    pub fn of_module(addresses: (u64, u64), offset: u64, path: &[u8], build_id: &[u8]) -> Self {
        Self {
            told: Some(build_id.into()),
            ..Self::new(addresses, offset, ((0, 0), 0), path)
        }
    }

    /// Whether the process has made it itself: no file is mapped there. Perf events have a name for
    /// that.
    pub fn is_generated(&self) -> bool {
        self.file.1 == 0 && (self.path.is_empty() || &*self.path == b"//anon")
    }

    /// Whether reading its tables takes long: milliseconds.
    pub fn is_large(&self) -> bool {
        self.end.saturating_sub(self.start) >= LARGE
    }

    /// The build id of its file, if that was read; empty: none.
    pub fn build_id(&self) -> &[u8] {
        let tables = self.tables.as_ref();
        let told = self.told.as_deref().unwrap_or_default();
        tables.map_or(told, |(tables, _)| tables.build_id())
    }
}

/// Tables of all files that were read, for the processes that share them.
#[derive(Default)]
pub struct Library {
    files: HashMap<FileId, Rc<Tables>>,
    vdso: Option<Rc<Tables>>,
    bytes: usize,
}

impl Library {
    /// The tables of a range of a process; none are known where its file cannot be read.
    fn tables(&mut self, pid: i32, range: &Range) -> Rc<Tables> {
        if &*range.path == b"[vdso]" {
            let vdso = self.vdso.get_or_insert_with(|| Rc::new(own_vdso()));
            return Rc::clone(vdso);
        }
        if range.file.1 == 0 {
            return Rc::default();
        }
        if let Some(tables) = self.files.get(&range.file) {
            return Rc::clone(tables);
        }
        let mut tables = open(pid, range).map_or_else(Tables::default, |file| Tables::read(&file));
        if self.bytes + tables.size() > MOST_BYTES {
            // What is there already is in use. Its stacks end where this code is.
            tables = tables.without_frames();
        }
        self.bytes += tables.size();
        let tables = Rc::new(tables);
        self.files.insert(range.file, Rc::clone(&tables));
        tables
    }
}

/// The file of a range: through the process's own mapping if that is allowed, otherwise by its
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
    let is_it = |file: &File| file.metadata().is_ok_and(|m| m.ino() == range.file.1);
    let mut files = roots
        .iter()
        .filter_map(|root| opening::regular(&Path::new(root).join(inside)).ok());
    files.find(is_it)
}

/// The kernel maps the same one into every process, this one included.
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

/// The executable memory of a process.
#[derive(Clone, Default)]
pub struct Space {
    pid: i32,
    /// By address; none overlap.
    ranges: Vec<Range>,
    /// What calls precede addresses of files' code.
    callers: ByAddress<u64, Option<Caller>>,
    /// How often something was mapped.
    changes: u64,
    /// Whether the maps were read since anything changed.
    is_fresh: bool,
    /// When they may be read again nevertheless: ptrace is not notified of libraries that are
    /// loaded.
    next: Option<Instant>,
}

impl Space {
    /// That of a process, as it is now.
    pub fn of(pid: i32) -> Self {
        let mut space = Self {
            pid,
            ..Self::default()
        };
        space.refresh();
        space
    }

    /// Nothing yet: of a process that has just begun to run a program.
    pub fn empty(pid: i32) -> Self {
        Self {
            pid,
            ..Self::default()
        }
    }

    /// The same for a process that was just born of this one.
    pub fn inherited(&self, pid: i32) -> Self {
        Self {
            pid,
            is_fresh: false,
            ..self.clone()
        }
    }

    /// The ranges, by address.
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// A number that is another one after something was mapped.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Where the large ranges begin.
    pub fn large(&self) -> Vec<u64> {
        let large = self.ranges.iter().filter(|range| range.is_large());
        large.map(|range| range.start).collect()
    }

    /// Makes sure that the tables of the range that holds an address are there.
    pub fn prepare(&mut self, address: u64, library: &mut Library) {
        if let Some(index) = self.position(address) {
            self.load(index, library);
        }
    }

    /// Reads what is mapped now, if the process is still there.
    fn refresh(&mut self) {
        let began = Instant::now();
        let text = proc::maps(self.pid).unwrap_or_default();
        let entries = Entry::all(&text).filter(|entry| entry.permissions.contains(&b'x'));
        for entry in entries.take(MOST_MAPPED) {
            let addresses = (entry.start, entry.end);
            let range = Range::new(
                addresses,
                entry.file_offset,
                (entry.device, entry.inode),
                &with_newlines(entry.path),
            );
            self.map(range);
        }
        self.is_fresh = true;
        let cost = began.elapsed();
        self.next = Some(Instant::now() + AGAIN.max(cost.saturating_mul(SHARE)));
    }

    /// Something was mapped.
    pub fn map(&mut self, range: Range) {
        if range.start >= range.end || self.ranges.len() >= MOST_MAPPED {
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
        self.callers.clear();
        self.ranges.splice(first..last, [range]);
    }

    /// Puts what is known for certain in the place of what was there.
    pub fn replace(&mut self, range: Range) {
        let reach = (range.start, range.end);
        self.ranges
            .retain(|known| known.end <= reach.0 || reach.1 <= known.start);
        self.map(range);
    }

    /// The index of the range that holds an address. A miss makes it look again, if that is not
    /// long enough ago for something to have been mapped since.
    pub fn find(&mut self, address: u64) -> Option<usize> {
        let found = self.position(address);
        let may_be_old = || self.next.is_none_or(|next| Instant::now() >= next);
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

    /// Makes the next miss look again: some time has gone by.
    pub fn age(&mut self) {
        self.is_fresh = false;
    }

    /// The bytes before an address; zero where they cannot be read.
    pub fn before(&self, address: u64) -> [u8; 8] {
        let mut bytes = [0; 8];
        capture::read_memory(self.pid, address.wrapping_sub(8), &mut bytes);
        bytes
    }

    /// Reads memory of the process. Whether all of it could be read.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        capture::read_memory(self.pid, address, bytes) == bytes.len()
    }

    /// A word of its memory.
    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes)
            .then(|| u64::from_ne_bytes(bytes))
    }

    /// Whether two addresses lie in one range.
    pub fn are_together(&self, one: u64, other: u64) -> bool {
        self.position(one)
            .is_some_and(|index| self.position(other) == Some(index))
    }

    /// Whether a function that the tables describe begins at one of these addresses, or between
    /// them. Their range's tables have been loaded.
    pub fn has_function(&self, first: u64, last: u64) -> bool {
        let module = self.module(last.wrapping_add(1));
        module.is_none_or(|module| {
            let [first, last] = [first, last].map(|address| address.wrapping_sub(module.bias));
            module.tables.has_function(first, last)
        })
    }

    /// Whether the tables describe the function that holds a return address; `None`: no code is
    /// mapped there.
    pub fn function(&mut self, ip: u64, library: &mut Library) -> Option<bool> {
        let index = self.find(ip.wrapping_sub(1))?;
        self.load(index, library);
        Some(function(&self.module(ip)?, ip).is_some())
    }

    /// What may call a function that returns to `ip`. Bytes of code that the process has made
    /// itself are not examined: it changes.
    pub fn caller(&mut self, ip: u64) -> Option<Caller> {
        let index = self.find(ip.wrapping_sub(1))?;
        if self.ranges[index].is_generated() {
            return Some(Caller::Generated);
        }
        if let Some(known) = self.callers.get(&ip) {
            return *known;
        }
        let before = self.before(ip);
        let found = match Native::call(before, ip) {
            Some(Target::Known(to)) => Some(Caller::Of(to)),
            Some(Target::Unknown) => Some(Caller::OfAny),
            None => (before == [0; 8]).then_some(Caller::OfAny),
        };
        if self.callers.len() >= MOST_CALLERS {
            self.callers.clear();
        }
        self.callers.insert(ip, found);
        found
    }

    /// Makes sure that the tables of a range are there.
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

    /// The module that holds a return address, if its tables are loaded.
    pub fn module(&self, ip: u64) -> Option<Loaded<'_>> {
        let range = &self.ranges[self.position(ip.wrapping_sub(1))?];
        let (tables, bias) = range.tables.as_ref()?;
        Some(Loaded {
            tables,
            bias: *bias,
            pid: self.pid,
        })
    }

    /// The rule of a return address; `None`: no code is mapped there.
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
    fn a_newline_in_a_path_is_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("a b\n\nc");
        // Not by this process: what it has open for writing, children of other tests may have too,
        // and nothing executes it meanwhile.
        let mut copy = Command::new("cp");
        let copied = copy.arg("/bin/cat").arg(&program).status();
        assert!(copied.expect("cp").success());
        let mut command = Command::new(&program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a program");
        // It was executed before it was mapped.
        let (mut input, mut output) = (child.stdin.take().expect("a pipe"), [0]);
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
