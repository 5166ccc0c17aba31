//! From a snapshot to a profile: stacks with their sums, modules, and what the dump says
//! about itself.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use heap_format::{
    BuildId, Detail, Facts, Mapping, Profile, ProfileBuilder, TABLE_FULL_ADDRESS, TRUNCATED_ADDRESS,
};
use shm_protocol::clock::TICK_NS;
use shm_protocol::snapshot::{Header, ModuleView, RecordView};

use crate::process;
use crate::snapshot::Snapshot;

/// Most frames in one profile: bounds what a damaged tree can make of itself.
const MAX_FRAMES: usize = 1 << 26;

/// What a dump says besides the stacks.
#[derive(Clone, Debug, Default)]
pub struct Story {
    /// Pid as we see it.
    pub pid: i32,
    /// Short name of the process.
    pub name: Vec<u8>,
    /// What caused the dump.
    pub trigger: String,
    /// How the session ended, or that it did not.
    pub ended: String,
    /// The command line, while the process lives.
    pub command_line: Vec<Vec<u8>>,
    /// The text of its maps, while the process lives.
    pub maps: Vec<u8>,
    /// Boot id of the kernel, if it is still the one that the process ran under.
    pub boot_id: Option<String>,
}

impl Story {
    /// Reads what can only be read while the process lives.
    pub fn of_live(pid: i32, name: &[u8]) -> Self {
        Self {
            pid,
            name: name.to_vec(),
            command_line: process::command_line(pid),
            maps: process::maps(pid).unwrap_or_default(),
            boot_id: process::boot_id().map(|(_, text)| text),
            ..Self::default()
        }
    }
}

/// Puts a profile together.
pub fn profile(snapshot: &Snapshot, header: &Header<'_>, story: &Story) -> Profile {
    let mut builder = ProfileBuilder::new(snapshot.session.interval.max(1));
    for module in modules(header, &story.maps) {
        builder.module(module);
    }
    builder.facts(facts(snapshot, header, story));
    stacks(snapshot, &mut builder);
    builder.finish()
}

fn stacks(snapshot: &Snapshot, builder: &mut ProfileBuilder) {
    let now = snapshot.end_tick();
    let mut addresses = Vec::new();
    let mut frames = 0;
    for record in snapshot.stacks() {
        let whole = frames < MAX_FRAMES && snapshot.addresses(record.node, &mut addresses);
        if frames >= MAX_FRAMES {
            addresses.clear();
        }
        if !whole {
            addresses.push(TRUNCATED_ADDRESS);
        }
        frames += addresses.len();
        builder.stack(addresses.iter().copied(), &detail(record, now));
    }
    if !snapshot.table_full.is_empty() {
        builder.stack([TABLE_FULL_ADDRESS], &detail(&snapshot.table_full, now));
    }
}

/// A stack's sums in the dump's units.
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
    }
}

/// The modules, called as the kernel calls them: the loader may know a library by a path
/// that leads through a link.
fn modules(header: &Header<'_>, maps: &[u8]) -> Vec<Mapping> {
    let kernel: HashMap<(u64, u64), PathBuf> = heap_format::maps::parse(maps)
        .into_iter()
        .map(|m| ((m.start, m.file_offset), m.path))
        .collect();
    let mut modules: Vec<Mapping> = header.modules().map(|m| mapping(&m)).collect();
    for module in modules.iter_mut().filter(|m| !m.past) {
        if let Some(path) = kernel.get(&(module.start, module.file_offset)) {
            module.path.clone_from(path);
        }
    }
    modules
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

fn path(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

fn facts(snapshot: &Snapshot, header: &Header<'_>, story: &Story) -> Facts {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let session = &snapshot.session;
    let mut counters: std::collections::BTreeMap<String, u64> =
        snapshot.counters.iter().cloned().collect();
    counters.insert("modules_lost".to_owned(), header.modules_lost());
    let allocator = header.allocator_stats().map(|(_, stats)| stats);
    Facts {
        pid: Some(story.pid as u32),
        process: Some(text(&story.name)),
        exe: Some(path(header.exe())),
        exe_build_id: BuildId(header.exe_build_id().to_vec()),
        command_line: story.command_line.iter().map(|a| text(a)).collect(),
        boot_id: story.boot_id.clone(),
        start_unix_ns: Some(session.start_unix_ns),
        end_unix_ns: Some(snapshot.end_unix_ns),
        duration_ns: Some(snapshot.end_ns.saturating_sub(session.start_ns)),
        trigger: Some(story.trigger.clone()).filter(|t| !t.is_empty()),
        ended: Some(story.ended.clone()).filter(|t| !t.is_empty()),
        counters,
        allocator: allocator
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        maps_text: story.maps.clone(),
        ..Facts::default()
    }
}
