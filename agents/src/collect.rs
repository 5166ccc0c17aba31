//! Builds a profile from a snapshot: stacks with their sums, modules and the dump's metadata.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use profile::dump::{PART_STACKS, Part};
use profile::maps::Entry;
use profile::{
    AgeSpread, BuildId, Detail, Facts, FileIdentity, Lost, MERGED_ADDRESS, Mapping, Profile,
    ProfileBuilder, TABLE_FULL_ADDRESS, TRUNCATED_ADDRESS,
};
use shm_protocol::clock::TICK_NS;
use shm_protocol::layout::ADDRESS_BITS;
use shm_protocol::segment::IntervalPeriod;
use shm_protocol::snapshot::{Header, ModuleView, RecordView, ThreadView};

use crate::helper;
use crate::interpreted::{self, Interpreted};
use crate::resident::Owners;
use crate::resolved_tree::ResolvedTree;
use crate::snapshot::Snapshot;
use crate::thread_stacks::Stacks;

/// Maximum number of frames in one profile.
pub const MAX_FRAMES: usize = 1 << 26;
/// Maximum number of frames in a profile per byte of the segment. Stacks share nodes, so a damaged
/// or hostile tree of a few pages could expand to any number of frames. Real sessions stay below:
/// even ten thousand stacks that recurse a thousand deep come with megabytes of segment.
const FRAMES_PER_BYTE: u64 = 2;

/// Dump metadata that is not in the segment.
#[derive(Clone, Debug, Default)]
pub struct Metadata {
    /// Pid in our own pid namespace.
    pub pid: i32,
    /// Short name of the process (`comm`).
    pub name: Vec<u8>,
    /// Cause of the dump.
    pub trigger: String,
    /// Text for display on how the process or session ended; empty if it still runs.
    pub ended: String,
    /// True if the dump shows the session's high-water mark.
    pub is_peak: bool,
    /// Command line; empty if the process has exited.
    pub command_line: Vec<Vec<u8>>,
    /// Text of `/proc/PID/maps`; empty if the process has exited.
    pub maps: Vec<u8>,
    /// Memory counters of the kernel, in bytes; empty if the process has exited.
    pub memory: Vec<(&'static str, u64)>,
    /// Boot id of the kernel that the process ran under, if that is still running.
    pub boot_id: Option<String>,
}

impl Metadata {
    /// Collects the metadata of a running process.
    pub fn of_live(pid: i32, name: &[u8]) -> Self {
        Self {
            pid,
            name: name.to_vec(),
            command_line: proc::command_line(pid),
            maps: proc::maps(pid).unwrap_or_default(),
            memory: proc::memory_counters(pid),
            boot_id: proc::boot_id().map(|(_, text)| text),
            ..Self::default()
        }
    }

