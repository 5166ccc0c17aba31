//! An earlier check that a later one is compared with: what was lost stays lost, so the rest has
//! been lost since.
//!
//! Stacks are the same if their modules and the places in these are: in the same process, and in
//! another of the same program.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::ensure;
use heap_format::{Location, Mapping, Profile};
use mem_agents::clock::Time;
use mem_agents::collect;
use mem_agents::discovery::Agent;
use mem_agents::snapshot::Snapshot;
use mem_agents::text;
use shm_protocol::NodeId;
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

/// What dumps of checks name as their cause.
pub const TRIGGER: &str = "leak check";

/// Less than this of an object, a byte or a share is an error of calculation.
pub const NOTHING: f64 = 1e-6;

/// For a stack: module, and distance in its file; or an address, of code without a file.
type Frame = (Option<u32>, u64);

/// Lost objects.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    /// Samples.
    pub samples: u64,
    /// Objects.
    pub objects: f64,
    /// Bytes.
    pub bytes: f64,
}

impl Amount {
    fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.objects += other.objects;
        self.bytes += other.bytes;
    }
}

/// What part of a stack's lost objects and bytes is new.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Of the objects.
    pub objects: f64,
    /// Of the bytes.
    pub bytes: f64,
}

impl Share {
    /// All of it.
    pub const ALL: Self = Self {
        objects: 1.0,
        bytes: 1.0,
    };

    fn of(now: &Amount, before: &Amount) -> Option<Self> {
        let part = |now: f64, before: f64| match now - before > NOTHING {
            true => (now - before) / now,
            false => 0.0,
        };
        let share = Self {
            objects: part(now.objects, before.objects),
            bytes: part(now.bytes, before.bytes),
        };
        (share.objects > NOTHING).then_some(share)
    }
}

/// What is new since a check.
#[derive(Debug, Default)]
pub struct Since {
    /// By stack; nothing is new of the others.
    pub shares: HashMap<NodeId, Share>,
    /// Samples that are new.
    pub samples: u64,
}

impl Since {
    /// What is new of a process's stacks since a check in the same session.
    pub fn of(now: &HashMap<NodeId, Amount>, before: &HashMap<NodeId, Amount>) -> Self {
        let mut since = Self::default();
        for (node, now) in now {
            let before = before.get(node).copied().unwrap_or_default();
            if let Some(share) = Share::of(now, &before) {
                since.shares.insert(*node, share);
                since.samples += now.samples.saturating_sub(before.samples).max(1);
            }
        }
        since
    }
}

