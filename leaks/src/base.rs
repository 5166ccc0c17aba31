//! Compares a leak check with an earlier one, to find the losses since then. Stacks are compared by
//! modules and offsets within modules, so the earlier check may be of another process of the same
//! program.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::ensure;
use mem_agents::clock::Time;
use mem_agents::collect;
use mem_agents::discovery::Agent;
use mem_agents::snapshot::Snapshot;
use mem_agents::text;
use profile::{Location, Mapping, Profile};
use shm_protocol::NodeId;
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

/// Value of `trigger` in the metadata of a leak check's dump.
pub const TRIGGER: &str = "leak check";

/// Objects, bytes or fractions below this are rounding errors.
pub const EPSILON: f64 = 1e-6;

/// Frame of a stack: module number and offset in its file, or `None` and the address for code
/// without a file.
pub type ModuleFrame = (Option<u32>, u64);

/// Amount of lost objects.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    /// Number of samples.
    pub samples: u64,
    /// Estimated number of objects.
    pub objects: f64,
    /// Estimated number of bytes.
    pub bytes: f64,
}

impl Amount {
    fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.objects += other.objects;
        self.bytes += other.bytes;
    }
}

/// Fraction of a stack's lost objects and bytes that is new.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    /// Fraction of the objects.
    pub objects: f64,
    /// Fraction of the bytes.
    pub bytes: f64,
}

impl Share {
    /// All objects and bytes are new.
    pub const ALL: Self = Self {
        objects: 1.0,
        bytes: 1.0,
    };

    fn new_part(now: &Amount, before: &Amount) -> Option<Self> {
        let part = |now: f64, before: f64| {
            if now - before > EPSILON {
                (now - before) / now
            } else {
                0.0
            }
        };
        let share = Self {
            objects: part(now.objects, before.objects),
            bytes: part(now.bytes, before.bytes),
        };
        (share.objects > EPSILON).then_some(share)
    }
}

/// Losses since an earlier check.
#[derive(Debug, Default)]
pub struct NewLosses {
    /// New fraction by stack. Stacks without an entry have no new losses.
    pub shares: HashMap<NodeId, Share>,
    /// Number of new samples.
    pub samples: u64,
}

impl NewLosses {
    /// Compares a process's losses with those of an earlier check in the same session.
    pub fn between(now: &HashMap<NodeId, Amount>, before: &HashMap<NodeId, Amount>) -> Self {
        let mut new_losses = Self::default();
        for (node, now) in now {
            let before = before.get(node).copied().unwrap_or_default();
            if let Some(share) = Share::new_part(now, &before) {
                new_losses.shares.insert(*node, share);
                new_losses.samples += now.samples.saturating_sub(before.samples).max(1);
            }
        }
        new_losses
    }
}