    /// Adds the resident anonymous memory by owner, if it is known.
    pub fn add_owners(&mut self, header: &Header<'_>) {
        let owners = Owners::find(self.pid, header, &self.maps, &Stacks::default());
        let owners = owners.and_then(|owners| owners.resident(self.pid));
        self.memory
            .extend(owners.iter().flat_map(|owners| owners.counters()));
    }
}

/// Builds a profile. Also returns the number of stacks truncated for exceeding the frame limit.
pub fn profile(snapshot: &Snapshot, header: &Header<'_>, metadata: &Metadata) -> (Profile, usize) {
    let now = snapshot.end_tick();
    profile_of(snapshot, header, metadata, |record| {
        Some((detail(record, now), Lost::default()))
    })
}

/// Like [`profile()`], but with the values that `details` returns for each record: one pair for
/// each kind of loss. Records without values are omitted.
pub fn profile_of<D: IntoIterator<Item = (Detail, Lost)>>(
    snapshot: &Snapshot,
    header: &Header<'_>,
    metadata: &Metadata,
    details: impl Fn(&RecordView) -> D,
) -> (Profile, usize) {
    let mut builder = ProfileBuilder::new(snapshot.least_interval.max(1));
    let (modules, relocations) = modules(header, &metadata.maps);
    for module in modules {
        builder.module(module);
    }
    builder.facts(facts(snapshot, header, metadata));
    let truncated = stacks(snapshot, &relocations, &mut builder, details);
    (builder.finish(), truncated)
}

/// Adds all stacks to the profile and returns how many were truncated.
fn stacks<D: IntoIterator<Item = (Detail, Lost)>>(
    snapshot: &Snapshot,
    relocations: &Relocations,
    builder: &mut ProfileBuilder,
    details: impl Fn(&RecordView) -> D,
) -> usize {
    let limit = snapshot.segment_bytes.saturating_mul(FRAMES_PER_BYTE);
    let max_frames = usize::try_from(limit).unwrap_or(MAX_FRAMES).min(MAX_FRAMES);
    let mut truncated = 0;
    let mut tree = ResolvedTree::new(snapshot);
    let mut interpreted = Interpreted::new(snapshot.codes());
    let mut stack = Vec::new();
    let mut frames = 0;
    let threads = snapshot.thread_entries.len();
    for record in snapshot.records() {
        let mut details = details(record).into_iter().peekable();
        if details.peek().is_none() {
            continue;
        }
        stack.clear();
        let mut is_whole = false;
        let mut thread = None;
        if frames < max_frames {
            let end = tree.stack(record.node, &mut stack, |address| {
                let location = interpreted.location(builder, address);
                location.unwrap_or_else(|| builder.location(relocations.shown(address)))
            });
            is_whole = end.whole;
            thread = end.thread.filter(|index| (*index as usize) < threads);
        } else {
            truncated += 1;
        }
        if !is_whole {
            stack.push(builder.location(TRUNCATED_ADDRESS));
        }
        for (detail, lost) in details {
            frames += stack.len();
            builder.stack_of(&stack, &detail);
            if let Some(index) = thread {
                builder.thread(index + 1);
            }
            add_loss(builder, lost);
        }
    }
    let table_full = Some(&snapshot.table_full).filter(|record| !record.is_empty());
    for (detail, lost) in table_full.into_iter().flat_map(details) {
        builder.stack([TABLE_FULL_ADDRESS], &detail);
        add_loss(builder, lost);
    }
    truncated
}

fn add_loss(builder: &mut ProfileBuilder, lost: Lost) {
    if lost.how.is_some() {
        builder.lost(lost);
    }
}

/// Builds a profile without values, with a one-frame stack for each address, so that functions get
/// the names that they have in dumps. `codes` is the table of an interpreter's code objects.
pub fn profile_of_addresses(
    header: &Header<'_>,
    pid: i32,
    addresses: &[u64],
    codes: &[u8],
) -> Profile {
    let maps_text = proc::maps(pid).unwrap_or_default();
    let mut builder = ProfileBuilder::new(1);
    let (modules, relocations) = modules(header, &maps_text);
    modules
        .into_iter()
        .for_each(|module| builder.module(module));
    builder.facts(Facts {
        pid: Some(pid as u32),
        exe: Some(executable(header, pid)),
        exe_build_id: BuildId(header.exe_build_id().to_vec()),
        // The process still runs.
        exe_file: exe_file(header, pid, &maps_text, u64::MAX),
        boot_id: proc::boot_id().map(|(_, text)| text),
        maps_text,
        ..Facts::default()
    });
    let mut interpreted = Interpreted::new(codes);
    for &address in addresses {
        let location = interpreted.location(&mut builder, address);
        let location = location.unwrap_or_else(|| builder.location(relocations.shown(address)));
        builder.stack_of(&[location], &Detail::default());
    }
    builder.finish()
}

/// A profile, and what is needed to write it as a dump.
pub struct ProfileWithRecords {
    /// The profile.
    pub profile: Profile,
    /// Number of stacks truncated for exceeding the frame limit.
    pub truncated: usize,
    /// Parts of the dump's text with the records of the stacks.
    pub records: Vec<Part>,
}

/// Builds a profile as [`profile()`] does, and the text parts of its stacks' records. The parts
/// need only the sums, so a helper thread builds them concurrently.
pub fn profile_with_records(
    snapshot: &Snapshot,
    header: &Header<'_>,
    metadata: &Metadata,
) -> ProfileWithRecords {
    let now = snapshot.end_tick();
    let interval = snapshot.least_interval.max(1);
    let groups = groups(snapshot);
    let part = |index: usize| {
        let stacks = groups.iter().skip(index * PART_STACKS).take(PART_STACKS);
        let sums = stacks.map(|group| {
            let mut sum = Detail::default();
            for record in *group {
                sum.add(&detail(record, now));
            }
            (sum, group.len())
        });
        Part::new(sums, interval)
    };
    let count = groups.len().div_ceil(PART_STACKS);
    let (records, (profile, truncated)) =
        helper::compute_parts_while(count, part, || self::profile(snapshot, header, metadata));
    ProfileWithRecords {
        profile,
        truncated,
        records,
    }
}

/// Groups the records by stack, in the order of [`profile()`]'s stacks.
fn groups(snapshot: &Snapshot) -> Vec<&[RecordView]> {
    let mut rest = snapshot.records();
    let mut groups = Vec::with_capacity(snapshot.groups().len() + 1);
    for &count in snapshot.groups() {
        let (group, others) = rest.split_at(rest.len().min(count as usize));
        groups.push(group);
        rest = others;
    }
    if !snapshot.table_full.is_empty() {
        groups.push(std::slice::from_ref(&snapshot.table_full));
    }
    groups
}

/// Converts a record's sums to the units of a dump.
pub fn detail(record: &RecordView, now_tick: u32) -> Detail {
    let sums = record.sums(now_tick);
    let ms = TICK_NS as f64 / 1e6;
    Detail {
        alloc_samples: sums.alloc_samples,
        free_samples: sums.free_samples,
        alloc_objects: sums.alloc_objects,
        alloc_bytes: sums.alloc_bytes,
        freed_objects: sums.free_objects,
        freed_bytes: sums.free_bytes,
        live_age_ms_sum: sums.live_age_ticks * ms,
        freed_lifetime_ms_sum: sums.freed_lifetime_ticks * ms,
        alloc_variance: sums.alloc_variance,
        live_variance: sums.live_variance,
        alloc_object_variance: sums.alloc_object_variance,
        live_object_variance: sums.live_object_variance,
        short_lived_objects: sums.short_lived_objects,
        age_spread: sums.live_age_spread.map(|spread| AgeSpread {
            squares: spread * ms * ms,
            deviations: 0.0,
        }),
    }
}

/// First address at which unloaded modules are shown if another module uses their own range.
/// Outside user space.
const RELOCATED_START: u64 = 1 << 62;
/// Bits of a node's address that hold the code address.
const ADDRESS_MASK: u64 = (1 << ADDRESS_BITS) - 1;

/// Modules whose frames are shown at other addresses than those at which they ran.
#[derive(Default)]
pub struct Relocations {
    modules: Vec<Relocated>,
}

/// A module that was moved to a free address range.
struct Relocated {
    /// Addresses at which the module ran.
    module: std::ops::Range<u64>,
    /// Number that distinguishes modules at the same address, as in the nodes' upper bits.
    instance: u64,
    /// First address at which its frames are shown.
    new_start: u64,
}

impl Relocations {
    /// Returns the address to show for a node's address, moved if its module was.
    pub fn shown(&self, address: u64) -> u64 {
        if matches!(
            address,
            TRUNCATED_ADDRESS | TABLE_FULL_ADDRESS | MERGED_ADDRESS
        ) {
            return address;
        }
        let plain = address & ADDRESS_MASK;
        let instance = address >> ADDRESS_BITS;
        // A return address may lie one past its module's end.
        let mut modules = self.modules.iter();
        modules
            .find(|m| m.instance == instance && m.module.contains(&plain.wrapping_sub(1)))
            .map_or(plain, |m| plain - m.module.start + m.new_start)
    }
}

/// Returns the modules of a process. Their paths are the kernel's, since the loader's may contain
/// symbolic links. An unloaded module whose range is in use again is moved, so that every address
/// has one meaning.
pub fn modules(header: &Header<'_>, maps: &[u8]) -> (Vec<Mapping>, Relocations) {
    let kernel = profile::maps::parse(maps);
    let by_range: HashMap<(u64, u64), &PathBuf> = kernel
        .iter()
        .map(|m| ((m.start, m.file_offset), &m.path))
        .collect();
    let views: Vec<ModuleView<'_>> = header.modules().collect();
    let mut modules = Vec::new();
    let mut relocations = Relocations::default();
    let mut next = RELOCATED_START;
    for (index, view) in views.iter().enumerate() {
        let mut module = mapping(view);
        let overlaps = |start: u64, end: u64| view.start < end && start < view.end;
        let mut others = views.iter().enumerate().filter(|(i, _)| *i != index);
        let mut mapped = kernel.iter().filter(|m| m.path != module.path);
        let is_reused = others.any(|(_, other)| overlaps(other.start, other.end))
            || mapped.any(|m| overlaps(m.start, m.end));
        if module.past && is_reused {
            let size = view.end - view.start;
            relocations.modules.push(Relocated {
                module: view.start..view.end,
                instance: u64::from(view.instance),
                new_start: next,
            });
            module.start = next;
            module.end = next + size;
            next += (size + 0xffff) & !0xffff;
        } else if let Some(path) = by_range.get(&(module.start, module.file_offset)) {
            module.path.clone_from(path);
        }
        modules.push(module);
    }
    (modules, relocations)
}

fn mapping(module: &ModuleView<'_>) -> Mapping {
    Mapping {
        start: module.start,
        end: module.end,
        file_offset: module.file_offset,
        build_id: BuildId(module.build_id.to_vec()),
        path: path(module.path),
        past: module.unloaded_tick.is_some(),
    }
}

/// Returns the stacks of overwritten objects, as addresses within the call instructions (return
/// address minus one), by which functions are looked up.
fn overwritten(snapshot: &Snapshot) -> Vec<Vec<u64>> {
    let mut stacks = Vec::new();
    for leaf in &snapshot.overwritten {
        let mut stack = Vec::new();
        snapshot.addresses(*leaf, &mut stack);
        stack.truncate(profile::overwritten::MAX_FRAMES);
        for address in &mut stack {
            *address = address.wrapping_sub(1);
        }
        if !stack.is_empty() {
            stacks.push(stack);
        }
    }
    stacks
}

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Returns the path of a process's executable. Of a path longer than 1024 bytes, the header has
/// only the end; while the process runs, the whole path is read from `/proc`.
fn executable(header: &Header<'_>, pid: i32) -> PathBuf {
    let recorded = header.exe();
    if recorded.starts_with(b"/") {
        return path(recorded);
    }
    let now = proc::exe(pid).filter(|now| now.ends_with(recorded));
    path(now.as_deref().unwrap_or(recorded))
}

/// Returns the identity of the executable's file. If the process has exited, the file at that path
/// counts only if it has not changed since the process was created. Returns `None` if the build id
/// identifies the file, or if the file cannot be found.
fn exe_file(header: &Header<'_>, pid: i32, maps: &[u8], end_unix_ns: u64) -> Option<FileIdentity> {
    if !header.exe_build_id().is_empty() {
        return None;
    }
    let exe = executable(header, pid);
    let recorded = exe.as_os_str().as_bytes();
    // The kernel marks files that were deleted or replaced since.
    let deleted = [recorded, b" (deleted)"].concat();
    let is_exe = |entry: &Entry<'_>| *entry.path == *recorded || *entry.path == *deleted;
    let mut mapped = Entry::all(maps);
    if let Some(mapped) = mapped.find(is_exe) {
        // A deleted file, or one in memory, can be opened only through the process.
        let running = PathBuf::from(format!("/proc/{pid}/exe"));
        return [exe, running]
            .iter()
            .find_map(|file| FileIdentity::of_mapped(file, mapped.inode, end_unix_ns));
    }
    // In a container, the same path is another file.
    let our_namespace = std::fs::metadata("/proc/self/ns/pid").ok()?;
    let is_here = our_namespace.ino() == header.pid_namespace() && header.forked_from() == 0;
    FileIdentity::of_unchanged(&exe, header.created_unix_ns()).filter(|_| is_here)
}

fn facts(snapshot: &Snapshot, header: &Header<'_>, metadata: &Metadata) -> Facts {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let session = &snapshot.session;
    let mut counters: std::collections::BTreeMap<String, u64> =
        snapshot.counters.iter().cloned().collect();
    counters.insert("modules_lost".to_owned(), header.modules_lost());
    // The difference is negative for allocator statistics from before the session.
    let unix = |ns: u64| {
        let since = ns as i64 - session.start_ns as i64;
        session.start_unix_ns.saturating_add_signed(since)
    };
    let interval = |period: &IntervalPeriod| profile::IntervalPeriod {
        from_unix_ns: unix(period.from_ns),
        interval: period.interval,
        overhead: period.overhead,
    };
    let thread = |thread: &ThreadView| profile::Thread {
        tid: thread.tid,
        name: text(thread.name()),
    };
    let (allocator_ns, allocator) = header.allocator_stats().unzip();
    let exe_file = exe_file(header, metadata.pid, &metadata.maps, snapshot.end.unix_ns);
    Facts {
        exe_file,
        pid: Some(metadata.pid as u32),
        process: Some(text(&metadata.name)),
        exe: Some(executable(header, metadata.pid)),
        exe_build_id: BuildId(header.exe_build_id().to_vec()),
        command_line: metadata.command_line.iter().map(|a| text(a)).collect(),
        boot_id: metadata.boot_id.clone(),
        start_unix_ns: Some(session.start_unix_ns),
        end_unix_ns: Some(snapshot.end.unix_ns),
        end_boot_ns: snapshot.end.boot_ns,
        duration_ns: Some(snapshot.end_ns.saturating_sub(session.start_ns)),
        peak_ns: metadata
            .is_peak
            .then(|| snapshot.end_ns.saturating_sub(session.start_ns)),
        intervals: snapshot.intervals.iter().map(interval).collect(),
        cost: snapshot.cost(),
        thinning: Some(session.thinning)
            .filter(|&log2| log2 > 0 && session.interval > 1)
            .map(|log2| 1 << log2.min(63)),
        threads: snapshot.thread_entries.iter().map(thread).collect(),
        python: interpreted::describe(header),
        python_hides: header.python_hides(),
        trigger: Some(metadata.trigger.clone()).filter(|t| !t.is_empty()),
        ended: Some(metadata.ended.clone()).filter(|t| !t.is_empty()),
        counters,
        overwritten_stacks: overwritten(snapshot),
        allocator: allocator
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        allocator_unix_ns: allocator_ns.map(unix),
        memory: metadata
            .memory
            .iter()
            .map(|&(name, bytes)| (name.to_owned(), bytes))
            .collect(),
        maps_text: metadata.maps.clone(),
        ..Facts::default()
    }
}