/// What a check is compared with.
#[derive(Clone, Copy, Debug)]
pub enum Earlier<'a> {
    /// The dump of a check.
    Dump(&'a Base),
    /// What was lost of each stack in the same session.
    Own(&'a HashMap<NodeId, Amount>),
}

/// An earlier check.
#[derive(Debug)]
pub struct Base {
    /// Its dump, for display.
    pub name: String,
    /// What was lost then.
    pub total: Amount,
    profile: Profile,
}

impl Base {
    /// Reads the dump of a check.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = text::path(path);
        let help = "name a file that mem_profiler leaks -o PREFIX has written";
        let profile =
            heap_format::open_dump(path).map_err(|error| anyhow::anyhow!("{error}: {help}"))?;
        let trigger = profile.facts.trigger.as_deref();
        ensure!(
            trigger == Some(TRIGGER) && profile.details.len() == profile.stacks.len(),
            "{name}: not a dump of a leak check: {help}"
        );
        let mut total = Amount::default();
        let all = profile.details.iter().map(amount);
        all.for_each(|amount| total.add(&amount));
        Ok(Self {
            name,
            total,
            profile,
        })
    }

    /// How long ago it was made, in nanoseconds: by the time since the boot if it was made since,
    /// as the system clock may have been set.
    pub fn age_ns(&self, now: &Time) -> Option<u64> {
        let facts = &self.profile.facts;
        let boot = proc::boot_id().map(|(_, text)| text);
        let is_of_boot = facts.boot_id.is_some() && facts.boot_id == boot;
        let then = facts.end_boot_ns.filter(|_| is_of_boot);
        let by_boot = now.boot_ns.zip(then);
        let by_system = facts.end_unix_ns.map(|then| (now.unix_ns, then));
        let (now, then) = by_boot.or(by_system)?;
        Some(now.saturating_sub(then))
    }

    /// Refuses another program, and another session of the same process: neither knows the
    /// other's objects.
    pub fn suits(
        &self,
        agent: &Agent,
        header: &Header<'_>,
        session: &Session,
    ) -> anyhow::Result<()> {
        let facts = &self.profile.facts;
        let (then, now) = (&facts.exe_build_id.0[..], header.exe_build_id());
        let path = facts.exe.as_ref().map(|path| path.as_os_str().as_bytes());
        let path = path.unwrap_or_default();
        let is_same = match then.is_empty() || now.is_empty() {
            true => text::base_name(path) == text::base_name(header.exe()),
            false => then == now,
        };
        ensure!(
            is_same,
            "{} is of another program, or of another build of it ({}): name a check of this one, or \
             make one without --base",
            self.name,
            text::escape(text::base_name(path))
        );
        let is_of_process = facts.pid == Some(agent.pid as u32)
            && facts.boot_id == proc::boot_id().map(|(_, text)| text)
            && program(&self.profile) == program(&collect::code(header, agent.pid, &[], &[]));
        ensure!(
            !is_of_process || facts.start_unix_ns == Some(session.start_unix_ns),
            "{} is of another session of this process, which knows other objects: name a check of \
             the last session, or make one without --base",
            self.name
        );
        Ok(())
    }

    /// What is new of stacks that have lost so much by now.
    pub fn since(
        &self,
        now: &HashMap<NodeId, Amount>,
        snapshot: &Snapshot,
        (header, pid): (&Header<'_>, i32),
    ) -> Since {
        let mut modules = Modules::default();
        let mut before: HashMap<Vec<Frame>, Amount> = HashMap::new();
        let profile = &self.profile;
        for (stack, detail) in profile.stacks.iter().zip(&profile.details) {
            let frames = stack.iter().filter_map(|location| {
                let location = profile.locations.get(*location as usize)?;
                Some(modules.frame(profile, location))
            });
            before
                .entry(frames.collect())
                .or_default()
                .add(&amount(detail));
        }
        let stacks = modules.stacks(now.keys().copied(), snapshot, (header, pid));
        // A stack of several threads has several nodes.
        let mut sums: HashMap<&[Frame], Amount> = HashMap::new();
        for (node, frames) in &stacks {
            sums.entry(frames).or_default().add(&now[node]);
        }
        let mut since = Since::default();
        for (node, frames) in &stacks {
            let before = before.get(frames).copied().unwrap_or_default();
            let share = Share::of(&sums[&frames[..]], &before);
            since.shares.extend(share.map(|share| (*node, share)));
        }
        for (frames, now) in sums {
            let before = before.get(frames).copied().unwrap_or_default();
            if Share::of(&now, &before).is_some() {
                since.samples += now.samples.saturating_sub(before.samples).max(1);
            }
        }
        since
    }
}

fn amount(detail: &heap_format::Detail) -> Amount {
    Amount {
        samples: detail.live_samples(),
        objects: detail.live_objects(),
        bytes: detail.live_bytes(),
    }
}

/// Where the program itself is mapped, which is another place in another process.
fn program(profile: &Profile) -> Option<u64> {
    let exe = profile.facts.exe.as_ref()?;
    let own = profile.mappings.iter().filter(|m| m.path == *exe);
    own.map(|mapping| mapping.start).min()
}

/// Numbers of modules, by build id, or else by path.
#[derive(Default)]
struct Modules(HashMap<Vec<u8>, u32>);

impl Modules {
    fn frame(&mut self, profile: &Profile, location: &Location) -> Frame {
        match profile.mappings.get(location.mapping as usize) {
            None => (None, location.address),
            Some(mapping) => {
                let distance = location.address.wrapping_sub(mapping.start);
                let offset = distance.wrapping_add(mapping.file_offset);
                (Some(self.number(mapping)), offset)
            }
        }
    }

    fn number(&mut self, mapping: &Mapping) -> u32 {
        let (kind, name) = match mapping.build_id.is_empty() {
            true => (b'p', mapping.path.as_os_str().as_bytes()),
            false => (b'i', &mapping.build_id.0[..]),
        };
        let mut key = vec![kind];
        key.extend(name);
        let next = self.0.len() as u32;
        *self.0.entry(key).or_insert(next)
    }

    /// The frames of a process's stacks, as dumps have them.
    fn stacks(
        &mut self,
        leaves: impl Iterator<Item = NodeId>,
        snapshot: &Snapshot,
        (header, pid): (&Header<'_>, i32),
    ) -> Vec<(NodeId, Vec<Frame>)> {
        let addresses = |leaf| {
            let mut stack = Vec::new();
            let whole = snapshot.addresses(leaf, &mut stack);
            (leaf, stack, whole)
        };
        let stacks: Vec<_> = leaves.map(addresses).collect();
        let all = stacks.iter().flat_map(|(_, stack, _)| stack);
        let mut all: Vec<u64> = all.copied().collect();
        all.sort_unstable();
        all.dedup();
        let code = collect::code(header, pid, &all, &[]);
        let mut frame = |index: usize| {
            let location = code.stacks.get(index).first()?;
            let location = code.locations.get(*location as usize)?;
            Some(self.frame(&code, location))
        };
        let frames: Vec<Option<Frame>> = (0..all.len()).map(&mut frame).collect();
        let named = |(leaf, stack, whole): (NodeId, Vec<u64>, bool)| {
            let index = |address: &u64| all.binary_search(address).ok();
            let own = stack.iter().filter_map(index);
            let mut own: Vec<Frame> = own.filter_map(|index| frames[index]).collect();
            let end = match (stack.is_empty(), whole) {
                (true, _) => Some(heap_format::TABLE_FULL_ADDRESS),
                (false, true) => None,
                (false, false) => Some(heap_format::TRUNCATED_ADDRESS),
            };
            own.extend(end.map(|address| (None, address)));
            (leaf, own)
        };
        stacks.into_iter().map(named).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(samples: u64, objects: f64, bytes: f64) -> Amount {
        Amount {
            samples,
            objects,
            bytes,
        }
    }

    #[test]
    fn what_is_new_is_the_rest() {
        let now = amount(4, 4.0, 400.0);
        let share = |before| Share::of(&now, &before);
        assert_eq!(share(Amount::default()), Some(Share::ALL));
        let half = Share {
            objects: 0.5,
            bytes: 0.75,
        };
        assert_eq!(share(amount(2, 2.0, 100.0)), Some(half));
        assert_eq!(share(now), None);
        assert_eq!(share(amount(9, 9.0, 900.0)), None);
        let nothing = Amount::default();
        assert_eq!(Share::of(&nothing, &nothing), None);
    }

    #[test]
    fn frames_are_places_in_files() {
        let mapping = |start, id: &[u8], path: &str| Mapping {
            start,
            end: start + 0x1000,
            file_offset: 0x200,
            build_id: heap_format::BuildId(id.to_vec()),
            path: path.into(),
            past: false,
        };
        let mut profile = Profile {
            mappings: vec![
                mapping(0x1000, b"one", "/a"),
                mapping(0x8000, b"", "/b"),
                mapping(0x9000, b"one", "/moved"),
            ],
            ..Profile::default()
        };
        let mut modules = Modules::default();
        let mut frame = |address, mapping| {
            let location = Location {
                address,
                mapping,
                first_line: 0,
                line_count: 0,
            };
            modules.frame(&profile, &location)
        };
        assert_eq!(frame(0x1010, 0), (Some(0), 0x210));
        assert_eq!(frame(0x8010, 1), (Some(1), 0x210));
        assert_eq!(frame(0x9010, 2), frame(0x1010, 0));
        assert_eq!(frame(0x7777, heap_format::NO_MAPPING), (None, 0x7777));
        profile.facts.exe = Some("/b".into());
        assert_eq!(program(&profile), Some(0x8000));
    }
}