/// Earlier check to compare with.
#[derive(Clone, Copy, Debug)]
pub enum Earlier<'a> {
    /// Dump of a check, possibly of another process.
    Dump(&'a Base),
    /// Losses by stack from a check in the same session.
    SameSession(&'a HashMap<NodeId, Amount>),
}

/// Earlier check, read from its dump.
#[derive(Debug)]
pub struct Base {
    /// Path of the dump, for display.
    pub name: String,
    /// Sum of all losses.
    pub total: Amount,
    profile: Profile,
}

impl Base {
    /// Reads the dump of a leak check.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let name = text::path(path);
        let help = "name a file that mem_profiler leaks -o PREFIX has written";
        let profile =
            profile::open_dump(path).map_err(|error| anyhow::anyhow!("{error}: {help}"))?;
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

    /// Returns the age of the check in ns. Uses the time since boot if the machine has not been
    /// rebooted since the check, because the system clock may have been set.
    pub fn age_ns(&self, now: &Time) -> Option<u64> {
        let facts = &self.profile.facts;
        let boot = proc::boot_id().map(|(_, text)| text);
        let is_same_boot = facts.boot_id.is_some() && facts.boot_id == boot;
        let then = facts.end_boot_ns.filter(|_| is_same_boot);
        let by_boot = now.boot_ns.zip(then);
        let by_system = facts.end_unix_ns.map(|then| (now.unix_ns, then));
        let (now, then) = by_boot.or(by_system)?;
        Some(now.saturating_sub(then))
    }

    /// Checks that the dump is comparable: it must be of the same program and, if it is of the same
    /// process, of the same session, since sessions do not know each other's objects.
    pub fn check_comparable(
        &self,
        agent: &Agent,
        header: &Header<'_>,
        session: &Session,
    ) -> anyhow::Result<()> {
        let facts = &self.profile.facts;
        let then = &facts.exe_build_id.0[..];
        let now = header.exe_build_id();
        let path = facts.exe.as_ref().map(|path| path.as_os_str().as_bytes());
        let path = path.unwrap_or_default();
        let is_same = if then.is_empty() || now.is_empty() {
            text::base_name(path) == text::base_name(header.exe())
        } else {
            then == now
        };
        ensure!(
            is_same,
            "{} is of another program, or of another build of it ({}): name a check of this one, or \
             make one without --base",
            self.name,
            text::escape(text::base_name(path))
        );
        let is_same_process = facts.pid == Some(agent.pid as u32)
            && facts.boot_id == proc::boot_id().map(|(_, text)| text)
            && first_exe_address(&self.profile)
                == first_exe_address(&collect::profile_of_addresses(header, agent.pid, &[], &[]));
        ensure!(
            !is_same_process || facts.start_unix_ns == Some(session.start_unix_ns),
            "{} is of another session of this process, which knows other objects: name a check of \
             the last session, or make one without --base",
            self.name
        );
        Ok(())
    }

    /// Returns a process's losses since this check. `now` has its losses by stack.
    pub fn new_losses(
        &self,
        now: &HashMap<NodeId, Amount>,
        snapshot: &Snapshot,
        header: &Header<'_>,
        pid: i32,
    ) -> NewLosses {
        let mut modules = Modules::default();
        let mut before: HashMap<Vec<ModuleFrame>, Amount> = HashMap::new();
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
        let stacks = modules.stacks(now.keys().copied(), snapshot, header, pid);
        // A stack that occurs in several threads has several nodes.
        let mut sums: HashMap<&[ModuleFrame], Amount> = HashMap::new();
        for (node, frames) in &stacks {
            sums.entry(frames).or_default().add(&now[node]);
        }
        let mut new_losses = NewLosses::default();
        for (node, frames) in &stacks {
            let before = before.get(frames).copied().unwrap_or_default();
            let share = Share::new_part(&sums[&frames[..]], &before);
            new_losses.shares.extend(share.map(|share| (*node, share)));
        }
        for (frames, now) in sums {
            let before = before.get(frames).copied().unwrap_or_default();
            if Share::new_part(&now, &before).is_some() {
                new_losses.samples += now.samples.saturating_sub(before.samples).max(1);
            }
        }
        new_losses
    }
}

fn amount(detail: &profile::Detail) -> Amount {
    Amount {
        samples: detail.live_samples(),
        objects: detail.live_objects(),
        bytes: detail.live_bytes(),
    }
}

/// Returns the address of the executable's first mapping. It differs between processes.
fn first_exe_address(profile: &Profile) -> Option<u64> {
    let exe = profile.facts.exe.as_ref()?;
    let exe_mappings = profile.mappings.iter().filter(|m| m.path == *exe);
    exe_mappings.map(|mapping| mapping.start).min()
}

/// Numbers of modules, by build id or, without one, by path.
#[derive(Default)]
pub struct Modules(HashMap<Vec<u8>, u32>);

impl Modules {
    fn frame(&mut self, profile: &Profile, location: &Location) -> ModuleFrame {
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
        let (kind, name) = if mapping.build_id.is_empty() {
            (b'p', mapping.path.as_os_str().as_bytes())
        } else {
            (b'i', &mapping.build_id.0[..])
        };
        let mut key = vec![kind];
        key.extend(name);
        let next = self.0.len() as u32;
        *self.0.entry(key).or_insert(next)
    }

    /// Returns stacks of a process by leaf node, with the frames that a dump of them would have.
    pub fn stacks(
        &mut self,
        leaves: impl Iterator<Item = NodeId>,
        snapshot: &Snapshot,
        header: &Header<'_>,
        pid: i32,
    ) -> Vec<(NodeId, Vec<ModuleFrame>)> {
        let addresses = |leaf| {
            let mut stack = Vec::new();
            let is_complete = snapshot.addresses(leaf, &mut stack);
            (leaf, stack, is_complete)
        };
        let stacks: Vec<_> = leaves.map(addresses).collect();
        let mut addresses: Vec<u64> = (stacks.iter())
            .flat_map(|(_, stack, _)| stack)
            .copied()
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        let code = collect::profile_of_addresses(header, pid, &addresses, &[]);
        let mut frame = |index: usize| {
            let location = code.stacks.get(index).first()?;
            let location = code.locations.get(*location as usize)?;
            Some(self.frame(&code, location))
        };
        let frames: Vec<Option<ModuleFrame>> = (0..addresses.len()).map(&mut frame).collect();
        let with_frames = |(leaf, stack, is_complete): (NodeId, Vec<u64>, bool)| {
            let index = |address: &u64| addresses.binary_search(address).ok();
            let indices = stack.iter().filter_map(index);
            let mut stack_frames: Vec<ModuleFrame> =
                indices.filter_map(|index| frames[index]).collect();
            if stack.is_empty() {
                stack_frames.push((None, profile::TABLE_FULL_ADDRESS));
            } else if !is_complete {
                stack_frames.push((None, profile::TRUNCATED_ADDRESS));
            }
            (leaf, stack_frames)
        };
        stacks.into_iter().map(with_frames).collect()
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
    fn the_new_share_is_the_difference() {
        let now = amount(4, 4.0, 400.0);
        let share = |before| Share::new_part(&now, &before);
        assert_eq!(share(Amount::default()), Some(Share::ALL));
        let half = Share {
            objects: 0.5,
            bytes: 0.75,
        };
        assert_eq!(share(amount(2, 2.0, 100.0)), Some(half));
        assert_eq!(share(now), None);
        assert_eq!(share(amount(9, 9.0, 900.0)), None);
        let nothing = Amount::default();
        assert_eq!(Share::new_part(&nothing, &nothing), None);
    }

    #[test]
    fn frames_are_module_offsets() {
        let mapping = |start, id: &[u8], path: &str| Mapping {
            start,
            end: start + 0x1000,
            file_offset: 0x200,
            build_id: profile::BuildId(id.to_vec()),
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
        assert_eq!(frame(0x7777, profile::NO_MAPPING), (None, 0x7777));
        profile.facts.exe = Some("/b".into());
        assert_eq!(first_exe_address(&profile), Some(0x8000));
    }
}
